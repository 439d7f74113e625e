/* Batch normalisation, activation and residual against double precision; the exponential's
 * accuracy. */
#include "kernels/cpu/vexp.h"
#include "tests/kernel_rig.h"
#include "tests/ref_ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double eps = (double)1e-3f;

typedef struct {
    int n, h, w, c, before, after, silu, residual;
    double offset; /* added to every x: a mean far from 0 */
} bn_case_t;

static const bn_case_t bn_cases[] = {
    {2, 5, 7, 16, 0, 0, 1, 0, 0.0},   {1, 3, 3, 8, 0, 0, 1, 1, 0.0},
    {2, 5, 7, 16, 16, 0, 1, 1, 0.0},  {3, 9, 11, 80, 0, 0, 0, 0, 0.0},
    {1, 2, 1, 5, 3, 2, 1, 0, 0.0},    {1, 4, 4, 3, 0, 0, 0, 1, 0.0},
    {4, 33, 31, 8, 0, 0, 1, 0, 0.0},  {2, 31, 30, 64, 0, 64, 1, 1, 0.0},
    {2, 16, 16, 24, 0, 0, 1, 0, 5.0}, {1, 1, 7, 129, 0, 0, 1, 1, 0.0},
    {4, 33, 31, 8, 0, 0, 0, 0, 25.0},
};

typedef struct {
    bn_case_t c;
    rig_t rig;
    k_bn_t p;
    k_tensor_t tx, tr, ty, tdy, tdx;
    double *x, *r, *dy, *y, *gamma, *beta;
    int64_t pixels, count;
    k_act_t act;
} bn_run_t;

static void bn_run_init(bn_run_t *r, const bn_case_t *c, int threads)
{
    *r = (bn_run_t){.c = *c, .act = c->silu ? K_ACT_SILU : K_ACT_NONE};
    rig_t *g = &r->rig;
    rig_open(g, threads, 16 << 20);
    r->tx = rig_tensor(g, c->n, c->h, c->w, c->c, c->before, c->after);
    r->tr = rig_tensor(g, c->n, c->h, c->w, c->c, c->after, c->before);
    r->ty = rig_tensor(g, c->n, c->h, c->w, c->c, c->before, c->after);
    r->tdy = rig_tensor(g, c->n, c->h, c->w, c->c, c->after, c->before);
    r->tdx = rig_tensor(g, c->n, c->h, c->w, c->c, c->before, c->after);
    r->count = (int64_t)rig_count(&r->tx);
    r->pixels = r->count / c->c;
    r->x = rig_values(g, r->count, -2.0 + c->offset, 2.0 + c->offset);
    r->r = rig_values(g, r->count, -1.0, 1.0);
    r->dy = rig_values(g, r->count, -1.0, 1.0);
    r->gamma = rig_values(g, c->c, 0.5, 1.5);
    r->beta = rig_values(g, c->c, -1.0, 1.0);
    r->y = malloc((size_t)r->count * sizeof *r->y);
    uint64_t bytes = (uint64_t)c->c * 4;
    k_at *const places[] = {&r->p.gamma, &r->p.beta,   &r->p.running_mean, &r->p.running_var,
                            &r->p.mean,  &r->p.invstd, &r->p.dgamma,       &r->p.dbeta};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        *places[i] = rig_bytes(g, bytes);
    r->p.stats = rig_bytes(g, bytes * 4);
    r->p.bwd_stats = rig_bytes(g, bytes * 4);
    r->p.eps = 1e-3f;
    r->p.momentum = 0.03f;
    rig_put(g, &r->tx, r->x);
    rig_put(g, &r->tr, r->r);
    rig_put(g, &r->tdy, r->dy);
    rig_put_flat(g, r->p.gamma, r->gamma, c->c);
    rig_put_flat(g, r->p.beta, r->beta, c->c);
}

static void bn_run_fini(bn_run_t *r)
{
    rig_close(&r->rig);
    free(r->x);
    free(r->r);
    free(r->dy);
    free(r->y);
    free(r->gamma);
    free(r->beta);
}

