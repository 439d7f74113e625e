/* Convolution of images of at most 4 channels (the first layer), and its weight gradient: too few
 * channels for tensor cores, so bound by memory, and by how often a value is read from it.
 *
 *   y[p][o]        = sum over taps of x(p, tap) * w[o][tap]   taps: ky, kx, input channel
 *   dw[o][tap]    += sum over p of dy[p][o] * x(p, tap)
 *
 * A block has its weights (forward) or sums (gradient) for up to 64 output channels and walks over
 * tiles of STEM_ROWS rows of y. What a tile sees of x lies in shared memory as float32, a row's
 * pixels and channels side by side, so that the taps of one ky are neighbours. A thread has 8 output
 * channels; forward, of STEM_ROWS pixels of a column; backward, for STEM_TAPS taps, over every n-th
 * pixel of the tile, and the block's threads add up at the end. Parts go through scratch.
 */
#include "kernels/cuda/conv.h"
#include "kernels/cuda/tile.cuh"

enum {
    STEM_THREADS = 256,
    STEM_CHANNELS = 8, /* output channels of a thread */
    STEM_ROWS = 4,
    STEM_TAPS = 4,
    STEM_GROUPS = 8,   /* most groups of channels side by side */
    STEM_COLUMNS = 64, /* most columns of the gradient's tile */
    STEM_A_SM = 4,     /* blocks a multiprocessor */
    STEM_SHARED = 48 << 10
};

typedef struct {
    int n, h, w, oh, ow, c1, c2, k, s, pad;
    int groups, columns; /* of 8 output channels; of a tile */
    int row, rows;       /* of a tile's piece of x: floats of a row, rows */
    int run, taps;       /* k * c1; k * k * c1 */
    int across, down;    /* tiles of an image */
    int64_t tiles, x_ld, y_ld;
} stem_t;

static int stem_groups(int c2)
{
    int groups = 2;
    while (groups < STEM_GROUPS && groups * STEM_CHANNELS < c2)
        groups *= 2;
    return groups;
}

static int stem_columns(int groups, int gradient)
{
    const int columns = STEM_THREADS / groups;
    return gradient && columns > STEM_COLUMNS ? STEM_COLUMNS : columns;
}

/* Floats of a row, and rows, of what a tile sees of x. */
static void stem_piece(const k_conv_t *p, int columns, int *row, int *rows)
{
    *row = ((columns - 1) * p->s + p->k) * p->c1;
    *rows = (STEM_ROWS - 1) * p->s + p->k;
}

/* Bytes of shared memory: weights or a tile of dy, then the piece of x; the gradient's sums of all
 * threads take their place. */
static size_t stem_shared(const k_conv_t *p, int gradient)
{
    const int groups = stem_groups(p->c2), columns = stem_columns(groups, gradient);
    int row, rows;
    stem_piece(p, columns, &row, &rows);
    const int first = gradient ? columns * STEM_ROWS : p->k * p->k * p->c1;
    const size_t floats = (size_t)first * groups * STEM_CHANNELS + (size_t)row * rows;
    const size_t sums = gradient ? (size_t)STEM_THREADS * STEM_TAPS * STEM_CHANNELS : 0;
    return (floats > sums ? floats : sums) * sizeof(float);
}

int cuda_stem_takes(const k_conv_t *p)
{
    const int groups = stem_groups(p->c2);
    const int tap_groups = (p->k * p->k * p->c1 + STEM_TAPS - 1) / STEM_TAPS;
    return p->c1 <= 4 && tap_groups * groups <= STEM_THREADS && stem_shared(p, 0) <= STEM_SHARED &&
           stem_shared(p, 1) <= STEM_SHARED;
}

