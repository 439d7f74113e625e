/* A training step measured by itself (`sluice bench step`): one rank without loaders, ring or
 * coordinator, on a made-up batch that stays on the device.
 *
 * The step is the run's own, forward to EMA, with its hyper-parameters given before it and its items
 * fetched behind it, recorded where the device records (record.h). Owner: the trainer's one thread.
 */
#ifndef SLUICE_TRAINER_BENCH_STEP_H
#define SLUICE_TRAINER_BENCH_STEP_H

#include "trainer/bench_ops.h"

enum { BENCH_STEPS = 1000, BENCH_CLASSES = 10000, BENCH_BOXES = 1000 }; /* most */

typedef struct {
    int32_t steps, warmup;
    int32_t classes, boxes; /* boxes: in every image */
    double seconds;         /* deadline of everything */
} bench_spec_t;

typedef struct {
    trainer_t t; /* first: bench_step.c's t->poll goes from it to the whole */
    worker_t w;
    bench_spec_t spec;
    board_t *board;
    int board_fd, catalog_fd;
    uint64_t until_ns;
    uint64_t free_before; /* of the device, its context in place */
    bench_clock_t clock;
    double ms[BENCH_STEPS];
    float items[4]; /* of the last step */
} bench_t;

/* The caller's: zeroes, descriptors of -1, w.options, w.welcome (device, format, threads), spec. Device, graph, memory, weights
 * and batch. On failure bench_close takes down what there is. */
int bench_open(bench_t *b);
void bench_close(bench_t *b);
/* Warm-up, then ms[0 .. spec.steps): from one step's end to the next one's, a step always waiting
 * behind the one that runs. ERR_FAILED where the loss of the last is not finite. */
int bench_steps(bench_t *b);
double bench_median(const double *ms, int32_t n);
/* Milliseconds of the phases of a step that is not recorded, but stands behind work that hides how
 * long the host takes to give it. step_ms: about what a step takes. ops is open. */
int bench_phases(bench_t *b, bench_ops_t *ops, double step_ms, double ms[BENCH_END]);
/* Lists ops and times them. */
int bench_operations(bench_t *b, bench_ops_t *ops, double step_ms);
/* Bytes a second, read and written together, of a large copy within the device's memory. Spoils the
 * activations. */
int bench_copy_rate(bench_t *b, double *rate);
/* Bytes that the process holds beside the arena: of the device, or on a CPU of its host. */
int bench_overhead(bench_t *b, uint64_t *bytes);

#endif
