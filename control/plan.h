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
    /* Samples of first_epoch that are consumed already: where a resume in mid-epoch starts. A
     * position and not a step, so that the batch may be another. n_train or more: that epoch's
     * training is done, and its validation, if it has one, comes first. */
    uint64_t first_position;
} plan_t;

/* One batch of one rank. */
typedef struct {
    plan_phase_t phase;
    uint32_t epoch;
    uint32_t step;  /* within the phase */
    uint32_t steps; /* of the phase */
} plan_batch_t;

/* 0, or ERR_FAILED when the numbers are none that a run can have. The other functions are for a plan
 * that passes. */
int plan_check(const plan_t *plan);
/* Training steps of a whole epoch. */
uint32_t plan_train_steps(const plan_t *plan);
/* Number of the first training step of an epoch: 0, but floor(first_position / batch) in a
 * first_epoch that goes on in the middle. With the batch that the epoch was begun with its steps
 * keep their numbers; with another one the numbers still end below plan_train_steps. */
uint32_t plan_first_step(const plan_t *plan, uint32_t epoch);
/* Number behind the last training step of an epoch: plan_train_steps, but for a first_epoch that
 * goes on in the middle with another batch or whose training is done. */
uint32_t plan_end_step(const plan_t *plan, uint32_t epoch);
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
/* Position of a cell in its epoch's order. Train: step * G + rank * (G / ranks) + cell, in a
 * first_epoch that goes on in the middle first_position + (step - first step) * G + ..; it may
 * reach beyond n_train (the wrap). Validation: (step * ranks + rank) * val_batch + cell, below
 * n_val. */
uint64_t plan_position(const plan_t *plan, const plan_batch_t *batch, uint32_t rank, uint32_t cell);
/* Samples of the epoch's training that are consumed once this batch is done, n_train at most: what
 * first_position is when a run goes on behind it. */
uint64_t plan_consumed(const plan_t *plan, const plan_batch_t *batch);
/* 1 while mosaic and mixup may be drawn in this epoch: not in the last close_mosaic ones. As in
 * facts/yolo.md 4.8, a close_mosaic of more epochs than there are never closes (options_check says
 * so). */
int plan_mosaic(const plan_t *plan, uint32_t epoch);

#endif
