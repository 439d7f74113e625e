#include "control/ledger.h"

#include "control/catalog.h"
#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

/* With more bad samples than this, the data set and not a file is broken. */
enum { LEDGER_MANY = 10, LEDGER_SHARE = 10 };

struct ledger {
    uint32_t samples[CATALOG_SPLITS], bad[CATALOG_SPLITS];
    wire_ledger_t *entries;
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
    free(*ledger);
    *ledger = NULL;
}

/* The entry of a sample that holds from a place on; NULL for a sample that is not known to be bad.
 */
static const wire_ledger_t *ledger_find(const ledger_t *l, uint32_t split, uint32_t sample)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->entries[i].split == split && l->entries[i].sample == sample && !l->entries[i].only)
            return &l->entries[i];
    return NULL;
}

static int ledger_covers(const ledger_t *l, const wire_bad_sample_t *bad)
{
    for (uint32_t i = 0; i < l->count; i++) {
        const wire_ledger_t *e = &l->entries[i];
        if (e->split != bad->split || e->sample != bad->sample)
            continue;
        int same = e->from_epoch == bad->epoch && e->from_position == bad->position;
        int behind = bad->epoch > e->from_epoch ||
                     (bad->epoch == e->from_epoch && bad->position > e->from_position);
        if (same || (behind && !e->only))
            return 1;
    }
    return 0;
}

static int ledger_grow(ledger_t *l)
{
    if (l->count < l->capacity)
        return 0;
    uint32_t capacity = l->capacity ? 2 * l->capacity : 16;
    wire_ledger_t *grown = realloc(l->entries, capacity * sizeof *grown);
    if (!grown)
        return err_set(ERR_ENV, "no memory for the ledger");
    l->entries = grown;
    l->capacity = capacity;
    return 0;
}

static int ledger_append(ledger_t *l, const wire_bad_sample_t *bad, uint32_t substitute, int only,
                         uint32_t epoch, uint64_t position)
{
    int rc = ledger_grow(l);
    if (rc < 0)
        return rc;
    wire_ledger_t *e = &l->entries[l->count++];
    memset(e, 0, sizeof *e);
    wire_begin(e, WIRE_LEDGER, sizeof *e);
    e->split = bad->split;
    e->sample = bad->sample;
    e->substitute = substitute;
    e->number = l->count;
    e->from_epoch = epoch;
    e->only = (uint32_t)only;
    e->from_position = position;
    return 0;
}

/* The first entry of a sample: what is read in its place, and from where on. */
static int ledger_begin(ledger_t *l, const wire_bad_sample_t *bad, const ledger_place_t *beyond)
{
    uint32_t n = l->samples[bad->split], substitute = bad->sample;
    uint32_t count = ++l->bad[bad->split];
    if (count >= n || (count >= LEDGER_MANY && (uint64_t)count * LEDGER_SHARE > n))
        return err_set(
            ERR_DATA,
            "%u of %u %s images could be read when the run began and cannot be read now; "
            "see the bad-sample lines, and check the storage they are on",
            count, n, bad->split == CATALOG_TRAIN ? "training" : "validation");
    do {
        substitute = (substitute + 1) % n;
    } while (ledger_find(l, bad->split, substitute));
    return ledger_append(l, bad, substitute, 0, beyond->epoch, beyond->position);
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
    *substitute = ledger_find(l, bad->split, bad->sample)->substitute;
    if (ledger_covers(l, bad))
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
    /* A sample's first entry holds from a place on; those by name come behind it. */
    if ((ledger_find(l, e->split, e->sample) != NULL) != (e->only == 1))
        return err_set(ERR_FAILED, "ledger entry %u does not fit those before it", e->number);
    int rc = ledger_grow(l);
    if (rc < 0)
        return rc;
    l->bad[e->split] += !e->only;
    l->entries[l->count] = *e;
    wire_begin(&l->entries[l->count++], WIRE_LEDGER, sizeof *e);
    return 0;
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
