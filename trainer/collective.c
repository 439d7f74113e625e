/* DESIGN
 *
 * The memfd holds a header, one line a rank, one buffer a rank and a result area:
 *
 *   offset 0     coll_header_t   magic (stored last), sizes, the bell, coll_line_t [ranks]
 *   data_at      [ranks][chunk]  a rank's own buffer: only its rank writes it
 *   result_at    [chunk]         sums: rank r writes slice r
 *
 * Everything is built from meet(): a rank raises its own counter and waits until all counters have
 * reached it. An operation is a few rounds over chunks, a round is
 *
 *   write own buffer -> meet -> read others' buffers (an all-reduce: sum own slice) -> meet -> read
 * result
 *
 * Two rules make two meets a round enough: own buffers are read only between a round's meets, and
 * the result is written only between them, so a slow rank that still copies the last result holds
 * up the next round's first meet. Sums are taken in order of rank, element by element: the same to
 * the bit whatever the slices are. Memory is (ranks + 1) chunks, however large the model.
 *
 * The first meet of each operation compares sequence number, operation, count and root of all
 * ranks.
 */
#include "trainer/collective.h"

#include "shm/arena.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    COLL_MAGIC = 0x4c4f4331, /* "1COL" */
    COLL_PAGE = 4096,
    COLL_CHUNK = 1 << 20,      /* floats of a round: 4 MiB keeps a round's sums near the caches */
    COLL_LATE_NS = 2000000000, /* a look this late: we were stopped, perhaps all of us */
    COLL_START_S = 600,        /* deadline before the caller knows how long a step takes */
};

typedef enum {
    COLL_ALLREDUCE = 1,
    COLL_SUM,
    COLL_BROADCAST,
    COLL_GATHER,
    COLL_BARRIER,
} coll_op_t;

typedef struct {
    /* Meets that the rank has arrived at. Stored with release after its writes; partner: meet's
     * acquire. */
    _Alignas(64) _Atomic uint32_t met;
    uint32_t op;    /* coll_op_t of the operation it is in; written before met */
    uint64_t seq;   /* number of the operation */
    uint64_t count; /* elements or bytes that all must agree on */
    uint32_t root;
    uint32_t pad;
    uint64_t bytes; /* gather: of this rank, need not agree */
} coll_line_t;

typedef struct {
    _Atomic uint32_t ready; /* COLL_MAGIC, stored with release by rank 0 when the rest is written */
    uint32_t ranks;
    uint64_t chunk; /* floats */
    uint64_t data_at, result_at, bytes;
    _Alignas(64) _Atomic uint32_t bell; /* futex: raised by every arrival */
    coll_line_t line[WIRE_RANKS];
} coll_header_t;
_Static_assert(sizeof(coll_header_t) <= 4 * COLL_PAGE, "header and lines fill at most four pages");

struct collective {
    worker_t *w;
    uint32_t rank, ranks;
    uint8_t *base;
    uint64_t bytes;
    coll_header_t *head;
    uint64_t capacity, chunk;
    uint64_t seq;
    uint32_t met;
    uint64_t deadline_ns;
    board_page_t *page[WIRE_RANKS]; /* of each rank, once found */
};

static const char *op_name(uint32_t op)
{
    static const char *const names[] = {"none",      "all-reduce", "sum",
                                        "broadcast", "gather",     "barrier"};
    return op < sizeof names / sizeof names[0] ? names[op] : "unknown";
}

static float *buffer_of(const collective_t *c, uint32_t rank)
{
    return (float *)(void *)(c->base + c->head->data_at) + (size_t)rank * c->chunk;
}

static float *result_of(const collective_t *c)
{
    return (float *)(void *)(c->base + c->head->result_at);
}

/* ---- waiting ---- */

int collective_look(const collective_t *c)
{
    if (c->w->hub && atomic_load_explicit(&c->w->hub->abort_word, memory_order_relaxed))
        return err_set(ERR_GONE, "rank %u: the run is being ended", c->rank);
    if (c->w->lifeline >= 0) {
        struct pollfd p = {.fd = c->w->lifeline, .events = POLLIN};
        if (poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR | POLLIN)))
            return err_set(ERR_GONE, "rank %u: the coordinator is gone", c->rank);
    }
    return 0;
}

board_page_t *collective_page(collective_t *c, uint32_t rank)
{
    for (uint32_t i = 0; !c->page[rank] && c->w->board && i < board_pages(c->w->board); i++) {
        board_page_t *p = board_page(c->w->board, i);
        /* Acquire: pairs with board_open_page, which stores kind last. */
        if (atomic_load_explicit(&p->kind, memory_order_acquire) == BOARD_TRAINER &&
            atomic_load_explicit(&p->index, memory_order_relaxed) == rank)
            c->page[rank] = p;
    }
    return c->page[rank];
}

