/* The stream's digest: one number that says whether two runs trained on the same images, epoch by
 * epoch (design 4).
 *
 * A commutative fold of the training cells' digests, each keyed by its position in the epoch: ranks
 * fold their own cells in whatever order they meet them, and the sum over ranks is the epoch's
 * digest, whatever the number of ranks or loaders. Cells at positions behind the list's end (the
 * wrap that makes the last batch full) are left out, because how many there are depends on the
 * batch. A value that is kept in a checkpoint goes on where it was. Plain values, pure functions;
 * any process.
 */
#ifndef SLUICE_CONTROL_STREAM_H
#define SLUICE_CONTROL_STREAM_H

#include <stdint.h>

typedef struct {
    uint64_t sum;   /* modulo 2^64 */
    uint64_t count; /* cells folded; an epoch is complete with n_train */
} stream_digest_t;

/* Adds the cell at `position` of the epoch's training order; n_train: samples of the epoch.
 * Positions from n_train on change nothing. */
void stream_fold(stream_digest_t *s, uint64_t position, uint64_t n_train, uint64_t cell_digest);
/* Adds what another rank has folded, or another part of the epoch. */
void stream_add(stream_digest_t *s, const stream_digest_t *other);
/* What is printed for an epoch: every bit depends on sum and count. */
uint64_t stream_value(const stream_digest_t *s);
/* The digest of a run up to and with an epoch, from the one before it (0 before the first). */
uint64_t stream_chain(uint64_t before, const stream_digest_t *epoch);

enum { STREAM_PARTS = 4 };
/* As numbers that may be summed over ranks in double precision without a bit lost: 32 bits each. */
void stream_split(const stream_digest_t *s, double parts[STREAM_PARTS]);
stream_digest_t stream_join(const double parts[STREAM_PARTS]);

#endif
