/* Attention of bfloat16 and float16 by tensor cores, from sm_80 (attention.cu says what is
 * computed). mma m16n8k16, sums in float32; P and dS are rounded to the format before their
 * products, as the outputs are.
 *
 * A block is 4 warps and TILE rows (queries; keys in dK and dV); a warp has 16 of them and keeps
 * their operands and results in registers. Tiles of TILE columns go through shared memory, rows with
 * 16 bytes of padding: 8 rows of ldmatrix then lie in different banks. The block's own rows pass
 * through the same place first. In registers, with g = lane / 4 and t = lane % 4, a 16 x 8 tile of
 * results is c[0], c[1] of row g and c[2], c[3] of row g + 8, columns 2t and 2t + 1, which is also
 * how the next product takes its left operand.
 *
 * Exponentials are of base 2: scores times scale * log2 e.
 */
#include "kernels/cuda/attention.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, TILE = 16 * WARPS, PAD = 8, STEP = 32 };

static constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

/* ---- tensor-core instructions ---- */

/* c += a (16 x 16) times b (16 x 8). Below sm_80 the launcher takes other kernels. */
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    bf16_t)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();
#endif
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    f16_t)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    __trap();
#endif
}

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void ldmatrix(const void *row, uint32_t (&m)[4])
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_across(const void *row, uint32_t (&m)[4])
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ uint32_t two(float low, float high, bf16_t)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&v;
}

__device__ __forceinline__ uint32_t two(float low, float high, f16_t)
{
    const __half2 v = __floats2half2_rn(low, high);
    return *(const uint32_t *)&v;
}

/* ---- tiles ---- */

/* TILE x D in shared memory = `count` positions of `c` channels, zeros around. */
template <typename T, int D>
__device__ __forceinline__ void tile_load(T *to, const T *from, int64_t ld, int count, int c,
                                          int is_wide)
{
    constexpr int V = wide<T>(), PIECES = D / V;
    static_assert(TILE * PIECES % THREADS == 0, "no thread is left over");
#pragma unroll
    for (int u = 0; u < TILE * PIECES / THREADS; u++) {
        const int i = u * THREADS + (int)threadIdx.x, row = i / PIECES, at = i % PIECES * V;
        pack_t<uint16_t, V> v = {};
        if (row < count && at < c) {
            const uint16_t *x = (const uint16_t *)from + row * ld + at;
            if (is_wide) {
                v = *(const pack_t<uint16_t, V> *)x;
            } else {
#pragma unroll
                for (int w = 0; w < V; w++)
                    v.v[w] = x[w];
            }
        }
        *(pack_t<uint16_t, V> *)((uint16_t *)to + row * (D + PAD) + at) = v;
    }
}

/* A warp's 16 rows of a tile as left operands: one for each 16 channels. */
template <typename T, int D>
__device__ __forceinline__ void rows_of(const T *tile, int warp, uint32_t (&a)[D / 16][4])
{
    const int lane = (int)threadIdx.x % 32;
    tile += (warp * 16 + lane % 16) * (D + PAD) + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        ldmatrix(tile + k * 16, a[k]);
}

/* s = the warp's rows times rows [first, first + COLS) of the tile. */
template <typename T, int D, int COLS>
__device__ __forceinline__ void dots(const uint32_t (&a)[D / 16][4], const T *tile, int first,
                                     float (&s)[COLS / 8][4])
{
    const int lane = (int)threadIdx.x % 32;
    tile += (first + lane / 16 * 8 + lane % 8) * (D + PAD) + lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < COLS / 8; j++)
#pragma unroll
        for (int u = 0; u < 4; u++)
            s[j][u] = 0.0f;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int j = 0; j < COLS / 16; j++) {
            uint32_t b[4];
            ldmatrix(tile + j * 16 * (D + PAD) + k * 16, b);
            mma(s[2 * j], a[k], b[0], b[1], T());
            mma(s[2 * j + 1], a[k], b[2], b[3], T());
        }
}

