#include "trainer/checkpoint.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"
#include "trainer/report.h"
#include "trainer/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    CHECKPOINT_PATIENCE_S = 30, /* what an ordinary snapshot waits for a late disk */
    CHECKPOINT_LEDGER_S = 10,   /* for entries on their way from the coordinator */
    CHECKPOINT_END_S = 600,     /* for the disk at the end of a run that nobody has asked to stop */
};

/* ---- restore ---- */

/* Number of the last iteration before the place where the state was taken: the epoch's first
 * iteration has another number with another batch. */
static int64_t last_iteration(const trainer_t *t, const checkpoint_state_t *s)
{
    plan_t at = *t->plan;
    at.first_epoch = s->epoch;
    at.first_position = s->position;
    uint32_t next = s->position < at.n_train ? plan_first_step(&at, s->epoch) : t->schedule.steps;
    return (int64_t)t->schedule.steps * s->epoch + next - 1;
}

/* A run in float16 that goes on from another format begins with the scale of step_init. */
static int restore_scaling(trainer_t *t, const checkpoint_state_t *s)
{
    k_scaling_t scaling;
    int rc = trainer_download(t, &scaling, t->mem.norm, sizeof scaling);
    if (rc < 0)
        return rc;
    if (s->scaled && t->mem.format == K_F16) {
        scaling.scale = s->scaling.scale;
        scaling.good = s->scaling.good;
    }
    scaling.skipped = s->scaling.skipped;
    return trainer_upload(t, t->mem.norm, &scaling, sizeof scaling);
}

int checkpoint_restore(trainer_t *t, const checkpoint_state_t *s)
{
    const memory_map_t *m = &t->mem;
    /* More ranks than the run had: the new ones go on with the statistics of the first. */
    uint32_t from = t->rank < s->ranks ? t->rank : 0;
    /* Accumulation counts batches: gradients of batches of another size do not add up with ours. */
    uint32_t pending = s->batch == t->plan->batch ? s->pending : 0;
    /* Nor do those with a scale and those without. */
    const int scaled = m->format == K_F16;
    if (s->scaled != scaled)
        pending = 0;
    const char *buffers = (const char *)s->rank_buffers + from * m->buffer_bytes;
    int rc = trainer_upload(t, m->train.weights, s->weights, m->weight_bytes);
    if (rc == 0)
        rc = trainer_upload(t, m->train.buffers, buffers, m->buffer_bytes);
    if (rc == 0)
        rc = trainer_upload(t, m->m, s->m, m->weight_bytes);
    if (rc == 0 && m->v != K_NONE)
        rc = trainer_upload(t, m->v, s->v, m->weight_bytes);
    if (rc == 0)
        rc = trainer_upload(t, m->ema.weights, s->ema_weights, m->weight_bytes);
    if (rc == 0)
        rc = trainer_upload(t, m->ema.buffers, s->ema_buffers, m->buffer_bytes);
    /* Pending gradients are the sum over all ranks: rank 0 carries them (see gather). */
    if (rc == 0 && pending > 0 && t->rank == 0)
        rc = trainer_upload(t, m->train.grads, s->grads, m->weight_bytes);
    if (rc == 0)
        rc = restore_scaling(t, s);
    if (rc < 0)
        return err_add(rc, "restoring");
    t->progress = s->progress;
    t->progress.last_ni = last_iteration(t, s);
    t->progress.last_opt_step = t->progress.last_ni - (int64_t)pending;
    if (t->rank != 0)
        t->progress.stream = (stream_digest_t){0, 0}; /* rank 0 has the sum */
    t->items = s->items;
    return 0;
}

/* ---- take ---- */

/* Host copies of everything that a snapshot holds; one block. */
typedef struct {
    char *block;
    void *weights, *m, *v, *grads, *ema_weights, *ema_buffers, *rank_buffers;
    k_scaling_t scaling;
    uint32_t pending;
    uint32_t ledger; /* newest entry that a consumed cell of any rank may depend on */
    int64_t *entries;
    uint32_t n_entries;
} regions_t;

/* Gradients of an accumulation that is not finished: summed over the ranks now and carried on by
 * rank 0 alone, so that the uninterrupted run and a resumed one add the same numbers. */
