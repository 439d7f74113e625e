/* step.h: a training step over a ring that the test fills itself; overfitting four pictures;
 * gradients of two ranks against the two half-batches on one; accumulation; what a broken batch is
 * answered with. */
#include "tests/trainer_rig.h"

#include "shm/err.h"
#include "trainer/batch.h"
#include "trainer/step.h"

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

static const char *const plain[] = {"optimizer=AdamW", "lr0=0.002", "warmup_epochs=0", "nbs=4",
                                    NULL};

static void need_open(const rig_shared_t *s, uint32_t rank, uint32_t ranks, uint32_t batch,
                      uint32_t epochs, const char *const *words, rig_t *r)
{
    if (trainer_rig_open(s, rank, ranks, batch, epochs, 0, words, r) < 0) {
        fprintf(stderr, "trainer_rig_open: %s\n", err_text());
        abort();
    }
}

/* ---- overfit ---- */

static double run_step(rig_t *r, uint32_t images)
{
    int stop;
    plan_batch_t b = plan_locate(r->t.plan, r->t.seq);
    rig_fill(r, &b, 0, images);
    if (step_train(&r->t, &b, &stop) < 0) {
        fprintf(stderr, "step: %s\n", err_text());
        abort();
    }
    r->t.seq++;
    return r->t.items.mean[0] + r->t.items.mean[1] + r->t.items.mean[2];
}

static void overfit(const char *const *words, double factor)
{
    enum { STEPS = 30 };
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, STEPS, words, &r);
    double first = run_step(&r, 4), last = first;
    for (int i = 1; i < STEPS; i++)
        last = run_step(&r, 4);
    print_message("loss %.3f -> %.3f\n", first, last);
    assert_true(isfinite(first) && first > 1);
    assert_true(last < first * factor);
    assert_int_equal(r.t.progress.opt_steps, STEPS);
    assert_int_equal(r.t.progress.updates, STEPS);
    assert_int_equal(atomic_load(&r.w.page->steps_done), STEPS);
    assert_int_equal(atomic_load(&r.w.page->images_done), 4 * STEPS);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

static void test_overfit_adamw(void **state)
{
    (void)state;
    overfit(plain, 0.4);
}

static void test_overfit_sgd(void **state)
{
    (void)state;
    static const char *const words[] = {"optimizer=SGD", "lr0=0.02", "warmup_epochs=0", "nbs=4",
                                        NULL};
    overfit(words, 0.4);
}

/* ---- two ranks against one ---- */

/* Takes the batch t.seq, whose pictures start at `first`, and adds its gradients. */
static int add_gradients(rig_t *r, uint32_t first)
{
    plan_batch_t b = plan_locate(r->t.plan, r->t.seq);
    rig_fill(r, &b, first, 8);
    int rc = batch_take(&r->t, &b);
    r->t.seq++;
    return rc < 0 ? rc : step_compute(&r->t);
}

/* Rank r of two computes pictures 4r .. 4r + 3; the sum over ranks goes to `out`. */
static int gradient_rank(const rig_shared_t *s, uint32_t rank, const char *const *words, float *out)
{
    rig_t r;
    need_open(s, rank, 2, 8, 4, words, &r);
    int rc = add_gradients(&r, 4 * rank);
    if (rc == 0)
        rc = collective_allreduce(r.t.coll, r.t.dev, r.t.mem.train.grads, r.t.sizes->weights);
    if (rc == 0)
        rc = trainer_download(&r.t, out, r.t.mem.train.grads, r.t.mem.weight_bytes);
    if (rc < 0)
        fprintf(stderr, "rank %u: %s\n", rank, err_text());
    trainer_rig_close(&r);
    return rc;
}

static float *shared_floats(uint64_t count)
{
    float *p =
        mmap(NULL, count * sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    return p;
}

static void two_ranks(const char *const *words, float *sum0, float *sum1)
{
    rig_shared_t s;
    pid_t pid[2];
    float *out[2] = {sum0, sum1};
    assert_int_equal(rig_share(2, &s), 0);
    for (uint32_t k = 0; k < 2; k++) {
        pid[k] = fork();
        assert_true(pid[k] >= 0);
        if (pid[k] == 0) {
            alarm(120);
            _exit(gradient_rank(&s, k, words, out[k]) == 0 ? 0 : 1);
        }
    }
    for (int k = 0; k < 2; k++) {
        int status;
        assert_int_equal(waitpid(pid[k], &status, 0), pid[k]);
        assert_int_equal(status, 0);
    }
    rig_unshare(&s);
}

/* max |a - b| over max |a| */
static double difference(const float *a, const float *b, uint64_t n)
{
    double most = 0, largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)a[i] - b[i]));
        largest = fmax(largest, fabs((double)a[i]));
    }
    return largest > 0 ? most / largest : INFINITY;
}

