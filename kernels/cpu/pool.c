/* The device's threads.
 *
 * One job at a time: the caller publishes it, works as thread 0, and waits until the others have
 * finished. An operation lasts tens of microseconds to milliseconds, so both sides look at the word
 * they wait for POOL_LOOKS times (about 20 us) before they sleep: that hides the price of a wake-up
 * between two operations and costs little when the device has nothing to do.
 *
 * Waits have no deadline of their own: the threads run arithmetic on memory only, so a job ends; a
 * thread cannot die alone, and the process as a whole is watched from outside (design 5).
 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { POOL_LOOKS = 500 };

typedef struct {
    cpu_pool_t *pool;
    pthread_t id;
    int thread;
} pool_worker_t;

struct cpu_pool {
    int threads;
    int started; /* workers running: threads 1..started */
    pool_worker_t *workers;
    void (*run)(void *arg, int thread);
    void *arg;
    /* Number of the job. Stored with release by the caller after run and arg; read with acquire by
     * workers. */
    _Atomic uint32_t job;
    /* Workers still busy. Decremented with release after the work; read with acquire by the caller.
     */
    _Atomic int busy;
    _Atomic int quit;
    pthread_mutex_t lock; /* only for sleeping: makes look-then-sleep one step against the wakers */
    pthread_cond_t work, done;
};

static void pool_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Returns the new job's number once it differs from `seen`. */
static uint32_t pool_await_job(cpu_pool_t *p, uint32_t seen)
{
    for (int i = 0; i < POOL_LOOKS; i++) {
        uint32_t job = atomic_load_explicit(&p->job, memory_order_acquire);
        if (job != seen)
            return job;
        pool_pause();
    }
    uint32_t job;
    pthread_mutex_lock(&p->lock);
    while ((job = atomic_load_explicit(&p->job, memory_order_acquire)) == seen)
        pthread_cond_wait(&p->work, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return job;
}

static void *pool_main(void *arg)
{
    pool_worker_t *w = arg;
    cpu_pool_t *p = w->pool;
    uint32_t seen = 0;
    for (;;) {
        seen = pool_await_job(p, seen);
        if (atomic_load_explicit(&p->quit, memory_order_relaxed))
            return NULL;
        p->run(p->arg, w->thread);
        if (atomic_fetch_sub_explicit(&p->busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void pool_publish(cpu_pool_t *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->job, 1, memory_order_release);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

void cpu_pool_free(cpu_pool_t **pool)
{
    cpu_pool_t *p = *pool;
    if (!p)
        return;
    atomic_store_explicit(&p->quit, 1, memory_order_relaxed);
    pool_publish(p);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->workers[i].id, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p->workers);
    free(p);
    *pool = NULL;
}

cpu_pool_t *cpu_pool_new(int threads)
{
    cpu_pool_t *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    p->workers = calloc((size_t)threads, sizeof *p->workers);
    if (!p->workers) {
        cpu_pool_free(&p);
        return NULL;
    }
    /* Signals belong to the process's own threads, never to these. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    for (int t = 1; t < threads && rc == 0; t++) {
        pool_worker_t *w = &p->workers[p->started];
        w->pool = p;
        w->thread = t;
        rc = pthread_create(&w->id, NULL, pool_main, w);
        if (rc == 0)
            p->started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        cpu_pool_free(&p);
        errno = rc; /* pthread_create returns it; the caller's message reads errno */
    }
    return p;
}

void cpu_pool_run(cpu_pool_t *p, void (*run)(void *arg, int thread), void *arg)
{
    if (p->started == 0) {
        run(arg, 0);
        return;
    }
    p->run = run;
    p->arg = arg;
    atomic_store_explicit(&p->busy, p->started, memory_order_relaxed);
    pool_publish(p);
    run(arg, 0);
    for (int i = 0; i < POOL_LOOKS; i++) {
        if (atomic_load_explicit(&p->busy, memory_order_acquire) == 0)
            return;
        pool_pause();
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load_explicit(&p->busy, memory_order_acquire) != 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