static stem_t stem_map(const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *y, int gradient)
{
    stem_t j = {};
    j.n = x->n;
    j.h = x->h;
    j.w = x->w;
    j.oh = y->h;
    j.ow = y->w;
    j.c1 = p->c1;
    j.c2 = p->c2;
    j.k = p->k;
    j.s = p->s;
    j.pad = p->k / 2;
    j.groups = stem_groups(p->c2);
    j.columns = stem_columns(j.groups, gradient);
    stem_piece(p, j.columns, &j.row, &j.rows);
    j.run = p->k * p->c1;
    j.taps = p->k * j.run;
    j.across = (y->w + j.columns - 1) / j.columns;
    j.down = (y->h + STEM_ROWS - 1) / STEM_ROWS;
    j.tiles = (int64_t)x->n * j.down * j.across;
    j.x_ld = x->ld;
    j.y_ld = y->ld;
    return j;
}

/* Where a tile begins in y. */
typedef struct {
    int64_t image;
    int y, x;
} stem_spot_t;

__device__ __forceinline__ stem_spot_t stem_spot(const stem_t &j, int64_t tile)
{
    const int64_t line = tile_divide(tile, j.across), image = tile_divide(line, j.down);
    return {image, (int)(line - image * j.down) * STEM_ROWS,
            (int)(tile - line * j.across) * j.columns};
}

/* The tile's piece of x, zeros beyond the border. */
template <typename T>
__device__ __forceinline__ void stem_load_x(const stem_t &j, const stem_spot_t &at, const T *x,
                                            float *piece)
{
    const int y0 = at.y * j.s - j.pad, x0 = at.x * j.s - j.pad;
    for (int i = (int)threadIdx.x; i < j.row * j.rows; i += STEM_THREADS) {
        const int r = i / j.row, e = i - r * j.row, column = e / j.c1;
        const int iy = y0 + r, ix = x0 + column;
        float v = 0.0f;
        if (iy >= 0 && iy < j.h && ix >= 0 && ix < j.w)
            v = to_float(x[((at.image * j.h + iy) * j.w + ix) * j.x_ld + (e - column * j.c1)]);
        piece[i] = v;
    }
}

