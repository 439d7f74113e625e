/* Attention on the GPU beside the CPU's, forward and backward, in each format. Gradients of q, k and
 * v are compared apart: v's is much larger and would hide the others. */
#include "tests/twin_near.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ARENA = 24 << 20, SANITIZED = 300 /* most positions there */ };

typedef struct {
    int n, h, w, heads, kd, hd, before, after;
    double range; /* of q, k, v: large ones make few positions win */
} att_case_t;

/* Positions below, at and beyond whole tiles of 32 and 64; heads as wide as the kernels are made for
 * and narrower; slices that begin at 16 bytes and elsewhere. */
static const att_case_t att_cases[] = {
    {2, 5, 4, 2, 8, 16, 0, 0, 1.0},    {1, 1, 1, 1, 8, 8, 0, 0, 1.0},
    {3, 3, 7, 3, 24, 40, 8, 16, 1.0},  {2, 13, 11, 2, 32, 64, 0, 0, 1.0},
    {1, 9, 8, 1, 16, 32, 3, 1, 4.0},   {2, 8, 8, 2, 32, 64, 0, 0, 2.0},
    {1, 5, 13, 4, 32, 64, 64, 0, 1.0}, {1, 13, 11, 1, 64, 128, 0, 0, 1.0},
    {2, 11, 7, 2, 48, 96, 0, 8, 1.0},  {2, 9, 9, 1, 32, 64, 1, 0, 1.0},
    {1, 12, 11, 2, 40, 64, 5, 2, 2.0}, {2, 33, 31, 2, 32, 64, 8, 8, 1.0},
    {1, 64, 64, 1, 32, 64, 0, 0, 2.0},
};

static k_dtype_t format;

typedef struct {
    att_case_t c;
    twin_t *t;
    twin_tensor_t qkv, y, v, dy, dv, dqkv;
    k_at lse, work;
    int64_t rows;
} att_run_t;

static void att_run_init(att_run_t *r, const att_case_t *c, twin_t *t)
{
    *r = (att_run_t){.c = *c, .t = t, .rows = (int64_t)c->n * c->heads * c->h * c->w};
    const int channels = c->heads * (2 * c->kd + c->hd), out = c->heads * c->hd;
    t->used = 0;
    r->qkv = twin_tensor(t, c->n, c->h, c->w, channels, c->before, c->after);
    r->y = twin_tensor(t, c->n, c->h, c->w, out, c->after, c->before);
    r->v = twin_tensor(t, c->n, c->h, c->w, out, c->before, 0);
    r->dy = twin_tensor(t, c->n, c->h, c->w, out, 0, c->after);
    r->dv = twin_tensor(t, c->n, c->h, c->w, out, c->before, c->after);
    r->dqkv = twin_tensor(t, c->n, c->h, c->w, channels, c->after, c->before);
    r->lse = twin_place(t, (uint64_t)r->rows * sizeof(float));
    const uint64_t gpu = t->gpu->ops->attention_work(t->gpu, &r->qkv.gpu, c->heads, c->kd, c->hd);
    const uint64_t cpu = t->cpu->ops->attention_work(t->cpu, &r->qkv.cpu, c->heads, c->kd, c->hd);
    r->work = twin_place(t, gpu > cpu ? gpu : cpu);
    uint8_t *poison = malloc(t->used);
    assert_non_null(poison);
    for (uint64_t i = 0; i < t->used; i++)
        poison[i] = 0xff;
    twin_put(t, 0, poison, t->used);
    free(poison);
    twin_fill(t, &r->qkv, -c->range, c->range);
    twin_fill(t, &r->dy, -1.0, 1.0);
    twin_fill(t, &r->dv, -1.0, 1.0);
}

static int forward_on(const att_run_t *r, k_dev_t *dev, int gpu)
{
    const att_case_t *c = &r->c;
    return gpu ? dev->ops->attention(dev, c->heads, c->kd, c->hd, &r->qkv.gpu, &r->y.gpu, &r->v.gpu,
                                     r->lse, r->work)
               : dev->ops->attention(dev, c->heads, c->kd, c->hd, &r->qkv.cpu, &r->y.cpu, &r->v.cpu,
                                     r->lse, r->work);
}

static int backward_on(const att_run_t *r, k_dev_t *dev, int gpu)
{
    const att_case_t *c = &r->c;
    return gpu ? dev->ops->attention_dx(dev, c->heads, c->kd, c->hd, &r->qkv.gpu, &r->y.gpu, r->lse,
                                        &r->dy.gpu, &r->dv.gpu, &r->dqkv.gpu, r->work)
               : dev->ops->attention_dx(dev, c->heads, c->kd, c->hd, &r->qkv.cpu, &r->y.cpu, r->lse,
                                        &r->dy.cpu, &r->dv.cpu, &r->dqkv.cpu, r->work);
}

