/* DESIGN
 *
 * Memory of a ring, in this order, each part on its own page:
 *
 *   offset 0        ring_header_t   magic, version, sizes, offsets; tail, ready word, generation
 *   slots_at        ring_slot_t     one a slot: the batch number it is open for, its cell count
 *   words_at        _Atomic u64     claim words [depth][cells]
 *   meta_at         ring_cell_meta_t [depth][cells]
 *   labels_at       ring_label_t    [depth][cells][label_cap]
 *   images_at       uint8           [depth][image_stride]: the cells' images behind one another
 *
 * Who writes what: header sizes, the coordinator before anybody attaches. tail, slots and the
 * re-opening of words: the trainer (ring_release), or the coordinator while no trainer lives
 * (ring_arm, ring_rewind). Claim words otherwise: by compare-and-swap only, so that no order of
 * events loses a transition. Payload: the claim's winner.
 *
 * Opening a slot for seq + depth (ring_release) stores every word, then the slot's fields, then
 * tail with release; a loader reads tail with acquire and so sees words of the new lap. A loader
 * that still holds a view of the old lap fails its compare-and-swap, because seq is part of the
 * word. A loader may win a word of the new lap before tail has moved (an old view that happens to
 * fit, a rewind): the word is EMPTY of a batch that is about to be shown, so that is no harm.
 *
 * Every atomic access of this file is one step of tests/test_ring_model.c, which compiles it with
 * accesses of its own and tries all interleavings.
 */
#include "shm/ring.h"

#include "shm/arena.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"
#include "shm/ring_word.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RING_MAGIC   0x31474e4952434c53ull /* "SLCRING1" */
#define RING_VERSION 1u

enum { RING_PAGE = 4096, RING_MAX_DEPTH = 1024, RING_MAX_CELLS = 65536 };

typedef struct {
    _Atomic uint64_t seq;
    _Atomic uint32_t cells; /* of batch seq */
    uint32_t pad[13];       /* a cache line a slot */
} ring_slot_t;
_Static_assert(sizeof(ring_slot_t) == 64, "a slot's fields fill one cache line");

typedef struct {
    uint64_t magic;
    uint32_t version, header_bytes;
    ring_config_t config;
    uint64_t slots_at, words_at, meta_at, labels_at, images_at, image_stride, total_bytes;
    /* Read by every loader, written by the trainer once a batch. */
    _Alignas(64) _Atomic uint64_t tail;
    _Atomic uint32_t generation; /* words hold its low bits */
    _Atomic uint32_t armed;      /* 0 until ring_arm and while a rewind resets slots */
    /* The trainer sleeps on it; every commit changes it. */
    _Alignas(64) _Atomic uint32_t ready;
} ring_header_t;
_Static_assert(sizeof(ring_header_t) <= RING_PAGE, "the header has one page");

struct ring {
    uint8_t *base;
    uint64_t bytes;
    ring_header_t *head;
    ring_slot_t *slots;
    _Atomic uint64_t *words;
    _Atomic uint32_t *bell; /* loaders' doorbell; NULL in tests without loaders */
    uint32_t generation;    /* that this mapping has adopted */
};

static uint64_t page_up(uint64_t bytes)
{
    return (bytes + RING_PAGE - 1) / RING_PAGE * RING_PAGE;
}

static void ring_layout(const ring_config_t *c, ring_header_t *h)
{
    uint64_t cells = (uint64_t)c->depth * c->cells;
    memset((void *)h, 0, sizeof *h);
    h->magic = RING_MAGIC;
    h->version = RING_VERSION;
    h->header_bytes = sizeof *h;
    h->config = *c;
    h->slots_at = RING_PAGE;
    h->words_at = h->slots_at + page_up(c->depth * sizeof(ring_slot_t));
    h->meta_at = h->words_at + page_up(cells * sizeof(uint64_t));
    h->labels_at = h->meta_at + page_up(cells * sizeof(ring_cell_meta_t));
    h->images_at = h->labels_at + page_up(cells * c->label_cap * sizeof(ring_label_t));
    h->image_stride = page_up(c->image_bytes);
    h->total_bytes = h->images_at + c->depth * h->image_stride;
}

