/* Numbers of the device's events (k_ops_t.record), by who uses them. */
#ifndef SLUICE_TRAINER_EVENTS_H
#define SLUICE_TRAINER_EVENTS_H

#include "kernels/kernels.h"

enum {
    EVENTS_STEP = 0, /* batches, items, times of a step: 0 .. 31 */
    /* Two of each: of a step with an even batch number, and with an odd one. */
    EVENT_COPIED = EVENTS_STEP,     /* copy stream: the batch is on the device */
    EVENT_FREE = EVENTS_STEP + 2,   /* main stream: the batch's place is not read any more */
    EVENT_COMES = EVENTS_STEP + 4,  /* main stream: has nothing to do but wait for the batch */
    EVENT_BEGINS = EVENTS_STEP + 6, /* main stream: has the batch */
    EVENT_ENDS = EVENTS_STEP + 8,   /* main stream: the step's items and flags are on the host */
    EVENT_STEP_LAST = EVENTS_STEP + 9,
    EVENTS_STEP_END = 32,
    EVENTS_EXCHANGE = 32, /* buckets of gradients, and the end of their sums: 32 .. 95 */
    EVENTS_EXCHANGE_END = K_EVENTS,
    EVENTS_BENCH = 32, /* `sluice bench`, which shares nothing with other ranks: the same ones */
    EVENTS_BENCH_END = K_EVENTS,
};
_Static_assert((int)EVENT_STEP_LAST < (int)EVENTS_STEP_END, "events of a step");

#endif
