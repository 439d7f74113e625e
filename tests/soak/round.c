#include "tests/soak/round.h"

#include "tests/soak/check.h"
#include "tests/soak/process.h"
#include "tests/soak/say.h"
#include "tests/soak/vanish.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

enum {
    ROUND_ENDS_TRAIN = 6,  /* most ends by our hand in a round: a resume goes on */
    ROUND_ENDS_DIGEST = 2, /* a digest has to begin again */
    ROUND_SETTLE_S = 6,
};

static void reference_name(const config_t *c, const char *kind, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s-%s", kind, c->name);
}

/* A run that nothing is done to. */
static int undisturbed(const soak_t *soak, const config_t *config, const char *kind,
                       double *seconds)
{
    run_t run;
    vanish_t vanish = {0};
    char name[64];
    seen_t seen;
    reference_name(config, kind, name, sizeof name);
    run_init(&run, soak, config, name);
    double since = clock_s();
    if ((config->vanish && vanish_begin(soak, &vanish) < 0) || run_start(&run) < 0)
        return -1;
    for (uint64_t at = 0; !run_ended(&run, 0);) {
        if (run_moves(&run, at, WAIT_STEP, "nothing was done to it") < 0)
            break;
        if (run_look(&run, &seen) == 1)
            at = run_progress(&run, &seen);
        clock_sleep(0.2);
    }
    *seconds = clock_s() - since;
    if (run.pid)
        run_destroy(&run);
    else if (!WIFEXITED(run.status) || WEXITSTATUS(run.status) != 0)
        say_violation("an undisturbed run ended with %d", run.status);
    if (say_first()) {
        run_show(&run);
        return -1;
    }
    if (config->vanish && vanish_end(soak) < 0)
        return -1;
    say("undisturbed: %.1f s", *seconds);
    return run_nothing_left(&run, 0);
}

int round_reference(const soak_t *soak, reference_t *reference)
{
    const config_t *c = reference->config;
    config_t small = *c;
    double seconds = 0;
    char where[96];
    if (reference->there)
        return 0;
    snprintf(where, sizeof where, "reference %s", c->name);
    say_where(where);
    small.kind = c->kind == RUN_TRAIN ? RUN_DIGEST_SMALL : c->kind;
    if (undisturbed(soak, &small, "stream", &reference->seconds) < 0)
        return -1;
    /* Weights are promised to the bit for one rank (design 4). */
    if (c->kind == RUN_TRAIN && c->ranks == 1 && undisturbed(soak, c, "weights", &seconds) < 0)
        return -1;
    reference->seconds = seconds > 0 ? seconds : reference->seconds;
    reference->there = 1;
    return 0;
}

/* The run has come to its end: what it leaves is compared. */
static int compare(play_t *p)
{
    const run_t *r = &p->run;
    const config_t *c = r->config;
    char name[64], expected[RUN_PATH], stream[RUN_PATH];
    reference_name(c, "stream", name, sizeof name);
    snprintf(stream, sizeof stream, "%s/%s.1.out", r->soak->work, name);
    if (c->kind != RUN_TRAIN) {
        int rc = check_same_text(stream, r->output);
        if (rc == 0)
            say("same stream as undisturbed");
        return rc;
    }
    int rc = check_stream(stream, r->dir, c->epochs);
    if (c->ranks == 1) {
        reference_name(c, "weights", name, sizeof name);
        snprintf(expected, sizeof expected, "%s/runs/%s", r->soak->work, name);
        rc = check_weights(expected, r->dir) < 0 ? -1 : rc;
        rc = check_results(expected, r->dir, c->epochs) < 0 ? -1 : rc;
    } else {
        rc = check_results(NULL, r->dir, c->epochs) < 0 ? -1 : rc;
    }
    /* A run that was killed on its last lines leaves its lock file to the next. */
    if (WIFEXITED(r->status))
        rc = check_folder(r->dir) < 0 ? -1 : rc;
    if (rc == 0)
        say("same stream%s as undisturbed, %d resumes", c->ranks == 1 ? " and weights" : "",
            r->resumes);
    return rc;
}

