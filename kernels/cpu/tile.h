/* A product of matrices kept in registers: the inner loop of convolution on processors with
 * AVX-512.
 *
 *   C[r][j] (+)= bias[j] + sum over run < runs, k < len of A(r, run, k) * B(run, k, j)
 *   A(r, run, k) = a[r * a_row + run * a_run + k * a_k]
 *   B(run, k, j) = b[run * b_run + k * b_k + j]
 *
 * The strides let A and B be rows of an image as they lie, so nothing is gathered or packed for one
 * product. B is read in whole registers: up to the next multiple of 16 columns, which must be
 * readable. Sums are taken in order of run and k whatever the tile's size. Any thread.
 */
#ifndef SLUICE_KERNELS_CPU_TILE_H
#define SLUICE_KERNELS_CPU_TILE_H

#include <stdint.h>

enum { TILE_ROWS = 14, TILE_COLUMNS = 32, TILE_LANES = 16 };

typedef struct {
    const float *a, *b, *bias; /* bias: columns floats or NULL */
    int64_t a_row, a_k, a_run, b_k, b_run;
    int64_t runs, len;
    float *c;
    int64_t c_row;
    int32_t rows, columns; /* 1 to TILE_ROWS, 1 to TILE_COLUMNS */
    int acc;               /* 1: add to C */
} tile_t;

/* 1 where this program and this processor can. */
int tile_available(void);
void tile_product(const tile_t *t);
/* Rows for tiles over `count` rows: as few tiles as possible, as even as possible. */
int32_t tile_even_rows(int64_t count);

#endif
