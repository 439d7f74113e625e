/* From a welcomed worker to a trainer that can run its first step: device, graph, memory, weights.
 */
#ifndef SLUICE_TRAINER_SETUP_H
#define SLUICE_TRAINER_SETUP_H

#include "trainer/trainer.h"

/* Fills *t (zeroed by the caller, but for w and poll). Collective over the ranks. On failure what
 * was set up is still t's: setup_close takes it down. */
int setup_open(trainer_t *t);
void setup_close(trainer_t *t);

#endif