static int config_check(const ring_config_t *c)
{
    if (c->depth < 2 || c->depth > RING_MAX_DEPTH || c->cells < 1 || c->cells > RING_MAX_CELLS ||
        c->label_cap < 1 || c->label_cap > RING_MAX_LABELS || c->image_bytes < 1 ||
        c->image_bytes > 1ull << 44)
        return err_set(ERR_CONFIG,
                       "a ring of %u batches of %u images with %u labels each and %llu bytes of "
                       "pixels cannot be made (at most %d, %d, %d, 16 TiB): lower batch or imgsz",
                       c->depth, c->cells, c->label_cap, (unsigned long long)c->image_bytes,
                       RING_MAX_DEPTH, RING_MAX_CELLS, RING_MAX_LABELS);
    return 0;
}

uint64_t ring_bytes(const ring_config_t *config)
{
    ring_header_t h;
    ring_layout(config, &h);
    return h.total_bytes;
}

static int ring_wrap(void *base, uint64_t bytes, ring_t **ring)
{
    ring_t *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(ERR_ENV, "ring: out of memory");
    r->base = base;
    r->bytes = bytes;
    r->head = base;
    r->slots = (ring_slot_t *)(r->base + r->head->slots_at);
    r->words = (_Atomic uint64_t *)(r->base + r->head->words_at);
    ring_adopt(r);
    *ring = r;
    return 0;
}

int ring_create(const ring_config_t *config, const char *name, ring_t **ring, int *fd)
{
    void *base;
    int rc = config_check(config);
    if (rc < 0)
        return err_add(rc, "%s", name);
    uint64_t bytes = ring_bytes(config);
    rc = arena_create(name, bytes, &base, fd);
    if (rc < 0)
        return rc;
    ring_layout(config, base);
    rc = ring_wrap(base, bytes, ring);
    if (rc < 0) {
        arena_unmap(base, bytes);
        close(*fd);
    }
    return rc;
}

int ring_attach(int fd, _Atomic uint32_t *bell, ring_t **ring)
{
    void *base;
    uint64_t bytes;
    int rc = arena_map(fd, 1, &base, &bytes);
    if (rc < 0)
        return err_add(rc, "ring");
    const ring_header_t *h = base;
    ring_header_t want;
    int good = bytes >= RING_PAGE && h->magic == RING_MAGIC && h->version == RING_VERSION &&
               h->header_bytes == sizeof *h && config_check(&h->config) == 0;
    if (good) {
        ring_layout(&h->config, &want);
        good = h->slots_at == want.slots_at && h->words_at == want.words_at &&
               h->meta_at == want.meta_at && h->labels_at == want.labels_at &&
               h->images_at == want.images_at && h->image_stride == want.image_stride &&
               h->total_bytes == want.total_bytes && bytes == want.total_bytes;
    }
    if (!good) {
        arena_unmap(base, bytes);
        return err_set(
            ERR_FAILED,
            "descriptor %d is not a ring of this version: all binaries of a run must come "
            "from one build",
            fd);
    }
    rc = ring_wrap(base, bytes, ring);
    if (rc < 0) {
        arena_unmap(base, bytes);
        return rc;
    }
    (*ring)->bell = bell;
    return 0;
}

void ring_set_bell(ring_t *ring, _Atomic uint32_t *bell)
{
    ring->bell = bell;
}

void ring_close(ring_t **ring)
{
    if (!*ring)
        return;
    arena_unmap((*ring)->base, (*ring)->bytes);
    free(*ring);
    *ring = NULL;
}

const ring_config_t *ring_get_config(const ring_t *ring)
{
    return &ring->head->config;
}

void *ring_mapping(ring_t *ring, uint64_t *bytes)
{
    *bytes = ring->bytes;
    return ring->base;
}