static int gather_pending(trainer_t *t, regions_t *r)
{
    r->pending = (uint32_t)(t->progress.last_ni - t->progress.last_opt_step);
    if (r->pending == 0)
        return 0;
    int rc = collective_allreduce(t->coll, t->dev, t->mem.train.grads, t->sizes->weights);
    if (rc == 0 && t->rank != 0)
        rc = trainer_check(t, t->ops->zero(t->dev, t->mem.train.grads, t->mem.weight_bytes),
                           "zeroing gradients");
    return rc;
}

static int gather_ledger(trainer_t *t, regions_t *r)
{
    double used[WIRE_RANKS] = {0};
    used[t->rank] = t->ledger_used;
    int rc = collective_sum(t->coll, used, t->ranks);
    for (uint32_t i = 0; i < t->ranks; i++)
        if (used[i] > r->ledger)
            r->ledger = (uint32_t)used[i];
    return rc;
}

/* BN statistics of every rank, in order of rank; *all is malloc'ed on rank 0. */
static int gather_buffers(trainer_t *t, void **all)
{
    uint64_t sizes[WIRE_RANKS], bytes = t->mem.buffer_bytes;
    void *own = malloc(bytes);
    if (!own)
        return err_set(ERR_ENV, "rank %u: out of memory for BN statistics", t->rank);
    int rc = trainer_download(t, own, t->mem.train.buffers, bytes);
    if (rc == 0)
        rc = collective_gather(t->coll, own, bytes, all, sizes);
    free(own);
    return rc;
}

static int copy_out(trainer_t *t, regions_t *r)
{
    const memory_map_t *m = &t->mem;
    uint64_t w = m->weight_bytes, b = m->buffer_bytes;
    int regions = 3 + (m->v != K_NONE) + (r->pending > 0);
    char *at = r->block = malloc((uint64_t)regions * w + b);
    if (!at)
        return err_set(ERR_ENV, "out of memory for a snapshot's copies (%.0f MB)",
                       (double)((uint64_t)regions * w + b) / 1e6);
    struct {
        void **host;
        k_at from;
        uint64_t bytes;
        int wanted;
    } copies[] = {
        {&r->weights, m->train.weights, w, 1},   {&r->m, m->m, w, 1},
        {&r->v, m->v, w, m->v != K_NONE},        {&r->grads, m->train.grads, w, r->pending > 0},
        {&r->ema_weights, m->ema.weights, w, 1}, {&r->ema_buffers, m->ema.buffers, b, 1},
    };
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof copies / sizeof copies[0]; i++) {
        if (!copies[i].wanted)
            continue;
        *copies[i].host = at;
        at += copies[i].bytes;
        rc = trainer_download(t, *copies[i].host, copies[i].from, copies[i].bytes);
    }
    return rc < 0 ? rc : trainer_download(t, &r->scaling, m->norm, sizeof r->scaling);
}

/* The ledger as it is known here, as numbers for the file. */
static int copy_ledger(const trainer_t *t, regions_t *r)
{
    r->n_entries = t->ledger ? ledger_count(t->ledger) : 0;
    r->entries = calloc((size_t)r->n_entries * CHECKPOINT_LEDGER + 1, sizeof *r->entries);
    if (!r->entries)
        return err_set(ERR_ENV, "out of memory for %u ledger entries", r->n_entries);
    for (uint32_t i = 0; i < r->n_entries; i++) {
        const wire_ledger_t *e = ledger_at(t->ledger, i);
        const int64_t row[CHECKPOINT_LEDGER] = {
            e->split, e->sample, e->substitute, e->from_epoch, e->only, (int64_t)e->from_position};
        memcpy(r->entries + (size_t)i * CHECKPOINT_LEDGER, row, sizeof row);
    }
    return 0;
}

static int put_weights(trainer_t *t, const checkpoint_point_t *p, const regions_t *r,
                       const char *args)
{
    safetensors_writer_t *w;
    int rc = safetensors_writer_new(&w);
    if (rc < 0)
        return rc;
    rc = checkpoint_weights_image(t->graph, r->ema_weights, r->ema_buffers, t->progress.batches,
                                  p->epoch, t->train_plan.stride, t->w->catalog, args, w);
    if (rc == 0)
        rc = snapshot_add(t->snapshot, w, "weights/last.safetensors",
                          p->is_best ? "weights/best.safetensors" : NULL);
    safetensors_writer_free(&w);
    /* facts/yolo.md 6.8: N is 0-based, so epoch0 is written. */
    if (rc == 0 && p->whole && t->o->save_period > 0 &&
        p->epoch % (uint32_t)t->o->save_period == 0) {
        char path[64];
        snprintf(path, sizeof path, "weights/epoch%u.safetensors", p->epoch);
        rc = snapshot_again(t->snapshot, path);
    }
    return rc;
}

