/* The order of work: which batch is the seq-th of a rank, and what is in it (design 3 and 4).
 *
 * A pure function of a few numbers that every process is told in its welcome, so that loaders can
 * run ahead and nobody has to ask. Phases follow one another: train e, validation e, train e + 1,
 * ... All ranks have the same number of batches; training batches are always full and wrap around
 * the end of the list; validation never wraps, so its last batches may be short or empty. Any
 * process.
 */
#ifndef SLUICE_CONTROL_PLAN_H
#define SLUICE_CONTROL_PLAN_H

#include <stdint.h>

typedef enum { PLAN_TRAIN = 0, PLAN_VAL = 1, PLAN_END = 2 } plan_phase_t;

typedef struct {
    uint64_t seed;
    uint32_t n_train, n_val; /* usable samples of each split */
    uint32_t ranks;
    uint32_t batch;     /* global training batch G; a multiple of ranks */
    uint32_t val_batch; /* validation batch of one rank (facts/yolo.md 4.2: twice the training's) */
    uint32_t imgsz;     /* pixels, a multiple of 32 */
    uint32_t epochs;
    uint32_t first_epoch;     /* 0, or where a resume starts */
    uint32_t val_every_epoch; /* 1: validate after every epoch; 0: only after the last */
    uint32_t close_mosaic;    /* last epochs without mosaic, mixup; 0 = never */
    uint32_t mosaic_window;   /* positions that partners come from; 0 = min(N, 1000) */
} plan_t;

/* One batch of one rank. */
typedef struct {
    plan_phase_t phase;
    uint32_t epoch;
    uint32_t step;  /* within the phase */
    uint32_t steps; /* of the phase */
} plan_batch_t;

uint32_t plan_train_steps(const plan_t *plan);
/* Validation steps a rank makes in a validated epoch: the same for every rank. */
uint32_t plan_val_steps(const plan_t *plan);
/* Whether epoch e ends with a validation. */
int plan_validates(const plan_t *plan, uint32_t epoch);
/* The batch with number seq; phase PLAN_END when seq lies behind the last. */
plan_batch_t plan_locate(const plan_t *plan, uint64_t seq);
/* Cells of that batch for a rank. */
uint32_t plan_cells(const plan_t *plan, const plan_batch_t *batch, uint32_t rank);
/* Batches of a rank in the whole run. */
uint64_t plan_batches(const plan_t *plan);
/* Position of a cell in its epoch's order. Train: step * G + rank * (G / ranks) + cell, which may
 * reach beyond n_train (the wrap). Validation: (step * ranks + rank) * val_batch + cell, below
 * n_val. */
uint64_t plan_position(const plan_t *plan, const plan_batch_t *batch, uint32_t rank, uint32_t cell);
/* 1 while mosaic and mixup may be drawn in this epoch: not in the last close_mosaic ones. As in
 * facts/yolo.md 4.8, a close_mosaic of more epochs than there are never closes (options_check says
 * so). */
int plan_mosaic(const plan_t *plan, uint32_t epoch);

#endif
