/* What the ways to run a step share (step.c at once, ahead.c one step ahead, bench_step.c to measure).
 * Private to them. */
#ifndef SLUICE_TRAINER_STEP_PARTS_H
#define SLUICE_TRAINER_STEP_PARTS_H

#include "trainer/trainer.h"

/* Gives the device this update's hyper-parameters and this rank's flags, from the turn's words. */
int step_tell(trainer_t *t);
/* Counts an optimiser step. */
void step_updated(trainer_t *t);
/* The flags' sums over the ranks as bits TRAINER_*. */
int step_agreed(const float agreed[2]);
/* Without an update there is no all-reduce to carry the flag. */
int step_agree_on_stop(trainer_t *t, int *asked);
/* Into the epoch's means; ERR_FAILED where they are not finite. */
int step_take_items(trainer_t *t, const plan_batch_t *b, const batch_t *batch,
                    const float items[4]);
/* A step that is over, on the board. */
void step_count(trainer_t *t, const plan_batch_t *b, const batch_t *batch, uint64_t took_ns);

#endif
