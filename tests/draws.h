/* Inputs that nobody has to store: numbers that follow from a name, here and in
 * tests/reference/draws.py alike (which says how). Tests only.
 */
#ifndef SLUICE_TESTS_DRAWS_H
#define SLUICE_TESTS_DRAWS_H

#include "trainer/graph.h"

#include <stdint.h>

/* Element i of the draws of a name: in [-1, 1) in steps of 2^-23. */
float draws_at(uint32_t key, uint64_t i);
uint32_t draws_key(const char *name);
/* shift + scale * draws; scale is a power of two wherever shift is not 0. */
void draws_fill(const char *name, double scale, double shift, float *out, uint64_t count);
void draws_octets(const char *name, uint8_t *out, uint64_t count);

typedef enum { DRAWS_NOISE = 0, DRAWS_SHADES, DRAWS_BLOCKS } draws_kind_t;
/* width * height pixels R G B. */
void draws_pixels(const char *name, draws_kind_t kind, uint32_t width, uint32_t height,
                  uint8_t *out);

/* Weights and buffers in the device's layout, of the names case/NAME, NAME the state dict's behind
 * `skip` characters ("model.0." of a block that stands alone). */
void draws_state(const graph_t *g, const char *name, uint64_t skip, float *weights, float *buffers);

#endif
