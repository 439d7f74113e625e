/* The start of a communicator in stages, and its end.
 *
 *   stage          what                                        ends late
 *   CONTEXT        the device is opened (setup.c)              the others' rendezvous names the rank
 *   RENDEZVOUS     rank 0's identity to all, through hosts     collective.c names the rank
 *   COMMUNICATOR   comm_open, polled until it is ready         stage_error, then the pairs
 *   FIRST_SUM      64 floats whose sum is known                stage_error, then the pairs
 *   CAPTURE        the first step is recorded                  exchange_sum
 *   RUNNING        the first recorded step was replayed        exchange_check
 *
 * Each of the first four has init_timeout. After FIRST_SUM all ranks tell each other how it went: a
 * start has failed for all or for none.
 */
#include "trainer/exchange_agree.h"
#include "trainer/exchange_internal.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *exchange_who(const struct exchange *x, uint32_t rank, char text[48])
{
    if (rank < x->t->ranks && x->device[rank] >= 0)
        snprintf(text, 48, "rank %u (GPU %d)", rank, x->device[rank]);
    else
        snprintf(text, 48, "rank %u", rank);
    return text;
}

/* ---- NCCL's environment: read once, with its first call ---- */

/* Ranks that share a device are told apart by a host's name of their own, and speak through the
 * loopback as two hosts do (facts/gpu.md, hangs.md 2). */
static void share_devices(struct exchange *x)
{
    trainer_t *t = x->t;
    char id[64];
    int shared = 0;
    for (uint32_t r = 0; r < t->ranks; r++) {
        int same = 0, before = 0;
        for (uint32_t k = 0; k < t->ranks; k++) {
            same += x->device[k] == x->device[r];
            before += k < r && x->device[k] == x->device[r];
        }
        shared |= same > 1;
        if (same > 1 && before == 0 && t->rank == 0 && same == 2)
            log_line(LOG_WARN, "two ranks share GPU %d: a test mode, slow", x->device[r]);
        else if (same > 1 && before == 0 && t->rank == 0)
            log_line(LOG_WARN, "%d ranks share GPU %d: a test mode, slow", same, x->device[r]);
    }
    if (!shared)
        return;
    snprintf(id, sizeof id, "sluice-rank-%u", t->rank);
    setenv("NCCL_HOSTID", id, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
}

static void set_environment(struct exchange *x)
{
    const trainer_t *t = x->t;
    const char *dir = t->w->welcome.run_dir;
    /* Its own watch listens on one fixed port of the machine, and does not see recorded sums
     * (hangs.md 0, 2). */
    setenv("NCCL_RAS_ENABLE", "0", 0);
    if (getenv("NCCL_DEBUG") && !getenv("NCCL_DEBUG_FILE") && dir[0]) {
        char path[sizeof t->w->welcome.run_dir * 2 + 64];
        size_t used = 0;
        for (; *dir && used + 64 < sizeof path; dir++) {
            if (*dir == '%') /* NCCL's own %h and %p begin with it */
                path[used++] = '%';
            path[used++] = *dir;
        }
        snprintf(path + used, sizeof path - used, "/logs/nccl-rank-%u.log", t->rank);
        setenv("NCCL_DEBUG_FILE", path, 1);
    }
    share_devices(x);
}

/* ---- stages ---- */

/* What the other ranks are doing, for the sentence of a stage that takes too long. */
static void others(struct exchange *x, char *text, size_t bytes)
{
    trainer_t *t = x->t;
    char who[48], where[160];
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < t->ranks; r++) {
        if (r == t->rank || used + 1 >= bytes)
            continue;
        collective_where(t->coll, r, where, sizeof where);
        int n = snprintf(text + used, bytes - used, "%s%s: %s", used ? "; " : "",
                         exchange_who(x, r, who), where);
        used += n > 0 ? (size_t)n : 0;
    }
}

static int stage_error(struct exchange *x, board_stage_t stage)
{
    char who[48], rest[1024];
    others(x, rest, sizeof rest);
    return err_set(ERR_TIMEOUT,
                   "%s: %s has taken more than %g s (init_timeout). %s. Try NCCL_P2P_DISABLE=1, "
                   "then NCCL_SHM_DISABLE=1 too; NCCL_DEBUG=INFO writes more into the run's logs",
                   exchange_who(x, x->t->rank, who),
                   stage == BOARD_STAGE_COMMUNICATOR ? "connecting to the other devices"
                                                     : "the first sum over the devices",
                   x->t->o->init_timeout, rest);
}

