#include "control/catalog.h"

#include "control/catalog_block.h"
#include "control/wire.h"
#include "shm/arena.h"
#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct catalog {
    const catalog_head_t *head;
    void *mapped; /* NULL over the caller's memory */
    uint64_t bytes;
    uint32_t backgrounds[CATALOG_SPLITS];
    uint32_t max_labels;
    int has_polygons[CATALOG_SPLITS];
};

static const void *table_at(const catalog_head_t *head, const catalog_table_t *table)
{
    return (const char *)head + table->at;
}

static int damaged(const char *what)
{
    return err_set(ERR_FAILED, "the sample list is damaged: %s", what);
}

/* Whether a table of items of `size` bytes lies inside the block. */
static int table_fits(const catalog_head_t *head, const catalog_table_t *table, uint64_t size)
{
    return table->at % 8 == 0 && table->at >= sizeof *head && table->at <= head->bytes &&
           table->count <= (head->bytes - table->at) / size && table->count <= UINT32_MAX;
}

static int string_fits(const catalog_head_t *head, uint64_t offset)
{
    return offset >= head->strings.at && offset - head->strings.at < head->strings.count;
}

static int check_head(const catalog_head_t *head, uint64_t bytes)
{
    if (bytes < sizeof *head)
        return damaged("it is shorter than its header");
    if (head->magic != CATALOG_MAGIC)
        return damaged("its first word is wrong");
    if (head->version != CATALOG_VERSION)
        return err_set(ERR_FAILED,
                       "the sample list has layout %u, this program reads %d: all programs of "
                       "a run must come from one build",
                       head->version, CATALOG_VERSION);
    if (head->bytes != bytes)
        return damaged("its size differs from the size that it states");
    if (!table_fits(head, &head->names, sizeof(uint64_t)) ||
        !table_fits(head, &head->samples[CATALOG_TRAIN], sizeof(catalog_sample_t)) ||
        !table_fits(head, &head->samples[CATALOG_VAL], sizeof(catalog_sample_t)) ||
        !table_fits(head, &head->labels, sizeof(catalog_label_t)) ||
        !table_fits(head, &head->points, 2 * sizeof(float)) ||
        !table_fits(head, &head->issues, sizeof(catalog_issue_t)) ||
        !table_fits(head, &head->strings, 1))
        return damaged("a table reaches beyond its end");
    const char *strings = table_at(head, &head->strings);
    if (head->strings.count == 0 || strings[head->strings.count - 1] != '\0')
        return damaged("its texts are not terminated");
    return 0;
}

static int check_label(const catalog_head_t *head, const catalog_label_t *l)
{
    if (!(l->cls >= 0 && l->cls < (float)head->names.count) || l->cls != floorf(l->cls))
        return damaged("a label's class is none of the classes");
    if (!isfinite(l->cx) || !isfinite(l->cy) || !isfinite(l->w) || !isfinite(l->h))
        return damaged("a label is not a number");
    if ((uint64_t)l->first_point + l->n_points > head->points.count)
        return damaged("a polygon reaches beyond the points");
    return 0;
}

static int check_split(catalog_t *c, catalog_split_t split)
{
    const catalog_head_t *head = c->head;
    const catalog_sample_t *samples = table_at(head, &head->samples[split]);
    const catalog_label_t *labels = table_at(head, &head->labels);
    int rc;
    for (uint64_t i = 0; i < head->samples[split].count; i++) {
        const catalog_sample_t *s = &samples[i];
        if (!string_fits(head, s->path))
            return damaged("a path lies outside its texts");
        if ((uint64_t)s->first_label + s->n_labels > head->labels.count)
            return damaged("a sample's labels reach beyond the table");
        if (s->width == 0 || s->height == 0 || s->format > CATALOG_BMP || s->orientation < 1 ||
            s->orientation > 8)
            return damaged("a sample's size, format or orientation is impossible");
        for (uint32_t k = 0; k < s->n_labels; k++) {
            if ((rc = check_label(head, &labels[s->first_label + k])) < 0)
                return rc;
            c->has_polygons[split] |= labels[s->first_label + k].n_points > 0;
        }
        c->backgrounds[split] += s->n_labels == 0;
        if (s->n_labels > c->max_labels)
            c->max_labels = s->n_labels;
    }
    return 0;
}

