/* From a welcomed worker to a trainer that can run its first step: device, graph, memory, weights.
 */
#ifndef SLUICE_TRAINER_SETUP_H
#define SLUICE_TRAINER_SETUP_H

#include "trainer/trainer.h"

/* Fills *t (zeroed by the caller, but for w and poll). Collective over the ranks. On failure what
 * was set up is still t's: setup_close takes it down. */
int setup_open(trainer_t *t);
/* Device and graph alone, to plan with: t->w has options, catalog and welcome (device, format, threads)
 * and nobody else. setup_close takes them down. */
int setup_graph(trainer_t *t);
/* What memory_plan is asked for this rank; label_cap is the ring's. host and reserved are 0. */
void setup_request(const trainer_t *t, uint32_t label_cap, memory_request_t *r);
/* Bytes of a slot for checkpoints; rank 0 has two and as much again to make them from. */
uint64_t setup_slot(const trainer_t *t);
void setup_close(trainer_t *t);

#endif
