/* trainer/save: when a checkpoint is due, and that one which the disk is late for is left out. */
#include "trainer/save.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/trainer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct {
    worker_t w;
    options_t o;
    plan_t plan;
    trainer_t t;
    int fd;
} rig_t;

static void begin(rig_t *r, double minutes)
{
    memset(r, 0, sizeof *r);
    options_default(&r->o);
    r->o.save_minutes = minutes;
    r->plan = (plan_t){.n_train = 40, .epochs = 3};
    r->t.w = &r->w;
    r->t.o = &r->o;
    r->t.plan = &r->plan;
    r->fd = memfd_create("test-save", MFD_CLOEXEC);
    assert_int_equal(snapshot_open(r->fd, 4096, &r->t.snapshot), 0);
    save_begin(&r->t);
}

static void end(rig_t *r)
{
    snapshot_close(&r->t.snapshot);
    close(r->fd);
}

static int keep(void *user, const wire_snapshot_t *m)
{
    *(wire_snapshot_t *)user = *m;
    return 0;
}

/* A snapshot of one small file on its way to the scribe. */
static void take(rig_t *r, uint32_t epoch, uint64_t position, wire_snapshot_t *sent)
{
    safetensors_writer_t *w;
    assert_int_equal(safetensors_writer_new(&w), 0);
    assert_int_equal(snapshot_begin(r->t.snapshot, epoch), 0);
    assert_int_equal(snapshot_add(r->t.snapshot, w, "weights/x", NULL), 0);
    assert_int_equal(snapshot_commit(r->t.snapshot, keep, sent), 0);
    save_taken(&r->t, epoch, position);
    safetensors_writer_free(&w);
}

static void written(rig_t *r, const wire_snapshot_t *m)
{
    wire_saved_t s = {.epoch = m->epoch, .slot = m->slot, .number = m->number};
    memcpy(s.path, m->path, sizeof s.path);
    snapshot_saved(r->t.snapshot, &s);
    save_settle(&r->t);
}

static void nothing_is_due_without_a_reason(void **state)
{
    (void)state;
    rig_t r;
    begin(&r, 0);
    assert_false(save_is_due(&r.t));
    end(&r);
    begin(&r, 60);
    assert_false(save_is_due(&r.t));
    assert_true(r.t.save.due_ns > clock_ns() + 3500ull * 1000000000);
    end(&r);
}

static void the_clock_asks_and_a_late_disk_refuses(void **state)
{
    (void)state;
    rig_t r;
    wire_snapshot_t sent;
    begin(&r, 60);
    r.t.save.due_ns = clock_ns() - 1;
    assert_true(save_is_due(&r.t));
    take(&r, 1, 8, &sent);
    assert_string_equal(r.t.save.what, "epoch 2 of 3, 8 of 40 images trained on");
    assert_false(save_is_due(&r.t)); /* the clock began anew */
    r.t.save.due_ns = clock_ns() - 1;
    assert_false(save_is_due(&r.t)); /* the scribe has not answered: left out */
    assert_true(r.t.save.due_ns > clock_ns());
    written(&r, &sent);
    r.t.save.due_ns = clock_ns() - 1;
    assert_true(save_is_due(&r.t));
    r.t.rank = 1;
    assert_false(save_is_due(&r.t));
    end(&r);
    /* save=False keeps what the run ends with alone. */
    begin(&r, 60);
    r.o.save = 0;
    save_begin(&r.t);
    assert_int_equal(r.t.save.due_ns, 0);
    end(&r);
}

static void a_request_waits_for_the_scribe(void **state)
{
    (void)state;
    rig_t r;
    wire_snapshot_t sent;
    const wire_checkpoint_t first = {.number = 1}, second = {.number = 3};
    begin(&r, 0);
    save_request(&r.t, &first);
    assert_true(save_is_due(&r.t));
    take(&r, 2, 0, &sent);
    assert_string_equal(r.t.save.what, "2 of 3 epochs done");
    assert_int_equal(r.t.save.answered, 0);
    save_request(&r.t, &second); /* while the first is being written */
    assert_false(save_is_due(&r.t));
    written(&r, &sent);
    assert_int_equal(r.t.save.answered, 1);
    assert_true(save_is_due(&r.t));
    take(&r, 2, 40, &sent);
    assert_string_equal(r.t.save.what, "epoch 3 of 3, trained and not yet validated");
    written(&r, &sent);
    assert_int_equal(r.t.save.answered, 3);
    assert_false(save_is_due(&r.t));
    /* One that waits too long is told so and given up. */
    take(&r, 2, 40, &sent);
    const wire_checkpoint_t third = {.number = 4};
    save_request(&r.t, &third);
    r.t.save.asked_ns = clock_ns() - 31ull * 1000000000;
    assert_false(save_is_due(&r.t));
    assert_int_equal(r.t.save.answered, 4);
    written(&r, &sent);
    assert_false(save_is_due(&r.t));
    end(&r);
}

/* What could not be handed over is not tried again after every step. */
static void what_is_left_out_is_not_due_again_at_once(void **state)
{
    (void)state;
    rig_t r;
    const wire_checkpoint_t first = {.number = 1}, second = {.number = 2};
    begin(&r, 60);
    r.t.save.due_ns = clock_ns() - 1;
    save_request(&r.t, &first);
    assert_true(save_is_due(&r.t));
    save_left_out(&r.t, "the coordinator is stopped");
    assert_int_equal(r.t.save.answered, 1);
    assert_true(r.t.save.due_ns > clock_ns());
    assert_false(save_is_due(&r.t));
    save_request(&r.t, &second);
    assert_true(save_is_due(&r.t));
    end(&r);
    /* Where no clock asks there is none afterwards either. */
    begin(&r, 0);
    save_left_out(&r.t, "the coordinator is stopped");
    assert_int_equal(r.t.save.due_ns, 0);
    assert_int_equal(r.t.save.answered, 0);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_due_without_a_reason),
        cmocka_unit_test(the_clock_asks_and_a_late_disk_refuses),
        cmocka_unit_test(a_request_waits_for_the_scribe),
        cmocka_unit_test(what_is_left_out_is_not_due_again_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