/* ---- claim words ---- */

static size_t cell_index(const ring_t *ring, uint64_t seq, uint32_t cell)
{
    const ring_config_t *c = &ring->head->config;
    return (size_t)(seq % c->depth) * c->cells + cell;
}

uint32_t ring_adopt(ring_t *ring)
{
    /* Acquire: partner is ring_raise's release store. */
    ring->generation = atomic_load_explicit(&ring->head->generation, memory_order_acquire);
    return ring->generation;
}

static int in_window(const ring_t *ring, uint64_t seq)
{
    /* Acquire: pairs with the release stores of ring_release and open_window, so that the lap's
     * words are seen. */
    uint64_t tail = atomic_load_explicit(&ring->head->tail, memory_order_acquire);
    return atomic_load_explicit(&ring->head->armed, memory_order_acquire) && seq >= tail &&
           seq < tail + ring->head->config.depth;
}

uint64_t ring_tail(const ring_t *ring)
{
    return atomic_load_explicit(&ring->head->tail, memory_order_acquire);
}

int ring_cells(const ring_t *ring, uint64_t seq)
{
    if (!in_window(ring, seq))
        return -1;
    const ring_slot_t *slot = &ring->slots[seq % ring->head->config.depth];
    uint32_t cells = atomic_load_explicit(&slot->cells, memory_order_relaxed);
    /* The slot may have moved on to its next lap since the window was read. */
    return atomic_load_explicit(&slot->seq, memory_order_relaxed) == seq ? (int)cells : -1;
}

int ring_peek(const ring_t *ring, uint64_t seq, uint32_t cell, uint32_t *owner)
{
    if (!in_window(ring, seq) || cell >= ring->head->config.cells)
        return -1;
    uint64_t word =
        atomic_load_explicit(&ring->words[cell_index(ring, seq, cell)], memory_order_acquire);
    if (!ring_word_is(word, seq, ring->generation))
        return -1;
    if (owner)
        *owner = ring_word_owner(word);
    return (int)ring_word_state(word);
}

/* Stores the words of a batch that nobody can see yet: EMPTY up to cells, DONE behind. Release:
 * this process's reads of the old payload come before the writes of whoever wins the word (the
 * claim's acquire). */
static void open_slot(ring_t *ring, uint64_t seq, uint32_t cells)
{
    const ring_config_t *c = &ring->head->config;
    ring_slot_t *slot = &ring->slots[seq % c->depth];
    for (uint32_t i = 0; i < c->cells; i++) {
        uint32_t open = i < cells ? RING_EMPTY : RING_DONE;
        atomic_store_explicit(&ring->words[cell_index(ring, seq, i)],
                              ring_word(seq, ring->generation, 0, open), memory_order_release);
        KILL_POINT(RING_SLOT_WORD);
    }
    KILL_POINT(RING_SLOT_WORDS);
    atomic_store_explicit(&slot->cells, cells, memory_order_relaxed);
    atomic_store_explicit(&slot->seq, seq, memory_order_relaxed);
}

static void ring_the_bell(ring_t *ring)
{
    if (!ring->bell)
        return;
    /* Release: what was stored before (an open slot, an EMPTY word) is seen by a loader that wakes
     * and loads the bell with acquire. */
    atomic_fetch_add_explicit(ring->bell, 1, memory_order_release);
    futex_wake(ring->bell, INT_MAX);
}

/* The window is closed on entry. */
static void open_window(ring_t *ring, uint64_t seq, const uint32_t *cells)
{
    for (uint32_t i = 0; i < ring->head->config.depth; i++)
        open_slot(ring, seq + i, cells[i]);
    atomic_store_explicit(&ring->head->tail, seq, memory_order_release);
    KILL_POINT(RING_WINDOW_SET);
    /* Partner: in_window's acquire load. */
    atomic_store_explicit(&ring->head->armed, 1, memory_order_release);
    KILL_POINT(RING_WINDOW_OPEN);
    ring_the_bell(ring);
}

