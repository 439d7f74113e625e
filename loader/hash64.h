/* A fast 64-bit hash for digests of cells: equality of streams, not security.
 *
 * Defined on bytes (little-endian words), so that it is the same on every machine. Any thread.
 */
#ifndef SLUICE_LOADER_HASH64_H
#define SLUICE_LOADER_HASH64_H

#include <stddef.h>
#include <stdint.h>

/* Hash of `bytes` bytes; `seed` chains parts: hash64(b, nb, hash64(a, na, 0)). */
uint64_t hash64(const void *data, size_t bytes, uint64_t seed);

#endif