/* facts/yolo.md 3.2: the gradient of two ranks is the sum of the two half-batches' own gradients,
 * each with its own normalisation: to the bit when they are added as two numbers, and within
 * rounding when the second half is accumulated onto the first. */
static void test_two_ranks(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, 4, plain, &r);
    uint64_t n = r.t.sizes->weights;
    float *of[2] = {shared_floats(n), shared_floats(n)}, *half = shared_floats(n);
    float *sum = shared_floats(n), *accumulated = shared_floats(n);
    two_ranks(plain, of[0], of[1]);
    assert_memory_equal(of[0], of[1], n * sizeof *sum);

    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(r.t.ops->zero(r.t.dev, r.t.mem.train.grads, r.t.mem.weight_bytes), 0);
        assert_int_equal(add_gradients(&r, 4 * k), 0);
        assert_int_equal(trainer_download(&r.t, half, r.t.mem.train.grads, r.t.mem.weight_bytes),
                         0);
        for (uint64_t i = 0; i < n; i++)
            sum[i] += half[i];
    }
    assert_memory_equal(sum, of[0], n * sizeof *sum);
    assert_true(difference(sum, half, n) > 0.05); /* the halves do differ */

    assert_int_equal(r.t.ops->zero(r.t.dev, r.t.mem.train.grads, r.t.mem.weight_bytes), 0);
    assert_int_equal(add_gradients(&r, 0), 0);
    assert_int_equal(add_gradients(&r, 4), 0);
    assert_int_equal(trainer_download(&r.t, accumulated, r.t.mem.train.grads, r.t.mem.weight_bytes),
                     0);
    double d = difference(sum, accumulated, n);
    print_message("accumulated against summed: %.2g\n", d);
    assert_true(d < 1e-5);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* With sync_bn two ranks compute what one does of the whole batch: statistics of all images, target
 * scores of all images. */
static void test_sync_bn(void **state)
{
    (void)state;
    static const char *const words[] = {"optimizer=AdamW", "lr0=0.002",    "warmup_epochs=0",
                                        "nbs=4",           "sync_bn=True", NULL};
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 8, 4, words, &r);
    uint64_t n = r.t.sizes->weights;
    float *of[2] = {shared_floats(n), shared_floats(n)}, *apart = shared_floats(n);
    float *whole = shared_floats(n);
    two_ranks(words, of[0], of[1]);
    two_ranks(plain, apart, apart);
    assert_memory_equal(of[0], of[1], n * sizeof *whole);
    assert_int_equal(add_gradients(&r, 0), 0);
    assert_int_equal(trainer_download(&r.t, whole, r.t.mem.train.grads, r.t.mem.weight_bytes), 0);
    double together = difference(whole, of[0], n), without = difference(whole, apart, n);
    print_message("sync_bn against one rank: %.2g; without it: %.2g\n", together, without);
    assert_true(together < 1e-4);
    assert_true(without > 0.01);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* ---- accumulation and stop ---- */

/* nbs = 16 with batch 4: an optimiser step after iterations 3, 7, 11 (ni - last >= 4, last begins
 * at -1). */
static void test_accumulate(void **state)
{
    (void)state;
    static const char *const words[] = {"optimizer=AdamW", "lr0=0.001", "warmup_epochs=0", "nbs=16",
                                        NULL};
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, 10, words, &r);
    for (uint64_t i = 0; i < 10; i++) {
        run_step(&r, 8);
        assert_int_equal(r.t.progress.opt_steps, (i + 1) / 4);
        assert_int_equal(r.t.progress.last_opt_step, i < 3 ? -1 : i < 7 ? 3 : 7);
    }
    assert_int_equal(r.t.progress.batches, 10);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

static void test_stop_flag(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    int stop = 1;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, 10, plain, &r);
    plan_batch_t b = plan_locate(r.t.plan, 0);
    rig_fill(&r, &b, 0, 4);
    assert_int_equal(step_train(&r.t, &b, &stop), 0);
    assert_int_equal(stop, 0);
    r.w.stop = 1;
    r.w.stop_message.why = WIRE_STOP_USER;
    r.w.stop_message.deadline_ms = 400;
    r.t.seq = 1;
    b = plan_locate(r.t.plan, 1);
    rig_fill(&r, &b, 0, 4);
    assert_int_equal(step_train(&r.t, &b, &stop), 0);
    assert_int_equal(stop, 1);
    /* The next batch never comes: half of the deadline, then the stop. */
    r.t.seq = 2;
    b = plan_locate(r.t.plan, 2);
    assert_int_equal(step_train(&r.t, &b, &stop), ERR_STOPPED);
    assert_non_null(strstr(err_text(), "batch 2"));
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* ---- batches that are not what the plan says ---- */

