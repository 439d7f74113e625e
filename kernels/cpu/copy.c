/* y = x or y += x, pixel by pixel; x and y may be channel slices. */
#include "kernels/cpu/cpu.h"

#include <string.h>

typedef struct {
    const k_tensor_t *x, *y;
    int acc;
} copy_job_t;

CPU_VECTOR static void copy_add(float *restrict y, int64_t y_ld, const float *restrict x,
                                int64_t x_ld, int64_t pixels, int64_t c)
{
    for (int64_t i = 0; i < pixels; i++, y += y_ld, x += x_ld)
        for (int64_t k = 0; k < c; k++)
            y[k] += x[k];
}

static void copy_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)thread;
    const copy_job_t *j = ctx;
    int64_t x_ld = j->x->ld, y_ld = j->y->ld, pixels = last - first, c = j->x->c;
    const float *x = cpu_f32(dev, j->x->at) + first * x_ld;
    float *y = cpu_f32(dev, j->y->at) + first * y_ld;
    if (x_ld == c && y_ld == c) { /* no gaps: one long pixel */
        c *= pixels;
        pixels = 1;
    }
    if (j->acc) {
        copy_add(y, y_ld, x, x_ld, pixels, c);
        return;
    }
    for (int64_t i = 0; i < pixels; i++)
        memcpy(y + i * y_ld, x + i * x_ld, (size_t)c * sizeof *y);
}

int cpu_copy(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y, int acc)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (cpu_check_tensor(d, "copy", "x", x) < 0 || cpu_check_tensor(d, "copy", "y", y) < 0 ||
        cpu_check_same(d, "copy", x, y) < 0)
        return -1;
    copy_job_t j = {x, y, acc};
    cpu_share(d, copy_range, &j, cpu_pixels(x), 1024);
    return 0;
}
