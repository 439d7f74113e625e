/* The inner loop of the warp, one file an instruction set; private to warp.c. */
#ifndef SLUICE_LOADER_WARP_SPAN_H
#define SLUICE_LOADER_WARP_SPAN_H

#include <stddef.h>
#include <stdint.h>

/* Fixed point: WARP_FRACTION bits behind the point of a coordinate, of which the first WARP_WEIGHT
 * are the interpolation weight. Whoever makes a coordinate adds WARP_ROUND, so that the weight is
 * rounded. */
enum { WARP_FRACTION = 32, WARP_WEIGHT = 11, WARP_ONE = 1 << WARP_WEIGHT };
#define WARP_ROUND ((int64_t)1 << (WARP_FRACTION - WARP_WEIGHT - 1))

/* n pixels at picture coordinates (x + i dx, y + i dy), all four neighbours of each inside the
 * picture. May write WARP_SLACK bytes behind the last pixel and read as many behind the last
 * neighbour. */
typedef void (*warp_span_fn)(const uint8_t *pixels, size_t stride, int64_t x, int64_t y, int64_t dx,
                             int64_t dy, uint32_t n, uint8_t *out);

void warp_span_plain(const uint8_t *pixels, size_t stride, int64_t x, int64_t y, int64_t dx,
                     int64_t dy, uint32_t n, uint8_t *out);
/* NULL where the build has it not. The caller checks the CPU. */
warp_span_fn warp_span_avx2(void);

#endif
