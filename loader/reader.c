#include "loader/reader.h"

#include "control/log.h"
#include "loader/reader_engine.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    READER_SLACK = 64, /* zeroed bytes behind the file, for decoders that look ahead */
    /* What is short for a moment: 10 ms, then twice as long each time, 5 s together. */
    READER_PAUSE_MS = 10,
    READER_TRIES = 9,
    READER_STALE_TRIES = 3, /* a file that was replaced on its server: opening it anew finds it */
};

struct reader {
    const reader_engine_t *kind;
    void *engine;
    uint32_t in_flight; /* submitted and not yet counted by a poll */
    uint64_t memory;    /* of all files' buffers */
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

static void reader_drop(reader_t *reader, reader_file_t *file)
{
    free(file->data);
    reader->memory -= file->capacity;
    file->data = NULL;
    file->capacity = 0;
}

int reader_submit(reader_t *reader, reader_file_t *file, const char *path, uint64_t expected)
{
    assert(reader_state(file) == READER_IDLE);
    size_t need = (size_t)expected + 1 + READER_SLACK;
    if (file->owner != reader)
        reader->memory += file->capacity;
    if (need > file->capacity) {
        /* A quarter more, so that a slowly growing series of files does not allocate each time. */
        size_t capacity = need + need / 4;
        reader_drop(reader, file);
        file->data = malloc(capacity);
        file->capacity = file->data ? capacity : 0;
        reader->memory += file->capacity;
        if (!file->data)
            return err_set(ERR_ENV, "no memory for the %llu bytes of %s",
                           (unsigned long long)expected, path);
    }
    file->owner = reader;
    file->tries = 0;
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

uint64_t reader_memory(const reader_t *reader)
{
    return reader->memory;
}

/* Of this process or machine, at this moment: no file is bad for it. */
static int not_the_files(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS ||
           error == EAGAIN || error == EBUSY || error == EINTR;
}

int reader_again(reader_file_t *file, int error)
{
    uint32_t most = not_the_files(error) ? READER_TRIES : error == ESTALE ? READER_STALE_TRIES : 0;
    if (file->tries >= most)
        return -1;
    int pause = error == ESTALE ? 0 : READER_PAUSE_MS << file->tries;
    file->tries++;
    file->bytes = 0;
    file->error = 0;
    return pause;
}

int reader_verdict(const reader_file_t *file)
{
    assert(reader_state(file) == READER_DONE);
    if (not_the_files(file->error))
        return err_set(ERR_ENV,
                       "%s cannot be read, and it is not the file's fault: %s, tried %u times",
                       file->path, strerror(file->error), file->tries + 1);
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
    if (file->owner->memory > READER_KEEP)
        reader_drop(file->owner, file);
}

void reader_file_fini(reader_file_t *file)
{
    assert(reader_state(file) == READER_IDLE);
    free(file->data);
    memset(file, 0, sizeof *file);
}
