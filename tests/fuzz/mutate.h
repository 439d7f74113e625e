/* Changes to an input, the same ones on every machine: what the ordinary tests feed the targets with.
 */
#ifndef SLUICE_TESTS_FUZZ_MUTATE_H
#define SLUICE_TESTS_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* A pure function of `number` and the two inputs: writes a changed copy of `a`, into which a piece of
 * `b` may have been put, and returns its length, at most `room`. */
size_t mutate(uint64_t number, const uint8_t *a, size_t a_bytes, const uint8_t *b, size_t b_bytes,
              uint8_t *out, size_t room);

#endif
