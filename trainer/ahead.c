#include "trainer/ahead.h"

#include "shm/err.h"
#include "trainer/batch.h"
#include "trainer/events.h"
#include "trainer/record.h"
#include "trainer/step_parts.h"

/* ---- giving ---- */

/* Items, and the flags' sums, to the host behind the step. */
static int fetch_words(trainer_t *t, int update)
{
    const k_ops_t *ops = t->ops;
    const int turn = trainer_turn(t);
    trainer_words_t *words = &t->words[turn];
    int rc = ops->download(t->dev, K_STREAM_MAIN, words->items, t->mem.items, sizeof words->items);
    if (rc == 0 && update)
        rc =
            ops->download(t->dev, K_STREAM_MAIN, words->agreed, t->mem.extra, sizeof words->agreed);
    if (rc == 0)
        rc = ops->record(t->dev, EVENT_ENDS + turn, K_STREAM_MAIN);
    return trainer_check(t, rc, "items of a step");
}

static int give(trainer_t *t, const plan_batch_t *b, int update)
{
    int rc = update ? step_tell(t) : 0;
    if (rc == 0)
        rc = record_run(t, update);
    if (rc == 0)
        rc = batch_used(t);
    if (rc == 0)
        rc = fetch_words(t, update);
    if (rc < 0)
        return rc;
    t->pending[trainer_turn(t)] =
        (trainer_pending_t){.live = 1, .update = update, .b = *b, .batch = t->batch};
    t->progress.batches++;
    if (update)
        step_updated(t);
    return 0;
}

/* ---- taking ---- */

static uint64_t between_ns(const trainer_t *t, int32_t from, int32_t to)
{
    float ms = t->ops->elapsed(t->dev, from, to);
    return ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
}

static int settle_turn(trainer_t *t, int turn)
{
    trainer_pending_t *p = &t->pending[turn];
    const trainer_words_t *words = &t->words[turn];
    if (!p->live)
        return 0;
    int rc = trainer_await(t, EVENT_ENDS + turn);
    if (rc < 0)
        return rc;
    p->live = 0;
    atomic_fetch_add_explicit(&t->w->page->wait_copy_ns,
                              between_ns(t, EVENT_COMES + turn, EVENT_BEGINS + turn),
                              memory_order_relaxed);
    if (p->update)
        t->agreed |= step_agreed(words->agreed);
    if ((rc = step_take_items(t, &p->b, &p->batch, words->items)) < 0)
        return rc;
    step_count(t, &p->b, &p->batch, between_ns(t, EVENT_BEGINS + turn, EVENT_ENDS + turn));
    return 0;
}

/* The one that was given first: of two, that of the other turn than the newest. */
static int oldest(const trainer_t *t)
{
    int turn = trainer_turn(t);
    return t->pending[1 - turn].live ? 1 - turn : turn;
}

int ahead_settle(trainer_t *t)
{
    int rc = 0;
    while (rc == 0 && (t->pending[0].live || t->pending[1].live))
        rc = settle_turn(t, oldest(t));
    return rc;
}

/* What is to be done now. A checkpoint waits for an optimiser step (save.h); the stop does not. At the
 * epoch's end all is done or void. */
static int due(trainer_t *t, int update, int last)
{
    int now = t->agreed;
    if (!update)
        now &= ~TRAINER_SAVE;
    t->agreed = last ? 0 : t->agreed & ~now;
    return now;
}

int ahead_step(trainer_t *t, const plan_batch_t *b, int update, int *asked)
{
    const int last = b->step + 1 == b->steps;
    int stop = 0;
    int rc = give(t, b, update);
    if (rc == 0 && !update)
        rc = step_agree_on_stop(t, &stop);
    if (rc < 0)
        return rc;
    t->agreed |= stop;
    rc = settle_turn(t, 1 - trainer_turn(t));
    if (rc == 0 && (last || t->agreed))
        rc = ahead_settle(t);
    if (rc == 0)
        *asked = due(t, update, last);
    return rc;
}