static int check_rest(const catalog_head_t *head)
{
    const uint64_t *names = table_at(head, &head->names);
    const catalog_issue_t *issues = table_at(head, &head->issues);
    for (uint64_t i = 0; i < head->names.count; i++)
        if (!string_fits(head, names[i]))
            return damaged("a class name lies outside its texts");
    for (uint64_t i = 0; i < head->issues.count; i++)
        if (!string_fits(head, issues[i].path) || !string_fits(head, issues[i].reason) ||
            issues[i].kind > CATALOG_KEPT || issues[i].split >= CATALOG_SPLITS)
            return damaged("a remark lies outside its texts");
    return 0;
}

int catalog_open_memory(const void *base, uint64_t bytes, catalog_t **catalog)
{
    int rc;
    catalog_t *c = calloc(1, sizeof *c);
    *catalog = NULL;
    if (!c)
        return err_set(ERR_ENV, "out of memory while opening the sample list");
    c->head = base;
    c->bytes = bytes;
    CHECK_GOTO(check_head(c->head, bytes), rc, fail);
    CHECK_GOTO(check_rest(c->head), rc, fail);
    CHECK_GOTO(check_split(c, CATALOG_TRAIN), rc, fail);
    CHECK_GOTO(check_split(c, CATALOG_VAL), rc, fail);
    if (catalog_block_digest(c->head) != c->head->digest) {
        rc = damaged("its digest does not match");
        goto fail;
    }
    *catalog = c;
    return 0;
fail:
    free(c);
    return rc;
}

int catalog_open(int fd, catalog_t **catalog)
{
    void *base = NULL;
    uint64_t bytes = 0;
    *catalog = NULL;
    int rc = arena_map(fd, 0, &base, &bytes);
    if (rc < 0)
        return err_add(rc, "the sample list");
    rc = catalog_open_memory(base, bytes, catalog);
    if (rc < 0)
        arena_unmap(base, bytes);
    else
        (*catalog)->mapped = base;
    return rc;
}

void catalog_close(catalog_t **catalog)
{
    if (!*catalog)
        return;
    if ((*catalog)->mapped)
        arena_unmap((*catalog)->mapped, (*catalog)->bytes);
    free(*catalog);
    *catalog = NULL;
}

int catalog_check_saved(const catalog_t *c)
{
    uint64_t n_labels = 0, n_points = 0;
    if (catalog_block_sum(c->head) != c->head->sum)
        return err_set(ERR_FAILED, "its sum does not match");
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        const catalog_sample_t *samples = table_at(c->head, &c->head->samples[split]);
        for (uint64_t i = 0; i < c->head->samples[split].count; i++) {
            const catalog_label_t *labels = catalog_labels(c, &samples[i]);
            n_labels += samples[i].n_labels;
            for (uint32_t k = 0; k < samples[i].n_labels && n_labels <= c->head->labels.count; k++)
                n_points += labels[k].n_points;
        }
    }
    if (n_labels != c->head->labels.count || n_points != c->head->points.count)
        return err_set(ERR_FAILED, "a label belongs to several images, or to none");
    return 0;
}

uint32_t catalog_classes(const catalog_t *c)
{
    return (uint32_t)c->head->names.count;
}

const char *catalog_class_name(const catalog_t *c, uint32_t cls)
{
    const uint64_t *names = table_at(c->head, &c->head->names);
    return cls < c->head->names.count ? catalog_string(c, names[cls]) : "";
}

uint32_t catalog_count(const catalog_t *c, catalog_split_t split)
{
    return (uint32_t)c->head->samples[split].count;
}

uint32_t catalog_backgrounds(const catalog_t *c, catalog_split_t split)
{
    return c->backgrounds[split];
}

uint64_t catalog_digest(const catalog_t *c)
{
    return c->head->digest;
}

const catalog_sample_t *catalog_sample(const catalog_t *c, catalog_split_t split, uint32_t i)
{
    const catalog_sample_t *samples = table_at(c->head, &c->head->samples[split]);
    return i < c->head->samples[split].count ? &samples[i] : NULL;
}

const char *catalog_path(const catalog_t *c, const catalog_sample_t *s)
{
    return catalog_string(c, s->path);
}

const catalog_label_t *catalog_labels(const catalog_t *c, const catalog_sample_t *s)
{
    return (const catalog_label_t *)table_at(c->head, &c->head->labels) + s->first_label;
}

const float *catalog_points(const catalog_t *c, const catalog_label_t *l)
{
    return (const float *)table_at(c->head, &c->head->points) + 2 * (size_t)l->first_point;
}

