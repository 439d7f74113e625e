#include "trainer/run.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/checkpoint.h"
#include "trainer/report.h"
#include "trainer/setup.h"
#include "trainer/step.h"
#include "trainer/trainer.h"
#include "trainer/validate.h"

#include <string.h>

static int on_message(void *user, const bus_message_t *m)
{
    trainer_t *t = user;
    if (m->type != WIRE_SAVED || !t->snapshot)
        return 0;
    wire_saved_t saved;
    memcpy(&saved, m->frame, sizeof saved);
    snapshot_saved(t->snapshot, &saved);
    if (saved.status < 0)
        log_line(LOG_INFO, "%s was not written: %s", saved.path, saved.text); /* told already */
    return 0;
}

static int run_poll(trainer_t *t)
{
    int rc = worker_poll(t->w, 0, on_message, t);
    if (rc < 0)
        return rc;
    if (t->w->stop && t->w->stop_message.why != WIRE_STOP_USER)
        return err_set(ERR_GONE, "rank %u: the run is being ended", t->rank);
    return 0;
}

/* Rank 0's judgement of an epoch, told to all (facts/yolo.md 4.7, 6.6). */
static int judge(trainer_t *t, report_epoch_t *e)
{
    trainer_progress_t *p = &t->progress;
    int last = e->epoch + 1 == t->plan->epochs;
    if (t->rank == 0 && e->validated) {
        if (p->best_epoch < 0 || e->ap.fitness > p->best_fitness) {
            p->best_fitness = e->ap.fitness;
            p->best_epoch = (int32_t)e->epoch;
        }
        /* A tie overwrites best, but the best fitness rises on a strict improvement only. */
        e->is_best = e->ap.fitness == p->best_fitness;
        e->early_stop = early_stop_update(&p->early, (int32_t)e->epoch, e->ap.fitness) && !last;
    } else if (t->rank == 0) {
        /* A run without validation has one candidate: what it ends with. */
        e->is_best = last && p->best_epoch < 0;
    }
    double decision[2] = {e->early_stop, e->is_best};
    int rc = collective_broadcast(t->coll, decision, sizeof decision, 0);
    e->early_stop = decision[0] > 0;
    e->is_best = decision[1] > 0;
    return rc;
}

/* *leave: the run is over. */
static int end_epoch(trainer_t *t, const plan_batch_t *b, int *leave)
{
    report_epoch_t e = {.epoch = b->epoch, .validated = b->phase == PLAN_VAL};
    int rc = e.validated ? validate_end(t, &e.ap, e.val_items) : 0;
    if (rc == 0)
        rc = judge(t, &e);
    if (rc == 0 && t->rank == 0)
        rc = report_epoch_end(t, &e);
    if (rc < 0)
        return rc;
    *leave = e.early_stop || e.epoch + 1 == t->plan->epochs;
    if (e.early_stop && t->rank == 0)
        log_line(LOG_INFO, "no improvement since epoch %d: stopping after epoch %u (patience=%d)",
                 t->progress.early.best_epoch + 1, e.epoch + 1, t->o->patience);
    /* save=False keeps only what the run ends with. */
    if (!t->o->save && !*leave)
        return 0;
    const checkpoint_point_t point = {.epoch = e.epoch,
                                      .next_epoch = e.epoch + 1,
                                      .finished = *leave,
                                      .is_best = e.is_best,
                                      .whole = 1,
                                      .must = *leave};
    return checkpoint_take(t, &point);
}

/* The user's stop, agreed by all ranks after the same step. */
static int leave_on_request(trainer_t *t, const plan_batch_t *b)
{
    const checkpoint_point_t point = {
        .epoch = b->epoch, .next_epoch = b->epoch, .whole = 0, .must = 1};
    int rc = checkpoint_take(t, &point);
    if (rc == 0 && t->rank == 0)
        rc = checkpoint_settle(t);
    if (rc < 0)
        return rc;
    if (t->rank == 0)
        log_line(LOG_INFO,
                 "stopped in epoch %u: a resume starts that epoch again from its beginning",
                 b->epoch + 1);
    return err_set(
        ERR_STOPPED,
        "stopped by the user in epoch %u of %u, %s %u of %u, after a checkpoint: a resume "
        "starts that epoch again from its beginning",
        b->epoch + 1, t->plan->epochs, b->phase == PLAN_TRAIN ? "step" : "validation batch",
        b->step + 1, b->steps);
}

/* 1 when b is the last batch of its epoch, validation included. */
static int ends_epoch(const trainer_t *t, const plan_batch_t *b)
{
    if (b->step + 1 < b->steps)
        return 0;
    return b->phase == PLAN_VAL || !plan_validates(t->plan, b->epoch);
}

static int run_batches(trainer_t *t)
{
    int leave = 0, stop = 0;
    for (t->seq = 0; !leave; t->seq++) {
        plan_batch_t b = plan_locate(t->plan, t->seq);
        int rc = 0;
        if (b.phase == PLAN_END)
            break;
        if (b.phase == PLAN_VAL && b.step == 0)
            rc = validate_begin(t);
        if (rc == 0)
            rc = b.phase == PLAN_TRAIN ? step_train(t, &b, &stop) : validate_batch(t, &b, &stop);
        if (rc == 0 && stop)
            return leave_on_request(t, &b);
        if (rc == 0 && ends_epoch(t, &b))
            rc = end_epoch(t, &b, &leave);
        if (rc < 0)
            return rc;
    }
    return t->rank == 0 ? checkpoint_settle(t) : 0;
}

static int say_ready(trainer_t *t)
{
    wire_plain_t m;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_READY, sizeof m);
    return report_send(t, &m, sizeof m);
}

int trainer_run(int argc, char **argv)
{
    worker_t w;
    trainer_t t;
    int rc = worker_start(argc, argv, BOARD_TRAINER, &w);
    if (rc < 0)
        return rc;
    memset(&t, 0, sizeof t);
    t.w = &w;
    t.poll = run_poll;
    t.progress.best_epoch = -1;
    early_stop_init(&t.progress.early, w.options.patience);
    CHECK_GOTO(setup_open(&t), rc, done);
    CHECK_GOTO(say_ready(&t), rc, done);
    t.report.since_ns = clock_ns();
    rc = run_batches(&t);
done:
    if (rc < 0 && rc != ERR_STOPPED)
        log_line(LOG_ERROR, "%s", err_text());
    setup_close(&t);
    worker_finish(&w, rc, rc < 0 ? err_text() : "");
    return rc;
}
