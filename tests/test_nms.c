/* Decode and suppression against tests/reference/loss.py, and the limits: max_nms with ties,
 * max_det. */
#include "tests/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ARENA = 16 << 20 };
static const int32_t strides[K_LEVELS] = {8, 16, 32};

static void finish(golden_dev_t *d, k_nms_t *p)
{
    p->work_bytes = d->ops->nms_work(d->dev, p);
    p->work = golden_take(d, p->work_bytes);
    p->dets = golden_take(d, (uint64_t)p->box[0].n * (uint64_t)p->max_det * sizeof(k_det_t));
    p->counts = golden_take(d, (uint64_t)p->box[0].n * sizeof(int32_t));
}

static void run(golden_dev_t *d, const k_nms_t *p, k_det_t *dets, int32_t *counts)
{
    if (d->ops->nms(d->dev, p) < 0)
        fail_msg("%s", d->ops->error(d->dev));
    golden_get(d, dets, p->dets, (uint64_t)p->box[0].n * (uint64_t)p->max_det * sizeof *dets);
    golden_get(d, counts, p->counts, (uint64_t)p->box[0].n * sizeof *counts);
}

static void check_case(const safetensors_t *f, const char *name, int threads)
{
    golden_dev_t d;
    golden_dev_open(&d, threads, ARENA);
    k_nms_t p = {0};
    char key[32];
    for (int l = 0; l < K_LEVELS; l++) {
        snprintf(key, sizeof key, "box%d", l);
        p.box[l] = golden_tensor(&d, golden_entry(f, key), 1);
        snprintf(key, sizeof key, "cls%d", l);
        p.cls[l] = golden_tensor(&d, golden_entry(f, key), 1);
        p.stride[l] = strides[l];
    }
    p.nc = p.cls[0].c;
    snprintf(key, sizeof key, "%s_args", name);
    const float *args = golden_f32(f, key, NULL);
    p.conf = args[0];
    p.iou = args[1];
    p.max_nms = (int32_t)args[2];
    p.max_det = (int32_t)args[3];
    p.agnostic = args[4] != 0;
    finish(&d, &p);
    int32_t n = p.box[0].n, *counts = malloc((size_t)n * sizeof *counts);
    k_det_t *dets = malloc((size_t)n * (size_t)p.max_det * sizeof *dets);
    run(&d, &p, dets, counts);

    snprintf(key, sizeof key, "%s_count", name);
    const int32_t *want_count = golden_i32(f, key, NULL);
    snprintf(key, sizeof key, "%s_dets", name);
    const safetensors_entry_t *e = golden_entry(f, key);
    double most = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(counts[i], want_count[i]);
        const float *want = (const float *)e->data + (int64_t)i * e->shape[1] * 6;
        const k_det_t *got = dets + (int64_t)i * p.max_det;
        for (int32_t k = 0; k < counts[i]; k++, want += 6) {
            const float have[6] = {got[k].x1, got[k].y1,    got[k].x2,
                                   got[k].y2, got[k].score, got[k].cls};
            most = fmax(most, golden_difference(have, want, 4));
            assert_float_equal(have[4], want[4], 1e-6);
            assert_float_equal(have[5], want[5], 0);
        }
    }
    golden_worst_t worst = {.worst = 0};
    golden_note(&worst, most, name);
    golden_say("suppression, boxes", &worst, 1e-5);
    free(dets);
    free(counts);
    golden_dev_close(&d);
}

static void test_reference(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_nms");
    check_case(f, "plain", 1);
    check_case(f, "plain", 3);
    check_case(f, "short", 1);
    check_case(f, "agnostic", 2);
    safetensors_free(&f);
}

