/* The order of training samples: a keyed permutation computed point by point (design 4).
 *
 * No shuffled array to share or to save: position p of epoch e maps to a sample by a Feistel
 * network over Philox with cycle walking. Pure functions; any process, any thread.
 */
#ifndef SLUICE_LOADER_ORDER_H
#define SLUICE_LOADER_ORDER_H

#include "control/philox.h"

#include <stdint.h>

/* The sample at `position` of epoch `epoch`, of n >= 1 samples. A position at or beyond n (the wrap
 * of an epoch's last batch) is taken modulo n. */
uint32_t order_sample(uint64_t seed, uint32_t epoch, uint64_t position, uint32_t n);

/* The positions that mix partners come from: mosaic_window, or min(n, 1000) where that is 0. */
uint32_t order_window(uint32_t mosaic_window, uint32_t n);
/* One partner of `position`: a draw from the `window` positions strictly before it. Before position
 * 0 come the last positions of the epoch before; before epoch 0 comes "epoch -1" (0xffffffff), so
 * that the rule has no exception at a run's start. */
uint32_t order_partner(uint64_t seed, uint32_t epoch, uint64_t position, uint32_t n,
                       uint32_t window, philox_t *draws);

#endif
