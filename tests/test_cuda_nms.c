/* Suppression on the GPU beside the CPU's, in each format: which boxes, in which order, how many.
 *
 * Both see the same logits, but their exponentials differ in the last place. A problem where that
 * could decide is not used: a draw counts when the CPU finds the same boxes with thresholds a little
 * to either side. */
#include "tests/twin.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA = 32 << 20, SMALL = 6 << 20, DRAWS = 20, SANITIZED = 20000 /* most pairs there */ };

static const int32_t strides[K_LEVELS] = {8, 16, 32};

typedef struct {
    int n, side, nc; /* side of the finest level; the others' a half and a quarter */
    double conf, iou;
    int max_nms, max_det, agnostic;
    double low, high, bins; /* logits of classes; of bins -bins to bins */
    int before, after;
} nms_case_t;

/* Fewer and more candidates than max_nms, several runs of the sort, more than max_det, none; half
 * formats have many equal scores. The last: every anchor of 2048 x 2048. */
static const nms_case_t nms_cases[] = {
    {2, 16, 3, 0.25, 0.7, 30000, 300, 0, -4.0, 3.0, 3.0, 0, 0},
    {2, 16, 3, 0.25, 0.7, 30000, 300, 1, -4.0, 3.0, 3.0, 0, 0},
    {3, 24, 1, 0.001, 0.5, 30000, 300, 0, -8.0, 3.0, 5.0, 3, 2},
    {2, 16, 3, 0.25, 0.7, 100, 300, 0, -4.0, 3.0, 3.0, 8, 8},
    {2, 16, 3, 0.001, 0.6, 30000, 7, 0, -4.0, 3.0, 3.0, 1, 0},
    {1, 8, 2, 0.25, 0.7, 30000, 1, 0, -2.0, 2.0, 1.0, 0, 0},
    {2, 8, 2, 0.25, 0.7, 30000, 300, 0, -9.0, -8.0, 1.0, 0, 0},
    {1, 16, 80, 0.3, 0.7, 5000, 300, 0, -4.0, 3.0, 4.0, 0, 0},
    {2, 64, 8, 0.001, 0.7, 30000, 300, 0, -6.0, 4.0, 3.0, 0, 0},
    {1, 64, 8, 0.001, 0.4, 30000, 3000, 1, -6.0, 4.0, 3.0, 0, 0},
    {1, 256, 1, 0.05, 0.7, 30000, 300, 0, -5.0, 3.0, 3.0, 0, 0},
};

static k_dtype_t format;

typedef struct {
    nms_case_t c;
    twin_t *t;
    twin_tensor_t box[K_LEVELS], cls[K_LEVELS];
    k_nms_t gpu, cpu;
    size_t room; /* bytes of all detections */
} nms_run_t;

static void nms_run_init(nms_run_t *r, const nms_case_t *c, twin_t *t)
{
    *r = (nms_run_t){.c = *c, .t = t};
    t->used = 0;
    k_nms_t p = {.nc = c->nc,
                 .max_nms = c->max_nms,
                 .max_det = c->max_det,
                 .conf = (float)c->conf,
                 .iou = (float)c->iou,
                 .agnostic = c->agnostic};
    for (int l = 0; l < K_LEVELS; l++) {
        const int side = c->side >> l;
        p.stride[l] = strides[l];
        r->box[l] = twin_tensor(t, c->n, side, side, 4 * K_REG_MAX, c->before, c->after);
        r->cls[l] = twin_tensor(t, c->n, side, side, c->nc, c->after, c->before);
    }
    r->room = (size_t)c->n * (size_t)c->max_det * sizeof(k_det_t);
    p.dets = twin_place(t, r->room);
    p.counts = twin_place(t, (uint64_t)c->n * sizeof(int32_t));
    r->gpu = r->cpu = p;
    for (int l = 0; l < K_LEVELS; l++) {
        r->gpu.box[l] = r->box[l].gpu;
        r->gpu.cls[l] = r->cls[l].gpu;
        r->cpu.box[l] = r->box[l].cpu;
        r->cpu.cls[l] = r->cls[l].cpu;
    }
    r->gpu.work_bytes = t->gpu->ops->nms_work(t->gpu, &r->gpu);
    r->cpu.work_bytes = t->cpu->ops->nms_work(t->cpu, &r->cpu);
    r->gpu.work = r->cpu.work = twin_place(
        t, r->gpu.work_bytes > r->cpu.work_bytes ? r->gpu.work_bytes : r->cpu.work_bytes);
}

