/* Batch normalisation on the GPU beside the CPU's: statistics, normalisation with activation and
 * residual, inference, backward; in each format. */
#include "tests/twin_near.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA = 128 << 20, SANITIZED = 1 << 17 }; /* values of a case where a sanitizer looks on */

static k_dtype_t format;

typedef struct {
    int n, h, w, c, before, after, silu, residual;
    double offset; /* added to every x: a mean far from 0 */
    int ranks;     /* counts are for as many times the pixels */
} bn_case_t;

/* Channels that are and are not a whole number of 16 bytes, in slices that begin at 16 bytes and
 * elsewhere, fewer pixels than a block's rows and several rounds of a full grid. */
static const bn_case_t bn_cases[] = {
    {2, 5, 7, 16, 0, 0, 1, 0, 0.0, 1},     {1, 3, 3, 8, 0, 0, 1, 1, 0.0, 1},
    {2, 5, 7, 16, 16, 8, 1, 1, 0.0, 2},    {2, 5, 7, 16, 4, 4, 1, 1, 0.0, 1},
    {3, 9, 11, 80, 0, 0, 0, 0, 0.0, 1},    {1, 2, 1, 5, 3, 2, 1, 0, 0.0, 1},
    {1, 4, 4, 3, 0, 0, 0, 1, 0.0, 2},      {4, 33, 31, 8, 0, 0, 1, 0, 0.0, 1},
    {2, 31, 30, 64, 0, 64, 1, 1, 0.0, 1},  {2, 16, 16, 24, 0, 0, 1, 0, 5.0, 1},
    {1, 1, 7, 129, 0, 0, 1, 1, 0.0, 1},    {1, 9, 7, 300, 0, 20, 1, 0, 0.0, 1},
    {4, 33, 31, 8, 0, 0, 0, 0, 25.0, 1},   {2, 3, 3, 2048, 0, 0, 1, 1, 0.0, 1},
    {2, 160, 150, 32, 0, 0, 1, 1, 0.0, 1}, {2, 40, 40, 576, 64, 0, 1, 0, 0.0, 1},
};

typedef struct {
    bn_case_t c;
    twin_t *t; /* the test's, with this case's places behind those of the cases before */
    k_bn_t p;
    twin_tensor_t x, r, y, dy, dx;
    uint64_t count; /* what statistics are divided by */
    k_act_t act;
} bn_run_t;

static void bn_run_init(bn_run_t *r, const bn_case_t *c, twin_t *t)
{
    *r = (bn_run_t){.c = *c, .t = t, .act = c->silu ? K_ACT_SILU : K_ACT_NONE};
    r->x = twin_tensor(t, c->n, c->h, c->w, c->c, c->before, c->after);
    r->r = twin_tensor(t, c->n, c->h, c->w, c->c, c->after, c->before);
    r->y = twin_tensor(t, c->n, c->h, c->w, c->c, c->before, c->after);
    r->dy = twin_tensor(t, c->n, c->h, c->w, c->c, c->after, c->before);
    r->dx = twin_tensor(t, c->n, c->h, c->w, c->c, c->before, c->after);
    r->count = (uint64_t)(c->n * c->h * c->w * c->ranks);
    const uint64_t bytes = (uint64_t)c->c * sizeof(float);
    k_at *const places[] = {&r->p.gamma, &r->p.beta,   &r->p.running_mean, &r->p.running_var,
                            &r->p.mean,  &r->p.invstd, &r->p.dgamma,       &r->p.dbeta};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        *places[i] = twin_place(t, bytes);
    r->p.stats = twin_place(t, bytes * 4);
    r->p.bwd_stats = twin_place(t, bytes * 4);
    r->p.eps = 1e-3f;
    r->p.momentum = 0.03f;
    twin_fill(t, &r->x, -2.0 + c->offset, 2.0 + c->offset);
    twin_fill(t, &r->r, -1.0, 1.0);
    twin_fill(t, &r->dy, -1.0, 1.0);
    twin_fill_floats(t, r->p.gamma, c->c, 0.5, 1.5);
    twin_fill_floats(t, r->p.beta, c->c, -1.0, 1.0);
    twin_fill_floats(t, r->p.running_mean, c->c, -1.0, 1.0);
    twin_fill_floats(t, r->p.running_var, c->c, 0.1, 2.0);
    twin_fill_floats(t, r->p.dgamma, c->c, -1.0, 1.0);
    twin_fill_floats(t, r->p.dbeta, c->c, -1.0, 1.0);
}

