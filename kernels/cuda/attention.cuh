/* Attention's inside: one call's places and sizes, and the two families of kernels. For
 * attention*.cu only.
 *
 * Blocks work on tiles of one head of one image. q, k and v of a head are matrices of
 * [positions][channels] with a pitch; channels are padded with zeros to the widths the kernels are
 * made for (32 + 64: every YOLO11; 64 + 128: the most), positions to a whole tile, with a mask where
 * zeros would count.
 */
#ifndef SLUICE_KERNELS_CUDA_ATTENTION_CUH
#define SLUICE_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/types.cuh"

enum { ATTENTION_KD = 64, ATTENTION_HD = 128 }; /* most channels of a head's keys, values */

/* A tensor as a kernel sees it. */
typedef struct {
    void *at;
    int64_t ld;
    int wide; /* each pixel begins at a multiple of 16 bytes */
} attention_map_t;

typedef struct {
    int n, heads, kd, hd, positions;
    float scale; /* kd^-1/2 */
    attention_map_t qkv, y, v, dy, dv, dqkv;
    float *lse, *delta; /* [n][heads][positions] */
} attention_t;

/* Channel `channel` of image n's first pixel. */
template <typename T>
__device__ __forceinline__ T *attention_at(const attention_t &a, const attention_map_t &m, int n,
                                           int channel)
{
    return (T *)m.at + (int64_t)n * a.positions * m.ld + channel;
}

/* First channel of head `head` in qkv. */
__device__ __forceinline__ int attention_head(const attention_t &a, int head)
{
    return head * (2 * a.kd + a.hd);
}

/* The block's share of v's packed copy: positions [first, first + rows) of one head, as they are. */
template <typename T>
__device__ __forceinline__ void attention_copy_v(const attention_t &a, int n, int head, int first,
                                                 int rows)
{
    const T *from = attention_at<T>(a, a.qkv, n, attention_head(a, head) + 2 * a.kd);
    T *to = attention_at<T>(a, a.v, n, head * a.hd);
    rows = min(rows, a.positions - first);
    from += first * a.qkv.ld;
    to += first * a.v.ld;
    constexpr int V = wide<T>();
    if (a.qkv.wide && a.v.wide) {
        const int pieces = a.hd / V;
        for (int i = (int)threadIdx.x; i < rows * pieces; i += (int)blockDim.x) {
            const int64_t row = i / pieces;
            const int c = i % pieces * V;
            *(pack_t<T, V> *)(to + row * a.v.ld + c) =
                *(const pack_t<T, V> *)(from + row * a.qkv.ld + c);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < rows * a.hd; i += (int)blockDim.x)
        to[i / a.hd * a.v.ld + i % a.hd] = from[i / a.hd * a.qkv.ld + i % a.hd];
}

/* Launches on the main stream; nothing is checked any more. _fma: float32 and float16 on every
 * architecture. _mma: bfloat16 and float16 by tensor cores, from sm_80. Backward needs delta. */
void attention_fma(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype);
void attention_fma_dx(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype);
void attention_mma(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype);
void attention_mma_dx(cuda_dev_t *dev, const attention_t *a, k_dtype_t dtype);

#endif
