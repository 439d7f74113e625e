/* The operations that keep or halve the map: depthwise convolution, pooling, enlargement, copy,
 * image. */
#include "tests/kernel_rig.h"
#include "tests/ref_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    int n, h, w, c, before, after;
} map_case_t;

static const map_case_t map_cases[] = {
    {2, 7, 9, 16, 0, 0}, {1, 1, 1, 8, 0, 0},    {3, 2, 5, 24, 8, 16}, {1, 5, 2, 3, 1, 0},
    {5, 6, 3, 5, 0, 2},  {1, 12, 11, 80, 0, 0}, {2, 1, 6, 300, 0, 0},
};

/* Host twins: x and w in, dy the weights of the loss sum dy * f(x, w). */
typedef struct {
    map_case_t c;
    rig_t rig;
    k_tensor_t tx, ty, tdy, tdx;
    double *x, *w, *dy, *y;
    int64_t n_x, n_w, n_y;
    int pool; /* window */
    void (*apply)(void *run);
} map_run_t;

static void map_run_init(map_run_t *r, const map_case_t *c, int threads, int enlarge)
{
    *r = (map_run_t){.c = *c, .pool = 5};
    rig_t *g = &r->rig;
    int oh = c->h * (enlarge ? 2 : 1), ow = c->w * (enlarge ? 2 : 1);
    rig_open(g, threads, 4 << 20);
    r->tx = rig_tensor(g, c->n, c->h, c->w, c->c, c->before, c->after);
    r->tdx = rig_tensor(g, c->n, c->h, c->w, c->c, c->after, c->before);
    r->ty = rig_tensor(g, c->n, oh, ow, c->c, c->before, c->after);
    r->tdy = rig_tensor(g, c->n, oh, ow, c->c, c->after, c->before);
    r->n_x = (int64_t)rig_count(&r->tx);
    r->n_y = (int64_t)rig_count(&r->ty);
    r->n_w = 9 * c->c;
    r->x = rig_values(g, r->n_x, -1.0, 1.0);
    r->w = rig_values(g, r->n_w, -1.0, 1.0);
    r->dy = rig_values(g, r->n_y, -1.0, 1.0);
    r->y = malloc((size_t)r->n_y * sizeof *r->y);
    rig_put(g, &r->tx, r->x);
    rig_put(g, &r->tdy, r->dy);
}

static void map_run_fini(map_run_t *r)
{
    rig_close(&r->rig);
    free(r->x);
    free(r->w);
    free(r->dy);
    free(r->y);
}

static double map_loss(void *ctx)
{
    map_run_t *r = ctx;
    double sum = 0.0;
    r->apply(r);
    for (int64_t i = 0; i < r->n_y; i++)
        sum += r->dy[i] * r->y[i];
    return sum;
}

/* The device's result against `want`; frees want. */
static void expect(map_run_t *r, const char *what, const k_tensor_t *t, double *want, double limit)
{
    double *got = rig_get(&r->rig, t);
    rig_close_to(what, got, want, (int64_t)rig_count(t), limit);
    rig_gaps_untouched(&r->rig, t);
    free(got);
    free(want);
}

static double *doubled(const double *v, int64_t count)
{
    double *d = malloc((size_t)count * sizeof *d);
    for (int64_t i = 0; i < count; i++)
        d[i] = 2.0 * v[i];
    return d;
}

static void dw_apply(void *run)
{
    map_run_t *r = run;
    ref_dwconv(r->c.n, r->c.h, r->c.w, r->c.c, r->x, r->w, r->y);
}

static void depthwise(map_run_t *r)
{
    rig_t *g = &r->rig;
    const map_case_t *c = &r->c;
    k_at w = rig_bytes(g, (uint64_t)r->n_w * 4), dw = rig_bytes(g, (uint64_t)r->n_w * 4);
    double *dx = malloc((size_t)r->n_x * sizeof *dx), *want = malloc((size_t)r->n_w * sizeof *want);
    rig_put_flat(g, w, r->w, r->n_w);
    r->apply = dw_apply;
    r->apply(r);
    rig_ok(g, g->ops->dwconv(g->dev, &r->tx, w, &r->ty));
    double *y = malloc((size_t)r->n_y * sizeof *y);
    memcpy(y, r->y, (size_t)r->n_y * sizeof *y);
    expect(r, "dwconv", &r->ty, y, 1e-6);

    ref_dwconv_dx(c->n, c->h, c->w, c->c, r->dy, r->w, dx);
    ref_dwconv_dw(c->n, c->h, c->w, c->c, r->x, r->dy, want);
    rig_differences(g, "dwconv dx", map_loss, r, r->x, dx, r->n_x, 5, 1e-3);
    rig_differences(g, "dwconv dw", map_loss, r, r->w, want, r->n_w, 5, 1e-3);
    double *twice = doubled(dx, r->n_x), *dw_twice = doubled(want, r->n_w);
    rig_ok(g, g->ops->dwconv_dx(g->dev, &r->tdy, w, &r->tdx, 0));
    expect(r, "dwconv dx", &r->tdx, dx, 1e-6);
    rig_ok(g, g->ops->dwconv_dx(g->dev, &r->tdy, w, &r->tdx, 1));
    expect(r, "dwconv dx twice", &r->tdx, twice, 1e-6);

    rig_ok(g, g->ops->zero(g->dev, dw, (uint64_t)r->n_w * 4));
    rig_ok(g, g->ops->dwconv_dw(g->dev, &r->tx, &r->tdy, dw));
    double *got = rig_get_flat(g, dw, r->n_w);
    rig_close_to("dwconv dw", got, want, r->n_w, 1e-5);
    rig_ok(g, g->ops->dwconv_dw(g->dev, &r->tx, &r->tdy, dw));
    double *got_twice = rig_get_flat(g, dw, r->n_w);
    rig_close_to("dwconv dw twice", got_twice, dw_twice, r->n_w, 1e-5);
    free(want);
    free(got);
    free(got_twice);
    free(dw_twice);
}

