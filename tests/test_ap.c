/* Matching and average precision: golden numbers of facts/yolo.md 9, and random detections against
 * the NumPy statement (tests/reference/loss.py). */
#include "shm/err.h"
#include "tests/golden.h"
#include "trainer/ap.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void test_numbers(void **state)
{
    (void)state;
    const uint8_t one[] = {1}, five[] = {1, 0, 1, 1, 0};
    assert_float_equal(ap_single(one, 1, 1), 0.995, 1e-9);
    assert_float_equal(ap_single(five, 5, 4), 0.62, 1e-9);
    assert_float_equal(ap_single(NULL, 0, 4), 0, 0);
    const uint8_t miss[] = {0, 0, 0};
    assert_float_equal(ap_single(miss, 3, 2), 0, 0);
}

typedef struct {
    ap_row_t *rows;
    uint64_t n;
    uint64_t gt[8];
    int32_t *image; /* of each row */
} set_t;

static set_t match_all(const safetensors_t *f)
{
    set_t s = {0};
    int64_t n, images;
    const float *dets = golden_f32(f, "dets", &n), *gts = golden_f32(f, "gts", NULL);
    const int32_t *nd = golden_i32(f, "det_count", &images), *ng = golden_i32(f, "gt_count", NULL);
    s.n = (uint64_t)n / 6;
    s.rows = malloc(s.n * sizeof *s.rows);
    s.image = malloc(s.n * sizeof *s.image);
    uint64_t at = 0, g = 0;
    for (int64_t i = 0; i < images; i++) {
        const k_gt_t *gt = (const k_gt_t *)(const void *)gts + g;
        assert_int_equal(
            ap_match((const k_det_t *)(const void *)dets + at, nd[i], gt, ng[i], s.rows + at), 0);
        for (int32_t k = 0; k < ng[i]; k++)
            s.gt[(int)gt[k].cls]++;
        for (int32_t k = 0; k < nd[i]; k++)
            s.image[at + (uint64_t)k] = (int32_t)i;
        at += (uint64_t)nd[i];
        g += (uint64_t)ng[i];
    }
    assert_int_equal(at, s.n);
    return s;
}

static void set_free(set_t *s)
{
    free(s->rows);
    free(s->image);
}

static void test_match_reference(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_ap");
    set_t s = match_all(f);
    const int32_t *want = golden_i32(f, "correct", NULL);
    for (uint64_t i = 0; i < s.n; i++)
        assert_int_equal(s.rows[i].correct, want[i]);
    set_free(&s);
    safetensors_free(&f);
}

static void check_result(const ap_result_t *r, const double *want)
{
    golden_worst_t worst = {.worst = 0};
    golden_note(&worst, fabs(r->precision - want[0]), "precision");
    golden_note(&worst, fabs(r->recall - want[1]), "recall");
    golden_note(&worst, fabs(r->map50 - want[2]), "mAP50");
    golden_note(&worst, fabs(r->map - want[3]), "mAP50-95");
    golden_say("average precision", &worst, 1e-9);
    assert_float_equal(r->fitness, rint(want[3] * 1e5) / 1e5, 1e-12);
}

/* In the order of one rank, and of three ranks gathered one behind the other. */
static void test_compute_reference(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_ap");
    const double *want = golden_f64(f, "result", NULL);
    set_t s = match_all(f);
    ap_result_t r, three;
    assert_int_equal(ap_compute(s.rows, s.n, s.gt, 5, &r), 0);
    check_result(&r, want);
    assert_int_equal(r.labels, s.gt[0] + s.gt[1] + s.gt[2] + s.gt[3]);
    print_message("ap: P %.1e R %.1e mAP50 %.1e mAP %.1e from the reference\n",
                  fabs(r.precision - want[0]), fabs(r.recall - want[1]), fabs(r.map50 - want[2]),
                  fabs(r.map - want[3]));

    ap_row_t *mixed = malloc(s.n * sizeof *mixed);
    uint64_t n = 0;
    for (int rank = 2; rank >= 0; rank--)
        for (uint64_t i = 0; i < s.n; i++)
            if (s.image[i] % 3 == rank)
                mixed[n++] = s.rows[i];
    assert_int_equal(n, s.n);
    assert_int_equal(ap_compute(mixed, n, s.gt, 5, &three), 0);
    assert_memory_equal(&three, &r, sizeof r);
    free(mixed);
    set_free(&s);
    safetensors_free(&f);
}

/* A detection does not fall back to its second best box, and the first in order gets a contested
 * one. */
static void test_match_rules(void **state)
{
    (void)state;
    const k_gt_t gt[] = {{0, 0, 0, 100, 100}, {0, 0, 0, 100, 120}, {1, 0, 0, 100, 100}};
    const k_det_t dets[] = {
        {0, 0, 100, 98, 0.9f, 0}, /* best: box 0 (0.98), and box 1 at 0.817 */
        {0, 0, 100, 99, 0.8f, 0}, /* box 0 again (0.99): taken, though box 1 would fit up to 0.80 */
        {0, 0, 100, 55, 0.7f, 1}, /* box 2 at 0.55: the first two thresholds */
        {0, 0, 100, 100, 0.6f, 1}, /* box 2 at 1.0: only where the one before was not enough */
        {0, 0, 100, 100, 0.5f, 2}, /* no such class */
    };
    ap_row_t rows[5];
    assert_int_equal(ap_match(dets, 5, gt, 3, rows), 0);
    assert_int_equal(rows[0].correct, 0x3ff);
    assert_int_equal(rows[1].correct, 0);
    assert_int_equal(rows[2].correct, 0x3);
    assert_int_equal(rows[3].correct, 0x3fc);
    assert_int_equal(rows[4].correct, 0);
}

/* A labelled class without detections counts with 0; a detected class without labels does not
 * count. */
static void test_classes(void **state)
{
    (void)state;
    const ap_row_t rows[] = {{0.9f, 0, 0x3ff}, {0.8f, 2, 0}};
    const uint64_t gt[] = {1, 1, 0};
    ap_result_t r;
    assert_int_equal(ap_compute(rows, 2, gt, 3, &r), 0);
    assert_float_equal(r.map50, 0.995 / 2, 1e-9);
    assert_float_equal(r.map, 0.995 / 2, 1e-9);
    assert_float_equal(r.recall, 0.5, 1e-9);
    assert_int_equal(r.labels, 2);
    assert_int_equal(ap_compute(NULL, 0, gt, 3, &r), 0);
    assert_float_equal(r.map, 0, 0);
    const uint64_t none[] = {0, 0, 0};
    assert_int_equal(ap_compute(rows, 2, none, 3, &r), 0);
    assert_float_equal(r.fitness, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),           cmocka_unit_test(test_match_reference),
        cmocka_unit_test(test_compute_reference), cmocka_unit_test(test_match_rules),
        cmocka_unit_test(test_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
