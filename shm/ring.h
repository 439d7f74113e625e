/* The batch ring of one trainer: slots, claim words, ready and free (design 3).
 *
 * One memfd per trainer, made by the coordinator (ring_create), inherited by every loader and by
 * its trainer (ring_attach). The ring is a window of `depth` consecutive batch numbers (`seq`,
 * counted from the run's first batch of this rank): seq lives in slot seq % depth while tail <= seq
 * < tail + depth. A slot holds up to `cells` cells; a cell is filled by the one loader that won its
 * claim word.
 *
 * Who may call what:
 *   coordinator  ring_create, ring_arm (before anything starts), ring_fence, ring_raise, ring_rewind
 *   loader       ring_find_empty, ring_claim, ring_commit, ring_abandon
 *   loader       ring_adopt, when it acknowledges a rewind
 *   trainer      ring_wait_batch, ring_release (in a digest run: the coordinator)
 *   its cells    ring_image, ring_labels, ring_meta: the loader that has claimed one; the trainer
 *                between ring_ready and ring_release
 *   anyone       ring_tail, ring_cells, ring_peek, ring_ready, ring_fill
 *
 * The claim word (64 bits; shm/ring_word.h has it and the table of its transitions):
 *   EMPTY --ring_claim (loader, CAS acquire)--> CLAIMED --ring_commit (CAS release)--> DONE
 *   CLAIMED --ring_fence (coordinator, owner dead, CAS)--> EMPTY
 *   CLAIMED --ring_abandon (its owner)--> EMPTY
 *   DONE of all cells --ring_release (trainer)--> EMPTY of seq + depth
 *   any --ring_rewind (coordinator, a new generation, trainers dead)--> EMPTY of another seq
 * seq and generation in the word make a claim computed from an old view fail instead of hitting the
 * slot's next use. A slot is ready when all its words say DONE: derived from the words, never
 * counted. Ordering: payload and cell metadata are written -> DONE stored with release -> read with
 * acquire by the trainer.
 *
 * A process works in the generation that its mapping has adopted (ring_attach, ring_adopt): while
 * the ring's own is another, nothing looks EMPTY or ready to it and every claim, commit and abandon
 * of it fails.
 */
#ifndef SLUICE_SHM_RING_H
#define SLUICE_SHM_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { RING_EMPTY = 0, RING_CLAIMED = 1, RING_DONE = 2 };
enum { RING_OWNER_MAX = (1 << 22) - 1, RING_MAX_LABELS = 1 << 20 /* of a cell */ };

/* One object of a cell: class, then centre and size, normalised to the cell's width and height. */
typedef struct {
    float cls, cx, cy, w, h;
} ring_label_t;

/* What a cell says of itself, written by the loader before DONE. */
typedef struct {
    uint32_t phase;    /* plan_phase_t */
    uint32_t epoch;    /* 0-based */
    uint32_t step;     /* within the phase */
    uint32_t n_labels; /* <= label_cap */
    uint64_t position; /* sample position within the epoch (design 4) */
    uint32_t sample;   /* index into the catalog's list of the phase */
    uint32_t height;   /* of the cell's image: all cells of a batch agree */
    uint32_t width;
    uint32_t orig_height, orig_width; /* of the sample's file, upright */
    float ratio;                      /* validation: network pixels per file pixel */
    float pad_left, pad_top;          /* validation: letterbox borders, network pixels */
    uint32_t n_sources; /* source files that reached the pixels (4 for a mosaic, 8 with mixup) */
    uint32_t sources[8];
    uint32_t ledger; /* ledger entries that its loader knew: none behind them reached this cell */
    uint64_t digest; /* over pixels and labels; 0 where the run does not ask for digests */
} ring_cell_meta_t;

/* Sizes fixed at creation. */
typedef struct {
    uint32_t depth;       /* slots, >= 2 */
    uint32_t cells;       /* most cells a batch may have */
    uint32_t label_cap;   /* labels per cell */
    uint32_t digest;      /* 1: loaders fill ring_cell_meta_t.digest */
    uint64_t image_bytes; /* payload of one slot: the largest cells * height * width * 3 */
} ring_config_t;

typedef struct ring ring_t; /* opaque: this process's mapping */

/* Bytes of the memfd for this configuration; the memory budget is checked with it before creation.
 */
uint64_t ring_bytes(const ring_config_t *config);
/* Makes and maps a sealed memfd of the configuration's size. Slots are unarmed: no cell can be
 * claimed. *fd is the caller's to pass on and close. ERR_ENV with need and available when it cannot
 * be had. */