uint64_t collective_life(collective_t *c, uint32_t rank, int *excused)
{
    const board_page_t *p = collective_page(c, rank);
    *excused = 0;
    if (!p)
        return 0;
    *excused = atomic_load_explicit(&p->phase, memory_order_relaxed) == BOARD_WAIT_DATA;
    return atomic_load_explicit(&p->beat_ns, memory_order_relaxed) +
           atomic_load_explicit(&p->progress, memory_order_relaxed) +
           atomic_load_explicit(&p->steps_done, memory_order_relaxed);
}

void collective_where(collective_t *c, uint32_t rank, char *text, size_t bytes)
{
    const board_page_t *p = collective_page(c, rank);
    if (!p) {
        snprintf(text, bytes, "not on the status board");
        return;
    }
    uint32_t stage = atomic_load_explicit(&p->stage, memory_order_relaxed);
    uint32_t phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    int starts = stage > BOARD_STAGE_NONE && stage < BOARD_STAGE_RUNNING;
    snprintf(text, bytes, "%s%s%s%s", board_phase_name(phase), starts ? " (" : "",
             starts ? board_stage_name(stage) : "", starts ? ")" : "");
}

static int missing_error(collective_t *c, uint32_t rank, uint32_t op, uint64_t waited_ns)
{
    char where[160];
    collective_where(c, rank, where, sizeof where);
    return err_set(ERR_TIMEOUT,
                   "rank %u waited %.0f s in %s number %llu for rank %u, which is %s and shows no "
                   "progress: see that rank's log, or raise hang_timeout",
                   c->rank, (double)waited_ns / 1e9, op_name(op), (unsigned long long)c->seq, rank,
                   where);
}

/* A rank that leaves has done all that it will: a stop found it without data. */
static int has_left(collective_t *c, uint32_t rank)
{
    const board_page_t *p = collective_page(c, rank);
    return p && atomic_load_explicit(&p->phase, memory_order_relaxed) == BOARD_STOPPING;
}

/* First rank that has not arrived at c->met, or -1. */
static int first_missing(const collective_t *c)
{
    for (uint32_t r = 0; r < c->ranks; r++) {
        /* Acquire: pairs with the rank's release in meet; its buffer and line are read afterwards.
         */
        uint32_t met = atomic_load_explicit(&c->head->line[r].met, memory_order_acquire);
        if ((int32_t)(met - c->met) < 0)
            return (int)r;
    }
    return -1;
}

static int meet(collective_t *c, uint32_t op)
{
    coll_line_t *own = &c->head->line[c->rank];
    c->met++;
    /* Release: this rank's writes before its arrival. Partner: first_missing's acquire. */
    atomic_store_explicit(&own->met, c->met, memory_order_release);
    atomic_fetch_add_explicit(&c->head->bell, 1, memory_order_release);
    futex_wake(&c->head->bell, INT_MAX);

    uint64_t since = clock_ns(), looked = since, sign = 0;
    int watched = -1;
    for (;;) {
        /* The bell is read before the look: an arrival in between changes it and ends the wait. */
        uint32_t bell = atomic_load_explicit(&c->head->bell, memory_order_acquire);
        int missing = first_missing(c);
        if (missing < 0)
            return 0;
        int rc = collective_look(c);
        if (rc < 0)
            return rc;
        /* Seen missing before, for it may have arrived as it left. */
        if (missing == watched && has_left(c, (uint32_t)missing))
            return err_set(ERR_STOPPED, "rank %u: rank %d has left before %s number %llu", c->rank,
                           missing, op_name(op), (unsigned long long)c->seq);
        int excused;
        uint64_t now = clock_ns(), seen = collective_life(c, (uint32_t)missing, &excused);
        if (missing != watched || seen != sign || excused || now - looked > COLL_LATE_NS)
            since = now;
        looked = now;
        watched = missing;
        sign = seen;
        if (now - since > c->deadline_ns)
            return missing_error(c, (uint32_t)missing, op, now - since);
        futex_wait(&c->head->bell, bell, FUTEX_RECHECK_MS);
    }
}

/* ---- the start and end of an operation ---- */

