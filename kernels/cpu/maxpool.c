/* Max pooling, stride 1, k x k, padded with -inf. Item: an image row. Vectorised over channels.
 *
 * The index is the window's place ky * k + kx of the first maximum in row order. A NaN in the
 * window is the maximum (as in PyTorch). The gradient gathers: an input pixel asks each window that
 * holds it whether its index points back.
 */
#include "kernels/cpu/cpu.h"

enum {
    POOL_K_MAX = 15,
    POOL_CHANNELS = 256
}; /* k*k <= 256 fits the index; channels a go, on the stack */

typedef struct {
    int32_t k;
    const k_tensor_t *x, *y; /* backward: x = dx, y = dy */
    uint8_t *index;
    int acc;
} pool_job_t;

CPU_VECTOR static void pool_start(float *restrict best, int32_t *restrict at,
                                  const float *restrict x, int32_t c, int32_t place)
{
    for (int32_t i = 0; i < c; i++) {
        best[i] = x[i];
        at[i] = place;
    }
}

CPU_VECTOR static void pool_look(float *restrict best, int32_t *restrict at,
                                 const float *restrict x, int32_t c, int32_t place)
{
    for (int32_t i = 0; i < c; i++) {
        int better = (x[i] > best[i]) | (x[i] != x[i]);
        best[i] = better ? x[i] : best[i];
        at[i] = better ? place : at[i];
    }
}

CPU_VECTOR static void pool_end(float *restrict y, uint8_t *restrict index,
                                const float *restrict best, const int32_t *restrict at, int32_t c)
{
    for (int32_t i = 0; i < c; i++) {
        y[i] = best[i];
        index[i] = (uint8_t)at[i];
    }
}

static void pool_pixel(const pool_job_t *j, const float *image, int32_t py, int32_t px, int32_t c,
                       float *y, uint8_t *index)
{
    float best[POOL_CHANNELS];
    int32_t at[POOL_CHANNELS], pad = j->k / 2, h = j->x->h, w = j->x->w;
    int started = 0;
    for (int32_t ky = 0; ky < j->k; ky++) {
        int32_t iy = py + ky - pad;
        if (iy < 0 || iy >= h)
            continue;
        for (int32_t kx = 0; kx < j->k; kx++) {
            int32_t ix = px + kx - pad;
            if (ix < 0 || ix >= w)
                continue;
            const float *x = image + ((int64_t)iy * w + ix) * j->x->ld;
            if (started)
                pool_look(best, at, x, c, ky * j->k + kx);
            else
                pool_start(best, at, x, c, ky * j->k + kx);
            started = 1;
        }
    }
    pool_end(y, index, best, at, c);
}

static void pool_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)thread;
    const pool_job_t *j = ctx;
    const k_tensor_t *x = j->x, *y = j->y;
    for (int64_t row = first; row < last; row++) {
        int64_t n = row / x->h;
        const float *image = cpu_f32(dev, x->at) + n * x->h * x->w * x->ld;
        for (int32_t px = 0; px < x->w; px++) {
            int64_t pixel = row * x->w + px;
            for (int32_t c0 = 0; c0 < x->c; c0 += POOL_CHANNELS) {
                int32_t c = x->c - c0 < POOL_CHANNELS ? x->c - c0 : POOL_CHANNELS;
                pool_pixel(j, image + c0, (int32_t)(row % x->h), px, c,
                           cpu_f32(dev, y->at) + pixel * y->ld + c0, j->index + pixel * x->c + c0);
            }
        }
    }
}

static int pool_check(cpu_dev_t *d, const char *op, int32_t k, const k_tensor_t *x,
                      const k_tensor_t *y, k_at index)
{
    if (k < 1 || k > POOL_K_MAX || k % 2 == 0)
        return cpu_fail(d, "%s: window %d: odd windows up to %d are possible", op, k, POOL_K_MAX);
    if (cpu_check_tensor(d, op, "x", x) < 0 || cpu_check_tensor(d, op, "y", y) < 0 ||
        cpu_check_same(d, op, x, y) < 0)
        return -1;
    return cpu_check_place(d, op, "index", index, (uint64_t)cpu_pixels(x) * (uint64_t)x->c);
}

int cpu_maxpool(k_dev_t *dev, int32_t k, const k_tensor_t *x, const k_tensor_t *y, k_at index)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (pool_check(d, "maxpool", k, x, y, index) < 0)
        return -1;
    pool_job_t j = {k, x, y, cpu_ptr(d, index), 0};
    cpu_share(d, pool_range, &j, (int64_t)x->n * x->h, 4);
    return 0;
}

CPU_VECTOR static void pool_take(float *restrict dx, const float *restrict dy,
                                 const uint8_t *restrict index, int32_t c, int32_t place)
{
    for (int32_t i = 0; i < c; i++)
        dx[i] += index[i] == place ? dy[i] : 0.0f;
}

static void pool_dx_pixel(const pool_job_t *j, const float *dy, int64_t n, int32_t py, int32_t px,
                          float *dx)
{
    int32_t pad = j->k / 2, h = j->x->h, w = j->x->w, c = j->x->c;
    if (!j->acc)
        for (int32_t i = 0; i < c; i++)
            dx[i] = 0.0f;
    for (int32_t ky = 0; ky < j->k; ky++) {
        int32_t oy = py + pad - ky;
        if (oy < 0 || oy >= h)
            continue;
        for (int32_t kx = 0; kx < j->k; kx++) {
            int32_t ox = px + pad - kx;
            if (ox < 0 || ox >= w)
                continue;
            int64_t pixel = (n * h + oy) * w + ox;
            pool_take(dx, dy + pixel * j->y->ld, j->index + pixel * c, c, ky * j->k + kx);
        }
    }
}

static void pool_dx_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)thread;
    const pool_job_t *j = ctx;
    const k_tensor_t *dx = j->x;
    for (int64_t row = first; row < last; row++)
        for (int32_t px = 0; px < dx->w; px++)
            pool_dx_pixel(j, cpu_f32(dev, j->y->at), row / dx->h, (int32_t)(row % dx->h), px,
                          cpu_f32(dev, dx->at) + (row * dx->w + px) * dx->ld);
}

int cpu_maxpool_dx(k_dev_t *dev, int32_t k, const k_tensor_t *dy, k_at index, const k_tensor_t *dx,
                   int acc)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (pool_check(d, "maxpool_dx", k, dx, dy, index) < 0)
        return -1;
    pool_job_t j = {k, dx, dy, cpu_ptr(d, index), acc};
    cpu_share(d, pool_dx_range, &j, (int64_t)dx->n * dx->h, 4);
    return 0;
}
