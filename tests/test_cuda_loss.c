/* The loss and its assigner on the GPU: random problems beside the CPU's, in each format. Who owns
 * which anchor shows in the gradients.
 *
 * Both see the same logits, but their exponentials differ in the last place. The sixth power of the
 * overlap spreads the metrics so far that no two candidates of these fixed draws are as close as
 * that; where equal metrics are wanted they are equal to the bit. */
#include "tests/twin_near.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    ARENA = 96 << 20,
    SMALL = 8 << 20,
    SANITIZED = 2000 /* most anchors there */,
    MAX_GT = 1024
};
/* float32 on both sides, sums of a few hundred terms (issue D). */
#define LIMIT 1e-4

static const int32_t strides[K_LEVELS] = {8, 16, 32};
static k_dtype_t format;

typedef struct {
    int n, h, w, nc;    /* of the finest level; the others' halves and quarters */
    int max_gt, boxes;  /* of the first image; half as many in the second, none in the third */
    double least, most; /* sides in pixels */
    int twins;          /* every second box lies where the one before it does */
    int before, after;  /* gaps */
    int dense;          /* 1: none around the logits, 2: none around the gradients */
    int loss_only;
} loss_case_t;

/* Boxes smaller than a cell and larger than the image, crowds with many contested anchors, classes
 * that are and are not a whole number of 16 bytes, slices. The largest: 1024 x 1024. */
static const loss_case_t loss_cases[] = {
    {2, 8, 8, 3, 8, 5, 8, 64, 0, 0, 0, 0, 0},
    {1, 8, 8, 1, 1, 1, 10, 40, 0, 0, 0, 0, 0},
    {3, 8, 16, 8, 40, 32, 4, 90, 0, 0, 0, 0, 0},
    {3, 8, 16, 8, 40, 32, 4, 90, 0, 0, 0, 0, 1},
    {2, 16, 12, 80, 30, 30, 2, 120, 0, 0, 0, 0, 0},
    {2, 16, 12, 16, 24, 24, 20, 90, 1, 8, 8, 0, 0},
    {2, 12, 12, 5, 24, 24, 20, 90, 1, 3, 2, 0, 0},
    {2, 12, 12, 8, 12, 12, 20, 90, 1, 4, 0, 0, 1},
    {1, 16, 16, 2, 300, 300, 6, 50, 0, 0, 0, 0, 0},
    {2, 8, 8, 7, 20, 12, 60, 400, 0, 0, 0, 0, 0},
    {2, 128, 128, 6, 256, 200, 6, 700, 0, 0, 0, 0, 0},
    {2, 40, 40, 1, 100, 60, 5, 200, 0, 0, 0, 0, 0},
    {2, 8, 12, 8, 8, 6, 20, 90, 0, 8, 8, 1, 0},
    {2, 8, 12, 8, 8, 6, 20, 90, 0, 8, 8, 2, 0},
};

typedef struct {
    loss_case_t c;
    twin_t *t;
    twin_tensor_t box[K_LEVELS], cls[K_LEVELS], dbox[K_LEVELS], dcls[K_LEVELS];
    k_detect_loss_t gpu, cpu;
    int32_t counts[8];
    k_gt_t gt[MAX_GT]; /* [n][max_gt] */
} loss_run_t;

static uint64_t values_of(const k_tensor_t *x)
{
    return (uint64_t)x->n * (uint64_t)x->h * (uint64_t)x->w * (uint64_t)x->c;
}

/* Everything that has been given out is NaN again: gradients, items, work. */
static void poison(twin_t *t)
{
    void *nan = malloc(t->used);
    assert_non_null(nan);
    memset(nan, 0xff, t->used);
    twin_put(t, 0, nan, t->used);
    free(nan);
}

static void put_gt(loss_run_t *r)
{
    const uint64_t n = (uint64_t)r->c.n;
    twin_put(r->t, r->gpu.gt_count, r->counts, n * sizeof *r->counts);
    if (r->c.max_gt > 0)
        twin_put(r->t, r->gpu.gt, r->gt, n * (uint64_t)r->c.max_gt * sizeof *r->gt);
}

/* Boxes anywhere, beyond the image's edges too; sides evenly on a logarithmic scale. */
static void draw_gt(loss_run_t *r)
{
    const loss_case_t *c = &r->c;
    for (int i = 0; i < c->n; i++) {
        r->counts[i] = i < 2 ? c->boxes >> i : 0;
        for (int g = 0; g < r->counts[i]; g++) {
            k_gt_t *b = &r->gt[i * c->max_gt + g];
            double x = twin_random(r->t, 0, c->w * 8), y = twin_random(r->t, 0, c->h * 8);
            double w = exp(twin_random(r->t, log(c->least), log(c->most)));
            double h = exp(twin_random(r->t, log(c->least), log(c->most)));
            *b = (k_gt_t){0, (float)(x - w / 2), (float)(y - h / 2), (float)(x + w / 2),
                          (float)(y + h / 2)};
            if (c->twins && g % 2)
                *b = b[-1];
            b->cls = floorf((float)twin_random(r->t, 0, c->nc));
        }
    }
    put_gt(r);
}

