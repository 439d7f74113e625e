/* What is done to a run. */
#include "tests/soak/play.h"

#include "tests/soak/process.h"
#include "tests/soak/say.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Loaders that may be killed without an image made in between: below the coordinator's RUN_DEATHS,
 * which takes loaders that die without end for a fault of the run. */
enum { KILLS_IN_A_ROW = 3, VICTIMS = 3 };

/* The run as it is; ACT_NOT while it cannot be asked: starting, or at its end. */
static act_result_t look(play_t *p, seen_t *seen)
{
    int rc = run_look(&p->run, seen);
    if (rc < 0 && !run_ended(&p->run, 0))
        return say_violation("the coordinator did not answer");
    return rc == 1 ? ACT_DONE : ACT_NOT;
}

/* ---- kills that a run survives ---- */

/* Every victim has a successor that has joined. 1, 0 not yet, -1 the run has ended. */
static int replaced(play_t *p, const seen_process_t *victims, int n)
{
    seen_t seen;
    int found = 0;
    if (run_ended(&p->run, 0))
        return -1;
    if (run_look(&p->run, &seen) != 1)
        return 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < seen.n; k++)
            found += strcmp(seen.process[k].name, victims[i].name) == 0 &&
                     seen.process[k].pid != victims[i].pid && seen.process[k].pid > 0 &&
                     strcmp(seen.process[k].phase, "starting") != 0;
    return found == n;
}

static act_result_t kill_loaders(play_t *p, uint32_t most, double *seconds)
{
    seen_process_t victims[VICTIMS];
    char names[192] = "";
    seen_t seen;
    act_result_t rc = look(p, &seen);
    if (rc != ACT_DONE || strcmp(seen.state, "training") != 0)
        return rc < 0 ? rc : ACT_NOT;
    if (seen.images > p->images_at_kill)
        p->kills_since = 0;
    int there = seen_count(&seen, "loader-"), n = 0;
    uint32_t first = draw_whole(&p->draw, 0, 1000);
    for (; n < (int)most && n < there && p->kills_since < KILLS_IN_A_ROW; n++, p->kills_since++)
        victims[n] = *seen_find(&seen, "loader-", (first + (uint32_t)n) % (uint32_t)there);
    if (n == 0)
        return ACT_NOT;
    p->images_at_kill = seen.images;
    double since = clock_s();
    for (int i = 0; i < n; i++) {
        kill(victims[i].pid, SIGKILL);
        snprintf(names + strlen(names), sizeof names - strlen(names), " %.31s (pid %d)",
                 victims[i].name, (int)victims[i].pid);
    }
    int back;
    while ((back = replaced(p, victims, n)) == 0 && clock_s() - since < WAIT_LOADER)
        clock_sleep(0.03);
    if (back == 0)
        return say_violation("no successor of%s within %d s", names, WAIT_LOADER);
    if (back == 1 && run_moves(&p->run, run_progress(&p->run, &seen), WAIT_MOVE, "the kill") < 0)
        return ACT_BAD;
    *seconds = clock_s() - since;
    say("killed%s: %s after %.2f s", names, back == 1 ? "replaced, the run gets on" : "run over",
        *seconds);
    return ACT_DONE;
}

static act_result_t kill_loader(play_t *p, double *seconds)
{
    return kill_loaders(p, 1, seconds);
}

static act_result_t kill_many(play_t *p, double *seconds)
{
    return kill_loaders(p, draw_whole(&p->draw, 2, VICTIMS), seconds);
}

/* ---- stops ---- */

static act_result_t hold(play_t *p, const pid_t *pids, int n, const char *what, double *seconds)
{
    seen_t before;
    double held = draw_real(&p->draw, 0.05, 3);
    act_result_t rc = look(p, &before);
    if (rc != ACT_DONE)
        return rc;
    for (int i = 0; i < n; i++)
        kill(pids[i], SIGSTOP);
    /* It may have been at its end when the signal came. */
    int ended = run_ended(&p->run, held);
    for (int i = 0; i < n; i++)
        kill(pids[i], SIGCONT);
    double since = clock_s();
    int moves = ended ? 0 : run_moves(&p->run, run_progress(&p->run, &before), WAIT_MOVE, what);
    if (moves < 0)
        return ACT_BAD;
    *seconds = clock_s() - since;
    say("stopped %s for %.2f s: %s after %.2f s", what, held,
        moves == 1 ? "the run gets on" : "run over", *seconds);
    return ACT_DONE;
}

