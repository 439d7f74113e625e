/* Batch normalisation with activation and residual (facts/yolo.md 1.2), in passes over memory.
 *
 * Each pass is bound by memory, so the arithmetic only has to keep up: channels are vectorised, and
 * where a tensor has no gaps (ld == c) several pixels are taken as one wide pixel, so that 8 or 16
 * channels fill whole registers. Per-channel constants are then repeated as often (bn_width). Sums:
 * short runs of pixels in float (of x, less the run's first pixel), runs added in double, threads
 * added in order.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vexp.h"

#include <math.h>
#include <string.h>

enum {
    BN_PARTS = 4,       /* of the pixels, a thread, when sums are taken */
    BN_GRAIN = 1 << 15, /* floats that a thread takes at a time: 128 KiB */
    BN_RUN = 64,        /* wide pixels summed in float */
    BN_WIDE = 256,      /* channels that narrower tensors are widened to */
    BN_CHANNELS = 4096, /* most: what a scratch block holds */
};

typedef struct {
    const k_tensor_t *x, *dy, *residual, *y; /* y: also dx */
    const float *scale, *shift;              /* z = x * scale + shift */
    const float *mean, *invstd;
    const float *k0, *k1, *k2; /* bn_bwd_apply: dx = k0 * dz - k1 * x - k2 */
    k_act_t act;
    int64_t parts; /* sums: runs of pixels summed apart */
} bn_job_t;

/* Pixels that make one wide pixel: 1 unless every tensor is without gaps. */
static int64_t bn_width(const bn_job_t *j, int64_t pixels)
{
    const k_tensor_t *t[] = {j->x, j->dy, j->residual, j->y};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        if (t[i] && t[i]->ld != t[i]->c)
            return 1;
    int64_t width = BN_WIDE / j->x->c;
    return width < 1 || width > pixels ? 1 : width;
}

/* dst = values, `width` times. */
static float *bn_repeat(float *dst, const float *values, int32_t c, int64_t width)
{
    for (int64_t i = 0; i < width; i++)
        memcpy(dst + i * c, values, (size_t)c * sizeof *dst);
    return dst;
}

/* Floats set aside for one wide pixel's constants or sums: whole cache lines. */
static int64_t bn_slot(const bn_job_t *j)
{
    int64_t floats = j->x->c > BN_WIDE ? j->x->c : BN_WIDE;
    return (floats + 15) / 16 * 16;
}

/* Pixels that a thread takes at a time. */
static int64_t bn_grain(const k_tensor_t *x)
{
    return BN_GRAIN / x->c + 1;
}

static int bn_check(cpu_dev_t *d, const char *op, const k_bn_t *p, const k_tensor_t *x)
{
    if (cpu_check_tensor(d, op, "x", x) < 0)
        return -1;
    if (x->c > BN_CHANNELS)
        return cpu_fail(d, "%s: %d channels; at most %d are possible", op, x->c, BN_CHANNELS);
    const k_at at[] = {p->gamma, p->beta};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (cpu_check_place(d, op, "gamma or beta", at[i], (uint64_t)x->c * sizeof(float)) < 0)
            return -1;
    return 0;
}

static int bn_check_batch(cpu_dev_t *d, const char *op, const k_bn_t *p, int32_t c)
{
    const k_at at[] = {p->mean, p->invstd, p->stats, p->bwd_stats};
    const char *const name[] = {"mean", "invstd", "stats", "bwd_stats"};
    for (int i = 0; i < 4; i++) {
        uint64_t bytes = (uint64_t)c * (i < 2 ? sizeof(float) : 2 * sizeof(double));
        if (i == 3 && at[i] == K_NONE) /* forward only */
            continue;
        if (cpu_check_place(d, op, name[i], at[i], bytes) < 0)
            return -1;
        if (i >= 2 && at[i] % sizeof(double) != 0)
            return cpu_fail(d, "%s: %s is not aligned to 8 bytes", op, name[i]);
    }
    return 0;
}

/* s[k] += x - o, q[k] += (x - o)^2 over `rows` wide pixels; o, the run's first, is near the mean where
 * that is large against the deviation, so that a sum of squares in float keeps the variance's digits. */
