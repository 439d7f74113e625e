/* batch=auto: the largest batch whose plan fits (design 8). sluice-trainer --plan, a child of the
 * coordinator's that tries the real plan of memory for growing batches and answers with one line of
 * JSON: {"batch", "need", "of", "device", "code", "why"}; code < 0 (shm/err.h): no batch, and why says
 * why.
 *
 * On a GPU the plan of a rank, with what its libraries take, is held against the options' share of what
 * is free on the device; on a CPU that of all processes against the share of the memory that may be
 * used. The rest of the run must fit into the host's memory in either case.
 */
#ifndef SLUICE_TRAINER_PLAN_BATCH_H
#define SLUICE_TRAINER_PLAN_BATCH_H

#include <stdint.h>

enum {
    PLAN_BATCH_MOST = 1024, /* images over all ranks; larger ones train worse, not faster */
    PLAN_BATCH_CPU = 16,    /* on a CPU, where a larger batch is not faster */
    PLAN_BATCH_RUNGS = 32,  /* of the ladder below */
    PLAN_BATCH_COMM =
        512 << 20, /* a device's share in sums with others: NCCL's buffers, allowed for */
};

/* Images of a rank that are tried: 1, 2, 4, 6, 8, 12, 16, 24, ..., up to `most` (>= 1). Returns how
 * many. */
int plan_batch_ladder(uint32_t most, uint32_t rungs[PLAN_BATCH_RUNGS]);
/* With --plan as the first word, then --options FD, --catalog-fd FD, --threads, --workers, --device,
 * --format (control/coordinator_devices.c), --to FD. */
int plan_batch_main(int argc, char **argv);

#endif
