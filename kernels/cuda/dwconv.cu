/* Depthwise 3x3 convolution, stride 1, padding 1; weights [3][3][c] in the tensors' format (dw in
 * float32). y is overwritten, dx overwritten or added to, dw added to.
 *
 * Forward and data gradient are one kernel, the latter with the weights turned by 180 degrees. An
 * item is DW_STRIP neighbouring pixels of a row: a thread loads each pixel of the three rows once for
 * up to three results. The weight gradient's item is a row: the thread keeps nine sums for each
 * channel and a window of three of dy's pixels, so that a step along the row costs four loads.
 */
#include "kernels/cuda/tile.cuh"

enum { DW_STRIP = 4 };

typedef struct {
    int h, w, c;
    int strips; /* a row */
    int turned, acc;
} dw_map_t;

/* Adds one row of the window to the strip's sums: x0, the strip's first pixel. */
template <typename T, int V>
__device__ __forceinline__ void dw_row(const dw_map_t &m, const T *row, int64_t ld, const T *w,
                                       int ky, int x0, float (&sum)[DW_STRIP][V])
{
    float wt[3][V];
#pragma unroll
    for (int kx = 0; kx < 3; kx++) {
        const int tap = ky * 3 + kx;
        load(w + (int64_t)(m.turned ? 8 - tap : tap) * m.c, wt[kx]);
    }
#pragma unroll
    for (int i = 0; i < DW_STRIP + 2; i++) {
        const int ix = x0 + i - 1;
        if (ix < 0 || ix >= m.w)
            continue;
        float v[V];
        load(row + ix * ld, v);
#pragma unroll
        for (int kx = 0; kx < 3; kx++) {
            const int to = i - kx; /* its window begins a pixel to the left */
            if (to < 0 || to >= DW_STRIP)
                continue;
#pragma unroll
            for (int k = 0; k < V; k++)
                sum[to][k] += wt[kx][k] * v[k];
        }
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    dwconv(tile_t t, dw_map_t m, const T *x, int64_t x_ld, const T *w, T *y, int64_t y_ld)
{
    const tile_spot_t at = tile_spot(t);
    x += at.group * V;
    w += at.group * V;
    y += at.group * V;
    for (int64_t i = at.item; i < t.items; i += at.step) {
        const int64_t row = tile_divide(i, m.strips);
        const int x0 = (int)(i - row * m.strips) * DW_STRIP;
        const int py = (int)(row - tile_divide(row, m.h) * m.h);
        float sum[DW_STRIP][V] = {};
#pragma unroll
        for (int ky = 0; ky < 3; ky++)
            if (py + ky >= 1 && py + ky <= m.h)
                dw_row<T, V>(m, x + (row + ky - 1) * m.w * x_ld, x_ld, w, ky, x0, sum);
#pragma unroll
        for (int j = 0; j < DW_STRIP; j++) {
            if (x0 + j >= m.w)
                break;
            T *to = y + (row * m.w + x0 + j) * y_ld;
            if (m.acc) {
                float old[V];
                load(to, old);
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum[j][k] += old[k];
            }
            store(to, sum[j]);
        }
    }
}

/* dw[ky][kx] = sum of x[y + ky - 1][x + kx - 1] * dy[y][x]: for x's pixel `ix` of a row, dy's pixels
 * ix + 1, ix, ix - 1 for kx = 0, 1, 2. */
template <typename T, int V>
__device__ __forceinline__ void dw_products(const dw_map_t &m, const T *x, int64_t x_ld,
                                            const T *dy, int64_t dy_ld, int py, float (&sum)[9][V])
{
    float g[3][V] = {};
    load(dy, g[1]);
    for (int ix = 0; ix < m.w; ix++) {
        if (ix + 1 < m.w) {
            load(dy + (ix + 1) * dy_ld, g[0]);
        } else {
#pragma unroll
            for (int k = 0; k < V; k++)
                g[0][k] = 0.0f;
        }
#pragma unroll
        for (int ky = 0; ky < 3; ky++) {
            if (py + ky < 1 || py + ky > m.h)
                continue;
            float v[V];
            load(x + ((int64_t)(ky - 1) * m.w + ix) * x_ld, v);
#pragma unroll
            for (int kx = 0; kx < 3; kx++)
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum[ky * 3 + kx][k] += v[k] * g[kx][k];
        }
#pragma unroll
        for (int k = 0; k < V; k++) {
            g[2][k] = g[1][k];
            g[1][k] = g[0][k];
        }
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    dwconv_dw(tile_t t, dw_map_t m, const T *x, int64_t x_ld, const T *dy, int64_t dy_ld,
              double *parts)
{
    __shared__ double lanes[V * TILE_THREADS];
    const tile_spot_t at = tile_spot(t);
    float sum[9][V] = {};
    x += at.group * V;
    dy += at.group * V;
    for (int64_t row = at.item; row < t.items; row += at.step) {
        const int py = (int)(row - tile_divide(row, m.h) * m.h);
        dw_products<T, V>(m, x + row * m.w * x_ld, x_ld, dy + row * m.w * dy_ld, dy_ld, py, sum);
    }
    parts += (int64_t)blockIdx.x * 9 * m.c + at.group * V;
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        double of[V];
#pragma unroll
        for (int k = 0; k < V; k++)
            of[k] = sum[tap][k];
        tile_sums(t, of, lanes);
        if (at.row == 0 && at.group < t.groups)
#pragma unroll
            for (int k = 0; k < V; k++)
                parts[tap * m.c + k] = of[k];
    }
}

static int dw_check(cuda_dev_t *dev, const char *op, const k_tensor_t *x, const k_tensor_t *y)
{
    if (cuda_check_tensor(dev, op, "x", x) < 0 || cuda_check_tensor(dev, op, "y", y) < 0)
        return -1;
    return cuda_check_same(dev, op, x, y);
}

static int dw_apply(cuda_dev_t *dev, const char *op, const k_tensor_t *x, k_at w,
                    const k_tensor_t *y, int turned, int acc)
{
    const uint64_t size = cuda_size(x->dtype);
    if (dw_check(dev, op, x, y) < 0 ||
        cuda_check_place(dev, op, "weights", w, (uint64_t)x->c * 9 * size, (uint32_t)size) < 0)
        return -1;
    const int strips = (x->w + DW_STRIP - 1) / DW_STRIP;
    const dw_map_t m = {x->h, x->w, x->c, strips, turned, acc};
    const int vector = cuda_vector(x) && cuda_vector(y) && w % 16 == 0;
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, vector, T, V, {
        const tile_t t = tile_share(dev, (int64_t)x->n * x->h * strips, x->c / V, 1);
        dwconv<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, m, (const T *)cuda_ptr(dev, x->at), x->ld, (const T *)cuda_ptr(dev, w),
            (T *)cuda_ptr(dev, y->at), y->ld);
    });
    return cuda_launched(dev, op);
}

int cuda_dwconv(k_dev_t *dev, const k_tensor_t *x, k_at w, const k_tensor_t *y)
{
    return dw_apply(cuda_dev(dev), "dwconv", x, w, y, 0, 0);
}

int cuda_dwconv_dx(k_dev_t *dev, const k_tensor_t *dy, k_at w, const k_tensor_t *dx, int acc)
{
    return dw_apply(cuda_dev(dev), "dwconv_dx", dy, w, dx, 1, acc);
}

int cuda_dwconv_dw(k_dev_t *device, const k_tensor_t *x, const k_tensor_t *dy, k_at dw)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "dwconv_dw";
    if (dw_check(dev, op, x, dy) < 0 || tile_check_sums(dev, op, 9 * (int64_t)x->c) < 0 ||
        cuda_check_place(dev, op, "dw", dw, (uint64_t)x->c * 9 * sizeof(float), sizeof(float)) < 0)
        return -1;
    const dw_map_t m = {x->h, x->w, x->c, 0, 0, 0};
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(x) && cuda_vector(dy), T, V, {
        const tile_t t = tile_share_sums(dev, (int64_t)x->n * x->h, x->c / V, x->w, 9 * x->c);
        dwconv_dw<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, m, (const T *)cuda_ptr(dev, x->at), x->ld, (const T *)cuda_ptr(dev, dy->at), dy->ld,
            (double *)(void *)dev->scratch);
        cuda_add_parts(dev, t.blocks, 9 * x->c, NULL, cuda_f32(dev, dw), NULL, 9 * x->c);
    });
    return cuda_launched(dev, op);
}