int ring_create(const ring_config_t *config, const char *name, ring_t **ring, int *fd);
/* Maps an inherited ring. Checks magic, layout version and every size against the file's. The
 * doorbell is the word that loaders of all rings sleep on (board_hub_t.work_bell). */
int ring_attach(int fd, _Atomic uint32_t *bell, ring_t **ring);
void ring_set_bell(ring_t *ring, _Atomic uint32_t *bell);
void ring_close(ring_t **ring);
const ring_config_t *ring_get_config(const ring_t *ring);
/* This process's mapping as a whole, for a device that copies from it by itself. */
void *ring_mapping(ring_t *ring, uint64_t *bytes);

/* Coordinator, before start: opens the window [0, depth) with cells[i] cells in batch i. */
void ring_arm(ring_t *ring, const uint32_t *cells);
/* Coordinator, when `owner` has been seen dead (pidfd readable): its CLAIMED words return to EMPTY.
 * Returns how many. */
uint32_t ring_fence(ring_t *ring, uint32_t owner);

/* Rewind (design 3), in this order:
 *   1. ring_raise: a new generation. No claim of the old one succeeds after step 3.
 *   2. Every live loader forgets its cells, calls ring_adopt and acknowledges, or is fenced; every
 *      trainer is seen dead. The caller's to see to, and not optional: a claim word can refuse a
 *      late commit, but not a late write of pixels.
 *   3. ring_rewind, then the trainers start anew.
 * All three may be repeated, by another process too, when the one before died on the way. */
uint32_t ring_raise(ring_t *ring); /* the new generation; this mapping adopts it */
/* Resets every slot, whatever state a trainer that died in ring_release has left it in, and opens
 * the window [seq, seq + depth) with cells[i] cells in batch seq + i. */
void ring_rewind(ring_t *ring, uint64_t seq, const uint32_t *cells);
/* Takes the ring's generation as this mapping's own. Returns it. */
uint32_t ring_adopt(ring_t *ring);

/* First batch number that the trainer has not freed. */
uint64_t ring_tail(const ring_t *ring);
/* Cells of batch seq, or -1 if seq is outside the window at this moment. */
int ring_cells(const ring_t *ring, uint64_t seq);
/* Reads a claim word's state (RING_*), and its owner if not NULL. -1 when seq is outside the
 * window or the generation is not this mapping's. */
int ring_peek(const ring_t *ring, uint64_t seq, uint32_t cell, uint32_t *owner);

/* Loader: try to claim exactly this cell. 1 won, 0 not EMPTY or no longer in the window. */
int ring_claim(ring_t *ring, uint64_t seq, uint32_t cell, uint32_t owner);
/* Lowest (seq, cell) at or after *seq, *cell that looks EMPTY; updates both. 0 found, -1 none. */
int ring_find_empty(const ring_t *ring, uint64_t *seq, uint32_t *cell);
/* The claimed cell's places. Image bytes start at cell * image_stride, image_stride = h * w * 3:
 * the cells of a batch lie behind one another as uint8 [cells][h][w][3], RGB. */
uint8_t *ring_image(ring_t *ring, uint64_t seq, uint32_t cell, size_t image_stride);
ring_label_t *ring_labels(ring_t *ring, uint64_t seq, uint32_t cell);
ring_cell_meta_t *ring_meta(ring_t *ring, uint64_t seq, uint32_t cell);
/* CLAIMED(owner) -> DONE with release, and wakes the trainer. 0, or -1 when the word is no longer
 * ours (fenced or rewound): the caller forgets the cell. */
int ring_commit(ring_t *ring, uint64_t seq, uint32_t cell, uint32_t owner);
/* CLAIMED(owner) -> EMPTY, by its owner, when it stops in good order. */
void ring_abandon(ring_t *ring, uint64_t seq, uint32_t cell, uint32_t owner);

/* Trainer: 1 when every cell of batch seq says DONE (acquire), else 0. */
int ring_ready(const ring_t *ring, uint64_t seq);
/* Trainer: sleeps until ring_ready(seq) or timeout_ms (at most FUTEX_RECHECK_MS); returns
 * ring_ready. */
int ring_wait_batch(ring_t *ring, uint64_t seq, int timeout_ms);
/* Trainer: frees batch tail and opens tail + depth with next_cells cells (0: that batch exists and
 * is empty); rings the loaders' bell. seq must equal ring_tail. */
void ring_release(ring_t *ring, uint64_t seq, uint32_t next_cells);

/* Batches that are ready now, from the tail on without a gap: the fill that status shows. */
uint32_t ring_fill(const ring_t *ring);

#endif
