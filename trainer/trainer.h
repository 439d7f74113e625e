/* What one trainer process holds, for the files of trainer/ that make a run (run, batch, step,
 * validate, checkpoint, report).
 *
 * One per process (two in tests that run two ranks in one process). Owner: its one thread. Whoever
 * sets a part up also takes it down: run.c.
 */
#ifndef SLUICE_TRAINER_TRAINER_H
#define SLUICE_TRAINER_TRAINER_H

#include "control/ledger.h"
#include "control/options.h"
#include "control/parts.h"
#include "control/plan.h"
#include "control/stream.h"
#include "control/worker.h"
#include "kernels/kernels.h"
#include "trainer/ap.h"
#include "trainer/collective.h"
#include "trainer/graph.h"
#include "trainer/memory.h"
#include "trainer/save.h"
#include "trainer/schedule.h"
#include "trainer/snapshot.h"

/* What all ranks have agreed to do after a step: bits of step_train's and validate_batch's
 * *asked. */
enum { TRAINER_STOP = 1, TRAINER_SAVE = 2 };
/* Steps that may be under way on a device that works by itself: one computes, the next is prepared. */
enum { TRAINER_TURNS = 2 };

/* What the optimiser has done, beside the arena's contents: with them, all of what a resume
 * restores. */
typedef struct {
    uint64_t updates;   /* EMA updates (facts/yolo.md 4.6) */
    uint64_t opt_steps; /* optimiser steps: AdamW's t */
    uint64_t batches;   /* training forward passes of this rank: num_batches_tracked */
    int64_t
        last_opt_step; /* ni of the last one; starts at -1, straddles epochs (facts/yolo.md 4.5) */
    int64_t last_ni;   /* ni of the last training step; -1 before the first */
    schedule_point_t point; /* point.accumulate stays after warm-up */
    early_stop_t early;
    double best_fitness; /* rises on strict improvement only (facts/yolo.md 6.6) */
    int32_t best_epoch;  /* -1: none yet */
    double seconds;      /* of the run before this start */
    /* Of the training cells of this epoch so far: what this rank has folded; after
     * step_gather_stream all of it lies with rank 0. Zero where loaders make no digests. */
    stream_digest_t stream;
} trainer_progress_t;

/* Where a validation cell's pixels come from: network pixel = file pixel * ratio + pad. A ratio of 0: a
 * prediction's file could not be used. */
typedef struct {
    uint32_t position;
    float ratio, pad_left, pad_top;
} batch_place_t;

/* The present batch, on the host. */
typedef struct {
    int32_t n, h, w; /* n = 0: this rank has no images in this validation step */
    int32_t
        max_gt; /* rows an image has room for in gts and on the device: the batch's largest, >= 1 */
    uint32_t labels;
    k_gt_t *gts;           /* [n][max_gt], network pixels */
    int32_t *counts;       /* [n] */
    uint32_t *samples;     /* [n] catalog indices, for error sentences */
    batch_place_t *places; /* [n] of validation cells */
} batch_t;

/* What a step tells the device and hears from it, in host memory that the device reaches by itself. */
typedef struct {
    k_hyper_t hyper;
    float flags[2];  /* this rank's wish to stop, and to save */
    float items[4];  /* of the loss */
    float agreed[2]; /* the sums of the flags over the ranks */
} trainer_words_t;

/* A step that was given to the device and whose items have not been taken yet. */
typedef struct {
    int live, update; /* update: with an optimiser step, whose flags are in words.agreed */
    plan_batch_t b;
    batch_t batch;
} trainer_pending_t;

/* Running means over the epoch's steps so far. */
typedef struct {
    double mean[3]; /* box, cls, dfl */
    uint32_t steps;
} trainer_items_t;

/* What the last progress message counted from. */
typedef struct {
    uint64_t since_ns, wait_ns, images;
} trainer_report_t;

/* A validation under way (validate.c). */
typedef struct {
    ap_row_t *rows;
    uint64_t n_rows, room;
    double *sums; /* [nc] ground truths a class, then box, cls, dfl, batches, images */
    k_det_t *dets;
    int32_t *counts;
    int32_t n, h, w; /* of the present inference plan; n = 0: none */
    graph_plan_t plan;
} trainer_val_t;