static void draw(loss_run_t *r)
{
    for (int l = 0; l < K_LEVELS; l++) {
        twin_fill(r->t, &r->box[l], -3.0, 3.0);
        twin_fill(r->t, &r->cls[l], -6.0, 2.0);
    }
    draw_gt(r);
}

static void loss_run_init(loss_run_t *r, const loss_case_t *c, twin_t *t)
{
    *r = (loss_run_t){.c = *c, .t = t};
    assert_true(c->n <= 8 && c->n * c->max_gt <= MAX_GT);
    t->used = 0;
    k_detect_loss_t p = {.nc = c->nc,
                         .max_gt = c->max_gt,
                         .gain_box = 7.5f,
                         .gain_cls = 0.5f,
                         .gain_dfl = 1.5f,
                         .scale = (float)c->n,
                         .scaling = K_NONE};
    for (int l = 0; l < K_LEVELS; l++) {
        const int h = c->h >> l, w = c->w >> l, bins = 4 * K_REG_MAX;
        p.stride[l] = strides[l];
        const int x = c->dense != 1, d = c->dense != 2;
        r->box[l] = twin_tensor(t, c->n, h, w, bins, x * c->before, x * c->after);
        r->cls[l] = twin_tensor(t, c->n, h, w, c->nc, x * c->after, x * c->before);
        r->dbox[l] = twin_tensor(t, c->n, h, w, bins, d * c->after, d * c->before);
        r->dcls[l] = twin_tensor(t, c->n, h, w, c->nc, d * c->before, d * c->after);
    }
    p.gt = twin_place(t, (uint64_t)c->n * (uint64_t)c->max_gt * sizeof(k_gt_t));
    p.gt_count = twin_place(t, (uint64_t)c->n * sizeof(int32_t));
    p.sum = twin_place(t, sizeof(double));
    p.items = twin_place(t, 4 * sizeof(float));
    r->gpu = r->cpu = p;
    for (int l = 0; l < K_LEVELS; l++) {
        r->gpu.box[l] = r->box[l].gpu, r->cpu.box[l] = r->box[l].cpu;
        r->gpu.cls[l] = r->cls[l].gpu, r->cpu.cls[l] = r->cls[l].cpu;
        r->gpu.dbox[l] = r->dbox[l].gpu, r->cpu.dbox[l] = r->dbox[l].cpu;
        r->gpu.dcls[l] = r->dcls[l].gpu, r->cpu.dcls[l] = r->dcls[l].cpu;
        if (c->loss_only)
            r->gpu.dbox[l].at = r->gpu.dcls[l].at = r->cpu.dbox[l].at = r->cpu.dcls[l].at = K_NONE;
    }
    r->gpu.work_bytes = t->gpu->ops->detect_loss_work(t->gpu, &r->gpu);
    r->cpu.work_bytes = t->cpu->ops->detect_loss_work(t->cpu, &r->cpu);
    r->gpu.work = r->cpu.work = twin_place(
        t, r->gpu.work_bytes > r->cpu.work_bytes ? r->gpu.work_bytes : r->cpu.work_bytes);
    poison(t);
    draw(r);
}

static void run_both(loss_run_t *r)
{
    twin_ok(r->t, r->t->gpu->ops->detect_loss(r->t->gpu, &r->gpu),
            r->t->cpu->ops->detect_loss(r->t->cpu, &r->cpu));
}

static void same_items(loss_run_t *r)
{
    static const char *const names[] = {"box", "cls", "dfl", "sum of target scores"};
    for (int i = 0; i < 4; i++)
        twin_near_floats(r->t, names[i], r->gpu.items + (k_at)i * sizeof(float), 1, LIMIT);
}