static void draw(nms_run_t *r)
{
    for (int l = 0; l < K_LEVELS; l++) {
        twin_fill(r->t, &r->box[l], -r->c.bins, r->c.bins);
        twin_fill(r->t, &r->cls[l], r->c.low, r->c.high);
    }
}

/* One line of a level's class logits in both. */
static void fill_line(nms_run_t *r, int level, int y, double value)
{
    twin_tensor_t x = r->cls[level];
    const int64_t skip = (int64_t)y * x.cpu.w * x.cpu.ld;
    x.gpu.at += (uint64_t)skip * (x.gpu.dtype == K_F32 ? 4 : 2);
    x.cpu.at += (uint64_t)skip * 4;
    x.gpu.h = x.cpu.h = x.gpu.n = x.cpu.n = 1;
    twin_fill(r->t, &x, value, value);
}

/* The detections of a device, compact: those of an image behind the image before's. */
typedef struct {
    int32_t total;
    int32_t *counts;
    k_det_t *dets;
} found_t;

static found_t found(nms_run_t *r, int gpu)
{
    const k_nms_t *p = gpu ? &r->gpu : &r->cpu;
    void *(*get)(twin_t *, k_at, uint64_t) = gpu ? twin_bytes_gpu : twin_bytes_cpu;
    found_t f = {.counts = get(r->t, p->counts, (uint64_t)r->c.n * sizeof(int32_t)),
                 .dets = get(r->t, p->dets, r->room)};
    for (int i = 0; i < r->c.n; i++) {
        if (f.counts[i] < 0 || f.counts[i] > r->c.max_det)
            fail_msg("image %d has %d detections", i, f.counts[i]);
        memmove(f.dets + f.total, f.dets + (size_t)i * (size_t)r->c.max_det,
                (size_t)f.counts[i] * sizeof *f.dets);
        f.total += f.counts[i];
    }
    return f;
}

static void found_fini(found_t *f)
{
    free(f->counts);
    free(f->dets);
}

static found_t run_on(nms_run_t *r, int gpu)
{
    twin_t *t = r->t;
    if (gpu)
        twin_ok(t, t->gpu->ops->nms(t->gpu, &r->gpu), 0);
    else
        twin_ok(t, 0, t->cpu->ops->nms(t->cpu, &r->cpu));
    return found(r, gpu);
}

/* The CPU finds the same with thresholds a little lower and higher. */
static int is_clear(nms_run_t *r, const found_t *want)
{
    const float conf = r->cpu.conf, iou = r->cpu.iou;
    int same = 1;
    for (int i = 0; same && i < 4; i++) {
        r->cpu.conf = i / 2 ? conf * (1 + 1e-5f) : conf * (1 - 1e-5f);
        r->cpu.iou = iou < 1 ? (i % 2 ? iou + 1e-5f : iou - 1e-5f) : iou;
        found_t f = run_on(r, 0);
        same = f.total == want->total &&
               memcmp(f.counts, want->counts, (size_t)r->c.n * sizeof *f.counts) == 0 &&
               memcmp(f.dets, want->dets, (size_t)f.total * sizeof *f.dets) == 0;
        found_fini(&f);
    }
    r->cpu.conf = conf;
    r->cpu.iou = iou;
    return same;
}