static void count_up(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* Writes this rank's line; returns the phase to go back to afterwards. */
static board_phase_t op_enter(collective_t *c, coll_op_t op, uint64_t count, uint32_t root)
{
    coll_line_t *own = &c->head->line[c->rank];
    own->op = op;
    own->seq = ++c->seq;
    own->count = count;
    own->root = root;
    board_phase_t was = atomic_load_explicit(&c->w->page->phase, memory_order_relaxed);
    board_set_phase(c->w->page, BOARD_COLLECTIVE);
    count_up(&c->w->page->coll_entered);
    count_up(&c->w->page->coll_launched);
    return was;
}

/* First meet of an operation: all are here, and all mean the same one. */
static int op_meet(collective_t *c)
{
    const coll_line_t *own = &c->head->line[c->rank];
    int rc = meet(c, own->op);
    if (rc < 0)
        return rc;
    for (uint32_t r = 0; r < c->ranks; r++) {
        const coll_line_t *other = &c->head->line[r];
        if (other->op == own->op && other->seq == own->seq && other->count == own->count &&
            other->root == own->root)
            continue;
        return err_set(ERR_FAILED,
                       "ranks disagree: rank %u is in %s number %llu of %llu elements (root %u), "
                       "rank %u in %s number %llu of %llu elements (root %u)",
                       c->rank, op_name(own->op), (unsigned long long)own->seq,
                       (unsigned long long)own->count, own->root, r, op_name(other->op),
                       (unsigned long long)other->seq, (unsigned long long)other->count,
                       other->root);
    }
    count_up(&c->w->page->coll_started);
    return 0;
}

static int op_leave(collective_t *c, board_phase_t was, int rc)
{
    if (rc == 0)
        count_up(&c->w->page->coll_completed);
    board_set_phase(c->w->page, was);
    return rc;
}

/* ---- open and close ---- */

static int size_memory(collective_t *c, int fd)
{
    uint64_t head = 4 * COLL_PAGE, area = c->chunk * sizeof(float);
    uint64_t bytes = head + (c->ranks + 1) * area;
    arena_budget_t budget;
    int rc = arena_budget("", &budget);
    if (rc < 0)
        return rc;
    if (bytes > budget.available)
        return err_set(ERR_ENV,
                       "%u ranks need %.1f MB of shared memory to add gradients, %.1f MB may be "
                       "used (%s): use fewer devices",
                       c->ranks, (double)bytes / 1e6, (double)budget.available / 1e6,
                       budget.source);
    if (ftruncate(fd, (off_t)bytes) < 0)
        return err_sys(ERR_ENV, "sizing %.1f MB for the ranks' sums", (double)bytes / 1e6);
    while (fallocate(fd, 0, 0, (off_t)bytes) < 0)
        if (errno != EINTR)
            return err_sys(ERR_ENV, "reserving %.1f MB for the ranks' sums", (double)bytes / 1e6);
    void *base;
    rc = arena_map(fd, 1, &base, &c->bytes);
    if (rc < 0)
        return rc;
    c->base = base;
    c->head = base;
    c->head->ranks = c->ranks;
    c->head->chunk = c->chunk;
    c->head->data_at = head;
    c->head->result_at = head + c->ranks * area;
    c->head->bytes = bytes;
    /* Release: the fields above. Partner: join_memory's acquire. */
    atomic_store_explicit(&c->head->ready, COLL_MAGIC, memory_order_release);
    return 0;
}

/* Rank 0 sizes the file and then writes its header; both are waited for with the deadline. */
static int join_memory(collective_t *c, int fd)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    for (uint64_t since = clock_ns();; nanosleep(&pause, NULL)) {
        struct stat st;
        int rc = collective_look(c);
        if (rc < 0)
            return rc;
        if (fstat(fd, &st) < 0)
            return err_sys(ERR_ENV, "collective memory, descriptor %d", fd);
        if (!c->base && st.st_size > 0) {
            void *base;
            rc = arena_map(fd, 1, &base, &c->bytes);
            if (rc < 0)
                return rc;
            c->base = base;
            c->head = base;
        }
        if (c->base && atomic_load_explicit(&c->head->ready, memory_order_acquire) == COLL_MAGIC)
            break;
        if (clock_ns() - since > c->deadline_ns)
            return err_set(ERR_TIMEOUT, "rank %u waited %d s for rank 0 to start: see its log",
                           c->rank, COLL_START_S);
    }
    if (c->head->ranks != c->ranks || c->head->chunk != c->chunk || c->head->bytes != c->bytes)
        return err_set(ERR_FAILED,
                       "rank %u expects %u ranks and rounds of %llu floats, rank 0 has %u and %llu",
                       c->rank, c->ranks, (unsigned long long)c->chunk, c->head->ranks,
                       (unsigned long long)c->head->chunk);
    return 0;
}

