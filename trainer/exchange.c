/* DESIGN
 *
 *   main stream  .. backward 57 ─ backward 56 ─ .. ─ backward 0 ─────────────── wait ─ optimiser
 *                         └ event           └ event         └ event               │
 *   comm stream             └ bucket 0        └ bucket 1      └ bucket 2, the rest ┘
 *
 * A bucket is given to the comm stream when backward of its last operation is enqueued. The ranks
 * enqueue the same sums in the same order, and on a device all sums of a communicator run in that
 * order: a sum on the main stream (sync_bn) first waits for the comm stream, and a bucket waits for
 * the main stream anyway. Nothing here looks at the device, so all of it can be recorded.
 *
 * The device's counters begin at 0 with the communicator and count the same sums on every rank: the
 * rank that has begun fewest is the one that the others wait for.
 */
#include "trainer/exchange_internal.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int32_t exchange_cut(const graph_t *g, uint64_t extra, uint64_t floats,
                     exchange_bucket_t buckets[EXCHANGE_BUCKETS])
{
    const graph_sizes_t *sizes = graph_sizes(g);
    const uint64_t begin = sizes->group_first[GRAPH_WEIGHT];
    const uint64_t behind = begin + sizes->group_count[GRAPH_WEIGHT];
    /* Two are kept for the front of the weights and for what is behind them. */
    const uint64_t least = sizes->group_count[GRAPH_WEIGHT] / (EXCHANGE_BUCKETS - 2) + 1;
    uint64_t end = behind;
    int32_t n = 0, ready = INT32_MAX;
    if (floats < least)
        floats = least;
    for (int32_t i = graph_params(g) - 1; i >= 0; i--) {
        const graph_param_t *p = graph_param(g, i);
        if (p->place != GRAPH_WEIGHT)
            continue;
        /* A bucket is given away after those before it, whichever is complete first. */
        int32_t after = graph_ready_after(g, i);
        ready = after < ready ? after : ready;
        if (end - p->first < floats && p->first > begin)
            continue;
        buckets[n++] = (exchange_bucket_t){p->first, end - p->first, ready};
        end = p->first;
    }
    buckets[n++] = (exchange_bucket_t){behind, sizes->weights + extra - behind, -1};
    return n;
}

/* ---- sums ---- */

int exchange_device(struct exchange *x, int rc, const char *what)
{
    char who[48];
    if (rc >= 0)
        return 0;
    x->failed = 1;
    return err_set(ERR_FAILED, "%s: %s: %s", exchange_who(x, x->t->rank, who), what,
                   x->t->ops->error(x->t->dev));
}

/* A call of a communicator that is not blocking returns before its kernel is in the stream: until
 * then nothing else may be put there (facts/gpu.md). */
int exchange_settle(struct exchange *x, double seconds)
{
    const struct timespec pause = {.tv_nsec = 200000};
    trainer_t *t = x->t;
    const uint64_t until = clock_ns() + (uint64_t)(seconds * 1e9);
    for (;;) {
        int rc = t->ops->comm_poll(t->dev);
        if (rc <= 0)
            return exchange_device(x, rc, "communicator");
        if ((rc = collective_look(t->coll)) < 0 || (rc = t->poll(t)) < 0)
            return rc;
        if (clock_ns() > until) {
            x->failed = 1;
            return 1;
        }
        nanosleep(&pause, NULL);
    }
}

static void count_launched(struct exchange *x, uint64_t sums)
{
    atomic_fetch_add_explicit(&x->t->w->page->sums_launched, sums, memory_order_relaxed);
}

/* The device writes these words; its system-wide fences order them (kernels.h, tick). */
static uint64_t *word_of(_Atomic uint64_t *counter)
{
    return (uint64_t *)(void *)counter;
}

int exchange_sum(struct exchange *x, k_stream_t s, k_at at, uint64_t count, int doubles)
{
    trainer_t *t = x->t;
    const k_ops_t *ops = t->ops;
    if (x->slot >= 0)
        x->recorded++;
    else
        count_launched(x, 1); /* before the device can have begun it */
    int rc = ops->tick(t->dev, s, word_of(&x->gpu->started));
    if (rc == 0)
        rc = ops->comm_sum(t->dev, s, at, count, doubles);
    if ((rc = exchange_device(x, rc, "sum over the devices")) < 0)
        return rc;
    double seconds = x->settle_s;
    if (!(seconds > 0)) {
        uint32_t stage = atomic_load_explicit(&t->w->page->stage, memory_order_relaxed);
        seconds = stage < BOARD_STAGE_RUNNING ? t->o->init_timeout : collective_patience(t->coll);
    }
    if ((rc = exchange_settle(x, seconds)) < 0)
        return rc;
    if (rc == 1) {
        char who[48];
        return err_set(ERR_TIMEOUT,
                       "%s: a sum over the devices could not be given to the device within %.0f s: "
                       "NCCL_DEBUG=INFO shows what it waits for",
                       exchange_who(x, t->rank, who), seconds);
    }
    return exchange_device(x, ops->tick(t->dev, s, word_of(&x->gpu->completed)), "counting a sum");
}