void ring_arm(ring_t *ring, const uint32_t *cells)
{
    KILL_POINT(RING_ARM_BEFORE);
    open_window(ring, 0, cells);
    KILL_POINT(RING_ARM_AFTER);
}

uint32_t ring_raise(ring_t *ring)
{
    uint32_t raised = atomic_load_explicit(&ring->head->generation, memory_order_relaxed) + 1;
    KILL_POINT(RING_RAISE_BEFORE);
    /* Release: partner is ring_adopt's acquire load. */
    atomic_store_explicit(&ring->head->generation, raised, memory_order_release);
    KILL_POINT(RING_RAISE_AFTER);
    ring->generation = raised;
    return raised;
}

void ring_rewind(ring_t *ring, uint64_t seq, const uint32_t *cells)
{
    KILL_POINT(RING_REWIND_BEFORE);
    /* Loaders of the new generation look on meanwhile; they need not search what is half reset. */
    atomic_store_explicit(&ring->head->armed, 0, memory_order_release);
    KILL_POINT(RING_REWIND_CLOSED);
    open_window(ring, seq, cells);
    KILL_POINT(RING_REWIND_AFTER);
}

uint32_t ring_fence(ring_t *ring, uint32_t owner)
{
    const ring_config_t *c = &ring->head->config;
    uint32_t freed = 0;
    for (size_t i = 0; i < (size_t)c->depth * c->cells; i++) {
        uint64_t word = atomic_load_explicit(&ring->words[i], memory_order_acquire);
        if (ring_word_state(word) != RING_CLAIMED || ring_word_owner(word) != owner)
            continue;
        /* The owner is dead, so nobody else changes this word; the swap makes that an invariant. */
        if (atomic_compare_exchange_strong_explicit(&ring->words[i], &word, ring_word_freed(word),
                                                    memory_order_acq_rel, memory_order_relaxed))
            freed++;
        KILL_POINT(RING_FENCE_WORD);
    }
    if (freed)
        ring_the_bell(ring);
    return freed;
}

int ring_claim(ring_t *ring, uint64_t seq, uint32_t cell, uint32_t owner)
{
    if (!in_window(ring, seq) || cell >= ring->head->config.cells)
        return 0;
    uint64_t expected = ring_word(seq, ring->generation, 0, RING_EMPTY);
    KILL_POINT(RING_CLAIM_BEFORE);
    /* Acquire: the payload we are about to overwrite was read by the trainer before it opened the
     * slot (open_slot's release), or half written by a dead owner (the fence's swap) or by one that
     * gave it up (ring_abandon's release). */
    if (!atomic_compare_exchange_strong_explicit(
            &ring->words[cell_index(ring, seq, cell)], &expected,
            ring_word(seq, ring->generation, owner, RING_CLAIMED), memory_order_acquire,
            memory_order_relaxed))
        return 0;
    KILL_POINT(RING_CLAIM_AFTER);
    return 1;
}

int ring_find_empty(const ring_t *ring, uint64_t *seq, uint32_t *cell)
{
    uint64_t tail = ring_tail(ring), at = *seq > tail ? *seq : tail;
    uint32_t i = *seq >= tail ? *cell : 0;
    for (; at < tail + ring->head->config.depth; at++, i = 0) {
        int cells = ring_cells(ring, at);
        for (; cells > 0 && i < (uint32_t)cells; i++)
            if (ring_peek(ring, at, i, NULL) == RING_EMPTY) {
                *seq = at;
                *cell = i;
                return 0;
            }
    }
    return -1;
}

uint8_t *ring_image(ring_t *ring, uint64_t seq, uint32_t cell, size_t image_stride)
{
    const ring_header_t *h = ring->head;
    if ((uint64_t)(cell + 1) * image_stride > h->image_stride)
        return NULL;
    return ring->base + h->images_at + seq % h->config.depth * h->image_stride +
           (size_t)cell * image_stride;
}

