#include "control/philox.h"

#include <math.h>

/* Constants of Philox4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
 * 3"). */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

philox_t philox_stream(uint64_t seed, uint32_t epoch, uint64_t position, philox_purpose_t purpose)
{
    /* 256 purposes and 2^24 blocks of four words for each (seed, epoch, position). */
    philox_t p = {
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {(uint32_t)purpose << 24, epoch, (uint32_t)position, (uint32_t)(position >> 32)},
        .used = 4,
    };
    return p;
}

uint32_t philox_u32(philox_t *p)
{
    if (p->used == 4) {
        philox_block(p->counter, p->key, p->out);
        p->counter[0]++;
        p->used = 0;
    }
    return p->out[p->used++];
}

double philox_unit(philox_t *p)
{
    uint64_t high = philox_u32(p) >> 5, low = philox_u32(p) >> 6;
    return (double)(high << 26 | low) * 0x1p-53;
}

double philox_range(philox_t *p, double lo, double hi)
{
    return lo + (hi - lo) * philox_unit(p);
}

uint32_t philox_below(philox_t *p, uint32_t n)
{
    /* Lemire's method: reject the few values that would favour small results. */
    uint64_t m = (uint64_t)philox_u32(p) * n;
    if ((uint32_t)m < n) {
        uint32_t floor = (uint32_t)-n % n;
        while ((uint32_t)m < floor)
            m = (uint64_t)philox_u32(p) * n;
    }
    return (uint32_t)(m >> 32);
}

double philox_normal(philox_t *p)
{
    double u = 1.0 - philox_unit(p), v = philox_unit(p);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}
