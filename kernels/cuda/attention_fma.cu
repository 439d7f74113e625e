/* Attention by plain multiply-adds in float32 (attention.cu says what is computed): float32, and
 * float16 where there are no tensor cores for it.
 *
 * A block has 16 x 16 threads and ROWS rows (queries; keys in dK and dV), and walks over tiles of
 * COLS columns. Matrices lie in shared memory as float32, row by row, 4 floats of padding behind
 * each row so that neighbouring rows begin in other banks. Thread (x, y) has rows y * R + i: of a
 * tile of scores the columns x + 16 j, of a result the columns x * C + j. The 16 threads of a row
 * are half a warp: a tile of scores is written and read by the same warp.
 *
 * Per 64 multiply-adds a thread reads 8 vectors of 16 bytes from shared memory.
 */
#include "kernels/cuda/attention.cuh"

enum { SIDE = 16, THREADS = SIDE * SIDE, COLS = 32, PAD = 4, CELLS = COLS / SIDE };

/* Rows of a block: with 64 + 128 channels shared memory holds half as many. */
template <int HD> __host__ __device__ constexpr int block_rows()
{
    return HD > 64 ? 32 : 64;
}

/* rows x D in shared memory = `count` positions of `c` channels, zeros around. */
template <typename T, int D>
__device__ __forceinline__ void tile_load(float *to, int rows, const T *from, int64_t ld, int count,
                                          int c, int is_wide)
{
    constexpr int V = wide<T>(), PIECES = D / 4;
    for (int i = (int)threadIdx.x; i < rows * PIECES; i += THREADS) {
        const int row = i / PIECES, at = i % PIECES * 4;
        float v[4] = {};
        if (row < count && at < c) {
            const T *x = from + row * ld + at;
            if (is_wide) {
                load<T, 4>(x, v);
            } else {
#pragma unroll
                for (int u = 0; u < 4; u++)
                    v[u] = to_float(x[u]);
            }
        }
        store<float, 4>(to + row * (D + PAD) + at, v);
    }
    static_assert(V >= 4, "a piece of 16 bytes holds 4 channels");
}

/* C neighbouring floats of shared memory. */
template <int C> __device__ __forceinline__ void fetch(const float *from, float (&to)[C])
{
    constexpr int W = C < 4 ? C : 4;
#pragma unroll
    for (int i = 0; i < C; i += W) {
        float v[W];
        load<float, W>(from + i, v);
#pragma unroll
        for (int u = 0; u < W; u++)
            to[i + u] = v[u];
    }
}

/* s[i][j] = row (y R + i) of a times row (x + 16 j) of b; both D wide. */
template <int R, int D>
__device__ __forceinline__ void dots(const float *a, const float *b, int x, int y,
                                     float (&s)[R][CELLS])
{
    a += y * R * (D + PAD);
    b += x * (D + PAD);
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < CELLS; j++)
            s[i][j] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < D; d += 4) {
        float p[R][4], q[CELLS][4];
#pragma unroll
        for (int i = 0; i < R; i++)
            fetch<4>(a + i * (D + PAD) + d, p[i]);
#pragma unroll
        for (int j = 0; j < CELLS; j++)
            fetch<4>(b + j * SIDE * (D + PAD) + d, q[j]);
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < CELLS; j++)
                    s[i][j] = fmaf(p[i][u], q[j][u], s[i][j]);
    }
}

/* o[i][j] += row (y R + i) of p, COLS wide, times column (x C + j) of the COLS x D matrix b. */
template <int R, int D>
__device__ __forceinline__ void products(const float *p, const float *b, int x, int y,
                                         float (&o)[R][D / SIDE])
{
    constexpr int C = D / SIDE;
    p += y * R * (COLS + PAD);
    b += x * C;
#pragma unroll 2
    for (int d = 0; d < COLS; d += 4) {
        float w[R][4];
#pragma unroll
        for (int i = 0; i < R; i++)
            fetch<4>(p + i * (COLS + PAD) + d, w[i]);
#pragma unroll
        for (int u = 0; u < 4; u++) {
            float v[C];
            fetch<C>(b + (d + u) * (D + PAD), v);
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < C; j++)
                    o[i][j] = fmaf(w[i][u], v[j], o[i][j]);
        }
    }
}

