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

int substitutes_add(substitutes_t *s, const wire_ledger_t *entry)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const wire_ledger_t *e = &s->entries[i];
        if (e->split == entry->split && e->sample == entry->sample && e->only == entry->only &&
            e->from_epoch == entry->from_epoch && e->from_position == entry->from_position)
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

static const wire_ledger_t *substitutes_find(const substitutes_t *s, uint32_t split,
                                             uint32_t sample, uint32_t epoch, uint64_t position)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const wire_ledger_t *e = &s->entries[i];
        if (e->split != split || e->sample != sample)
            continue;
        if (epoch == e->from_epoch && position == e->from_position)
            return e;
        if (!e->only &&
            (epoch > e->from_epoch || (epoch == e->from_epoch && position > e->from_position)))
            return e;
    }
    return NULL;
}

uint32_t substitutes_resolve(const substitutes_t *s, uint32_t split, uint32_t sample,
                             uint32_t epoch, uint64_t position)
{
    /* No chain is longer than the ledger; the bound also ends a ring of entries. */
    for (uint32_t hops = 0; hops < s->count; hops++) {
        const wire_ledger_t *e = substitutes_find(s, split, sample, epoch, position);
        if (!e)
            break;
        sample = e->substitute;
    }
    return sample;
}
