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

static wire_ledger_t *ledger_find(ledger_t *l, uint32_t split, uint32_t sample)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->entries[i].split == split && l->entries[i].sample == sample)
            return &l->entries[i];
    return NULL;
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

static int ledger_append(ledger_t *l, const wire_bad_sample_t *bad, wire_ledger_t *entry)
{
    uint32_t n = l->samples[bad->split], substitute = bad->sample;
    int rc = ledger_grow(l);
    if (rc < 0)
        return rc;
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
    wire_ledger_t *e = &l->entries[l->count++];
    memset(e, 0, sizeof *e);
    wire_begin(e, WIRE_LEDGER, sizeof *e);
    e->split = bad->split;
    e->sample = bad->sample;
    e->substitute = substitute;
    e->number = l->count;
    e->from_epoch = bad->epoch;
    e->from_position = bad->position;
    *entry = *e;
    return LEDGER_NEW;
}

int ledger_report(ledger_t *l, const wire_bad_sample_t *bad, wire_ledger_t *entry)
{
    if (bad->split >= CATALOG_SPLITS || bad->sample >= l->samples[bad->split])
        return err_set(ERR_FAILED,
                       "a bad-sample report names sample %u of split %u, which is not there",
                       bad->sample, bad->split);
    wire_ledger_t *e = ledger_find(l, bad->split, bad->sample);
    if (!e)
        return ledger_append(l, bad, entry);
    int earlier = bad->epoch < e->from_epoch ||
                  (bad->epoch == e->from_epoch && bad->position < e->from_position);
    if (earlier) {
        e->from_epoch = bad->epoch;
        e->from_position = bad->position;
    }
    *entry = *e;
    return earlier ? LEDGER_LOWERED : LEDGER_KNOWN;
}

uint32_t ledger_count(const ledger_t *l)
{
    return l->count;
}

const wire_ledger_t *ledger_at(const ledger_t *l, uint32_t i)
{
    return i < l->count ? &l->entries[i] : NULL;
}
