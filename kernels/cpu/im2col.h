/* Rows of a convolution as a matrix: what turns it into a product (conv.c).
 *
 * A gather describes a grid of pixels and, for each, the `taps` source pixels it looks at. Its
 * matrix has a row a grid pixel and taps * c columns, tap-major; places outside the source are
 * zero. The forward pass and the weight gradient gather x; the data gradient gathers dy. Any
 * thread.
 */
#ifndef SLUICE_KERNELS_CPU_IM2COL_H
#define SLUICE_KERNELS_CPU_IM2COL_H

#include <stdint.h>

enum { IM2COL_K_MAX = 7, IM2COL_TAPS = IM2COL_K_MAX * IM2COL_K_MAX };

typedef struct {
    const float *src; /* [n][h][w], pixels ld floats apart */
    int32_t h, w, c, ld;
    int32_t grid_h, grid_w;
    int32_t step; /* grid pixel (gy, gx) looks at (gy * step + oy[t], gx * step + ox[t]) */
    int32_t taps;
    int8_t oy[IM2COL_TAPS], ox[IM2COL_TAPS];
} im2col_t;

/* Rows [first, first + count) of the matrix, counted over images and grid, to col (taps * c floats
 * each). */
void im2col_rows(const im2col_t *g, int64_t first, int64_t count, float *col);

#endif
