/* Convolution of any shape and pitch by our own kernel: where the library has no engine, and the
 * data gradient of the first layer, which training never asks for. Arithmetic in float32, without
 * tensor cores; no work memory.
 *
 * All three directions are a product [m][depth] * [depth][n] whose factors are gathered as they are
 * needed (i: input row or column, o: output, p: pixels):
 *   forward  y[p][c2]       = x(p, tap, c1)          * w[tap, c1][c2]
 *   dx       dx[p][c1]      = dy(p, tap, c2)         * w[tap, c2][c1],  o = (i + pad - tap) / s
 *   dw       dw[c2][tap,c1] = dy[p][c2] transposed   * x(p, tap, c1)
 * A block computes PLAIN_TILE squared of it, PLAIN_STEP deep at a time. For dw the depth is cut into
 * parts: each block adds up one, and cuda_add_parts all of them in order.
 */
#include "kernels/cuda/conv.h"
#include "kernels/cuda/conv_graph.h"
#include "kernels/cuda/tile.cuh"

enum {
    PLAIN_TILE = 64,
    PLAIN_STEP = 16,
    PLAIN_THREADS = 256,
    PLAIN_EACH = 4,     /* squared: results of a thread */
    PLAIN_LEAST = 1024, /* pixels, of a part of dw */
};

typedef struct {
    const void *x, *w, *y;
    void *to;                              /* y, dx, dw, or the parts of dw in double */
    int64_t x_ld, y_ld, m, n, depth, part; /* part: depth of one part */
    int h, w_x, oh, ow, c1, c2, k, s, pad, acc, parts;
} plain_t;

/* An output pixel's value of x at a tap, 0 beyond the border. */
template <typename T>
__device__ __forceinline__ float plain_x(const plain_t &j, int64_t p, int tap, int c)
{
    const int64_t line = tile_divide(p, j.ow), image = tile_divide(line, j.oh);
    const int iy = (int)(line - image * j.oh) * j.s + tap / j.k - j.pad;
    const int ix = (int)(p - line * j.ow) * j.s + tap % j.k - j.pad;
    if (iy < 0 || iy >= j.h || ix < 0 || ix >= j.w_x)
        return 0.0f;
    return to_float(((const T *)j.x)[((image * j.h + iy) * j.w_x + ix) * j.x_ld + c]);
}

/* The value of dy that reaches an input pixel through a tap, 0 if none does. */
template <typename T>
__device__ __forceinline__ float plain_dy(const plain_t &j, int64_t p, int tap, int c)
{
    const int64_t line = tile_divide(p, j.w_x), image = tile_divide(line, j.h);
    const int iy = (int)(line - image * j.h) + j.pad - tap / j.k;
    const int ix = (int)(p - line * j.w_x) + j.pad - tap % j.k;
    if (iy < 0 || ix < 0 || iy % j.s != 0 || ix % j.s != 0)
        return 0.0f;
    const int oy = iy / j.s, ox = ix / j.s;
    if (oy >= j.oh || ox >= j.ow)
        return 0.0f;
    return to_float(((const T *)j.y)[((image * j.oh + oy) * j.ow + ox) * j.y_ld + c]);
}

/* Factors at (m, d) and (d, n), which are within their ranges. */
template <typename T, int D>
__device__ __forceinline__ float plain_left(const plain_t &j, int64_t m, int64_t d)
{
    if (D == CONV_DW)
        return to_float(((const T *)j.y)[d * j.y_ld + m]);
    const int c = D == CONV_FORWARD ? j.c1 : j.c2, tap = (int)d / c;
    return D == CONV_FORWARD ? plain_x<T>(j, m, tap, (int)d - tap * c)
                             : plain_dy<T>(j, m, tap, (int)d - tap * c);
}
template <typename T, int D>
__device__ __forceinline__ float plain_right(const plain_t &j, int64_t d, int64_t n)
{
    const T *w = (const T *)j.w;
    if (D == CONV_FORWARD)
        return to_float(w[n * j.depth + d]);
    if (D == CONV_DX) {
        const int tap = (int)d / j.c2;
        return to_float(w[((d - (int64_t)tap * j.c2) * j.k * j.k + tap) * j.c1 + n]);
    }
    const int tap = (int)n / j.c1;
    return plain_x<T>(j, d, tap, (int)n - tap * j.c1);
}

typedef float plain_tile_t[PLAIN_STEP][PLAIN_TILE + 4];

/* One step's factors to shared memory, zeros beyond the ranges; neighbouring threads take what lies
 * side by side in memory. */
template <typename T, int D>
__device__ __forceinline__ void plain_load(const plain_t &j, int64_t m0, int64_t n0, int64_t d0,
                                           int64_t end, plain_tile_t &left, plain_tile_t &right)
{
    for (int e = (int)threadIdx.x; e < PLAIN_TILE * PLAIN_STEP; e += PLAIN_THREADS) {
        const int deep_d = e % PLAIN_STEP, deep_i = e / PLAIN_STEP;
        const int wide_i = e % PLAIN_TILE, wide_d = e / PLAIN_TILE;
        const int ld = D == CONV_DW ? wide_d : deep_d, li = D == CONV_DW ? wide_i : deep_i;
        const int rd = D == CONV_FORWARD ? deep_d : wide_d,
                  ri = D == CONV_FORWARD ? deep_i : wide_i;
        left[ld][li] =
            m0 + li < j.m && d0 + ld < end ? plain_left<T, D>(j, m0 + li, d0 + ld) : 0.0f;
        right[rd][ri] =
            n0 + ri < j.n && d0 + rd < end ? plain_right<T, D>(j, d0 + rd, n0 + ri) : 0.0f;
    }
}