/* The thread's cells of a tile of scores, for products. */
template <int R>
__device__ __forceinline__ void keep(float *p, int x, int y, const float (&s)[R][CELLS])
{
    __syncwarp(); /* the last readers */
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < CELLS; j++)
            p[(y * R + i) * (COLS + PAD) + x + j * SIDE] = s[i][j];
    __syncwarp();
}

/* The thread's part of a result: rows below `count`, channels below c. plus: added; or NULL. */
template <typename T, int R, int D>
__device__ __forceinline__ void result(T *to, int64_t ld, int count, int c, int x, int y,
                                       const float (&o)[R][D / SIDE], float factor, const T *plus,
                                       int64_t plus_ld)
{
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int64_t row = y * R + i;
        if (row >= count)
            break;
#pragma unroll
        for (int j = 0; j < D / SIDE; j++) {
            const int at = x * (D / SIDE) + j;
            if (at < c)
                to[row * ld + at] = from_float<T>(
                    o[i][j] * factor + (plus ? to_float(plus[row * plus_ld + at]) : 0.0f));
        }
    }
}

/* Over the 16 threads of a row. */
__device__ __forceinline__ float row_max(float v)
{
    for (int step = SIDE / 2; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

__device__ __forceinline__ float row_sum(float v)
{
    for (int step = SIDE / 2; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

/* A row of a tile of scores to exp(scaled - *top), with *top the row's largest so far and *sum the sum
 * so far over it. Returns the factor that brings what was added up before to the new top. */
__device__ __forceinline__ float soften(float (&s)[CELLS], int x, int cols, float scale, float *top,
                                        float *sum)
{
    float best = -INFINITY, part = 0.0f;
#pragma unroll
    for (int j = 0; j < CELLS; j++) {
        s[j] = x + j * SIDE < cols ? s[j] * scale : -INFINITY;
        best = fmaxf(best, s[j]);
    }
    best = fmaxf(row_max(best), *top);
    const float shrink = expf(*top - best);
#pragma unroll
    for (int j = 0; j < CELLS; j++) {
        s[j] = expf(s[j] - best);
        part += s[j];
    }
    *sum = *sum * shrink + row_sum(part);
    *top = best;
    return shrink;
}

template <int KD, int HD> constexpr int forward_floats()
{
    return (block_rows<HD>() + COLS) * (KD + PAD) + COLS * (HD + PAD) +
           block_rows<HD>() * (COLS + PAD);
}

template <int KD, int HD> constexpr int backward_floats()
{
    return (block_rows<HD>() + COLS) * (KD + PAD + HD + PAD) + block_rows<HD>() * (COLS + PAD);
}

/* grid: tiles of queries, heads, images. */
template <typename T, int KD, int HD>
static __global__ void __launch_bounds__(THREADS) fma_forward(attention_t a)
{
    constexpr int ROWS = block_rows<HD>(), R = ROWS / SIDE;
    extern __shared__ float4 shared[];
    float *q = (float *)shared, *k = q + ROWS * (KD + PAD), *v = k + COLS * (KD + PAD);
    float *p = v + COLS * (HD + PAD);
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int head = (int)blockIdx.y, n = (int)blockIdx.z, first = (int)blockIdx.x * ROWS;
    const int count = min(ROWS, a.positions - first);
    const int64_t ld = a.qkv.ld;
    const T *qkv = attention_at<T>(a, a.qkv, n, attention_head(a, head));
    tile_load<T, KD>(q, ROWS, qkv + first * ld, ld, count, a.kd, a.qkv.wide);
    float o[R][HD / SIDE] = {}, top[R], sum[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        top[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    for (int at = 0; at < a.positions; at += COLS) {
        const int cols = min(COLS, a.positions - at);
        __syncthreads();
        tile_load<T, KD>(k, COLS, qkv + at * ld + a.kd, ld, cols, a.kd, a.qkv.wide);
        tile_load<T, HD>(v, COLS, qkv + at * ld + 2 * a.kd, ld, cols, a.hd, a.qkv.wide);
        __syncthreads();
        float s[R][CELLS];
        dots<R, KD>(q, k, x, y, s);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const float shrink = soften(s[i], x, cols, a.scale, &top[i], &sum[i]);
#pragma unroll
            for (int j = 0; j < HD / SIDE; j++)
                o[i][j] *= shrink;
        }
        keep<R>(p, x, y, s);
        products<R, HD>(p, v, x, y, o);
    }
    float *lse = a.lse + ((int64_t)n * a.heads + head) * a.positions + first;
#pragma unroll
    for (int i = 0; i < R; i++) {
        if (x == 0 && y * R + i < count)
            lse[y * R + i] = top[i] + logf(sum[i]);
#pragma unroll
        for (int j = 0; j < HD / SIDE; j++)
            o[i][j] /= sum[i];
    }
    result<T, R, HD>(attention_at<T>(a, a.y, n, head * a.hd) + first * a.y.ld, a.y.ld, count, a.hd,
                     x, y, o, 1.0f, NULL, 0);
    attention_copy_v<T>(a, n, head, first, ROWS);
}

/* dQ. grid: tiles of queries, heads, images. */
template <typename T, int KD, int HD>
static __global__ void __launch_bounds__(THREADS) fma_dq(attention_t a)
{
    constexpr int ROWS = block_rows<HD>(), R = ROWS / SIDE;
    extern __shared__ float4 shared[];
    float *q = (float *)shared, *dy = q + ROWS * (KD + PAD), *k = dy + ROWS * (HD + PAD);
    float *v = k + COLS * (KD + PAD), *p = v + COLS * (HD + PAD);
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int head = (int)blockIdx.y, n = (int)blockIdx.z, first = (int)blockIdx.x * ROWS;
    const int count = min(ROWS, a.positions - first);
    const int64_t ld = a.qkv.ld, item = ((int64_t)n * a.heads + head) * a.positions + first;
    const T *qkv = attention_at<T>(a, a.qkv, n, attention_head(a, head));
    tile_load<T, KD>(q, ROWS, qkv + first * ld, ld, count, a.kd, a.qkv.wide);
    tile_load<T, HD>(dy, ROWS, attention_at<T>(a, a.dy, n, head * a.hd) + first * a.dy.ld, a.dy.ld,
                     count, a.hd, a.dy.wide);
    float dq[R][KD / SIDE] = {}, lse[R] = {}, delta[R] = {};
#pragma unroll
    for (int i = 0; i < R; i++) {
        if (y * R + i < count) {
            lse[i] = a.lse[item + y * R + i];
            delta[i] = a.delta[item + y * R + i];
        }
    }
    for (int at = 0; at < a.positions; at += COLS) {
        const int cols = min(COLS, a.positions - at);
        __syncthreads();
        tile_load<T, KD>(k, COLS, qkv + at * ld + a.kd, ld, cols, a.kd, a.qkv.wide);
        tile_load<T, HD>(v, COLS, qkv + at * ld + 2 * a.kd, ld, cols, a.hd, a.qkv.wide);
        __syncthreads();
        float s[R][CELLS], dp[R][CELLS];
        dots<R, KD>(q, k, x, y, s);
        dots<R, HD>(dy, v, x, y, dp);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < CELLS; j++) {
                const bool inside = x + j * SIDE < cols && y * R + i < count;
                s[i][j] = inside ? expf(s[i][j] * a.scale - lse[i]) * (dp[i][j] - delta[i]) : 0.0f;
            }
        keep<R>(p, x, y, s);
        products<R, KD>(p, k, x, y, dq);
    }
    T *to = attention_at<T>(a, a.dqkv, n, attention_head(a, head)) + first * a.dqkv.ld;
    result<T, R, KD>(to, a.dqkv.ld, count, a.kd, x, y, dq, a.scale, NULL, 0);
}

/* dK and dV: rows are keys, columns queries. grid: tiles of keys, heads, images. */
template <typename T, int KD, int HD>
static __global__ void __launch_bounds__(THREADS) fma_dkv(attention_t a)
{
    constexpr int ROWS = block_rows<HD>(), R = ROWS / SIDE;
    extern __shared__ float4 shared[];
    float *k = (float *)shared, *v = k + ROWS * (KD + PAD), *q = v + ROWS * (HD + PAD);
    float *dy = q + COLS * (KD + PAD), *p = dy + COLS * (HD + PAD);
    const int x = (int)threadIdx.x % SIDE, y = (int)threadIdx.x / SIDE;
    const int head = (int)blockIdx.y, n = (int)blockIdx.z, first = (int)blockIdx.x * ROWS;
    const int count = min(ROWS, a.positions - first);
    const int64_t ld = a.qkv.ld, item = ((int64_t)n * a.heads + head) * a.positions;
    const T *qkv = attention_at<T>(a, a.qkv, n, attention_head(a, head));
    const T *grad = attention_at<T>(a, a.dy, n, head * a.hd);
    tile_load<T, KD>(k, ROWS, qkv + first * ld + a.kd, ld, count, a.kd, a.qkv.wide);
    tile_load<T, HD>(v, ROWS, qkv + first * ld + 2 * a.kd, ld, count, a.hd, a.qkv.wide);
    float dk[R][KD / SIDE] = {}, dv[R][HD / SIDE] = {};
    for (int at = 0; at < a.positions; at += COLS) {
        const int cols = min(COLS, a.positions - at);
        __syncthreads();
        tile_load<T, KD>(q, COLS, qkv + at * ld, ld, cols, a.kd, a.qkv.wide);
        tile_load<T, HD>(dy, COLS, grad + at * a.dy.ld, a.dy.ld, cols, a.hd, a.dy.wide);
        float lse[CELLS] = {}, delta[CELLS] = {};
#pragma unroll
        for (int j = 0; j < CELLS; j++) {
            if (x + j * SIDE < cols) {
                lse[j] = a.lse[item + at + x + j * SIDE];
                delta[j] = a.delta[item + at + x + j * SIDE];
            }
        }
        __syncthreads();
        float s[R][CELLS], dp[R][CELLS];
        dots<R, KD>(k, q, x, y, s);
        dots<R, HD>(v, dy, x, y, dp);
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < CELLS; j++) {
                const bool inside = x + j * SIDE < cols && y * R + i < count;
                s[i][j] = inside ? expf(s[i][j] * a.scale - lse[j]) : 0.0f;
                dp[i][j] = s[i][j] * (dp[i][j] - delta[j]);
            }
        keep<R>(p, x, y, s);
        products<R, HD>(p, dy, x, y, dv);
        keep<R>(p, x, y, dp);
        products<R, KD>(p, q, x, y, dk);
    }
    T *to = attention_at<T>(a, a.dqkv, n, attention_head(a, head)) + first * a.dqkv.ld;
    result<T, R, KD>(to + a.kd, a.dqkv.ld, count, a.kd, x, y, dk, a.scale, NULL, 0);
    result<T, R, HD>(to + 2 * a.kd, a.dqkv.ld, count, a.hd, x, y, dv, 1.0f,
                     attention_at<T>(a, a.dv, n, head * a.hd) + first * a.dv.ld, a.dv.ld);
}

/* A kernel on a grid of tiles, with more than the usual shared memory where it needs it. A refusal
 * is found by the caller's cuda_launched. */
static void launch(cuda_dev_t *dev, const attention_t *a, void (*kernel)(attention_t), int rows,
                   int floats)
{
    const dim3 grid((unsigned)((a->positions + rows - 1) / rows), (unsigned)a->heads,
                    (unsigned)a->n);
    const size_t bytes = (size_t)floats * sizeof(float);
    if (bytes > 48 << 10)
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes);
    kernel<<<grid, THREADS, bytes, cuda_main(dev)>>>(*a);
}

template <typename T, int KD, int HD>
static void launch_forward(cuda_dev_t *dev, const attention_t *a)
{
    launch(dev, a, fma_forward<T, KD, HD>, block_rows<HD>(), forward_floats<KD, HD>());
}

template <typename T, int KD, int HD>
static void launch_backward(cuda_dev_t *dev, const attention_t *a)
{
    launch(dev, a, fma_dq<T, KD, HD>, block_rows<HD>(), backward_floats<KD, HD>());
    launch(dev, a, fma_dkv<T, KD, HD>, block_rows<HD>(), backward_floats<KD, HD>());
}

static int is_small(const attention_t *a)
{
    return a->kd <= 32 && a->hd <= 64;
}

void attention_fma(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype)
{
    if (dtype == K_F32)
        is_small(a) ? launch_forward<float, 32, 64>(dev, a)
                    : launch_forward<float, ATTENTION_KD, ATTENTION_HD>(dev, a);
    else
        is_small(a) ? launch_forward<f16_t, 32, 64>(dev, a)
                    : launch_forward<f16_t, ATTENTION_KD, ATTENTION_HD>(dev, a);
}

void attention_fma_dx(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype)
{
    if (dtype == K_F32)
        is_small(a) ? launch_backward<float, 32, 64>(dev, a)
                    : launch_backward<float, ATTENTION_KD, ATTENTION_HD>(dev, a);
    else
        is_small(a) ? launch_backward<f16_t, 32, 64>(dev, a)
                    : launch_backward<f16_t, ATTENTION_KD, ATTENTION_HD>(dev, a);
}
