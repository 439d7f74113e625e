/* Clip, updates, loss scale and moving average on the GPU: 20 steps of PyTorch with a warm-up's
 * values (golden files), random runs beside the CPU's, and the rules of a loss scale. All float32. */
#include "tests/golden.h"
#include "tests/twin_near.h"
#include "trainer/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARENA = 32 << 20, STEPS = 20, GROUPS = 3, TOTAL_MAX = 512, MANY = (1 << 20) + 3 };
/* One rounding or two from the CPU's: contraction and division differ. */
#define LIMIT 1e-6

/* State in both arenas; the groups lie one behind the other. */
typedef struct {
    twin_t t;
    uint64_t count;
    k_at w, g, m, v, ema, hyper, norm;
} state_t;

static uint64_t padded(uint64_t count)
{
    return (count + 3) / 4 * 4;
}

/* Zeros but for the norm's place, which a step finds unwritten and the scale 1. */
static void state_open(state_t *s, uint64_t count)
{
    *s = (state_t){.count = count};
    twin_open(&s->t, K_F32, ARENA);
    const uint64_t bytes = padded(count) * sizeof(float);
    k_at *const places[] = {&s->w, &s->g, &s->m, &s->v, &s->ema};
    void *zero = calloc(1, bytes);
    assert_non_null(zero);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        *places[i] = twin_place(&s->t, bytes);
        twin_put(&s->t, *places[i], zero, bytes);
    }
    free(zero);
    s->hyper = twin_place(&s->t, sizeof(k_hyper_t));
    s->norm = twin_place(&s->t, sizeof(k_scaling_t));
}

static void put_scaling(state_t *s, float norm, float scale, float good, float skipped)
{
    const k_scaling_t k = {.norm = norm, .scale = scale, .good = good, .skipped = skipped};
    twin_put(&s->t, s->norm, &k, sizeof k);
}

static k_scaling_t get_scaling(state_t *s)
{
    k_scaling_t k, *got = twin_bytes_gpu(&s->t, s->norm, sizeof k);
    k = *got;
    free(got);
    return k;
}

static void put_hyper(state_t *s, const k_hyper_t *h)
{
    twin_put(&s->t, s->hyper, h, sizeof *h);
}

/* The CPU knows no loss scale: its hyper-parameters say the same in another way. */
static void put_hyper_cpu(state_t *s, const k_hyper_t *h)
{
    k_dev_t *cpu = s->t.cpu;
    twin_ok(&s->t, 0, cpu->ops->upload(cpu, K_STREAM_MAIN, s->hyper, h, sizeof *h));
}

static void norm_on_both(state_t *s)
{
    k_dev_t *gpu = s->t.gpu, *cpu = s->t.cpu;
    twin_ok(&s->t, gpu->ops->grad_norm(gpu, s->g, s->count, s->hyper, s->norm),
            cpu->ops->grad_norm(cpu, s->g, s->count, s->hyper, s->norm));
}

static int update(state_t *s, k_dev_t *dev, int sgd, uint64_t first, uint64_t count, int group)
{
    const k_at at = first * sizeof(float);
    return sgd ? dev->ops->sgd(dev, s->w + at, s->g + at, s->m + at, count, group, s->hyper,
                               s->norm)
               : dev->ops->adamw(dev, s->w + at, s->g + at, s->m + at, s->v + at, count, group,
                                 s->hyper, s->norm);
}

static void update_both(state_t *s, int sgd, uint64_t first, uint64_t count, int group)
{
    twin_ok(&s->t, update(s, s->t.gpu, sgd, first, count, group),
            update(s, s->t.cpu, sgd, first, count, group));
}

static void ema_both(state_t *s)
{
    k_dev_t *gpu = s->t.gpu, *cpu = s->t.cpu;
    twin_ok(&s->t, gpu->ops->ema(gpu, s->w, s->ema, padded(s->count), s->hyper),
            cpu->ops->ema(cpu, s->w, s->ema, padded(s->count), s->hyper));
}

static void same_state(state_t *s)
{
    const int64_t n = (int64_t)s->count;
    twin_near_floats(&s->t, "weights", s->w, n, LIMIT);
    twin_near_floats(&s->t, "momenta", s->m, n, LIMIT);
    twin_near_floats(&s->t, "second momenta", s->v, n, LIMIT);
    twin_near_floats(&s->t, "average", s->ema, n, LIMIT);
    twin_same_bytes(&s->t, "gradients", s->g, s->count * sizeof(float));
}

