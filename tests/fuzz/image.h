/* What the image targets share: one decoder kept from input to input, small limits, and the check of
 * what a decoded picture must be. */
#ifndef SLUICE_TESTS_FUZZ_IMAGE_H
#define SLUICE_TESTS_FUZZ_IMAGE_H

#include "loader/decode.h"

/* Small, so that a bomb that passes them ends soon. */
extern const picture_limits_t fuzz_limits;

/* Probes and decodes as scan and loader do. If both succeed they must agree on size and
 * orientation; every pixel is read. */
void fuzz_decode(const uint8_t *file, size_t bytes);

#endif