static void same_detections(const nms_run_t *r, const found_t *got, const found_t *want)
{
    const double edge = (double)r->c.side * strides[0];
    for (int i = 0; i < r->c.n; i++)
        if (got->counts[i] != want->counts[i])
            fail_msg("image %d of %d classes, side %d: %d detections, not %d", i, r->c.nc,
                     r->c.side, got->counts[i], want->counts[i]);
    for (int32_t i = 0; i < want->total; i++) {
        const k_det_t *a = &got->dets[i], *b = &want->dets[i];
        double off = fmax(fmax(fabs((double)(a->x1 - b->x1)), fabs((double)(a->y1 - b->y1))),
                          fmax(fabs((double)(a->x2 - b->x2)), fabs((double)(a->y2 - b->y2))));
        if (a->cls != b->cls || !(fabs((double)(a->score - b->score)) <= 1e-6) ||
            !(off <= 1e-5 * edge))
            fail_msg("detection %d of %d: class %g score %.9g box %g %g %g %g, not class %g score "
                     "%.9g box %g %g %g %g",
                     i, want->total, (double)a->cls, (double)a->score, (double)a->x1, (double)a->y1,
                     (double)a->x2, (double)a->y2, (double)b->cls, (double)b->score, (double)b->x1,
                     (double)b->y1, (double)b->x2, (double)b->y2);
    }
}

/* The GPU against the CPU, on a draw that is clear; the GPU twice. */
static void one_case(nms_run_t *r)
{
    int draws = 0, clear = 0;
    found_t want = {0};
    while (!clear) {
        if (draws++ == DRAWS)
            fail_msg("no clear problem in %d draws", DRAWS);
        found_fini(&want);
        draw(r);
        want = run_on(r, 0);
        clear = is_clear(r, &want);
    }
    if (r->c.high > 0.0)
        assert_true(want.total > 0);
    found_t got = run_on(r, 1);
    same_detections(r, &got, &want);
    found_t again = run_on(r, 1);
    assert_memory_equal(got.dets, again.dets, (size_t)got.total * sizeof *got.dets);
    found_fini(&want);
    found_fini(&got);
    found_fini(&again);
}

static void test_random(void **state)
{
    (void)state;
    const int sanitized = getenv("SLUICE_TEST_SANITIZE") != NULL;
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof nms_cases / sizeof *nms_cases; i++) {
        const nms_case_t *c = &nms_cases[i];
        nms_run_t r;
        if (sanitized && c->n * c->side * c->side * c->nc > SANITIZED)
            continue;
        nms_run_init(&r, c, &t);
        one_case(&r);
    }
    twin_close(&t);
}

/* Four scores on 1,344 anchors x 4 classes, nothing suppressed: of equal ones the first are taken,
 * wherever the limit cuts: the beginning of what the GPU takes without the limit. Three runs of the
 * sort. */
static void test_limit_with_ties(void **state)
{
    (void)state;
    static const nms_case_t c = {1, 32, 4, 0.001, 1.0, 5376, 5376, 0, 0.0, 0.0, 3.0, 0, 0};
    static const int32_t limits[] = {2049, 4097, 1, 31, 2047, 2048, 3000, 5375};
    const size_t count = getenv("SLUICE_TEST_SANITIZE") ? 2 : sizeof limits / sizeof *limits;
    twin_t t;
    twin_open(&t, format, SMALL);
    nms_run_t r;
    nms_run_init(&r, &c, &t);
    draw(&r);
    for (int l = 0; l < K_LEVELS; l++)
        for (int y = 0; y < r.cls[l].cpu.h; y++)
            fill_line(&r, l, y, y * 7 % 4 - 2);
    found_t want = run_on(&r, 0), all = run_on(&r, 1);
    assert_int_equal(all.total, 5376);
    same_detections(&r, &all, &want);
    for (size_t i = 0; i < count; i++) {
        r.gpu.max_nms = limits[i];
        found_t few = run_on(&r, 1);
        assert_int_equal(few.total, limits[i]);
        assert_memory_equal(few.dets, all.dets, (size_t)few.total * sizeof *few.dets);
        found_fini(&few);
    }
    found_fini(&want);
    found_fini(&all);
    twin_close(&t);
}

/* Boxes of one size in a grid, all classes together: few are left. In the first image all scores are
 * equal, so that the limit cuts by index alone; in the second none are. */
