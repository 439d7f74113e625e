#include "loader/reader.h"

#include "control/log.h"
#include "loader/reader_engine.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { READER_SLACK = 64 /* zeroed bytes behind the file, for decoders that look ahead */ };

struct reader {
    const reader_engine_t *kind;
    void *engine;
    uint32_t in_flight; /* submitted and not yet counted by a poll */
};

int reader_new(opt_io_t io, uint32_t depth, reader_t **reader)
{
    int rc;
    reader_t *r = calloc(1, sizeof *r);
    *reader = NULL;
    if (!r)
        return err_set(ERR_ENV, "no memory for the reader");
    r->kind = io == OPT_IO_THREADS ? &reader_threads : &reader_uring;
    rc = r->kind->open(depth, &r->engine);
    if (rc < 0 && io == OPT_IO_AUTO) {
        log_line(LOG_WARN, "%s: files are read by threads instead", err_text());
        r->kind = &reader_threads;
        rc = r->kind->open(depth, &r->engine);
    }
    if (rc < 0) {
        free(r);
        return rc;
    }
    *reader = r;
    return 0;
}

uint32_t reader_free(reader_t **reader)
{
    reader_t *r = *reader;
    *reader = NULL;
    if (!r)
        return 0;
    uint32_t left = r->in_flight;
    r->kind->close(r->engine, left);
    free(r);
    return left;
}

const char *reader_engine(const reader_t *reader)
{
    return reader->kind->name;
}

int reader_submit(reader_t *reader, reader_file_t *file, const char *path, uint64_t expected)
{
    assert(reader_state(file) == READER_IDLE);
    size_t need = (size_t)expected + 1 + READER_SLACK;
    if (need > file->capacity) {
        /* A quarter more, so that a slowly growing series of files does not allocate each time. */
        size_t capacity = need + need / 4;
        free(file->data);
        file->data = malloc(capacity);
        file->capacity = file->data ? capacity : 0;
        if (!file->data)
            return err_set(ERR_ENV, "no memory for the %llu bytes of %s",
                           (unsigned long long)expected, path);
    }
    file->path = path;
    file->expected = expected;
    file->bytes = 0;
    file->error = 0;
    file->fd = -1;
    file->next = NULL;
    file->since_ns = clock_ns();
    atomic_store_explicit(&file->state, READER_OPENING, memory_order_relaxed);
    int rc = reader->kind->submit(reader->engine, file);
    if (rc < 0) {
        atomic_store_explicit(&file->state, READER_IDLE, memory_order_relaxed);
        return rc;
    }
    reader->in_flight++;
    return 0;
}

int reader_poll(reader_t *reader, int timeout_ms)
{
    if (reader->in_flight == 0)
        return 0;
    int done = reader->kind->poll(reader->engine, timeout_ms);
    if (done < 0)
        return done;
    reader->in_flight -= (uint32_t)done;
    return 0;
}

uint32_t reader_in_flight(const reader_t *reader)
{
    return reader->in_flight;
}

reader_state_t reader_state(const reader_file_t *file)
{
    /* Pairs with the engine's release store of DONE. */
    return (reader_state_t)atomic_load_explicit(&file->state, memory_order_acquire);
}

int reader_verdict(const reader_file_t *file)
{
    assert(reader_state(file) == READER_DONE);
    if (file->error == EMFILE || file->error == ENFILE || file->error == ENOMEM ||
        file->error == ENOBUFS)
        return err_set(ERR_ENV, "%s cannot be read, and it is not the file's fault: %s", file->path,
                       strerror(file->error));
    if (file->error)
        return err_set(ERR_DATA, "cannot be read: %s",
                       file->error == ESPIPE ? "not a file any more" : strerror(file->error));
    if (file->bytes > file->expected)
        return err_set(ERR_DATA,
                       "has grown beyond the %llu bytes it had when the data set was scanned",
                       (unsigned long long)file->expected);
    if (file->bytes < file->expected)
        return err_set(ERR_DATA,
                       "ends after %llu of the %llu bytes it had when the data set was scanned",
                       (unsigned long long)file->bytes, (unsigned long long)file->expected);
    memset(file->data + file->bytes, 0, READER_SLACK);
    return 0;
}

void reader_forget(reader_file_t *file)
{
    assert(reader_state(file) == READER_DONE);
    atomic_store_explicit(&file->state, READER_IDLE, memory_order_relaxed);
}

void reader_file_fini(reader_file_t *file)
{
    assert(reader_state(file) == READER_IDLE);
    free(file->data);
    memset(file, 0, sizeof *file);
}
