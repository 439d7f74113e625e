/* Exponential moving average of weights and buffers: dst = d * dst + (1 - d) * src
 * (facts/yolo.md 4.6). */
#include "kernels/cpu/cpu.h"

typedef struct {
    const float *src;
    float *dst;
    float d;
} ema_t;

CPU_VECTOR static void ema_run(const float *restrict src, float *restrict dst, int64_t n, float d)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = d * dst[i] + (1 - d) * src[i];
}

static void ema_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const ema_t *e = ctx;
    (void)dev, (void)thread;
    ema_run(e->src + first, e->dst + first, last - first, e->d);
}

int cpu_ema(k_dev_t *base, k_at src, k_at dst, uint64_t count, k_at hyper)
{
    cpu_dev_t *dev = cpu_dev(base);
    if (cpu_check_place(dev, "ema", "src", src, count * sizeof(float)) < 0 ||
        cpu_check_place(dev, "ema", "dst", dst, count * sizeof(float)) < 0 ||
        cpu_check_place(dev, "ema", "hyper", hyper, sizeof(k_hyper_t)) < 0)
        return -1;
    ema_t e = {cpu_f32(dev, src), cpu_f32(dev, dst),
               ((const k_hyper_t *)cpu_ptr(dev, hyper))->ema_decay};
    cpu_parallel(dev, ema_range, &e, (int64_t)count);
    return 0;
}
