/* Max pooling, stride 1, k x k, padded with -inf. y and index are overwritten; dx overwritten or
 * added to.
 *
 * The index is the window's place ky * k + kx of the first maximum in row order; a NaN in the window
 * is the maximum. The gradient gathers: an input pixel asks each window that holds it whether its
 * index points back, and reads dy only where one of the thread's channels does.
 */
#include "kernels/cuda/tile.cuh"

enum { POOL_K_MAX = 15 }; /* k * k fits the index */

typedef struct {
    int h, w, c, k;
    int acc;
} pool_map_t;

/* A pixel's row and column. */
__device__ __forceinline__ void pool_spot(const pool_map_t &m, int64_t pixel, int &py, int &px)
{
    const int64_t row = tile_divide(pixel, m.w);
    px = (int)(pixel - row * m.w);
    py = (int)(row - tile_divide(row, m.h) * m.h);
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    maxpool(tile_t t, pool_map_t m, const T *x, int64_t x_ld, T *y, int64_t y_ld, uint8_t *index)
{
    const tile_spot_t at = tile_spot(t);
    const int pad = m.k / 2;
    x += at.group * V;
    y += at.group * V;
    index += at.group * V;
    for (int64_t i = at.item; i < t.items; i += at.step) {
        int py, px, started = 0;
        float best[V];
        pack_t<uint8_t, V> place;
        pool_spot(m, i, py, px);
        for (int ky = 0; ky < m.k; ky++) {
            if (py + ky < pad || py + ky >= m.h + pad)
                continue;
            for (int kx = 0; kx < m.k; kx++) {
                if (px + kx < pad || px + kx >= m.w + pad)
                    continue;
                float v[V];
                load(x + (i + (int64_t)(ky - pad) * m.w + kx - pad) * x_ld, v);
#pragma unroll
                for (int k = 0; k < V; k++) {
                    if (started && !(v[k] > best[k] || v[k] != v[k]))
                        continue;
                    best[k] = v[k];
                    place.v[k] = (uint8_t)(ky * m.k + kx);
                }
                started = 1;
            }
        }
        store(y + i * y_ld, best);
        *reinterpret_cast<pack_t<uint8_t, V> *>(index + i * m.c) = place;
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    maxpool_dx(tile_t t, pool_map_t m, const T *dy, int64_t dy_ld, const uint8_t *index, T *dx,
               int64_t dx_ld)
{
    const tile_spot_t at = tile_spot(t);
    const int pad = m.k / 2;
    dy += at.group * V;
    dx += at.group * V;
    index += at.group * V;
    for (int64_t i = at.item; i < t.items; i += at.step) {
        int py, px;
        float sum[V] = {};
        pool_spot(m, i, py, px);
        if (m.acc)
            load(dx + i * dx_ld, sum);
        for (int ky = 0; ky < m.k; ky++) {
            if (py + pad < ky || py + pad - ky >= m.h)
                continue;
            for (int kx = 0; kx < m.k; kx++) {
                if (px + pad < kx || px + pad - kx >= m.w)
                    continue;
                const int64_t from = i + (int64_t)(pad - ky) * m.w + pad - kx;
                const pack_t<uint8_t, V> place =
                    *reinterpret_cast<const pack_t<uint8_t, V> *>(index + from * m.c);
                int any = 0;
#pragma unroll
                for (int k = 0; k < V; k++)
                    any |= place.v[k] == ky * m.k + kx;
                if (!any)
                    continue;
                float g[V];
                load(dy + from * dy_ld, g);
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum[k] += place.v[k] == ky * m.k + kx ? g[k] : 0.0f;
            }
        }
        store(dx + i * dx_ld, sum);
    }
}

static int pool_check(cuda_dev_t *dev, const char *op, int32_t k, const k_tensor_t *x,
                      const k_tensor_t *y, k_at index)
{
    if (k < 1 || k > POOL_K_MAX || k % 2 == 0)
        return cuda_fail(dev, "%s: window %d: odd windows up to %d are possible", op, k,
                         POOL_K_MAX);
    if (cuda_check_tensor(dev, op, "x", x) < 0 || cuda_check_tensor(dev, op, "y", y) < 0 ||
        cuda_check_same(dev, op, x, y) < 0)
        return -1;
    return cuda_check_place(dev, op, "index", index, (uint64_t)cuda_pixels(x) * (uint64_t)x->c, 1);
}

int cuda_maxpool(k_dev_t *device, int32_t k, const k_tensor_t *x, const k_tensor_t *y, k_at index)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (pool_check(dev, "maxpool", k, x, y, index) < 0)
        return -1;
    const pool_map_t m = {x->h, x->w, x->c, k, 0};
    const int vector = cuda_vector(x) && cuda_vector(y) && index % 8 == 0;
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, vector, T, V, {
        const tile_t t = tile_share(dev, cuda_pixels(x), x->c / V, 1);
        maxpool<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, m, (const T *)cuda_ptr(dev, x->at), x->ld, (T *)cuda_ptr(dev, y->at), y->ld,
            (uint8_t *)cuda_ptr(dev, index));
    });
    return cuda_launched(dev, "maxpool");
}

int cuda_maxpool_dx(k_dev_t *device, int32_t k, const k_tensor_t *dy, k_at index,
                    const k_tensor_t *dx, int acc)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (pool_check(dev, "maxpool_dx", k, dx, dy, index) < 0)
        return -1;
    const pool_map_t m = {dx->h, dx->w, dx->c, k, acc};
    const int vector = cuda_vector(dx) && cuda_vector(dy) && index % 8 == 0;
    CUDA_BY_TYPE_AND_WIDTH(dx->dtype, vector, T, V, {
        const tile_t t = tile_share(dev, cuda_pixels(dx), dx->c / V, 1);
        maxpool_dx<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, m, (const T *)cuda_ptr(dev, dy->at), dy->ld, (const uint8_t *)cuda_ptr(dev, index),
            (T *)cuda_ptr(dev, dx->at), dx->ld);
    });
    return cuda_launched(dev, "maxpool_dx");
}
