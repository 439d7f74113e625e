/* Steps that run one ahead of their device, on a CPU that claims to be one (tests/fake_async.h): the
 * same numbers as steps that are over when they return; what ranks agree to and what fails is of the
 * right step; slots go back to the ring in order. */
#include "shm/err.h"
#include "tests/fake_async.h"
#include "tests/scratch.h"
#include "tests/trainer_rig.h"
#include "trainer/cachefile.h"
#include "trainer/pass.h"
#include "trainer/step.h"
#include "trainer/tune.h"
#include "trainer/validate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BATCH = 4, IMAGES = 12, PER_EPOCH = IMAGES / BATCH, EPOCHS = 4, STEPS = EPOCHS * PER_EPOCH };

/* An optimiser step every second iteration. */
static const char *const words[] = {"optimizer=SGD", "lr0=0.01", "warmup_epochs=0", "nbs=8", NULL};

static int play(void *user, int32_t slot)
{
    trainer_t *t = user;
    assert_int_equal(slot % TRAINER_TURNS, trainer_turn(t));
    int rc = pass_compute(t, slot >= TRAINER_TURNS);
    return rc == 0 && slot >= TRAINER_TURNS ? pass_update(t) : rc;
}

static void open_rig(const rig_shared_t *s, const k_ops_t *ops, uint32_t n_val, rig_t *r)
{
    const rig_spec_t spec = {.model = "yolo11n",
                             .classes = RIG_CLASSES,
                             .side = RIG_SIZE,
                             .labels = RIG_LABELS,
                             .images = IMAGES,
                             .batch = BATCH,
                             .epochs = EPOCHS,
                             .n_val = n_val,
                             .words = words,
                             .ops = ops};
    if (trainer_rig_open_as(s, 0, 1, &spec, r) < 0)
        fail_msg("rig: %s", err_text());
    fake_async.play = play;
    fake_async.user = &r->t;
}

static int step(rig_t *r, int *asked)
{
    plan_batch_t b = plan_locate(r->t.plan, r->t.seq);
    assert_int_equal(b.phase, PLAN_TRAIN);
    rig_fill(r, &b, b.step * BATCH, IMAGES);
    assert_true(ring_ready(r->w.rings[0], r->t.seq)); /* the slot was free in time */
    int rc = step_train(&r->t, &b, asked);
    r->t.seq++;
    return rc;
}

typedef struct {
    float *weights, *ema;
    double mean[EPOCHS][3];
    trainer_progress_t progress;
    uint64_t images;
} result_t;

static void run(const k_ops_t *ops, int unrecorded, result_t *out)
{
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, ops, 0, &r);
    trainer_t *t = &r.t;
    t->unrecorded = unrecorded;
    for (int k = 0; k < STEPS; k++) {
        int asked;
        if (step(&r, &asked) < 0)
            fail_msg("step %d: %s", k, err_text());
        assert_int_equal(asked, 0);
        int ends = k % PER_EPOCH == PER_EPOCH - 1;
        if (ends)
            memcpy(out->mean[k / PER_EPOCH], t->items.mean, sizeof t->items.mean);
        assert_int_equal(atomic_load(&r.w.page->steps_done), t->ops->async && !ends ? k : k + 1);
    }
    out->weights = malloc(t->mem.weight_bytes);
    out->ema = malloc(t->mem.weight_bytes);
    assert_true(out->weights && out->ema);
    assert_int_equal(trainer_download(t, out->weights, t->mem.train.weights, t->mem.weight_bytes),
                     0);
    assert_int_equal(trainer_download(t, out->ema, t->mem.ema.weights, t->mem.weight_bytes), 0);
    out->progress = t->progress;
    out->images = atomic_load(&r.w.page->images_done);
    assert_int_equal(ring_tail(r.w.rings[0]), STEPS);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

static void compare(const result_t *a, const result_t *b, uint64_t floats)
{
    assert_memory_equal(a->weights, b->weights, floats * sizeof(float));
    assert_memory_equal(a->ema, b->ema, floats * sizeof(float));
    assert_memory_equal(a->mean, b->mean, sizeof a->mean);
    assert_int_equal(a->progress.opt_steps, b->progress.opt_steps);
    assert_int_equal(a->progress.batches, b->progress.batches);
    assert_int_equal(a->progress.last_opt_step, b->progress.last_opt_step);
    assert_int_equal(a->progress.last_ni, b->progress.last_ni);
    assert_int_equal(a->images, b->images);
}

