/* What the files of a run's weights/ hold, and the way back from them (design 9, facts/yolo.md 8).
 *
 * last.safetensors, best.safetensors, epoch{N}.safetensors: the EMA weights under their state-dict
 * names; metadata: model, nc, epoch, names, strides, args, task. last.state.safetensors: what a
 * resume needs. Regions as they lie in memory (graph_sizes_t), F32: weights, momentum, variance
 * (AdamW), ema.weights, ema.buffers, buffers ([ranks][n]: BN statistics of every rank), gradients
 * (of an accumulation that is not finished); I64 ledger ([entries][6]: split, sample, substitute,
 * from_epoch, only, from_position); metadata: checkpoint_state_t. "kind" is CHECKPOINT_KIND, which
 * changes with the meaning of anything here. "layout" is a
 * hash of every parameter's name, shape and place, so that a region is never read with another
 * build's places. The pure half (image, read) needs no trainer; tests go through memory.
 */
#ifndef SLUICE_TRAINER_CHECKPOINT_H
#define SLUICE_TRAINER_CHECKPOINT_H

#include "control/catalog.h"
#include "trainer/graph.h"
#include "trainer/safetensors.h"
#include "trainer/trainer.h"

#define CHECKPOINT_KIND "sluice state 3"
/* Metadata that only a GPU's run has: its convolutions' algorithms (tune.h), and, with float16, the
 * loss scale. */
#define CHECKPOINT_CHOICES "convolutions"
enum {
    CHECKPOINT_LEDGER = 6 /* numbers of an entry */,
    CHECKPOINT_LEDGER_MOST = 1 << 20 /* entries */,
    CHECKPOINT_CHOICES_MOST = 1 << 18, /* bytes; a longer text is left out */
};

typedef struct {
    /* Regions on the host; those read from a file point into it. NULL: not there. */
    const void *weights, *m, *v, *grads, *ema_weights, *ema_buffers;
    const void *rank_buffers; /* [ranks][buffers] */
    uint32_t ranks, batch;    /* as the run had them */
    uint32_t epoch;           /* next epoch to run, 0-based */
    uint64_t position;        /* samples of it that are consumed: plan_t.first_position */
    uint32_t finished;
    uint32_t pending; /* iterations since the last optimiser step, their gradients in grads */
    uint32_t sgd;
    uint32_t threads; /* of each rank */
    uint64_t seed, list_digest;
    const void *ledger; /* int64_t [ledger_count][CHECKPOINT_LEDGER], not aligned */
    uint32_t ledger_count;
    const char *choices;   /* NULL: not there */
    int scaled;            /* the run computed in float16: scale and good are there, and gradients
                              are `scale` times too large */
    k_scaling_t scaling;   /* its norm is not kept; skipped counts in every format */
    trainer_items_t items; /* of the epoch so far */
    trainer_progress_t progress;
} checkpoint_state_t;

int checkpoint_state_image(const graph_t *g, const checkpoint_state_t *s,
                           safetensors_writer_t *out);
/* What the run that resumes has. */
typedef struct {
    uint64_t seed, list_digest;
    uint32_t sgd, epochs, first_epoch;
    uint64_t first_position;
    int32_t patience;
} checkpoint_expect_t;
/* ERR_CONFIG with a sentence when the file is of another model, class count, data set, seed or
 * optimiser, or when nothing is left to do. origin names the file. */
int checkpoint_state_read(const graph_t *g, const safetensors_t *file, const char *origin,
                          const checkpoint_expect_t *expect, checkpoint_state_t *s);
/* catalog may be NULL: no names. */
int checkpoint_weights_image(const graph_t *g, const float *ema_weights, const float *ema_buffers,
                             uint64_t batches, uint32_t epoch, const int32_t stride[K_LEVELS],
                             const catalog_t *catalog, const char *args, safetensors_writer_t *out);
/* Most bytes that both images together can have: the size of a snapshot slot. samples: of both
 * splits, for the ledger. */
uint64_t checkpoint_bytes(const graph_t *g, uint32_t ranks, size_t args_bytes, size_t names_bytes,
                          uint64_t samples);

/* Puts a state read from a file into the arena and t->progress. After step_init. */
int checkpoint_restore(trainer_t *t, const checkpoint_state_t *s);

typedef struct {
    uint32_t epoch;      /* the epoch that ended, or was interrupted, 0-based */
    uint32_t next_epoch; /* where a resume starts */
    uint64_t position;   /* samples of next_epoch that are consumed */
    int finished, is_best;
    int whole; /* 1: the epoch has ended; 0: in the middle of it */
    int must;  /* 1: wait for a slot as checkpoint_settle does; 0: skip when the disk is late */
} checkpoint_point_t;
/* Takes a snapshot and hands it to the scribe. Collective: every rank calls it at the same point.
 * The weights come before the state, and the scribe writes in that order: whatever cuts it short, the
 * state on disk is one of a moment, whole, and all that a resume reads. */
int checkpoint_take(trainer_t *t, const checkpoint_point_t *p);
/* Rank 0: waits until the scribe has answered for everything, at most the stop's deadline, or ten
 * minutes where nobody has asked for a stop. ERR_FAILED when the newest files were not written. */
int checkpoint_settle(trainer_t *t);

#endif
