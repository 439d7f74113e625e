#include "trainer/run.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/checkpoint.h"
#include "trainer/evaluate.h"
#include "trainer/report.h"
#include "trainer/setup.h"
#include "trainer/step.h"
#include "trainer/trainer.h"
#include "trainer/validate.h"

#include <stdio.h>
#include <string.h>

static int on_saved(trainer_t *t, const wire_saved_t *saved)
{
    snapshot_saved(t->snapshot, saved);
    if (saved->status < 0)
        log_line(LOG_INFO, "%s was not written: %s", saved->path, saved->text); /* told already */
    save_settle(t);
    return 0;
}

static int on_message(void *user, const bus_message_t *m)
{
    trainer_t *t = user;
    if (m->type == WIRE_SAVED && t->snapshot) {
        wire_saved_t saved;
        memcpy(&saved, m->frame, sizeof saved);
        return on_saved(t, &saved);
    }
    if (m->type == WIRE_LEDGER && t->ledger) {
        wire_ledger_t entry;
        memcpy(&entry, m->frame, sizeof entry);
        return ledger_replay(t->ledger, &entry);
    }
    if (m->type == WIRE_FOUND)
        evaluate_taken(t);
    if (m->type == WIRE_CHECKPOINT && t->rank == 0) {
        wire_checkpoint_t request;
        memcpy(&request, m->frame, sizeof request);
        save_request(t, &request);
    }
    return 0;
}

