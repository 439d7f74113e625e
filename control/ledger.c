#include "control/ledger.h"

#include "control/catalog.h"
#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

/* With more bad samples than this, the data set and not a file is broken. */
enum { LEDGER_MANY = 10, LEDGER_SHARE = 10 };
enum { LEDGER_FIRST = 16 /* entries; a power of 2, as every capacity */ };

struct ledger {
    uint32_t samples[CATALOG_SPLITS], bad[CATALOG_SPLITS];
    wire_ledger_t *entries;
    /* For an entry that is not `only`: a sample such that all from the entry's up to it are bad. */
    uint32_t *beyond;
    /* Entries (index + 1) by sample, and those of one cell by sample and cell: open addressing, 2 *
     * capacity of them, 0 where there is none. */
    uint32_t *slots;
    uint32_t count, capacity;
};

int ledger_new(uint32_t n_train, uint32_t n_val, ledger_t **ledger)
{
    *ledger = calloc(1, sizeof **ledger);
    if (!*ledger)
        return err_set(ERR_ENV, "no memory for the ledger");
    (*ledger)->samples[CATALOG_TRAIN] = n_train;
    (*ledger)->samples[CATALOG_VAL] = n_val;
    return 0;
}

void ledger_free(ledger_t **ledger)
{
    if (!*ledger)
        return;
    free((*ledger)->entries);
    free((*ledger)->beyond);
    free((*ledger)->slots);
    free(*ledger);
    *ledger = NULL;
}

int ledger_too_many(uint32_t bad, uint32_t of)
{
    return bad >= of || (bad >= LEDGER_MANY && (uint64_t)bad * LEDGER_SHARE > of);
}

/* ---- looking up ---- */

/* Where an entry of the sample is, or would be: the one that holds from a place on (cell NULL), or
 * the one for a cell alone. */
static uint32_t *ledger_slot(const ledger_t *l, uint32_t split, uint32_t sample,
                             const ledger_place_t *cell)
{
    uint64_t hash = wire_mix(split, sample);
    if (cell)
        hash = wire_mix(wire_mix(hash, cell->epoch), cell->position);
    uint32_t mask = 2 * l->capacity - 1;
    for (uint32_t at = (uint32_t)hash & mask;; at = (at + 1) & mask) {
        const wire_ledger_t *e = l->slots[at] ? &l->entries[l->slots[at] - 1] : NULL;
        if (!e || (e->split == split && e->sample == sample && e->only == (cell != NULL) &&
                   (!cell || (e->from_epoch == cell->epoch && e->from_position == cell->position))))
            return &l->slots[at];
    }
}

/* The entry of a sample that holds from a place on; NULL for a sample that is not known to be bad.
 */
static const wire_ledger_t *ledger_find(const ledger_t *l, uint32_t split, uint32_t sample)
{
    uint32_t at = l->count ? *ledger_slot(l, split, sample, NULL) : 0;
    return at ? &l->entries[at - 1] : NULL;
}

/* Whether the reported cell has an entry; that of the sample is `e`. */
static int ledger_covers(const ledger_t *l, const wire_bad_sample_t *bad, const wire_ledger_t *e)
{
    const ledger_place_t cell = {bad->epoch, bad->position};
    return bad->epoch > e->from_epoch ||
           (bad->epoch == e->from_epoch && bad->position >= e->from_position) ||
           *ledger_slot(l, bad->split, bad->sample, &cell) != 0;
}

/* The next sample behind this one that is not in the ledger; one must be left. Long runs of bad
 * samples are walked once: who walked them notes where they end. */
static uint32_t ledger_next(ledger_t *l, uint32_t split, uint32_t sample)
{
    uint32_t n = l->samples[split], first = (sample + 1) % n, next = first;
    const wire_ledger_t *e;
    while ((e = ledger_find(l, split, next)) != NULL)
        next = l->beyond[e - l->entries];
    for (uint32_t at = first; at != next;) {
        uint32_t *beyond = &l->beyond[ledger_find(l, split, at) - l->entries];
        at = *beyond;
        *beyond = next;
    }
    return next;
}

/* ---- appending ---- */

static void ledger_link(ledger_t *l, uint32_t i)
{
    const wire_ledger_t *e = &l->entries[i];
    const ledger_place_t cell = {e->from_epoch, e->from_position};
    *ledger_slot(l, e->split, e->sample, e->only ? &cell : NULL) = i + 1;
}

