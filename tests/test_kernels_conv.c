/* Convolution against double precision: forward, both gradients, slices, bias, accumulation,
 * repetition. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"
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
    ref_conv_t p;
    int before, after; /* channels beside x and y: slices of wider tensors */
    int bias;
} conv_case_t;

static const conv_case_t conv_cases[] = {
    {{1, 7, 5, 3, 8, 3, 2}, 0, 0, 0},     /* the first layer's shape, odd sizes */
    {{2, 12, 10, 3, 16, 3, 2}, 0, 0, 0},  /* even sizes */
    {{2, 9, 9, 4, 6, 3, 1}, 0, 0, 1},     /* odd channel counts, bias */
    {{5, 6, 6, 16, 8, 3, 1}, 16, 8, 0},   /* slices */
    {{3, 8, 6, 16, 24, 1, 1}, 0, 0, 1},   /* no gathering */
    {{3, 8, 6, 16, 24, 1, 1}, 8, 3, 1},   /* no gathering, slices */
    {{5, 6, 7, 5, 7, 5, 1}, 1, 2, 0},     /* 5 x 5 */
    {{2, 7, 7, 6, 4, 1, 2}, 0, 0, 0},     /* pixels that no output sees */
    {{2, 9, 8, 7, 5, 3, 3}, 0, 0, 0},     /* stride 3 */
    {{1, 1, 1, 8, 8, 3, 1}, 0, 0, 1},     /* one pixel: threads without work */
    {{1, 1, 2, 4, 4, 3, 2}, 0, 0, 0},     /* narrower than the kernel */
    {{2, 33, 31, 16, 16, 3, 1}, 0, 0, 0}, /* several blocks a thread */
    {{1, 15, 14, 96, 40, 3, 2}, 0, 0, 0}, /* long rows of the matrix */
    {{7, 10, 10, 64, 64, 1, 1}, 0, 0, 0},
    {{1, 17, 16, 20, 33, 3, 2}, 4, 0, 1}, /* one column in the last panel */
    {{1, 40, 29, 24, 40, 1, 1}, 0, 8, 0}, /* more pixels than a block */
};

/* Everything of one case: host twins and places. */
typedef struct {
    conv_case_t c;
    rig_t rig;
    double *x, *w, *bias, *dy, *y;
    k_tensor_t tx, ty, tdx, tdy;
    k_at at_w, at_bias, at_dw, at_dbias, work;
    k_conv_t conv;
    int64_t n_x, n_w, n_y;
} conv_run_t;

/* tiles: 1 by register tiles where the processor can, 0 by the BLAS. */
static void conv_run_init(conv_run_t *r, const conv_case_t *c, int threads, int tiles)
{
    const ref_conv_t *p = &c->p;
    int oh = ref_out(p->h, p->k, p->s), ow = ref_out(p->w, p->k, p->s);
    *r = (conv_run_t){.c = *c};
    rig_open(&r->rig, threads, 8 << 20);
    if (!tiles)
        cpu_dev(r->rig.dev)->tiles = 0;
    assert_int_equal(cpu_dev(r->rig.dev)->tiles, tiles && tile_available());
    r->conv = (k_conv_t){.k = p->k, .s = p->s, .c1 = p->c1, .c2 = p->c2};
    r->tx = rig_tensor(&r->rig, p->n, p->h, p->w, p->c1, c->before, c->after);
    r->tdx = rig_tensor(&r->rig, p->n, p->h, p->w, p->c1, c->after, c->before);
    r->ty = rig_tensor(&r->rig, p->n, oh, ow, p->c2, c->before, c->after);
    r->tdy = rig_tensor(&r->rig, p->n, oh, ow, p->c2, c->after, c->before);
    r->n_x = (int64_t)rig_count(&r->tx);
    r->n_y = (int64_t)rig_count(&r->ty);
    r->n_w = (int64_t)p->c2 * p->k * p->k * p->c1;
    r->x = rig_values(&r->rig, r->n_x, -1.0, 1.0);
    r->w = rig_values(&r->rig, r->n_w, -0.5, 0.5);
    r->bias = rig_values(&r->rig, p->c2, -1.0, 1.0);
    r->dy = rig_values(&r->rig, r->n_y, -1.0, 1.0);
    r->y = malloc((size_t)r->n_y * sizeof *r->y);
    r->at_w = rig_bytes(&r->rig, (uint64_t)r->n_w * 4);
    r->at_dw = rig_bytes(&r->rig, (uint64_t)r->n_w * 4);
    r->at_bias = c->bias ? rig_bytes(&r->rig, (uint64_t)p->c2 * 4) : K_NONE;
    r->at_dbias = c->bias ? rig_bytes(&r->rig, (uint64_t)p->c2 * 4) : K_NONE;
    r->work = rig_bytes(&r->rig, r->rig.ops->conv_work(r->rig.dev, &r->conv, &r->tx));
    rig_put(&r->rig, &r->tx, r->x);
    rig_put(&r->rig, &r->tdy, r->dy);
    rig_put_flat(&r->rig, r->at_w, r->w, r->n_w);
    if (c->bias)
        rig_put_flat(&r->rig, r->at_bias, r->bias, p->c2);
}

