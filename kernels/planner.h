/* Places for tensors in one arena, from their lifetimes (design 8). A pure function; any thread.
 *
 * A block lives from operation `first` to operation `last`, both included. Blocks whose lives
 * overlap get disjoint places; others may share. Greedy by size, best fit; deterministic.
 */
#ifndef SLUICE_KERNELS_PLANNER_H
#define SLUICE_KERNELS_PLANNER_H

#include <stdint.h>

typedef struct {
    uint64_t bytes;
    int32_t first, last;
    uint64_t at; /* out: multiple of K_ALIGN */
} planner_block_t;

/* Fills every block's place; *total is the arena's size. 0, or -1 when out of host memory. */
int planner_place(planner_block_t *blocks, int32_t count, uint64_t *total);

#endif
