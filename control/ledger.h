/* The substitution ledger: which samples cannot be used, and what is read in their place (design
 * 4).
 *
 * Only the coordinator appends, and what is there never changes. Rank 0's trainer holds a copy for
 * its checkpoints; a resume replays it before any loader starts. A sample that went bad has one
 * entry that holds from a place on that no loader can have claimed yet; the cells before it that
 * met the sample get entries of their own, by name. A cell before it that was made while the sample
 * could still be read is not covered: the ledger says of every cell what it was made of, whenever
 * it is made again.
 *
 * The rule is a pure function of the ledger and the list: the next sample in list order that is not
 * itself in the ledger. A substitute that goes bad later gets entries of its own, so readers follow
 * entries until a sample has none: where samples stay bad, that ends at the same sample in whatever
 * order they were met. Every question is answered in about the same time, however many entries there
 * are. One thread.
 */
#ifndef SLUICE_CONTROL_LEDGER_H
#define SLUICE_CONTROL_LEDGER_H

#include "control/wire.h"

typedef struct ledger ledger_t;

typedef enum {
    LEDGER_KNOWN = 0, /* an entry covers the reported cell already */
    LEDGER_CELL,      /* one more cell of a sample that is known to be bad */
    LEDGER_NEW,       /* a sample more */
} ledger_answer_t;

/* A place in a split's order, beyond all that can have been claimed. */
typedef struct {
    uint32_t epoch;
    uint64_t position;
} ledger_place_t;

/* n_train, n_val: samples of each split. */
int ledger_new(uint32_t n_train, uint32_t n_val, ledger_t **ledger);
void ledger_free(ledger_t **ledger);
/* Whether so many bad samples of a split are more than a run goes on with: more than a tenth and ten
 * at least, or all. */
int ledger_too_many(uint32_t bad, uint32_t of);
/* What to do about a report: a ledger_answer_t, and the sample read in its place in *substitute; or
 * ERR_FAILED for a report that names no sample, or ERR_DATA when too many samples went bad (more
 * than a tenth, and ten at least) or none is left. New entries are behind those that were there. */
int ledger_report(ledger_t *ledger, const wire_bad_sample_t *bad, const ledger_place_t *beyond,
                  uint32_t *substitute);
/* Appends an entry that was made before: in the run that goes on, or by another process. ERR_FAILED
 * when it is not the next by number, or none that ledger_report can have made. */
int ledger_replay(ledger_t *ledger, const wire_ledger_t *entry);
/* Entries, and samples that they are about. */
uint32_t ledger_count(const ledger_t *ledger);
uint32_t ledger_samples(const ledger_t *ledger);
/* Entry i as a complete frame, in order of number: a loader that starts late gets all of them. */
const wire_ledger_t *ledger_at(const ledger_t *ledger, uint32_t i);

#endif