/* An operation on one of the devices; both() runs it on the two. */
typedef int (*bn_op_fn)(bn_run_t *r, k_dev_t *dev, int gpu);

static void both(bn_run_t *r, bn_op_fn op)
{
    int on_gpu = op(r, r->t->gpu, 1);
    twin_ok(r->t, on_gpu, op(r, r->t->cpu, 0));
}

static const k_tensor_t *side(const twin_tensor_t *x, int gpu)
{
    return gpu ? &x->gpu : &x->cpu;
}

static int stats(bn_run_t *r, k_dev_t *dev, int gpu)
{
    return dev->ops->bn_stats(dev, &r->p, side(&r->x, gpu));
}

static int finish(bn_run_t *r, k_dev_t *dev, int gpu)
{
    (void)gpu;
    return dev->ops->bn_finish(dev, &r->p, r->c.c, r->count);
}

static int apply_to(bn_run_t *r, k_dev_t *dev, int gpu, const twin_tensor_t *y, int frozen)
{
    const k_tensor_t *residual = r->c.residual ? side(&r->r, gpu) : NULL;
    return dev->ops->bn_apply(dev, &r->p, side(&r->x, gpu), residual, side(y, gpu), r->act, frozen);
}

static int apply(bn_run_t *r, k_dev_t *dev, int gpu)
{
    return apply_to(r, dev, gpu, &r->y, 0);
}

static int apply_frozen(bn_run_t *r, k_dev_t *dev, int gpu)
{
    return apply_to(r, dev, gpu, &r->y, 1);
}

static int bwd_stats(bn_run_t *r, k_dev_t *dev, int gpu)
{
    return dev->ops->bn_bwd_stats(dev, &r->p, side(&r->x, gpu), side(&r->dy, gpu), r->act);
}

static int bwd_apply(bn_run_t *r, k_dev_t *dev, int gpu)
{
    return dev->ops->bn_bwd_apply(dev, &r->p, side(&r->x, gpu), side(&r->dy, gpu),
                                  side(&r->dx, gpu), r->act, r->count);
}