static act_result_t hold_kind(play_t *p, const char *prefix, double *seconds)
{
    seen_t seen;
    char what[64];
    act_result_t rc = look(p, &seen);
    int there = seen_count(&seen, prefix);
    if (rc != ACT_DONE || there == 0)
        return rc < 0 ? rc : ACT_NOT;
    const seen_process_t *v =
        seen_find(&seen, prefix, draw_whole(&p->draw, 0, (uint32_t)there - 1));
    snprintf(what, sizeof what, "%s (pid %d)", v->name, (int)v->pid);
    return hold(p, &v->pid, 1, what, seconds);
}

static act_result_t stop_loader(play_t *p, double *seconds)
{
    return hold_kind(p, "loader-", seconds);
}

static act_result_t stop_trainer(play_t *p, double *seconds)
{
    return hold_kind(p, "rank-", seconds);
}

static act_result_t stop_scribe(play_t *p, double *seconds)
{
    return hold_kind(p, "scribe", seconds);
}

static act_result_t stop_coordinator(play_t *p, double *seconds)
{
    return hold(p, &p->run.pid, 1, "the coordinator", seconds);
}

static act_result_t stop_all(play_t *p, double *seconds)
{
    pid_t pids[PROCESS_LIST];
    char what[32];
    int n = process_marked(p->run.name, pids);
    snprintf(what, sizeof what, "all %d processes", n);
    return hold(p, pids, n, what, seconds);
}

/* The coordinator learns of a death only when it goes on. */
static act_result_t kill_while_held(play_t *p, double *seconds)
{
    pid_t coordinator = p->run.pid;
    seen_t seen;
    act_result_t rc = look(p, &seen);
    const seen_process_t *v = seen_find(&seen, "loader-", 0);
    if (rc != ACT_DONE || !v || strcmp(seen.state, "training") != 0 || p->kills_since)
        return rc < 0 ? rc : ACT_NOT;
    kill(coordinator, SIGSTOP);
    kill(v->pid, SIGKILL);
    p->kills_since++;
    p->images_at_kill = seen.images;
    clock_sleep(draw_real(&p->draw, 0.05, 1.5));
    kill(coordinator, SIGCONT);
    double since = clock_s();
    int back;
    while ((back = replaced(p, v, 1)) == 0 && clock_s() - since < WAIT_LOADER)
        clock_sleep(0.03);
    if (back == 0)
        return say_violation("no successor of %s within %d s", v->name, WAIT_LOADER);
    if (back == 1 && run_moves(&p->run, run_progress(&p->run, &seen), WAIT_MOVE, "the kill") < 0)
        return ACT_BAD;
    *seconds = clock_s() - since;
    say("killed %s (pid %d) while the coordinator was stopped: %s after %.2f s", v->name,
        (int)v->pid, back == 1 ? "replaced, the run gets on" : "run over", *seconds);
    return ACT_DONE;
}

/* ---- scaling ---- */

/* 1: exactly n loaders, all joined; 0: not within the deadline; -1: the run has ended. */
static int await_loaders(play_t *p, uint32_t n)
{
    seen_t seen;
    for (double until = clock_s() + WAIT_LOADER; clock_s() < until; clock_sleep(0.05)) {
        if (run_ended(&p->run, 0))
            return -1;
        if (run_look(&p->run, &seen) != 1 || seen_count(&seen, "loader-") != (int)n)
            continue;
        int starting = 0;
        for (int i = 0; i < seen.n; i++)
            starting += strcmp(seen.process[i].phase, "starting") == 0;
        if (!starting)
            return 1;
        if (strcmp(seen.state, "leaving") == 0)
            return run_ended(&p->run, WAIT_STOP) ? -1 : 0;
    }
    return 0;
}

static act_result_t scale_to(play_t *p, uint32_t n, double *seconds)
{
    char word[32], text[4096];
    double since = clock_s();
    snprintf(word, sizeof word, "workers=%u", n);
    int rc = run_command(&p->run, "scale", word, WAIT_ASK, text, sizeof text);
    if (rc != 0 || !strstr(text, "loaders: ")) {
        /* Not there yet, or at its end. */
        if (rc == 0 || strstr(text, "no live run") || run_ended(&p->run, 1))
            return ACT_NOT;
        return say_violation("sluice scale %s: exit status %d: %s", word, rc, text);
    }
    int there = await_loaders(p, n);
    if (there == 0)
        return say_violation("not %u loaders within %d s of sluice scale", n, WAIT_LOADER);
    *seconds = clock_s() - since;
    say("scaled to %u loaders: %s after %.2f s", n, there == 1 ? "all there" : "run over",
        *seconds);
    return ACT_DONE;
}

static act_result_t scale(play_t *p, double *seconds)
{
    return scale_to(p, draw_whole(&p->draw, 1, PLAY_MOST_LOADERS), seconds);
}

int play_settle(play_t *p)
{
    double seconds;
    act_result_t rc = scale_to(p, PLAY_LOADERS, &seconds);
    if (rc == ACT_DONE && !run_ended(&p->run, 0))
        return 1;
    return rc == ACT_BAD ? -1 : 0;
}

