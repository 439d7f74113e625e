/* A small sum whose result is known: the first one of a communicator, which makes its connections. */
#include "trainer/exchange_internal.h"

#include "shm/err.h"
#include "shm/futex.h"

/* 0 it has fired, 1 not until `until`, or the error. */
static int await(struct exchange *x, int32_t event, uint64_t until)
{
    trainer_t *t = x->t;
    int rc;
    while ((rc = t->ops->event(t->dev, event, 20)) == 1) {
        if ((rc = collective_look(t->coll)) < 0 || (rc = t->poll(t)) < 0)
            return rc;
        if ((rc = t->ops->comm_poll(t->dev)) < 0)
            return exchange_device(x, rc, "communicator");
        if (clock_ns() > until) {
            x->failed = 1;
            return 1;
        }
    }
    return exchange_device(x, rc, "first sum");
}

/* Whole numbers below 2^24 all the way: exact in float. */
static float part_of(uint32_t rank, int i)
{
    return (float)((rank + 1) * (uint32_t)(i + 1));
}

static int begin(struct exchange *x, uint32_t rank)
{
    trainer_t *t = x->t;
    const k_ops_t *ops = t->ops;
    for (int i = 0; i < MEMORY_EXTRA; i++)
        x->probe[i] = part_of(rank, i);
    int rc = ops->upload(t->dev, K_STREAM_MAIN, t->mem.extra, x->probe, sizeof x->probe);
    if (rc == 0)
        rc = ops->record(t->dev, EXCHANGE_EVENT_FIRST, K_STREAM_MAIN);
    if (rc == 0)
        rc = ops->after(t->dev, K_STREAM_COMM, EXCHANGE_EVENT_FIRST);
    if ((rc = exchange_device(x, rc, "first sum")) < 0)
        return rc;
    if ((rc = exchange_sum(x, K_STREAM_COMM, t->mem.extra, MEMORY_EXTRA, 0)) < 0)
        return rc;
    return exchange_device(x, ops->record(t->dev, EXCHANGE_EVENT_END, K_STREAM_COMM), "first sum");
}

static int check(struct exchange *x, uint32_t ranks)
{
    char who[48];
    for (int i = 0; i < MEMORY_EXTRA; i++) {
        float want = 0;
        for (uint32_t r = 0; r < ranks; r++)
            want += part_of(r, i);
        if (x->probe[i] == want)
            continue;
        x->failed = 1;
        return err_set(ERR_FAILED,
                       "%s: the devices' first sum is wrong: element %d is %g instead of %g; a "
                       "connection between them corrupts data, try NCCL_P2P_DISABLE=1",
                       exchange_who(x, x->t->rank, who), i, (double)x->probe[i], (double)want);
    }
    return 0;
}

/* A sum of the largest bucket's size, over memory that means nothing yet: what the library sets up for
 * that size is there before a step is recorded. */
static int try_bucket(struct exchange *x, uint64_t until)
{
    trainer_t *t = x->t;
    uint64_t count = 0;
    for (int32_t i = 0; i < x->buckets; i++)
        count = x->bucket[i].count > count ? x->bucket[i].count : count;
    if (count * sizeof(float) > t->mem.activation_bytes)
        count = t->mem.activation_bytes / sizeof(float);
    if (count == 0)
        return 0;
    int rc = exchange_sum(x, K_STREAM_COMM, t->mem.activation, count, 0);
    if (rc == 0)
        rc = exchange_device(x, t->ops->record(t->dev, EXCHANGE_EVENT_END, K_STREAM_COMM),
                             "first sum");
    return rc == 0 ? await(x, EXCHANGE_EVENT_END, until) : rc;
}

static int probe(struct exchange *x, uint32_t rank, uint32_t ranks, uint64_t until)
{
    trainer_t *t = x->t;
    const k_ops_t *ops = t->ops;
    int rc = begin(x, rank);
    /* Before the copy, which a host may have to wait in: only behind a sum that is done. */
    if (rc < 0 || (rc = await(x, EXCHANGE_EVENT_END, until)) != 0)
        return rc;
    rc = ops->download(t->dev, K_STREAM_COMM, x->probe, t->mem.extra, sizeof x->probe);
    if (rc == 0)
        rc = ops->record(t->dev, EXCHANGE_EVENT_END, K_STREAM_COMM);
    if ((rc = exchange_device(x, rc, "first sum")) < 0 ||
        (rc = await(x, EXCHANGE_EVENT_END, until)) != 0)
        return rc;
    if ((rc = check(x, ranks)) < 0)
        return rc;
    const uint64_t now = clock_ns();
    if (now >= until) {
        x->failed = 1;
        return 1;
    }
    x->settle_s = (double)(until - now) / 1e9;
    if ((rc = try_bucket(x, until)) != 0)
        return rc;
    /* As step_init left them. */
    return exchange_device(x, ops->zero(t->dev, t->mem.extra, sizeof x->probe), "first sum");
}

/* One deadline for all of it, not one for each call: rounds of pairs have few seconds. */
int exchange_first_sum(struct exchange *x, uint32_t rank, uint32_t ranks, double seconds)
{
    x->settle_s = seconds;
    int rc = probe(x, rank, ranks, clock_ns() + (uint64_t)(seconds * 1e9));
    x->settle_s = 0;
    return rc == ERR_TIMEOUT ? 1 : rc;
}
