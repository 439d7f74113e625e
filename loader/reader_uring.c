#include "loader/reader_engine.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* DESIGN
 * A file is at any time one request: openat, then read until it has one byte more than expected or
 * ends, then close, whose completion nobody waits for. Requests of one file are not linked: a read
 * that comes short breaks a soft link, and with DEFER_TASKRUN a link moves on no earlier than a new
 * request does, namely when we enter the kernel. Plain descriptors, not direct ones: a direct slot
 * may be used again only at its close's completion (facts/loader.md 3), and saves nothing
 * measurable here.
 */

/* The kernel is short of memory, or of room for completions: looked again, for 5 s. */
enum { URING_REFUSALS = 500, URING_PAUSE_NS = 10000000 };
enum { URING_OPEN = 0, URING_READ = 1, URING_CLOSE = 2, URING_OP_MASK = 3 };

typedef struct {
    struct io_uring ring;
    reader_file_t *resting; /* to begin anew when they are due */
    int refusals;           /* of our requests by the kernel, in a row */
} uring_t;

static int uring_ops_known(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    int known = probe && io_uring_opcode_supported(probe, IORING_OP_OPENAT) &&
                io_uring_opcode_supported(probe, IORING_OP_READ) &&
                io_uring_opcode_supported(probe, IORING_OP_CLOSE);
    io_uring_free_probe(probe);
    return known;
}

/* A filter may allow the set-up and refuse the use: a request that does nothing goes once around.
 */
static int uring_round_trip(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(io_uring_get_sqe(ring));
    int rc = io_uring_submit_and_wait(ring, 1);
    if (rc < 0)
        return rc;
    rc = io_uring_peek_cqe(ring, &cqe);
    if (rc == 0)
        io_uring_cqe_seen(ring, cqe);
    return rc;
}

static int uring_open(uint32_t depth, void **engine)
{
    /* Newest first; a kernel that knows a flag not answers EINVAL (6.1, 6.0, 5.19). */
    static const unsigned flags[] = {
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_COOP_TASKRUN,
        0,
    };
    int rc = -EINVAL;
    uring_t *u = calloc(1, sizeof *u);
    if (!u)
        return err_set(ERR_ENV, "no memory for the reader");
    /* Each file has one request and perhaps the close of the file before it. */
    for (size_t i = 0; i < sizeof flags / sizeof flags[0] && rc == -EINVAL; i++)
        rc = io_uring_queue_init(2 * depth, &u->ring, flags[i]);
    if (rc >= 0 && (rc = uring_round_trip(&u->ring)) < 0)
        io_uring_queue_exit(&u->ring);
    if (rc < 0) {
        free(u);
        if (rc == -EPERM || rc == -EACCES)
            return err_set(ERR_ENV,
                           "io_uring is denied here (%s; a container's seccomp profile, or "
                           "kernel.io_uring_disabled)",
                           strerror(-rc));
        return err_set(ERR_ENV, "io_uring cannot be had: %s%s", strerror(-rc),
                       rc == -ENOMEM ? " (most often the limit on locked memory: ulimit -l)" : "");
    }
    if (!uring_ops_known(&u->ring)) {
        io_uring_queue_exit(&u->ring);
        free(u);
        return err_set(ERR_ENV, "this kernel's io_uring cannot open and read files (5.6 can)");
    }
    *engine = u;
    return 0;
}

static void uring_close(void *engine, uint32_t left)
{
    uring_t *u = engine;
    (void)left; /* the kernel tears the ring down on its own; reads under way end or do not */
    io_uring_queue_exit(&u->ring);
    free(u);
}

/* A free request, tagged with its file and kind; NULL only if the kernel takes no more. */
static struct io_uring_sqe *uring_request(uring_t *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) {
        io_uring_submit(&u->ring);
        sqe = io_uring_get_sqe(&u->ring);
    }
    return sqe;
}

static void uring_tag(struct io_uring_sqe *sqe, reader_file_t *file, uint64_t op)
{
    io_uring_sqe_set_data64(sqe, (uint64_t)(uintptr_t)file | op);
}

/* Asks for the file's descriptor; -1 if the kernel takes no more requests. Without waiting first: a
 * name that has become a pipe must not hold a kernel worker for ever. */
static int uring_ask_open(uring_t *u, reader_file_t *file, int wait)
{
    file->waits = wait;
    struct io_uring_sqe *sqe = uring_request(u);
    if (!sqe)
        return -1;
    io_uring_prep_openat(sqe, AT_FDCWD, file->path,
                         O_RDONLY | O_CLOEXEC | O_NOCTTY | (wait ? 0 : O_NONBLOCK), 0);
    uring_tag(sqe, file, URING_OPEN);
    return 0;
}

static int uring_submit(void *engine, reader_file_t *file)
{
    if (uring_ask_open(engine, file, 0) < 0)
        return err_set(ERR_ENV, "io_uring takes no more requests");
    return 0;
}

static void uring_give_back(uring_t *u, reader_file_t *file)
{
    if (file->fd < 0)
        return;
    struct io_uring_sqe *sqe = uring_request(u);
    if (sqe) {
        io_uring_prep_close(sqe, file->fd);
        uring_tag(sqe, NULL, URING_CLOSE);
    } else {
        close(file->fd);
    }
    file->fd = -1;
}