/* All gradients are 0: what an update leaves. */
static void gradients_are_zero(state_t *s)
{
    float *g = twin_bytes_gpu(&s->t, s->g, s->count * sizeof *g);
    for (uint64_t i = 0; i < s->count; i++)
        if (g[i] != 0.0f)
            fail_msg("gradient %d is %g after the update", (int)i, (double)g[i]);
    free(g);
}

static k_hyper_t some_hyper(void)
{
    return (k_hyper_t){.lr = {0.01f, 0.02f, 0.05f},
                       .weight_decay = {5e-4f, 0, 1e-3f},
                       .momentum = 0.9f,
                       .beta2 = 0.999f,
                       .eps = 1e-8f,
                       .bias1 = (float)(1 - pow(0.9, 4)),
                       .bias2 = (float)(1 - pow(0.999, 4)),
                       .max_norm = 10,
                       .ema_decay = 0.75f,
                       .grad_scale = 1,
                       .step = 4};
}

/* ---- golden files ---- */

static k_hyper_t golden_hyper(const safetensors_t *f, int t, int sgd)
{
    const float *lr = golden_f32(f, "lr", NULL), *momentum = golden_f32(f, "momentum", NULL);
    const float *decay = golden_f32(f, "decay", NULL);
    k_hyper_t h = {.momentum = sgd ? momentum[t] : 0.9f,
                   .beta2 = 0.999f,
                   .eps = 1e-8f,
                   .max_norm = 10,
                   .grad_scale = 1,
                   .first_step = t == 0,
                   .step = (float)(t + 1)};
    for (int g = 0; g < GROUPS; g++) {
        h.lr[g] = lr[t * GROUPS + g];
        h.weight_decay[g] = decay[g];
    }
    h.bias1 = (float)(1 - pow(0.9, t + 1));
    h.bias2 = (float)(1 - pow(0.999, t + 1));
    h.ema_decay = (float)schedule_ema((uint64_t)t + 1);
    return h;
}

static void golden_step(state_t *s, const safetensors_t *f, int t, int sgd)
{
    const int32_t *sizes = golden_i32(f, "sizes", NULL);
    const float *grads = golden_f32(f, "grads", NULL);
    const k_hyper_t h = golden_hyper(f, t, sgd);
    uint64_t at = 0;
    twin_put(&s->t, s->g, grads + (uint64_t)t * s->count, s->count * sizeof *grads);
    put_hyper(s, &h);
    norm_on_both(s);
    for (int g = 0; g < GROUPS; g++) {
        update_both(s, sgd, at, (uint64_t)sizes[g], g);
        at += (uint64_t)sizes[g];
    }
    ema_both(s);
}

/* Difference of what is at `at` from the golden tensor's row t. */
static double golden_row(state_t *s, k_at at, const safetensors_t *f, const char *kind,
                         const char *what, int t)
{
    char key[24];
    snprintf(key, sizeof key, "%s_%s", kind, what);
    const float *want = golden_f32(f, key, NULL) + (uint64_t)t * s->count;
    float *got = twin_bytes_gpu(&s->t, at, s->count * sizeof *got);
    const double off = golden_difference(got, want, (int64_t)s->count);
    free(got);
    return off;
}

static uint64_t golden_count(void)
{
    int64_t total;
    safetensors_t *f = golden_open("loss_optim");
    golden_f32(f, "start", &total);
    safetensors_free(&f);
    return (uint64_t)total;
}

static void golden_run(const char *kind)
{
    const int sgd = strcmp(kind, "sgd") == 0;
    char key[24];
    golden_worst_t worst = {0};
    state_t s;
    state_open(&s, golden_count()); /* where there is no GPU, nothing is open when it skips */
    safetensors_t *f = golden_open("loss_optim");
    const float *begin = golden_f32(f, "start", NULL);
    put_scaling(&s, NAN, 1, 0, 0);
    twin_put(&s.t, s.w, begin, s.count * sizeof *begin);
    twin_put(&s.t, s.ema, begin, s.count * sizeof *begin);
    snprintf(key, sizeof key, "%s_norm", kind);
    const float *norm = golden_f32(f, key, NULL);
    for (int t = 0; t < STEPS; t++) {
        golden_step(&s, f, t, sgd);
        golden_note(&worst, golden_row(&s, s.w, f, kind, "w", t), "weights");
        golden_note(&worst, golden_row(&s, s.ema, f, kind, "ema", t), "moving average");
        golden_note(&worst, fabs((double)get_scaling(&s).norm / (double)norm[t] - 1), "norm");
        gradients_are_zero(&s);
    }
    golden_say(sgd ? "GPU: SGD, 20 steps" : "GPU: AdamW, 20 steps", &worst, 5e-6);
    twin_close(&s.t);
    safetensors_free(&f);
}

