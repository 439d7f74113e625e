#include "control/outnames.h"

#include "control/found.h"
#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *stem;
    size_t length;
    uint32_t image;
} stem_t;

static int compare_text(const char *a, size_t na, const char *b, size_t nb)
{
    int order = memcmp(a, b, na < nb ? na : nb);
    return order ? order : (na > nb) - (na < nb);
}

static int compare_stems(const void *a, const void *b)
{
    const stem_t *x = a, *y = b;
    int order = compare_text(x->stem, x->length, y->stem, y->length);
    return order ? order : (x->image > y->image) - (x->image < y->image);
}

/* Whether an image of the list has this name by itself. */
static int is_stem(const stem_t *stems, uint32_t n, const char *text)
{
    uint32_t low = 0, high = n;
    size_t length = strlen(text);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare_text(stems[middle].stem, stems[middle].length, text, length);
        if (order == 0)
            return 1;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

int outnames_init(outnames_t *names, const catalog_t *catalog)
{
    uint32_t n = catalog_count(catalog, CATALOG_VAL), next = 2;
    stem_t *stems = malloc(((size_t)n + 1) * sizeof *stems);
    char text[512];
    *names = (outnames_t){.catalog = catalog, .suffix = calloc((size_t)n + 1, sizeof(uint32_t))};
    if (!stems || !names->suffix) {
        free(stems);
        outnames_fini(names);
        return err_set(ERR_ENV, "no memory for the names of %u images", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *path = catalog_path(catalog, catalog_sample(catalog, CATALOG_VAL, i));
        stems[i].stem = found_stem(path, &stems[i].length);
        stems[i].image = i;
    }
    qsort(stems, n, sizeof *stems, compare_stems);
    for (uint32_t i = 1; i < n; i++) {
        const stem_t *s = &stems[i], *before = &stems[i - 1];
        if (compare_text(s->stem, s->length, before->stem, before->length) != 0) {
            next = 2;
            continue;
        }
        do {
            snprintf(text, sizeof text, "%.*s-%u", (int)s->length, s->stem, next);
        } while (is_stem(stems, n, text) && ++next);
        names->suffix[s->image] = next++;
    }
    free(stems);
    return 0;
}

void outnames_fini(outnames_t *names)
{
    free(names->suffix);
    names->suffix = NULL;
}

void outnames_get(const outnames_t *names, uint32_t i, char *text, size_t room)
{
    size_t length;
    const char *path = catalog_path(names->catalog, catalog_sample(names->catalog, CATALOG_VAL, i));
    const char *stem = found_stem(path, &length);
    if (names->suffix[i])
        snprintf(text, room, "%.*s-%u", (int)length, stem, names->suffix[i]);
    else
        snprintf(text, room, "%.*s", (int)length, stem);
}