/* ---- checkpoints ---- */

/* What is said where the run came to its end before the checkpoint did. */
static int too_late(const char *text)
{
    return strstr(text, "no live run") || strstr(text, "the run ended") ||
           strstr(text, "no checkpoint: the run is");
}

static act_result_t checkpoint(play_t *p, double *seconds)
{
    char text[4096];
    double since = clock_s();
    int rc = run_command(&p->run, "checkpoint", NULL, WAIT_WRITTEN, text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    if (rc == 1 && too_late(text))
        return ACT_NOT;
    if (rc != 0)
        return say_violation("sluice checkpoint: exit status %d: %s", rc, text);
    *seconds = clock_s() - since;
    say("checkpoint after %.2f s: %s", *seconds, text);
    return ACT_DONE;
}

/* ---- what ends the run ---- */

/* How an end by our hand may look. */
typedef struct {
    const char *what;
    double within;
    int status; /* exit status; -1: SIGKILL */
    int early;  /* the status is 1 where there was nothing to checkpoint yet */
    int look;   /* nobody was left to remove the run's entry */
} end_t;

/* What is said where a stop came before there was anything to checkpoint. */
static const char *const words_early[] = {"before the run began", "before training began"};

static int said_early(const run_t *r)
{
    return run_said(r, words_early[0]) || run_said(r, words_early[1]);
}

/* The run has ended as it should, or had come to its end by itself. */
static act_result_t ended(play_t *p, const end_t *e, double since, double *seconds)
{
    if (!run_ended(&p->run, e->within))
        return say_violation("still there %.0f s after %s", e->within, e->what);
    *seconds = clock_s() - since;
    p->ended_s = clock_s();
    int status = p->run.status, code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 0)
        p->run.done = 1;
    else if (code < 0 ? e->status >= 0 || WTERMSIG(status) != SIGKILL
                      : code != e->status && !(code == 1 && e->early && said_early(&p->run)))
        return say_violation("%s after %s", process_how(status), e->what);
    if (run_nothing_left(&p->run, e->look) < 0)
        return ACT_BAD;
    say("%s: %s after %.2f s, nothing left", e->what, process_how(status), *seconds);
    return ACT_DONE;
}

static void kill_marked(play_t *p, int signal)
{
    pid_t pids[PROCESS_LIST];
    int n = process_marked(p->run.name, pids);
    uint32_t first = draw_whole(&p->draw, 0, 1000);
    for (int i = 0; i < n; i++)
        kill(pids[(first + (uint32_t)i) % (uint32_t)n], signal);
}

static act_result_t kill_everything(play_t *p, double *seconds)
{
    const end_t end = {"SIGKILL of everything", WAIT_NOTHING, -1, 0, 1};
    double since = clock_s();
    kill_marked(p, SIGKILL);
    return ended(p, &end, since, seconds);
}

static act_result_t kill_coordinator(play_t *p, double *seconds)
{
    const end_t end = {"SIGKILL of the coordinator", WAIT_NOTHING, -1, 0, 0};
    double since = clock_s();
    kill(p->run.pid, SIGKILL);
    return ended(p, &end, since, seconds);
}

/* Those that are left cannot act by themselves. */
static act_result_t kill_over_stopped(play_t *p, double *seconds)
{
    const end_t end = {"SIGKILL of the coordinator, all stopped", WAIT_NOTHING, -1, 0, 0};
    kill_marked(p, SIGSTOP);
    clock_sleep(draw_real(&p->draw, 0.05, 1));
    double since = clock_s();
    kill(p->run.pid, SIGKILL);
    return ended(p, &end, since, seconds);
}

/* In the middle of the checkpoint that a stop writes. */
static act_result_t kill_at_stop(play_t *p, double *seconds)
{
    const end_t end = {"SIGTERM, then SIGKILL of everything", WAIT_NOTHING, -1, 0, 1};
    kill(p->run.pid, SIGTERM);
    if (run_ended(&p->run, draw_real(&p->draw, 0.01, 0.4))) {
        const end_t early = {"SIGTERM", 0, 5, 1, 0};
        return ended(p, &early, clock_s(), seconds);
    }
    double since = clock_s();
    kill_marked(p, SIGKILL);
    return ended(p, &end, since, seconds);
}

static act_result_t kill_kind(play_t *p, const char *prefix, double *seconds)
{
    seen_t seen;
    char what[64];
    act_result_t rc = look(p, &seen);
    int there = seen_count(&seen, prefix);
    if (rc != ACT_DONE || there == 0)
        return rc < 0 ? rc : ACT_NOT;
    const seen_process_t *v =
        seen_find(&seen, prefix, draw_whole(&p->draw, 0, (uint32_t)there - 1));
    snprintf(what, sizeof what, "SIGKILL of %s (pid %d)", v->name, (int)v->pid);
    const end_t end = {what, WAIT_FAIL, 1, 0, 0};
    double since = clock_s();
    kill(v->pid, SIGKILL);
    return ended(p, &end, since, seconds);
}