static void pool_apply(void *run)
{
    map_run_t *r = run;
    int *index = malloc((size_t)r->n_y * sizeof *index);
    ref_maxpool(r->c.n, r->c.h, r->c.w, r->c.c, r->pool, r->x, r->y, index);
    free(index);
}

static void pooling(map_run_t *r)
{
    rig_t *g = &r->rig;
    const map_case_t *c = &r->c;
    k_at at = rig_bytes(g, (uint64_t)r->n_y);
    uint8_t *index = malloc((size_t)r->n_y);
    int *want_index = malloc((size_t)r->n_y * sizeof *want_index);
    double *dx = malloc((size_t)r->n_x * sizeof *dx), *y = malloc((size_t)r->n_y * sizeof *y);
    /* Equal values, so that the first of them must be chosen. */
    for (int64_t i = 0; i < r->n_x; i++)
        r->x[i] = floor(r->x[i] * 4.0);
    rig_put(g, &r->tx, r->x);
    ref_maxpool(c->n, c->h, c->w, c->c, r->pool, r->x, y, want_index);
    rig_ok(g, g->ops->maxpool(g->dev, r->pool, &r->tx, &r->ty, at));
    expect(r, "maxpool", &r->ty, y, 0.0);
    rig_ok(g, g->ops->download(g->dev, K_STREAM_MAIN, index, at, (uint64_t)r->n_y));
    for (int64_t i = 0; i < r->n_y; i++)
        assert_int_equal(index[i], want_index[i]);
    ref_maxpool_dx(c->n, c->h, c->w, c->c, r->pool, r->x, r->dy, dx);
    double *twice = doubled(dx, r->n_x);
    rig_ok(g, g->ops->maxpool_dx(g->dev, r->pool, &r->tdy, at, &r->tdx, 0));
    expect(r, "maxpool dx", &r->tdx, dx, 1e-6);
    rig_ok(g, g->ops->maxpool_dx(g->dev, r->pool, &r->tdy, at, &r->tdx, 1));
    expect(r, "maxpool dx twice", &r->tdx, twice, 1e-6);
    /* Differences need distinct values. */
    double *smooth = rig_values(g, r->n_x, -1.0, 1.0),
           *slope = malloc((size_t)r->n_x * sizeof *slope);
    memcpy(r->x, smooth, (size_t)r->n_x * sizeof *smooth);
    ref_maxpool_dx(c->n, c->h, c->w, c->c, r->pool, r->x, r->dy, slope);
    r->apply = pool_apply;
    rig_differences(g, "maxpool dx", map_loss, r, r->x, slope, r->n_x, 5, 1e-9);
    free(smooth);
    free(slope);
    free(index);
    free(want_index);
}

static void up_apply(void *run)
{
    map_run_t *r = run;
    ref_upsample(r->c.n, r->c.h, r->c.w, r->c.c, r->x, r->y);
}

static void enlargement(map_run_t *r)
{
    rig_t *g = &r->rig;
    const map_case_t *c = &r->c;
    double *y = malloc((size_t)r->n_y * sizeof *y), *dx = malloc((size_t)r->n_x * sizeof *dx);
    ref_upsample(c->n, c->h, c->w, c->c, r->x, y);
    rig_ok(g, g->ops->upsample(g->dev, &r->tx, &r->ty));
    expect(r, "upsample", &r->ty, y, 0.0);
    ref_upsample_dx(c->n, c->h, c->w, c->c, r->dy, dx);
    r->apply = up_apply;
    rig_differences(g, "upsample dx", map_loss, r, r->x, dx, r->n_x, 5, 1e-3);
    double *twice = doubled(dx, r->n_x);
    rig_ok(g, g->ops->upsample_dx(g->dev, &r->tdy, &r->tdx, 0));
    expect(r, "upsample dx", &r->tdx, dx, 1e-6);
    rig_ok(g, g->ops->upsample_dx(g->dev, &r->tdy, &r->tdx, 1));
    expect(r, "upsample dx twice", &r->tdx, twice, 1e-6);
}

