#include "loader/reader_engine.h"

#include "control/log.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* DESIGN
 * A queue of files, a few threads that each take one, read it to its end and count it as done. The
 * count is under the lock; the file's own DONE is a release store, for readers without the lock. A
 * thread stuck in a dead mount is left behind with the pool's memory; should it ever come back, the
 * last one frees it.
 */

enum { THREADS_MOST = 16, THREADS_STACK = 128 * 1024 };

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* something in the queue or stopping; something done */
    reader_file_t *first, **last;
    uint32_t n_done; /* since the last poll */
    int stopping, left_behind;
    uint32_t n_threads;
    pthread_t threads[THREADS_MOST];
} threads_t;

static int threads_read(reader_file_t *file)
{
    while (reader_rest(file) > 0) {
        ssize_t got =
            pread(file->fd, file->data + file->bytes, reader_rest(file), (off_t)file->bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            return 0;
        file->bytes += (uint64_t)got;
    }
    return 0;
}

/* 0, or the errno of the failure. */
static int threads_once(reader_file_t *file)
{
    /* O_NONBLOCK first: a name that has become a pipe must not hold the thread; pread then refuses
     * it. EAGAIN: a file server holds a lease on the file, and gives it back to who waits. */
    int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    while ((file->fd = open(file->path, flags)) < 0 &&
           (errno == EINTR || (errno == EAGAIN && (flags & O_NONBLOCK))))
        if (errno == EAGAIN)
            flags &= ~O_NONBLOCK;
    if (file->fd < 0)
        return errno;
    atomic_store_explicit(&file->state, READER_READING, memory_order_relaxed);
    int error = threads_read(file);
    close(file->fd);
    file->fd = -1;
    return error;
}

static void threads_file(reader_file_t *file)
{
    for (int error, pause = 0; (error = threads_once(file)) != 0;) {
        pause = reader_again(file, error);
        if (pause < 0) {
            file->error = error;
            return;
        }
        nanosleep(&(struct timespec){pause / 1000, pause % 1000 * 1000000L}, NULL);
    }
}

static void threads_free(threads_t *t)
{
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->done);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static void *threads_main(void *arg)
{
    threads_t *t = arg;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        /* No deadline: the owner signals work and end, and these threads end with its process. */
        while (!t->first && !t->stopping)
            pthread_cond_wait(&t->work, &t->lock);
        if (t->stopping)
            break;
        reader_file_t *file = t->first;
        t->first = file->next;
        if (!t->first)
            t->last = &t->first;
        pthread_mutex_unlock(&t->lock);
        threads_file(file);
        /* Pairs with reader_state's acquire: the bytes are seen with DONE. */
        atomic_store_explicit(&file->state, READER_DONE, memory_order_release);
        pthread_mutex_lock(&t->lock);
        t->n_done++;
        pthread_cond_signal(&t->done);
    }
    int last = t->left_behind && --t->n_threads == 0;
    pthread_mutex_unlock(&t->lock);
    if (last)
        threads_free(t);
    return NULL;
}

static void threads_close(void *engine, uint32_t left)
{
    threads_t *t = engine;
    for (uint32_t i = 0; left > 0 && i < t->n_threads; i++)
        pthread_detach(t->threads[i]);
    pthread_mutex_lock(&t->lock);
    t->stopping = 1;
    t->left_behind = left > 0;
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->lock);
    if (left > 0)
        return; /* t is the threads' now */
    for (uint32_t i = 0; i < t->n_threads; i++)
        pthread_join(t->threads[i], NULL);
    threads_free(t);
}

static int threads_open(uint32_t depth, void **engine)
{
    threads_t *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(ERR_ENV, "no memory for the reader");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    t->last = &t->first;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREADS_STACK);
    /* Signals are the main thread's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    uint32_t want = depth < THREADS_MOST ? depth : THREADS_MOST;
    int rc = 0;
    while (t->n_threads < want && rc == 0) {
        rc = pthread_create(&t->threads[t->n_threads], &attr, threads_main, t);
        t->n_threads += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (t->n_threads == 0) {
        threads_close(t, 0);
        return err_set(ERR_ENV, "no thread can be started to read files: %s", strerror(rc));
    }
    if (rc != 0)
        log_line(LOG_WARN, "only %u of %u threads could be started to read files: %s", t->n_threads,
                 want, strerror(rc));
    *engine = t;
    return 0;
}

static int threads_submit(void *engine, reader_file_t *file)
{
    threads_t *t = engine;
    pthread_mutex_lock(&t->lock);
    *t->last = file;
    t->last = &file->next;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

static int threads_poll(void *engine, int timeout_ms)
{
    threads_t *t = engine;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&t->lock);
    while (t->n_done == 0 && timeout_ms > 0)
        if (pthread_cond_timedwait(&t->done, &t->lock, &until) != 0)
            break;
    int done = (int)t->n_done;
    t->n_done = 0;
    pthread_mutex_unlock(&t->lock);
    return done;
}

const reader_engine_t reader_threads = {"threads", threads_open, threads_close, threads_submit,
                                        threads_poll};
