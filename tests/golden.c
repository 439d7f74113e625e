#include "tests/golden.h"

#include "shm/err.h"
#include "tests/draws.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

safetensors_t *golden_open(const char *name)
{
    const char *root = getenv("SLUICE_TESTS");
    char path[4096];
    safetensors_t *f = NULL;
    snprintf(path, sizeof path, "%s/golden/%s.safetensors", root ? root : "tests", name);
    if (safetensors_load_file(path, &f) < 0)
        fail_msg("%s", err_text());
    return f;
}

const safetensors_entry_t *golden_entry(const safetensors_t *f, const char *name)
{
    const safetensors_entry_t *e = safetensors_find(f, name);
    if (e == NULL)
        fail_msg("golden file has no %s", name);
    return e;
}

static const void *typed(const safetensors_t *f, const char *name, const char *dtype, uint64_t size,
                         int64_t *count)
{
    const safetensors_entry_t *e = golden_entry(f, name);
    assert_string_equal(e->dtype, dtype);
    if (count != NULL)
        *count = (int64_t)(e->bytes / size);
    return e->data;
}

const float *golden_f32(const safetensors_t *f, const char *name, int64_t *count)
{
    return typed(f, name, "F32", sizeof(float), count);
}

const int32_t *golden_i32(const safetensors_t *f, const char *name, int64_t *count)
{
    return typed(f, name, "I32", sizeof(int32_t), count);
}

const double *golden_f64(const safetensors_t *f, const char *name, int64_t *count)
{
    return typed(f, name, "F64", sizeof(double), count);
}

double golden_difference(const float *a, const float *b, int64_t count)
{
    double most = 0, scale = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most))
            most = isnan(d) ? INFINITY : d;
        scale = fmax(scale, fabs((double)b[i]));
    }
    return most / scale;
}

void golden_note(golden_worst_t *w, double difference, const char *name)
{
    if (!(difference >= 0))
        fail_msg("%s is not a number", name);
    if (difference >= w->worst) {
        w->worst = difference;
        snprintf(w->name, sizeof w->name, "%s", name);
    }
}

void golden_say(const char *what, const golden_worst_t *w, double limit)
{
    print_message("golden: %s: %.2g of %.2g allowed (%s)\n", what, w->worst, limit, w->name);
    if (!(w->worst <= limit))
        fail_msg("%s: %s differs by %.3g, more than %.3g", what, w->name, w->worst, limit);
}

enum { PATTERNS = 8, ELEMENTS = 24, SUMMARY = 2 + PATTERNS + ELEMENTS }; /* store.py */

static double compare_summary(const float *want, const char *name, const float *ours,
                              uint64_t count, double floor)
{
    const double norm = fmax((double)want[0], floor), most = fmax((double)want[1], floor);
    double square = 0, dot[PATTERNS] = {0};
    uint32_t key[PATTERNS];
    golden_worst_t w = {0};
    for (uint32_t k = 0; k < PATTERNS; k++) {
        char label[16];
        snprintf(label, sizeof label, "pattern.%u", k);
        key[k] = draws_key(label);
    }
    for (uint64_t i = 0; i < count; i++) {
        square += (double)ours[i] * (double)ours[i];
        for (uint32_t k = 0; k < PATTERNS; k++)
            dot[k] += (double)draws_at(key[k], i) * (double)ours[i];
    }
    golden_note(&w, fabs(sqrt(square) - (double)want[0]) / norm, name);
    /* A projection of independent errors is of the size of their norm. */
    for (uint32_t k = 0; k < PATTERNS; k++)
        golden_note(&w, fabs(dot[k] - (double)want[2 + k]) / norm, name);
    for (uint64_t k = 0; k < ELEMENTS; k++) {
        double apart = (double)ours[k * count / ELEMENTS] - (double)want[2 + PATTERNS + k];
        golden_note(&w, fabs(apart) / most, name);
    }
    return w.worst;
}

static const safetensors_entry_t *entry_or_summary(const safetensors_t *f, const char *name,
                                                   int *summary)
{
    char full[160];
    const safetensors_entry_t *e = safetensors_find(f, name);
    snprintf(full, sizeof full, "summary.%s", name);
    *summary = e == NULL;
    return e ? e : golden_entry(f, full);
}

double golden_compare(const safetensors_t *f, const char *name, const float *ours, uint64_t count,
                      double floor)
{
    int summary;
    const safetensors_entry_t *e = entry_or_summary(f, name, &summary);
    int64_t room;
    const float *want = golden_f32(f, e->name, &room);
    golden_worst_t w = {0};
    if (summary) {
        assert_int_equal(room, SUMMARY);
        return compare_summary(want, name, ours, count, floor);
    }
    assert_int_equal(room, count);
    const double scale = fmax(golden_largest(f, name), floor);
    for (int64_t i = 0; i < room; i++)
        golden_note(&w, fabs((double)ours[i] - (double)want[i]) / scale, name);
    return w.worst;
}

double golden_largest(const safetensors_t *f, const char *name)
{
    int summary;
    int64_t count;
    const safetensors_entry_t *e = entry_or_summary(f, name, &summary);
    const float *v = golden_f32(f, e->name, &count);
    double most = 1e-30;
    if (summary)
        return (double)v[1];
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)v[i]));
    return most;
}

void golden_dev_open(golden_dev_t *d, int threads, uint64_t bytes)
{
    k_open_t args = {.threads = threads, .deterministic = 1};
    char why[256] = "";
    memset(d, 0, sizeof *d);
    d->ops = k_cpu_ops();
    if (d->ops->open(&args, &d->dev, why, sizeof why) < 0)
        fail_msg("%s", why);
    assert_int_equal(d->ops->reserve(d->dev, bytes), 0);
    d->bytes = bytes;
    void *nan = malloc(bytes);
    assert_non_null(nan);
    memset(nan, 0xff, bytes); /* all bits set is a NaN */
    assert_int_equal(d->ops->upload(d->dev, K_STREAM_MAIN, 0, nan, bytes), 0);
    free(nan);
}

void golden_dev_close(golden_dev_t *d)
{
    d->ops->close(&d->dev);
}

k_at golden_take(golden_dev_t *d, uint64_t bytes)
{
    k_at at = d->used;
    d->used += (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN + K_ALIGN;
    assert_true(d->used <= d->bytes);
    return at;
}

k_at golden_put(golden_dev_t *d, const void *host, uint64_t bytes)
{
    k_at at = golden_take(d, bytes);
    assert_int_equal(d->ops->upload(d->dev, K_STREAM_MAIN, at, host, bytes), 0);
    return at;
}

void golden_get(golden_dev_t *d, void *host, k_at at, uint64_t bytes)
{
    assert_int_equal(d->ops->download(d->dev, K_STREAM_MAIN, host, at, bytes), 0);
}

k_tensor_t golden_tensor(golden_dev_t *d, const safetensors_entry_t *e, int fill)
{
    assert_int_equal(e->ndim, 4);
    k_tensor_t t = {.n = (int32_t)e->shape[0],
                    .h = (int32_t)e->shape[1],
                    .w = (int32_t)e->shape[2],
                    .c = (int32_t)e->shape[3],
                    .ld = (int32_t)e->shape[3],
                    .dtype = K_F32};
    t.at = fill ? golden_put(d, e->data, e->bytes) : golden_take(d, e->bytes);
    return t;
}
