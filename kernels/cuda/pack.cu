/* Copies for the library where it does not take tensors as they lie: pixels of a channel slice
 * without the gaps, channels padded with zeros to a number that tensor cores take; weights the same
 * way; and weight gradients back. */
#include "kernels/cuda/conv.h"
#include "kernels/cuda/tile.cuh"

enum { PACK_THREADS = 256, PACK_LOADS = 4 };

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    pack(tile_t t, const T *src, int64_t rows, int c, int64_t ld, T *dst, int dst_c)
{
    const tile_spot_t at = tile_spot(t);
    const int first = at.group * V;
    dst += first;
    src += first;
    for (int64_t i = at.item; i < t.items; i += PACK_LOADS * at.step) {
        float v[PACK_LOADS][V] = {};
#pragma unroll
        for (int u = 0; u < PACK_LOADS; u++)
            if (i + u * at.step < rows && first < c)
                load(src + (i + u * at.step) * ld, v[u]);
#pragma unroll
        for (int u = 0; u < PACK_LOADS; u++)
            if (i + u * at.step < t.items)
                store(dst + (i + u * at.step) * dst_c, v[u]);
    }
}

int cuda_conv_pack(cuda_dev_t *dev, k_dtype_t dtype, const void *src, int64_t rows, int32_t c,
                   int64_t ld, void *dst, int64_t dst_rows, int32_t dst_c)
{
    const int wide_c = (int)(16 / cuda_size(dtype));
    const int vector = c % wide_c == 0 && ld % wide_c == 0 && dst_c % wide_c == 0 &&
                       (uintptr_t)src % 16 == 0 && (uintptr_t)dst % 16 == 0;
    CUDA_BY_TYPE_AND_WIDTH(dtype, vector, T, V, {
        const tile_t t = tile_share(dev, dst_rows, dst_c / V, PACK_LOADS);
        pack<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(t, (const T *)src, rows, c,
                                                                         ld, (T *)dst, dst_c);
    });
    return cuda_launched(dev, "conv: packing");
}

template <typename T>
static __global__ void __launch_bounds__(PACK_THREADS)
    add_rows(const T *src, int src_c, float *dst, int64_t count, int c)
{
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
        const int64_t row = tile_divide(i, c);
        dst[i] += to_float(src[row * src_c + (i - row * c)]);
    }
}

int cuda_conv_add_rows(cuda_dev_t *dev, k_dtype_t dtype, const void *src, int32_t src_c, k_at dst,
                       int64_t rows, int32_t c)
{
    const int64_t count = rows * c;
    CUDA_BY_TYPE(dtype, T, {
        add_rows<T>
            <<<(unsigned)cuda_blocks(dev, count, PACK_THREADS), PACK_THREADS, 0, cuda_main(dev)>>>(
                (const T *)src, src_c, cuda_f32(dev, dst), count, c);
    });
    return cuda_launched(dev, "conv_dw: adding");
}