/* o += p (16 x COLS, rounded) times rows [first, first + COLS) of the tile. */
template <typename T, int D, int COLS>
__device__ __forceinline__ void products(const float (&p)[COLS / 8][4], const T *tile, int first,
                                         float (&o)[D / 8][4])
{
    const int lane = (int)threadIdx.x % 32;
    tile += (first + lane % 16) * (D + PAD) + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < COLS / 16; k++) {
        const float(&l)[4] = p[2 * k], (&r)[4] = p[2 * k + 1];
        const uint32_t a[4] = {two(l[0], l[1], T()), two(l[2], l[3], T()), two(r[0], r[1], T()),
                               two(r[2], r[3], T())};
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            uint32_t b[4];
            ldmatrix_across(tile + k * 16 * (D + PAD) + j * 16, b);
            mma(o[2 * j], a, b[0], b[1], T());
            mma(o[2 * j + 1], a, b[2], b[3], T());
        }
    }
}

/* The warp's rows of a result: rows below `count` of the block, channels below c, times a factor
 * for rows g and g + 8. plus: added; at = NULL: nothing. */
template <typename T, int D>
__device__ __forceinline__ void result(T *to, int64_t ld, int is_wide, int count, int c,
                                       const float (&o)[D / 8][4], const float (&factor)[2],
                                       const T *plus, int64_t plus_ld)
{
    const int lane = (int)threadIdx.x % 32, column = lane % 4 * 2;
    const int first = (int)threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + half * 8;
        if (row >= count)
            continue;
        T *out = to + row * ld + column;
        const T *more = plus ? plus + row * plus_ld + column : NULL;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            if (j * 8 >= c)
                continue;
            float low = o[j][2 * half] * factor[half], high = o[j][2 * half + 1] * factor[half];
            if (more) {
                low += to_float(more[j * 8]);
                high += to_float(more[j * 8 + 1]);
            }
            if (is_wide) {
                *(uint32_t *)(void *)(out + j * 8) = two(low, high, T());
            } else {
                out[j * 8] = from_float<T>(low);
                out[j * 8 + 1] = from_float<T>(high);
            }
        }
    }
}

/* Over the 4 lanes of a row. */
__device__ __forceinline__ float row_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ __forceinline__ float row_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* ---- forward ---- */

/* A tile of scores becomes P relative to the running maximum `top` (base 2); what was summed under
 * the old maximum is scaled down. cols: columns that exist. */
template <int D>
__device__ __forceinline__ void soften(float (&s)[TILE / 8][4], float factor, int cols,
                                       float (&top)[2], float (&sum)[2], float (&o)[D / 8][4])
{
    const int column = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float best = -INFINITY, part = 0.0f;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float &v = s[j][2 * half + u];
                v = j * 8 + column + u < cols ? v * factor : -INFINITY;
                best = fmaxf(best, v);
            }
        best = fmaxf(row_max(best), top[half]);
        const float shrink = exp2f(top[half] - best);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int u = 0; u < 2; u++) {
                float &v = s[j][2 * half + u];
                v = exp2f(v - best);
                part += v;
            }
        sum[half] = sum[half] * shrink + row_sum(part);
        top[half] = best;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            o[j][2 * half] *= shrink;
            o[j][2 * half + 1] *= shrink;
        }
    }
}

/* grid: tiles of queries, heads, images. */
template <typename T, int KD, int HD>
static __global__ void __launch_bounds__(THREADS) mma_forward(attention_t a)
{
    __shared__ alignas(16) T k[TILE * (KD + PAD)];
    __shared__ alignas(16) T v[TILE * (HD + PAD)];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, n = (int)blockIdx.z, first = (int)blockIdx.x * TILE;
    const int count = min((int)TILE, a.positions - first);
    const int64_t ld = a.qkv.ld;
    const T *qkv = attention_at<T>(a, a.qkv, n, attention_head(a, head));
    uint32_t q[KD / 16][4];
    tile_load<T, KD>(k, qkv + first * ld, ld, count, a.kd, a.qkv.wide);
    __syncthreads();
    rows_of<T, KD>(k, warp, q);
    float o[HD / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int at = 0; at < a.positions; at += TILE) {
        const int cols = min((int)TILE, a.positions - at);
        __syncthreads();
        tile_load<T, KD>(k, qkv + at * ld + a.kd, ld, cols, a.kd, a.qkv.wide);
        tile_load<T, HD>(v, qkv + at * ld + 2 * a.kd, ld, cols, a.hd, a.qkv.wide);
        __syncthreads();
        float s[TILE / 8][4];
        dots<T, KD, TILE>(q, k, 0, s);
        soften<HD>(s, a.scale * LOG2_E, cols, top, sum, o);
        products<T, HD, TILE>(s, v, 0, o);
    }
    float *lse = a.lse + ((int64_t)n * a.heads + head) * a.positions + first;
    const int row = warp * 16 + lane / 4;
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (lane % 4 == 0 && row + half * 8 < count)
            lse[row + half * 8] = top[half] * LN_2 + logf(sum[half]);
        factor[half] = 1.0f / sum[half];
    }
    result<T, HD>(attention_at<T>(a, a.y, n, head * a.hd) + first * a.y.ld, a.y.ld, a.y.wide, count,
                  a.hd, o, factor, NULL, 0);
    attention_copy_v<T>(a, n, head, first, TILE);
}

