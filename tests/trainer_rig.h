/* A trainer without a coordinator, for tests: board, ring, device, graph and memory in this
 * process.
 *
 * trainer_rig_open builds rank `rank` of `ranks`; ranks of one test are processes made by fork (a
 * collective waits for all of them). Batches come from rig_fill, which plays the loader: claims,
 * writes and commits the cells of the batch that the trainer waits for.
 */
#ifndef SLUICE_TESTS_TRAINER_RIG_H
#define SLUICE_TESTS_TRAINER_RIG_H

#include "trainer/trainer.h"

enum { RIG_CLASSES = 3, RIG_LABELS = 8, RIG_SIZE = 64, RIG_VAL_SIZE = 96 };

/* Which training. trainer_rig_open has one of its own. */
typedef struct {
    const char *model;
    uint32_t classes, side, labels; /* side: pixels; labels: room in a cell */
    uint32_t images, batch, epochs; /* images of an epoch; batch is global */
    uint32_t close_mosaic, seed;
    uint32_t digest;          /* cells have one */
    uint32_t n_val;           /* validated after the last epoch; a rig for the rig's own size */
    const char *const *words; /* extra options, NULL-ended, may be NULL */
    const k_ops_t *ops;       /* the device's; NULL: a CPU */
    k_dtype_t format;         /* of computation; K_F32 on a CPU */
    int tune;                 /* measure convolutions as a run does */
} rig_spec_t;

typedef struct {
    worker_t w;
    trainer_t t;
    rig_spec_t spec;
    int ring_fd, collective_fd, catalog_fd;
} rig_t;

/* What ranks share, made before fork. */
typedef struct {
    board_t *board;
    int board_fd, collective_fd;
} rig_shared_t;

/* The GPU's operations, or NULL where this build or this machine has none (in `format`). */
const k_ops_t *rig_gpu(k_dtype_t format);
int rig_share(uint32_t ranks, rig_shared_t *s);
void rig_unshare(rig_shared_t *s);
/* The worker alone: board page, hub, no bus, no lifeline. */
void rig_worker(const rig_shared_t *s, uint32_t rank, worker_t *w);

/* A yolo11n of RIG_CLASSES classes at RIG_SIZE px. batch is global; an epoch is one step. n_val
 * images are validated after the last epoch (facts/yolo.md 6.1 makes their batches RIG_VAL_SIZE
 * px). words: extra options, NULL-ended, may be NULL. */
int trainer_rig_open(const rig_shared_t *s, uint32_t rank, uint32_t ranks, uint32_t batch,
                     uint32_t epochs, uint32_t n_val, const char *const *words, rig_t *r);
int trainer_rig_open_as(const rig_shared_t *s, uint32_t rank, uint32_t ranks,
                        const rig_spec_t *spec, rig_t *r);
void trainer_rig_close(rig_t *r);
/* Drawn weights (tests/draws.h) in place of new ones, running statistics as of a new model. The head's
 * last biases make its boxes small and its classes rare, so that from the first step on boxes overlap
 * and every term of the loss has a part (as drawn, or new, most boxes are far too large to be
 * assigned). */
int rig_draw(rig_t *r, const char *name);
/* Fills the cells of batch t.seq: pictures first, first + 1, .. of an endless made-up set that
 * repeats after `images`, each with one or two bright rectangles whose colour is their class.
 * A validation batch holds the same pictures letterboxed. */
void rig_fill(rig_t *r, const plan_batch_t *b, uint32_t first, uint32_t images);

#endif
