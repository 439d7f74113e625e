#include "tools/console.h"

#include "shm/err.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct item {
    struct item *next;
    int fd;
    size_t bytes;
    char text[];
} item_t;

struct console {
    pthread_mutex_t mutex; /* over all below; never held while something is written */
    pthread_cond_t changed;
    pthread_t thread;
    item_t *first, *last;
    size_t room, held; /* bytes */
    unsigned long lost;
    int writing, closing;
    int abandoned; /* console_close gave up: the thread frees it, if its write ever returns */
};

static void console_free(console_t *c)
{
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

static void write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EAGAIN) { /* somebody made it non-blocking */
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            poll(&p, 1, 1000);
        }
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return; /* a terminal that has gone away: the run's files have all that matters */
        text += n;
        bytes -= (size_t)n;
    }
}

/* The next item, waited for; NULL when the console closes. */
static item_t *take(console_t *c)
{
    pthread_mutex_lock(&c->mutex);
    c->writing = 0;
    pthread_cond_broadcast(&c->changed);
    while (!c->first && !c->closing)
        pthread_cond_wait(&c->changed, &c->mutex);
    item_t *item = c->first;
    if (item) {
        c->first = item->next;
        if (!c->first)
            c->last = NULL;
        c->held -= item->bytes;
        c->writing = 1;
    }
    pthread_mutex_unlock(&c->mutex);
    return item;
}

static void *console_thread(void *user)
{
    console_t *c = user;
    for (item_t *item; (item = take(c)) != NULL; free(item))
        write_all(item->fd, item->text, item->bytes);
    pthread_mutex_lock(&c->mutex);
    int mine = c->abandoned;
    pthread_mutex_unlock(&c->mutex);
    if (mine)
        console_free(c);
    return NULL;
}

static int start_thread(console_t *c)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&c->thread, NULL, console_thread, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

int console_open(size_t room, console_t **console)
{
    pthread_condattr_t monotonic;
    console_t *c = calloc(1, sizeof *c);
    *console = NULL;
    if (!c)
        return err_set(ERR_ENV, "no memory for the console");
    c->room = room;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = start_thread(c);
    if (rc != 0) {
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->mutex);
        free(c);
        return err_set(ERR_ENV, "no thread for the console: %s", strerror(rc));
    }
    *console = c;
    return 0;
}

/* With the mutex held. */
static int append(console_t *c, int fd, const char *text, size_t bytes)
{
    item_t *item = c->held + bytes <= c->room ? malloc(sizeof *item + bytes) : NULL;
    if (!item)
        return -1;
    item->next = NULL;
    item->fd = fd;
    item->bytes = bytes;
    memcpy(item->text, text, bytes);
    if (c->last)
        c->last->next = item;
    else
        c->first = item;
    c->last = item;
    c->held += bytes;
    return 0;
}

void console_put(console_t *c, int fd, const char *text, size_t bytes, int passing)
{
    char note[96];
    pthread_mutex_lock(&c->mutex);
    int n =
        snprintf(note, sizeof note, "(%lu pieces of output left out: nobody read them)\n", c->lost);
    /* The count goes before what has room again. */
    int told = c->lost > 0 && !passing && c->held + (size_t)n + bytes <= c->room &&
               append(c, fd, note, (size_t)n) == 0;
    if (told)
        c->lost = 0;
    if (append(c, fd, text, bytes) != 0 && !passing)
        c->lost++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

void console_close(console_t **console, int timeout_ms)
{
    console_t *c = *console;
    struct timespec until;
    int rc = 0;
    *console = NULL;
    if (!c)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&c->mutex);
    while ((c->first || c->writing) && rc == 0)
        rc = pthread_cond_timedwait(&c->changed, &c->mutex, &until);
    c->closing = 1;
    c->abandoned = rc != 0;
    pthread_t thread = c->thread;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    if (rc != 0) {
        /* It hangs in a write: it keeps its memory, and ends with the process or frees it. */
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    console_free(c);
}