CPU_VECTOR static void run_stats(float *restrict s, float *restrict q, const float *restrict o,
                                 const float *restrict x, int64_t ld, int64_t rows, int64_t c)
{
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4, x += 4 * ld) {
        for (int64_t k = 0; k < c; k++) {
            float x0 = x[k] - o[k], x1 = x[ld + k] - o[k], x2 = x[2 * ld + k] - o[k],
                  x3 = x[3 * ld + k] - o[k];
            s[k] += (x0 + x1) + (x2 + x3);
            q[k] += (x0 * x0 + x1 * x1) + (x2 * x2 + x3 * x3);
        }
    }
    for (; i < rows; i++, x += ld) {
        for (int64_t k = 0; k < c; k++) {
            s[k] += x[k] - o[k];
            q[k] += (x[k] - o[k]) * (x[k] - o[k]);
        }
    }
}

/* s[k] += dz, q[k] += dz * xhat. */
CPU_VECTOR static void run_bwd_stats(float *restrict s, float *restrict q, const float *restrict x,
                                     int64_t x_ld, const float *restrict dy, int64_t dy_ld,
                                     int64_t rows, int64_t c, const float *restrict scale,
                                     const float *restrict shift, const float *restrict mean,
                                     const float *restrict invstd, k_act_t act)
{
    if (act == K_ACT_SILU) {
        for (int64_t i = 0; i < rows; i++, x += x_ld, dy += dy_ld) {
            for (int64_t k = 0; k < c; k++) {
                float dz = dy[k] * cpu_silu_slope(x[k] * scale[k] + shift[k]);
                s[k] += dz;
                q[k] += dz * ((x[k] - mean[k]) * invstd[k]);
            }
        }
    } else {
        for (int64_t i = 0; i < rows; i++, x += x_ld, dy += dy_ld) {
            for (int64_t k = 0; k < c; k++) {
                s[k] += dy[k];
                q[k] += dy[k] * ((x[k] - mean[k]) * invstd[k]);
            }
        }
    }
}

/* Adds the wide sums of a run to the thread's doubles [2][c] and clears them. */
CPU_VECTOR static void fold_sums(double *restrict total, float *restrict s, float *restrict q,
                                 int32_t c, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        for (int32_t k = 0; k < c; k++)
            total[k] += (double)s[i * c + k];
        for (int32_t k = 0; k < c; k++)
            total[c + k] += (double)q[i * c + k];
    }
    memset(s, 0, (size_t)(width * c) * sizeof *s);
    memset(q, 0, (size_t)(width * c) * sizeof *q);
}

/* A run's sums of x - o and (x - o)^2 become sums of x and x^2, in double: s + n o, q + 2 o s + n o^2. */
CPU_VECTOR static void fold_shifted(double *restrict total, float *restrict s, float *restrict q,
                                    const float *restrict o, int64_t rows, int32_t c, int64_t width)
{
    double n = (double)rows;
    for (int64_t i = 0; i < width * c; i += c) {
        for (int32_t k = 0; k < c; k++)
            total[k] += (double)s[i + k] + n * (double)o[i + k];
        for (int32_t k = 0; k < c; k++) {
            double at = (double)o[i + k];
            total[c + k] += (double)q[i + k] + at * (2.0 * (double)s[i + k] + n * at);
        }
    }
    memset(s, 0, (size_t)(width * c) * sizeof *s);
    memset(q, 0, (size_t)(width * c) * sizeof *q);
}

/* Forward and backward sums of one part, pixels [first, last): doubles [2][c]. */
static void sums_part(cpu_dev_t *dev, const bn_job_t *j, int thread, int64_t first, int64_t last,
                      double *total)
{
    int32_t c = j->x->c;
    int64_t width = bn_width(j, last - first), slot = bn_slot(j);
    float *s = cpu_scratch(dev, thread), *q = s + slot, *constants = q + slot;
    const float *cst[4] = {NULL};
    memset(total, 0, (size_t)(2 * c) * sizeof *total);
    memset(s, 0, (size_t)(2 * slot) * sizeof *s);
    if (j->dy) {
        const float *src[4] = {j->scale, j->shift, j->mean, j->invstd};
        for (int i = 0; i < 4; i++)
            cst[i] = bn_repeat(constants + i * slot, src[i], c, width);
    }
    for (int64_t at = first; at < last;) {
        int64_t w = last - at < width ? 1 : width;
        int64_t rows = (last - at) / w, x_ld = j->x->ld * w;
        rows = rows < BN_RUN ? rows : BN_RUN;
        const float *x = cpu_f32(dev, j->x->at) + at * j->x->ld;
        if (j->dy) {
            run_bwd_stats(s, q, x, x_ld, cpu_f32(dev, j->dy->at) + at * j->dy->ld, j->dy->ld * w,
                          rows, c * w, cst[0], cst[1], cst[2], cst[3], j->act);
            fold_sums(total, s, q, c, w);
        } else {
            memcpy(constants, x, (size_t)(c * w) * sizeof *x);
            run_stats(s, q, constants, x, x_ld, rows, c * w);
            fold_shifted(total, s, q, constants, rows, c, w);
        }
        at += rows * w;
    }
}

