/* Exponential moving average of weights and buffers: dst = d * dst + (1 - d) * src (facts/yolo.md
 * 4.6). */
#include "kernels/cuda/types.cuh"

enum { EMA_THREADS = 256 };

static __global__ void ema(const float4 *src, float4 *dst, int64_t quads, const k_hyper_t *hyper)
{
    const float d = hyper->ema_decay, e = 1.0f - d;
    const int64_t step = (int64_t)gridDim.x * EMA_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * EMA_THREADS + threadIdx.x; i < quads; i += step) {
        const float4 s = src[i], o = dst[i];
        dst[i] =
            make_float4(d * o.x + e * s.x, d * o.y + e * s.y, d * o.z + e * s.z, d * o.w + e * s.w);
    }
}

extern "C" int cuda_ema(k_dev_t *base, k_at src, k_at dst, uint64_t count, k_at hyper)
{
    cuda_dev_t *dev = cuda_dev(base);
    if (cuda_check_place(dev, "ema", "src", src, count * sizeof(float), 16) < 0 ||
        cuda_check_place(dev, "ema", "dst", dst, count * sizeof(float), 16) < 0 ||
        cuda_check_place(dev, "ema", "hyper", hyper, sizeof(k_hyper_t), 4) < 0)
        return -1;
    if (count % 4 != 0)
        return cuda_fail(dev, "ema: %llu floats, not a multiple of 4", (unsigned long long)count);
    ema<<<cuda_blocks(dev, (int64_t)count / 4, EMA_THREADS), EMA_THREADS, 0, cuda_main(dev)>>>(
        (const float4 *)cuda_ptr(dev, src), (float4 *)cuda_ptr(dev, dst), (int64_t)count / 4,
        (const k_hyper_t *)cuda_ptr(dev, hyper));
    return cuda_launched(dev, "ema");
}
