#include "loader/reference.h"

#include "control/ledger.h"
#include "control/log.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMED = 5 /* differences with a line of their own */ };

void reference_init(reference_t *r, const catalog_t *list)
{
    memset(r, 0, sizeof *r);
    r->list = list;
}

void reference_fini(reference_t *r)
{
    for (int split = 0; split < CATALOG_SPLITS; split++)
        free(r->items[split]);
    memset(r, 0, sizeof *r);
}

/* ---- what is in the list, and what is there ---- */

static int compare_items(const void *a, const void *b)
{
    const reference_item_t *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    return order ? order : (x->sample > y->sample) - (x->sample < y->sample);
}

/* The places of a split, by path. */
static reference_item_t *places_of(const catalog_t *list, catalog_split_t split)
{
    uint32_t n = catalog_count(list, split);
    reference_item_t *places = calloc((size_t)n + 1, sizeof *places);
    for (uint32_t i = 0; places && i < n; i++)
        places[i] =
            (reference_item_t){catalog_path(list, catalog_sample(list, split, i)), NULL, i, 0};
    if (places)
        qsort(places, n, sizeof *places, compare_items);
    return places;
}

/* The files that were left out of a split, by path. */
static reference_item_t *left_out_of(const catalog_t *list, catalog_split_t split, uint32_t *count)
{
    uint32_t all = catalog_issues(list), n = 0;
    reference_item_t *files = calloc((size_t)all + 1, sizeof *files);
    for (uint32_t i = 0; files && i < all; i++) {
        const catalog_issue_t *issue = catalog_issue(list, i);
        if (issue->kind == CATALOG_DROPPED && issue->split == (uint32_t)split)
            files[n++] = (reference_item_t){catalog_string(list, issue->path),
                                            catalog_string(list, issue->reason), REFERENCE_NONE, 0};
    }
    if (files)
        qsort(files, n, sizeof *files, compare_items);
    *count = n;
    return files;
}

static int compare_path(const void *path, const void *item)
{
    return strcmp(path, ((const reference_item_t *)item)->path);
}

int reference_match(reference_t *r, catalog_split_t split, const paths_t *files, double fraction)
{
    uint32_t n = catalog_count(r->list, split), n_out = 0, count = 0, i = 0, j = 0;
    reference_item_t *places = places_of(r->list, split);
    reference_item_t *out = left_out_of(r->list, split, &n_out);
    reference_item_t *items = calloc((size_t)n + files->count + 1, sizeof *items);
    int rc = places && out && items ? 0 : err_set(ERR_ENV, "no memory for a list of %u images", n);
    while (rc == 0 && (i < n || j < files->count)) {
        int order = i == n ? 1 : j == files->count ? -1 : strcmp(places[i].path, files->items[j]);
        reference_item_t *item = &items[count];
        if (order <= 0) {
            *item = places[i++];
            item->listed = order == 0;
            j += order == 0;
            count++;
            continue;
        }
        const char *path = files->items[j++];
        const reference_item_t *was = bsearch(path, out, n_out, sizeof *out, compare_path);
        if (!was && fraction < 1 && i == n)
            continue;
        *item = (reference_item_t){path, was ? was->left_out : NULL, REFERENCE_NONE, 1};
        count++;
    }
    free(places);
    free(out);
    if (rc < 0) {
        free(items);
        return rc;
    }
    r->items[split] = items;
    r->count[split] = count;
    return 0;
}

int reference_has(const reference_t *r, catalog_split_t split, const char *path)
{
    const reference_item_t *item =
        bsearch(path, r->items[split], r->count[split], sizeof *item, compare_path);
    return item && item->sample != REFERENCE_NONE;
}

/* ---- what has become of it ---- */

