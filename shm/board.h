/* The status board: one page per process, readable while its owner is stopped, stuck or dead
 * (design 5).
 *
 * One memfd made by the coordinator: page 0 is the hub (run-wide words), then `pages` process
 * pages. A page has one writer, its process; everybody else only reads. All fields are relaxed
 * atomics except where a comment names a partner. Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef SLUICE_SHM_BOARD_H
#define SLUICE_SHM_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

enum { BOARD_INFLIGHT = 16, BOARD_PAGE_BYTES = 4096 };

typedef enum {
    BOARD_NONE = 0,
    BOARD_LOADER,
    BOARD_TRAINER,
    BOARD_SCRIBE,
    BOARD_COORDINATOR,
    BOARD_SCAN,
} board_kind_t;

/* What a process is doing. One line a state; board_phase_name gives the word that status prints. */
typedef enum {
    BOARD_IDLE = 0,   /* nothing to do yet, or done */
    BOARD_START,      /* attaching memory, saying hello */
    BOARD_SCANNING,   /* scan: reading the data set; progress counts files */
    BOARD_LOADING,    /* loader: cells in flight */
    BOARD_WAIT_SLOT,  /* loader: no EMPTY cell in any window (backpressure: healthy) */
    BOARD_BUILD,      /* trainer: building the model, planning memory, loading weights */
    BOARD_WAIT_DATA,  /* trainer: batch `seq_waited` is not ready */
    BOARD_FORWARD,    /* trainer */
    BOARD_BACKWARD,   /* trainer */
    BOARD_COLLECTIVE, /* trainer: in a collective, waiting for the other ranks */
    BOARD_UPDATE,     /* trainer: optimiser and EMA */
    BOARD_VALIDATE,   /* trainer: validation forward, NMS, AP; progress counts batches */
    BOARD_CHECKPOINT, /* trainer: writing a snapshot; scribe: writing it to disk */
    BOARD_STOPPING,   /* leaving in good order */
    BOARD_WRITING,    /* scribe: lines of the logs and args.yaml, on their way to the disk */
    BOARD_PHASES
} board_phase_t;

/* A loader's cell in flight. */
typedef enum { CELL_FREE = 0, CELL_OPEN, CELL_READ, CELL_DECODE, CELL_AUGMENT } board_cell_phase_t;
typedef struct {
    _Atomic uint64_t since_ns;
    _Atomic uint64_t seq;
    _Atomic uint32_t rank, cell;
    _Atomic uint32_t phase;  /* board_cell_phase_t */
    _Atomic uint32_t sample; /* the file being worked on: catalog index */
    _Atomic uint32_t split;  /* 0 train, 1 val */
    uint32_t pad;
} board_cell_t;

typedef struct {
    _Atomic uint32_t kind, index; /* board_kind_t; rank or loader number */
    _Atomic uint32_t pid, incarnation;
    _Atomic uint32_t phase; /* board_phase_t */
    _Atomic uint32_t epoch, step;
    _Atomic uint32_t stage;    /* start-up stage of a trainer, for later use by verdicts */
    _Atomic uint64_t since_ns; /* of the phase */
    _Atomic uint64_t beat_ns;  /* last sign of life */
    _Atomic uint64_t progress, progress_of; /* of a long phase; 0 of 0 otherwise */
    _Atomic uint64_t memory_bytes;          /* arena and buffers that this process holds */
    /* loader */
    _Atomic uint64_t cells_done, bytes_read, wait_slot_ns, read_ns, decode_ns, augment_ns;
    board_cell_t inflight[BOARD_INFLIGHT];
    /* trainer */
    _Atomic uint64_t seq_waited; /* batch waited for or worked on */
    _Atomic uint64_t steps_done, images_done;
    _Atomic uint64_t wait_data_ns, step_ns; /* sums since the start */
    _Atomic uint64_t coll_entered, coll_launched, coll_started, coll_completed;
} board_page_t;

typedef struct {
    uint64_t magic;
    uint32_t version, pages;
    _Alignas(64) _Atomic uint32_t work_bell; /* loaders sleep here (futex_wait); trainers ring it */
    _Alignas(64) _Atomic uint32_t abort_word; /* 1: every wait in the run ends with ERR_GONE */
    _Alignas(64) _Atomic uint32_t loaders_wanted;
    _Atomic uint64_t memory_reserved; /* bytes that trainers leave to loaders and the rest */
} board_hub_t;

typedef struct board board_t; /* this process's mapping */

int board_create(uint32_t pages, board_t **board, int *fd);
int board_attach(int fd, board_t **board);
void board_close(board_t **board);
board_hub_t *board_hub(board_t *board);
/* Page number i, or NULL beyond the end. */
board_page_t *board_page(board_t *board, uint32_t i);
uint32_t board_pages(const board_t *board);

/* Owner: claims the page for this process and sets phase BOARD_START. */
void board_open_page(board_page_t *page, board_kind_t kind, uint32_t index, uint32_t incarnation);
/* Owner: changes the phase and its time; progress is 0 of 0 again. */
void board_set_phase(board_page_t *page, board_phase_t phase);
/* Owner: sign of life and progress of the phase. */
void board_progress(board_page_t *page, uint64_t done, uint64_t of);
const char *board_phase_name(uint32_t phase);
const char *board_kind_name(uint32_t kind);

#endif