/* ---- backward ---- */

/* dQ. grid: tiles of queries, heads, images. */
template <typename T, int KD, int HD>
static __global__ void __launch_bounds__(THREADS) mma_dq(attention_t a)
{
    __shared__ alignas(16) T k[TILE * (KD + PAD)];
    __shared__ alignas(16) T v[TILE * (HD + PAD)];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, n = (int)blockIdx.z, first = (int)blockIdx.x * TILE;
    const int count = min((int)TILE, a.positions - first);
    const int64_t ld = a.qkv.ld, item = ((int64_t)n * a.heads + head) * a.positions + first;
    const T *qkv = attention_at<T>(a, a.qkv, n, attention_head(a, head));
    uint32_t q[KD / 16][4], dy[HD / 16][4];
    tile_load<T, KD>(k, qkv + first * ld, ld, count, a.kd, a.qkv.wide);
    tile_load<T, HD>(v, attention_at<T>(a, a.dy, n, head * a.hd) + first * a.dy.ld, a.dy.ld, count,
                     a.hd, a.dy.wide);
    __syncthreads();
    rows_of<T, KD>(k, warp, q);
    rows_of<T, HD>(v, warp, dy);
    const float factor = a.scale * LOG2_E;
    float dq[KD / 8][4] = {}, lse[2] = {}, delta[2] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp * 16 + lane / 4 + half * 8;
        if (row < count) {
            lse[half] = a.lse[item + row] * LOG2_E;
            delta[half] = a.delta[item + row];
        }
    }
    for (int at = 0; at < a.positions; at += TILE) {
        const int cols = min((int)TILE, a.positions - at);
        __syncthreads();
        tile_load<T, KD>(k, qkv + at * ld + a.kd, ld, cols, a.kd, a.qkv.wide);
        tile_load<T, HD>(v, qkv + at * ld + 2 * a.kd, ld, cols, a.hd, a.qkv.wide);
        __syncthreads();
#pragma unroll
        for (int step = 0; step < TILE; step += STEP) {
            float s[STEP / 8][4], dp[STEP / 8][4];
            dots<T, KD, STEP>(q, k, step, s);
            dots<T, HD, STEP>(dy, v, step, dp);
#pragma unroll
            for (int j = 0; j < STEP / 8; j++)
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    const bool inside = step + j * 8 + lane % 4 * 2 + u % 2 < cols;
                    const float p = exp2f(s[j][u] * factor - lse[u / 2]);
                    s[j][u] = inside ? p * (dp[j][u] - delta[u / 2]) : 0.0f;
                }
            products<T, KD, STEP>(s, k, step, dq);
        }
    }
    const float scale[2] = {a.scale, a.scale};
    T *to = attention_at<T>(a, a.dqkv, n, attention_head(a, head)) + first * a.dqkv.ld;
    result<T, KD>(to, a.dqkv.ld, a.dqkv.wide, count, a.kd, dq, scale, NULL, 0);
}

