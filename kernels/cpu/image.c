/* Bytes to floats: y = value / 255 (facts/yolo.md 5.9). */
#include "kernels/cpu/cpu.h"

typedef struct {
    const uint8_t *src;
    const k_tensor_t *y;
} image_job_t;

CPU_VECTOR static void image_run(float *restrict dst, const uint8_t *restrict src, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dst[i] = (float)src[i] / 255.0f;
}

static void image_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)thread;
    const image_job_t *j = ctx;
    float *dst = cpu_f32(dev, j->y->at);
    if (j->y->ld == 3) {
        image_run(dst + first * 3, j->src + first * 3, (last - first) * 3);
        return;
    }
    for (int64_t i = first; i < last; i++)
        for (int c = 0; c < 3; c++)
            dst[i * j->y->ld + c] = (float)j->src[i * 3 + c] / 255.0f;
}

int cpu_image(k_dev_t *dev, k_at u8, const k_tensor_t *y)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (cpu_check_tensor(d, "image", "y", y) < 0)
        return -1;
    if (y->c != 3)
        return cpu_fail(d, "image: y has %d channels, not 3", y->c);
    if (cpu_check_place(d, "image", "the bytes", u8, (uint64_t)cpu_pixels(y) * 3) < 0)
        return -1;
    image_job_t j = {cpu_ptr(d, u8), y};
    cpu_share(d, image_range, &j, cpu_pixels(y), 1 << 14);
    return 0;
}
