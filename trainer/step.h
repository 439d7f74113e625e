/* One training step: batch, forward, loss, backward, and when enough is accumulated the sum over
 * ranks, clip, optimiser and EMA (facts/yolo.md 3.2, 4.4 to 4.6).
 *
 * On a CPU a step is over when step_train returns. A device that works by itself is given a step while
 * it computes the one before (ahead.h): then items, counters and what the ranks have agreed to do come
 * one step late, and step_settle waits for all that is under way.
 */
#ifndef SLUICE_TRAINER_STEP_H
#define SLUICE_TRAINER_STEP_H

#include "trainer/trainer.h"

/* Optimiser from the schedule, zero gradients and momenta, flags: once, before the first step.
 * Weights and buffers (and with a resume momenta and EMA) are uploaded afterwards. */
int step_init(trainer_t *t);
/* Runs batch t->seq, which is b. *asked: what all ranks have agreed to do after this step, bits
 * TRAINER_STOP and (behind an optimiser step only) TRAINER_SAVE; where it is not 0, and behind the
 * epoch's last batch, nothing is under way any more. ERR_STOPPED when the user wants to stop and the
 * batch does not come (batch.h): nothing of the step is done then, and the one before is over.
 * ERR_FAILED names rank, epoch, step and samples when the loss is not finite. */
int step_train(trainer_t *t, const plan_batch_t *b, int *asked);
/* Waits for the steps under way and takes their items. What they agreed stays for the next *asked. */
int step_settle(trainer_t *t);

/* The parts, for tests: forward, loss and backward of t->batch (on the device already); gradients
 * add. items: box, cls, dfl as weighted in facts/yolo.md 3.2, downloaded by step_items. */
int step_compute(trainer_t *t);
int step_items(trainer_t *t, float items[4]);
/* Sum over ranks, clip, update, EMA, with the learning rates of t->progress.point. */
int step_update(trainer_t *t, int *asked);

/* Sums what the ranks have folded of the epoch's stream into rank 0's progress.stream and empties
 * the others', so that a checkpoint and a resume carry it on. Collective, unless there is nothing to
 * fold. */
int step_gather_stream(trainer_t *t);

#endif
