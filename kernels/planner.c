/* Greedy by size, best fit.
 *
 * Blocks are taken in order of falling size (ties: earlier first use, then index). Each goes into
 * the smallest gap between the already placed blocks whose lives overlap its own, or behind the
 * last of them. O(count^2) after sorting; a graph has a few thousand blocks. Blocks of 0 bytes get
 * place 0.
 */
#include "kernels/planner.h"
#include "kernels/kernels.h"

#include <stdlib.h>

typedef struct {
    uint64_t bytes; /* rounded up to K_ALIGN */
    int32_t first, index;
} planner_order_t;

static int by_size(const void *a, const void *b)
{
    const planner_order_t *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
}

/* The place for block b of `need` bytes among those of placed[] (sorted by place) that live with
 * it. */
static uint64_t find_gap(const planner_block_t *blocks, const int32_t *placed, int32_t count,
                         const planner_block_t *b, uint64_t need)
{
    uint64_t end = 0, best = 0, best_room = UINT64_MAX;
    int found = 0;
    for (int32_t i = 0; i < count; i++) {
        const planner_block_t *o = &blocks[placed[i]];
        if (o->last < b->first || b->last < o->first)
            continue;
        if (o->at >= end + need && o->at - end < best_room) {
            best = end;
            best_room = o->at - end;
            found = 1;
        }
        uint64_t o_end = o->at + round_up(o->bytes);
        if (o_end > end)
            end = o_end;
    }
    return found ? best : end;
}

int planner_place(planner_block_t *blocks, int32_t count, uint64_t *total)
{
    *total = 0;
    if (count <= 0)
        return 0;
    planner_order_t *order = malloc((size_t)count * sizeof *order);
    int32_t *placed = malloc((size_t)count * sizeof *placed);
    int rc = order && placed ? 0 : -1;
    for (int32_t i = 0; rc == 0 && i < count; i++)
        order[i] = (planner_order_t){round_up(blocks[i].bytes), blocks[i].first, i};
    if (rc == 0)
        qsort(order, (size_t)count, sizeof *order, by_size);
    int32_t n = 0;
    for (int32_t i = 0; rc == 0 && i < count; i++) {
        planner_block_t *b = &blocks[order[i].index];
        b->at = 0;
        if (order[i].bytes == 0)
            continue;
        b->at = find_gap(blocks, placed, n, b, order[i].bytes);
        /* Insert by place. */
        int32_t j = n++;
        for (; j > 0 && blocks[placed[j - 1]].at > b->at; j--)
            placed[j] = placed[j - 1];
        placed[j] = order[i].index;
        if (b->at + order[i].bytes > *total)
            *total = b->at + order[i].bytes;
    }
    free(order);
    free(placed);
    return rc;
}
