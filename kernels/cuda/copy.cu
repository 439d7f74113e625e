/* y = x or y += x between tensors that may be channel slices; and float32 values to another format
 * (the convolutions' copy of the weights). */
#include "kernels/cuda/tile.cuh"

enum { COPY_LOADS = 4, CAST_WIDTH = 4, CAST_THREADS = 256 };

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    copy(tile_t t, const T *x, int64_t x_ld, T *y, int64_t y_ld, int acc)
{
    const tile_spot_t at = tile_spot(t);
    x += at.group * V;
    y += at.group * V;
    for (int64_t i = at.item; i < t.items; i += COPY_LOADS * at.step) {
        float v[COPY_LOADS][V], old[COPY_LOADS][V] = {};
#pragma unroll
        for (int u = 0; u < COPY_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
            load(x + (i + u * at.step) * x_ld, v[u]);
            if (acc)
                load(y + (i + u * at.step) * y_ld, old[u]);
        }
#pragma unroll
        for (int u = 0; u < COPY_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
            if (acc)
#pragma unroll
                for (int k = 0; k < V; k++)
                    v[u][k] += old[u][k];
            store(y + (i + u * at.step) * y_ld, v[u]);
        }
    }
}

int cuda_copy(k_dev_t *device, const k_tensor_t *x, const k_tensor_t *y, int acc)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (cuda_check_tensor(dev, "copy", "x", x) < 0 || cuda_check_tensor(dev, "copy", "y", y) < 0 ||
        cuda_check_same(dev, "copy", x, y) < 0)
        return -1;
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(x) && cuda_vector(y), T, V, {
        const tile_t t = tile_share(dev, cuda_pixels(x), x->c / V, COPY_LOADS);
        copy<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, (const T *)cuda_ptr(dev, x->at), x->ld, (T *)cuda_ptr(dev, y->at), y->ld, acc);
    });
    return cuda_launched(dev, "copy");
}

/* `wide` values are taken CAST_WIDTH at a time, the rest one by one. */
template <typename T>
static __global__ void __launch_bounds__(CAST_THREADS)
    cast(const float *src, T *dst, int64_t count, int64_t wide)
{
    const int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = me * CAST_WIDTH; i < wide; i += threads * CAST_WIDTH) {
        float v[CAST_WIDTH];
        load(src + i, v);
        store(dst + i, v);
    }
    for (int64_t i = wide + me; i < count; i += threads)
        dst[i] = from_float<T>(src[i]);
}

int cuda_cast(k_dev_t *device, k_at src, k_at dst, k_dtype_t dtype, uint64_t count)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (count < 1 || count > dev->arena_bytes / sizeof(float) || dtype < K_F32 || dtype > K_F16)
        return cuda_fail(dev, "cast: %llu values to format %d are impossible",
                         (unsigned long long)count, (int)dtype);
    const uint64_t size = cuda_size(dtype);
    if (cuda_check_place(dev, "cast", "src", src, count * sizeof(float), sizeof(float)) < 0 ||
        cuda_check_place(dev, "cast", "dst", dst, count * size, (uint32_t)size) < 0)
        return -1;
    const int aligned = src % 16 == 0 && dst % (CAST_WIDTH * size) == 0;
    const int64_t wide = aligned ? (int64_t)(count / CAST_WIDTH * CAST_WIDTH) : 0;
    const int blocks = cuda_blocks(dev, aligned ? wide / CAST_WIDTH : (int64_t)count, CAST_THREADS);
    CUDA_BY_TYPE(dtype, T, {
        cast<T><<<(unsigned)blocks, CAST_THREADS, 0, cuda_main(dev)>>>(
            cuda_f32(dev, src), (T *)cuda_ptr(dev, dst), (int64_t)count, wide);
    });
    return cuda_launched(dev, "cast");
}