static int put_state(trainer_t *t, const checkpoint_point_t *p, const regions_t *r)
{
    checkpoint_state_t s = {
        .weights = r->weights,
        .m = r->m,
        .v = r->v,
        .grads = r->grads,
        .ema_weights = r->ema_weights,
        .ema_buffers = r->ema_buffers,
        .rank_buffers = r->rank_buffers,
        .ranks = t->ranks,
        .batch = t->plan->batch,
        .epoch = p->next_epoch,
        .position = p->position,
        .finished = (uint32_t)p->finished,
        .pending = r->pending,
        .sgd = t->mem.v == K_NONE,
        .threads = t->w->welcome.threads,
        .ledger = r->entries,
        .ledger_count = r->n_entries,
        .choices = t->choices,
        .scaled = t->mem.format == K_F16,
        .scaling = r->scaling,
        .items = t->items,
        .seed = t->plan->seed,
        .list_digest = t->w->catalog ? catalog_digest(t->w->catalog) : 0,
        .progress = t->progress,
    };
    s.progress.seconds = report_seconds(t);
    safetensors_writer_t *w;
    int rc = safetensors_writer_new(&w);
    if (rc < 0)
        return rc;
    rc = checkpoint_state_image(t->graph, &s, w);
    if (rc == 0)
        rc = snapshot_add(t->snapshot, w, WIRE_STATE_PATH, NULL);
    safetensors_writer_free(&w);
    return rc;
}

static int send_image(void *user, const wire_snapshot_t *m)
{
    return report_send(user, m, sizeof *m);
}

/* 1 when done() holds, 0 when it does not within the given time; messages are handled meanwhile and
 * the board shows progress, so that the other ranks' patience does not end. */
static int wait_until(trainer_t *t, double seconds, int (*done)(const trainer_t *t))
{
    uint64_t since = clock_ns();
    for (uint64_t looks = 0;; looks++) {
        const struct timespec pause = {.tv_nsec = 5000000};
        int rc = t->poll(t);
        if (rc < 0)
            return rc;
        if (done(t))
            return 1;
        if ((double)(clock_ns() - since) / 1e9 > seconds)
            return 0;
        board_progress(t->w->page, looks, 0);
        nanosleep(&pause, NULL);
    }
}

static int write_files(trainer_t *t, const checkpoint_point_t *p, regions_t *r)
{
    char *args = malloc(OPTIONS_YAML_BYTES);
    if (!args)
        return err_set(ERR_ENV, "out of memory for the run's options");
    int rc = options_dump_yaml(t->o, args, OPTIONS_YAML_BYTES);
    if (rc >= 0)
        rc = copy_out(t, r);
    if (rc >= 0)
        rc = copy_ledger(t, r);
    if (rc >= 0)
        rc = snapshot_begin(t->snapshot, p->epoch);
    if (rc == 0)
        rc = put_weights(t, p, r, args);
    KILL_POINT(CHECKPOINT_HALF);
    if (rc == 0)
        rc = put_state(t, p, r);
    if (rc == 0)
        rc = snapshot_commit(t->snapshot, send_image, t);
    if (rc == 0)
        save_taken(t, p->next_epoch, p->position);
    /* A coordinator that is silent does not end training (design 6), unless this is the last one.
     */
    if (rc == ERR_TIMEOUT && !p->must) {
        log_line(LOG_WARN, "no checkpoint of epoch %u%s: %s", p->epoch + 1,
                 p->is_best ? ", although it is the best so far" : "", err_text());
        save_left_out(t, err_text());
        rc = 0;
    }
    free(args);
    return rc;
}

static int has_room(const trainer_t *t)
{
    return snapshot_has_room(t->snapshot);
}

static int ledger_is_here(const trainer_t *t)
{
    return !t->ledger || ledger_count(t->ledger) >= t->ledger_used;
}