static void test_golden(void **state)
{
    (void)state;
    golden_run("sgd");
    golden_run("adamw");
}

/* ---- beside the CPU ---- */

static void fill(state_t *s)
{
    const int64_t n = (int64_t)s->count;
    twin_fill_floats(&s->t, s->w, n, -1, 1);
    twin_fill_floats(&s->t, s->g, n, -2, 2);
    twin_fill_floats(&s->t, s->m, n, -1, 1);
    twin_fill_floats(&s->t, s->v, n, 0, 1);
    twin_fill_floats(&s->t, s->ema, n, -1, 1);
}

/* Runs of several lengths that begin anywhere, in each group; norms below and above the clip. */
static void test_random(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 3, 64, 1000, 70001};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        state_t s;
        state_open(&s, counts[i]);
        for (int sgd = 0; sgd < 2; sgd++) {
            k_hyper_t h = some_hyper();
            const uint64_t half = counts[i] / 2;
            put_scaling(&s, NAN, 1, 0, 0);
            fill(&s);
            put_hyper(&s, &h);
            norm_on_both(&s);
            twin_near_floats(&s.t, "norm", s.norm, 1, LIMIT);
            update_both(&s, sgd, 0, half, (int)i % GROUPS);
            update_both(&s, sgd, half, counts[i] - half, ((int)i + 1) % GROUPS);
            ema_both(&s);
            same_state(&s);
            gradients_are_zero(&s);
        }
        twin_close(&s.t);
    }
}

/* The norm's sum is in double, and the same bits every time. */
static void test_norm(void **state)
{
    (void)state;
    state_t s;
    state_open(&s, MANY);
    k_hyper_t h = some_hyper();
    float *g = malloc(MANY * sizeof *g);
    assert_non_null(g);
    for (int i = 0; i < MANY; i++)
        g[i] = i == 77 ? 1 : 1e-3f;
    put_hyper(&s, &h);
    put_scaling(&s, NAN, 1, 0, 0);
    twin_put(&s.t, s.g, g, MANY * sizeof *g);
    norm_on_both(&s);
    const float norm = get_scaling(&s).norm;
    assert_float_equal(norm, sqrt(1 + (MANY - 1) * (double)1e-3f * (double)1e-3f), 2e-7);
    twin_fill_floats(&s.t, s.g, MANY, -1, 1);
    norm_on_both(&s);
    const k_scaling_t first = get_scaling(&s);
    norm_on_both(&s);
    const k_scaling_t again = get_scaling(&s);
    assert_memory_equal(&again, &first, sizeof first);
    twin_near_floats(&s.t, "norm", s.norm, 1, LIMIT);
    for (int i = 0; i < MANY; i++)
        g[i] = 1e25f; /* its square is no float */
    twin_put(&s.t, s.g, g, MANY * sizeof *g);
    norm_on_both(&s);
    const double large = (double)get_scaling(&s).norm;
    assert_true(fabs(large / (sqrt(MANY) * (double)1e25f) - 1) < 1e-6);
    free(g);
    twin_close(&s.t);
}

/* ---- loss scale ---- */

/* Gradients that are `scale` times too large give the update of right ones. */
static void test_scaled(void **state)
{
    (void)state;
    for (int sgd = 0; sgd < 2; sgd++) {
        state_t s;
        k_hyper_t h = some_hyper();
        state_open(&s, 5000);
        fill(&s);
        put_scaling(&s, NAN, 1024, 7, 0);
        put_hyper(&s, &h);
        h.grad_scale = 1.0f / 1024;
        put_hyper_cpu(&s, &h);
        norm_on_both(&s);
        twin_near_floats(&s.t, "norm", s.norm, 1, LIMIT);
        update_both(&s, sgd, 0, s.count, 0);
        same_state(&s);
        twin_close(&s.t);
    }
}

