/* The parts of convolution behind conv.c. For kernels/cuda/conv*.c, pack.cu, plain.cu, stem.cu.
 *
 *   conv.c        the operations: checks, who computes, bias
 *   stem.cu       at most 4 input channels
 *   conv_run.c    everything else: the library's engines, directly or through packed copies
 *   plain.cu      any shape, where the library has no engine
 *   conv_graph.h  the library; conv_choice.h: what was chosen
 */
#ifndef SLUICE_KERNELS_CUDA_CONV_H
#define SLUICE_KERNELS_CUDA_CONV_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CONV_K_MAX = 7 };

/* One call of an operation that the library is to compute. x is dx in conv_dx, y is dy in conv_dx
 * and conv_dw; w is K_NONE in conv_dw, dw elsewhere. */
typedef struct {
    int direction; /* conv_direction_t */
    const k_conv_t *p;
    const k_tensor_t *x, *y;
    k_at w, dw, work;
    int acc;
} conv_call_t;

/* conv_run.c: bytes of work for all directions of a shape; and the call itself. */
uint64_t conv_run_work(const cuda_dev_t *dev, const k_conv_t *p, const k_tensor_t *x);
int conv_run(cuda_dev_t *dev, const conv_call_t *call);

/* plain.cu: any direction of any shape that conv.c lets through; needs no work. */
int cuda_conv_plain(cuda_dev_t *dev, const conv_call_t *call);

/* pack.cu. Device addresses, elements of `dtype`. dst [dst_rows][dst_c] without gaps = src [rows]
 * [c] with pitch ld, and zeros in the rows and columns that src has not. */
int cuda_conv_pack(cuda_dev_t *dev, k_dtype_t dtype, const void *src, int64_t rows, int32_t c,
                   int64_t ld, void *dst, int64_t dst_rows, int32_t dst_c);
/* dst (float32) [rows][c] += src [rows][src_c] without what lies beyond c. */
int cuda_conv_add_rows(cuda_dev_t *dev, k_dtype_t dtype, const void *src, int32_t src_c, k_at dst,
                       int64_t rows, int32_t c);

/* stem.cu: 1 if cuda_stem and cuda_stem_dw take such a convolution. */
int cuda_stem_takes(const k_conv_t *p);

#ifdef __cplusplus
}
#endif
#endif