__attribute__((format(printf, 3, 4))) static void differs(reference_t *r, const char *path,
                                                          const char *fmt, ...)
{
    char what[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (r->differences++ == 0)
        snprintf(r->first_difference, sizeof r->first_difference, "%.130s: %s", path, what);
    if (r->differences <= NAMED)
        log_line(LOG_WARN, "%s: %s", path, what);
}

static int same_facts(const catalog_sample_t *s, const catalog_sample_t *f)
{
    return s->file_bytes == f->file_bytes && s->width == f->width && s->height == f->height &&
           s->format == f->format && s->orientation == f->orientation;
}

/* Rows and, where the list has polygons, their points: where boxes and polygons were mixed, all of
 * them are boxes in it. */
static int same_labels(const reference_t *r, catalog_split_t split, const catalog_sample_t *s,
                       const labels_t *l)
{
    const catalog_label_t *rows = catalog_labels(r->list, s);
    int polygons = catalog_split_polygons(r->list, split);
    if (s->n_labels != l->n)
        return 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const catalog_label_t *a = &rows[i], *b = &l->rows[i];
        uint32_t points = polygons ? b->n_points : 0;
        if (memcmp(&a->cls, &b->cls, 5 * sizeof(float)) != 0 || a->n_points != points)
            return 0;
        if (points > 0 && memcmp(catalog_points(r->list, a), l->points + 2 * (size_t)b->first_point,
                                 2 * sizeof(float) * points) != 0)
            return 0;
    }
    return 1;
}

/* reason, which is given away, says why the finding's image cannot be used. */
static int drop(finding_t *f, int length, char *reason)
{
    if (length < 0)
        return err_set(ERR_ENV, "no memory for the scan's remarks");
    free(f->dropped);
    f->dropped = reason;
    return 0;
}

static void keep(reference_t *r, catalog_split_t split, const reference_item_t *item, finding_t *f)
{
    f->kept = 1;
    if (r->kept[split]++ == 0)
        snprintf(r->first_kept[split], sizeof r->first_kept[split], "%.140s: %.140s", item->path,
                 f->dropped);
}

static int judge_place(reference_t *r, catalog_split_t split, const reference_item_t *item,
                       finding_t *f)
{
    const catalog_sample_t *s = catalog_sample(r->list, split, item->sample);
    char *reason = NULL;
    if (f->dropped && !f->labels_bad) {
        keep(r, split, item, f);
        return 0;
    }
    int same = same_facts(s, &f->facts);
    if (!same && !f->sound) {
        int n =
            asprintf(&reason, "damaged: %llu bytes, and %llu when the run began",
                     (unsigned long long)f->facts.file_bytes, (unsigned long long)s->file_bytes);
        int rc = drop(f, n, reason);
        if (rc == 0)
            keep(r, split, item, f);
        return rc;
    }
    if (!item->listed)
        differs(r, item->path, "it is there, and the data set no longer names it");
    else if (!same)
        differs(r, item->path, "another image: %u x %u in %llu bytes, and %u x %u in %llu before",
                f->facts.width, f->facts.height, (unsigned long long)f->facts.file_bytes, s->width,
                s->height, (unsigned long long)s->file_bytes);
    else if (f->labels_bad)
        differs(r, item->path, "its labels have changed: %s", f->dropped);
    else if (!same_labels(r, split, s, &f->labels) && f->labels.n == s->n_labels)
        differs(r, item->path, "its labels have changed: the same number, and others");
    else if (f->labels.n != s->n_labels)
        differs(r, item->path, "its labels have changed: %u object%s, and %u before", f->labels.n,
                f->labels.n == 1 ? "" : "s", s->n_labels);
    return 0;
}

static int judge_other(reference_t *r, const reference_item_t *item, finding_t *f)
{
    char *reason = NULL;
    if (f->dropped)
        return 0; /* left out, as by any scan */
    if (item->left_out) {
        int n = asprintf(&reason,
                         "stays out of this run's list, though it can be used now: when the "
                         "run began, %s",
                         item->left_out);
        return drop(f, n, reason);
    }
    if (r->added++ == 0)
        snprintf(r->first_added, sizeof r->first_added, "%s", item->path);
    differs(r, item->path, "it was not there when the run began");
    return 0;
}

int reference_judge(reference_t *r, catalog_split_t split, finding_t *findings)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < r->count[split]; i++) {
        const reference_item_t *item = &r->items[split][i];
        rc = item->sample == REFERENCE_NONE ? judge_other(r, item, &findings[i])
                                            : judge_place(r, split, item, &findings[i]);
    }
    return rc;
}

