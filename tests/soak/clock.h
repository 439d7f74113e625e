/* Time, and numbers drawn from the soak's seed (private to tests/soak). Each purpose draws from a
 * sequence of its own, so that one more draw here moves no choice there. One thread. */
#ifndef SLUICE_TESTS_SOAK_CLOCK_H
#define SLUICE_TESTS_SOAK_CLOCK_H

#include <stdint.h>

/* Seconds of CLOCK_MONOTONIC, less those by which sleeps of this process ended late: a machine that stands still, or
 * has no CPU for us, is nobody's delay. */
double clock_s(void);
void clock_sleep(double seconds);

typedef struct {
    uint64_t state;
} draw_t;

/* The sequence of (seed, purpose). */
draw_t draw_begin(uint64_t seed, uint64_t purpose);
/* From low to high, both included. */
uint32_t draw_whole(draw_t *d, uint32_t low, uint32_t high);
/* From low up to high. */
double draw_real(draw_t *d, double low, double high);

#endif
