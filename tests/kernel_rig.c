#include "tests/kernel_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void rig_open(rig_t *rig, int threads, uint64_t bytes)
{
    char why[512] = "";
    k_open_t args = {.ordinal = 0, .threads = threads, .deterministic = 1};
    *rig = (rig_t){.ops = k_cpu_ops(), .bytes = bytes, .random = 0x9e3779b97f4a7c15u};
    if (rig->ops->open(&args, &rig->dev, why, sizeof why) < 0)
        fail_msg("the device does not open: %s", why);
    rig_ok(rig, rig->ops->reserve(rig->dev, bytes));
    char *poison = malloc(bytes);
    assert_non_null(poison);
    memset(poison, 0xff, bytes);
    rig_ok(rig, rig->ops->upload(rig->dev, K_STREAM_MAIN, 0, poison, bytes));
    free(poison);
}

void rig_close(rig_t *rig)
{
    rig->ops->close(&rig->dev);
    assert_null(rig->dev);
}

void rig_ok(rig_t *rig, int rc)
{
    if (rc != 0)
        fail_msg("the operation returns %d: %s", rc, rig->ops->error(rig->dev));
}

void rig_refused(rig_t *rig, int rc, const char *part)
{
    if (rc >= 0 || !strstr(rig->ops->error(rig->dev), part))
        fail_msg("returned %d with \"%s\", not a refusal with \"%s\"", rc,
                 rig->ops->error(rig->dev), part);
}

k_at rig_bytes(rig_t *rig, uint64_t bytes)
{
    k_at at = rig->used;
    rig->used += (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    if (rig->used > rig->bytes)
        fail_msg("the test's arena of %llu bytes is too small", (unsigned long long)rig->bytes);
    return at;
}

k_tensor_t rig_tensor(rig_t *rig, int32_t n, int32_t h, int32_t w, int32_t c, int32_t before,
                      int32_t after)
{
    k_tensor_t t = {.n = n, .h = h, .w = w, .c = c, .ld = before + c + after, .dtype = K_F32};
    t.at =
        rig_bytes(rig, (uint64_t)n * (uint64_t)h * (uint64_t)w * (uint64_t)t.ld * sizeof(float)) +
        (uint64_t)before * sizeof(float);
    return t;
}

double rig_random(rig_t *rig, double lo, double hi)
{
    uint64_t x = rig->random; /* xorshift64* */
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    rig->random = x;
    return lo + (hi - lo) * (double)((x * 0x2545f4914f6cdd1du) >> 11) / 9007199254740992.0;
}

double *rig_values(rig_t *rig, int64_t count, double lo, double hi)
{
    double *v = malloc((size_t)count * sizeof *v);
    assert_non_null(v);
    for (int64_t i = 0; i < count; i++)
        v[i] = (double)(float)rig_random(rig, lo, hi);
    return v;
}

size_t rig_count(const k_tensor_t *t)
{
    return (size_t)t->n * (size_t)t->h * (size_t)t->w * (size_t)t->c;
}

void rig_put(rig_t *rig, const k_tensor_t *t, const double *values)
{
    float *row = malloc((size_t)t->c * sizeof *row);
    assert_non_null(row);
    int64_t pixels = (int64_t)t->n * t->h * t->w;
    for (int64_t i = 0; i < pixels; i++) {
        for (int32_t c = 0; c < t->c; c++)
            row[c] = (float)values[i * t->c + c];
        rig_ok(rig, rig->ops->upload(rig->dev, K_STREAM_MAIN, t->at + (uint64_t)(i * t->ld) * 4,
                                     row, (uint64_t)t->c * 4));
    }
    free(row);
}

double *rig_get(rig_t *rig, const k_tensor_t *t)
{
    float *row = malloc((size_t)t->c * sizeof *row);
    double *values = malloc(rig_count(t) * sizeof *values);
    assert_non_null(row);
    assert_non_null(values);
    int64_t pixels = (int64_t)t->n * t->h * t->w;
    for (int64_t i = 0; i < pixels; i++) {
        rig_ok(rig, rig->ops->download(rig->dev, K_STREAM_MAIN, row,
                                       t->at + (uint64_t)(i * t->ld) * 4, (uint64_t)t->c * 4));
        for (int32_t c = 0; c < t->c; c++)
            values[i * t->c + c] = (double)row[c];
    }
    free(row);
    return values;
}

void rig_put_flat(rig_t *rig, k_at at, const double *values, int64_t count)
{
    k_tensor_t t = {.at = at, .n = 1, .h = 1, .w = 1, .c = (int32_t)count, .ld = (int32_t)count};
    rig_put(rig, &t, values);
}

double *rig_get_flat(rig_t *rig, k_at at, int64_t count)
{
    k_tensor_t t = {.at = at, .n = 1, .h = 1, .w = 1, .c = (int32_t)count, .ld = (int32_t)count};
    return rig_get(rig, &t);
}

void rig_gaps_untouched(rig_t *rig, const k_tensor_t *t)
{
    int32_t gap = t->ld - t->c;
    int64_t pixels = (int64_t)t->n * t->h * t->w;
    for (int64_t i = 0; i + 1 < pixels && gap > 0; i++) {
        uint32_t bits[256];
        assert_true(gap <= 256);
        rig_ok(rig,
               rig->ops->download(rig->dev, K_STREAM_MAIN, bits,
                                  t->at + (uint64_t)(i * t->ld + t->c) * 4, (uint64_t)gap * 4));
        for (int32_t k = 0; k < gap; k++)
            assert_int_equal(bits[k], 0xffffffffu);
    }
}

double rig_difference(const double *got, const double *want, int64_t count)
{
    double top = 0.0, worst = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs(got[i] - want[i]);
        if (!isfinite(d))
            return INFINITY;
        worst = d > worst ? d : worst;
        top = fabs(want[i]) > top ? fabs(want[i]) : top;
    }
    if (worst == 0.0)
        return 0.0;
    return top > 0.0 ? worst / top : INFINITY;
}

void rig_close_to(const char *what, const double *got, const double *want, int64_t count,
                  double limit)
{
    double d = rig_difference(got, want, count);
    if (!(d <= limit))
        fail_msg("%s differs by %g of the largest value; at most %g may be", what, d, limit);
}

void rig_differences(rig_t *rig, const char *what, double (*loss)(void *ctx), void *ctx, double *x,
                     const double *grad, int64_t count, int samples, double step)
{
    double top = 0.0, worst = 0.0;
    for (int64_t i = 0; i < count; i++)
        top = fabs(grad[i]) > top ? fabs(grad[i]) : top;
    for (int s = 0; s < samples && s < count; s++) {
        int64_t i = count <= samples ? s : (int64_t)rig_random(rig, 0.0, (double)count);
        double kept = x[i];
        x[i] = kept + step;
        double up = loss(ctx);
        x[i] = kept - step;
        double down = loss(ctx);
        x[i] = kept;
        double d = fabs((up - down) / (2.0 * step) - grad[i]);
        worst = isfinite(d) ? (d > worst ? d : worst) : INFINITY;
    }
    if (!(worst <= 1e-3 * top))
        fail_msg("%s: central differences are off by %g where the largest gradient is %g", what,
                 worst, top);
}