template <typename T, int D>
__device__ __forceinline__ void plain_store(const plain_t &j, int64_t m, int64_t n, float v)
{
    if (D == CONV_DW) {
        if (j.parts > 1)
            ((double *)j.to)[(int64_t)blockIdx.z * j.m * j.n + m * j.n + n] = v;
        else
            ((float *)j.to)[m * j.n + n] += v;
        return;
    }
    T *to = (T *)j.to + m * (D == CONV_FORWARD ? j.y_ld : j.x_ld) + n;
    *to = from_float<T>(D == CONV_DX && j.acc ? to_float(*to) + v : v);
}

template <typename T, int D>
static __global__ void __launch_bounds__(PLAIN_THREADS) plain(plain_t j)
{
    __shared__ plain_tile_t left, right;
    const int64_t m0 = (int64_t)blockIdx.x * PLAIN_TILE, n0 = (int64_t)blockIdx.y * PLAIN_TILE;
    const int64_t from = (int64_t)blockIdx.z * j.part;
    const int64_t end = from + j.part < j.depth ? from + j.part : j.depth;
    const int row = (int)threadIdx.x / (PLAIN_TILE / PLAIN_EACH) * PLAIN_EACH;
    const int column = (int)threadIdx.x % (PLAIN_TILE / PLAIN_EACH) * PLAIN_EACH;
    float sum[PLAIN_EACH][PLAIN_EACH] = {};
    for (int64_t d = from; d < end; d += PLAIN_STEP) {
        plain_load<T, D>(j, m0, n0, d, end, left, right);
        __syncthreads();
#pragma unroll
        for (int q = 0; q < PLAIN_STEP; q++)
#pragma unroll
            for (int a = 0; a < PLAIN_EACH; a++)
#pragma unroll
                for (int b = 0; b < PLAIN_EACH; b++)
                    sum[a][b] += left[q][row + a] * right[q][column + b];
        __syncthreads();
    }
#pragma unroll
    for (int a = 0; a < PLAIN_EACH; a++)
#pragma unroll
        for (int b = 0; b < PLAIN_EACH; b++)
            if (m0 + row + a < j.m && n0 + column + b < j.n)
                plain_store<T, D>(j, m0 + row + a, n0 + column + b, sum[a][b]);
}

static unsigned tiles(int64_t count)
{
    return (unsigned)((count + PLAIN_TILE - 1) / PLAIN_TILE);
}

/* Parts of dw: enough blocks to fill the device, as many as scratch holds. */
static void plain_cut(const cuda_dev_t *dev, plain_t *j)
{
    const int64_t room = CUDA_SCRATCH_BYTES / (j->m * j->n * (int64_t)sizeof(double));
    const int64_t fill = (int64_t)dev->sms * 4 / (tiles(j->m) * (int64_t)tiles(j->n)) + 1;
    int64_t parts = j->depth / PLAIN_LEAST;
    parts = parts < fill ? parts : fill;
    parts = parts < room ? parts : room;
    j->parts = parts > 1 ? (int)parts : 1;
    j->part = (j->depth + j->parts - 1) / j->parts;
}

template <typename T> static void plain_launch(cuda_dev_t *dev, const conv_call_t *c, plain_t *j)
{
    const dim3 grid(tiles(j->m), tiles(j->n), (unsigned)j->parts);
    if (c->direction == CONV_FORWARD)
        plain<T, CONV_FORWARD><<<grid, PLAIN_THREADS, 0, cuda_main(dev)>>>(*j);
    else if (c->direction == CONV_DX)
        plain<T, CONV_DX><<<grid, PLAIN_THREADS, 0, cuda_main(dev)>>>(*j);
    else
        plain<T, CONV_DW><<<grid, PLAIN_THREADS, 0, cuda_main(dev)>>>(*j);
}

int cuda_conv_plain(cuda_dev_t *dev, const conv_call_t *c)
{
    const k_conv_t *p = c->p;
    const k_tensor_t *x = c->x, *y = c->y;
    plain_t j = {};
    j.x = cuda_ptr(dev, x->at);
    j.y = cuda_ptr(dev, y->at);
    j.w = c->direction == CONV_DW ? NULL : cuda_ptr(dev, c->w);
    j.x_ld = x->ld;
    j.y_ld = y->ld;
    j.h = x->h;
    j.w_x = x->w;
    j.oh = y->h;
    j.ow = y->w;
    j.c1 = p->c1;
    j.c2 = p->c2;
    j.k = p->k;
    j.s = p->s;
    j.pad = p->k / 2;
    j.acc = c->acc;
    j.parts = 1;
    const int64_t taps = (int64_t)p->k * p->k;
    if (c->direction == CONV_DW) {
        j.m = p->c2;
        j.n = taps * p->c1;
        j.depth = cuda_pixels(y);
        plain_cut(dev, &j);
        j.to = j.parts > 1 ? (void *)dev->scratch : cuda_ptr(dev, c->dw);
    } else {
        const int forward = c->direction == CONV_FORWARD;
        j.m = cuda_pixels(forward ? y : x);
        j.n = forward ? p->c2 : p->c1;
        j.depth = j.part = taps * (forward ? p->c1 : p->c2);
        j.to = cuda_ptr(dev, forward ? y->at : x->at);
    }
    CUDA_BY_TYPE(x->dtype, T, plain_launch<T>(dev, c, &j));
    if (j.parts > 1)
        cuda_add_parts(dev, j.parts, (int)(j.m * j.n), NULL, cuda_f32(dev, c->dw), NULL,
                       (int)(j.m * j.n));
    return cuda_launched(dev, "conv: plain");
}
