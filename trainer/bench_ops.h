/* Every operation of a step with its time, and with the bytes and floating-point operations that it
 * cannot do without (`sluice bench`).
 *
 * The device's table is replaced by one whose entries note what they are given, stamp the time and
 * call the real ones: so the step is the one that is trained with, and nothing in the graph knows of
 * it. A step has more operations than there are stamps: a pass times a window of them. Owner: the
 * trainer's one thread; only between bench_ops_open and bench_ops_close is the device's table another.
 *
 * Bytes: each tensor that is read or written counts once, one that is added to twice. Floating-point
 * operations: two for each multiply-add of convolutions and attention; the others are bound by memory.
 */
#ifndef SLUICE_TRAINER_BENCH_OPS_H
#define SLUICE_TRAINER_BENCH_OPS_H

#include "trainer/bench_clock.h"

enum {
    BENCH_ROUNDS = 3, /* times of each operation; their median counts */
    BENCH_WINDOW = BENCH_STAMPS / 2,
};

typedef struct {
    const char *name; /* in k_ops_t */
    char layer[96];   /* of the state dict: "model.2.cv1.conv"; "" where it has no parameters */
    char shape[80];   /* "8x512x512x64 -> 8x256x256x128 k3 s2" */
    uint64_t bytes;
    double flops;
    double ms[BENCH_ROUNDS];
} bench_op_t;

/* Stamps of a pass that times phases. */
enum {
    BENCH_IMAGE = 0,
    BENCH_FORWARD,
    BENCH_LOSS,
    BENCH_BACKWARD,
    BENCH_EXCHANGE, /* by the caller, behind pass_compute */
    BENCH_UPDATE,
    BENCH_END, /* by the caller, behind pass_update */
};

typedef enum {
    BENCH_LIST = 0, /* what operations there are */
    BENCH_PHASES,
    BENCH_TIMES, /* of the window's operations */
} bench_mode_t;

typedef struct {
    k_ops_t table; /* first: the device's `ops` points here */
    const k_ops_t *real;
    bench_clock_t *clock;
    bench_mode_t mode;
    bench_op_t *ops;
    int32_t n, room;
    int32_t at;    /* operations of this pass so far */
    int32_t first; /* of the window */
    int failed;    /* a pass that is not the one that was listed, or no memory: errors are set */
} bench_ops_t;

/* Puts the table in the device's place. */
void bench_ops_open(bench_ops_t *b, bench_clock_t *clock);
/* The device's own table again; frees. May be called without open. */
void bench_ops_close(bench_ops_t *b);
/* Before a pass. */
void bench_ops_begin(bench_ops_t *b, bench_mode_t mode, int32_t first);
/* Behind it: 0, or ERR_FAILED where it did not have the operations that were listed. */
int bench_ops_end(const bench_ops_t *b);
/* When the pass is done: the times of its window into round `round`. */
int bench_ops_take(bench_ops_t *b, int round);
/* Median of an operation's times. */
double bench_op_ms(const bench_op_t *op);

#endif