static void run_forward(bn_run_t *r)
{
    rig_t *g = &r->rig;
    rig_ok(g, g->ops->bn_stats(g->dev, &r->p, &r->tx));
    rig_ok(g, g->ops->bn_finish(g->dev, &r->p, r->c.c, (uint64_t)r->pixels));
    rig_ok(g, g->ops->bn_apply(g->dev, &r->p, &r->tx, r->c.residual ? &r->tr : NULL, &r->ty, r->act,
                               0));
}

static void forward(bn_run_t *r)
{
    rig_t *g = &r->rig;
    int c = r->c.c;
    double *start = rig_values(g, c, 0.5, 1.0), *mean = malloc((size_t)c * sizeof *mean);
    double *var = malloc((size_t)c * sizeof *var);
    rig_put_flat(g, r->p.running_mean, start, c);
    rig_put_flat(g, r->p.running_var, start, c);
    run_forward(r);
    ref_bn(r->pixels, c, r->x, r->gamma, r->beta, eps, r->c.silu, r->c.residual ? r->r : NULL, r->y,
           mean, var);
    double *got = rig_get(g, &r->ty);
    rig_close_to("y", got, r->y, r->count, 1e-5);
    rig_gaps_untouched(g, &r->ty);
    double unbias = r->pixels > 1 ? (double)r->pixels / (double)(r->pixels - 1) : 1.0,
           m = (double)0.03f;
    for (int k = 0; k < c; k++) {
        mean[k] = (1.0 - m) * start[k] + m * mean[k];
        var[k] = (1.0 - m) * start[k] + m * var[k] * unbias;
    }
    double *got_mean = rig_get_flat(g, r->p.running_mean, c),
           *got_var = rig_get_flat(g, r->p.running_var, c);
    rig_close_to("running mean", got_mean, mean, c, 1e-6);
    rig_close_to("running variance", got_var, var, c, 1e-5);
    run_forward(r);
    double *again = rig_get(g, &r->ty);
    assert_memory_equal(got, again, (size_t)r->count * sizeof *got);
    free(start);
    free(mean);
    free(var);
    free(got);
    free(got_mean);
    free(got_var);
    free(again);
}

/* frozen: from the running statistics, also in place. */
static void inference(bn_run_t *r)
{
    rig_t *g = &r->rig;
    int c = r->c.c;
    double *mean = rig_values(g, c, -1.0, 1.0), *var = rig_values(g, c, 0.1, 2.0);
    rig_put_flat(g, r->p.running_mean, mean, c);
    rig_put_flat(g, r->p.running_var, var, c);
    for (int64_t i = 0; i < r->count; i++) {
        int k = (int)(i % c);
        double z = r->gamma[k] * (r->x[i] - mean[k]) / sqrt(var[k] + eps) + r->beta[k];
        r->y[i] = (r->c.silu ? z / (1.0 + exp(-z)) : z) + (r->c.residual ? r->r[i] : 0.0);
    }
    const k_tensor_t *residual = r->c.residual ? &r->tr : NULL;
    rig_ok(g, g->ops->bn_apply(g->dev, &r->p, &r->tx, residual, &r->ty, r->act, 1));
    rig_ok(g, g->ops->bn_apply(g->dev, &r->p, &r->tx, residual, &r->tx, r->act, 1));
    double *apart = rig_get(g, &r->ty), *in_place = rig_get(g, &r->tx);
    rig_close_to("y in inference", apart, r->y, r->count, 2e-6);
    assert_memory_equal(apart, in_place, (size_t)r->count * sizeof *apart);
    free(mean);
    free(var);
    free(apart);
    free(in_place);
}

static double bn_loss(void *ctx)
{
    bn_run_t *r = ctx;
    double sum = 0.0;
    ref_bn(r->pixels, r->c.c, r->x, r->gamma, r->beta, eps, r->c.silu, NULL, r->y, NULL, NULL);
    for (int64_t i = 0; i < r->count; i++)
        sum += r->dy[i] * r->y[i];
    return sum;
}

