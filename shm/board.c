#include "shm/board.h"

#include "shm/arena.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BOARD_MAGIC   0x3144524f42434c53ull /* "SLCBORD1" */
#define BOARD_VERSION 2u

_Static_assert(sizeof(board_page_t) <= BOARD_PAGE_BYTES, "a page must hold its process");
_Static_assert(sizeof(board_hub_t) <= BOARD_PAGE_BYTES, "page 0 must hold the hub");
_Static_assert(sizeof(board_gpu_t) <= BOARD_PAGE_BYTES, "a GPU's page must hold its counters");

struct board {
    uint8_t *base;
    uint64_t bytes;
    uint32_t pages;
};

/* Hub, process pages, pages of the GPUs. */
static uint64_t board_bytes(uint32_t pages)
{
    return ((uint64_t)pages + 1 + BOARD_GPUS) * BOARD_PAGE_BYTES;
}

static int board_wrap(void *base, uint64_t bytes, uint32_t pages, board_t **board)
{
    board_t *b = malloc(sizeof *b);
    if (!b)
        return err_set(ERR_ENV, "status board: out of memory");
    b->base = base;
    b->bytes = bytes;
    b->pages = pages;
    *board = b;
    return 0;
}

int board_create(uint32_t pages, board_t **board, int *fd)
{
    void *base;
    uint64_t bytes = board_bytes(pages);
    int rc = arena_create("sluice-board", bytes, &base, fd);
    if (rc < 0)
        return err_add(rc, "status board");
    board_hub_t *hub = base;
    hub->magic = BOARD_MAGIC;
    hub->version = BOARD_VERSION;
    hub->pages = pages;
    rc = board_wrap(base, bytes, pages, board);
    if (rc < 0) {
        arena_unmap(base, bytes);
        close(*fd);
    }
    return rc;
}

int board_attach(int fd, board_t **board)
{
    void *base;
    uint64_t bytes;
    int rc = arena_map(fd, 1, &base, &bytes);
    if (rc < 0)
        return err_add(rc, "status board");
    const board_hub_t *hub = base;
    if (bytes < BOARD_PAGE_BYTES || hub->magic != BOARD_MAGIC || hub->version != BOARD_VERSION ||
        bytes != board_bytes(hub->pages)) {
        rc = err_set(
            ERR_FAILED,
            "descriptor %d is not a status board of this version: all binaries of a run must "
            "come from one build",
            fd);
        arena_unmap(base, bytes);
        return rc;
    }
    rc = board_wrap(base, bytes, hub->pages, board);
    if (rc < 0)
        arena_unmap(base, bytes);
    return rc;
}

void board_close(board_t **board)
{
    if (!*board)
        return;
    arena_unmap((*board)->base, (*board)->bytes);
    free(*board);
    *board = NULL;
}

board_hub_t *board_hub(board_t *board)
{
    return (board_hub_t *)board->base;
}

board_page_t *board_page(board_t *board, uint32_t i)
{
    if (i >= board->pages)
        return NULL;
    return (board_page_t *)(board->base + ((size_t)i + 1) * BOARD_PAGE_BYTES);
}

uint32_t board_pages(const board_t *board)
{
    return board->pages;
}

board_gpu_t *board_gpu(board_t *board, uint32_t rank)
{
    if (rank >= BOARD_GPUS)
        return NULL;
    return (board_gpu_t *)(board->base + ((size_t)board->pages + 1 + rank) * BOARD_PAGE_BYTES);
}

void board_open_page(board_page_t *page, board_kind_t kind, uint32_t index, uint32_t incarnation)
{
    memset((void *)page, 0, sizeof *page);
    atomic_store_explicit(&page->index, index, memory_order_relaxed);
    atomic_store_explicit(&page->incarnation, incarnation, memory_order_relaxed);
    atomic_store_explicit(&page->pid, (uint32_t)getpid(), memory_order_relaxed);
    board_set_phase(page, BOARD_START);
    /* kind last: with it the page counts as in use. Partner: readers' acquire load of kind. */
    atomic_store_explicit(&page->kind, kind, memory_order_release);
}

void board_set_phase(board_page_t *page, board_phase_t phase)
{
    uint64_t now = clock_ns();
    /* Progress belongs to the phase that counts it: what was counted before must not show. */
    atomic_store_explicit(&page->progress_of, 0, memory_order_relaxed);
    atomic_store_explicit(&page->progress, 0, memory_order_relaxed);
    atomic_store_explicit(&page->since_ns, now, memory_order_relaxed);
    atomic_store_explicit(&page->beat_ns, now, memory_order_relaxed);
    atomic_store_explicit(&page->phase, phase, memory_order_relaxed);
}

void board_progress(board_page_t *page, uint64_t done, uint64_t of)
{
    atomic_store_explicit(&page->progress_of, of, memory_order_relaxed);
    atomic_store_explicit(&page->progress, done, memory_order_relaxed);
    atomic_store_explicit(&page->beat_ns, clock_ns(), memory_order_relaxed);
}

void board_set_stage(board_page_t *page, board_stage_t stage)
{
    uint64_t now = clock_ns();
    atomic_store_explicit(&page->stage_ns, now, memory_order_relaxed);
    atomic_store_explicit(&page->beat_ns, now, memory_order_relaxed);
    atomic_store_explicit(&page->stage, stage, memory_order_relaxed);
}

const char *board_phase_name(uint32_t phase)
{
    static const char *const names[BOARD_PHASES] = {
        [BOARD_IDLE] = "idle",
        [BOARD_START] = "starting",
        [BOARD_SCANNING] = "scanning",
        [BOARD_LOADING] = "loading",
        [BOARD_WAIT_SLOT] = "waiting for a free slot",
        [BOARD_BUILD] = "building the model",
        [BOARD_WAIT_DATA] = "waiting for data",
        [BOARD_FORWARD] = "forward",
        [BOARD_BACKWARD] = "backward",
        [BOARD_COLLECTIVE] = "in a collective",
        [BOARD_UPDATE] = "updating",
        [BOARD_VALIDATE] = "validating",
        [BOARD_CHECKPOINT] = "checkpointing",
        [BOARD_STOPPING] = "stopping",
        [BOARD_WRITING] = "writing",
    };
    return phase < BOARD_PHASES ? names[phase] : "unknown";
}

const char *board_stage_name(uint32_t stage)
{
    static const char *const names[BOARD_STAGES] = {
        [BOARD_STAGE_NONE] = "before its device",
        [BOARD_STAGE_CONTEXT] = "opening its device",
        [BOARD_STAGE_RENDEZVOUS] = "meeting the other ranks",
        [BOARD_STAGE_COMMUNICATOR] = "connecting to the other devices",
        [BOARD_STAGE_FIRST_SUM] = "in the first sum over the devices",
        [BOARD_STAGE_CAPTURE] = "recording its step",
        [BOARD_STAGE_RUNNING] = "running",
    };
    return stage < BOARD_STAGES ? names[stage] : "unknown";
}

const char *board_kind_name(uint32_t kind)
{
    static const char *const names[] = {
        [BOARD_NONE] = "none",     [BOARD_LOADER] = "loader",           [BOARD_TRAINER] = "rank",
        [BOARD_SCRIBE] = "scribe", [BOARD_COORDINATOR] = "coordinator", [BOARD_SCAN] = "scan",
    };
    return kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}
