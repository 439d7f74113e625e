/* A loader's view of the substitution ledger (design 4): which sample is read in place of which.
 *
 * Filled from WIRE_LEDGER messages, in any order and repeatedly; one thread. Looked up for each tile
 * of each cell, so entries are found by a hash of their sample.
 */
#ifndef SLUICE_LOADER_SUBSTITUTES_H
#define SLUICE_LOADER_SUBSTITUTES_H

#include "control/wire.h"

typedef struct {
    wire_ledger_t *entries; /* owned; no two alike */
    uint32_t *next;         /* of each entry: the next of the same bucket, + 1; 0: none */
    uint32_t *buckets;      /* capacity of them: the first entry's index + 1 */
    uint32_t count, capacity;
} substitutes_t;

void substitutes_init(substitutes_t *s);
void substitutes_fini(substitutes_t *s);
/* Adds an entry, unless it is there. ERR_ENV without memory. */
int substitutes_add(substitutes_t *s, const wire_ledger_t *entry);
/* The sample to read for `sample` in the cell at (epoch, position): entries that hold there are
 * followed until a sample has none. */
uint32_t substitutes_resolve(const substitutes_t *s, uint32_t split, uint32_t sample,
                             uint32_t epoch, uint64_t position);

#endif
