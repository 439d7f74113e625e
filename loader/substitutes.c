#include "loader/substitutes.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

enum { SUBSTITUTES_FIRST = 16 /* entries; a power of 2, as every capacity */ };

void substitutes_init(substitutes_t *s)
{
    memset(s, 0, sizeof *s);
}

void substitutes_fini(substitutes_t *s)
{
    free(s->entries);
    free(s->next);
    free(s->buckets);
    substitutes_init(s);
}

static uint32_t *substitutes_bucket(const substitutes_t *s, uint32_t split, uint32_t sample)
{
    return &s->buckets[wire_mix(split, sample) & (s->capacity - 1)];
}

/* Puts entry i into its bucket, behind those that are there: an earlier entry is found first. */
static void substitutes_link(substitutes_t *s, uint32_t i)
{
    uint32_t *at = substitutes_bucket(s, s->entries[i].split, s->entries[i].sample);
    while (*at)
        at = &s->next[*at - 1];
    *at = i + 1;
    s->next[i] = 0;
}

static int substitutes_grow(substitutes_t *s)
{
    uint32_t capacity = s->capacity ? 2 * s->capacity : SUBSTITUTES_FIRST;
    wire_ledger_t *entries = realloc(s->entries, capacity * sizeof *entries);
    if (entries)
        s->entries = entries;
    uint32_t *next = entries ? calloc(capacity, sizeof *next) : NULL;
    uint32_t *buckets = next ? calloc(capacity, sizeof *buckets) : NULL;
    if (!buckets) {
        free(next);
        return err_set(ERR_ENV, "no memory for %u ledger entries", capacity);
    }
    free(s->next);
    free(s->buckets);
    s->next = next;
    s->buckets = buckets;
    s->capacity = capacity;
    for (uint32_t i = 0; i < s->count; i++)
        substitutes_link(s, i);
    return 0;
}

/* The first entry of the sample from `at` on (index + 1); 0: there is none. */
static uint32_t substitutes_of(const substitutes_t *s, uint32_t at, uint32_t split, uint32_t sample)
{
    while (at && (s->entries[at - 1].split != split || s->entries[at - 1].sample != sample))
        at = s->next[at - 1];
    return at;
}

static uint32_t substitutes_first(const substitutes_t *s, uint32_t split, uint32_t sample)
{
    return s->count ? substitutes_of(s, *substitutes_bucket(s, split, sample), split, sample) : 0;
}

int substitutes_add(substitutes_t *s, const wire_ledger_t *entry)
{
    for (uint32_t at = substitutes_first(s, entry->split, entry->sample); at;
         at = substitutes_of(s, s->next[at - 1], entry->split, entry->sample)) {
        const wire_ledger_t *e = &s->entries[at - 1];
        if (e->only == entry->only && e->from_epoch == entry->from_epoch &&
            e->from_position == entry->from_position)
            return 0;
    }
    int rc = s->count == s->capacity ? substitutes_grow(s) : 0;
    if (rc < 0)
        return rc;
    s->entries[s->count] = *entry;
    substitutes_link(s, s->count++);
    return 0;
}

static const wire_ledger_t *substitutes_find(const substitutes_t *s, uint32_t split,
                                             uint32_t sample, uint32_t epoch, uint64_t position)
{
    for (uint32_t at = substitutes_first(s, split, sample); at;
         at = substitutes_of(s, s->next[at - 1], split, sample)) {
        const wire_ledger_t *e = &s->entries[at - 1];
        int here = epoch == e->from_epoch && position == e->from_position;
        int behind =
            epoch > e->from_epoch || (epoch == e->from_epoch && position > e->from_position);
        if (here || (behind && !e->only))
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
