/* The warp of training: output row y from up to four tiles of a canvas that is never made (design
 * 3).
 *
 * The canvas is an imaginary picture of 114s on which up to four loaded pictures lie (a mosaic; or
 * one picture alone). A row of the output samples it bilinearly through the inverse matrix: each of
 * the four canvas pixels around a point comes from its own tile, so that seams are what they would
 * be on a canvas really made. Border constant 114 (facts/yolo.md 5.4).
 *
 * Coordinates: exact to 2^-32 pixel in the affine case (64-bit fixed point), weights of 11 bits.
 * OpenCV 5 computes coordinates in float and weights without rounding: results agree within 1.
 * (OpenCV 4 rounded coordinates to 1/32 pixel: up to 7 away on noise; not followed.)
 *
 * Every variant of an instruction set gives the same bytes. Any thread.
 */
#ifndef SLUICE_LOADER_WARP_H
#define SLUICE_LOADER_WARP_H

#include <stddef.h>
#include <stdint.h>

enum {
    WARP_TILES = 4,
    WARP_BORDER = 114,
    WARP_SLACK = 16 /* readable bytes behind a tile's pixels */
};

/* A loaded picture's visible part: canvas pixel (x, y) with x1 <= x < x2, y1 <= y < y2 is picture
 * pixel (x - off_x, y - off_y). Rectangles of one view do not overlap. */
typedef struct {
    const uint8_t *pixels; /* R G B; WARP_SLACK bytes behind the last pixel may be read */
    size_t stride;         /* bytes from row to row */
    int32_t x1, y1, x2, y2;
    int32_t off_x, off_y;
} warp_tile_t;

typedef struct {
    warp_tile_t tiles[WARP_TILES];
    uint32_t n_tiles;
    double inverse[9]; /* output -> canvas, row-major; [6..8] = 0 0 1 unless perspective */
    int perspective;
    int mirror; /* 1: rows come out from right to left (a horizontal flip) */
} warp_view_t;

/* Row y of the output: `width` pixels R G B into row, which has room for 3 * width + WARP_SLACK
 * bytes. */
void warp_row(const warp_view_t *view, uint32_t y, uint32_t width, uint8_t *row);

typedef enum { WARP_ISA_PLAIN = 0, WARP_ISA_AVX2, WARP_ISA_BEST = 99 } warp_isa_t;
/* For tests: chooses the variant for the whole process (the default is the best). 0, or -1 if this
 * CPU or build has it not. */
int warp_set_isa(warp_isa_t isa);

#endif
