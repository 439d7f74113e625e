/* validate.h: a model trained on a few made-up pictures finds their boxes again; two ranks come to
 * the same numbers as one, also when the second has fewer images or none. */
#include "tests/trainer_rig.h"

#include "shm/err.h"
#include "trainer/batch.h"
#include "trainer/step.h"
#include "trainer/validate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PICTURES = 4, STEPS = 220 };

/* An epoch is one step here. */
static const char *const words[] = {"optimizer=AdamW", "lr0=0.003", "warmup_epochs=10", "nbs=4",
                                    NULL};

typedef struct {
    ap_result_t ap;
    double items[3];
} outcome_t;

/* In shared memory, for ranks that are processes of their own. */
static float *model; /* EMA weights, then EMA buffers */
static outcome_t *outcome;

/* All batches of the validation that t.seq has come to. */
static int run_validation(rig_t *r, outcome_t *out)
{
    trainer_t *t = &r->t;
    int stop = 0, rc = validate_begin(t);
    for (; rc == 0; t->seq++) {
        plan_batch_t b = plan_locate(t->plan, t->seq);
        if (b.phase != PLAN_VAL)
            break;
        rig_fill(r, &b, (uint32_t)plan_position(t->plan, &b, t->rank, 0), PICTURES);
        rc = validate_batch(t, &b, &stop);
    }
    return rc == 0 ? validate_end(t, &out->ap, out->items) : rc;
}

static void train(rig_t *r)
{
    int stop;
    for (; r->t.seq < STEPS; r->t.seq++) {
        plan_batch_t b = plan_locate(r->t.plan, r->t.seq);
        rig_fill(r, &b, 0, PICTURES);
        if (step_train(&r->t, &b, &stop) < 0)
            fail_msg("step %llu: %s", (unsigned long long)r->t.seq, err_text());
    }
}

static void test_finds_again(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    if (trainer_rig_open(&s, 0, 1, PICTURES, STEPS, PICTURES + 1, words, &r) < 0)
        fail_msg("%s", err_text());
    train(&r);
    if (run_validation(&r, outcome) < 0)
        fail_msg("%s", err_text());
    const ap_result_t *ap = &outcome->ap;
    print_message("P %.3f R %.3f mAP50 %.3f mAP50-95 %.3f\n", ap->precision, ap->recall, ap->map50,
                  ap->map);
    assert_int_equal(ap->images, PICTURES + 1);
    assert_int_equal(ap->labels, 1 + 2 + 1 + 2 + 1);
    assert_true(ap->map50 >= 0.9);
    assert_true(ap->map > 0.3 && ap->map <= ap->map50);
    assert_true(fabs(ap->fitness - ap->map) <= 0.5e-5);
    for (int i = 0; i < 3; i++)
        assert_true(outcome->items[i] > 0 && outcome->items[i] < 10);
    assert_int_equal(atomic_load(&r.w.page->images_done), PICTURES * STEPS + PICTURES + 1);
    /* The model for the tests that follow. */
    uint64_t w = r.t.mem.weight_bytes, b = r.t.mem.buffer_bytes;
    model = mmap(NULL, w + b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(model, MAP_FAILED);
    assert_int_equal(trainer_download(&r.t, model, r.t.mem.ema.weights, w), 0);
    assert_int_equal(trainer_download(&r.t, (char *)model + w, r.t.mem.ema.buffers, b), 0);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* Only rank 0 is given the EMA statistics: the others must get them from it. The plan's one
 * training batch is taken and not trained on. */
static int validating_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks, uint32_t n_val,
                           outcome_t *out)
{
    rig_t r;
    int rc = trainer_rig_open(s, rank, ranks, PICTURES, 1, n_val, words, &r);
    uint64_t w = r.t.mem.weight_bytes;
    if (rc == 0)
        rc = trainer_upload(&r.t, r.t.mem.ema.weights, model, w);
    if (rc == 0 && rank == 0)
        rc = trainer_upload(&r.t, r.t.mem.ema.buffers, (char *)model + w, r.t.mem.buffer_bytes);
    if (rc == 0) {
        plan_batch_t b = plan_locate(r.t.plan, 0);
        rig_fill(&r, &b, 0, PICTURES);
        rc = batch_take(&r.t, &b);
        r.t.seq = 1;
    }
    if (rc == 0)
        rc = run_validation(&r, out);
    if (rc < 0)
        fprintf(stderr, "rank %u: %s\n", rank, err_text());
    trainer_rig_close(&r);
    return rc;
}

/* Runs the ranks as processes; rank 0's outcome. */
static void validate_with(uint32_t ranks, uint32_t n_val, outcome_t *result)
{
    rig_shared_t s;
    pid_t pid[2];
    assert_int_equal(rig_share(ranks, &s), 0);
    for (uint32_t k = 0; k < ranks; k++) {
        pid[k] = fork();
        assert_true(pid[k] >= 0);
        if (pid[k] == 0) {
            outcome_t own;
            alarm(120);
            _exit(validating_rank(&s, k, ranks, n_val, k == 0 ? outcome : &own) == 0 ? 0 : 1);
        }
    }
    for (uint32_t k = 0; k < ranks; k++) {
        int status;
        assert_int_equal(waitpid(pid[k], &status, 0), pid[k]);
        assert_int_equal(status, 0);
    }
    *result = *outcome;
    rig_unshare(&s);
}

static void compare(uint32_t n_val)
{
    outcome_t one, two;
    validate_with(1, n_val, &one);
    validate_with(2, n_val, &two);
    assert_true(one.ap.map50 > 0.9);
    assert_int_equal(one.ap.images, n_val);
    assert_int_equal(two.ap.images, one.ap.images);
    assert_int_equal(two.ap.labels, one.ap.labels);
    assert_true(two.ap.map == one.ap.map);
    assert_true(two.ap.map50 == one.ap.map50);
    assert_true(two.ap.precision == one.ap.precision && two.ap.recall == one.ap.recall);
}

/* Rank 1 has images 4 to 6 of 7, one of 5, and none of 4. */
static void test_two_ranks(void **state)
{
    (void)state;
    if (!model)
        skip();
    compare(7);
    compare(5);
    compare(4);
}

/* The means over batches: two ranks with a batch each against the two batches of one. */
static void test_items(void **state)
{
    (void)state;
    if (!model)
        skip();
    outcome_t first, both;
    validate_with(1, 4, &first);
    validate_with(2, 8, &both); /* images 4 to 7 are 0 to 3 again */
    for (int i = 0; i < 3; i++)
        assert_true(fabs(both.items[i] - first.items[i]) < 1e-6 * first.items[i]);
    validate_with(2, 4, &both); /* a rank without images does not count */
    for (int i = 0; i < 3; i++)
        assert_true(both.items[i] == first.items[i]);
}

static int share_outcome(void **state)
{
    (void)state;
    outcome =
        mmap(NULL, sizeof *outcome, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return outcome == MAP_FAILED;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_again),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_items),
    };
    return cmocka_run_group_tests(tests, share_outcome, NULL);
}
