/* Depthwise 3x3 convolution, stride 1, padding 1. Weights [3][3][c]. Item: an image row; vectorised
 * over channels. The data gradient is the same operation with the kernel turned by 180 degrees. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct {
    const k_tensor_t *x, *y;
    const float *w;
    int turned, acc;
    float *dw;
} dw_job_t;

/* Adds one tap of a row: y[p][c] += w[c] * x[p][c] over `count` pixels. */
CPU_VECTOR static void dw_tap(float *restrict y, int64_t y_ld, const float *restrict x,
                              int64_t x_ld, const float *restrict w, int64_t count, int32_t c)
{
    for (int64_t i = 0; i < count; i++, y += y_ld, x += x_ld)
        for (int32_t k = 0; k < c; k++)
            y[k] += w[k] * x[k];
}

/* All nine taps of the row's inner pixels in one pass: rows r0, r1, r2 point at the left neighbour.
 */
CPU_VECTOR static void dw_inner(float *restrict y, int64_t y_ld, const float *restrict r0,
                                const float *restrict r1, const float *restrict r2, int64_t ld,
                                const float *restrict w, int64_t count, int32_t c, int acc)
{
    for (int64_t i = 0; i < count; i++, y += y_ld, r0 += ld, r1 += ld, r2 += ld) {
        for (int32_t k = 0; k < c; k++) {
            float s = w[k] * r0[k] + w[c + k] * r0[ld + k] + w[2 * c + k] * r0[2 * ld + k];
            s += w[3 * c + k] * r1[k] + w[4 * c + k] * r1[ld + k] + w[5 * c + k] * r1[2 * ld + k];
            s += w[6 * c + k] * r2[k] + w[7 * c + k] * r2[ld + k] + w[8 * c + k] * r2[2 * ld + k];
            y[k] = acc ? y[k] + s : s;
        }
    }
}

/* Pixels x0..x1 of a row, tap by tap where the source exists. */
static void dw_edge(const dw_job_t *j, const float *image, int32_t row, int32_t x0, int32_t x1,
                    float *y)
{
    const k_tensor_t *t = j->x;
    for (int32_t px = x0; px < x1; px++) {
        float *dst = y + (int64_t)px * j->y->ld;
        if (!j->acc)
            memset(dst, 0, (size_t)t->c * sizeof *dst);
        for (int32_t tap = 0; tap < 9; tap++) {
            int32_t iy = row + tap / 3 - 1, ix = px + tap % 3 - 1;
            if (iy >= 0 && iy < t->h && ix >= 0 && ix < t->w)
                dw_tap(dst, 0, image + ((int64_t)iy * t->w + ix) * t->ld, 0, j->w + tap * t->c, 1,
                       t->c);
        }
    }
}

static void dw_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    dw_job_t j = *(const dw_job_t *)ctx;
    const k_tensor_t *x = j.x, *y = j.y;
    int64_t line = (int64_t)x->w * x->ld;
    if (j.turned) {
        float *w = cpu_scratch(dev, thread);
        for (int32_t tap = 0; tap < 9; tap++)
            memcpy(w + tap * x->c, j.w + (8 - tap) * x->c, (size_t)x->c * sizeof *w);
        j.w = w;
    }
    for (int64_t row = first; row < last; row++) {
        const float *image = cpu_f32(dev, x->at) + row / x->h * x->h * line;
        float *dst = cpu_f32(dev, y->at) + row * y->w * y->ld;
        int32_t py = (int32_t)(row % x->h);
        if (py == 0 || py == x->h - 1 || x->w < 3) {
            dw_edge(&j, image, py, 0, x->w, dst);
            continue;
        }
        const float *r = image + (py - 1) * line;
        dw_edge(&j, image, py, 0, 1, dst);
        dw_inner(dst + y->ld, y->ld, r, r + line, r + 2 * line, x->ld, j.w, x->w - 2, x->c, j.acc);
        dw_edge(&j, image, py, x->w - 1, x->w, dst);
    }
}