/* The GPU's values of two tensors are the same to the bit. */
static void same_on_gpu(bn_run_t *r, const twin_tensor_t *a, const twin_tensor_t *b)
{
    size_t bytes =
        (size_t)r->c.n * (size_t)r->c.h * (size_t)r->c.w * (size_t)r->c.c * sizeof(float);
    float *x = twin_get_gpu(r->t, a), *y = twin_get_gpu(r->t, b);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

static void forward(bn_run_t *r)
{
    twin_t *t = r->t;
    const int c = r->c.c;
    const uint64_t square = (uint64_t)c * sizeof(double);
    both(r, stats);
    twin_near_doubles(t, "sums", r->p.stats, c, 1e-5);
    twin_near_doubles(t, "sums of squares", r->p.stats + square, c, 1e-5);
    void *first = twin_bytes_gpu(t, r->p.stats, 2 * square);
    both(r, stats);
    void *again = twin_bytes_gpu(t, r->p.stats, 2 * square);
    assert_memory_equal(first, again, 2 * square);
    both(r, finish);
    twin_near_floats(t, "mean", r->p.mean, c, 1e-5);
    twin_near_floats(t, "1 / deviation", r->p.invstd, c, 1e-5);
    twin_near_floats(t, "running mean", r->p.running_mean, c, 1e-5);
    twin_near_floats(t, "running variance", r->p.running_var, c, 1e-5);
    both(r, apply);
    twin_near(t, "y", &r->y, 2e-5);
    free(first);
    free(again);
}

/* From the running statistics; on the GPU also in place. */
static void inference(bn_run_t *r)
{
    both(r, apply_frozen);
    twin_near(r->t, "y in inference", &r->y, 2e-5);
    twin_ok(r->t, apply_to(r, r->t->gpu, 1, &r->x, 1), 0);
    same_on_gpu(r, &r->y, &r->x);
}

static void backward(bn_run_t *r)
{
    twin_t *t = r->t;
    const int c = r->c.c;
    both(r, stats);
    both(r, finish);
    both(r, bwd_stats);
    twin_near_doubles(t, "sums of dz", r->p.bwd_stats, c, 2e-5);
    twin_near_doubles(t, "sums of dz xhat", r->p.bwd_stats + (uint64_t)c * sizeof(double), c, 2e-5);
    twin_near_floats(t, "dbeta", r->p.dbeta, c, 2e-5);
    twin_near_floats(t, "dgamma", r->p.dgamma, c, 2e-5);
    both(r, bwd_apply);
    /* Two pixels of a channel normalise to +1 and -1 whatever they are: dx there is rounding alone.
     */
    if (r->count > 2)
        twin_near(t, "dx", &r->dx, 2e-5);
    twin_ok(t,
            t->gpu->ops->bn_bwd_apply(t->gpu, &r->p, &r->x.gpu, &r->dy.gpu, &r->dy.gpu, r->act,
                                      r->count),
            0);
    same_on_gpu(r, &r->dx, &r->dy);
}

static void each_case(void (*test)(bn_run_t *))
{
    const int sanitized = getenv("SLUICE_TEST_SANITIZE") != NULL;
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof bn_cases / sizeof *bn_cases; i++) {
        const bn_case_t *c = &bn_cases[i];
        if (sanitized && c->n * c->h * c->w * c->c > SANITIZED)
            continue;
        bn_run_t r;
        bn_run_init(&r, c, &t);
        test(&r);
    }
    twin_close(&t);
}

static void test_forward(void **state)
{
    (void)state;
    each_case(forward);
}

static void test_inference(void **state)
{
    (void)state;
    each_case(inference);
}

static void test_backward(void **state)
{
    (void)state;
    each_case(backward);
}

/* 1 / deviation of a channel of dense values, in double. */
static double spread_of(const float *x, int64_t pixels, int c, int channel, double eps)
{
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < pixels; i++)
        sum += (double)x[i * c + channel];
    for (int64_t i = 0; i < pixels; i++) {
        double d = (double)x[i * c + channel] - sum / (double)pixels;
        squares += d * d;
    }
    return 1.0 / sqrt(squares / (double)pixels + eps);
}

/* A mean a thousand times the deviation: the variance must keep its digits, also where a first pixel
 * is far from all others. Against double precision: the twin keeps fewer. */
static void test_large_mean(void **state)
{
    (void)state;
    const bn_case_t c = {2, 130, 97, 8, 0, 0, 0, 0, 1000.0, 1};
    twin_t t;
    twin_open(&t, format, ARENA);
    for (int odd = 0; odd < 2; odd++) {
        bn_run_t r;
        bn_run_init(&r, &c, &t);
        twin_tensor_t corner = r.x;
        corner.gpu.n = corner.gpu.h = corner.gpu.w = 1;
        corner.cpu.n = corner.cpu.h = corner.cpu.w = 1;
        if (odd)
            twin_fill(&t, &corner, 0.0, 1.0);
        twin_ok(&t, stats(&r, t.gpu, 1), 0);
        twin_ok(&t, finish(&r, t.gpu, 1), 0);
        float *x = twin_get_cpu(&t, &r.x);
        float *invstd = twin_bytes_gpu(&t, r.p.invstd, (uint64_t)c.c * sizeof *invstd);
        for (int k = 0; k < c.c; k++) {
            double want = spread_of(x, (int64_t)r.count, c.c, k, (double)r.p.eps);
            if (!(fabs((double)invstd[k] - want) <= (odd ? 1e-5 : 2e-6) * want))
                fail_msg("1 / deviation of channel %d is %.9g, not %.9g", k, (double)invstd[k],
                         want);
        }
        free(x);
        free(invstd);
    }
    twin_close(&t);
}