/* A norm that is no number, under a scale: weights and momenta stay as they are, gradients go. */
static void test_left_out(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    const k_hyper_t h = some_hyper();
    state_t s;
    state_open(&s, 3000);
    put_hyper(&s, &h);
    for (int i = 0; i < 6; i++) {
        const uint64_t bytes = s.count * sizeof(float);
        fill(&s);
        put_scaling(&s, NAN, 65536, 3, (float)i);
        twin_put(&s.t, s.g + 1234 * sizeof(float), &bad[i % 3], sizeof *bad);
        norm_on_both(&s);
        assert_false(isfinite(get_scaling(&s).norm));
        void *w = twin_bytes_gpu(&s.t, s.w, bytes), *m = twin_bytes_gpu(&s.t, s.m, bytes);
        void *v = twin_bytes_gpu(&s.t, s.v, bytes);
        twin_ok(&s.t, update(&s, s.t.gpu, i / 3, 0, s.count, 0), 0);
        void *w2 = twin_bytes_gpu(&s.t, s.w, bytes), *m2 = twin_bytes_gpu(&s.t, s.m, bytes);
        void *v2 = twin_bytes_gpu(&s.t, s.v, bytes);
        assert_memory_equal(w2, w, bytes);
        assert_memory_equal(m2, m, bytes);
        assert_memory_equal(v2, v, bytes);
        gradients_are_zero(&s);
        free(w), free(m), free(v), free(w2), free(m2), free(v2);
    }
    twin_close(&s.t);
}

/* Without a scale nothing is left out: it shows, as on the CPU. */
static void test_unscaled(void **state)
{
    (void)state;
    const k_hyper_t h = some_hyper();
    const float nan = NAN;
    state_t s;
    state_open(&s, 100);
    put_hyper(&s, &h);
    fill(&s);
    put_scaling(&s, 0, 1, 0, 0);
    twin_put(&s.t, s.g, &nan, sizeof nan);
    norm_on_both(&s);
    update_both(&s, 1, 0, s.count, 0);
    float *w = twin_bytes_gpu(&s.t, s.w, s.count * sizeof *w);
    for (uint64_t i = 0; i < s.count; i++)
        assert_true(isnan(w[i]));
    free(w);
    k_dev_t *gpu = s.t.gpu;
    twin_ok(&s.t, gpu->ops->scale_update(gpu, s.norm), 0);
    const k_scaling_t k = get_scaling(&s);
    assert_true(k.scale == 1 && k.good == 0 && k.skipped == 0);
    twin_close(&s.t);
}

/* After updates that were left out: SGD's first does not read what the buffer held (NaN), AdamW's
 * bias corrections are those of the updates that were made. */
static void test_counts_from_first(void **state)
{
    (void)state;
    state_t s;
    k_hyper_t h = some_hyper();
    state_open(&s, 1000);
    fill(&s);
    float *nan = malloc(s.count * sizeof *nan);
    assert_non_null(nan);
    memset(nan, 0xff, s.count * sizeof *nan);
    twin_put(&s.t, s.m, nan, s.count * sizeof *nan);
    free(nan);
    put_scaling(&s, NAN, 1, 0, 3); /* scale 1: the CPU's */
    put_hyper(&s, &h);             /* step 4 */
    h.first_step = 1;
    put_hyper_cpu(&s, &h);
    norm_on_both(&s);
    update_both(&s, 1, 0, s.count, 0);
    same_state(&s);

    fill(&s);
    h = some_hyper();
    h.step = 9;
    h.bias1 = (float)(1 - pow(0.9, 9));
    h.bias2 = (float)(1 - pow(0.999, 9));
    put_scaling(&s, NAN, 1, 0, 7);
    put_hyper(&s, &h);
    h.bias1 = (float)(1 - pow((double)h.momentum, 2));
    h.bias2 = (float)(1 - pow((double)h.beta2, 2));
    put_hyper_cpu(&s, &h);
    norm_on_both(&s);
    update_both(&s, 0, 0, s.count, 0);
    same_state(&s);
    twin_close(&s.t);
}

