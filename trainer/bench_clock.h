/* Times within a device's work, for `sluice bench`: numbered stamps in the order of the main stream.
 *
 * A device that works by itself keeps them as events; elsewhere, where work is done when its call
 * returns, they are the host's clock. Owner: the trainer's one thread.
 */
#ifndef SLUICE_TRAINER_BENCH_CLOCK_H
#define SLUICE_TRAINER_BENCH_CLOCK_H

#include "trainer/events.h"
#include "trainer/trainer.h"

enum { BENCH_STAMPS = EVENTS_BENCH_END - EVENTS_BENCH };

typedef struct {
    trainer_t *t;
    uint64_t ns[BENCH_STAMPS]; /* host's clock */
} bench_clock_t;

/* Stamp i: behind what the main stream has been given so far. */
int bench_stamp(bench_clock_t *c, int i);
/* Waits until stamp i is there, looking around meanwhile (trainer_look). */
int bench_await(bench_clock_t *c, int i);
/* Milliseconds from one stamp to a later one; both are there. */
int bench_between(bench_clock_t *c, int from, int to, double *ms);

#endif