/* Items: parts. */
static void sums_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const bn_job_t *j = ctx;
    int64_t pixels = cpu_pixels(j->x);
    for (int64_t part = first; part < last; part++)
        sums_part(dev, j, thread, pixels * part / j->parts, pixels * (part + 1) / j->parts,
                  (double *)cpu_partials(dev) + part * 2 * j->x->c);
}

static void sums(cpu_dev_t *d, bn_job_t *j, double *out)
{
    int32_t c = j->x->c;
    int64_t room = CPU_SCRATCH_BYTES / (2 * c * (int64_t)sizeof(double));
    j->parts = d->threads * (room < BN_PARTS ? room : BN_PARTS);
    cpu_share(d, sums_range, j, j->parts, 1);
    memset(out, 0, (size_t)(2 * c) * sizeof(double));
    const double *part = cpu_partials(d);
    for (int64_t i = 0; i < j->parts; i++, part += 2 * c)
        for (int32_t k = 0; k < 2 * c; k++)
            out[k] += part[k];
}

int cpu_bn_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (bn_check(d, "bn_stats", p, x) < 0 || bn_check_batch(d, "bn_stats", p, x->c) < 0)
        return -1;
    bn_job_t j = {.x = x};
    sums(d, &j, cpu_ptr(d, p->stats));
    return 0;
}

/* mean, 1 / sqrt(biased variance + eps); the running variance takes the unbiased one
 * (facts/yolo.md 1.2). */
int cpu_bn_finish(k_dev_t *dev, const k_bn_t *p, int32_t c, uint64_t count)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (c < 1 || c > BN_CHANNELS || count < 1)
        return cpu_fail(d, "bn_finish: %d channels over %llu values are impossible", c,
                        (unsigned long long)count);
    if (bn_check_batch(d, "bn_finish", p, c) < 0 ||
        cpu_check_place(d, "bn_finish", "running_mean", p->running_mean, (uint64_t)c * 4) < 0 ||
        cpu_check_place(d, "bn_finish", "running_var", p->running_var, (uint64_t)c * 4) < 0)
        return -1;
    const double *stats = cpu_ptr(d, p->stats);
    float *mean = cpu_f32(d, p->mean), *invstd = cpu_f32(d, p->invstd);
    float *running_mean = cpu_f32(d, p->running_mean), *running_var = cpu_f32(d, p->running_var);
    double n = (double)count, m = p->momentum, unbias = count > 1 ? n / (n - 1.0) : 1.0;
    for (int32_t k = 0; k < c; k++) {
        double mu = stats[k] / n, var = stats[c + k] / n - mu * mu;
        var = var > 0.0 ? var : (isnan(var) ? var : 0.0);
        mean[k] = (float)mu;
        invstd[k] = (float)(1.0 / sqrt(var + (double)p->eps));
        running_mean[k] = (float)((1.0 - m) * running_mean[k] + m * mu);
        running_var[k] = (float)((1.0 - m) * running_var[k] + m * var * unbias);
    }
    return 0;
}

CPU_VECTOR static void run_apply(float *y, int64_t y_ld, const float *x, int64_t x_ld,
                                 const float *r, int64_t r_ld, int64_t rows, int64_t c,
                                 const float *restrict scale, const float *restrict shift,
                                 k_act_t act)
{
    if (act == K_ACT_SILU && r) {
        for (int64_t i = 0; i < rows; i++, x += x_ld, y += y_ld, r += r_ld) {
            CPU_IVDEP
            for (int64_t k = 0; k < c; k++)
                y[k] = cpu_siluf(x[k] * scale[k] + shift[k]) + r[k];
        }
    } else if (act == K_ACT_SILU) {
        for (int64_t i = 0; i < rows; i++, x += x_ld, y += y_ld) {
            CPU_IVDEP
            for (int64_t k = 0; k < c; k++)
                y[k] = cpu_siluf(x[k] * scale[k] + shift[k]);
        }
    } else if (r) {
        for (int64_t i = 0; i < rows; i++, x += x_ld, y += y_ld, r += r_ld) {
            CPU_IVDEP
            for (int64_t k = 0; k < c; k++)
                y[k] = x[k] * scale[k] + shift[k] + r[k];
        }
    } else {
        for (int64_t i = 0; i < rows; i++, x += x_ld, y += y_ld) {
            CPU_IVDEP
            for (int64_t k = 0; k < c; k++)
                y[k] = x[k] * scale[k] + shift[k];
        }
    }
}

