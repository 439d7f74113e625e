/* Clip, SGD, AdamW and the moving average against 20 steps of PyTorch with a warm-up's values. */
#include "tests/golden.h"
#include "trainer/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ARENA = 1 << 20, STEPS = 20, GROUPS = 3, TOTAL_MAX = 512 };

/* State in the arena. The groups lie one behind the other, as in the trainer. */
typedef struct {
    golden_dev_t d;
    k_at w, g, m, v, ema, hyper, norm;
} state_t;

static void start(state_t *s, const float *w, int64_t total, int threads)
{
    uint64_t bytes = (uint64_t)total * sizeof(float);
    float zero[TOTAL_MAX] = {0};
    golden_dev_open(&s->d, threads, ARENA);
    s->w = golden_put(&s->d, w, bytes);
    s->ema = golden_put(&s->d, w, bytes);
    s->g = golden_put(&s->d, zero, bytes);
    s->m = golden_put(&s->d, zero, bytes);
    s->v = golden_put(&s->d, zero, bytes);
    s->hyper = golden_take(&s->d, sizeof(k_hyper_t));
    s->norm = golden_take(&s->d, sizeof(float));
}

static k_hyper_t hyper_at(const safetensors_t *f, int t, int sgd)
{
    const float *lr = golden_f32(f, "lr", NULL), *momentum = golden_f32(f, "momentum", NULL);
    const float *decay = golden_f32(f, "decay", NULL);
    k_hyper_t h = {.momentum = sgd ? momentum[t] : 0.9f,
                   .beta2 = 0.999f,
                   .eps = 1e-8f,
                   .max_norm = 10,
                   .grad_scale = 1,
                   .first_step = t == 0};
    for (int g = 0; g < GROUPS; g++) {
        h.lr[g] = lr[t * GROUPS + g];
        h.weight_decay[g] = decay[g];
    }
    h.bias1 = (float)(1 - pow(0.9, t + 1));
    h.bias2 = (float)(1 - pow(0.999, t + 1));
    h.ema_decay = (float)schedule_ema((uint64_t)t + 1);
    return h;
}

static void step(state_t *s, const int32_t *sizes, const float *grad, int64_t total, k_hyper_t h,
                 int sgd)
{
    const k_ops_t *ops = s->d.ops;
    k_dev_t *dev = s->d.dev;
    uint64_t at = 0;
    assert_int_equal(ops->upload(dev, K_STREAM_MAIN, s->g, grad, (uint64_t)total * sizeof *grad),
                     0);
    assert_int_equal(ops->upload(dev, K_STREAM_MAIN, s->hyper, &h, sizeof h), 0);
    assert_int_equal(ops->grad_norm(dev, s->g, (uint64_t)total, s->hyper, s->norm), 0);
    for (int g = 0; g < GROUPS; g++) {
        uint64_t o = at * sizeof(float), n = (uint64_t)sizes[g];
        int rc =
            sgd ? ops->sgd(dev, s->w + o, s->g + o, s->m + o, n, g, s->hyper, s->norm)
                : ops->adamw(dev, s->w + o, s->g + o, s->m + o, s->v + o, n, g, s->hyper, s->norm);
        assert_int_equal(rc, 0);
        at += n;
    }
    assert_int_equal(ops->ema(dev, s->w, s->ema, (uint64_t)total, s->hyper), 0);
}

static void check(const char *kind, int threads)
{
    safetensors_t *f = golden_open("loss_optim");
    char key[16];
    int64_t total;
    const float *begin = golden_f32(f, "start", &total), *grads = golden_f32(f, "grads", NULL);
    const int32_t *sizes = golden_i32(f, "sizes", NULL);
    snprintf(key, sizeof key, "%s_w", kind);
    const float *w = golden_f32(f, key, NULL);
    snprintf(key, sizeof key, "%s_ema", kind);
    const float *ema = golden_f32(f, key, NULL);
    snprintf(key, sizeof key, "%s_norm", kind);
    const float *norm = golden_f32(f, key, NULL);
    int sgd = strcmp(kind, "sgd") == 0;
    double dw = 0, de = 0, dn = 0;
    state_t s;
    assert_true(total <= TOTAL_MAX);
    start(&s, begin, total, threads);
    for (int t = 0; t < STEPS; t++) {
        float got[TOTAL_MAX], n;
        step(&s, sizes, grads + t * total, total, hyper_at(f, t, sgd), sgd);
        golden_get(&s.d, got, s.w, (uint64_t)total * sizeof *got);
        dw = fmax(dw, golden_difference(got, w + t * total, total));
        golden_get(&s.d, got, s.ema, (uint64_t)total * sizeof *got);
        de = fmax(de, golden_difference(got, ema + t * total, total));
        golden_get(&s.d, got, s.g, (uint64_t)total * sizeof *got);
        for (int64_t i = 0; i < total; i++)
            assert_float_equal(got[i], 0, 0); /* the update leaves g = 0 */
        golden_get(&s.d, &n, s.norm, sizeof n);
        dn = fmax(dn, fabs((double)n / (double)norm[t] - 1));
    }
    golden_worst_t worst = {.worst = 0};
    golden_note(&worst, dw, "weights");
    golden_note(&worst, de, "moving average");
    golden_note(&worst, dn, "norm");
    golden_say(sgd ? "SGD, 20 steps" : "AdamW, 20 steps", &worst, 5e-6);
    golden_dev_close(&s.d);
    safetensors_free(&f);
}