/* The file needs nothing more of the kernel, or begins anew; 1 when it is done. */
static int uring_done(uring_t *u, reader_file_t *file, int error)
{
    uring_give_back(u, file);
    int pause = error ? reader_again(file, error) : -1;
    if (pause >= 0) {
        file->due_ns = clock_ns() + (uint64_t)pause * 1000000;
        file->next = u->resting;
        u->resting = file;
        return 0;
    }
    file->error = error;
    atomic_store_explicit(&file->state, READER_DONE, memory_order_release);
    return 1;
}

/* Asks for the rest. Reads of more than 2 GiB come in parts. What lies behind the expected end is
 * asked for by itself: where a read ends short, io_uring asks again by itself, and on FUSE's direct
 * I/O it then gets the file's beginning once more (Linux 6.18, measured). */
static int uring_read(uring_t *u, reader_file_t *file)
{
    struct io_uring_sqe *sqe = uring_request(u);
    size_t rest = reader_rest(file);
    if (file->bytes < file->expected && rest > file->expected - file->bytes)
        rest = (size_t)(file->expected - file->bytes);
    if (!sqe)
        return uring_done(u, file, ENOBUFS);
    io_uring_prep_read(sqe, file->fd, file->data + file->bytes,
                       rest < 1u << 30 ? (unsigned)rest : 1u << 30, file->bytes);
    uring_tag(sqe, file, URING_READ);
    return 0;
}

/* One completion; returns 1 when its file is done. */
static int uring_complete(uring_t *u, uint64_t tag, int result)
{
    reader_file_t *file = (reader_file_t *)(uintptr_t)(tag & ~(uint64_t)URING_OP_MASK);
    switch (tag & URING_OP_MASK) {
    case URING_OPEN:
        /* EAGAIN: a file server holds a lease on the file, and gives it back to who waits. */
        if (result == -EINTR || (result == -EAGAIN && !file->waits)) {
            int wait = file->waits || result == -EAGAIN;
            return uring_ask_open(u, file, wait) < 0 ? uring_done(u, file, ENOBUFS) : 0;
        }
        if (result < 0)
            return uring_done(u, file, -result);
        file->fd = result;
        /* Neither call touches storage. A pipe, which has no position, would be waited for until it
         * has a writer; and where a file system cannot try without waiting, io_uring would answer
         * EAGAIN to a descriptor that is still O_NONBLOCK. */
        if (lseek(file->fd, 0, SEEK_CUR) < 0)
            return uring_done(u, file, errno);
        fcntl(file->fd, F_SETFL, 0);
        atomic_store_explicit(&file->state, READER_READING, memory_order_relaxed);
        return uring_read(u, file);
    case URING_READ:
        if (result == -EINTR)
            return uring_read(u, file);
        if (result < 0)
            return uring_done(u, file, -result);
        file->bytes += (uint64_t)result;
        return result == 0 || reader_rest(file) == 0 ? uring_done(u, file, 0) : uring_read(u, file);
    default: /* a close: whatever it says, the descriptor is gone */ return 0;
    }
}

/* Begins anew what has rested; returns how many files are done instead, and the time until the next
 * one is due in *wait_ms if that is less. */
static int uring_wake(uring_t *u, int *wait_ms)
{
    uint64_t now = clock_ns();
    int done = 0;
    for (reader_file_t **at = &u->resting; *at;) {
        reader_file_t *file = *at;
        if (file->due_ns > now) {
            uint64_t left = (file->due_ns - now) / 1000000 + 1;
            *wait_ms = left < (uint64_t)*wait_ms ? (int)left : *wait_ms;
            at = &file->next;
            continue;
        }
        *at = file->next;
        atomic_store_explicit(&file->state, READER_OPENING, memory_order_relaxed);
        if (uring_ask_open(u, file, 0) < 0)
            done += uring_done(u, file, ENOBUFS);
    }
    return done;
}

static int uring_reap(uring_t *u)
{
    struct io_uring_cqe *cqe;
    int done = 0;
    while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
        uint64_t tag = io_uring_cqe_get_data64(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        done += uring_complete(u, tag, result);
    }
    return done;
}

static int uring_poll(void *engine, int timeout_ms)
{
    uring_t *u = engine;
    struct io_uring_cqe *cqe;
    struct __kernel_timespec wait = {0};
    int done = uring_wake(u, &timeout_ms) + uring_reap(u);
    if (timeout_ms > 0 && done == 0) {
        wait.tv_sec = timeout_ms / 1000;
        wait.tv_nsec = timeout_ms % 1000 * 1000000LL;
    }
    /* Enters the kernel even for a time-out of zero: with DEFER_TASKRUN completions appear only
     * then. */
    int rc = io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1, &wait, NULL);
    if (rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM) {
        if (++u->refusals > URING_REFUSALS)
            return err_set(ERR_ENV, "io_uring takes no requests: %s", strerror(-rc));
        nanosleep(&(struct timespec){.tv_nsec = URING_PAUSE_NS}, NULL);
    } else if (rc < 0 && rc != -ETIME && rc != -EINTR) {
        return err_set(ERR_ENV, "io_uring: %s", strerror(-rc));
    } else {
        u->refusals = 0;
    }
    done += uring_reap(u);
    /* What the reaped completions asked for goes out at once: the next look may be a decode away.
     */
    io_uring_submit(&u->ring);
    return done;
}

const reader_engine_t reader_uring = {"io_uring", uring_open, uring_close, uring_submit,
                                      uring_poll};
