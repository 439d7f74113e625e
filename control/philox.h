/* The counter-based generator behind every random draw (design 4): Philox4x32-10 (Salmon et al.,
 * 2011).
 *
 * A draw is a pure function of (seed, stream key, counter): no state to share, to save or to lose
 * with a process. A philox_t is a private cursor over one keyed stream; copy it freely. Any
 * process, any thread.
 */
#ifndef SLUICE_CONTROL_PHILOX_H
#define SLUICE_CONTROL_PHILOX_H

#include <stdint.h>

/* What a stream is for: part of the key, so that a new use never shifts an old one. */
typedef enum {
    PHILOX_ORDER = 1,    /* the permutation of an epoch */
    PHILOX_MOSAIC,       /* mosaic: whether, centre, partners */
    PHILOX_AFFINE,       /* perspective, rotation, scale, shear, translation */
    PHILOX_MIXUP,        /* whether, partner, ratio */
    PHILOX_MIXUP_MOSAIC, /* the mixup partner's own mosaic */
    PHILOX_MIXUP_AFFINE, /* the mixup partner's own affine */
    PHILOX_HSV,
    PHILOX_FLIP,
    PHILOX_WEIGHTS, /* initial weights: epoch = tensor number */
    PHILOX_SAMPLE,  /* the synthetic data set: position = image */
} philox_purpose_t;

typedef struct {
    uint32_t key[2];
    uint32_t counter[4];
    uint32_t out[4];
    uint32_t used; /* words of out already handed out; 4 = none left */
} philox_t;

/* One block: out = Philox4x32-10(counter, key). */
void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* The stream keyed by (seed, epoch, position, purpose). */
philox_t philox_stream(uint64_t seed, uint32_t epoch, uint64_t position, philox_purpose_t purpose);
uint32_t philox_u32(philox_t *p);
/* Uniform in [0, 1) with 53 bits. */
double philox_unit(philox_t *p);
/* Uniform in [lo, hi). */
double philox_range(philox_t *p, double lo, double hi);
/* Uniform integer in [0, n), n >= 1, without bias. */
uint32_t philox_below(philox_t *p, uint32_t n);
/* Standard normal (Box-Muller, one of the pair). */
double philox_normal(philox_t *p);

#endif