static void conv_run_fini(conv_run_t *r)
{
    rig_close(&r->rig);
    free(r->x);
    free(r->w);
    free(r->bias);
    free(r->dy);
    free(r->y);
}

/* sum dy * conv(x, w, bias): its gradients are dx, dw and dbias. */
static double conv_loss(void *ctx)
{
    conv_run_t *r = ctx;
    double sum = 0.0;
    ref_conv(&r->c.p, r->x, r->w, r->c.bias ? r->bias : NULL, r->y);
    for (int64_t i = 0; i < r->n_y; i++)
        sum += r->dy[i] * r->y[i];
    return sum;
}

static void forward(conv_run_t *r)
{
    rig_t *g = &r->rig;
    rig_ok(g, g->ops->conv(g->dev, &r->conv, &r->tx, r->at_w, r->at_bias, &r->ty, r->work));
    ref_conv(&r->c.p, r->x, r->w, r->c.bias ? r->bias : NULL, r->y);
    double *got = rig_get(g, &r->ty);
    rig_close_to("y", got, r->y, r->n_y, 2e-6);
    rig_gaps_untouched(g, &r->ty);
    for (int i = 0; i < 3; i++) {
        rig_ok(g, g->ops->conv(g->dev, &r->conv, &r->tx, r->at_w, r->at_bias, &r->ty, r->work));
        double *again = rig_get(g, &r->ty);
        assert_memory_equal(got, again, (size_t)r->n_y * sizeof *got);
        free(again);
    }
    free(got);
}

static void data_gradient(conv_run_t *r)
{
    rig_t *g = &r->rig;
    double *want = malloc((size_t)r->n_x * sizeof *want);
    ref_conv_dx(&r->c.p, r->dy, r->w, want);
    rig_differences(g, "dx", conv_loss, r, r->x, want, r->n_x, 6, 1e-3);
    rig_ok(g, g->ops->conv_dx(g->dev, &r->conv, &r->tdy, r->at_w, &r->tdx, 0, r->work));
    double *got = rig_get(g, &r->tdx);
    rig_close_to("dx", got, want, r->n_x, 1e-5);
    rig_gaps_untouched(g, &r->tdx);
    rig_ok(g, g->ops->conv_dx(g->dev, &r->conv, &r->tdy, r->at_w, &r->tdx, 1, r->work));
    double *twice = rig_get(g, &r->tdx);
    for (int64_t i = 0; i < r->n_x; i++)
        want[i] *= 2.0;
    rig_close_to("dx added to dx", twice, want, r->n_x, 1e-5);
    rig_ok(g, g->ops->conv_dx(g->dev, &r->conv, &r->tdy, r->at_w, &r->tdx, 0, r->work));
    double *again = rig_get(g, &r->tdx);
    assert_memory_equal(got, again, (size_t)r->n_x * sizeof *got);
    free(want);
    free(got);
    free(twice);
    free(again);
}

static void weight_gradient(conv_run_t *r)
{
    rig_t *g = &r->rig;
    int c2 = r->c.p.c2;
    double *want = malloc((size_t)r->n_w * sizeof *want),
           *want_bias = malloc((size_t)c2 * sizeof *want);
    double *start = rig_values(g, r->n_w, -1.0, 1.0), *first = NULL;
    ref_conv_dw(&r->c.p, r->x, r->dy, want, want_bias);
    rig_differences(g, "dw", conv_loss, r, r->w, want, r->n_w, 6, 1e-3);
    if (r->c.bias)
        rig_differences(g, "dbias", conv_loss, r, r->bias, want_bias, c2, 3, 1e-3);
    for (int64_t i = 0; i < r->n_w; i++)
        want[i] += start[i];
    for (int i = 0; i < c2; i++)
        want_bias[i] += start[i];
    for (int i = 0; i < 3; i++) {
        rig_put_flat(g, r->at_dw, start, r->n_w);
        if (r->c.bias)
            rig_put_flat(g, r->at_dbias, start, c2);
        rig_ok(g,
               g->ops->conv_dw(g->dev, &r->conv, &r->tx, &r->tdy, r->at_dw, r->at_dbias, r->work));
        double *got = rig_get_flat(g, r->at_dw, r->n_w);
        rig_close_to("dw", got, want, r->n_w, 1e-5);
        if (first)
            assert_memory_equal(first, got, (size_t)r->n_w * sizeof *got);
        free(first);
        first = got;
    }
    if (r->c.bias) {
        double *got = rig_get_flat(g, r->at_dbias, c2);
        rig_close_to("dbias", got, want_bias, c2, 1e-5);
        free(got);
    }
    free(first);
    free(start);
    free(want);
    free(want_bias);
}