/* 8 neighbouring floats of shared memory. */
__device__ __forceinline__ void stem_eight(const float *from, float (&to)[STEM_CHANNELS])
{
    const float4 a = reinterpret_cast<const float4 *>(from)[0];
    const float4 b = reinterpret_cast<const float4 *>(from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

/* V channels at a time, those below c2. */
template <typename T, int V>
__device__ __forceinline__ void stem_store(T *to, int c, int c2, const float (&v)[STEM_CHANNELS])
{
#pragma unroll
    for (int q = 0; q < STEM_CHANNELS; q += V) {
        float part[V];
#pragma unroll
        for (int k = 0; k < V; k++)
            part[k] = v[q + k];
        if (c + q < c2)
            store(to + q, part);
    }
}

/* RUN: j.run where the compiler is to know it, else 0. */
template <typename T, int V, int RUN>
static __global__ void __launch_bounds__(STEM_THREADS) stem(stem_t j, const T *x, const T *w, T *y)
{
    extern __shared__ float4 stem_memory[];
    float *weights = reinterpret_cast<float *>(stem_memory);
    const int wide = j.groups * STEM_CHANNELS, o0 = (int)blockIdx.y * wide;
    const int run = RUN ? RUN : j.run;
    float *piece = weights + j.taps * wide;
    for (int i = (int)threadIdx.x; i < j.taps * wide; i += STEM_THREADS) {
        const int tap = i / wide, o = o0 + i - tap * wide;
        weights[i] = o < j.c2 ? to_float(w[(int64_t)o * j.taps + tap]) : 0.0f;
    }
    const int group = (int)threadIdx.x % j.groups, column = (int)threadIdx.x / j.groups;
    const int c = o0 + group * STEM_CHANNELS;
    for (int64_t tile = blockIdx.x; tile < j.tiles; tile += gridDim.x) {
        const stem_spot_t at = stem_spot(j, tile);
        float sum[STEM_ROWS][STEM_CHANNELS] = {};
        __syncthreads();
        stem_load_x(j, at, x, piece);
        __syncthreads();
        for (int ky = 0; ky < j.k; ky++) {
            const float *from = piece + ky * j.row + column * j.s * j.c1;
            const float *weight = weights + ky * run * wide + group * STEM_CHANNELS;
#pragma unroll
            for (int t = 0; t < run; t++) {
                float v[STEM_CHANNELS];
                stem_eight(weight + t * wide, v);
#pragma unroll
                for (int i = 0; i < STEM_ROWS; i++) {
                    const float pixel = from[i * j.s * j.row + t];
#pragma unroll
                    for (int q = 0; q < STEM_CHANNELS; q++)
                        sum[i][q] += pixel * v[q];
                }
            }
        }
        if (at.x + column >= j.ow)
            continue;
#pragma unroll
        for (int i = 0; i < STEM_ROWS; i++)
            if (at.y + i < j.oh)
                stem_store<T, V>(
                    y + ((at.image * j.oh + at.y + i) * j.ow + at.x + column) * j.y_ld + c, c, j.c2,
                    sum[i]);
    }
}

static unsigned stem_blocks(const cuda_dev_t *dev, const stem_t *j)
{
    const int64_t most = (int64_t)dev->sms * STEM_A_SM;
    return (unsigned)(j->tiles < most ? j->tiles : most);
}

int cuda_stem(cuda_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, const k_tensor_t *y)
{
    const stem_t j = stem_map(p, x, y, 0);
    const size_t shared = stem_shared(p, 0);
    const int wide_c = j.groups * STEM_CHANNELS;
    const dim3 grid(stem_blocks(dev, &j), (unsigned)((p->c2 + wide_c - 1) / wide_c));
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(y), T, V, {
        const T *from = (const T *)cuda_ptr(dev, x->at), *weights = (const T *)cuda_ptr(dev, w);
        T *to = (T *)cuda_ptr(dev, y->at);
        if (j.run == 9) /* 3 x 3 on RGB */
            stem<T, V, 9><<<grid, STEM_THREADS, shared, cuda_main(dev)>>>(j, from, weights, to);
        else
            stem<T, V, 0><<<grid, STEM_THREADS, shared, cuda_main(dev)>>>(j, from, weights, to);
    });
    return cuda_launched(dev, "conv: stem");
}

/* The tile's dy as float32, [pixel][channels], zeros beyond y and beyond c2. */
template <typename T, int V>
__device__ __forceinline__ void stem_load_dy(const stem_t &j, const stem_spot_t &at, const T *dy,
                                             int o0, int wide, float *tile)
{
    const int packs = wide / V;
    for (int i = (int)threadIdx.x; i < j.columns * STEM_ROWS * packs; i += STEM_THREADS) {
        const int pixel = i / packs, c = (i - pixel * packs) * V, row = pixel / j.columns;
        const int oy = at.y + row, ox = at.x + pixel - row * j.columns;
        float v[V] = {};
        if (oy < j.oh && ox < j.ow && o0 + c < j.c2)
            load(dy + ((at.image * j.oh + oy) * j.ow + ox) * j.y_ld + o0 + c, v);
#pragma unroll
        for (int q = 0; q < V; q++)
            tile[pixel * wide + c + q] = v[q];
    }
}

/* Every threads' sums over the block's subsets of pixels, in order, to the block's part. */
__device__ __forceinline__ void stem_sums(const stem_t &j, int lanes, int subsets, int o0, int wide,
                                          const float (&sum)[STEM_TAPS][STEM_CHANNELS],
                                          float *memory, double *part)
{
    const int me = (int)threadIdx.x;
    __syncthreads();
#pragma unroll
    for (int q = 0; q < STEM_TAPS; q++)
#pragma unroll
        for (int c = 0; c < STEM_CHANNELS; c++)
            memory[(q * STEM_CHANNELS + c) * STEM_THREADS + me] = sum[q][c];
    __syncthreads();
    for (int i = me; i < j.taps * wide; i += STEM_THREADS) {
        const int o = i / j.taps, tap = i - o * j.taps;
        const int lane = tap / STEM_TAPS * j.groups + o / STEM_CHANNELS;
        const int value = tap % STEM_TAPS * STEM_CHANNELS + o % STEM_CHANNELS;
        double of = 0.0;
        for (int k = 0; k < subsets; k++)
            of += memory[value * STEM_THREADS + k * lanes + lane];
        if (o0 + o < j.c2)
            part[(int64_t)(o0 + o) * j.taps + tap] = of;
    }
}

template <typename T, int V>
static __global__ void __launch_bounds__(STEM_THREADS)
    stem_dw(stem_t j, const T *x, const T *dy, double *parts)
{
    extern __shared__ float4 stem_memory[];
    float *tile = reinterpret_cast<float *>(stem_memory);
    const int wide = j.groups * STEM_CHANNELS, o0 = (int)blockIdx.y * wide;
    const int pixels = j.columns * STEM_ROWS;
    float *piece = tile + pixels * wide;
    /* A subset of the threads has one thread for each (taps, channels); idle ones count as one. */
    const int lanes = (j.taps + STEM_TAPS - 1) / STEM_TAPS * j.groups;
    const int subsets = STEM_THREADS / lanes, subset = (int)threadIdx.x / lanes;
    const int lane = (int)threadIdx.x - subset * lanes;
    const int group = lane % j.groups, tap0 = lane / j.groups * STEM_TAPS;
    int offset[STEM_TAPS];
    float sum[STEM_TAPS][STEM_CHANNELS] = {};
#pragma unroll
    for (int q = 0; q < STEM_TAPS; q++) {
        const int tap = tap0 + q < j.taps ? tap0 + q : 0;
        offset[q] = tap / j.run * j.row + tap % j.run;
    }
    for (int64_t t = blockIdx.x; t < j.tiles; t += gridDim.x) {
        const stem_spot_t at = stem_spot(j, t);
        __syncthreads();
        stem_load_x(j, at, x, piece);
        stem_load_dy<T, V>(j, at, dy, o0, wide, tile);
        __syncthreads();
        if (subset >= subsets)
            continue;
        for (int p = subset; p < pixels; p += subsets) {
            const int row = p / j.columns;
            const float *from = piece + row * j.s * j.row + (p - row * j.columns) * j.s * j.c1;
            float v[STEM_CHANNELS];
            stem_eight(tile + p * wide + group * STEM_CHANNELS, v);
#pragma unroll
            for (int q = 0; q < STEM_TAPS; q++) {
                const float pixel = from[offset[q]];
#pragma unroll
                for (int c = 0; c < STEM_CHANNELS; c++)
                    sum[q][c] += pixel * v[c];
            }
        }
    }
    stem_sums(j, lanes, subsets, o0, wide, sum, tile, parts + (int64_t)blockIdx.x * j.c2 * j.taps);
}

int cuda_stem_dw(cuda_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                 k_at dw)
{
    const stem_t j = stem_map(p, x, dy, 1);
    const size_t shared = stem_shared(p, 1);
    const int wide_c = j.groups * STEM_CHANNELS, columns = p->c2 * j.taps;
    const int64_t room = CUDA_SCRATCH_BYTES / ((int64_t)columns * (int64_t)sizeof(double));
    unsigned parts = stem_blocks(dev, &j);
    if (room < 1)
        return cuda_fail(dev, "conv_dw: %d output channels of an image are too many", p->c2);
    if (parts > room)
        parts = (unsigned)room;
    const dim3 grid(parts, (unsigned)((p->c2 + wide_c - 1) / wide_c));
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(dy), T, V, {
        stem_dw<T, V><<<grid, STEM_THREADS, shared, cuda_main(dev)>>>(
            j, (const T *)cuda_ptr(dev, x->at), (const T *)cuda_ptr(dev, dy->at),
            (double *)(void *)dev->scratch);
    });
    cuda_add_parts(dev, (int)parts, columns, NULL, cuda_f32(dev, dw), NULL, columns);
    return cuda_launched(dev, "conv_dw: stem");
}