/* One 64 x 64 image, nc classes, all boxes one pixel-sized point each (logits steep at bin 0). */
static void flat_problem(golden_dev_t *d, k_nms_t *p, int32_t nc, const float *logits)
{
    static float bins[64 * 64];
    for (int i = 0; i < 64 * 64; i++)
        bins[i] = i % K_REG_MAX == 0 ? 1 : i % K_REG_MAX == 1 ? 0 : -80;
    memset(p, 0, sizeof *p);
    for (int l = 0; l < K_LEVELS; l++) {
        int32_t side = 8 >> l;
        p->box[l] = (k_tensor_t){0, 1, side, side, 64, 64, K_F32};
        p->cls[l] = (k_tensor_t){0, 1, side, side, nc, nc, K_F32};
        p->box[l].at = golden_put(d, bins, (uint64_t)(side * side) * 64 * sizeof(float));
        p->cls[l].at = golden_put(d, logits, (uint64_t)(side * side * nc) * sizeof(float));
        logits += side * side * nc;
        p->stride[l] = strides[l];
    }
    p->nc = nc;
    p->conf = 0.001f;
    p->iou = 0.7f;
    p->max_nms = 30000;
    p->max_det = 300;
}

/* 84 anchors x 2 classes with four distinct scores, many equal: the best max_nms are kept, of
 * equals the first; the result for a smaller limit is the beginning of the result for a larger one.
 */
static void test_limit_with_ties(void **state)
{
    (void)state;
    float logits[168];
    for (int i = 0; i < 168; i++)
        logits[i] = (float)(i * 7 % 4) - 2;
    k_det_t all[300], few[300];
    int32_t n_all, n_few;
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_nms_t p;
    flat_problem(&d, &p, 2, logits);
    p.iou = 1; /* nothing is suppressed */
    finish(&d, &p);
    run(&d, &p, all, &n_all);
    assert_int_equal(n_all, 168);
    for (int32_t limit = 1; limit < 168; limit += 13) {
        p.max_nms = limit;
        run(&d, &p, few, &n_few);
        assert_int_equal(n_few, limit);
        assert_memory_equal(few, all, (size_t)limit * sizeof *few);
    }
    for (int i = 1; i < 168; i++)
        assert_true(all[i - 1].score >= all[i].score);
    p.max_nms = 30000;
    p.max_det = 10;
    run(&d, &p, few, &n_few);
    assert_int_equal(n_few, 10);
    assert_memory_equal(few, all, 10 * sizeof *few);
    golden_dev_close(&d);
}

/* Nothing above the confidence, the confidence itself excluded (strict), NaN ignored. */
static void test_threshold(void **state)
{
    (void)state;
    float logits[84];
    for (int i = 0; i < 84; i++)
        logits[i] = i % 2 ? -12 : NAN;
    k_det_t dets[300];
    int32_t n;
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_nms_t p;
    flat_problem(&d, &p, 1, logits);
    finish(&d, &p);
    run(&d, &p, dets, &n);
    assert_int_equal(n, 0);
    float zero = 0;
    assert_int_equal(d.ops->upload(d.dev, K_STREAM_MAIN, p.cls[0].at, &zero, sizeof zero), 0);
    p.conf = 0.5f; /* = sigmoid(0) */
    run(&d, &p, dets, &n);
    assert_int_equal(n, 0);
    p.conf = 0.4999f;
    run(&d, &p, dets, &n);
    assert_int_equal(n, 1);
    assert_float_equal(dets[0].score, 0.5, 1e-6);
    /* The ends of the option's range: everything that is a number, and nothing. */
    p.conf = 0;
    p.iou = 1;
    run(&d, &p, dets, &n);
    assert_int_equal(n, 43);
    p.conf = 1;
    run(&d, &p, dets, &n);
    assert_int_equal(n, 0);
    golden_dev_close(&d);
}

static void test_refused(void **state)
{
    (void)state;
    float logits[84] = {0};
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    k_nms_t p;
    flat_problem(&d, &p, 1, logits);
    finish(&d, &p);
    p.work_bytes--;
    assert_int_equal(d.ops->nms(d.dev, &p), -1);
    assert_non_null(strstr(d.ops->error(d.dev), "work"));
    p.work_bytes++;
    p.nc = 2;
    assert_int_equal(d.ops->nms(d.dev, &p), -1);
    assert_non_null(strstr(d.ops->error(d.dev), "class channels"));
    golden_dev_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_limit_with_ties),
        cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