static void each_case(void (*test)(conv_run_t *))
{
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            for (int tiles = 0; tiles <= 1; tiles++) {
                conv_run_t r;
                conv_run_init(&r, &conv_cases[i], threads, tiles);
                test(&r);
                conv_run_fini(&r);
            }
        }
    }
}

static void test_forward(void **state)
{
    (void)state;
    each_case(forward);
}

static void test_data_gradient(void **state)
{
    (void)state;
    each_case(data_gradient);
}

static void test_weight_gradient(void **state)
{
    (void)state;
    each_case(weight_gradient);
}

/* Weights so large that threads share out channels as well as pixels. */
static void test_weight_gradient_many_threads(void **state)
{
    (void)state;
    const conv_case_t c = {{1, 3, 3, 256, 200, 3, 1}, 0, 0, 1};
    for (int variant = 0; variant < 4; variant++) {
        conv_run_t r = {.c = c};
        rig_t *g = &r.rig;
        rig_open(g, variant & 1 ? 48 : 49, 128 << 20);
        cpu_dev(g->dev)->tiles &= variant >> 1;
        r.conv = (k_conv_t){3, 1, 256, 200};
        r.tx = rig_tensor(g, 1, 3, 3, 256, 0, 0);
        r.tdy = rig_tensor(g, 1, 3, 3, 200, 0, 0);
        r.n_w = 200 * 9 * 256;
        r.at_dw = rig_bytes(g, (uint64_t)r.n_w * 4);
        r.at_dbias = rig_bytes(g, 200 * 4);
        r.work = rig_bytes(g, g->ops->conv_work(g->dev, &r.conv, &r.tx));
        double *x = rig_values(g, 9 * 256, -1.0, 1.0), *dy = rig_values(g, 9 * 200, -1.0, 1.0);
        double *want = malloc((size_t)r.n_w * sizeof *want), want_bias[200];
        rig_put(g, &r.tx, x);
        rig_put(g, &r.tdy, dy);
        rig_ok(g, g->ops->zero(g->dev, r.at_dw, (uint64_t)r.n_w * 4));
        rig_ok(g, g->ops->zero(g->dev, r.at_dbias, 200 * 4));
        rig_ok(g, g->ops->conv_dw(g->dev, &r.conv, &r.tx, &r.tdy, r.at_dw, r.at_dbias, r.work));
        ref_conv_dw(&c.p, x, dy, want, want_bias);
        double *got = rig_get_flat(g, r.at_dw, r.n_w), *got_bias = rig_get_flat(g, r.at_dbias, 200);
        rig_close_to("dw", got, want, r.n_w, 1e-5);
        rig_close_to("dbias", got_bias, want_bias, 200, 1e-5);
        free(x);
        free(dy);
        free(want);
        free(got);
        free(got_bias);
        rig_close(g);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    conv_run_t r;
    conv_run_init(&r, &conv_cases[2], 1, 1);
    rig_t *g = &r.rig;
    k_conv_t p = r.conv;
    p.k = 4;
    rig_refused(g, g->ops->conv(g->dev, &p, &r.tx, r.at_w, K_NONE, &r.ty, r.work), "odd kernels");
    p = r.conv;
    p.c1++;
    rig_refused(g, g->ops->conv(g->dev, &p, &r.tx, r.at_w, K_NONE, &r.ty, r.work), "does not fit");
    k_tensor_t y = r.ty;
    y.h++;
    rig_refused(g, g->ops->conv(g->dev, &r.conv, &r.tx, r.at_w, K_NONE, &y, r.work), "conv");
    y = r.ty;
    y.ld = y.c - 1;
    rig_refused(g, g->ops->conv(g->dev, &r.conv, &r.tx, r.at_w, K_NONE, &y, r.work),
                "impossible shape");
    y = r.ty;
    y.dtype = K_BF16;
    rig_refused(g, g->ops->conv(g->dev, &r.conv, &r.tx, r.at_w, K_NONE, &y, r.work), "float32");
    rig_refused(g, g->ops->conv(g->dev, &r.conv, &r.tx, K_NONE, K_NONE, &r.ty, r.work), "weights");
    rig_refused(g, g->ops->conv(g->dev, &r.conv, &r.tx, r.at_w, K_NONE, &r.ty, g->bytes - 4),
                "work");
    rig_refused(g, g->ops->conv(g->dev, &r.conv, &r.tx, g->bytes, K_NONE, &r.ty, r.work),
                "beyond the arena");
    conv_run_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),         cmocka_unit_test(test_data_gradient),
        cmocka_unit_test(test_weight_gradient), cmocka_unit_test(test_weight_gradient_many_threads),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("kernels_conv", tests, NULL, NULL);
}