static void test_sgd(void **state)
{
    (void)state;
    check("sgd", 1);
    check("sgd", 3);
}

static void test_adamw(void **state)
{
    (void)state;
    check("adamw", 1);
    check("adamw", 3);
}

/* Gradients scaled by grad_scale give the update of unscaled ones: the norm is of the unscaled. */
static void test_grad_scale(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("loss_optim");
    int64_t total;
    const float *begin = golden_f32(f, "start", &total), *grads = golden_f32(f, "grads", NULL);
    const int32_t *sizes = golden_i32(f, "sizes", NULL);
    float plain[TOTAL_MAX], scaled[TOTAL_MAX], large[TOTAL_MAX], norm[2];
    for (int64_t i = 0; i < total; i++)
        large[i] = grads[2 * total + i] * 1024;
    k_hyper_t h = hyper_at(f, 5, 1);
    h.first_step = 1; /* of these two states */
    state_t a, b;
    start(&a, begin, total, 1);
    step(&a, sizes, grads + 2 * total, total, h, 1);
    golden_get(&a.d, plain, a.w, (uint64_t)total * sizeof *plain);
    golden_get(&a.d, &norm[0], a.norm, sizeof norm[0]);
    h.grad_scale = 1.0f / 1024;
    start(&b, begin, total, 1);
    step(&b, sizes, large, total, h, 1);
    golden_get(&b.d, scaled, b.w, (uint64_t)total * sizeof *scaled);
    golden_get(&b.d, &norm[1], b.norm, sizeof norm[1]);
    assert_true(norm[0] > 10); /* the clip is in play */
    assert_float_equal(norm[1] / norm[0], 1, 1e-6);
    assert_true(golden_difference(scaled, plain, total) < 1e-6);
    golden_dev_close(&a.d);
    golden_dev_close(&b.d);
    safetensors_free(&f);
}

/* The first SGD step does not read what the momentum buffer held (here NaN). */
static void test_first_step(void **state)
{
    (void)state;
    golden_dev_t d;
    golden_dev_open(&d, 1, ARENA);
    float w = 1, g = 0.5f, m, norm = 0.5f;
    k_hyper_t h = {
        .lr = {0.1f, 0, 0}, .momentum = 0.9f, .max_norm = 10, .grad_scale = 1, .first_step = 1};
    k_at at_w = golden_put(&d, &w, sizeof w), at_g = golden_put(&d, &g, sizeof g);
    k_at at_m = golden_take(&d, sizeof m), at_h = golden_put(&d, &h, sizeof h);
    k_at at_n = golden_put(&d, &norm, sizeof norm);
    assert_int_equal(d.ops->sgd(d.dev, at_w, at_g, at_m, 1, 0, at_h, at_n), 0);
    golden_get(&d, &w, at_w, sizeof w);
    golden_get(&d, &m, at_m, sizeof m);
    assert_float_equal(m, 0.5, 1e-7);
    assert_float_equal(w, 1 - 0.1 * (0.5 + 0.9 * 0.5), 1e-6);
    assert_int_equal(d.ops->sgd(d.dev, at_w, at_g, at_m, 1, 3, at_h, at_n), -1);
    golden_dev_close(&d);
}

/* The norm's sum is in double: 2^20 gradients of 1e-3 and one of 1, any number of threads, the same
 * bits. */
static void test_norm(void **state)
{
    (void)state;
    enum { N = (1 << 20) + 3 };
    float *g = malloc(N * sizeof *g), first = 0;
    for (int i = 0; i < N; i++)
        g[i] = i == 77 ? 1 : 1e-3f;
    for (int threads = 1; threads <= 3; threads++) {
        golden_dev_t d;
        float norm;
        k_hyper_t h = {.grad_scale = 1};
        golden_dev_open(&d, threads, 8 << 20);
        k_at at_g = golden_put(&d, g, N * sizeof *g), at_h = golden_put(&d, &h, sizeof h);
        k_at at_n = golden_take(&d, sizeof norm);
        assert_int_equal(d.ops->grad_norm(d.dev, at_g, N, at_h, at_n), 0);
        golden_get(&d, &norm, at_n, sizeof norm);
        assert_float_equal(norm, sqrt(1 + (N - 1) * (double)1e-3f * (double)1e-3f), 2e-7);
        if (threads == 1)
            first = norm;
        assert_memory_equal(&norm, &first, sizeof norm);
        golden_dev_close(&d);
    }
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_grad_scale), cmocka_unit_test(test_first_step),
        cmocka_unit_test(test_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
