#include "tests/twin.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WAIT_MS = 20000, CPU_THREADS = 2 };

/* float32 to the bits of a half format, to nearest, ties to even. */
static uint16_t to_f16(float v)
{
    const uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs((double)v);
    if (isnan(v))
        return sign | 0x7e00;
    if (a >= 65520.0) /* half way between the largest number and what would be the next */
        return sign | 0x7c00;
    if (a == 0.0)
        return sign;
    int e = ilogb(a);
    e = e < -14 ? -14 : e; /* below, the distance between numbers stays 2^-24 */
    /* A mantissa with its leading one counts one into the exponent's bits; so does a carry. */
    return (uint16_t)(sign | (((unsigned)(e + 14) << 10) + (unsigned)lrint(ldexp(a, 10 - e))));
}

static float from_f16(uint16_t bits)
{
    int e = bits >> 10 & 31, m = bits & 1023;
    double a = e == 31 ? (m ? (double)NAN : (double)INFINITY)
                       : (e == 0 ? ldexp(m, -24) : ldexp(m + 1024, e - 25));
    return (float)(bits & 0x8000 ? -a : a);
}

static uint16_t to_bf16(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    if (isnan(v))
        return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static size_t size_of(k_dtype_t dtype)
{
    return dtype == K_F32 ? sizeof(float) : sizeof(uint16_t);
}

static float element(const void *from, k_dtype_t dtype, int64_t i)
{
    if (dtype == K_F32)
        return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return dtype == K_BF16 ? from_bf16(half) : from_f16(half);
}

static void set_element(void *to, k_dtype_t dtype, int64_t i, float v)
{
    if (dtype == K_F32)
        ((float *)to)[i] = v;
    else
        ((uint16_t *)to)[i] = dtype == K_BF16 ? to_bf16(v) : to_f16(v);
}

static float rounded(k_dtype_t dtype, float v)
{
    return dtype == K_F32 ? v : dtype == K_BF16 ? from_bf16(to_bf16(v)) : from_f16(to_f16(v));
}

static void *room(uint64_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        fail_msg("no memory for %" PRIu64 " bytes", bytes);
    return p;
}

static void dev_ok(k_dev_t *dev, int rc)
{
    if (rc != 0)
        fail_msg("%s: %s", dev->ops->name, dev->ops->error(dev));
}

static void drain(k_dev_t *dev)
{
    int rc = dev->ops->wait(dev, K_STREAM_MAIN, WAIT_MS);
    if (rc > 0)
        fail_msg("%s: not finished after %d ms", dev->ops->name, WAIT_MS);
    dev_ok(dev, rc);
}

static void put(k_dev_t *dev, k_at at, const void *data, uint64_t bytes)
{
    dev_ok(dev, dev->ops->upload(dev, K_STREAM_MAIN, at, data, bytes));
    drain(dev);
}

static void *get(k_dev_t *dev, k_at at, uint64_t bytes)
{
    void *data = room(bytes);
    dev_ok(dev, dev->ops->download(dev, K_STREAM_MAIN, data, at, bytes));
    drain(dev);
    return data;
}

static void reserve_poisoned(k_dev_t *dev, uint64_t bytes)
{
    dev_ok(dev, dev->ops->reserve(dev, bytes));
    void *poison = room(bytes);
    memset(poison, 0xff, bytes); /* NaN in every format */
    put(dev, 0, poison, bytes);
    free(poison);
}

/* The test that calls it is skipped where there is no GPU for it; the reason is said. */
static k_dev_t *open_gpu(k_dtype_t dtype)
{
    char why[1024] = "built without CUDA";
    k_dev_t *gpu = NULL;
    const k_open_t args = {.deterministic = 1, .compute = dtype};
    if (k_cuda_ops && k_cuda_ops()->open(&args, &gpu, why, sizeof why) == 0)
        return gpu;
    print_message("skipped: %s\n", why);
    skip();
    return NULL;
}

void twin_open(twin_t *t, k_dtype_t dtype, uint64_t bytes)
{
    *t = (twin_t){.dtype = dtype, .bytes = bytes, .random = 1};
    t->gpu = open_gpu(dtype);
    char why[1024] = "";
    const k_open_t args = {.threads = CPU_THREADS, .deterministic = 1, .compute = K_F32};
    if (k_cpu_ops()->open(&args, &t->cpu, why, sizeof why) < 0)
        fail_msg("cpu: %s", why);
    reserve_poisoned(t->gpu, bytes);
    reserve_poisoned(t->cpu, bytes);
}

void twin_close(twin_t *t)
{
    if (t->gpu)
        t->gpu->ops->close(&t->gpu);
    if (t->cpu)
        t->cpu->ops->close(&t->cpu);
}

void twin_ok(twin_t *t, int gpu, int cpu)
{
    dev_ok(t->gpu, gpu);
    dev_ok(t->cpu, cpu);
}

void twin_refused(twin_t *t, int gpu, const char *part)
{
    const char *sentence = t->gpu->ops->error(t->gpu);
    if (gpu >= 0)
        fail_msg("accepted (%d) what should be refused with \"%s\"", gpu, part);
    if (!strstr(sentence, part))
        fail_msg("refused with \"%s\", which does not say \"%s\"", sentence, part);
}

k_at twin_place(twin_t *t, uint64_t bytes)
{
    k_at at = t->used;
    uint64_t end = at + (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    if (end > t->bytes)
        fail_msg("the twin's arena is too small: %" PRIu64 " of %" PRIu64 " bytes", end, t->bytes);
    t->used = end;
    return at;
}

twin_tensor_t twin_tensor(twin_t *t, int32_t n, int32_t h, int32_t w, int32_t c, int32_t before,
                          int32_t after)
{
    const k_tensor_t shape = {.n = n, .h = h, .w = w, .c = c, .ld = before + c + after};
    twin_tensor_t x = {.gpu = shape, .cpu = shape, .before = before};
    k_at at =
        twin_place(t, (uint64_t)n * (uint64_t)h * (uint64_t)w * (uint64_t)shape.ld * sizeof(float));
    x.gpu.dtype = t->dtype;
    x.gpu.at = at + (uint64_t)before * size_of(t->dtype);
    x.cpu.dtype = K_F32;
    x.cpu.at = at + (uint64_t)before * sizeof(float);
    return x;
}

double twin_random(twin_t *t, double lo, double hi)
{
    /* splitmix64 (Steele, Lea, Flood 2014): any sequence that is the same in every run would do */
    uint64_t z = t->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return lo + (hi - lo) * ((double)(z >> 11) * 0x1p-53);
}

static int64_t pixels(const k_tensor_t *x)
{
    return (int64_t)x->n * x->h * x->w;
}

/* Bytes from the first to the last element of a tensor, gaps included. */
static uint64_t span(const k_tensor_t *x)
{
    return (uint64_t)((pixels(x) - 1) * x->ld + x->c) * size_of(x->dtype);
}

/* What lies in the gaps stays: another tensor's channels may be there. */
static void put_dense(k_dev_t *dev, const k_tensor_t *x, const float *dense)
{
    void *all = get(dev, x->at, span(x));
    for (int64_t p = 0; p < pixels(x); p++)
        for (int64_t c = 0; c < x->c; c++)
            set_element(all, x->dtype, p * x->ld + c, dense[p * x->c + c]);
    put(dev, x->at, all, span(x));
    free(all);
}

static float *get_dense(k_dev_t *dev, const k_tensor_t *x)
{
    void *all = get(dev, x->at, span(x));
    float *dense = room((uint64_t)(pixels(x) * x->c) * sizeof *dense);
    for (int64_t p = 0; p < pixels(x); p++)
        for (int64_t c = 0; c < x->c; c++)
            dense[p * x->c + c] = element(all, x->dtype, p * x->ld + c);
    free(all);
    return dense;
}

void twin_fill(twin_t *t, const twin_tensor_t *x, double lo, double hi)
{
    int64_t count = pixels(&x->cpu) * x->cpu.c;
    float *dense = room((uint64_t)count * sizeof *dense);
    for (int64_t i = 0; i < count; i++)
        dense[i] = rounded(t->dtype, (float)twin_random(t, lo, hi));
    put_dense(t->gpu, &x->gpu, dense);
    put_dense(t->cpu, &x->cpu, dense);
    free(dense);
}

/* Values at `at`: float32 on the CPU, in `dtype` on the GPU. */
static void fill_place(twin_t *t, k_at at, int64_t count, double lo, double hi, k_dtype_t dtype)
{
    float *values = room((uint64_t)count * sizeof *values);
    void *on_gpu = room((uint64_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) {
        values[i] = rounded(dtype, (float)twin_random(t, lo, hi));
        set_element(on_gpu, dtype, i, values[i]);
    }
    put(t->gpu, at, on_gpu, (uint64_t)count * size_of(dtype));
    put(t->cpu, at, values, (uint64_t)count * sizeof *values);
    free(values);
    free(on_gpu);
}

void twin_fill_floats(twin_t *t, k_at at, int64_t count, double lo, double hi)
{
    fill_place(t, at, count, lo, hi, K_F32);
}

void twin_fill_half(twin_t *t, k_at at, int64_t count, double lo, double hi)
{
    fill_place(t, at, count, lo, hi, t->dtype);
}

void twin_put(twin_t *t, k_at at, const void *data, uint64_t bytes)
{
    put(t->gpu, at, data, bytes);
    put(t->cpu, at, data, bytes);
}

float *twin_get_gpu(twin_t *t, const twin_tensor_t *x)
{
    return get_dense(t->gpu, &x->gpu);
}

float *twin_get_cpu(twin_t *t, const twin_tensor_t *x)
{
    return get_dense(t->cpu, &x->cpu);
}

void *twin_bytes_gpu(twin_t *t, k_at at, uint64_t bytes)
{
    return get(t->gpu, at, bytes);
}

void *twin_bytes_cpu(twin_t *t, k_at at, uint64_t bytes)
{
    return get(t->cpu, at, bytes);
}

/* Either kind of value as double. */
static double value(const void *values, int doubles, int64_t i)
{
    return doubles ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void say(const char *what, const char *figure, double value_of, double limit)
{
    const char *verbose = getenv("SLUICE_TEST_VERBOSE");
    if (verbose && *verbose)
        print_message("%s: %s %.3g (limit %.3g)\n", what, figure, value_of, limit);
}

static void same_to(const char *what, const void *gpu, const void *cpu, int doubles, int64_t count,
                    double limit)
{
    double top = 0.0, worst = 0.0;
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        double want = value(cpu, doubles, i), off = fabs(value(gpu, doubles, i) - want);
        if (isnan(off) && !isnan(worst))
            worst = off, at = i;
        else if (off > worst)
            worst = off, at = i;
        top = fmax(top, fabs(want));
    }
    say(what, "largest difference over largest value", top > 0.0 ? worst / top : worst, limit);
    if (!(worst <= limit * top))
        fail_msg("%s: value %" PRId64 " of %" PRId64 " is %.9g, not %.9g (largest %g, limit %g)",
                 what, at, count, value(gpu, doubles, at), value(cpu, doubles, at), top, limit);
}

static void same_direction(const char *what, const void *gpu, const void *cpu, int doubles,
                           int64_t count, double limit)
{
    double dot = 0.0, gg = 0.0, cc = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double g = value(gpu, doubles, i), c = value(cpu, doubles, i);
        dot += g * c;
        gg += g * g;
        cc += c * c;
    }
    double cosine = gg == 0.0 && cc == 0.0 ? 1.0 : dot / sqrt(gg * cc);
    say(what, "cosine", cosine, limit);
    if (!(cosine >= limit))
        fail_msg("%s: the cosine of %" PRId64 " values is %.6f (limit %g; norms %g and %g)", what,
                 count, cosine, limit, sqrt(gg), sqrt(cc));
    /* A direction alone would let a wrong scale pass; formats round each value by 2^-8 at most. */
    if (!(fabs(sqrt(gg) - sqrt(cc)) <= 0.05 * sqrt(cc)))
        fail_msg("%s: the norm is %g, not %g", what, sqrt(gg), sqrt(cc));
}

static void same_values(twin_t *t, const char *what, const void *gpu, const void *cpu, int doubles,
                        int64_t count, double limit)
{
    if (t->dtype == K_F32)
        same_to(what, gpu, cpu, doubles, count, limit > 0.0 && limit <= 0.5 ? limit : 1e-4);
    else
        same_direction(what, gpu, cpu, doubles, count, limit > 0.5 ? limit : 0.99);
}

void twin_same(twin_t *t, const char *what, const twin_tensor_t *x, double limit)
{
    float *gpu = twin_get_gpu(t, x), *cpu = twin_get_cpu(t, x);
    same_values(t, what, gpu, cpu, 0, pixels(&x->cpu) * x->cpu.c, limit);
    free(gpu);
    free(cpu);
}

static void same_place(twin_t *t, const char *what, k_at at, int64_t count, double limit,
                       int doubles)
{
    uint64_t bytes = (uint64_t)count * (doubles ? sizeof(double) : sizeof(float));
    void *gpu = get(t->gpu, at, bytes), *cpu = get(t->cpu, at, bytes);
    same_values(t, what, gpu, cpu, doubles, count, limit);
    free(gpu);
    free(cpu);
}

void twin_same_floats(twin_t *t, const char *what, k_at at, int64_t count, double limit)
{
    same_place(t, what, at, count, limit, 0);
}

void twin_same_doubles(twin_t *t, const char *what, k_at at, int64_t count, double limit)
{
    same_place(t, what, at, count, limit, 1);
}

void twin_same_bytes(twin_t *t, const char *what, k_at at, uint64_t bytes)
{
    uint8_t *gpu = get(t->gpu, at, bytes), *cpu = get(t->cpu, at, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        if (gpu[i] != cpu[i])
            fail_msg("%s: byte %" PRIu64 " of %" PRIu64 " is %u, not %u", what, i, bytes, gpu[i],
                     cpu[i]);
    free(gpu);
    free(cpu);
}

void twin_gaps_untouched(twin_t *t, const twin_tensor_t *x)
{
    const k_tensor_t *g = &x->gpu;
    const size_t size = size_of(g->dtype);
    const size_t pitch = (size_t)g->ld * size, own = (size_t)g->c * size;
    const size_t before = (size_t)x->before * size;
    uint8_t *all = get(t->gpu, g->at - before, (uint64_t)pixels(g) * pitch);
    for (int64_t p = 0; p < pixels(g); p++) {
        const uint8_t *from = all + (size_t)p * pitch;
        for (size_t i = 0; i < pitch; i++)
            if ((i < before || i >= before + own) && from[i] != 0xff)
                fail_msg("beside pixel %" PRId64 " of %" PRId64 ", byte %zu of %zu was written", p,
                         pixels(g), i, pitch);
    }
    free(all);
}