/* Rank 0's failure to make one reaches the others with it. */
static int rendezvous(struct exchange *x, uint8_t id[K_COMM_ID])
{
    trainer_t *t = x->t;
    struct {
        uint8_t id[K_COMM_ID];
        int32_t made;
    } word;
    memset(&word, 0, sizeof word);
    board_set_stage(t->w->page, BOARD_STAGE_RENDEZVOUS);
    int own = t->rank == 0 ? t->ops->comm_id(t->dev, word.id) : 0;
    word.made = own == 0;
    int rc = collective_broadcast(t->coll, &word, sizeof word, 0);
    if (rc < 0)
        return err_add(rc, "meeting the other ranks (init_timeout=%g s)", t->o->init_timeout);
    memcpy(id, word.id, sizeof word.id);
    if (own < 0)
        return exchange_device(x, own, "an identity for the ranks' meeting");
    return word.made ? 0
                     : err_set(ERR_FAILED,
                               "rank %u: rank 0 could not make an identity for the "
                               "ranks' meeting: see its log",
                               t->rank);
}

/* Zeros for this communicator, then the device's: nobody else writes the page (design 5). */
static int pin_counters(struct exchange *x)
{
    trainer_t *t = x->t;
    board_gpu_t *gpu = board_gpu(t->w->board, t->rank);
    if (!gpu)
        return err_set(ERR_CONFIG, "rank %u: the status board has room for %d GPUs", t->rank,
                       BOARD_GPUS);
    memset((void *)gpu, 0, sizeof *gpu);
    atomic_store_explicit(&t->w->page->sums_launched, 0, memory_order_relaxed);
    int rc = exchange_device(x, t->ops->pin(t->dev, gpu, BOARD_PAGE_BYTES), "pinning the counters");
    if (rc == 0)
        x->gpu = gpu;
    return rc;
}

static int stages(struct exchange *x)
{
    trainer_t *t = x->t;
    const double seconds = t->o->init_timeout;
    uint8_t id[K_COMM_ID];
    int rc = rendezvous(x, id);
    if (rc < 0)
        return rc;
    board_set_stage(t->w->page, BOARD_STAGE_COMMUNICATOR);
    x->has_comm = 1;
    rc = exchange_device(x, t->ops->comm_open(t->dev, id, (int)t->rank, (int)t->ranks),
                         "communicator");
    if (rc == 0)
        rc = exchange_settle(x, seconds);
    if (rc != 0)
        return rc == 1 ? stage_error(x, BOARD_STAGE_COMMUNICATOR) : rc;
    board_set_stage(t->w->page, BOARD_STAGE_FIRST_SUM);
    rc = exchange_first_sum(x, t->rank, t->ranks, seconds);
    return rc == 1 ? stage_error(x, BOARD_STAGE_FIRST_SUM) : rc;
}

/* All ranks come here, each with how its own stages went: a rank that has failed does not leave the
 * others waiting for its sums. */
static int conclude(struct exchange *x, int own)
{
    trainer_t *t = x->t;
    char text[1536], pairs[1024];
    double failed[WIRE_RANKS] = {0};
    snprintf(text, sizeof text, "%s", own < 0 ? err_text() : "");
    failed[t->rank] = own < 0;
    int rc = collective_sum(t->coll, failed, t->ranks);
    if (rc < 0)
        return own < 0 ? err_set(own, "%s", text) : rc;
    for (uint32_t r = 0; own == 0 && r < t->ranks; r++)
        if (failed[r] > 0) {
            char who[48];
            own = err_set(ERR_FAILED,
                          "rank %u: %s did not come through the start of the sums over "
                          "the devices: see its log",
                          t->rank, exchange_who(x, r, who));
            snprintf(text, sizeof text, "%s", err_text());
        }
    if (own == 0)
        return 0;
    rc = exchange_pairs(x, pairs, sizeof pairs);
    if (rc < 0)
        snprintf(pairs, sizeof pairs, "the test in pairs failed too: %.900s", err_text());
    return err_set(own, "%s%s%s", text, pairs[0] ? ". " : "", pairs);
}

/* With the error text as it was. */
static void end_quietly(struct exchange *x)
{
    char text[1536];
    snprintf(text, sizeof text, "%s", err_text());
    exchange_end(x);
    err_set(0, "%s", text);
}

static int connect_devices(struct exchange *x)
{
    trainer_t *t = x->t;
    const double patience = collective_patience(t->coll);
    set_environment(x);
    int rc = pin_counters(x);
    if (rc < 0)
        return rc;
    collective_deadline(t->coll, t->o->init_timeout);
    rc = stages(x);
    /* What this rank cannot join any more must not look open to the others. */
    if (rc < 0 && x->has_comm)
        end_quietly(x);
    /* Another rank may still be in its last stage when this one concludes. */
    collective_deadline(t->coll, 1.25 * t->o->init_timeout + 2 * EXCHANGE_CLOSE_S);
    if (rc != ERR_GONE)
        rc = conclude(x, rc);
    collective_deadline(t->coll, patience);
    x->connected = rc == 0;
    return rc;
}

