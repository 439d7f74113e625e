/* The status board: one page per process, readable while its owner is stopped, stuck or dead
 * (design 5).
 *
 * One memfd made by the coordinator: page 0 is the hub (run-wide words), then `pages` process
 * pages, then BOARD_GPUS pages that GPUs write, one a trainer: nothing else lies on them, because the
 * trainer pins its page for the device. A page has one writer, its process (or its GPU); everybody
 * else only reads. All fields are relaxed atomics except where a comment names a partner. Times are
 * CLOCK_MONOTONIC nanoseconds.
 */
#ifndef SLUICE_SHM_BOARD_H
#define SLUICE_SHM_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

enum { BOARD_INFLIGHT = 16, BOARD_PAGE_BYTES = 4096, BOARD_GPUS = 64 };

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

/* How far a trainer's start has come; board_stage_name gives the words. */
typedef enum {
    BOARD_STAGE_NONE = 0,     /* before its device */
    BOARD_STAGE_CONTEXT,      /* opening the device */
    BOARD_STAGE_RENDEZVOUS,   /* the ranks tell each other how to meet */
    BOARD_STAGE_COMMUNICATOR, /* the devices connect */
    BOARD_STAGE_FIRST_SUM,    /* a small sum, whose result is known */
    BOARD_STAGE_CAPTURE,      /* recording a step */
    BOARD_STAGE_RUNNING,
    BOARD_STAGES
} board_stage_t;

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
    _Atomic uint32_t stage;                     /* board_stage_t of a trainer */
    _Atomic uint64_t since_ns;                  /* of the phase */
    _Atomic uint64_t beat_ns;                   /* last sign of life */
    _Atomic uint64_t progress, progress_of;     /* of a long phase; 0 of 0 otherwise */
    _Atomic uint64_t memory_bytes;              /* arena and buffers that this process holds */
    _Atomic uint64_t device_bytes, device_free; /* a GPU's: reserved; free before that */
    /* loader */
    _Atomic uint64_t cells_done, bytes_read, wait_slot_ns, read_ns, decode_ns, augment_ns;
    board_cell_t inflight[BOARD_INFLIGHT];
    /* trainer */
    _Atomic uint64_t seq_waited; /* batch waited for or worked on */
    _Atomic uint64_t steps_done, images_done;
    _Atomic uint64_t wait_data_ns, step_ns; /* sums since the start */
    _Atomic uint64_t coll_entered, coll_launched, coll_started, coll_completed; /* between hosts */
    /* Sums over the devices that were given to the GPU; what it has done of them: board_gpu_t. */
    _Atomic uint64_t sums_launched;
    _Atomic uint64_t stage_ns;   /* since when the stage is what it is */
    _Atomic uint32_t device_one; /* a trainer's GPU + 1; 0: a CPU, or not known yet */
    /* The GPU waited for a batch's copy: a sum of times between its own events. */
    _Atomic uint64_t wait_copy_ns;
} board_page_t;

/* What a trainer's GPU has come to, counted by the GPU itself in the order of its streams
 * (k_ops_t.tick), recorded steps included: true also while the trainer is stopped or stuck. The
 * trainer stores zeros before its first sum. */
typedef struct {
    _Atomic uint64_t started, completed; /* sums over the ranks */
    _Atomic uint64_t exchanges;          /* steps whose gradients have all been summed */
} board_gpu_t;

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
/* The page that rank's GPU writes, BOARD_PAGE_BYTES of its own; NULL beyond BOARD_GPUS. */
board_gpu_t *board_gpu(board_t *board, uint32_t rank);

/* Owner: claims the page for this process and sets phase BOARD_START. */
void board_open_page(board_page_t *page, board_kind_t kind, uint32_t index, uint32_t incarnation);
/* Owner: changes the phase and its time; progress is 0 of 0 again. */
void board_set_phase(board_page_t *page, board_phase_t phase);
/* Owner: sign of life and progress of the phase. */
void board_progress(board_page_t *page, uint64_t done, uint64_t of);
/* Owner: a trainer's next stage. */
void board_set_stage(board_page_t *page, board_stage_t stage);
const char *board_phase_name(uint32_t phase);
const char *board_stage_name(uint32_t stage);
const char *board_kind_name(uint32_t kind);

#endif
