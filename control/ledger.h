/* The substitution ledger: which samples cannot be used, and what is read in their place (design
 * 4).
 *
 * Only the coordinator appends; loaders are told by message and apply entries to cells at or behind
 * (from_epoch, from_position). The rule is a pure function of the ledger and the list: the next
 * sample in list order that is not itself in the ledger. A substitute that goes bad later gets an
 * entry of its own, so readers follow entries until a sample has none. One thread.
 */
#ifndef SLUICE_CONTROL_LEDGER_H
#define SLUICE_CONTROL_LEDGER_H

#include "control/wire.h"

typedef struct ledger ledger_t;

typedef enum {
    LEDGER_KNOWN = 0, /* the entry is there and covers the reported cell */
    LEDGER_LOWERED,   /* the entry now begins earlier: everybody must hear it again */
    LEDGER_NEW,
} ledger_answer_t;

/* n_train, n_val: samples of each split. */
int ledger_new(uint32_t n_train, uint32_t n_val, ledger_t **ledger);
void ledger_free(ledger_t **ledger);
/* What to do about a report: a ledger_answer_t with the entry as a complete frame, or ERR_FAILED
 * for a report that names no sample, or ERR_DATA when too many samples went bad (more than a tenth,
 * and ten at least) or none is left. */
int ledger_report(ledger_t *ledger, const wire_bad_sample_t *bad, wire_ledger_t *entry);
uint32_t ledger_count(const ledger_t *ledger);
/* Entry i as a complete frame, in order of number: a loader that starts late gets all of them. */
const wire_ledger_t *ledger_at(const ledger_t *ledger, uint32_t i);

#endif
