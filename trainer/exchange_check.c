/* While a rank waits for its device: whom do the sums wait for?
 *
 * Evidence is what the devices count themselves (board_gpu_t) beside what was launched. In order:
 * nothing is outstanding: no wait of ours; a rank has begun fewer sums than this one: it is watched,
 * and excused while it waits for data or shows progress; this rank's own device has ended as many as
 * it has begun: it has not come to the next; all have begun the same sum: the connection.
 */
#include "trainer/exchange_internal.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdio.h>

enum { NOBODY = -1 };

typedef struct {
    uint64_t launched, started, completed; /* of this rank */
    int32_t missing;                       /* the rank that has begun fewest, or NOBODY */
    uint64_t missing_started;
    uint64_t sign; /* changes with progress of whoever is watched */
    int excused;
} look_t;

static uint64_t read_word(const _Atomic uint64_t *w)
{
    return atomic_load_explicit(w, memory_order_relaxed);
}

static void look(struct exchange *x, look_t *l)
{
    trainer_t *t = x->t;
    *l = (look_t){.launched = read_word(&t->w->page->sums_launched),
                  .started = read_word(&x->gpu->started),
                  .completed = read_word(&x->gpu->completed),
                  .missing = NOBODY};
    uint64_t fewest = l->started, all = 0;
    for (uint32_t r = 0; r < t->ranks; r++) {
        const board_gpu_t *g = board_gpu(t->w->board, r);
        uint64_t started = read_word(&g->started), ended = read_word(&g->completed);
        all += started + ended;
        if (started >= fewest)
            continue;
        fewest = started;
        l->missing = (int32_t)r;
    }
    l->missing_started = fewest;
    l->sign = all;
    if (l->missing != NOBODY) {
        const board_gpu_t *g = board_gpu(t->w->board, (uint32_t)l->missing);
        l->sign = collective_life(t->coll, (uint32_t)l->missing, &l->excused) +
                  read_word(&g->started) + read_word(&g->completed);
    }
}

static int too_long(struct exchange *x, const look_t *l, double seconds)
{
    char who[48], other[48], where[160];
    trainer_t *t = x->t;
    unsigned long long number = (unsigned long long)l->completed + 1;
    x->failed = 1;
    exchange_who(x, t->rank, who);
    if (l->missing != NOBODY) {
        collective_where(t->coll, (uint32_t)l->missing, where, sizeof where);
        return err_set(ERR_TIMEOUT,
                       "%s waited %.0f s in sum %llu over the devices for %s, which is %s, has "
                       "begun %llu and shows no progress: see that rank's log, or raise "
                       "hang_timeout",
                       who, seconds, number, exchange_who(x, (uint32_t)l->missing, other), where,
                       (unsigned long long)l->missing_started);
    }
    if (l->started == l->completed)
        return err_set(ERR_TIMEOUT,
                       "%s: the GPU has not come to sum %llu over the devices for %.0f s: work "
                       "launched before it does not end; see the kernel's log (dmesg, Xid)",
                       who, number, seconds);
    return err_set(ERR_TIMEOUT,
                   "%s: every GPU has begun sum %llu over the devices, and none ends it for %.0f "
                   "s: the connection between them hangs; try NCCL_P2P_DISABLE=1; NCCL_DEBUG=INFO "
                   "writes more into the run's logs",
                   who, number, seconds);
}

/* Seen missing before, for it may have come as it left. */
static int has_left(struct exchange *x, const look_t *l)
{
    if (l->missing == NOBODY || l->missing != x->watched)
        return 0;
    const board_page_t *p = collective_page(x->t->coll, (uint32_t)l->missing);
    return p && atomic_load_explicit(&p->phase, memory_order_relaxed) == BOARD_STOPPING;
}

int exchange_check(trainer_t *t)
{
    struct exchange *x = t->exchange;
    const uint64_t now = clock_ns();
    if (!x || !x->connected || now - x->looked_ns < EXCHANGE_LOOK_MS * 1000000ull)
        return 0;
    int late = now - x->looked_ns > EXCHANGE_LATE_MS * 1000000ull;
    x->looked_ns = now;
    int rc = t->ops->comm_poll(t->dev);
    if (rc < 0)
        return exchange_device(x, rc, "sums over the devices: another rank or a connection failed");
    look_t l;
    look(x, &l);
    if (l.completed >= l.launched) {
        x->watched = NOBODY;
        x->since_ns = now;
        return 0;
    }
    if (has_left(x, &l)) {
        x->failed = 1;
        return err_set(ERR_STOPPED, "rank %u: rank %d has left before sum %llu over the devices",
                       t->rank, l.missing, (unsigned long long)l.completed + 1);
    }
    if (l.missing != x->watched || l.sign != x->sign || l.excused || late)
        x->since_ns = now;
    x->watched = l.missing;
    x->sign = l.sign;
    double seconds = (double)(now - x->since_ns) / 1e9;
    return seconds > collective_patience(t->coll) ? too_long(x, &l, seconds) : 0;
}
