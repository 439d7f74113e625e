#include "trainer/save.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/report.h"
#include "trainer/trainer.h"

#include <stdio.h>
#include <string.h>

/* A request waits so long for the scribe to finish the checkpoint before it. */
enum { SAVE_PATIENCE_S = 30 };

static uint64_t period_ns(const struct trainer *t)
{
    /* save=False keeps what the run ends with and no more. */
    return t->rank == 0 && t->o->save ? (uint64_t)(t->o->save_minutes * 60e9) : 0;
}

void save_begin(struct trainer *t)
{
    uint64_t period = period_ns(t);
    t->save.due_ns = period ? clock_ns() + period : 0;
}

static void answer(struct trainer *t, uint32_t number, int status, const char *text)
{
    wire_checkpoint_t m;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_CHECKPOINT, sizeof m);
    m.number = number;
    m.status = status;
    snprintf(m.text, sizeof m.text, "%s", text);
    t->save.answered = number;
    if (report_send(t, &m, sizeof m) < 0)
        log_line(LOG_INFO, "the request for a checkpoint was not answered: %s", err_text());
}

static int is_asked(const trainer_save_t *s)
{
    return s->wanted > s->taken && s->wanted > s->answered;
}

int save_is_due(struct trainer *t)
{
    trainer_save_t *s = &t->save;
    if (t->rank != 0 || !t->snapshot)
        return 0;
    uint64_t now = clock_ns();
    int asked = is_asked(s);
    int timed = s->due_ns && now >= s->due_ns;
    if (!asked && !timed)
        return 0;
    if (snapshot_pending(t->snapshot) == 0)
        return 1;
    if (timed) {
        log_line(LOG_WARN,
                 "no checkpoint after %g minutes (save_minutes): the scribe is still writing the "
                 "last one; the disk of the run directory does not keep up",
                 t->o->save_minutes);
        s->due_ns = now + period_ns(t);
    }
    if (asked && (now - s->asked_ns) / 1000000000 >= SAVE_PATIENCE_S)
        answer(t, s->wanted, ERR_TIMEOUT,
               "no checkpoint was written: the scribe is still writing the one before; the disk of "
               "the run directory does not keep up");
    return 0;
}

void save_request(struct trainer *t, const wire_checkpoint_t *m)
{
    t->save.wanted = m->number;
    t->save.asked_ns = clock_ns();
    if (!t->snapshot)
        answer(t, m->number, ERR_FAILED, "this run keeps no checkpoints");
}

void save_taken(struct trainer *t, uint32_t epoch, uint64_t position)
{
    trainer_save_t *s = &t->save;
    s->taken = s->wanted;
    if (s->due_ns)
        s->due_ns = clock_ns() + period_ns(t);
    if (position == 0)
        snprintf(s->what, sizeof s->what, "%u of %u epochs done", epoch, t->plan->epochs);
    else if (position < t->plan->n_train)
        snprintf(s->what, sizeof s->what, "epoch %u of %u, %llu of %u images trained on", epoch + 1,
                 t->plan->epochs, (unsigned long long)position, t->plan->n_train);
    else
        snprintf(s->what, sizeof s->what, "epoch %u of %u, trained and not yet validated",
                 epoch + 1, t->plan->epochs);
}

void save_left_out(struct trainer *t, const char *why)
{
    trainer_save_t *s = &t->save;
    char text[WIRE_TEXT];
    if (s->due_ns)
        s->due_ns = clock_ns() + period_ns(t);
    snprintf(text, sizeof text, "no checkpoint was written: %.450s", why);
    if (is_asked(s))
        answer(t, s->wanted, ERR_TIMEOUT, text);
}

void save_settle(struct trainer *t)
{
    trainer_save_t *s = &t->save;
    char text[WIRE_TEXT];
    if (!t->snapshot || s->taken <= s->answered || snapshot_pending(t->snapshot) > 0)
        return;
    const char *failure = snapshot_failure(t->snapshot);
    if (failure)
        snprintf(text, sizeof text, "no checkpoint was written (%s): %.300s", s->what, failure);
    else
        snprintf(text, sizeof text, "a checkpoint is written: %s; resume=%.250s goes on from it",
                 s->what, t->w->welcome.run_dir);
    answer(t, s->taken, failure ? ERR_FAILED : 0, text);
}