/* `count` channels of a tensor from channel `first` on, in both. */
static twin_tensor_t channels_of(const twin_tensor_t *x, int first, int count)
{
    twin_tensor_t part = *x;
    part.gpu.at += (uint64_t)first * (x->gpu.dtype == K_F32 ? 4 : 2);
    part.cpu.at += (uint64_t)first * 4;
    part.gpu.c = part.cpu.c = count;
    return part;
}

/* No value is larger than `limit`. */
static void is_small(const att_run_t *r, const char *what, const twin_tensor_t *x, double limit)
{
    float *got = twin_get_gpu(r->t, x);
    for (int64_t i = 0; i < (int64_t)x->gpu.n * x->gpu.h * x->gpu.w * x->gpu.c; i++)
        if (!(fabs((double)got[i]) <= limit))
            fail_msg("%s: value %lld is %g, above %g", what, (long long)i, (double)got[i], limit);
    free(got);
}

static void check_gradients(const att_run_t *r)
{
    const att_case_t *c = &r->c;
    for (int head = 0; head < c->heads; head++) {
        const char *names[] = {"dq", "dk", "dv"};
        for (int i = 0; i < 3; i++) {
            char what[80];
            snprintf(what, sizeof what, "%s of head %d, %d x %d, %d + %d", names[i], head, c->h,
                     c->w, c->kd, c->hd);
            twin_tensor_t part = channels_of(&r->dqkv, head * (2 * c->kd + c->hd) + i * c->kd,
                                             i < 2 ? c->kd : c->hd);
            /* A lone position has all the attention, whatever q and k are: rounding alone. */
            if (i < 2 && c->h * c->w == 1)
                is_small(r, what, &part, 1e-5);
            else
                twin_same(r->t, what, &part, format == K_F32 ? 0.0 : 0.999);
        }
    }
    twin_gaps_untouched(r->t, &r->dqkv);
}

static void one_case(const att_run_t *r)
{
    twin_t *t = r->t;
    const size_t bytes = (size_t)r->qkv.gpu.n * (size_t)r->qkv.gpu.h * (size_t)r->qkv.gpu.w *
                         (size_t)r->qkv.gpu.c * sizeof(float);
    int on_gpu = forward_on(r, t->gpu, 1);
    twin_ok(t, on_gpu, forward_on(r, t->cpu, 0));
    twin_same(t, "y", &r->y, format == K_F32 ? 0.0 : 0.999);
    twin_near(t, "copy of v", &r->v, 0.0);
    twin_near_floats(t, "lse", r->lse, r->rows, 1e-5);
    twin_gaps_untouched(t, &r->y);
    on_gpu = backward_on(r, t->gpu, 1);
    twin_ok(t, on_gpu, backward_on(r, t->cpu, 0));
    check_gradients(r);
    float *first = twin_get_gpu(t, &r->dqkv);
    twin_ok(t, backward_on(r, t->gpu, 1), 0);
    float *again = twin_get_gpu(t, &r->dqkv);
    assert_memory_equal(first, again, bytes);
    free(first);
    free(again);
}

static void test_attention(void **state)
{
    (void)state;
    const int sanitized = getenv("SLUICE_TEST_SANITIZE") != NULL;
    twin_t t;
    twin_open(&t, format, ARENA);
    for (size_t i = 0; i < sizeof att_cases / sizeof *att_cases; i++) {
        att_run_t r;
        if (sanitized && att_cases[i].h * att_cases[i].w > SANITIZED)
            continue;
        att_run_init(&r, &att_cases[i], &t);
        one_case(&r);
    }
    twin_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, format, ARENA);
    att_run_t r;
    att_run_init(&r, &att_cases[0], &t);
    k_dev_t *dev = t.gpu;
    twin_ok(&t, forward_on(&r, dev, 1), 0);
    r.c.heads = 3;
    twin_refused(&t, forward_on(&r, dev, 1), "qkv");
    r.c.heads = 0;
    twin_refused(&t, forward_on(&r, dev, 1), "heads");
    r.c = att_cases[0];
    r.c.kd = 12;
    r.c.hd = 8;
    twin_refused(&t, forward_on(&r, dev, 1), "multiples of 8");
    r.c = att_cases[0];
    r.y.gpu.c--;
    twin_refused(&t, forward_on(&r, dev, 1), "y is");
    r.y.gpu.c++;
    r.dv.gpu.w--;
    twin_refused(&t, backward_on(&r, dev, 1), "dv is");
    r.dv.gpu.w++;
    r.work = t.bytes - 256 + 4;
    twin_refused(&t, backward_on(&r, dev, 1), "work");
    twin_close(&t);
}

/* The same tests for each format. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_refusals),
    };
    static const char *const names[] = {"cuda_attention float32", "cuda_attention bfloat16",
                                        "cuda_attention float16"};
    int failed = 0;
    for (format = K_F32; format <= K_F16; format++)
        failed += cmocka_run_group_tests_name(names[format], tests, NULL, NULL);
    return failed;
}
