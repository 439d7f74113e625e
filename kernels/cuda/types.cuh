/* Formats inside kernels: elements of K_F32, K_BF16 and K_F16 as float32, alone and 16 bytes at a
 * time. A kernel is a template over the element type; CUDA_BY_TYPE picks the instance. */
#ifndef SLUICE_KERNELS_CUDA_TYPES_CUH
#define SLUICE_KERNELS_CUDA_TYPES_CUH

#include "kernels/cuda/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef __nv_bfloat16 bf16_t;
typedef __half f16_t;

__device__ __forceinline__ float to_float(float v)
{
    return v;
}
__device__ __forceinline__ float to_float(bf16_t v)
{
    return __bfloat162float(v);
}
__device__ __forceinline__ float to_float(f16_t v)
{
    return __half2float(v);
}
template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v)
{
    return v;
}
template <> __device__ __forceinline__ bf16_t from_float<bf16_t>(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ __forceinline__ f16_t from_float<f16_t>(float v)
{
    return __float2half_rn(v);
}

/* V neighbouring elements: 16 bytes where V = wide<T>(), one element where V = 1. */
template <typename T> __host__ __device__ constexpr int wide()
{
    return (int)(16 / sizeof(T));
}
template <typename T, int V> struct alignas(sizeof(T) * V) pack_t {
    T v[V];
};
template <typename T, int V> __device__ __forceinline__ void load(const T *from, float (&to)[V])
{
    const pack_t<T, V> p = *reinterpret_cast<const pack_t<T, V> *>(from);
#pragma unroll
    for (int i = 0; i < V; i++)
        to[i] = to_float(p.v[i]);
}
template <typename T, int V> __device__ __forceinline__ void store(T *to, const float (&from)[V])
{
    pack_t<T, V> p;
#pragma unroll
    for (int i = 0; i < V; i++)
        p.v[i] = from_float<T>(from[i]);
    *reinterpret_cast<pack_t<T, V> *>(to) = p;
}

/* Runs the statement with T the element type of `dtype`. */
#define CUDA_BY_TYPE(dtype, T, ...)                                                                \
    do {                                                                                           \
        switch (dtype) {                                                                           \
        case K_F32: {                                                                              \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case K_BF16: {                                                                             \
            typedef bf16_t T;                                                                      \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        case K_F16: {                                                                              \
            typedef f16_t T;                                                                       \
            __VA_ARGS__;                                                                           \
            break;                                                                                 \
        }                                                                                          \
        }                                                                                          \
    } while (0)
/* The same, with V = wide<T>() when `vector` is true and 1 otherwise. */
#define CUDA_BY_TYPE_AND_WIDTH(dtype, vector, T, V, ...)                                           \
    CUDA_BY_TYPE(                                                                                  \
        dtype, T,                                                                                  \
        if (vector) {                                                                              \
            constexpr int V = wide<T>();                                                           \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int V = 1;                                                                   \
            __VA_ARGS__;                                                                           \
        })

/* exp, sigmoid and SiLU in float32; results of half a unit in the last place more or less. */
__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Sums a value over the block's threads; every thread calls it, thread 0 has the result. `lanes`:
 * shared memory of 32 values. The order is fixed, so the result is the same in every run. */
template <typename A> __device__ __forceinline__ A block_sum(A v, A *lanes)
{
    for (int step = 16; step > 0; step /= 2)
        v += __shfl_down_sync(0xffffffffu, v, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        lanes[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < (blockDim.x + 31) / 32 ? lanes[threadIdx.x] : A(0);
        for (int step = 16; step > 0; step /= 2)
            v += __shfl_down_sync(0xffffffffu, v, step);
    }
    return v;
}

/* Blocks of `threads` for `items`, at most as many as keep the device full: kernels stride. */
static inline int cuda_blocks(const cuda_dev_t *dev, int64_t items, int threads)
{
    int64_t need = (items + threads - 1) / threads, most = (int64_t)dev->sms * 16;
    return (int)(need < 1 ? 1 : need < most ? need : most);
}

#endif
