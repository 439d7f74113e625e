#include "trainer/trainer.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/batch.h"
#include "trainer/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { WATCH_LATE_MS = 2000 }; /* a look this late: we were stopped */

int32_t trainer_classes(const trainer_t *t)
{
    return t->n_classes > 0 ? t->n_classes : graph_classes(t->graph);
}

int trainer_turn(const trainer_t *t)
{
    return t->ops->async ? (int)(t->seq % TRAINER_TURNS) : 0;
}

/* ---- host memory ---- */

/* Of one turn: what the device copies from is pinned. */
static int batch_alloc(trainer_t *t, batch_t *b)
{
    size_t cells = (size_t)t->mem.cells;
    b->gts = t->ops->host_alloc(t->dev, t->mem.gt_bytes);
    b->counts = t->ops->host_alloc(t->dev, cells * sizeof *b->counts);
    b->samples = calloc(cells, sizeof *b->samples);
    b->places = calloc(cells, sizeof *b->places);
    return b->gts && b->counts && b->samples && b->places ? 0 : -1;
}

static void batch_release(trainer_t *t, batch_t *b)
{
    if (t->dev) {
        t->ops->host_free(t->dev, b->gts);
        t->ops->host_free(t->dev, b->counts);
    }
    free(b->samples);
    free(b->places);
    *b = (batch_t){0};
}

/* Copies go straight from the ring (design 3). */
static int pin_ring(trainer_t *t)
{
    uint64_t bytes = 0;
    ring_t *ring = t->w->rings[t->rank];
    if (!t->ops->async || !ring)
        return 0;
    void *at = ring_mapping(ring, &bytes);
    if (t->ops->pin(t->dev, at, bytes) < 0)
        return err_set(ERR_ENV,
                       "rank %u: the ring of batches cannot be pinned for the device: %s; lower "
                       "ring_depth, or raise the limit of locked memory",
                       t->rank, t->ops->error(t->dev));
    t->ring_pinned = 1;
    return 0;
}

int trainer_host_alloc(trainer_t *t)
{
    size_t cells = (size_t)t->mem.cells, classes = (size_t)trainer_classes(t);
    int failed = 0, own = t->ops->async ? TRAINER_TURNS : 1;
    for (int i = 0; i < TRAINER_TURNS; i++) {
        if (i < own)
            failed |= batch_alloc(t, &t->turns[i]);
        else
            t->turns[i] = t->turns[0];
    }
    t->batch = t->turns[0];
    t->words = t->ops->host_alloc(t->dev, TRAINER_TURNS * sizeof *t->words);
    t->val.sums = calloc(classes + 5, sizeof *t->val.sums);
    t->val.dets = malloc(cells * (size_t)t->mem.max_det * sizeof *t->val.dets);
    t->val.counts = calloc(cells, sizeof *t->val.counts);
    if (failed || !t->words || !t->val.sums || !t->val.dets || !t->val.counts)
        return err_set(ERR_ENV, "rank %u: out of memory for the labels of %zu images", t->rank,
                       cells);
    return pin_ring(t);
}

void trainer_host_free(trainer_t *t)
{
    uint64_t bytes;
    if (t->dev && t->ring_pinned)
        t->ops->unpin(t->dev, ring_mapping(t->w->rings[t->rank], &bytes));
    t->ring_pinned = 0;
    for (int i = 0; i < TRAINER_TURNS; i++)
        if (i == 0 || (t->ops && t->ops->async))
            batch_release(t, &t->turns[i]);
        else
            t->turns[i] = (batch_t){0};
    if (t->dev)
        t->ops->host_free(t->dev, t->words);
    t->words = NULL;
    free(t->val.sums);
    free(t->val.dets);
    free(t->val.counts);
    free(t->val.rows);
    free(t->choices);
    t->choices = NULL;
    t->batch = (batch_t){0};
    t->val = (trainer_val_t){0};
}

/* ---- the device ---- */

int trainer_check(const trainer_t *t, int rc, const char *what)
{
    if (rc >= 0)
        return 0;
    return err_set(ERR_FAILED, "rank %u: %s: %s", t->rank, what, t->ops->error(t->dev));
}

int trainer_nap_ms(const trainer_t *t)
{
    const ring_t *ring = t->w->rings[t->rank];
    return ring && t->ops->async && ring_tail(ring) < t->taken ? 1 : FUTEX_RECHECK_MS;
}

int trainer_look(trainer_t *t)
{
    int rc = batch_poll(t);
    if (rc == 0)
        rc = t->poll(t);
    return rc == 0 ? exchange_check(t) : rc;
}

/* A wait for the device: when it was last looked at, and for how long. */
typedef struct {
    uint64_t looked_ns, waited_ns;
} watch_t;

/* Of one rank alone nobody else is waited for: what the device was given ends, or the device hangs.
 * Time in which this process was stopped does not count. */
static int watch(trainer_t *t, watch_t *w)
{
    const uint64_t now = clock_ns(), passed = w->looked_ns ? now - w->looked_ns : 0;
    w->looked_ns = now;
    if (passed < (uint64_t)WATCH_LATE_MS * 1000000)
        w->waited_ns += passed;
    const double seconds = (double)w->waited_ns / 1e9;
    if (t->ranks > 1 || !t->coll || seconds <= collective_patience(t->coll))
        return trainer_look(t);
    return err_set(
        ERR_TIMEOUT,
        "rank %u: the device has not ended what it was given for %.0f s: see the kernel's "
        "log (dmesg, Xid), or raise hang_timeout",
        t->rank, seconds);
}

int trainer_drain(trainer_t *t, k_stream_t s)
{
    watch_t w = {0, 0};
    int rc;
    while ((rc = t->ops->wait(t->dev, s, trainer_nap_ms(t))) == 1) {
        if ((rc = watch(t, &w)) < 0)
            return rc;
    }
    return trainer_check(t, rc, "waiting for the device");
}

int trainer_await(trainer_t *t, int32_t e)
{
    watch_t w = {0, 0};
    int rc;
    while ((rc = t->ops->event(t->dev, e, trainer_nap_ms(t))) == 1) {
        if ((rc = watch(t, &w)) < 0)
            return rc;
    }
    return trainer_check(t, rc, "waiting for the device");
}

static void leave_at_once(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    _exit(status);
}

void trainer_abandon(trainer_t *t)
{
    t->dev = NULL;
    on_exit(leave_at_once, NULL);
}

int trainer_upload(trainer_t *t, k_at dst, const void *host, uint64_t bytes)
{
    int rc = trainer_check(t, t->ops->upload(t->dev, K_STREAM_MAIN, dst, host, bytes), "upload");
    return rc < 0 ? rc : trainer_drain(t, K_STREAM_MAIN);
}

int trainer_download(trainer_t *t, void *host, k_at src, uint64_t bytes)
{
    /* A copy to memory that is not pinned waits in the driver, without a deadline, for what the
     * stream was given before. */
    int rc = trainer_drain(t, K_STREAM_MAIN);
    if (rc == 0)
        rc =
            trainer_check(t, t->ops->download(t->dev, K_STREAM_MAIN, host, src, bytes), "download");
    return rc < 0 ? rc : trainer_drain(t, K_STREAM_MAIN);
}

int trainer_wants_stop(const trainer_t *t)
{
    return t->w->stop && (t->w->stop_message.why == WIRE_STOP_USER ||
                          t->w->stop_message.why == WIRE_STOP_NO_DATA);
}