static void copying(map_run_t *r)
{
    rig_t *g = &r->rig;
    double *once = malloc((size_t)r->n_x * sizeof *once), *twice = doubled(r->x, r->n_x);
    memcpy(once, r->x, (size_t)r->n_x * sizeof *once);
    rig_ok(g, g->ops->copy(g->dev, &r->tx, &r->tdx, 0));
    expect(r, "copy", &r->tdx, once, 0.0);
    rig_ok(g, g->ops->copy(g->dev, &r->tx, &r->tdx, 1));
    expect(r, "copy twice", &r->tdx, twice, 0.0);
}

static void each_case(void (*test)(map_run_t *), int enlarge)
{
    for (size_t i = 0; i < sizeof map_cases / sizeof *map_cases; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            map_run_t r;
            map_run_init(&r, &map_cases[i], threads, enlarge);
            test(&r);
            map_run_fini(&r);
        }
    }
}

static void test_depthwise(void **state)
{
    (void)state;
    each_case(depthwise, 0);
}

static void test_pooling(void **state)
{
    (void)state;
    each_case(pooling, 0);
}

static void test_enlargement(void **state)
{
    (void)state;
    each_case(enlargement, 1);
}

static void test_copying(void **state)
{
    (void)state;
    each_case(copying, 0);
}

/* A NaN is the maximum of every window that holds it, and nothing else changes. */
static void test_pooling_nan(void **state)
{
    (void)state;
    map_run_t r;
    const map_case_t c = {1, 9, 9, 4, 0, 0};
    map_run_init(&r, &c, 1, 0);
    rig_t *g = &r.rig;
    k_at at = rig_bytes(g, (uint64_t)r.n_y);
    int *index = malloc((size_t)r.n_y * sizeof *index);
    ref_maxpool(1, 9, 9, 4, 5, r.x, r.y, index);
    r.x[(4 * 9 + 4) * 4 + 1] = NAN;
    rig_put(g, &r.tx, r.x);
    rig_ok(g, g->ops->maxpool(g->dev, 5, &r.tx, &r.ty, at));
    double *got = rig_get(g, &r.ty);
    for (int i = 0; i < 9 * 9 * 4; i++) {
        int y = i / 36, x = i / 4 % 9, holds = i % 4 == 1 && abs(y - 4) <= 2 && abs(x - 4) <= 2;
        assert_true(holds ? isnan(got[i]) : got[i] == r.y[i]);
    }
    free(index);
    free(got);
    map_run_fini(&r);
}

static void test_image(void **state)
{
    (void)state;
    for (int gap = 0; gap < 2; gap++) {
        rig_t g;
        uint8_t bytes[2 * 5 * 17 * 3];
        rig_open(&g, 2, 1 << 20);
        k_tensor_t y = rig_tensor(&g, 2, 5, 17, 3, 0, gap);
        k_at at = rig_bytes(&g, sizeof bytes);
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)(i * 7 % 256);
        rig_ok(&g, g.ops->upload(g.dev, K_STREAM_COPY, at, bytes, sizeof bytes));
        rig_ok(&g, g.ops->image(g.dev, at, &y));
        double *got = rig_get(&g, &y);
        for (size_t i = 0; i < sizeof bytes; i++)
            assert_true(got[i] == (double)((float)bytes[i] / 255.0f));
        rig_gaps_untouched(&g, &y);
        free(got);
        y.c = 2;
        rig_refused(&g, g.ops->image(g.dev, at, &y), "channels");
        rig_close(&g);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    map_run_t r;
    map_run_init(&r, &map_cases[0], 1, 0);
    rig_t *g = &r.rig;
    k_tensor_t y = r.ty;
    y.c--;
    rig_refused(g, g->ops->copy(g->dev, &r.tx, &y, 0), "shapes differ");
    rig_refused(g, g->ops->dwconv(g->dev, &r.tx, 0, &y), "shapes differ");
    rig_refused(g, g->ops->upsample(g->dev, &r.tx, &r.ty), "twice");
    rig_refused(g, g->ops->maxpool(g->dev, 4, &r.tx, &r.ty, 0), "odd windows");
    rig_refused(g, g->ops->maxpool(g->dev, 5, &r.tx, &r.ty, K_NONE), "index");
    map_run_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depthwise),   cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_pooling_nan), cmocka_unit_test(test_enlargement),
        cmocka_unit_test(test_copying),     cmocka_unit_test(test_image),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("kernels_maps", tests, NULL, NULL);
}