/* Every entry that the images trained on may depend on: without one of them the state would lead to
 * other batches. */
static int await_ledger(trainer_t *t, const checkpoint_point_t *p, const regions_t *r)
{
    if (r->ledger > t->ledger_used)
        t->ledger_used = r->ledger;
    int rc = wait_until(t, CHECKPOINT_LEDGER_S, ledger_is_here);
    if (rc != 0)
        return rc;
    err_set(ERR_TIMEOUT,
            "%u of %u ledger entries have come from the coordinator within %d s: is it stopped?",
            ledger_count(t->ledger), t->ledger_used, CHECKPOINT_LEDGER_S);
    if (p->must)
        return ERR_TIMEOUT;
    log_line(LOG_WARN, "no checkpoint of epoch %u: %s", p->epoch + 1, err_text());
    save_left_out(t, err_text());
    return 0;
}

/* A stop does not wait for a checkpoint that may be left out. */
static int has_room_or_stop(const trainer_t *t)
{
    return has_room(t) || t->w->stop;
}

/* Said once, and again when the disk has caught up; until then nobody waits for it again. */
static void leave_out(trainer_t *t, const checkpoint_point_t *p)
{
    if (t->left_out++ == 0)
        log_line(LOG_WARN,
                 "no checkpoint of epoch %u%s, nor of those that follow until the disk of the run "
                 "directory has caught up: the scribe is still writing the two before it",
                 p->epoch + 1, p->is_best ? " although it is the best so far" : "");
}

/* What the last checkpoint may wait for the disk: a stop has its deadline, a run that is done only a
 * disk that may be slow. */
static double last_patience(const trainer_t *t)
{
    return trainer_wants_stop(t) ? t->o->stop_deadline : CHECKPOINT_END_S;
}

static int take_on_rank0(trainer_t *t, const checkpoint_point_t *p, regions_t *r)
{
    double patience = p->must ? last_patience(t) : t->left_out ? 0 : CHECKPOINT_PATIENCE_S;
    int rc = await_ledger(t, p, r);
    if (rc <= 0)
        return rc;
    rc = wait_until(t, patience, p->must ? has_room : has_room_or_stop);
    if (rc < 0)
        return rc;
    rc = has_room(t);
    if (rc == 0 && p->must)
        return err_set(
            ERR_FAILED,
            "the last checkpoint could not be written: the scribe has not finished the two "
            "before it within %.0f s; the disk of the run directory does not keep up",
            patience);
    if (rc == 0) {
        leave_out(t, p);
        return 0;
    }
    if (t->left_out)
        log_line(LOG_WARN, "the disk has caught up: %u checkpoints were left out", t->left_out);
    t->left_out = 0;
    return write_files(t, p, r);
}

int checkpoint_take(trainer_t *t, const checkpoint_point_t *p)
{
    regions_t r;
    memset(&r, 0, sizeof r);
    board_set_phase(t->w->page, BOARD_CHECKPOINT);
    KILL_POINT(CHECKPOINT_AGREED);
    int rc = step_settle(t);
    if (rc == 0)
        rc = gather_pending(t, &r);
    if (rc == 0)
        rc = gather_ledger(t, &r);
    if (rc == 0)
        rc = step_gather_stream(t);
    if (rc == 0)
        rc = gather_buffers(t, &r.rank_buffers);
    if (rc == 0 && t->rank == 0 && t->snapshot)
        rc = take_on_rank0(t, p, &r);
    free(r.rank_buffers);
    free(r.block);
    free(r.entries);
    return rc < 0 ? err_add(rc, "checkpoint of epoch %u", p->epoch + 1) : 0;
}

static int all_answered(const trainer_t *t)
{
    return snapshot_pending(t->snapshot) == 0;
}

int checkpoint_settle(trainer_t *t)
{
    if (!t->snapshot)
        return 0;
    board_set_phase(t->w->page, BOARD_CHECKPOINT);
    double patience = last_patience(t);
    int rc = wait_until(t, patience, all_answered);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return err_set(
            ERR_FAILED,
            "%u files of the last checkpoint were not written within %.0f s: the disk of "
            "the run directory does not answer",
            snapshot_pending(t->snapshot), patience);
    const char *failure = snapshot_failure(t->snapshot);
    return failure ? err_set(ERR_FAILED, "%s", failure) : 0;
}