static void apply_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const bn_job_t *j = ctx;
    int32_t c = j->x->c;
    int64_t width = bn_width(j, last - first), slot = bn_slot(j), pixels = last - first;
    float *scratch = cpu_scratch(dev, thread);
    const float *scale = bn_repeat(scratch, j->scale, c, width);
    const float *shift = bn_repeat(scratch + slot, j->shift, c, width);
    for (int pass = 0; pass < 2; pass++) { /* whole wide pixels, then the rest */
        int64_t w = pass ? 1 : width, rows = pass ? pixels % width : pixels / width;
        if (rows == 0)
            continue;
        run_apply(cpu_f32(dev, j->y->at) + first * j->y->ld, j->y->ld * w,
                  cpu_f32(dev, j->x->at) + first * j->x->ld, j->x->ld * w,
                  j->residual ? cpu_f32(dev, j->residual->at) + first * j->residual->ld : NULL,
                  j->residual ? j->residual->ld * w : 0, rows, c * w, scale, shift, j->act);
        first += rows * w;
    }
}

/* scale = gamma * invstd, shift = beta - mean * scale, to out[2][c]. */
static void fold_affine(cpu_dev_t *d, const k_bn_t *p, int32_t c, int frozen, bn_job_t *j,
                        float *out)
{
    const float *gamma = cpu_f32(d, p->gamma), *beta = cpu_f32(d, p->beta);
    const float *mean = cpu_f32(d, frozen ? p->running_mean : p->mean);
    for (int32_t k = 0; k < c; k++) {
        float inv = frozen ? 1.0f / sqrtf(cpu_f32(d, p->running_var)[k] + p->eps)
                           : cpu_f32(d, p->invstd)[k];
        out[k] = gamma[k] * inv;
        out[c + k] = beta[k] - mean[k] * out[k];
    }
    j->scale = out;
    j->shift = out + c;
}

int cpu_bn_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *residual,
                 const k_tensor_t *y, k_act_t act, int frozen)
{
    cpu_dev_t *d = cpu_dev(dev);
    const char *op = "bn_apply";
    if (bn_check(d, op, p, x) < 0 || cpu_check_tensor(d, op, "y", y) < 0 ||
        cpu_check_same(d, op, x, y) < 0)
        return -1;
    if (residual && (cpu_check_tensor(d, op, "residual", residual) < 0 ||
                     cpu_check_same(d, op, x, residual) < 0))
        return -1;
    uint64_t bytes = (uint64_t)x->c * sizeof(float);
    k_at mean = frozen ? p->running_mean : p->mean, spread = frozen ? p->running_var : p->invstd;
    if (cpu_check_place(d, op, frozen ? "running_mean" : "mean", mean, bytes) < 0 ||
        cpu_check_place(d, op, frozen ? "running_var" : "invstd", spread, bytes) < 0)
        return -1;
    bn_job_t j = {.x = x, .residual = residual, .y = y, .act = act};
    fold_affine(d, p, x->c, frozen, &j, cpu_constants(d));
    cpu_share(d, apply_range, &j, cpu_pixels(x), bn_grain(x));
    return 0;
}

/* The sums of this rank also go to dgamma (dz * xhat) and dbeta (dz). */
int cpu_bn_bwd_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                     k_act_t act)
{
    cpu_dev_t *d = cpu_dev(dev);
    const char *op = "bn_bwd_stats";
    uint64_t bytes = (uint64_t)x->c * sizeof(float);
    if (bn_check(d, op, p, x) < 0 || bn_check_batch(d, op, p, x->c) < 0 ||
        cpu_check_tensor(d, op, "dy", dy) < 0 || cpu_check_same(d, op, x, dy) < 0 ||
        cpu_check_place(d, op, "dgamma", p->dgamma, bytes) < 0 ||
        cpu_check_place(d, op, "dbeta", p->dbeta, bytes) < 0)
        return -1;
    bn_job_t j = {
        .x = x, .dy = dy, .act = act, .mean = cpu_f32(d, p->mean), .invstd = cpu_f32(d, p->invstd)};
    fold_affine(d, p, x->c, 0, &j, cpu_constants(d));
    double *stats = cpu_ptr(d, p->bwd_stats);
    sums(d, &j, stats);
    float *dgamma = cpu_f32(d, p->dgamma), *dbeta = cpu_f32(d, p->dbeta);
    for (int32_t k = 0; k < x->c; k++) {
        dbeta[k] += (float)stats[k];
        dgamma[k] += (float)stats[x->c + k];
    }
    return 0;
}