static void test_cut_and_suppress(void **state)
{
    (void)state;
    static const nms_case_t c = {2, 16, 2, 0.001, 0.7, 500, 500, 1, -2.0, 2.0, 0.0, 0, 0};
    twin_t t;
    twin_open(&t, format, SMALL);
    nms_run_t r;
    nms_run_init(&r, &c, &t);
    draw(&r);
    for (int l = 0; l < K_LEVELS; l++)
        for (int y = 0; y < r.cls[l].cpu.h; y++)
            fill_line(&r, l, y, 1.0);
    for (int32_t limit = 1; limit <= 500; limit += 83) {
        r.gpu.max_nms = r.cpu.max_nms = limit;
        found_t want = run_on(&r, 0), got = run_on(&r, 1);
        assert_true(want.counts[0] > 0 && want.counts[0] < 500);
        same_detections(&r, &got, &want);
        found_fini(&want);
        found_fini(&got);
    }
    twin_close(&t);
}

/* Strictly above the confidence; NaN is no candidate; the ends of the option's range. */
static void test_threshold(void **state)
{
    (void)state;
    static const nms_case_t c = {1, 8, 1, 0.25, 1.0, 30000, 300, 0, 0.0, 0.0, 1.0, 0, 0};
    static const struct {
        float conf;
        int32_t total;
    } ends[] = {{0.5f, 0}, {0.4999f, 8}, {0.0f, 76}, {1.0f, 0}};
    twin_t t;
    twin_open(&t, format, SMALL);
    nms_run_t r;
    nms_run_init(&r, &c, &t);
    draw(&r);
    for (int l = 0; l < K_LEVELS; l++)
        for (int y = 0; y < r.cls[l].cpu.h; y++)
            fill_line(&r, l, y, -12.0);
    fill_line(&r, 0, 1, (double)NAN);
    fill_line(&r, 0, 2, 0.0);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        r.gpu.conf = r.cpu.conf = ends[i].conf;
        found_t want = run_on(&r, 0), got = run_on(&r, 1);
        assert_int_equal(want.total, ends[i].total);
        same_detections(&r, &got, &want);
        found_fini(&want);
        found_fini(&got);
    }
    twin_close(&t);
}

/* A recorded suppression sees the logits that lie there when it is replayed. */
static void test_replay(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, SMALL);
    nms_run_t r;
    nms_run_init(&r, &nms_cases[6], &t);
    k_dev_t *dev = t.gpu;
    draw(&r);
    found_t none = run_on(&r, 1);
    assert_int_equal(none.total, 0);
    found_fini(&none);
    twin_ok(&t, dev->ops->capture(dev, 0), 0);
    twin_ok(&t, dev->ops->nms(dev, &r.gpu), 0);
    twin_ok(&t, dev->ops->captured(dev), 0);
    fill_line(&r, 1, 2, 2.0);
    twin_ok(&t, dev->ops->replay(dev, 0), 0);
    found_t got = found(&r, 1), want = run_on(&r, 0);
    assert_true(want.total > 0);
    same_detections(&r, &got, &want);
    found_fini(&got);
    found_fini(&want);
    twin_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, SMALL);
    nms_run_t r;
    nms_run_init(&r, &nms_cases[5], &t);
    k_dev_t *dev = t.gpu;
    r.gpu.work_bytes--;
    twin_refused(&t, dev->ops->nms(dev, &r.gpu), "work");
    r.gpu.work_bytes++;
    r.gpu.nc++;
    twin_refused(&t, dev->ops->nms(dev, &r.gpu), "class channels");
    r.gpu.nc--;
    r.gpu.conf = 2.0f;
    twin_refused(&t, dev->ops->nms(dev, &r.gpu), "conf");
    r.gpu.conf = 0.5f;
    r.gpu.cls[1].h--;
    twin_refused(&t, dev->ops->nms(dev, &r.gpu), "shape");
    r.gpu.cls[1].h++;
    r.gpu.dets = t.bytes - 256;
    r.gpu.max_det = 300;
    twin_refused(&t, dev->ops->nms(dev, &r.gpu), "dets");
    twin_close(&t);
}

/* The same tests for each format. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),           cmocka_unit_test(test_limit_with_ties),
        cmocka_unit_test(test_cut_and_suppress), cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_replay),           cmocka_unit_test(test_refusals),
    };
    static const char *const names[] = {"cuda_nms float32", "cuda_nms bfloat16",
                                        "cuda_nms float16"};
    int failed = 0;
    for (format = K_F32; format <= K_F16; format++)
        failed += cmocka_run_group_tests_name(names[format], tests, NULL, NULL);
    return failed;
}