static void test_same_numbers(void **state)
{
    (void)state;
    result_t now, ahead, recorded;
    graph_t *g;
    assert_int_equal(graph_build("yolo11n", RIG_CLASSES, &g), 0);
    const uint64_t floats = graph_sizes(g)->weights;
    graph_free(&g);
    run(NULL, 0, &now);
    run(fake_async_ops(), 1, &ahead);
    for (int i = 0; i < K_GRAPHS; i++)
        assert_int_equal(fake_async.replayed[i], 0);
    assert_int_equal(fake_async.pinned, 0);
    compare(&now, &ahead, floats);
    run(fake_async_ops(), 0, &recorded);
    int replayed = 0;
    for (int i = 0; i < K_GRAPHS; i++) {
        assert_int_equal(fake_async.recorded[i], i < 4 && fake_async.replayed[i] > 0);
        replayed += fake_async.replayed[i];
    }
    assert_int_equal(replayed, STEPS - 2); /* the first of either kind is not recorded */
    compare(&now, &recorded, floats);
    result_t *all[] = {&now, &ahead, &recorded};
    for (int i = 0; i < 3; i++) {
        free(all[i]->weights);
        free(all[i]->ema);
    }
}

/* The wish goes with the step after it, and is known one step later; then nothing is under way. */
static void test_stop(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    int asked;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, fake_async_ops(), 0, &r);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(step(&r, &asked), 0);
        assert_int_equal(asked, 0);
    }
    r.w.stop = 1;
    r.w.stop_message.why = WIRE_STOP_USER;
    r.w.stop_message.deadline_ms = 400;
    /* Iteration 3 has an optimiser step: its flag is seen behind iteration 4. */
    assert_int_equal(step(&r, &asked), 0);
    assert_int_equal(asked, 0);
    assert_true(r.t.pending[1].live);
    assert_int_equal(step(&r, &asked), 0);
    assert_int_equal(asked, TRAINER_STOP);
    assert_false(r.t.pending[0].live || r.t.pending[1].live);
    assert_int_equal(atomic_load(&r.w.page->steps_done), 5);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* No data: the step under way is taken before the stop is told. */
static void test_stop_without_data(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    int asked;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, fake_async_ops(), 0, &r);
    assert_int_equal(step(&r, &asked), 0);
    assert_int_equal(step(&r, &asked), 0);
    assert_int_equal(atomic_load(&r.w.page->steps_done), 1);
    r.w.stop = 1;
    r.w.stop_message.why = WIRE_STOP_NO_DATA;
    plan_batch_t b = plan_locate(r.t.plan, r.t.seq);
    assert_int_equal(step_train(&r.t, &b, &asked), ERR_STOPPED);
    assert_non_null(strstr(err_text(), "batch 2"));
    assert_int_equal(atomic_load(&r.w.page->steps_done), 2);
    assert_false(r.t.pending[0].live || r.t.pending[1].live);
    assert_int_equal(ring_tail(r.w.rings[0]), 2);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* Found one step late, and named with its own samples. */
static void test_not_finite(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    int asked;
    float bad = NAN;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, fake_async_ops(), 0, &r);
    for (int k = 0; k < 3; k++)
        assert_int_equal(step(&r, &asked), 0);
    const graph_param_t *p = graph_find_param(r.t.graph, "model.0.conv.weight");
    assert_non_null(p);
    assert_int_equal(
        trainer_upload(&r.t, r.t.mem.train.weights + p->first * sizeof bad, &bad, sizeof bad), 0);
    assert_int_equal(step(&r, &asked), 0); /* samples 0 to 3, step 1 of epoch 2 */
    assert_int_equal(step(&r, &asked), ERR_FAILED);
    assert_non_null(strstr(err_text(), "the loss is not finite"));
    assert_non_null(strstr(err_text(), "epoch 2, step 1 of 3, samples 0, 1, 2, 3"));
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* A device that never ends a step, and no other rank to wait for. */
static void test_hang(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    int asked, rc = 0;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, fake_async_ops(), 0, &r);
    assert_int_equal(step(&r, &asked), 0);
    collective_deadline(r.t.coll, 0.02);
    fake_async.late = -1;
    for (int k = 0; k < 2 && rc == 0; k++)
        rc = step(&r, &asked);
    assert_int_equal(rc, ERR_TIMEOUT);
    assert_non_null(strstr(err_text(), "the device has not ended what it was given"));
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* A validation behind steps that ran ahead. */
static void validate(const k_ops_t *ops, ap_result_t *ap, double items[3])
{
    rig_shared_t s;
    rig_t r;
    int asked;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, ops, 5, &r);
    for (int k = 0; k < STEPS; k++)
        assert_int_equal(step(&r, &asked), 0);
    assert_int_equal(validate_begin(&r.t), 0);
    for (;; r.t.seq++) {
        plan_batch_t b = plan_locate(r.t.plan, r.t.seq);
        if (b.phase != PLAN_VAL)
            break;
        rig_fill(&r, &b, (uint32_t)plan_position(r.t.plan, &b, 0, 0), IMAGES);
        if (validate_batch(&r.t, &b, &asked) < 0)
            fail_msg("%s", err_text());
    }
    assert_int_equal(validate_end(&r.t, ap, items), 0);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

