/* What surrounds a convolution: y += bias by channel; dbias += sums of dy by channel; weight
 * gradients, in the format that the library wrote them, added to those in float32. */
#include "kernels/cuda/tile.cuh"

enum { BIAS_LOADS = 4, ADD_WIDTH = 4, ADD_THREADS = 256 };

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    bias(tile_t t, T *y, int64_t ld, const float *values)
{
    const tile_spot_t at = tile_spot(t);
    if (at.item >= t.items)
        return;
    float b[V];
#pragma unroll
    for (int k = 0; k < V; k++)
        b[k] = values[at.group * V + k];
    y += at.group * V;
    for (int64_t i = at.item; i < t.items; i += BIAS_LOADS * at.step) {
        float v[BIAS_LOADS][V];
#pragma unroll
        for (int u = 0; u < BIAS_LOADS; u++)
            if (i + u * at.step < t.items)
                load(y + (i + u * at.step) * ld, v[u]);
#pragma unroll
        for (int u = 0; u < BIAS_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
#pragma unroll
            for (int k = 0; k < V; k++)
                v[u][k] += b[k];
            store(y + (i + u * at.step) * ld, v[u]);
        }
    }
}

int cuda_bias(cuda_dev_t *dev, const k_tensor_t *y, k_at values)
{
    CUDA_BY_TYPE_AND_WIDTH(y->dtype, cuda_vector(y), T, V, {
        const tile_t t = tile_share(dev, cuda_pixels(y), y->c / V, BIAS_LOADS);
        bias<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, (T *)cuda_ptr(dev, y->at), y->ld, cuda_f32(dev, values));
    });
    return cuda_launched(dev, "conv: bias");
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    bias_grad(tile_t t, const T *dy, int64_t ld, int c, double *parts)
{
    __shared__ double lanes[V * TILE_THREADS];
    const tile_spot_t at = tile_spot(t);
    float sum[V] = {};
    double of[V];
    dy += at.group * V;
    for (int64_t i = at.item; i < t.items; i += BIAS_LOADS * at.step) {
        float v[BIAS_LOADS][V] = {};
#pragma unroll
        for (int u = 0; u < BIAS_LOADS; u++)
            if (i + u * at.step < t.items)
                load(dy + (i + u * at.step) * ld, v[u]);
#pragma unroll
        for (int u = 0; u < BIAS_LOADS; u++)
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[k] += v[u][k];
    }
#pragma unroll
    for (int k = 0; k < V; k++)
        of[k] = sum[k];
    tile_sums(t, of, lanes);
    if (at.row == 0 && at.group < t.groups)
#pragma unroll
        for (int k = 0; k < V; k++)
            parts[(int64_t)blockIdx.x * c + at.group * V + k] = of[k];
}

int cuda_bias_grad(cuda_dev_t *dev, const k_tensor_t *dy, k_at dbias)
{
    const int c = dy->c;
    if (tile_check_sums(dev, "conv_dw", c) < 0)
        return -1;
    CUDA_BY_TYPE_AND_WIDTH(dy->dtype, cuda_vector(dy), T, V, {
        const tile_t t = tile_share_sums(dev, cuda_pixels(dy), c / V, 1, c);
        bias_grad<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, (const T *)cuda_ptr(dev, dy->at), dy->ld, c, (double *)(void *)dev->scratch);
        cuda_add_parts(dev, t.blocks, c, NULL, cuda_f32(dev, dbias), NULL, c);
    });
    return cuda_launched(dev, "conv_dw: dbias");
}

/* `wide` values are taken ADD_WIDTH at a time, the rest one by one. */
template <typename T>
static __global__ void __launch_bounds__(ADD_THREADS)
    add_weights(const T *src, float *dst, int64_t count, int64_t wide)
{
    const int64_t me = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = me * ADD_WIDTH; i < wide; i += threads * ADD_WIDTH) {
        float v[ADD_WIDTH], old[ADD_WIDTH];
        load(src + i, v);
        load(dst + i, old);
#pragma unroll
        for (int k = 0; k < ADD_WIDTH; k++)
            v[k] += old[k];
        store(dst + i, v);
    }
    for (int64_t i = wide + me; i < count; i += threads)
        dst[i] += to_float(src[i]);
}

int cuda_add_weights(cuda_dev_t *dev, const void *src, k_dtype_t dtype, k_at dst, uint64_t count)
{
    const int aligned = dst % 16 == 0 && (uintptr_t)src % 16 == 0;
    const int64_t wide = aligned ? (int64_t)(count / ADD_WIDTH * ADD_WIDTH) : 0;
    const int blocks = cuda_blocks(dev, aligned ? wide / ADD_WIDTH : (int64_t)count, ADD_THREADS);
    CUDA_BY_TYPE(dtype, T, {
        add_weights<T><<<(unsigned)blocks, ADD_THREADS, 0, cuda_main(dev)>>>(
            (const T *)src, cuda_f32(dev, dst), (int64_t)count, wide);
    });
    return cuda_launched(dev, "conv_dw: adding");
}