int catalog_has_polygons(const catalog_t *c)
{
    return c->has_polygons[CATALOG_TRAIN] || c->has_polygons[CATALOG_VAL];
}

int catalog_split_polygons(const catalog_t *c, catalog_split_t split)
{
    return c->has_polygons[split];
}

uint32_t catalog_max_labels(const catalog_t *c)
{
    return c->max_labels;
}

uint32_t catalog_issues(const catalog_t *c)
{
    return (uint32_t)c->head->issues.count;
}

const catalog_issue_t *catalog_issue(const catalog_t *c, uint32_t i)
{
    const catalog_issue_t *issues = table_at(c->head, &c->head->issues);
    return i < c->head->issues.count ? &issues[i] : NULL;
}

const char *catalog_string(const catalog_t *c, uint64_t offset)
{
    return string_fits(c->head, offset) ? (const char *)c->head + offset : "";
}

void catalog_val_shape(const catalog_t *c, uint32_t first, uint32_t count, uint32_t imgsz,
                       uint32_t *height, uint32_t *width)
{
    double least = INFINITY, most = 0, h = 1, w = 1; /* facts/yolo.md 6.1 */
    for (uint32_t i = first; i - first < count; i++) {
        const catalog_sample_t *s = catalog_sample(c, CATALOG_VAL, i);
        if (!s)
            break;
        double ratio = (double)s->height / s->width;
        least = ratio < least ? ratio : least;
        most = ratio > most ? ratio : most;
    }
    if (most > 0 && most < 1)
        h = most;
    else if (most > 0 && least > 1)
        w = 1 / least;
    *height = (uint32_t)ceil(h * imgsz / 32 + 0.5) * 32;
    *width = (uint32_t)ceil(w * imgsz / 32 + 0.5) * 32;
}

/* FNV-1a of 64 bits (Fowler, Noll, Vo), a byte at a time. */
static uint64_t digest_bytes(uint64_t digest, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        digest = (digest ^ p[i]) * UINT64_C(0x100000001b3);
    return digest;
}

static uint64_t digest_u64(uint64_t digest, uint64_t value)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    return digest_bytes(digest, bytes, sizeof bytes);
}

static uint64_t digest_text(uint64_t digest, const catalog_head_t *head, uint64_t offset)
{
    const char *text = (const char *)head + offset;
    return digest_bytes(digest, text, strlen(text) + 1);
}

static uint64_t digest_sample(uint64_t digest, const catalog_head_t *head,
                              const catalog_sample_t *s)
{
    const catalog_label_t *labels = table_at(head, &head->labels);
    const float *points = table_at(head, &head->points);
    digest = digest_text(digest, head, s->path);
    digest = digest_u64(digest, s->file_bytes);
    digest = digest_u64(digest, (uint64_t)s->width << 32 | s->height);
    digest = digest_u64(digest, (uint64_t)s->orientation << 8 | s->format);
    digest = digest_u64(digest, s->n_labels);
    for (uint32_t k = 0; k < s->n_labels; k++) {
        const catalog_label_t *l = &labels[s->first_label + k];
        digest = digest_bytes(digest, &l->cls, 5 * sizeof(float));
        digest = digest_u64(digest, l->n_points);
        digest = digest_bytes(digest, points + 2 * (size_t)l->first_point,
                              2 * sizeof(float) * l->n_points);
    }
    return digest;
}

uint64_t catalog_block_digest(const catalog_head_t *head)
{
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    const uint64_t *names = table_at(head, &head->names);
    digest = digest_u64(digest, head->version);
    digest = digest_u64(digest, head->names.count);
    for (uint64_t i = 0; i < head->names.count; i++)
        digest = digest_text(digest, head, names[i]);
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        const catalog_sample_t *samples = table_at(head, &head->samples[split]);
        digest = digest_u64(digest, head->samples[split].count);
        for (uint64_t i = 0; i < head->samples[split].count; i++)
            digest = digest_sample(digest, head, &samples[i]);
    }
    return digest;
}

uint32_t catalog_block_sum(const catalog_head_t *head)
{
    catalog_head_t own = *head;
    own.sum = 0;
    uint64_t sum = wire_mix(wire_checksum(&own, sizeof own),
                            wire_checksum(head + 1, head->bytes - sizeof *head));
    return (uint32_t)(sum ^ sum >> 32);
}