int collective_open(worker_t *w, int fd, uint32_t rank, uint32_t ranks, uint64_t capacity,
                    collective_t **c)
{
    if (ranks < 1 || ranks > WIRE_RANKS || rank >= ranks)
        return err_set(ERR_CONFIG, "rank %u of %u ranks: 1 to %d are possible", rank, ranks,
                       WIRE_RANKS);
    collective_t *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(ERR_ENV, "collective: out of memory");
    n->w = w;
    n->rank = rank;
    n->ranks = ranks;
    n->capacity = capacity;
    n->chunk = capacity < COLL_CHUNK ? (capacity + 1023) / 1024 * 1024 : COLL_CHUNK;
    collective_deadline(n, COLL_START_S);
    if (ranks > 1) {
        int rc = rank == 0 ? size_memory(n, fd) : join_memory(n, fd);
        if (rc < 0) {
            collective_close(&n);
            return rc;
        }
    }
    *c = n;
    return 0;
}

void collective_close(collective_t **c)
{
    if (!*c)
        return;
    if ((*c)->base)
        arena_unmap((*c)->base, (*c)->bytes);
    free(*c);
    *c = NULL;
}

void collective_deadline(collective_t *c, double seconds)
{
    c->deadline_ns = (uint64_t)(seconds * 1e9);
}

double collective_patience(const collective_t *c)
{
    return (double)c->deadline_ns / 1e9;
}

/* ---- operations ---- */

static int device_check(k_dev_t *dev, int rc)
{
    return rc < 0 ? err_set(ERR_FAILED, "%s", dev->ops->error(dev)) : 0;
}

static int drain(collective_t *c, k_dev_t *dev, k_stream_t s)
{
    int rc;
    while ((rc = dev->ops->wait(dev, s, FUTEX_RECHECK_MS)) == 1)
        if ((rc = collective_look(c)) < 0)
            return rc;
    return device_check(dev, rc);
}

/* Adds the ranks' values of [first, last) in order of rank. */
static void sum_slice(const collective_t *c, uint64_t first, uint64_t last)
{
    float *out = result_of(c);
    const float *a = buffer_of(c, 0);
    memcpy(out + first, a + first, (last - first) * sizeof *out);
    for (uint32_t r = 1; r < c->ranks; r++) {
        const float *b = buffer_of(c, r);
        for (uint64_t i = first; i < last; i++)
            out[i] += b[i];
    }
}

static int allreduce_round(collective_t *c, k_dev_t *dev, k_at at, uint64_t n, int first_round)
{
    int rc = device_check(
        dev, dev->ops->download(dev, K_STREAM_COMM, buffer_of(c, c->rank), at, n * sizeof(float)));
    if (rc < 0 || (rc = drain(c, dev, K_STREAM_COMM)) < 0)
        return rc;
    rc = first_round ? op_meet(c) : meet(c, COLL_ALLREDUCE);
    if (rc < 0)
        return rc;
    sum_slice(c, n * c->rank / c->ranks, n * (c->rank + 1) / c->ranks);
    if ((rc = meet(c, COLL_ALLREDUCE)) < 0)
        return rc;
    rc = device_check(dev,
                      dev->ops->upload(dev, K_STREAM_COMM, at, result_of(c), n * sizeof(float)));
    return rc < 0 ? rc : drain(c, dev, K_STREAM_COMM);
}

int collective_allreduce(collective_t *c, k_dev_t *dev, k_at at, uint64_t count)
{
    if (c->ranks == 1)
        return 0;
    if (count > c->capacity)
        return err_set(ERR_FAILED, "all-reduce of %llu floats, opened for %llu",
                       (unsigned long long)count, (unsigned long long)c->capacity);
    board_phase_t was = op_enter(c, COLL_ALLREDUCE, count, 0);
    int rc = drain(c, dev, K_STREAM_MAIN);
    for (uint64_t i = 0; rc == 0 && i < count; i += c->chunk) {
        uint64_t n = count - i < c->chunk ? count - i : c->chunk;
        rc = allreduce_round(c, dev, at + i * sizeof(float), n, i == 0);
    }
    return op_leave(c, was, rc);
}