static int ledger_grow(ledger_t *l)
{
    if (l->count < l->capacity)
        return 0;
    uint32_t capacity = l->capacity ? 2 * l->capacity : LEDGER_FIRST;
    wire_ledger_t *entries = realloc(l->entries, capacity * sizeof *entries);
    l->entries = entries ? entries : l->entries;
    uint32_t *beyond = entries ? realloc(l->beyond, capacity * sizeof *beyond) : NULL;
    l->beyond = beyond ? beyond : l->beyond;
    uint32_t *slots = beyond ? calloc(2 * (size_t)capacity, sizeof *slots) : NULL;
    if (!slots)
        return err_set(ERR_ENV, "no memory for a ledger of %u entries", capacity);
    free(l->slots);
    l->slots = slots;
    l->capacity = capacity;
    for (uint32_t i = 0; i < l->count; i++)
        ledger_link(l, i);
    return 0;
}

static int ledger_put(ledger_t *l, const wire_ledger_t *entry)
{
    int rc = ledger_grow(l);
    if (rc < 0)
        return rc;
    wire_ledger_t *e = &l->entries[l->count];
    *e = *entry;
    wire_begin(e, WIRE_LEDGER, sizeof *e);
    l->beyond[l->count] = e->substitute;
    ledger_link(l, l->count++);
    return 0;
}

static int ledger_append(ledger_t *l, const wire_bad_sample_t *bad, uint32_t substitute, int only,
                         uint32_t epoch, uint64_t position)
{
    wire_ledger_t e;
    memset(&e, 0, sizeof e);
    e.split = bad->split;
    e.sample = bad->sample;
    e.substitute = substitute;
    e.number = l->count + 1;
    e.from_epoch = epoch;
    e.only = (uint32_t)only;
    e.from_position = position;
    return ledger_put(l, &e);
}

/* The first entry of a sample: what is read in its place, and from where on. */
static int ledger_begin(ledger_t *l, const wire_bad_sample_t *bad, const ledger_place_t *beyond)
{
    uint32_t n = l->samples[bad->split], count = ++l->bad[bad->split];
    if (ledger_too_many(count, n))
        return err_set(
            ERR_DATA,
            "%u of %u %s images could be read when the run began and cannot be read now; "
            "see the bad-sample lines, and check the storage they are on",
            count, n, bad->split == CATALOG_TRAIN ? "training" : "validation");
    return ledger_append(l, bad, ledger_next(l, bad->split, bad->sample), 0, beyond->epoch,
                         beyond->position);
}

int ledger_report(ledger_t *l, const wire_bad_sample_t *bad, const ledger_place_t *beyond,
                  uint32_t *substitute)
{
    int rc, answer = LEDGER_CELL;
    if (bad->split >= CATALOG_SPLITS || bad->sample >= l->samples[bad->split])
        return err_set(ERR_FAILED,
                       "a bad-sample report names sample %u of split %u, which is not there",
                       bad->sample, bad->split);
    if (!ledger_find(l, bad->split, bad->sample)) {
        if ((rc = ledger_begin(l, bad, beyond)) < 0)
            return rc;
        answer = LEDGER_NEW;
    }
    const wire_ledger_t *e = ledger_find(l, bad->split, bad->sample);
    *substitute = e->substitute;
    if (ledger_covers(l, bad, e))
        return answer == LEDGER_NEW ? LEDGER_NEW : LEDGER_KNOWN;
    rc = ledger_append(l, bad, *substitute, 1, bad->epoch, bad->position);
    return rc < 0 ? rc : answer;
}

int ledger_replay(ledger_t *l, const wire_ledger_t *e)
{
    if (e->number != l->count + 1 || e->split >= CATALOG_SPLITS || e->only > 1 ||
        e->sample >= l->samples[e->split] || e->substitute >= l->samples[e->split] ||
        e->sample == e->substitute)
        return err_set(ERR_FAILED,
                       "ledger entry %u (sample %u of split %u read as %u) is not one that can be "
                       "entry %u of a list of %u and %u images",
                       e->number, e->sample, e->split, e->substitute, l->count + 1,
                       l->samples[CATALOG_TRAIN], l->samples[CATALOG_VAL]);
    /* A sample's first entry holds from a place on; those by name come behind it, and say the same.
     */
    const wire_ledger_t *first = ledger_find(l, e->split, e->sample);
    int fits = first ? e->only && e->substitute == first->substitute
                     : !e->only && !ledger_too_many(l->bad[e->split] + 1, l->samples[e->split]) &&
                           e->substitute == ledger_next(l, e->split, e->sample);
    if (!fits)
        return err_set(ERR_FAILED, "ledger entry %u does not fit those before it", e->number);
    int rc = ledger_put(l, e);
    l->bad[e->split] += rc == 0 && !e->only;
    return rc;
}

uint32_t ledger_count(const ledger_t *l)
{
    return l->count;
}

uint32_t ledger_samples(const ledger_t *l)
{
    return l->bad[CATALOG_TRAIN] + l->bad[CATALOG_VAL];
}

const wire_ledger_t *ledger_at(const ledger_t *l, uint32_t i)
{
    return i < l->count ? &l->entries[i] : NULL;
}