/* Halved by a norm that is no number; doubled by 2000 good ones in a row (facts/yolo.md 4.5). */
static void test_scale_update(void **state)
{
    (void)state;
    static const struct {
        k_scaling_t before, after; /* norm, scale, good, skipped */
    } steps[] = {
        {{3.0f, 65536, 0, 0}, {3.0f, 65536, 1, 0}},
        {{0.0f, 65536, 1998, 2}, {0.0f, 65536, 1999, 2}},
        {{1e30f, 65536, 1999, 2}, {1e30f, 131072, 0, 2}},
        {{INFINITY, 65536, 1999, 2}, {INFINITY, 32768, 0, 3}},
        {{3.0f, 1, 0, 0}, {3.0f, 1, 0, 0}},
        {{INFINITY, 1, 0, 0}, {INFINITY, 1, 0, 0}},
    };
    state_t s;
    state_open(&s, 4);
    k_dev_t *gpu = s.t.gpu;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        twin_put(&s.t, s.norm, &steps[i].before, sizeof steps[i].before);
        twin_ok(&s.t, gpu->ops->scale_update(gpu, s.norm), 0);
        const k_scaling_t k = get_scaling(&s);
        assert_memory_equal(&k, &steps[i].after, sizeof k);
    }
    put_scaling(&s, NAN, 4, 10, 0);
    twin_ok(&s.t, gpu->ops->scale_update(gpu, s.norm), 0);
    const k_scaling_t k = get_scaling(&s);
    assert_true(k.scale == 2 && k.good == 0 && k.skipped == 1);
    twin_close(&s.t);
}

/* A recorded update reads the hyper-parameters, gradients and scale that lie there at its replay. */
static void test_replay(void **state)
{
    (void)state;
    state_t s;
    k_hyper_t h = some_hyper();
    state_open(&s, 2048);
    k_dev_t *gpu = s.t.gpu;
    fill(&s);
    put_hyper(&s, &h);
    put_scaling(&s, NAN, 1, 0, 0);
    twin_ok(&s.t, gpu->ops->capture(gpu, 0), 0);
    twin_ok(&s.t, gpu->ops->grad_norm(gpu, s.g, s.count, s.hyper, s.norm), 0);
    twin_ok(&s.t, update(&s, gpu, 0, 0, s.count, 1), 0);
    twin_ok(&s.t, gpu->ops->ema(gpu, s.w, s.ema, s.count, s.hyper), 0);
    twin_ok(&s.t, gpu->ops->scale_update(gpu, s.norm), 0);
    twin_ok(&s.t, gpu->ops->captured(gpu), 0);
    for (int i = 0; i < 2; i++) {
        h.lr[1] *= 0.5f;
        h.ema_decay = 0.25f;
        h.bias1 = (float)(1 - pow(0.9, 5 + i));
        h.bias2 = (float)(1 - pow(0.999, 5 + i));
        h.step = (float)(5 + i);
        put_hyper(&s, &h);
        twin_fill_floats(&s.t, s.g, (int64_t)s.count, -1, 1);
        twin_ok(&s.t, gpu->ops->replay(gpu, 0),
                s.t.cpu->ops->grad_norm(s.t.cpu, s.g, s.count, s.hyper, s.norm));
        twin_ok(&s.t, 0, update(&s, s.t.cpu, 0, 0, s.count, 1));
        twin_ok(&s.t, 0, s.t.cpu->ops->ema(s.t.cpu, s.w, s.ema, s.count, s.hyper));
        same_state(&s);
    }
    twin_close(&s.t);
}

static void test_refusals(void **state)
{
    (void)state;
    state_t s;
    state_open(&s, 64);
    k_dev_t *gpu = s.t.gpu;
    const k_at end = s.t.bytes - 128;
    twin_refused(&s.t, update(&s, gpu, 1, 0, s.count, 3), "group");
    twin_refused(&s.t, update(&s, gpu, 0, 0, s.count, -1), "group");
    twin_refused(&s.t, gpu->ops->sgd(gpu, end, s.g, s.m, 64, 0, s.hyper, s.norm), "w ");
    twin_refused(&s.t, gpu->ops->adamw(gpu, s.w, s.g, s.m, end, 64, 0, s.hyper, s.norm), "v ");
    twin_refused(&s.t, gpu->ops->grad_norm(gpu, end, 64, s.hyper, s.norm), "g ");
    twin_refused(&s.t, gpu->ops->grad_norm(gpu, s.g, 64, K_NONE, s.norm), "hyper");
    twin_refused(&s.t, gpu->ops->ema(gpu, s.w, end, 64, s.hyper), "dst");
    twin_refused(&s.t, gpu->ops->scale_update(gpu, s.t.bytes - 8), "norm");
    twin_close(&s.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_random),
        cmocka_unit_test(test_norm),         cmocka_unit_test(test_scaled),
        cmocka_unit_test(test_left_out),     cmocka_unit_test(test_unscaled),
        cmocka_unit_test(test_replay),       cmocka_unit_test(test_counts_from_first),
        cmocka_unit_test(test_scale_update), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("cuda_optim", tests, NULL, NULL);
}
