/* What a training step gives the device, in two halves: the pass over the present batch, and the
 * update behind it (facts/yolo.md 3.2, 4.5, 4.6).
 *
 * Both only enqueue on a device that works by itself, and look at nothing that changes from step to
 * step but device memory (memory_map_t.hyper, norm, extra) and the step's turn (trainer_turn): so they
 * may be recorded once for each turn and replayed (record.h). Owner: the trainer's one thread.
 */
#ifndef SLUICE_TRAINER_PASS_H
#define SLUICE_TRAINER_PASS_H

#include "trainer/trainer.h"

/* Image, forward, loss and backward of the turn's batch; gradients add. share: they are complete with
 * this pass, and what the ranks add up is given away while backward goes on (exchange.h). */
int pass_compute(trainer_t *t, int share);
/* Behind a pass that shared: the rest of the sum over the ranks, clip, optimiser, EMA, the
 * convolutions' copy. Gradients are summed, not averaged: each rank's loss is times its batch. */
int pass_update(trainer_t *t);
/* The convolutions' copy of `weights` in the format of computation; nothing in float32. */
int pass_cast(trainer_t *t, k_at weights);
/* 1 where ranks share statistics and the sum of target scores (sync_bn). */
int pass_shares_stats(const trainer_t *t);

#endif
