#include "control/catalog.h"

#include "control/catalog_block.h"
#include "shm/err.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A growing table. String offsets in the items are relative to the strings until
 * catalog_builder_write. */
typedef struct {
    char *items;
    uint64_t count, room;
    size_t size; /* bytes of an item */
} table_t;

struct catalog_builder {
    table_t names, samples[CATALOG_SPLITS], labels, points, issues, strings;
};

/* Adds n items, or n uninitialised ones where items is NULL; at: index of the first. */
static int table_add(table_t *t, const void *items, uint64_t n, uint64_t *at)
{
    if (n > UINT32_MAX || t->count + n > UINT32_MAX)
        return err_set(ERR_DATA,
                       "the data set is too large for one sample list: more than 2^32 labels, "
                       "points or bytes of paths");
    if (t->count + n > t->room) {
        uint64_t room = t->room ? t->room : 64;
        while (room < t->count + n)
            room *= 2;
        char *grown = realloc(t->items, room * t->size);
        if (!grown)
            return err_set(ERR_ENV, "out of memory while building the sample list (%llu bytes)",
                           (unsigned long long)(room * t->size));
        t->items = grown;
        t->room = room;
    }
    if (at)
        *at = t->count;
    if (n > 0)
        memcpy(t->items + t->count * t->size, items, n * t->size);
    t->count += n;
    return 0;
}

static int add_string(catalog_builder_t *b, const char *text, uint64_t *at)
{
    return table_add(&b->strings, text, strlen(text) + 1, at);
}

int catalog_builder_new(catalog_builder_t **builder)
{
    catalog_builder_t *b = calloc(1, sizeof *b);
    *builder = b;
    if (!b)
        return err_set(ERR_ENV, "out of memory while starting the sample list");
    b->names.size = sizeof(uint64_t);
    b->samples[CATALOG_TRAIN].size = b->samples[CATALOG_VAL].size = sizeof(catalog_sample_t);
    b->labels.size = sizeof(catalog_label_t);
    b->points.size = 2 * sizeof(float);
    b->issues.size = sizeof(catalog_issue_t);
    b->strings.size = 1;
    int rc = add_string(b, "", NULL); /* the region is never empty */
    if (rc < 0)
        catalog_builder_free(builder);
    return rc;
}

void catalog_builder_free(catalog_builder_t **builder)
{
    catalog_builder_t *b = *builder;
    if (!b)
        return;
    table_t *const tables[] = {&b->names,
                               &b->samples[CATALOG_TRAIN],
                               &b->samples[CATALOG_VAL],
                               &b->labels,
                               &b->points,
                               &b->issues,
                               &b->strings};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        free(tables[i]->items);
    free(b);
    *builder = NULL;
}

int catalog_builder_class(catalog_builder_t *b, const char *name)
{
    uint64_t at;
    int rc = add_string(b, name, &at);
    return rc < 0 ? rc : table_add(&b->names, &at, 1, NULL);
}

int catalog_builder_sample(catalog_builder_t *b, catalog_split_t split, const char *path,
                           const catalog_sample_t *facts, const catalog_label_t *labels,
                           uint32_t n_labels, const float *points, uint32_t n_points)
{
    catalog_sample_t s = *facts;
    uint64_t first_point, first_label;
    int rc;
    if ((rc = add_string(b, path, &s.path)) < 0 ||
        (rc = table_add(&b->points, points, n_points, &first_point)) < 0 ||
        (rc = table_add(&b->labels, labels, n_labels, &first_label)) < 0)
        return rc;
    for (uint32_t i = 0; i < n_labels; i++) {
        catalog_label_t *l = (catalog_label_t *)b->labels.items + first_label + i;
        assert(l->n_points == 0 || l->first_point + l->n_points <= n_points);
        l->first_point = l->n_points ? l->first_point + (uint32_t)first_point : 0;
    }
    s.first_label = (uint32_t)first_label;
    s.n_labels = n_labels;
    s.pad = 0;
    s.pad2 = 0;
    return table_add(&b->samples[split], &s, 1, NULL);
}

