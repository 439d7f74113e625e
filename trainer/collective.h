/* Collectives of a run's ranks. CPU ranks: shared memory in a memfd, fixed order (rank 0 first), so
 * that sums are the same to the bit in every run. (GPUs add their gradients themselves: exchange.h;
 * what hosts tell each other goes this way there too.)
 *
 * Every call is made by all ranks in the same order; sequence number, operation and count of each
 * are written beside the data and compared: a difference ends the run with both named. Waits look
 * every 100 ms at the hub's abort word and at the coordinator's lifeline, and give up after the
 * deadline unless the missing rank's board page shows progress or waits for data. A missing rank that
 * has left ends them with ERR_STOPPED. Owner: the trainer's one thread.
 */
#ifndef SLUICE_TRAINER_COLLECTIVE_H
#define SLUICE_TRAINER_COLLECTIVE_H

#include "control/worker.h"
#include "kernels/kernels.h"

typedef struct collective collective_t;

/* ranks = 1 needs no descriptor and makes every call trivial. capacity: floats of the largest
 * all-reduce. The memfd arrives empty; rank 0 sizes it, the others wait for that (deadline). */
int collective_open(worker_t *w, int fd, uint32_t rank, uint32_t ranks, uint64_t capacity,
                    collective_t **c);
void collective_close(collective_t **c);
/* How long a missing rank may show no progress before a call gives up with ERR_TIMEOUT. Until it is
 * set: 600 s, because nobody knows yet how long a step takes. */
void collective_deadline(collective_t *c, double seconds);
/* Sum over ranks of `count` floats in the device arena, in place. */
int collective_allreduce(collective_t *c, k_dev_t *dev, k_at at, uint64_t count);
/* Host values: element-wise sum, in place. */
int collective_sum(collective_t *c, double *values, uint32_t count);
int collective_broadcast(collective_t *c, void *data, uint64_t bytes, uint32_t root);
/* Variable-length gather; on rank 0 *all is malloc'ed and the blocks lie in order of rank,
 * *bytes_all[r]. */
int collective_gather(collective_t *c, const void *data, uint64_t bytes, void **all,
                      uint64_t *bytes_all);
int collective_barrier(collective_t *c);

/* For other waits for ranks (exchange.h). The deadline now; ERR_GONE when the run is being torn down
 * or the coordinator is dead; a rank's board page, or NULL. */
double collective_patience(const collective_t *c);
int collective_look(const collective_t *c);
board_page_t *collective_page(collective_t *c, uint32_t rank);
/* Changes whenever the rank shows progress; *excused: it waits for data, which is nobody's hang. */
uint64_t collective_life(collective_t *c, uint32_t rank, int *excused);
/* What a rank is doing, in words: "forward", "building the model (opening its device)". */
void collective_where(collective_t *c, uint32_t rank, char *text, size_t bytes);

#endif
