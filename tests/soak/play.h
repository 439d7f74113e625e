/* A round in play, and the table of what is done to a run (private to tests/soak). One thread.
 *
 * Every action has a deadline for what must follow from it (run.h: WAIT_*), measures how long that
 * took, and prints one line. An action that ends the run leaves run.pid 0; the round resumes it.
 */
#ifndef SLUICE_TESTS_SOAK_PLAY_H
#define SLUICE_TESTS_SOAK_PLAY_H

#include "tests/soak/clock.h"
#include "tests/soak/growth.h"
#include "tests/soak/run.h"

enum { PLAY_LOADERS = 2, PLAY_MOST_LOADERS = 6 };

typedef enum {
    ACT_BAD = -1, /* a violation, already said */
    ACT_NOT = 0,  /* cannot be done at this instant */
    ACT_DONE = 1,
} act_result_t;

/* Where an action has a meaning, and whether the run survives it. */
enum { IN_DIGEST = 1, IN_TRAIN = 2, IN_ANY = 3, SURVIVED = 4 };

/* Counted over the whole soak. */
typedef struct {
    uint32_t done;
    double longest_s; /* from the act to what had to follow */
} tally_t;

typedef struct {
    run_t run;
    draw_t draw;
    tally_t *tally; /* an entry an action */
    growth_t growth;
    uint64_t images_at_kill; /* when a loader was killed last */
    uint32_t kills_since;    /* kills without an image in between: RUN_DEATHS end a run */
    double ended_s;          /* when an action has ended the run; 0: it has not */
} play_t;

typedef struct {
    const char *name; /* in the log and in the closing table */
    uint32_t weight;  /* how often, relative to the others */
    unsigned where;
    act_result_t (*act)(play_t *p, double *seconds);
} action_t;

extern const action_t actions[];
extern const int n_actions;

/* Does what comes next in the sequence; gently: only what the run survives. 0, or a violation. */
int play_action(play_t *p, int gently);
/* With the loaders that it began with, all joined and working. 1; 0 the run has ended; or -1. */
int play_settle(play_t *p);

#endif