static act_result_t kill_trainer(play_t *p, double *seconds)
{
    return kill_kind(p, "rank-", seconds);
}

static act_result_t kill_scribe(play_t *p, double *seconds)
{
    return kill_kind(p, "scribe", seconds);
}

static act_result_t terminate(play_t *p, double *seconds)
{
    const end_t end = {"SIGTERM", WAIT_STOP, 5, 1, 0};
    double since = clock_s();
    kill(p->run.pid, SIGTERM);
    return ended(p, &end, since, seconds);
}

/* `sluice stop` returns when the run has ended. */
static act_result_t stop_with(play_t *p, const char *word, const end_t *end, double *seconds)
{
    char text[4096];
    double since = clock_s();
    int rc = run_command(&p->run, "stop", word, end->within, text, sizeof text);
    int over = run_ended(&p->run, 1);
    if (rc == 1 && strstr(text, "no live run"))
        return ACT_NOT;
    if (!over || (rc != 0 && !said_early(&p->run)))
        return say_violation("%s: exit status %d: %s", end->what, rc, text);
    return ended(p, end, since, seconds);
}

static act_result_t stop_command(play_t *p, double *seconds)
{
    const end_t end = {"sluice stop", WAIT_STOP, 5, 1, 0};
    return stop_with(p, NULL, &end, seconds);
}

static act_result_t stop_now(play_t *p, double *seconds)
{
    const end_t end = {"sluice stop --now", WAIT_FAIL, 1, 0, 0};
    return stop_with(p, "--now", &end, seconds);
}

const action_t actions[] = {
    {"kill a loader", 20, IN_ANY | SURVIVED, kill_loader},
    {"kill loaders at once", 8, IN_ANY | SURVIVED, kill_many},
    {"kill one unseen", 5, IN_ANY | SURVIVED, kill_while_held},
    {"stop a loader", 8, IN_ANY | SURVIVED, stop_loader},
    {"stop a trainer", 6, IN_TRAIN | SURVIVED, stop_trainer},
    {"stop the scribe", 6, IN_TRAIN | SURVIVED, stop_scribe},
    {"stop the coordinator", 6, IN_ANY | SURVIVED, stop_coordinator},
    {"stop everything", 4, IN_ANY | SURVIVED, stop_all},
    {"scale", 14, IN_ANY | SURVIVED, scale},
    {"checkpoint", 10, IN_TRAIN | SURVIVED, checkpoint},
    {"kill everything", 5, IN_ANY, kill_everything},
    {"kill the coordinator", 4, IN_ANY, kill_coordinator},
    {"kill it, all stopped", 3, IN_ANY, kill_over_stopped},
    {"kill in a checkpoint", 4, IN_TRAIN, kill_at_stop},
    {"kill a trainer", 4, IN_TRAIN, kill_trainer},
    {"kill the scribe", 4, IN_TRAIN, kill_scribe},
    {"SIGTERM", 5, IN_TRAIN, terminate},
    {"sluice stop", 4, IN_TRAIN, stop_command},
    {"sluice stop --now", 3, IN_ANY, stop_now},
};
const int n_actions = (int)(sizeof actions / sizeof actions[0]);

static uint32_t weight_of(const action_t *a, const play_t *p, int gently)
{
    unsigned kind = p->run.config->kind == RUN_TRAIN ? IN_TRAIN : IN_DIGEST;
    return (a->where & kind) && (!gently || (a->where & SURVIVED)) ? a->weight : 0;
}

int play_action(play_t *p, int gently)
{
    enum { TRIES = 8 };
    uint32_t total = 0;
    for (int i = 0; i < n_actions; i++)
        total += weight_of(&actions[i], p, gently);
    for (int tries = 0; tries < TRIES; tries++) {
        uint32_t at = draw_whole(&p->draw, 0, total - 1);
        int i = 0;
        for (;; i++) {
            uint32_t weight = weight_of(&actions[i], p, gently);
            if (at < weight)
                break;
            at -= weight;
        }
        double seconds = 0;
        act_result_t rc = actions[i].act(p, &seconds);
        if (rc == ACT_BAD)
            return -1;
        if (rc == ACT_DONE) {
            p->tally[i].done++;
            if (seconds > p->tally[i].longest_s)
                p->tally[i].longest_s = seconds;
            return 0;
        }
        if (run_ended(&p->run, 0))
            return 0;
    }
    return 0;
}