typedef struct trainer {
    worker_t *w;
    const options_t *o;
    const plan_t *plan;
    uint32_t rank, ranks;
    /* Handles messages without waiting (run.c); tests have no coordinator and use their own. */
    int (*poll)(struct trainer *t);

    k_dev_t *dev;
    const k_ops_t *ops; /* dev->ops */
    graph_t *graph;
    const graph_sizes_t *sizes;
    memory_map_t mem;
    parts_t *parts;    /* `sluice val` and `sluice predict`: what their cells show; else NULL */
    int32_t *class_of; /* those too: the data set's class of each of the model's; -1: none */
    int32_t n_classes; /* classes of the labels and of what is measured (trainer_classes) */
    graph_plan_t train_plan;
    collective_t *coll;
    struct exchange *exchange; /* sums on the devices (exchange.h); NULL until opened */
    schedule_t schedule;

    trainer_progress_t progress;
    uint64_t seq;   /* batch number of this rank, from the start of the process */
    uint64_t taken; /* batches before it have left the ring, or will when their copies are done */
    batch_t batch;  /* the present one: its pointers are those of its turn */
    /* Host memory of a batch's labels by turn (trainer_turn); pinned where the device copies by
     * itself. On a CPU both are the same. */
    batch_t turns[TRAINER_TURNS];
    trainer_words_t *words; /* [TRAINER_TURNS] */
    int copying[TRAINER_TURNS];
    trainer_pending_t pending[TRAINER_TURNS];
    int agreed; /* what the ranks have agreed to do and this one has not done yet */
    int ring_pinned;
    int unrecorded;          /* steps are not recorded (record.h) */
    uint32_t recorded, warm; /* slots that are; kinds of step that have run once */
    uint64_t tuned;          /* operations of the pass that measures, for the board */
    char *choices; /* algorithms of the device's convolutions, as text (tune.h); or NULL */
    trainer_items_t items;
    uint32_t ledger_used; /* newest ledger entry that a batch of this rank may depend on */
    ledger_t *ledger;     /* rank 0: the coordinator's, entry by entry; NULL elsewhere */
    trainer_report_t report;
    trainer_val_t val;
    uint32_t found_open;  /* detections sent that the coordinator has not taken yet */
    snapshot_t *snapshot; /* rank 0; NULL elsewhere */
    trainer_save_t save;
    uint32_t left_out; /* checkpoints since the last one that found room; rank 0 */

    char holders[512]; /* who held memory of the device before it was opened; "" */
    char note[1024];   /* rank 0: what the terminal is to say at the start; "" */
    k_hyper_t hyper;   /* of the last update; what does not change stays */
    uint64_t start_ns; /* of the first step */
    uint64_t longest_step_ns;
} trainer_t;

/* Classes that labels and measures have: the model's, but where n_classes says otherwise. */
int32_t trainer_classes(const trainer_t *t);
/* 0 or 1: which of two the present step's buffers, events and words are; always 0 on a CPU. */
int trainer_turn(const trainer_t *t);
/* Host memory for batches of the map's sizes; the ring is pinned where the device copies from it by
 * itself. */
int trainer_host_alloc(trainer_t *t);
/* Before the device is closed; nothing may be under way any more. */
void trainer_host_free(trainer_t *t);
/* Turns a device operation's failure into the error text: "rank 1: forward: ...". 0 passes. */
int trainer_check(const trainer_t *t, int rc, const char *what);
/* How long a wait may sleep before it looks around: short while a copied batch's slot is to be freed. */
int trainer_nap_ms(const trainer_t *t);
/* What every wait for the device does between two looks: messages, slots to free, the other ranks. */
int trainer_look(trainer_t *t);
/* Waits until the stream is empty, or event e has fired. ERR_TIMEOUT when one rank's device has not
 * come to it within the collectives' deadline (of several ranks exchange.h watches, who knows for
 * whom). */
int trainer_drain(trainer_t *t, k_stream_t s);
int trainer_await(trainer_t *t, int32_t e);
/* Gives up a device that does not end what it was given: t->dev is NULL, and the process will leave
 * without the libraries' own clean-up, which would wait for it. */
void trainer_abandon(trainer_t *t);
/* Copies and drains. */
int trainer_upload(trainer_t *t, k_at dst, const void *host, uint64_t bytes);
int trainer_download(trainer_t *t, void *host, k_at src, uint64_t bytes);
/* 1 when the user asked for a stop (WIRE_STOP, Ctrl-C or `sluice stop`). */
int trainer_wants_stop(const trainer_t *t);

#endif
