/* What a trainer tells the coordinator of its work: progress, and an epoch's end (design 6).
 */
#ifndef SLUICE_TRAINER_REPORT_H
#define SLUICE_TRAINER_REPORT_H

#include "trainer/trainer.h"

/* WIRE_PROGRESS, at most four a second; between, it returns at once. A message that the coordinator
 * does not take in time is dropped: the next one says more. Does nothing without a coordinator
 * (tests). */
void report_progress(trainer_t *t, const plan_batch_t *b);

/* What rank 0 knows at an epoch's end. */
typedef struct {
    uint32_t epoch;
    int validated, is_best, early_stop;
    double val_items[3];
    ap_result_t ap;
} report_epoch_t;
/* WIRE_EPOCH_END. Waits up to 10 s for room in the pipe, because a row of results.csv hangs on it;
 * a coordinator that takes nothing for longer loses the row (logged), and training goes on
 * (design 6). */
int report_epoch_end(trainer_t *t, const report_epoch_t *e);
/* Sends a frame that should not be lost, handling messages meanwhile. ERR_TIMEOUT when there is no
 * room in the pipe for 10 s. */
int report_send(trainer_t *t, const void *frame, size_t bytes);
/* A line of the log at the run's end: what the time of this start went into. */
void report_shares(const trainer_t *t);
/* Seconds of training, an earlier part of a resumed run included. */
double report_seconds(const trainer_t *t);

#endif
