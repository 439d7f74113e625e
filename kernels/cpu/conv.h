/* The two ways of convolution behind conv.c: products of gathered rows by the BLAS (conv.c itself),
 * and tiles in registers over the image as it lies (conv_tile.c), where the processor has AVX-512.
 * Same results up to rounding; the device decides once, when it is opened. For kernels/cpu only;
 * arguments have been checked. */
#ifndef SLUICE_KERNELS_CPU_CONV_H
#define SLUICE_KERNELS_CPU_CONV_H

#include "kernels/cpu/cpu.h"

/* How conv_dw is cut into parts: `pixels` runs of pixels, each with `channels` runs of output
 * channels; at least as many as threads. Each run of pixels needs partial sums of its own. */
typedef struct {
    int pixels, channels;
} conv_parts_t;
conv_parts_t conv_parts(const k_conv_t *p, int threads);

/* Weight gradients of one run of pixels, [c2][k*k*c1], and its bias gradients, [c2]: floats set
 * aside. */
int64_t conv_partial_floats(const k_conv_t *p);
/* Adds the partial sums of all runs to dw and dbias (NULL: none). */
void conv_add_partials(cpu_dev_t *dev, const k_conv_t *p, conv_parts_t parts, const float *partials,
                       float *dw, float *dbias);
/* sum[k] += the rows' channel k. */
void conv_add_columns(float *sum, const float *rows, int64_t ld, int64_t count, int32_t c);

/* conv_tile.c: floats of one thread's block and of packed weights, and the three operations. work
 * holds threads blocks, then packed weights or partials. */
int64_t conv_tile_block_floats(const k_conv_t *p, const k_tensor_t *x);
int64_t conv_tile_packed_floats(const k_conv_t *p);
void conv_tile_forward(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const float *w,
                       const float *bias, const k_tensor_t *y, float *work);
void conv_tile_dx(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, const float *w,
                  const k_tensor_t *dx, int acc, float *work);
void conv_tile_dw(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                  float *dw, float *dbias, float *work);

#endif
