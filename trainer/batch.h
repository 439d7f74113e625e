/* One batch out of the ring and onto the device (design 3).
 *
 * Waits for it (no deadline on data: a stall is the watcher's to name), holds every cell's metadata
 * against this process's own plan, turns labels into network pixels, uploads and frees the slot.
 *
 * A device that works by itself (k_ops_t.async) copies on a stream of its own from the ring as it
 * lies there into one of two buffers, while it computes what is in the other: the copy waits for the
 * buffer to be free, the main stream for the copy, and the slot is freed when somebody sees that the
 * copy is done (batch_poll). Elsewhere all of that is over when batch_take returns.
 */
#ifndef SLUICE_TRAINER_BATCH_H
#define SLUICE_TRAINER_BATCH_H

#include "trainer/trainer.h"

/* Fills t->batch, and for what the main stream is given from now on the device's staging of this
 * turn (memory_map_t.batch), with batch t->seq, which the plan says is b. ERR_FAILED when a cell is not what the plan says; ERR_STOPPED when the user asked to stop
 * and no data came for half of the stop's deadline. */
int batch_take(trainer_t *t, const plan_batch_t *b);
/* The main stream has been given all that reads the present batch. */
int batch_used(trainer_t *t);
/* Frees the slots whose copies are done. Never waits. */
int batch_poll(trainer_t *t);

#endif