/* As twin_near, and where float16 ends: below 2^-14 its numbers are 2^-24 apart. */
static void near_gradients(loss_run_t *r, const char *what, int level, const twin_tensor_t *x)
{
    const double rounding[] = {[K_F32] = 0.0, [K_BF16] = 0x1p-8, [K_F16] = 0x1p-11};
    const double apart = format == K_F16 ? 0x1p-25 : 0.0;
    float *got = twin_get_gpu(r->t, x), *want = twin_get_cpu(r->t, x);
    double most = 0;
    for (uint64_t i = 0; i < values_of(&x->cpu); i++)
        most = fmax(most, fabs((double)want[i]));
    for (uint64_t i = 0; i < values_of(&x->cpu); i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        if (!(off <= rounding[format] * fabs((double)want[i]) + LIMIT * most + apart))
            fail_msg("%s of level %d, %d x %d px, %d classes: value %d of %d is %.9g, not %.9g "
                     "(largest %g)",
                     what, level, r->c.w * 8, r->c.h * 8, r->c.nc, (int)i, (int)values_of(&x->cpu),
                     (double)got[i], (double)want[i], most);
    }
    twin_gaps_untouched(r->t, x);
    free(got);
    free(want);
}

static void same_results(loss_run_t *r)
{
    same_items(r);
    for (int l = 0; l < K_LEVELS && !r->c.loss_only; l++) {
        near_gradients(r, "dbox", l, &r->dbox[l]);
        near_gradients(r, "dcls", l, &r->dcls[l]);
    }
}

static void test_random(void **state)
{
    (void)state;
    const int sanitized = getenv("SLUICE_TEST_SANITIZE") != NULL;
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof loss_cases / sizeof *loss_cases; i++) {
        const loss_case_t *c = &loss_cases[i];
        loss_run_t r;
        if (sanitized && c->n * c->h * c->w > SANITIZED)
            continue;
        loss_run_init(&r, c, &t);
        run_both(&r);
        same_results(&r);
    }
    twin_close(&t);
}

/* In one piece, in two halves, and twice: the same bits. With another sum of target scores, as ranks
 * that share it have: beside the CPU. */
static void test_halves(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, SMALL);
    loss_run_t r;
    loss_run_init(&r, &loss_cases[2], &t);
    const k_ops_t *gpu = t.gpu->ops, *cpu = t.cpu->ops;
    run_both(&r);
    double *sum = twin_bytes_gpu(&t, r.gpu.sum, sizeof *sum);
    assert_true(isnan(*sum)); /* detect_loss leaves it alone */
    free(sum);
    /* gradients, labels, sum, items */
    const uint64_t bytes = r.gpu.items + 4 * sizeof(float) - r.dbox[0].gpu.at;
    twin_ok(&t, gpu->detect_assign(t.gpu, &r.gpu), 0); /* the same sum in both */
    char *first = twin_bytes_gpu(&t, r.dbox[0].gpu.at, bytes);
    poison(&t);
    t.random = 1;
    draw(&r);
    twin_ok(&t, gpu->detect_assign(t.gpu, &r.gpu), cpu->detect_assign(t.cpu, &r.cpu));
    twin_near_doubles(&t, "sum of target scores", r.gpu.sum, 1, LIMIT);
    twin_ok(&t, gpu->detect_terms(t.gpu, &r.gpu), cpu->detect_terms(t.cpu, &r.cpu));
    same_results(&r);
    char *again = twin_bytes_gpu(&t, r.dbox[0].gpu.at, bytes);
    assert_memory_equal(again, first, bytes);
    free(first);
    free(again);
    const double sums[] = {0.25, 977.5}; /* below 1 counts as 1 */
    for (int i = 0; i < 2; i++) {
        twin_put(&t, r.gpu.sum, &sums[i], sizeof sums[i]);
        twin_ok(&t, gpu->detect_terms(t.gpu, &r.gpu), cpu->detect_terms(t.cpu, &r.cpu));
        same_results(&r);
        float *s = twin_bytes_gpu(&t, r.gpu.items, 4 * sizeof *s);
        assert_float_equal(s[3], i ? 977.5 : 1.0, 1e-4);
        free(s);
    }
    twin_close(&t);
}

/* The loss scale of float16 multiplies the gradients, not the items. */
static void test_scaling(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, SMALL);
    loss_run_t r;
    loss_run_init(&r, &loss_cases[0], &t);
    const k_scaling_t scaling = {.norm = 3.0f, .scale = 64.0f, .good = 5.0f, .skipped = 1.0f};
    r.gpu.scaling = twin_place(&t, sizeof scaling);
    twin_put(&t, r.gpu.scaling, &scaling, sizeof scaling);
    r.cpu.scale *= 64.0f;
    run_both(&r);
    same_results(&r);
    k_scaling_t *after = twin_bytes_gpu(&t, r.gpu.scaling, sizeof *after);
    assert_memory_equal(after, &scaling, sizeof scaling);
    free(after);
    twin_close(&t);
}