int collective_sum(collective_t *c, double *values, uint32_t count)
{
    if (c->ranks == 1)
        return 0;
    uint64_t room = c->chunk * sizeof(float) / sizeof(double);
    board_phase_t was = op_enter(c, COLL_SUM, count, 0);
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < count; i += room) {
        uint64_t n = count - i < room ? count - i : room;
        memcpy(buffer_of(c, c->rank), values + i, n * sizeof *values);
        if ((rc = i == 0 ? op_meet(c) : meet(c, COLL_SUM)) < 0)
            break;
        for (uint64_t k = 0; k < n; k++) {
            double sum = 0;
            for (uint32_t r = 0; r < c->ranks; r++)
                sum += ((const double *)(const void *)buffer_of(c, r))[k];
            values[i + k] = sum;
        }
        rc = meet(c, COLL_SUM);
    }
    return op_leave(c, was, rc);
}

int collective_broadcast(collective_t *c, void *data, uint64_t bytes, uint32_t root)
{
    if (c->ranks == 1)
        return 0;
    uint64_t room = c->chunk * sizeof(float);
    board_phase_t was = op_enter(c, COLL_BROADCAST, bytes, root);
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < bytes; i += room) {
        uint64_t n = bytes - i < room ? bytes - i : room;
        if (c->rank == root)
            memcpy(buffer_of(c, root), (const char *)data + i, n);
        if ((rc = i == 0 ? op_meet(c) : meet(c, COLL_BROADCAST)) < 0)
            break;
        if (c->rank != root)
            memcpy((char *)data + i, buffer_of(c, root), n);
        rc = meet(c, COLL_BROADCAST);
    }
    return op_leave(c, was, rc);
}

/* Rounds of a gather after all have said how much they bring. at[r]: where rank r's block begins.
 */
static int gather_rounds(collective_t *c, const void *data, uint64_t bytes, char *out,
                         const uint64_t *sizes)
{
    uint64_t room = c->chunk * sizeof(float), most = 0;
    for (uint32_t r = 0; r < c->ranks; r++)
        most = sizes[r] > most ? sizes[r] : most;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < most; i += room) {
        if (i < bytes)
            memcpy(buffer_of(c, c->rank), (const char *)data + i,
                   bytes - i < room ? bytes - i : room);
        if ((rc = meet(c, COLL_GATHER)) < 0)
            break;
        uint64_t base = 0;
        for (uint32_t r = 0; out && r < c->ranks; base += sizes[r++])
            if (i < sizes[r])
                memcpy(out + base + i, buffer_of(c, r), sizes[r] - i < room ? sizes[r] - i : room);
        rc = meet(c, COLL_GATHER);
    }
    return rc;
}

static int gather_all(collective_t *c, const void *data, uint64_t bytes, void **all,
                      uint64_t *bytes_all)
{
    uint64_t sizes[WIRE_RANKS], total = 0;
    char *out = NULL;
    int rc = op_meet(c);
    if (rc < 0)
        return rc;
    for (uint32_t r = 0; r < c->ranks; r++) {
        sizes[r] = c->head->line[r].bytes;
        total += sizes[r];
    }
    /* All have read the sizes before any may write those of its next gather. */
    if ((rc = meet(c, COLL_GATHER)) < 0)
        return rc;
    if (c->rank == 0) {
        out = malloc(total ? total : 1);
        if (!out)
            return err_set(ERR_ENV, "rank 0: out of memory for %llu bytes of all ranks' results",
                           (unsigned long long)total);
    }
    rc = gather_rounds(c, data, bytes, out, sizes);
    if (rc < 0 || c->rank != 0) {
        free(out);
        return rc;
    }
    memcpy(bytes_all, sizes, c->ranks * sizeof *sizes);
    *all = out;
    return 0;
}

int collective_gather(collective_t *c, const void *data, uint64_t bytes, void **all,
                      uint64_t *bytes_all)
{
    if (c->ranks == 1) {
        *all = malloc(bytes ? bytes : 1);
        if (!*all)
            return err_set(ERR_ENV, "out of memory for %llu bytes", (unsigned long long)bytes);
        if (bytes)
            memcpy(*all, data, bytes);
        bytes_all[0] = bytes;
        return 0;
    }
    c->head->line[c->rank].bytes = bytes;
    board_phase_t was = op_enter(c, COLL_GATHER, 0, 0);
    return op_leave(c, was, gather_all(c, data, bytes, all, bytes_all));
}

int collective_barrier(collective_t *c)
{
    if (c->ranks == 1)
        return 0;
    board_phase_t was = op_enter(c, COLL_BARRIER, 0, 0);
    int rc = op_meet(c);
    /* A second meet, so that no rank changes its line while another still compares it. */
    if (rc == 0)
        rc = meet(c, COLL_BARRIER);
    return op_leave(c, was, rc);
}
