/* Validation with the EMA model, shared out over the ranks (facts/yolo.md 6).
 *
 * Each rank runs its own batches: forward, loss, suppression, matching. Rows are gathered on rank
 * 0, which computes AP. Every rank validates the same model: rank 0's EMA statistics are sent to
 * all first (facts/yolo.md 4.10).
 */
#ifndef SLUICE_TRAINER_VALIDATE_H
#define SLUICE_TRAINER_VALIDATE_H

#include "trainer/trainer.h"

/* Before the first batch of a validation. Collective. */
int validate_begin(trainer_t *t);
/* Runs batch t->seq, which is b; a rank may have no images in it. *asked: what all ranks have
 * agreed to do (TRAINER_STOP, TRAINER_SAVE); ERR_STOPPED as step_train. Collective. */
int validate_batch(trainer_t *t, const plan_batch_t *b, int *asked);
/* After the last batch. ap is filled on rank 0 only, val_items (means over all ranks' batches) on
 * all. Collective. */
int validate_end(trainer_t *t, ap_result_t *ap, double val_items[3]);

/* Forward and suppression of the present batch, which brings counts and detections (t->val) to the host;
 * with the loss where items is not NULL. times (may be NULL): nanoseconds in the model, and behind it,
 * are added. */
int validate_infer(trainer_t *t, float items[4], uint64_t times[2]);
/* Matches the detections of image i of the batch with its boxes: rows behind t->val's, and its boxes
 * counted in t->val.sums. */
int validate_match(trainer_t *t, int32_t i);

#endif
