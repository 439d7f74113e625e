/* What ranks add up on their devices: gradients in buckets while backward goes on, and the sums of
 * normalisation (sync_bn).
 *
 * CPU ranks (ops->async == 0): through shared memory (collective.h), in one piece. One GPU: nothing
 * to do. Several GPUs: sums of k_ops_t.comm_* on the device's own streams, only enqueued, so that
 * they may be part of a recorded step (k_ops_t.capture). Before and behind each the device counts in
 * a board page of its own (board_gpu), so that others see what it has begun and ended, also when
 * this process is stopped.
 *
 * Order of a step's calls: exchange_begin, exchange_ready from the backward pass, exchange_finish;
 * exchange_stats anywhere. All ranks make the same calls in the same order. A step that is replayed
 * makes none of them: exchange_recording and exchange_replayed count for it.
 *
 * No wait is without a deadline: whoever waits for a stream with sums calls exchange_check while it
 * does. Owner: the trainer's one thread; a helper thread ends a communicator that hangs.
 */
#ifndef SLUICE_TRAINER_EXCHANGE_H
#define SLUICE_TRAINER_EXCHANGE_H

#include "kernels/kernels.h"
#include "trainer/graph.h"

struct trainer;

/* Consecutive floats of the gradients and what lies behind them (MEMORY_EXTRA). */
typedef struct {
    uint64_t first, count; /* floats from the gradients' beginning */
    int32_t ready; /* complete after backward of this operation (numbers descend); -1: at the end */
} exchange_bucket_t;

enum { EXCHANGE_BUCKETS = 60, EXCHANGE_FLOATS = 4 << 20 }; /* 16 MiB a bucket */

/* Cuts [0, weights + extra) into buckets of at least `floats` (more where that would make more than
 * EXCHANGE_BUCKETS): the convolutions' weights from their end, which backward completes first, to
 * their beginning, then norms, biases and extra as the last one. Returns how many. */
int32_t exchange_cut(const graph_t *g, uint64_t extra, uint64_t floats,
                     exchange_bucket_t buckets[EXCHANGE_BUCKETS]);

/* When the arena is reserved, step_init is done and the training is planned: compares the ranks'
 * plans, then makes and tries the communicator (stages on the board, each with init_timeout). All
 * ranks call it. */
int exchange_open(struct trainer *t);
/* Recorded steps are forgotten and the communicator is closed; bounded. After a close that hangs
 * t->dev is NULL: the device is left to the end of the process, which then runs no more of the
 * libraries' own clean-up. */
void exchange_close(struct trainer *t);

/* Before a backward pass whose gradients will be shared. */
int exchange_begin(struct trainer *t);
/* After backward of operation op; nothing outside of begin .. finish. */
int exchange_ready(struct trainer *t, int32_t op);
/* The rest, extra values included; what is enqueued on the main stream afterwards sees the sums. */
int exchange_finish(struct trainer *t);
/* Sums `doubles` doubles in place, in order of the main stream. */
int exchange_stats(struct trainer *t, k_at at, uint64_t doubles);

/* Around k_ops_t.capture .. captured: slot before, -1 behind. What is enqueued in between is counted
 * as the slot's. */
void exchange_recording(struct trainer *t, int32_t slot);
/* After k_ops_t.replay of the slot: its sums count as launched. */
int exchange_replayed(struct trainer *t, int32_t slot);

/* For whoever polls the device: looks at most every 100 ms. A failed communicator, a rank that does
 * not come within the collectives' deadline (collective_deadline; not while it waits for data or
 * shows progress), sums that all have begun and none ends: ERR_FAILED or ERR_TIMEOUT naming the
 * rank. ERR_STOPPED when the missing rank has left. */
int exchange_check(struct trainer *t);

#endif