static void backward(bn_run_t *r)
{
    rig_t *g = &r->rig;
    int c = r->c.c;
    double *dx = malloc((size_t)r->count * sizeof *dx), *dgamma = malloc((size_t)c * sizeof *dx);
    double *dbeta = malloc((size_t)c * sizeof *dx), *start = rig_values(g, c, -1.0, 1.0);
    ref_bn_bwd(r->pixels, c, r->x, r->gamma, r->beta, eps, r->c.silu, r->dy, dx, dgamma, dbeta);
    rig_differences(g, "dx", bn_loss, r, r->x, dx, r->count, 5, 1e-4);
    rig_differences(g, "dgamma", bn_loss, r, r->gamma, dgamma, c, 3, 1e-4);
    rig_differences(g, "dbeta", bn_loss, r, r->beta, dbeta, c, 3, 1e-4);
    rig_put_flat(g, r->p.running_mean, start, c);
    rig_put_flat(g, r->p.running_var, start, c);
    rig_put_flat(g, r->p.dgamma, start, c);
    rig_put_flat(g, r->p.dbeta, start, c);
    for (int k = 0; k < c; k++) {
        dgamma[k] += start[k];
        dbeta[k] += start[k];
    }
    run_forward(r);
    rig_ok(g, g->ops->bn_bwd_stats(g->dev, &r->p, &r->tx, &r->tdy, r->act));
    rig_ok(g, g->ops->bn_bwd_apply(g->dev, &r->p, &r->tx, &r->tdy, &r->tdx, r->act,
                                   (uint64_t)r->pixels));
    /* In place, as the graph does it. */
    rig_ok(g, g->ops->bn_bwd_apply(g->dev, &r->p, &r->tx, &r->tdy, &r->tdy, r->act,
                                   (uint64_t)r->pixels));
    double *got = rig_get(g, &r->tdx), *in_place = rig_get(g, &r->tdy);
    double *got_gamma = rig_get_flat(g, r->p.dgamma, c), *got_beta = rig_get_flat(g, r->p.dbeta, c);
    /* Two pixels of a channel normalise to +1 and -1 whatever they are: dx there is rounding alone.
     */
    if (r->pixels > 2)
        rig_close_to("dx", got, dx, r->count, 1e-4);
    assert_memory_equal(got, in_place, (size_t)r->count * sizeof *got);
    rig_close_to("dgamma", got_gamma, dgamma, c, 1e-5);
    rig_close_to("dbeta", got_beta, dbeta, c, 1e-5);
    rig_gaps_untouched(g, &r->tdx);
    free(dx);
    free(dgamma);
    free(dbeta);
    free(start);
    free(got);
    free(in_place);
    free(got_gamma);
    free(got_beta);
}

