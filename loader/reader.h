/* Whole files into private memory, several at a time (design 3, facts/loader.md 3).
 *
 * Two engines behind one interface: io_uring, and threads with pread where io_uring is denied.
 * Files are never read into shared memory, so that a read which completes after its process was
 * given up hits nobody. A read of a dead mount cannot be cancelled by anybody: nothing here waits
 * for one. What is not the file's fault (interruptions, short reads, memory, descriptors or requests
 * that are short for a moment) is tried again for some seconds before it is anybody's. The thread
 * that made a reader is the only one that may use it.
 */
#ifndef SLUICE_LOADER_READER_H
#define SLUICE_LOADER_READER_H

#include "control/options.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { READER_KEEP = 64 << 20 /* bytes of buffers that are kept for the next files */ };

/* IDLE --reader_submit--> OPENING --> READING --> DONE --reader_forget--> IDLE. The engine moves it
 * on; with threads that is another thread: its release store of DONE is paired with reader_state's
 * acquire, so that data, bytes and error are seen with it. */
typedef enum { READER_IDLE = 0, READER_OPENING, READER_READING, READER_DONE } reader_state_t;

typedef struct reader reader_t;

/* One file. Its buffer is its own, grows and is kept for the next file, while the buffers of all
 * files of the reader together are not too large. While the state is OPENING or READING the engine
 * owns everything in it. */
typedef struct reader_file {
    const char *path;  /* set by reader_submit; the caller keeps it alive */
    uint64_t expected; /* bytes that the catalogue knows */
    uint8_t *data;
    size_t capacity;
    uint64_t bytes;         /* read so far; more than expected only by the one that shows growth */
    int error;              /* errno of the failure, 0 none */
    _Atomic uint32_t state; /* reader_state_t */
    uint64_t since_ns;      /* of the submission */
    reader_t *owner;        /* of the last submission */
    int fd;                 /* the engine's */
    int waits;              /* the engine's: it is opened without O_NONBLOCK */
    uint32_t tries;         /* the engine's: times that it was begun anew */
    uint64_t due_ns;        /* the engine's: when to begin anew */
    struct reader_file *next; /* the engine's queue */
} reader_file_t;

/* depth: files that will be under way at once; more only wait longer. OPT_IO_AUTO takes io_uring,
 * or threads after logging why not; OPT_IO_URING fails with ERR_ENV instead. */
int reader_new(opt_io_t io, uint32_t depth, reader_t **reader);
/* Frees the reader. Returns how many files are still being read (a dead mount): their buffers
 * belong to the kernel until the process ends and must not be freed. Files that are DONE are
 * forgotten before it. */
uint32_t reader_free(reader_t **reader);
const char *reader_engine(const reader_t *reader); /* "io_uring" or "threads" */

/* Begins reading. ERR_ENV without memory for the file. The submission reaches the kernel with the
 * next reader_poll. */
int reader_submit(reader_t *reader, reader_file_t *file, const char *path, uint64_t expected);
/* Moves all files on; waits at most timeout_ms for one to be done (0: just looks). ERR_ENV when the
 * engine itself fails. */
int reader_poll(reader_t *reader, int timeout_ms);
uint32_t reader_in_flight(const reader_t *reader);
/* Bytes that the files' buffers hold. */
uint64_t reader_memory(const reader_t *reader);

reader_state_t reader_state(const reader_file_t *file);
/* Of a DONE file: 0, or ERR_DATA with the reason it is not what the catalogue says: cannot be
 * opened or read, cut short, grown. ERR_ENV when descriptors, memory or requests were short and
 * stayed so. */
int reader_verdict(const reader_file_t *file);
/* DONE -> IDLE; the buffer stays, unless all of them hold more than READER_KEEP. */
void reader_forget(reader_file_t *file);
void reader_file_fini(reader_file_t *file);

#endif