/* dK and dV: rows are keys, columns queries. grid: tiles of keys, heads, images. */
template <typename T, int KD, int HD>
static __global__ void __launch_bounds__(THREADS) mma_dkv(attention_t a)
{
    __shared__ alignas(16) T q[TILE * (KD + PAD)];
    __shared__ alignas(16) T dy[TILE * (HD + PAD)];
    __shared__ float lse[TILE], delta[TILE];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int head = (int)blockIdx.y, n = (int)blockIdx.z, first = (int)blockIdx.x * TILE;
    const int count = min((int)TILE, a.positions - first);
    const int64_t ld = a.qkv.ld, item = ((int64_t)n * a.heads + head) * a.positions;
    const T *qkv = attention_at<T>(a, a.qkv, n, attention_head(a, head));
    const T *grad = attention_at<T>(a, a.dy, n, head * a.hd);
    uint32_t k[KD / 16][4], v[HD / 16][4];
    tile_load<T, KD>(q, qkv + first * ld + a.kd, ld, count, a.kd, a.qkv.wide);
    tile_load<T, HD>(dy, qkv + first * ld + 2 * a.kd, ld, count, a.hd, a.qkv.wide);
    __syncthreads();
    rows_of<T, KD>(q, warp, k);
    rows_of<T, HD>(dy, warp, v);
    const float factor = a.scale * LOG2_E;
    float dk[KD / 8][4] = {}, dv[HD / 8][4] = {};
    for (int at = 0; at < a.positions; at += TILE) {
        const int cols = min((int)TILE, a.positions - at);
        __syncthreads();
        tile_load<T, KD>(q, qkv + at * ld, ld, cols, a.kd, a.qkv.wide);
        tile_load<T, HD>(dy, grad + at * a.dy.ld, a.dy.ld, cols, a.hd, a.dy.wide);
        /* A query that does not exist: exp2(-inf) = 0. */
        for (int i = (int)threadIdx.x; i < TILE; i += THREADS) {
            lse[i] = i < cols ? a.lse[item + at + i] * LOG2_E : INFINITY;
            delta[i] = i < cols ? a.delta[item + at + i] : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int step = 0; step < TILE; step += STEP) {
            float s[STEP / 8][4], dp[STEP / 8][4];
            dots<T, KD, STEP>(k, q, step, s);
            dots<T, HD, STEP>(v, dy, step, dp);
#pragma unroll
            for (int j = 0; j < STEP / 8; j++)
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    const int column = step + j * 8 + lane % 4 * 2 + u % 2;
                    s[j][u] = exp2f(s[j][u] * factor - lse[column]);
                    dp[j][u] = s[j][u] * (dp[j][u] - delta[column]);
                }
            products<T, HD, STEP>(s, dy, step, dv);
            products<T, KD, STEP>(dp, q, step, dk);
        }
    }
    const float scale[2] = {a.scale, a.scale}, one[2] = {1.0f, 1.0f};
    T *to = attention_at<T>(a, a.dqkv, n, attention_head(a, head)) + first * a.dqkv.ld;
    result<T, KD>(to + a.kd, a.dqkv.ld, a.dqkv.wide, count, a.kd, dk, scale, NULL, 0);
    result<T, HD>(to + 2 * a.kd, a.dqkv.ld, a.dqkv.wide, count, a.hd, dv, one,
                  attention_at<T>(a, a.dv, n, head * a.hd) + first * a.dv.ld, a.dv.ld);
}

/* ---- launches ---- */

static dim3 tiles(const attention_t *a)
{
    return dim3((unsigned)((a->positions + TILE - 1) / TILE), (unsigned)a->heads, (unsigned)a->n);
}

template <typename T> static void forward(cuda_dev_t *dev, const attention_t *a)
{
    if (a->kd <= 32 && a->hd <= 64)
        mma_forward<T, 32, 64><<<tiles(a), THREADS, 0, cuda_main(dev)>>>(*a);
    else
        mma_forward<T, ATTENTION_KD, ATTENTION_HD><<<tiles(a), THREADS, 0, cuda_main(dev)>>>(*a);
}

template <typename T> static void backward(cuda_dev_t *dev, const attention_t *a)
{
    if (a->kd <= 32 && a->hd <= 64) {
        mma_dq<T, 32, 64><<<tiles(a), THREADS, 0, cuda_main(dev)>>>(*a);
        mma_dkv<T, 32, 64><<<tiles(a), THREADS, 0, cuda_main(dev)>>>(*a);
    } else {
        mma_dq<T, ATTENTION_KD, ATTENTION_HD><<<tiles(a), THREADS, 0, cuda_main(dev)>>>(*a);
        mma_dkv<T, ATTENTION_KD, ATTENTION_HD><<<tiles(a), THREADS, 0, cuda_main(dev)>>>(*a);
    }
}

void attention_mma(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype)
{
    dtype == K_BF16 ? forward<bf16_t>(dev, a) : forward<f16_t>(dev, a);
}

void attention_mma_dx(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype)
{
    dtype == K_BF16 ? backward<bf16_t>(dev, a) : backward<f16_t>(dev, a);
}
