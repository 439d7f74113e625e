#include "tests/soak/clock.h"

#include <time.h>

enum { LATE_MS = 250 };

static double lost;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double clock_s(void)
{
    return now() - lost;
}

void clock_sleep(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds};
    double since = now();
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
    double over = now() - since - seconds;
    lost += over > LATE_MS / 1e3 ? over : 0;
}

/* SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static uint64_t next(draw_t *d)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

draw_t draw_begin(uint64_t seed, uint64_t purpose)
{
    draw_t d = {.state = seed};
    d.state = next(&d) ^ (purpose * 0x9e3779b97f4a7c15u);
    return d;
}

uint32_t draw_whole(draw_t *d, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(next(d) % ((uint64_t)(high - low) + 1));
}

double draw_real(draw_t *d, double low, double high)
{
    return low + (high - low) * ((double)(next(d) >> 11) * 0x1p-53);
}