CPU_VECTOR static void run_bwd_apply(float *dx, int64_t dx_ld, const float *x, int64_t x_ld,
                                     const float *dy, int64_t dy_ld, int64_t rows, int64_t c,
                                     const float *const cst[5], k_act_t act)
{
    const float *restrict scale = cst[0], *restrict shift = cst[1];
    const float *restrict k0 = cst[2], *restrict k1 = cst[3], *restrict k2 = cst[4];
    if (act == K_ACT_SILU) {
        for (int64_t i = 0; i < rows; i++, x += x_ld, dy += dy_ld, dx += dx_ld) {
            CPU_IVDEP
            for (int64_t k = 0; k < c; k++)
                dx[k] = k0[k] * dy[k] * cpu_silu_slope(x[k] * scale[k] + shift[k]) -
                        (k1[k] * x[k] + k2[k]);
        }
    } else {
        for (int64_t i = 0; i < rows; i++, x += x_ld, dy += dy_ld, dx += dx_ld) {
            CPU_IVDEP
            for (int64_t k = 0; k < c; k++)
                dx[k] = k0[k] * dy[k] - (k1[k] * x[k] + k2[k]);
        }
    }
}

static void bwd_apply_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const bn_job_t *j = ctx;
    int32_t c = j->x->c;
    int64_t width = bn_width(j, last - first), slot = bn_slot(j), pixels = last - first;
    float *scratch = cpu_scratch(dev, thread);
    const float *src[5] = {j->scale, j->shift, j->k0, j->k1, j->k2}, *cst[5];
    for (int i = 0; i < 5; i++)
        cst[i] = bn_repeat(scratch + i * slot, src[i], c, width);
    for (int pass = 0; pass < 2; pass++) { /* whole wide pixels, then the rest */
        int64_t w = pass ? 1 : width, rows = pass ? pixels % width : pixels / width;
        if (rows == 0)
            continue;
        run_bwd_apply(cpu_f32(dev, j->y->at) + first * j->y->ld, j->y->ld * w,
                      cpu_f32(dev, j->x->at) + first * j->x->ld, j->x->ld * w,
                      cpu_f32(dev, j->dy->at) + first * j->dy->ld, j->dy->ld * w, rows, c * w, cst,
                      j->act);
        first += rows * w;
    }
}

/* dx = gamma invstd (dz - s0 / n - xhat s1 / n) as k0 dz - (k1 x + k2). */
int cpu_bn_bwd_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                     const k_tensor_t *dx, k_act_t act, uint64_t count)
{
    cpu_dev_t *d = cpu_dev(dev);
    const char *op = "bn_bwd_apply";
    if (bn_check(d, op, p, x) < 0 || bn_check_batch(d, op, p, x->c) < 0 ||
        cpu_check_tensor(d, op, "dy", dy) < 0 || cpu_check_same(d, op, x, dy) < 0 ||
        cpu_check_tensor(d, op, "dx", dx) < 0 || cpu_check_same(d, op, x, dx) < 0)
        return -1;
    if (count < 1)
        return cpu_fail(d, "%s: a count of 0 is impossible", op);
    int32_t c = x->c;
    float *constants = cpu_constants(d), *k0 = constants + 2 * c, *k1 = k0 + c, *k2 = k1 + c;
    const float *mean = cpu_f32(d, p->mean), *invstd = cpu_f32(d, p->invstd);
    const double *stats = cpu_ptr(d, p->bwd_stats);
    bn_job_t j = {.x = x, .dy = dy, .y = dx, .act = act, .k0 = k0, .k1 = k1, .k2 = k2};
    fold_affine(d, p, c, 0, &j, constants);
    for (int32_t k = 0; k < c; k++) {
        double scale = j.scale[k], inv = invstd[k];
        double mean_dz = stats[k] / (double)count, mean_dzx = stats[c + k] / (double)count;
        k0[k] = (float)scale;
        k1[k] = (float)(scale * inv * mean_dzx);
        k2[k] = (float)(scale * (mean_dz - mean[k] * inv * mean_dzx));
    }
    cpu_share(d, bwd_apply_range, &j, cpu_pixels(x), bn_grain(x));
    return 0;
}
