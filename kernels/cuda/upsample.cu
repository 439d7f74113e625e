/* Nearest-neighbour enlargement by 2 and its gradient, the sum of the four copies. y is overwritten;
 * dx overwritten or added to. Item: a pixel of the small image. */
#include "kernels/cuda/tile.cuh"

/* Of a small pixel, the large pixel at its top left. */
__device__ __forceinline__ int64_t upsample_corner(int64_t pixel, int w)
{
    const int64_t row = tile_divide(pixel, w);
    return 4 * row * w + 2 * (pixel - row * w);
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    upsample(tile_t t, int w, const T *x, int64_t x_ld, T *y, int64_t y_ld)
{
    const tile_spot_t at = tile_spot(t);
    x += at.group * V;
    y += at.group * V;
    for (int64_t i = at.item; i < t.items; i += at.step) {
        float v[V];
        T *to = y + upsample_corner(i, w) * y_ld;
        load(x + i * x_ld, v);
        store(to, v);
        store(to + y_ld, v);
        store(to + 2 * w * y_ld, v);
        store(to + (2 * w + 1) * y_ld, v);
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    upsample_dx(tile_t t, int w, const T *dy, int64_t dy_ld, T *dx, int64_t dx_ld, int acc)
{
    const tile_spot_t at = tile_spot(t);
    dy += at.group * V;
    dx += at.group * V;
    for (int64_t i = at.item; i < t.items; i += at.step) {
        float v[4][V], old[V] = {};
        const T *from = dy + upsample_corner(i, w) * dy_ld;
        load(from, v[0]);
        load(from + dy_ld, v[1]);
        load(from + 2 * w * dy_ld, v[2]);
        load(from + (2 * w + 1) * dy_ld, v[3]);
        if (acc)
            load(dx + i * dx_ld, old);
#pragma unroll
        for (int k = 0; k < V; k++)
            old[k] += (v[0][k] + v[1][k]) + (v[2][k] + v[3][k]);
        store(dx + i * dx_ld, old);
    }
}

static int upsample_check(cuda_dev_t *dev, const char *op, const k_tensor_t *small,
                          const k_tensor_t *large)
{
    if (cuda_check_tensor(dev, op, "the small tensor", small) < 0 ||
        cuda_check_tensor(dev, op, "the large tensor", large) < 0)
        return -1;
    if (small->n != large->n || 2 * small->h != large->h || 2 * small->w != large->w ||
        small->c != large->c)
        return cuda_fail(dev, "%s: %d x %d x %d x %d is not %d x %d x %d x %d twice as large", op,
                         large->n, large->h, large->w, large->c, small->n, small->h, small->w,
                         small->c);
    if (small->dtype != large->dtype)
        return cuda_fail(dev, "%s: the tensors' formats differ", op);
    return 0;
}

int cuda_upsample(k_dev_t *device, const k_tensor_t *x, const k_tensor_t *y)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (upsample_check(dev, "upsample", x, y) < 0)
        return -1;
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(x) && cuda_vector(y), T, V, {
        const tile_t t = tile_share(dev, cuda_pixels(x), x->c / V, 1);
        upsample<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, x->w, (const T *)cuda_ptr(dev, x->at), x->ld, (T *)cuda_ptr(dev, y->at), y->ld);
    });
    return cuda_launched(dev, "upsample");
}

int cuda_upsample_dx(k_dev_t *device, const k_tensor_t *dy, const k_tensor_t *dx, int acc)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (upsample_check(dev, "upsample_dx", dx, dy) < 0)
        return -1;
    CUDA_BY_TYPE_AND_WIDTH(dx->dtype, cuda_vector(dx) && cuda_vector(dy), T, V, {
        const tile_t t = tile_share(dev, cuda_pixels(dx), dx->c / V, 1);
        upsample_dx<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, dx->w, (const T *)cuda_ptr(dev, dy->at), dy->ld, (T *)cuda_ptr(dev, dx->at), dx->ld,
            acc);
    });
    return cuda_launched(dev, "upsample_dx");
}