/* Without boxes, and without room for any. */
static void test_no_boxes(void **state)
{
    (void)state;
    static const loss_case_t empty = {2, 8, 8, 3, 0, 0, 8, 64, 0, 0, 0, 0, 0};
    loss_case_t none = loss_cases[0];
    none.boxes = 0;
    twin_t t;
    twin_open(&t, format, SMALL);
    for (int i = 0; i < 2; i++) {
        loss_run_t r;
        loss_run_init(&r, i ? &none : &empty, &t);
        run_both(&r);
        same_results(&r);
        float *items = twin_bytes_gpu(&t, r.gpu.items, 4 * sizeof *items);
        assert_true(items[0] == 0.0f && items[1] > 0.0f && items[2] == 0.0f && items[3] == 1.0f);
        free(items);
    }
    twin_close(&t);
}

/* What the host should have refused does no harm: counts are cut to the room, boxes of impossible
 * classes and without coordinates are ignored. The CPU gets what is left. */
static void test_impossible_labels(void **state)
{
    (void)state;
    static const loss_case_t c = {3, 12, 12, 4, 20, 20, 10, 90, 1, 0, 0, 0, 0};
    twin_t t;
    twin_open(&t, format, SMALL);
    loss_run_t r;
    loss_run_init(&r, &c, &t);
    const float bad[] = {4.0f, -1.0f, 1e9f, NAN, -INFINITY, 2147483648.0f};
    for (int i = 0; i < 6; i++)
        r.gt[3 * i].cls = bad[i];
    r.gt[19] = (k_gt_t){1, NAN, NAN, NAN, NAN};
    r.gt[20] = (k_gt_t){1, 0, 0, 0, 0};
    r.counts[0] = c.max_gt + 1000000000;
    r.counts[2] = -7;
    put_gt(&r);
    for (int i = 0; i < 6; i++)
        r.gt[3 * i] = (k_gt_t){0};
    r.gt[19] = (k_gt_t){0};
    r.counts[0] = c.max_gt;
    r.counts[2] = 0;
    const k_ops_t *cpu = t.cpu->ops;
    twin_ok(&t, 0,
            cpu->upload(t.cpu, K_STREAM_MAIN, r.cpu.gt_count, r.counts, 3 * sizeof *r.counts));
    twin_ok(&t, 0, cpu->upload(t.cpu, K_STREAM_MAIN, r.cpu.gt, r.gt, 60 * sizeof *r.gt));
    run_both(&r);
    same_results(&r);
    twin_close(&t);
}

/* One bin takes all the weight: the expectation is its number, exactly. */
static void predict(float *bins, int distance)
{
    for (int i = 0; i < K_REG_MAX; i++)
        bins[i] = i == distance ? 0.0f : -60.0f;
}

static void put_tensor(twin_t *t, const twin_tensor_t *x, const float *values)
{
    uint16_t half[16 * 16 * 4 * K_REG_MAX];
    const uint64_t count = values_of(&x->cpu);
    const k_ops_t *gpu = t->gpu->ops;
    assert_true(count <= sizeof half / sizeof *half);
    twin_ok(t, 0, t->cpu->ops->upload(t->cpu, K_STREAM_MAIN, x->cpu.at, values, count * 4));
    /* 0 and -60 in bfloat16 and float16 */
    for (uint64_t i = 0; i < count; i++)
        half[i] = values[i] == 0.0f ? 0 : format == K_BF16 ? 0xc270 : 0xd380;
    const void *from = format == K_F32 ? (const void *)values : half;
    twin_ok(t, gpu->upload(t->gpu, K_STREAM_MAIN, x->gpu.at, from, count * (format ? 2 : 4)), 0);
    twin_ok(t, gpu->wait(t->gpu, K_STREAM_MAIN, 10000), 0);
}

/* 81 anchors predict the same box exactly, with the same score for both classes: of equal anchors
 * the first ten are taken, and of the two equal boxes that want them the first. Its class has
 * negative gradients, all else positive ones. */
