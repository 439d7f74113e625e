/* Attention against double precision, forward and backward; slices; more positions than one block
 * of rows. */
#include "tests/kernel_rig.h"
#include "tests/ref_ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    int n, h, w, heads, kd, hd, before, after;
    double range; /* of q, k, v: large ones make one position win */
} att_case_t;

static const att_case_t att_cases[] = {
    {2, 5, 4, 2, 8, 16, 0, 0, 1.0},  {1, 1, 1, 1, 4, 4, 0, 0, 1.0},
    {3, 3, 7, 3, 5, 6, 4, 2, 1.0},   {1, 13, 11, 2, 32, 64, 0, 0, 1.0},
    {1, 9, 8, 1, 16, 32, 0, 3, 8.0},
};

typedef struct {
    ref_attention_t p;
    double *qkv, *dy, *dv, *y, *lse;
    int64_t n_qkv, n_y;
} att_run_t;

/* sum dy * y + dv * v: v's packed copy has a gradient of its own. */
static double att_loss(void *ctx)
{
    att_run_t *r = ctx;
    const ref_attention_t *p = &r->p;
    double sum = 0.0;
    int c = p->heads * (2 * p->kd + p->hd);
    ref_attention(p, r->qkv, r->y, r->lse);
    for (int64_t i = 0; i < r->n_y; i++) {
        int64_t pixel = i / (p->heads * p->hd), k = i % (p->heads * p->hd);
        double v = r->qkv[pixel * c + k / p->hd * (2 * p->kd + p->hd) + 2 * p->kd + k % p->hd];
        sum += r->dy[i] * r->y[i] + r->dv[i] * v;
    }
    return sum;
}

static void one_case(const att_case_t *c, int threads)
{
    rig_t g;
    rig_open(&g, threads, 4 << 20);
    int channels = c->heads * (2 * c->kd + c->hd), out = c->heads * c->hd, positions = c->h * c->w;
    k_tensor_t qkv = rig_tensor(&g, c->n, c->h, c->w, channels, c->before, c->after);
    k_tensor_t y = rig_tensor(&g, c->n, c->h, c->w, out, c->after, c->before), v = y, dy = y,
               dv = y;
    v = rig_tensor(&g, c->n, c->h, c->w, out, c->before, 0);
    dy = rig_tensor(&g, c->n, c->h, c->w, out, 0, c->after);
    dv = rig_tensor(&g, c->n, c->h, c->w, out, c->before, c->after);
    k_tensor_t dqkv = rig_tensor(&g, c->n, c->h, c->w, channels, c->after, c->before);
    int64_t n_lse = (int64_t)c->n * c->heads * positions;
    k_at lse = rig_bytes(&g, (uint64_t)n_lse * 4);
    k_at work = rig_bytes(&g, g.ops->attention_work(g.dev, &qkv, c->heads, c->kd, c->hd));
    att_run_t r = {.p = {c->n, positions, c->heads, c->kd, c->hd},
                   .n_qkv = (int64_t)rig_count(&qkv),
                   .n_y = (int64_t)rig_count(&y)};
    r.qkv = rig_values(&g, r.n_qkv, -c->range, c->range);
    r.dy = rig_values(&g, r.n_y, -1.0, 1.0);
    r.dv = rig_values(&g, r.n_y, -1.0, 1.0);
    r.y = malloc((size_t)r.n_y * sizeof *r.y);
    r.lse = malloc((size_t)n_lse * sizeof *r.lse);
    double *grad = malloc((size_t)r.n_qkv * sizeof *grad);
    rig_put(&g, &qkv, r.qkv);
    rig_put(&g, &dy, r.dy);
    rig_put(&g, &dv, r.dv);
    ref_attention_dx(&r.p, r.qkv, r.dy, r.dv, grad);
    rig_differences(&g, "dqkv", att_loss, &r, r.qkv, grad, r.n_qkv, 5, 1e-4);
    ref_attention(&r.p, r.qkv, r.y, r.lse);
    double *first = NULL;
    for (int i = 0; i < 2; i++) {
        rig_ok(&g, g.ops->attention(g.dev, c->heads, c->kd, c->hd, &qkv, &y, &v, lse, work));
        rig_ok(&g, g.ops->attention_dx(g.dev, c->heads, c->kd, c->hd, &qkv, &y, lse, &dy, &dv,
                                       &dqkv, work));
        double *got_y = rig_get(&g, &y), *got_lse = rig_get_flat(&g, lse, n_lse);
        double *got = rig_get(&g, &dqkv), *got_v = rig_get(&g, &v);
        rig_close_to("y", got_y, r.y, r.n_y, 1e-5);
        rig_close_to("lse", got_lse, r.lse, n_lse, 1e-5);
        rig_close_to("dqkv", got, grad, r.n_qkv, 1e-4);
        for (int64_t k = 0; k < r.n_y; k++)
            assert_true(got_v[k] ==
                        r.qkv[k / out * channels + k % out / c->hd * (2 * c->kd + c->hd) +
                              2 * c->kd + k % out % c->hd]);
        if (first)
            assert_memory_equal(first, got, (size_t)r.n_qkv * sizeof *got);
        free(first);
        first = got;
        free(got_y);
        free(got_lse);
        free(got_v);
    }
    rig_gaps_untouched(&g, &y);
    rig_gaps_untouched(&g, &v);
    rig_gaps_untouched(&g, &dqkv);
    free(first);
    free(r.qkv);
    free(r.dy);
    free(r.dv);
    free(r.y);
    free(r.lse);
    free(grad);
    rig_close(&g);
}

static void test_attention(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof att_cases / sizeof *att_cases; i++)
        for (int threads = 1; threads <= 3; threads++)
            one_case(&att_cases[i], threads);
}

static void test_refusals(void **state)
{
    (void)state;
    rig_t g;
    rig_open(&g, 1, 1 << 20);
    k_tensor_t qkv = rig_tensor(&g, 1, 4, 4, 32, 0, 0), y = rig_tensor(&g, 1, 4, 4, 16, 0, 0),
               v = y;
    k_at lse = rig_bytes(&g, 4096),
         work = rig_bytes(&g, g.ops->attention_work(g.dev, &qkv, 1, 8, 16));
    rig_ok(&g, g.ops->zero(g.dev, 0, 1 << 20));
    v.at = rig_bytes(&g, 4096);
    rig_ok(&g, g.ops->attention(g.dev, 1, 8, 16, &qkv, &y, &v, lse, work));
    rig_refused(&g, g.ops->attention(g.dev, 2, 8, 16, &qkv, &y, &v, lse, work), "qkv");
    rig_refused(&g, g.ops->attention(g.dev, 0, 8, 16, &qkv, &y, &v, lse, work), "heads");
    y.c = 15;
    rig_refused(&g, g.ops->attention(g.dev, 1, 8, 16, &qkv, &y, &v, lse, work), "y is");
    y.c = 16;
    rig_refused(&g, g.ops->attention(g.dev, 1, 8, 16, &qkv, &y, &v, lse, g.bytes - 256), "work");
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("kernels_attention", tests, NULL, NULL);
}