/* It has ended, and no action has said why: at its end, or not as it should. */
static int unexpected_end(play_t *p)
{
    int status = p->run.status;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        p->run.done = 1;
        return run_nothing_left(&p->run, 0);
    }
    return say_violation("the run ended with %s, and nothing had been done to it",
                         process_how(status));
}

/* A resume of a run whose last state is its end says so, with status 2. */
static int is_finished(const play_t *p)
{
    return WIFEXITED(p->run.status) && WEXITSTATUS(p->run.status) == 2 &&
           run_said(&p->run, "is finished");
}

/* From one start to the next end. 0, or a violation. */
static int one_life(play_t *p, vanish_t *vanish, int *ends, double until, totals_t *totals)
{
    const config_t *c = p->run.config;
    seen_t seen;
    double settle = 0;
    int most = c->kind == RUN_TRAIN ? ROUND_ENDS_TRAIN : ROUND_ENDS_DIGEST;
    if (c->vanish && vanish_begin(p->run.soak, vanish) < 0)
        return -1;
    if (run_start(&p->run) < 0)
        return -1;
    totals->runs++;
    /* Now and then in the middle of its start. */
    int early = !c->calm && *ends < most && draw_whole(&p->draw, 0, 3) == 0;
    if (early) {
        clock_sleep(draw_real(&p->draw, 0, 0.8));
    } else {
        int moves = run_moves(&p->run, 0, WAIT_STEP, "the start");
        if (moves < 0)
            return -1;
        if (p->ended_s > 0 && moves == 1) {
            double took = clock_s() - p->ended_s;
            say("%s after %.2f s", p->run.resumes ? "resumed, a step done" : "begun again", took);
            if (took > totals->longest_resume_s)
                totals->longest_resume_s = took;
        }
    }
    p->ended_s = 0;
    for (;;) {
        if (run_ended(&p->run, early ? 0 : draw_real(&p->draw, 0.02, 1.2)))
            break;
        early = 0;
        if (c->vanish && run_look(&p->run, &seen) == 1 && vanish_look(&p->run, &seen, vanish) < 0)
            return -1;
        if (c->calm && clock_s() > settle) {
            settle = clock_s() + ROUND_SETTLE_S;
            int rc = play_settle(p);
            if (rc < 0)
                return -1;
            if (rc == 1)
                growth_look(&p->growth, p->run.name);
            continue;
        }
        if (clock_s() > until) {
            uint64_t at = run_look(&p->run, &seen) == 1 ? run_progress(&p->run, &seen) : 0;
            if (at && run_moves(&p->run, at, WAIT_MOVE, "nothing was done to it") < 0)
                return -1;
        } else if (play_action(p, c->calm || *ends >= most) < 0) {
            return -1;
        }
        if (p->ended_s > 0) {
            ++*ends;
            return 0;
        }
    }
    if (is_finished(p)) {
        p->run.done = 1;
        return 0;
    }
    return p->run.done ? 0 : unexpected_end(p);
}

int round_play(const soak_t *soak, const reference_t *reference, uint64_t seed, double until,
               totals_t *totals)
{
    static play_t p;
    vanish_t vanish = {0};
    char name[64];
    int rc = 0, ends = 0;
    memset(&p, 0, sizeof p);
    totals->rounds++;
    snprintf(name, sizeof name, "round-%u-%s", totals->rounds, reference->config->name);
    say_where(name);
    run_init(&p.run, soak, reference->config, name);
    p.draw = draw_begin(seed, totals->rounds);
    p.tally = totals->tally;
    while (rc == 0 && !p.run.done)
        rc = one_life(&p, &vanish, &ends, until, totals);
    totals->resumes += (uint32_t)p.run.resumes;
    totals->returns += (uint32_t)vanish.returns;
    if (rc == 0)
        rc = compare(&p);
    if (reference->config->calm)
        rc = growth_judge(&p.growth, totals->rows, ROUND_PROGRAMS) < 0 ? -1 : rc;
    if (rc < 0)
        run_show(&p.run);
    if (rc < 0)
        run_destroy(&p.run);
    else if (reference->config->vanish)
        rc = vanish_end(soak);
    return rc;
}