int catalog_builder_issue(catalog_builder_t *b, catalog_issue_kind_t kind, catalog_split_t split,
                          const char *path, const char *reason)
{
    catalog_issue_t issue = {.kind = kind, .split = split};
    int rc;
    if ((rc = add_string(b, path, &issue.path)) < 0 ||
        (rc = add_string(b, reason, &issue.reason)) < 0)
        return rc;
    return table_add(&b->issues, &issue, 1, NULL);
}

/* Gives a table its place behind `end` and moves end behind it, to a multiple of 8. */
static catalog_table_t place(const table_t *t, uint64_t *end)
{
    catalog_table_t placed = {*end, t->count};
    *end += (t->count * t->size + 7) / 8 * 8;
    return placed;
}

static void copy_table(char *block, const catalog_table_t *at, const table_t *t)
{
    if (t->count > 0)
        memcpy(block + at->at, t->items, t->count * t->size);
}

/* String offsets from relative to the strings to relative to the block. */
static void rebase_strings(catalog_head_t *head)
{
    char *block = (char *)head;
    uint64_t base = head->strings.at;
    uint64_t *names = (uint64_t *)(block + head->names.at);
    catalog_issue_t *issues = (catalog_issue_t *)(block + head->issues.at);
    for (uint64_t i = 0; i < head->names.count; i++)
        names[i] += base;
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        catalog_sample_t *samples = (catalog_sample_t *)(block + head->samples[split].at);
        for (uint64_t i = 0; i < head->samples[split].count; i++)
            samples[i].path += base;
    }
    for (uint64_t i = 0; i < head->issues.count; i++) {
        issues[i].path += base;
        issues[i].reason += base;
    }
}

static catalog_head_t *assemble(const catalog_builder_t *b)
{
    catalog_head_t head = {.magic = CATALOG_MAGIC, .version = CATALOG_VERSION};
    uint64_t end = sizeof head;
    head.names = place(&b->names, &end);
    head.samples[CATALOG_TRAIN] = place(&b->samples[CATALOG_TRAIN], &end);
    head.samples[CATALOG_VAL] = place(&b->samples[CATALOG_VAL], &end);
    head.labels = place(&b->labels, &end);
    head.points = place(&b->points, &end);
    head.issues = place(&b->issues, &end);
    head.strings = place(&b->strings, &end);
    head.bytes = end;
    char *block = calloc(1, end);
    if (!block)
        return NULL;
    memcpy(block, &head, sizeof head);
    copy_table(block, &head.names, &b->names);
    copy_table(block, &head.samples[CATALOG_TRAIN], &b->samples[CATALOG_TRAIN]);
    copy_table(block, &head.samples[CATALOG_VAL], &b->samples[CATALOG_VAL]);
    copy_table(block, &head.labels, &b->labels);
    copy_table(block, &head.points, &b->points);
    copy_table(block, &head.issues, &b->issues);
    copy_table(block, &head.strings, &b->strings);
    catalog_head_t *placed = (catalog_head_t *)block;
    rebase_strings(placed);
    placed->digest = catalog_block_digest(placed);
    placed->sum = catalog_block_sum(placed);
    return placed;
}

int catalog_builder_write(catalog_builder_t *b, int fd)
{
    int rc = 0;
    catalog_head_t *block = assemble(b);
    if (!block)
        return err_set(ERR_ENV, "out of memory while finishing the sample list");
    uint64_t done = 0, bytes = block->bytes;
    if (ftruncate(fd, (off_t)bytes) < 0)
        rc = err_sys(ERR_ENV, "sizing the sample list to %llu bytes", (unsigned long long)bytes);
    while (rc == 0 && done < bytes) {
        ssize_t n = pwrite(fd, (char *)block + done, bytes - done, (off_t)done);
        if (n > 0)
            done += (uint64_t)n;
        else if (n == 0 || errno != EINTR)
            rc = err_sys(ERR_ENV, "writing the sample list of %llu bytes",
                         (unsigned long long)bytes);
    }
    free(block);
    /* Sealed in size, so that no reader can meet a SIGBUS. What is not a memfd cannot be sealed and
     * does not need it here: only tests use such. F_SEAL_WRITE would forbid shared mappings before
     * Linux 6.7. */
    if (rc == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0 && errno != EINVAL &&
        errno != EPERM)
        rc = err_sys(ERR_ENV, "sealing the sample list");
    return rc;
}