/* Sums of two images add up to both: what sync_bn relies on. */
static void test_stats_add(void **state)
{
    (void)state;
    enum { C = 24 };
    const bn_case_t c = {2, 6, 5, C, 0, 0, 1, 0, 0.0, 1};
    twin_t t;
    bn_run_t r;
    twin_open(&t, format, ARENA);
    bn_run_init(&r, &c, &t);
    const size_t bytes = 2 * C * sizeof(double);
    double sum[2 * C] = {0.0};
    k_tensor_t image = r.x.gpu;
    image.n = 1;
    for (int i = 0; i < 2; i++) {
        twin_ok(&t, t.gpu->ops->bn_stats(t.gpu, &r.p, &image), 0);
        double *part = twin_bytes_gpu(&t, r.p.stats, bytes);
        for (int k = 0; k < 2 * C; k++)
            sum[k] += part[k];
        image.at += (uint64_t)(6 * 5 * image.ld) * (image.dtype == K_F32 ? 4 : 2);
        free(part);
    }
    twin_ok(&t, stats(&r, t.gpu, 1), 0);
    double *whole = twin_bytes_gpu(&t, r.p.stats, bytes);
    for (int k = 0; k < 2 * C; k++)
        if (!(fabs(whole[k] - sum[k]) <= 1e-5 * (1.0 + fabs(sum[k]))))
            fail_msg("sum %d is %g whole and %g in two halves", k, whole[k], sum[k]);
    free(whole);
    twin_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    twin_t twin, *t = &twin;
    bn_run_t r;
    twin_open(t, format, ARENA);
    bn_run_init(&r, &bn_cases[0], t);
    const k_ops_t *ops = t->gpu->ops;
    k_tensor_t y = r.y.gpu;
    y.w--;
    twin_refused(t, ops->bn_apply(t->gpu, &r.p, &r.x.gpu, NULL, &y, K_ACT_SILU, 0), "bn_apply");
    k_bn_t p = r.p;
    p.stats += 4;
    twin_refused(t, ops->bn_stats(t->gpu, &p, &r.x.gpu), "stats");
    p = r.p;
    p.mean = K_NONE;
    twin_refused(t, ops->bn_finish(t->gpu, &p, 16, 4), "mean");
    p = r.p;
    p.bwd_stats = K_NONE;
    twin_ok(t, ops->bn_stats(t->gpu, &p, &r.x.gpu), 0);
    twin_refused(t, ops->bn_bwd_stats(t->gpu, &p, &r.x.gpu, &r.dy.gpu, K_ACT_NONE), "bwd_stats");
    twin_refused(t, ops->bn_finish(t->gpu, &r.p, 16, 0), "impossible");
    twin_refused(t, ops->bn_bwd_apply(t->gpu, &r.p, &r.x.gpu, &r.dy.gpu, &r.dx.gpu, K_ACT_SILU, 0),
                 "count");
    twin_close(t);
}

/* The same tests for each format. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),   cmocka_unit_test(test_inference),
        cmocka_unit_test(test_backward),  cmocka_unit_test(test_large_mean),
        cmocka_unit_test(test_stats_add), cmocka_unit_test(test_refusals),
    };
    static const char *const names[] = {"cuda_bn float32", "cuda_bn bfloat16", "cuda_bn float16"};
    int failed = 0;
    for (format = K_F32; format <= K_F16; format++)
        failed += cmocka_run_group_tests_name(names[format], tests, NULL, NULL);
    return failed;
}
