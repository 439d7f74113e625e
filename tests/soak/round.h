/* One round: a run of one configuration from its start to its end, with all that is done to it on
 * the way, and then the comparison with an uninterrupted one (private to tests/soak). One thread. */
#ifndef SLUICE_TESTS_SOAK_ROUND_H
#define SLUICE_TESTS_SOAK_ROUND_H

#include "tests/soak/play.h"

enum { ROUND_PROGRAMS = 8 };

/* Over the whole soak. */
typedef struct {
    tally_t tally[32]; /* an entry an action */
    growth_row_t rows[ROUND_PROGRAMS];
    uint32_t rounds, runs, resumes, returns; /* returns: of files that had vanished */
    double longest_resume_s;                 /* from the end of one process to a step of the next */
} totals_t;

/* What the rounds of a configuration are compared with; made when the first of them comes. */
typedef struct {
    const config_t *config;
    int there;
    double seconds; /* that the uninterrupted run took */
} reference_t;

/* 0, or a violation. until: clock_s() after which nothing is done to a run any more. */
int round_reference(const soak_t *soak, reference_t *reference);
int round_play(const soak_t *soak, const reference_t *reference, uint64_t seed, double until,
               totals_t *totals);

#endif
