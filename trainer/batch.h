/* One batch out of the ring and onto the device (design 3).
 *
 * Waits for it (no deadline on data: a stall is the watcher's to name), holds every cell's metadata
 * against this process's own plan, turns labels into network pixels, uploads and frees the slot.
 */
#ifndef SLUICE_TRAINER_BATCH_H
#define SLUICE_TRAINER_BATCH_H

#include "trainer/trainer.h"

/* Fills t->batch and the device's staging (u8, gt, gt_count) with batch t->seq, which the plan says
 * is b. ERR_FAILED when a cell is not what the plan says; ERR_STOPPED when the user asked to stop
 * and no data came for half of the stop's deadline. */
int batch_take(trainer_t *t, const plan_batch_t *b);

#endif