/* What `from` has been given so far comes before what `to` is given from now on. */
static int order(struct exchange *x, k_stream_t from, k_stream_t to, int32_t event)
{
    trainer_t *t = x->t;
    int rc = t->ops->record(t->dev, event, from);
    if (rc == 0)
        rc = t->ops->after(t->dev, to, event);
    return exchange_device(x, rc, "ordering the streams");
}

static int give_bucket(struct exchange *x)
{
    const int32_t i = x->next++;
    const exchange_bucket_t *b = &x->bucket[i];
    int rc = order(x, K_STREAM_MAIN, K_STREAM_COMM, EVENTS_EXCHANGE + i);
    if (rc < 0)
        return rc;
    return exchange_sum(x, K_STREAM_COMM, x->t->mem.train.grads + b->first * sizeof(float),
                        b->count, 0);
}

static int over_devices(const trainer_t *t)
{
    return t->exchange && t->exchange->connected;
}

int exchange_begin(trainer_t *t)
{
    if (!over_devices(t))
        return 0;
    t->exchange->active = 1;
    t->exchange->next = 0;
    return 0;
}

int exchange_ready(trainer_t *t, int32_t op)
{
    struct exchange *x = t->exchange;
    int rc = 0;
    if (!over_devices(t) || !x->active)
        return 0;
    while (rc == 0 && x->next < x->buckets && x->bucket[x->next].ready >= op)
        rc = give_bucket(x);
    return rc;
}

/* GPUs without a communicator would train apart without a word. */
static int need_shared_memory(const trainer_t *t)
{
    if (t->ranks == 1 || !t->ops->async)
        return 0;
    return err_set(ERR_FAILED, "rank %u: sums over the devices before exchange_open", t->rank);
}

int exchange_finish(trainer_t *t)
{
    struct exchange *x = t->exchange;
    if (!over_devices(t)) {
        int rc = need_shared_memory(t);
        return rc < 0 ? rc
                      : collective_allreduce(t->coll, t->dev, t->mem.train.grads,
                                             t->sizes->weights + MEMORY_EXTRA);
    }
    int rc = x->active ? 0
                       : err_set(ERR_FAILED, "rank %u: the end of an exchange that has not begun",
                                 t->rank);
    while (rc == 0 && x->next < x->buckets)
        rc = give_bucket(x);
    if (rc == 0)
        rc = exchange_device(x, t->ops->tick(t->dev, K_STREAM_COMM, word_of(&x->gpu->exchanges)),
                             "counting a step");
    if (rc == 0)
        rc = order(x, K_STREAM_COMM, K_STREAM_MAIN, EXCHANGE_EVENT_END);
    x->active = 0;
    return rc;
}

static int host_stats(trainer_t *t, k_at at, uint64_t doubles)
{
    double *values = malloc(doubles * sizeof *values);
    if (!values)
        return err_set(ERR_ENV, "rank %u: out of memory for %llu sums", t->rank,
                       (unsigned long long)doubles);
    int rc = trainer_download(t, values, at, doubles * sizeof *values);
    if (rc == 0)
        rc = collective_sum(t->coll, values, (uint32_t)doubles);
    if (rc == 0)
        rc = trainer_upload(t, at, values, doubles * sizeof *values);
    free(values);
    return rc;
}

int exchange_stats(trainer_t *t, k_at at, uint64_t doubles)
{
    struct exchange *x = t->exchange;
    if (t->ranks == 1)
        return 0;
    if (!over_devices(t)) {
        int rc = need_shared_memory(t);
        return rc < 0 ? rc : host_stats(t, at, doubles);
    }
    /* Only behind this step's own buckets: a wait for an event from outside of a recording would
     * end it. */
    int rc =
        x->active && x->next > 0 ? order(x, K_STREAM_COMM, K_STREAM_MAIN, EXCHANGE_EVENT_STATS) : 0;
    return rc < 0 ? rc : exchange_sum(x, K_STREAM_MAIN, at, doubles, 1);
}

/* ---- recorded steps ---- */

void exchange_recording(trainer_t *t, int32_t slot)
{
    struct exchange *x = t->exchange;
    if (!x)
        return;
    if (slot >= 0 && slot < K_GRAPHS) {
        uint32_t stage = atomic_load_explicit(&t->w->page->stage, memory_order_relaxed);
        if (stage < BOARD_STAGE_CAPTURE)
            board_set_stage(t->w->page, BOARD_STAGE_CAPTURE);
        x->recorded = 0;
        x->slot = slot;
    } else if (x->slot >= 0) {
        x->sums_of[x->slot] = x->recorded;
        x->slot = -1;
    }
}

int exchange_replayed(trainer_t *t, int32_t slot)
{
    struct exchange *x = t->exchange;
    if (!x)
        return 0;
    if (slot < 0 || slot >= K_GRAPHS)
        return err_set(ERR_FAILED, "rank %u: recorded step %d", t->rank, slot);
    if (atomic_load_explicit(&t->w->page->stage, memory_order_relaxed) < BOARD_STAGE_RUNNING)
        board_set_stage(t->w->page, BOARD_STAGE_RUNNING);
    count_launched(x, x->sums_of[slot]);
    return 0;
}