static void each_case(void (*test)(bn_run_t *))
{
    for (size_t i = 0; i < sizeof bn_cases / sizeof *bn_cases; i++) {
        for (int threads = 1; threads <= 3; threads++) {
            bn_run_t r;
            bn_run_init(&r, &bn_cases[i], threads);
            test(&r);
            bn_run_fini(&r);
        }
    }
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

/* Sums of two halves add up to the whole's: what sync_bn relies on. */
static void test_stats_add(void **state)
{
    (void)state;
    const bn_case_t c = {2, 6, 5, 24, 0, 0, 1, 0, 0.0};
    bn_run_t r;
    bn_run_init(&r, &c, 2);
    rig_t *g = &r.rig;
    double sum[48] = {0}, part[48], whole[48];
    k_tensor_t half = r.tx;
    half.n = 1;
    for (int i = 0; i < 2; i++) {
        half.at = r.tx.at + (uint64_t)i * 6 * 5 * 24 * 4;
        rig_ok(g, g->ops->bn_stats(g->dev, &r.p, &half));
        rig_ok(g, g->ops->download(g->dev, K_STREAM_MAIN, part, r.p.stats, sizeof part));
        for (int k = 0; k < 48; k++)
            sum[k] += part[k];
    }
    rig_ok(g, g->ops->bn_stats(g->dev, &r.p, &r.tx));
    rig_ok(g, g->ops->download(g->dev, K_STREAM_MAIN, whole, r.p.stats, sizeof whole));
    rig_close_to("sums", whole, sum, 48, 1e-6);
    bn_run_fini(&r);
}

static void test_refusals(void **state)
{
    (void)state;
    bn_run_t r;
    bn_run_init(&r, &bn_cases[0], 1);
    rig_t *g = &r.rig;
    k_tensor_t y = r.ty;
    y.w--;
    rig_refused(g, g->ops->bn_apply(g->dev, &r.p, &r.tx, NULL, &y, K_ACT_SILU, 0), "shapes differ");
    k_bn_t p = r.p;
    p.stats += 4;
    rig_refused(g, g->ops->bn_stats(g->dev, &p, &r.tx), "aligned to 8");
    p = r.p;
    p.mean = K_NONE;
    rig_refused(g, g->ops->bn_finish(g->dev, &p, 16, 4), "mean");
    rig_refused(g, g->ops->bn_finish(g->dev, &r.p, 16, 0), "impossible");
    rig_refused(g, g->ops->bn_bwd_apply(g->dev, &r.p, &r.tx, &r.tdy, &r.tdx, K_ACT_SILU, 0),
                "count");
    bn_run_fini(&r);
}

/* A mean a thousand times the deviation: the variance must keep its digits (1 / sqrt(var) is in every
 * output). */
static void test_large_mean(void **state)
{
    (void)state;
    const bn_case_t c = {2, 33, 31, 8, 0, 0, 0, 0, 1000.0};
    bn_run_t r;
    bn_run_init(&r, &c, 2);
    rig_t *g = &r.rig;
    double mean[8], var[8], invstd[8];
    rig_ok(g, g->ops->bn_stats(g->dev, &r.p, &r.tx));
    rig_ok(g, g->ops->bn_finish(g->dev, &r.p, c.c, (uint64_t)r.pixels));
    ref_bn(r.pixels, c.c, r.x, r.gamma, r.beta, eps, 0, NULL, r.y, mean, var);
    for (int k = 0; k < c.c; k++)
        invstd[k] = 1.0 / sqrt(var[k] + eps);
    double *got = rig_get_flat(g, r.p.invstd, c.c);
    rig_close_to("1 / deviation", got, invstd, c.c, 1e-5);
    free(got);
    bn_run_fini(&r);
}

static void test_exponential(void **state)
{
    (void)state;
    double worst = 0.0, worst_sigmoid = 0.0;
    for (double x = -86.9; x < 86.9; x += 0.000913) {
        float f = (float)x;
        double e = exp((double)f), s = 1.0 / (1.0 + exp(-(double)f));
        worst = fmax(worst, fabs((double)cpu_expf(f) - e) / e);
        worst_sigmoid = fmax(worst_sigmoid, fabs((double)cpu_sigmoidf(f) - s) / s);
    }
    if (worst > 2e-7 || worst_sigmoid > 5e-7)
        fail_msg("exp is off by %g, sigmoid by %g", worst, worst_sigmoid);
    assert_true(cpu_expf(-INFINITY) > 0.0f && cpu_expf(-INFINITY) < 1e-37f);
    assert_true(isfinite(cpu_expf(INFINITY)));
    assert_true(isnan(cpu_expf(NAN)) && isnan(cpu_siluf(NAN)) && isnan(cpu_silu_slope(NAN)));
    assert_true(fabsf(cpu_siluf(-200.0f)) < 1e-30f && cpu_siluf(200.0f) == 200.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),     cmocka_unit_test(test_inference),
        cmocka_unit_test(test_backward),    cmocka_unit_test(test_stats_add),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_large_mean),
        cmocka_unit_test(test_exponential),
    };
    return cmocka_run_group_tests_name("kernels_bn", tests, NULL, NULL);
}
