/* Nearest-neighbour enlargement by 2 and its gradient: the sum of the four copies. Item: a row of
 * the small image. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct {
    const k_tensor_t *small, *large;
    int acc;
} upsample_job_t;

static void upsample_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)thread;
    const upsample_job_t *j = ctx;
    const k_tensor_t *s = j->small, *l = j->large;
    size_t bytes = (size_t)s->c * sizeof(float);
    for (int64_t row = first; row < last; row++) {
        const float *src = cpu_f32(dev, s->at) + row * s->w * s->ld;
        float *top = cpu_f32(dev, l->at) + 2 * row * l->w * l->ld;
        for (int32_t x = 0; x < s->w; x++, src += s->ld) {
            for (int32_t d = 0; d < 2; d++) {
                float *dst = top + (int64_t)(2 * x + d) * l->ld;
                memcpy(dst, src, bytes);
                memcpy(dst + (int64_t)l->w * l->ld, src, bytes);
            }
        }
    }
}

CPU_VECTOR static void sum_four(float *restrict dst, const float *restrict a,
                                const float *restrict b, int64_t ld, int32_t c, int acc)
{
    if (acc) {
        for (int32_t k = 0; k < c; k++)
            dst[k] += (a[k] + a[ld + k]) + (b[k] + b[ld + k]);
    } else {
        for (int32_t k = 0; k < c; k++)
            dst[k] = (a[k] + a[ld + k]) + (b[k] + b[ld + k]);
    }
}

static void upsample_dx_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)thread;
    const upsample_job_t *j = ctx;
    const k_tensor_t *s = j->small, *l = j->large;
    for (int64_t row = first; row < last; row++) {
        float *dst = cpu_f32(dev, s->at) + row * s->w * s->ld;
        const float *top = cpu_f32(dev, l->at) + 2 * row * l->w * l->ld;
        const float *bottom = top + (int64_t)l->w * l->ld;
        for (int32_t x = 0; x < s->w; x++) {
            int64_t at = (int64_t)2 * x * l->ld;
            sum_four(dst + (int64_t)x * s->ld, top + at, bottom + at, l->ld, s->c, j->acc);
        }
    }
}

static int upsample_check(cpu_dev_t *d, const char *op, const k_tensor_t *small,
                          const k_tensor_t *large)
{
    if (cpu_check_tensor(d, op, "the small tensor", small) < 0 ||
        cpu_check_tensor(d, op, "the large tensor", large) < 0)
        return -1;
    if (small->n == large->n && 2 * small->h == large->h && 2 * small->w == large->w &&
        small->c == large->c)
        return 0;
    return cpu_fail(d, "%s: %d x %d x %d x %d is not %d x %d x %d x %d twice as large", op,
                    large->n, large->h, large->w, large->c, small->n, small->h, small->w, small->c);
}

int cpu_upsample(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (upsample_check(d, "upsample", x, y) < 0)
        return -1;
    upsample_job_t j = {x, y, 0};
    cpu_share(d, upsample_range, &j, (int64_t)x->n * x->h, 4);
    return 0;
}

int cpu_upsample_dx(k_dev_t *dev, const k_tensor_t *dy, const k_tensor_t *dx, int acc)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (upsample_check(d, "upsample_dx", dx, dy) < 0)
        return -1;
    upsample_job_t j = {dx, dy, acc};
    cpu_share(d, upsample_dx_range, &j, (int64_t)dx->n * dx->h, 4);
    return 0;
}