static int dw_check(cpu_dev_t *d, const char *op, const k_tensor_t *x, const k_tensor_t *y, k_at w)
{
    if (cpu_check_tensor(d, op, "x", x) < 0 || cpu_check_tensor(d, op, "y", y) < 0 ||
        cpu_check_same(d, op, x, y) < 0)
        return -1;
    if ((size_t)x->c * 9 * sizeof(float) > CPU_SCRATCH_BYTES)
        return cpu_fail(d, "%s: %d channels; at most %d are possible", op, x->c,
                        CPU_SCRATCH_BYTES / (9 * (int)sizeof(float)));
    return cpu_check_place(d, op, "weights", w, (uint64_t)x->c * 9 * sizeof(float));
}

int cpu_dwconv(k_dev_t *dev, const k_tensor_t *x, k_at w, const k_tensor_t *y)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (dw_check(d, "dwconv", x, y, w) < 0)
        return -1;
    dw_job_t j = {.x = x, .y = y, .w = cpu_f32(d, w)};
    cpu_share(d, dw_range, &j, (int64_t)x->n * x->h, x->h);
    return 0;
}

int cpu_dwconv_dx(k_dev_t *dev, const k_tensor_t *dy, k_at w, const k_tensor_t *dx, int acc)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (dw_check(d, "dwconv_dx", dy, dx, w) < 0)
        return -1;
    dw_job_t j = {.x = dy, .y = dx, .w = cpu_f32(d, w), .turned = 1, .acc = acc};
    cpu_share(d, dw_range, &j, (int64_t)dx->n * dx->h, dx->h);
    return 0;
}

/* sum[c] += x[p][c] * dy[p][c] over `count` pixels; four at a time so that the sum is loaded less
 * often. */
CPU_VECTOR static void dw_products(float *restrict sum, const float *restrict x, int64_t x_ld,
                                   const float *restrict dy, int64_t dy_ld, int64_t count,
                                   int32_t c)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4, x += 4 * x_ld, dy += 4 * dy_ld)
        for (int32_t k = 0; k < c; k++)
            sum[k] += (x[k] * dy[k] + x[x_ld + k] * dy[dy_ld + k]) +
                      (x[2 * x_ld + k] * dy[2 * dy_ld + k] + x[3 * x_ld + k] * dy[3 * dy_ld + k]);
    for (; i < count; i++, x += x_ld, dy += dy_ld)
        for (int32_t k = 0; k < c; k++)
            sum[k] += x[k] * dy[k];
}

/* The thread's sums over its rows, in its scratch block. */
static void dw_dw_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const dw_job_t *j = ctx;
    const k_tensor_t *x = j->x, *dy = j->y;
    float *sum = cpu_scratch(dev, thread);
    for (int64_t row = first; row < last; row++) {
        int64_t n = row / x->h;
        int32_t py = (int32_t)(row % x->h);
        const float *g = cpu_f32(dev, dy->at) + row * dy->w * dy->ld;
        for (int32_t tap = 0; tap < 9; tap++) {
            int32_t iy = py + tap / 3 - 1, ox = tap % 3 - 1;
            int32_t x0 = ox < 0 ? 1 : 0, x1 = ox > 0 ? x->w - 1 : x->w;
            if (iy < 0 || iy >= x->h || x0 >= x1)
                continue;
            const float *src = cpu_f32(dev, x->at) + ((n * x->h + iy) * x->w + x0 + ox) * x->ld;
            dw_products(sum + tap * x->c, src, x->ld, g + (int64_t)x0 * dy->ld, dy->ld, x1 - x0,
                        x->c);
        }
    }
}

int cpu_dwconv_dw(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *dy, k_at dw)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (dw_check(d, "dwconv_dw", x, dy, dw) < 0)
        return -1;
    dw_job_t j = {.x = x, .y = dy};
    for (int t = 0; t < d->threads; t++)
        memset(cpu_scratch(d, t), 0, (size_t)x->c * 9 * sizeof(float));
    cpu_parallel(d, dw_dw_range, &j, (int64_t)x->n * x->h);
    float *out = cpu_f32(d, dw);
    for (int t = 0; t < d->threads; t++) {
        const float *sum = cpu_scratch(d, t);
        for (int32_t i = 0; i < 9 * x->c; i++)
            out[i] += sum[i];
    }
    return 0;
}