static int share_device_numbers(struct exchange *x)
{
    trainer_t *t = x->t;
    double one[WIRE_RANKS] = {0};
    one[t->rank] = t->ops->async ? t->w->welcome.device + 1 : 0;
    int rc = collective_sum(t->coll, one, t->ranks);
    for (uint32_t r = 0; r < t->ranks; r++)
        x->device[r] = (int32_t)one[r] - 1; /* DEVICE_CPU is -1 */
    return rc;
}

int exchange_open(trainer_t *t)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(ERR_ENV, "rank %u: out of memory", t->rank);
    t->exchange = x;
    x->t = t;
    x->slot = x->watched = -1;
    x->buckets = exchange_cut(t->graph, MEMORY_EXTRA, EXCHANGE_FLOATS, x->bucket);
    if (t->ranks == 1)
        return 0;
    const double patience = collective_patience(t->coll);
    if (t->ops->async)
        collective_deadline(t->coll, t->o->init_timeout);
    int rc = share_device_numbers(x);
    if (rc == 0)
        rc = exchange_agree(x);
    collective_deadline(t->coll, patience);
    if (rc < 0)
        return rc;
    return t->ops->async ? connect_devices(x) : 0;
}

/* ---- the end ---- */

/* Outlives exchange_end where the call does not return. */
typedef struct {
    k_dev_t *dev;
    pthread_t thread;
} closer_t;

static void *close_comm(void *arg)
{
    closer_t *c = arg;
    c->dev->ops->comm_close(c->dev, 1);
    return NULL;
}

/* Always an abort, which waits for nobody; a clean end would wait for ranks that still write their
 * checkpoint, and for ever for one that died (hangs.md 2). Recorded steps first, also one whose
 * recording was cut short: with one of them alive it does not return (facts/gpu.md). */
int exchange_end(struct exchange *x)
{
    trainer_t *t = x->t;
    struct timespec until;
    x->connected = 0;
    if (x->slot >= 0)
        t->ops->captured(t->dev);
    t->ops->forget(t->dev, K_GRAPHS);
    closer_t *c = malloc(sizeof *c);
    if (c)
        c->dev = t->dev;
    if (!c || pthread_create(&c->thread, NULL, close_comm, c) != 0) {
        free(c);
        x->stuck = 1; /* not without a deadline: left to the end of the process */
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += EXCHANGE_CLOSE_S;
    x->has_comm = 0;
    if (pthread_clockjoin_np(c->thread, NULL, CLOCK_MONOTONIC, &until) == 0) {
        free(c);
        return 0;
    }
    pthread_detach(c->thread);
    x->stuck = 1;
    return 1;
}

/* A rank that goes right after its own last sum may leave another's unfinished (facts/gpu.md). */
static void await_peers(struct exchange *x)
{
    trainer_t *t = x->t;
    const struct timespec pause = {.tv_nsec = 2000000};
    const uint64_t until = clock_ns() + EXCHANGE_PEERS_S * 1000000000ull;
    uint64_t mine = atomic_load_explicit(&x->gpu->completed, memory_order_relaxed);
    for (uint32_t r = 0; r < t->ranks;) {
        const board_gpu_t *g = board_gpu(t->w->board, r);
        if (atomic_load_explicit(&g->completed, memory_order_relaxed) >= mine) {
            r++;
            continue;
        }
        if (clock_ns() > until || collective_look(t->coll) < 0)
            return;
        nanosleep(&pause, NULL);
    }
}

/* The libraries' own clean-up would wait for the device, as the helper thread still does. */
static void leave_at_once(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    _exit(status);
}

void exchange_close(trainer_t *t)
{
    struct exchange *x = t->exchange;
    char text[2048];
    if (!x)
        return;
    /* The run's last words are the caller's to say. */
    snprintf(text, sizeof text, "%s", err_text());
    if (x->connected && !x->failed)
        await_peers(x);
    if (x->has_comm && !x->stuck)
        exchange_end(x);
    if (x->stuck) {
        log_line(LOG_WARN,
                 "rank %u: the device did not end its sums within %d s: it is left to the end of "
                 "the process",
                 t->rank, EXCHANGE_CLOSE_S);
        on_exit(leave_at_once, NULL);
        t->dev = NULL;
    } else if (x->gpu) {
        t->ops->unpin(t->dev, x->gpu);
    }
    err_set(0, "%s", text);
    free(x);
    t->exchange = NULL;
}