static int check_names(const reference_t *r, const paths_t *names, int single_cls)
{
    uint32_t n = single_cls ? 1 : names->count;
    if (catalog_classes(r->list) != n)
        return err_set(ERR_CONFIG,
                       "the data set has %u classes, and %u when the run began: put them back, or "
                       "start a new run from weights/last.safetensors",
                       n, catalog_classes(r->list));
    for (uint32_t i = 0; i < n && !single_cls; i++)
        if (strcmp(catalog_class_name(r->list, i), names->items[i]) != 0)
            return err_set(
                ERR_CONFIG,
                "class %u of the data set is '%.60s', and '%.60s' when the run began: put "
                "it back, or start a new run from weights/last.safetensors",
                i, names->items[i], catalog_class_name(r->list, i));
    return 0;
}

int reference_verdict(const reference_t *r, const paths_t *names, int single_cls)
{
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        uint32_t n = catalog_count(r->list, (catalog_split_t)split);
        if (!r->kept[split] || !ledger_too_many(r->kept[split], n))
            continue;
        int rc = err_set(ERR_DATA,
                         "%u of the run's %u %s images cannot be read now, the first: %s; is the "
                         "storage that they are on there? Bring it back, and resume again",
                         r->kept[split], n, split == CATALOG_TRAIN ? "training" : "validation",
                         r->first_kept[split]);
        if (r->added)
            log_line(LOG_WARN,
                     "%u images that the run does not know are there, as %s: if the data set was "
                     "moved, move it back",
                     r->added, r->first_added);
        return rc;
    }
    int rc = check_names(r, names, single_cls);
    if (rc < 0 || r->differences == 0)
        return rc;
    return err_set(
        ERR_CONFIG,
        "%u image%s not as when the run began, the first: %s; put that back (a file that is "
        "not there keeps its place), or start a new run from weights/last.safetensors",
        r->differences, r->differences == 1 ? " is" : "s are", r->first_difference);
}

/* ---- the list again ---- */

/* The labels of a sample with their points beside each other; both grow. */
typedef struct {
    catalog_label_t *rows;
    float *points;
    size_t rows_room, points_room;
} copy_t;

static int make_room(void **items, size_t *room, size_t count, size_t size)
{
    if (count <= *room)
        return 0;
    void *grown = realloc(*items, count * size);
    if (!grown)
        return err_set(ERR_ENV, "no memory for %zu labels", count);
    *items = grown;
    *room = count;
    return 0;
}

static int copy_labels(const catalog_t *list, const catalog_sample_t *s, copy_t *c,
                       uint32_t *points)
{
    const catalog_label_t *rows = catalog_labels(list, s);
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_labels; i++)
        n += rows[i].n_points;
    int rc = make_room((void **)&c->rows, &c->rows_room, (size_t)s->n_labels + 1, sizeof *c->rows);
    if (rc == 0)
        rc = make_room((void **)&c->points, &c->points_room, 2 * n + 1, sizeof *c->points);
    if (rc < 0)
        return rc;
    n = 0;
    for (uint32_t i = 0; i < s->n_labels; i++) {
        c->rows[i] = rows[i];
        c->rows[i].first_point = (uint32_t)n;
        memcpy(c->points + 2 * n, catalog_points(list, &rows[i]),
               2 * sizeof(float) * rows[i].n_points);
        n += rows[i].n_points;
    }
    *points = (uint32_t)n;
    return 0;
}

int reference_samples(const reference_t *r, catalog_split_t split, const finding_t *findings,
                      catalog_builder_t *b)
{
    uint32_t n = catalog_count(r->list, split), points;
    uint8_t *warned = calloc((size_t)n + 1, 1);
    copy_t c = {0};
    int rc = warned ? 0 : err_set(ERR_ENV, "no memory for a list of %u images", n);
    for (uint32_t i = 0; rc == 0 && i < r->count[split]; i++)
        if (r->items[split][i].sample != REFERENCE_NONE)
            warned[r->items[split][i].sample] = !findings[i].kept && findings[i].facts.warned;
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        catalog_sample_t facts = *catalog_sample(r->list, split, i);
        CHECK_GOTO(copy_labels(r->list, &facts, &c, &points), rc, done);
        const char *path = catalog_path(r->list, &facts);
        facts.warned = warned[i];
        rc = catalog_builder_sample(b, split, path, &facts, c.rows, facts.n_labels, c.points,
                                    points);
    }
done:
    free(warned);
    free(c.rows);
    free(c.points);
    return rc;
}