static int run_poll(trainer_t *t)
{
    int rc = worker_poll(t->w, 0, on_message, t);
    if (rc < 0)
        return rc;
    if (t->w->stop && !trainer_wants_stop(t))
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

/* stop: the user's, agreed after the epoch's last batch. *leave: the run is over. */
static int end_epoch(trainer_t *t, const plan_batch_t *b, int stop, int *leave)
{
    report_epoch_t e = {.epoch = b->epoch, .validated = b->phase == PLAN_VAL};
    int rc = e.validated ? validate_end(t, &e.ap, e.val_items) : 0;
    if (rc == 0)
        rc = judge(t, &e);
    if (rc == 0)
        rc = step_gather_stream(t);
    if (rc == 0 && t->rank == 0)
        rc = report_epoch_end(t, &e);
    t->progress.stream = (stream_digest_t){0, 0};
    if (rc < 0)
        return rc;
    *leave = e.early_stop || e.epoch + 1 == t->plan->epochs;
    if (e.early_stop && t->rank == 0)
        log_line(LOG_INFO, "no improvement since epoch %d: stopping after epoch %u (patience=%d)",
                 t->progress.early.best_epoch + 1, e.epoch + 1, t->o->patience);
    /* save=False keeps only what the run ends with. */
    if (!t->o->save && !*leave && !stop)
        return 0;
    const checkpoint_point_t point = {.epoch = e.epoch,
                                      .next_epoch = e.epoch + 1,
                                      .finished = *leave,
                                      .is_best = e.is_best,
                                      .whole = 1,
                                      .must = *leave || stop};
    return checkpoint_take(t, &point);
}

/* The user's stop, agreed by all ranks, after a checkpoint with `position` samples of b's epoch
 * consumed. where: the place in the epoch, for a person. */
static int leave_at(trainer_t *t, const plan_batch_t *b, uint64_t position, const char *where)
{
    const checkpoint_point_t point = {
        .epoch = b->epoch, .next_epoch = b->epoch, .position = position, .must = 1};
    int rc = checkpoint_take(t, &point);
    if (rc == 0 && t->rank == 0)
        rc = checkpoint_settle(t);
    if (rc < 0)
        return rc;
    return err_set(
        ERR_STOPPED,
        "stopped by the user in epoch %u of %u, %s, after a checkpoint: a resume goes on "
        "%s",
        b->epoch + 1, t->plan->epochs, where,
        position < t->plan->n_train ? "from there" : "with the epoch's validation");
}

static int leave_after(trainer_t *t, const plan_batch_t *b)
{
    char where[96];
    snprintf(where, sizeof where, "%s %u of %u",
             b->phase == PLAN_TRAIN ? "step" : "validation batch", b->step + 1, b->steps);
    return leave_at(t, b, plan_consumed(t->plan, b), where);
}

/* The stop's time runs out and b has not come. One rank alone is at a step's beginning and can say
 * so; of several, some may be in the middle of the step, and the last checkpoint has to do. */
static int leave_without(trainer_t *t, const plan_batch_t *b)
{
    char where[96], why[WIRE_TEXT];
    if (t->ranks > 1)
        return err_add(ERR_STOPPED,
                       "no checkpoint at the stop, a resume goes on from the last one");
    snprintf(why, sizeof why, "%s", err_text());
    log_line(LOG_WARN, "%s", why);
    snprintf(where, sizeof where, "waiting for the images of %s %u of %u",
             b->phase == PLAN_TRAIN ? "step" : "validation batch", b->step + 1, b->steps);
    uint64_t position = b->phase == PLAN_TRAIN ? plan_position(t->plan, b, 0, 0) : t->plan->n_train;
    return leave_at(t, b, position, where);
}

/* save_minutes, or somebody asked. */
static int save_after(trainer_t *t, const plan_batch_t *b)
{
    const checkpoint_point_t point = {
        .epoch = b->epoch, .next_epoch = b->epoch, .position = plan_consumed(t->plan, b)};
    return checkpoint_take(t, &point);
}

/* 1 when b is the last batch of its epoch, validation included. */
static int ends_epoch(const trainer_t *t, const plan_batch_t *b)
{
    if (b->step + 1 < b->steps)
        return 0;
    return b->phase == PLAN_VAL || !plan_validates(t->plan, b->epoch);
}

/* One batch, and what is due behind it. */
static int run_batch(trainer_t *t, const plan_batch_t *b, int *leave)
{
    int asked = 0, rc = 0;
    if (b->phase == PLAN_VAL && b->step == 0)
        rc = validate_begin(t);
    if (rc == 0)
        rc = b->phase == PLAN_TRAIN ? step_train(t, b, &asked) : validate_batch(t, b, &asked);
    if (rc == ERR_STOPPED)
        return leave_without(t, b);
    if (rc < 0)
        return rc;
    if (!ends_epoch(t, b)) {
        if (asked & TRAINER_STOP)
            return leave_after(t, b);
        return asked & TRAINER_SAVE ? save_after(t, b) : 0;
    }
    rc = end_epoch(t, b, asked & TRAINER_STOP, leave);
    if (rc == 0 && (asked & TRAINER_STOP) && !*leave) {
        rc = t->rank == 0 ? checkpoint_settle(t) : 0;
        if (rc == 0)
            rc = err_set(ERR_STOPPED,
                         "stopped by the user after epoch %u of %u, after a checkpoint: a resume "
                         "goes on with epoch %u",
                         b->epoch + 1, t->plan->epochs, b->epoch + 2);
    }
    return rc;
}

static int run_batches(trainer_t *t)
{
    const plan_t *plan = t->plan;
    int leave = 0, rc = 0;
    save_begin(t);
    /* Trained, and to be validated when the run was stopped; validation was turned off since. */
    const plan_batch_t trained = {.phase = PLAN_TRAIN, .epoch = plan->first_epoch};
    if (plan->first_position >= plan->n_train && !plan_validates(plan, plan->first_epoch))
        rc = end_epoch(t, &trained, 0, &leave);
    for (t->seq = 0; rc == 0 && !leave; t->seq++) {
        plan_batch_t b = plan_locate(plan, t->seq);
        if (b.phase == PLAN_END)
            break;
        rc = run_batch(t, &b, &leave);
    }
    return rc == 0 && t->rank == 0 ? checkpoint_settle(t) : rc;
}

static int say_ready(trainer_t *t)
{
    struct {
        wire_plain_t m;
        char text[sizeof t->note];
    } frame;
    const size_t bytes = strlen(t->note);
    memset(&frame, 0, sizeof frame);
    wire_begin(&frame, WIRE_READY, sizeof frame.m + bytes);
    memcpy(frame.text, t->note, bytes);
    return report_send(t, &frame, sizeof frame.m + bytes);
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
    rc = t.o->mode == OPT_MODE_TRAIN ? run_batches(&t) : evaluate_run(&t);
    if (t.o->mode == OPT_MODE_TRAIN && (rc == 0 || rc == ERR_STOPPED))
        report_shares(&t);
done:
    if (rc < 0 && rc != ERR_STOPPED)
        log_line(LOG_ERROR, "%s", err_text());
    setup_close(&t);
    worker_finish(&w, rc, rc < 0 ? err_text() : "");
    return rc;
}