ring_label_t *ring_labels(ring_t *ring, uint64_t seq, uint32_t cell)
{
    const ring_header_t *h = ring->head;
    return (ring_label_t *)(ring->base + h->labels_at) +
           cell_index(ring, seq, cell) * h->config.label_cap;
}

ring_cell_meta_t *ring_meta(ring_t *ring, uint64_t seq, uint32_t cell)
{
    return (ring_cell_meta_t *)(ring->base + ring->head->meta_at) + cell_index(ring, seq, cell);
}

int ring_commit(ring_t *ring, uint64_t seq, uint32_t cell, uint32_t owner)
{
    uint64_t expected = ring_word(seq, ring->generation, owner, RING_CLAIMED);
    KILL_POINT(RING_COMMIT_BEFORE);
    /* Release: payload and metadata before DONE. Partner: ring_ready's acquire. */
    if (!atomic_compare_exchange_strong_explicit(&ring->words[cell_index(ring, seq, cell)],
                                                 &expected,
                                                 ring_word(seq, ring->generation, owner, RING_DONE),
                                                 memory_order_release, memory_order_relaxed))
        return -1;
    KILL_POINT(RING_COMMIT_AFTER);
    /* The word only ends a sleep; whether the batch is ready is read from the claim words. */
    atomic_fetch_add_explicit(&ring->head->ready, 1, memory_order_release);
    KILL_POINT(RING_COMMIT_TOLD);
    futex_wake(&ring->head->ready, 1);
    return 0;
}

void ring_abandon(ring_t *ring, uint64_t seq, uint32_t cell, uint32_t owner)
{
    uint64_t expected = ring_word(seq, ring->generation, owner, RING_CLAIMED);
    KILL_POINT(RING_ABANDON_BEFORE);
    /* Release: what was written before the next owner's writes. Partner: the claim's acquire. */
    if (!atomic_compare_exchange_strong_explicit(&ring->words[cell_index(ring, seq, cell)],
                                                 &expected,
                                                 ring_word(seq, ring->generation, 0, RING_EMPTY),
                                                 memory_order_release, memory_order_relaxed))
        return;
    KILL_POINT(RING_ABANDON_AFTER);
    ring_the_bell(ring);
}

int ring_ready(const ring_t *ring, uint64_t seq)
{
    int cells = ring_cells(ring, seq);
    if (cells < 0)
        return 0;
    for (uint32_t i = 0; i < (uint32_t)cells; i++)
        if (ring_peek(ring, seq, i, NULL) != RING_DONE)
            return 0;
    return 1;
}

int ring_wait_batch(ring_t *ring, uint64_t seq, int timeout_ms)
{
    /* The word is read before the look: a commit in between changes it and the wait returns at
     * once. */
    uint32_t before = atomic_load_explicit(&ring->head->ready, memory_order_acquire);
    if (ring_ready(ring, seq))
        return 1;
    futex_wait(&ring->head->ready, before, timeout_ms);
    return ring_ready(ring, seq);
}

void ring_release(ring_t *ring, uint64_t seq, uint32_t next_cells)
{
    if (seq != ring_tail(ring))
        return;
    KILL_POINT(RING_RELEASE_BEFORE);
    open_slot(ring, seq + ring->head->config.depth, next_cells);
    KILL_POINT(RING_RELEASE_OPENED);
    /* Release: the opened words before the window that shows them. Partner: in_window's acquire. */
    atomic_store_explicit(&ring->head->tail, seq + 1, memory_order_release);
    KILL_POINT(RING_RELEASE_MOVED);
    ring_the_bell(ring);
    KILL_POINT(RING_RELEASE_AFTER);
}

uint32_t ring_fill(const ring_t *ring)
{
    uint64_t tail = ring_tail(ring);
    uint32_t n = 0;
    while (n < ring->head->config.depth && ring_ready(ring, tail + n))
        n++;
    return n;
}