static void test_wrong_cells(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, 10, plain, &r);
    plan_batch_t b = plan_locate(r.t.plan, 0);
    rig_fill(&r, &b, 0, 4);
    ring_cell_meta_t *m = ring_meta(r.w.rings[0], 0, 2), good = *m;
    struct {
        uint32_t *field;
        uint32_t wrong;
        const char *said;
    } cases[] = {
        {&m->phase, PLAN_VAL, "validation epoch 1"},
        {&m->epoch, 3, "epoch 4"},
        {&m->step, 9, "step 9"},
        {&m->height, 96, "64x96"},
        {&m->width, 32, "32x64"},
        {&m->n_labels, RIG_LABELS + 1, "9 labels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        *m = good;
        *cases[i].field = cases[i].wrong;
        assert_int_equal(batch_take(&r.t, &b), ERR_FAILED);
        assert_non_null(strstr(err_text(), "cell 2"));
        assert_non_null(strstr(err_text(), cases[i].said));
    }
    *m = good;
    m->position = 77;
    assert_int_equal(batch_take(&r.t, &b), ERR_FAILED);
    assert_non_null(strstr(err_text(), "position 77"));
    *m = good;
    ring_labels(r.w.rings[0], 0, 2)[0].cls = RIG_CLASSES;
    assert_int_equal(batch_take(&r.t, &b), ERR_FAILED);
    assert_non_null(strstr(err_text(), "class 3 of 3"));
    ring_labels(r.w.rings[0], 0, 2)[0].cls = 0;
    assert_int_equal(batch_take(&r.t, &b), 0);
    assert_int_equal(ring_tail(r.w.rings[0]), 1);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* A weight that is no number makes the loss one that is none: rank, epoch, step and samples are
 * named. */
static void test_not_finite(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    int stop;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, 10, plain, &r);
    const graph_param_t *p = graph_find_param(r.t.graph, "model.0.conv.weight");
    assert_non_null(p);
    float bad = NAN;
    assert_int_equal(
        trainer_upload(&r.t, r.t.mem.train.weights + p->first * sizeof bad, &bad, sizeof bad), 0);
    plan_batch_t b = plan_locate(r.t.plan, 0);
    rig_fill(&r, &b, 5, 9);
    assert_int_equal(step_train(&r.t, &b, &stop), ERR_FAILED);
    assert_non_null(strstr(err_text(), "rank 0: the loss is not finite"));
    assert_non_null(strstr(err_text(), "epoch 1, step 1 of 1, samples 5, 6, 7, 8"));
    trainer_rig_close(&r);
    rig_unshare(&s);
}

/* ---- memory ---- */

static void test_memory_map(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t r;
    assert_int_equal(rig_share(1, &s), 0);
    need_open(&s, 0, 1, 4, 2, plain, &r);
    const memory_map_t *m = &r.t.mem;
    const struct {
        k_at at;
        uint64_t bytes;
    } places[] = {
        {m->train.weights, m->weight_bytes},
        {m->train.buffers, m->buffer_bytes},
        {m->train.grads, m->weight_bytes + MEMORY_EXTRA * sizeof(float)},
        {m->m, m->weight_bytes},
        {m->v, m->weight_bytes},
        {m->ema.weights, m->weight_bytes},
        {m->ema.buffers, m->buffer_bytes},
        {m->hyper, sizeof(k_hyper_t)},
        {m->norm, sizeof(k_scaling_t)},
        {m->items, 4 * sizeof(float)},
        {m->sum, sizeof(double)},
        {m->batch[0].gt, m->gt_bytes},
        {m->batch[0].gt_count, 4 * sizeof(int32_t)},
        {m->dets, 4 * (uint64_t)m->max_det * sizeof(k_det_t)},
        {m->det_count, 4 * sizeof(int32_t)},
        {m->batch[0].u8, m->u8_bytes},
        {m->work, m->work_bytes},
        {m->activation, m->activation_bytes},
    };
    enum { PLACES = sizeof places / sizeof places[0] };
    for (int i = 0; i < PLACES; i++) {
        assert_int_equal(places[i].at % K_ALIGN, 0);
        assert_true(places[i].bytes > 0 && places[i].at + places[i].bytes <= m->total);
        for (int k = 0; k < i; k++)
            assert_true(places[k].at + places[k].bytes <= places[i].at ||
                        places[i].at + places[i].bytes <= places[k].at);
    }
    assert_int_equal(m->extra, m->train.grads + m->weight_bytes);
    assert_int_equal(m->u8_bytes, 4 * RIG_SIZE * RIG_SIZE * 3);
    trainer_rig_close(&r);
    rig_unshare(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_map),    cmocka_unit_test(test_wrong_cells),
        cmocka_unit_test(test_not_finite),    cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_sync_bn),       cmocka_unit_test(test_accumulate),
        cmocka_unit_test(test_stop_flag),     cmocka_unit_test(test_overfit_sgd),
        cmocka_unit_test(test_overfit_adamw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