static void test_first_of_equals(void **state)
{
    (void)state;
    static const loss_case_t c = {1, 16, 16, 2, 2, 2, 10, 20, 0, 0, 0, 0, 0};
    static float bins[16 * 16 * 4 * K_REG_MAX], zero[16 * 16 * 2];
    twin_t t;
    twin_open(&t, format, SMALL);
    loss_run_t r;
    loss_run_init(&r, &c, &t);
    for (int l = 0; l < K_LEVELS; l++) {
        const int side = 16 >> l;
        for (int i = 0; i < side * side; i++) {
            const int x = i % side, y = i / side, in = x > 2 && x < 12 && y > 2 && y < 12;
            const int d[4] = {x - 2, y - 2, 12 - x, 12 - y};
            for (int k = 0; k < 4; k++) /* other anchors and levels: boxes without an area */
                predict(bins + (i * 4 + k) * K_REG_MAX, l == 0 && in ? d[k] : 0);
        }
        put_tensor(&t, &r.box[l], bins);
        put_tensor(&t, &r.cls[l], zero);
    }
    for (int g = 0; g < 2; g++) /* 2.5 to 12.5 cells */
        r.gt[g] = (k_gt_t){(float)(1 - g), 20, 20, 100, 100};
    put_gt(&r);
    run_both(&r);
    same_results(&r);
    float *g = twin_get_gpu(&t, &r.dcls[0]);
    int owned = 0;
    for (int i = 0; i < 16 * 16; i++) {
        const int x = i % 16, y = i / 16;
        const int mine = (y == 3 && x > 2 && x < 12) || (y == 4 && x == 3);
        owned += mine;
        assert_true(g[2 * i] > 0.0f);
        assert_true(mine ? g[2 * i + 1] < 0.0f : g[2 * i + 1] > 0.0f);
    }
    assert_int_equal(owned, 10);
    free(g);
    twin_close(&t);
}

/* A recorded loss sees the logits and labels that lie there when it is replayed, and gives the same
 * bits every time. */
static void test_replay(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, SMALL);
    loss_run_t r;
    loss_run_init(&r, &loss_cases[0], &t);
    const k_ops_t *gpu = t.gpu->ops;
    run_both(&r);
    twin_ok(&t, gpu->capture(t.gpu, 0), 0);
    twin_ok(&t, gpu->detect_loss(t.gpu, &r.gpu), 0);
    twin_ok(&t, gpu->captured(t.gpu), 0);
    poison(&t);
    draw(&r);
    r.counts[1] = r.c.max_gt;
    for (int g = 0; g < r.c.max_gt; g++)
        r.gt[r.c.max_gt + g] = (k_gt_t){1, 4 + 5.3f * (float)g, 3, 30 + 6.1f * (float)g, 41};
    put_gt(&r);
    twin_ok(&t, gpu->replay(t.gpu, 0), t.cpu->ops->detect_loss(t.cpu, &r.cpu));
    same_results(&r);
    const uint64_t bytes = r.gpu.gt - r.dbox[0].gpu.at;
    void *first = twin_bytes_gpu(&t, r.dbox[0].gpu.at, bytes);
    twin_ok(&t, gpu->replay(t.gpu, 0), 0);
    void *again = twin_bytes_gpu(&t, r.dbox[0].gpu.at, bytes);
    assert_memory_equal(again, first, bytes);
    free(first);
    free(again);
    twin_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, SMALL);
    loss_run_t r;
    loss_run_init(&r, &loss_cases[0], &t);
    const k_ops_t *gpu = t.gpu->ops;
    k_detect_loss_t p = r.gpu;
    p.work_bytes--;
    twin_refused(&t, gpu->detect_loss(t.gpu, &p), "work");
    p = r.gpu;
    p.nc++;
    twin_refused(&t, gpu->detect_loss(t.gpu, &p), "class channels");
    p = r.gpu;
    p.cls[1].h--;
    twin_refused(&t, gpu->detect_loss(t.gpu, &p), "shape");
    p = r.gpu;
    p.dcls[2].at = K_NONE;
    twin_refused(&t, gpu->detect_loss(t.gpu, &p), "some have none");
    p = r.gpu;
    p.dbox[1].w--;
    twin_refused(&t, gpu->detect_loss(t.gpu, &p), "shapes differ");
    p = r.gpu;
    p.sum = K_NONE;
    twin_refused(&t, gpu->detect_assign(t.gpu, &p), "sum");
    twin_refused(&t, gpu->detect_terms(t.gpu, &p), "sum");
    p = r.gpu;
    p.gt = t.bytes - 256;
    p.max_gt = 100;
    p.work_bytes = UINT64_MAX;
    twin_refused(&t, gpu->detect_loss(t.gpu, &p), "");
    twin_close(&t);
}

/* The same tests for each format. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),   cmocka_unit_test(test_halves),
        cmocka_unit_test(test_scaling),  cmocka_unit_test(test_no_boxes),
        cmocka_unit_test(test_replay),   cmocka_unit_test(test_impossible_labels),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_first_of_equals),
    };
    static const char *const names[] = {"cuda_loss float32", "cuda_loss bfloat16",
                                        "cuda_loss float16"};
    int failed = 0;
    for (format = K_F32; format <= K_F16; format++)
        failed += cmocka_run_group_tests_name(names[format], tests, NULL, NULL);
    return failed;
}
