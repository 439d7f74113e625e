#include "loader/substitutes.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

void substitutes_init(substitutes_t *s)
{
    memset(s, 0, sizeof *s);
}

void substitutes_fini(substitutes_t *s)
{
    free(s->entries);
    substitutes_init(s);
}

static wire_ledger_t *substitutes_find(const substitutes_t *s, uint32_t split, uint32_t sample)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->entries[i].split == split && s->entries[i].sample == sample)
            return &s->entries[i];
    return NULL;
}

int substitutes_add(substitutes_t *s, const wire_ledger_t *entry)
{
    wire_ledger_t *known = substitutes_find(s, entry->split, entry->sample);
    if (known) {
        *known = *entry;
        return 0;
    }
    if (s->count == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 16;
        wire_ledger_t *entries = realloc(s->entries, capacity * sizeof *entries);
        if (!entries)
            return err_set(ERR_ENV, "no memory for %u ledger entries", capacity);
        s->entries = entries;
        s->capacity = capacity;
    }
    s->entries[s->count++] = *entry;
    return 0;
}

uint32_t substitutes_resolve(const substitutes_t *s, uint32_t split, uint32_t sample,
                             uint32_t epoch, uint64_t position)
{
    /* No chain is longer than the ledger; the bound also ends a ring of entries. */
    for (uint32_t hops = 0; hops < s->count; hops++) {
        const wire_ledger_t *e = substitutes_find(s, split, sample);
        if (!e || epoch < e->from_epoch || (epoch == e->from_epoch && position < e->from_position))
            break;
        sample = e->substitute;
    }
    return sample;
}