static void test_validation(void **state)
{
    (void)state;
    ap_result_t now, ahead;
    double now_items[3], ahead_items[3];
    validate(NULL, &now, now_items);
    validate(fake_async_ops(), &ahead, ahead_items);
    assert_int_equal(now.images, 5);
    assert_int_equal(ahead.images, now.images);
    assert_int_equal(ahead.labels, now.labels);
    assert_true(ahead.map == now.map && ahead.map50 == now.map50);
    for (int i = 0; i < 3; i++)
        assert_true(ahead_items[i] == now_items[i] && now_items[i] > 0);
}

/* Two buffers of a batch and two of what hosts say, on such a device only. */
static void test_memory(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        rig_shared_t s;
        rig_t r;
        assert_int_equal(rig_share(1, &s), 0);
        open_rig(&s, ahead ? fake_async_ops() : NULL, 0, &r);
        const memory_batch_t *b = r.t.mem.batch;
        assert_int_equal(b[0].u8 != b[1].u8 && b[0].gt != b[1].gt && b[0].gt_count != b[1].gt_count,
                         ahead);
        assert_int_equal(r.t.turns[0].gts != r.t.turns[1].gts, ahead);
        assert_int_equal(r.t.mem.train.compute == K_NONE, 1); /* float32 */
        trainer_rig_close(&r);
        rig_unshare(&s);
    }
}

/* ---- convolutions ---- */

enum { VAL_IMAGES = 5 };

static void tune(const k_ops_t *ops, const char *known, char **choices)
{
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, ops, VAL_IMAGES, &r);
    if (tune_run(&r.t, known) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(fake_async.measuring, 0);
    *choices = r.t.choices ? strdup(r.t.choices) : NULL;
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* How often a validation by itself has chosen; it measures nothing. */
static int infer(const k_ops_t *ops)
{
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, ops, VAL_IMAGES, &r);
    if (tune_infer(&r.t) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(fake_async.measured, 0);
    assert_null(r.t.choices);
    trainer_rig_close(&r);
    rig_unshare(&s);
    return fake_async.chosen;
}

static const char measured[] = "fake 1 gpu \"A/B\"\nconv 1 -> 3\n";

/* Measured once, kept in a file, used by the next run; a state's own choices are not kept there. */
static void test_choices(void **state)
{
    char folder[SCRATCH_PATH], path[CACHEFILE_PATH], *text = NULL;
    (void)state;
    scratch_begin(folder);
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    tune(fake_async_ops(), measured, &text);
    assert_int_equal(fake_async.chosen, 1);
    free(text);
    assert_int_equal(cachefile_path("fake 1 gpu \"A/B\" yolo11n nc3 4x64x64 format0.txt", path), 0);
    assert_int_equal(cachefile_read(path, &text), 0);
    assert_null(text);

    tune(fake_async_ops(), NULL, &text);
    assert_int_equal(fake_async.chosen, 0);
    assert_int_equal(fake_async.measured, 1);
    assert_int_equal(fake_async.measured_n, VAL_IMAGES);
    assert_string_equal(text, measured);
    free(text);
    assert_int_equal(cachefile_read(path, &text), 0);
    assert_non_null(text);
    assert_string_equal(text, measured);
    free(text);

    tune(fake_async_ops(), NULL, &text);
    assert_int_equal(fake_async.chosen, 1);
    assert_string_equal(text, measured);
    free(text);
    /* The validation's shape has a file of its own, which is all that a validation alone knows. */
    assert_int_equal(remove(path), 0);
    assert_int_equal(infer(fake_async_ops()), 1);
    assert_int_equal(cachefile_path("fake 1 gpu \"A/B\" yolo11n nc3 val 5x96x96 format0.txt", path),
                     0);
    assert_int_equal(cachefile_read(path, &text), 0);
    assert_non_null(text);
    assert_string_equal(text, measured);
    free(text);
    assert_int_equal(remove(path), 0);
    assert_int_equal(infer(fake_async_ops()), 0);
    tune(NULL, NULL, &text); /* a CPU has nothing to choose */
    assert_null(text);
    scratch_end(folder);
}

/* A folder that cannot be made is no error of the run. */
static void test_no_cache(void **state)
{
    char *text = NULL;
    (void)state;
    assert_int_equal(setenv("XDG_CACHE_HOME", "/dev/null", 1), 0);
    tune(fake_async_ops(), NULL, &text);
    assert_string_equal(text, measured);
    free(text);
    assert_int_equal(unsetenv("XDG_CACHE_HOME") | unsetenv("HOME"), 0);
    tune(fake_async_ops(), NULL, &text);
    assert_string_equal(text, measured);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_numbers),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_stop_without_data),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_hang),
        cmocka_unit_test(test_validation),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_no_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
