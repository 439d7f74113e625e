#include "control/found.h"

#include "control/json.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FOUND_EDGE = 2 /* pixels from a border that still touch it */ };
#define FOUND_COVERED 0.5f /* share of a cut box inside another that makes it a part of that */

int found_is_cut(const wire_box_t *b, const part_t *p, uint32_t width, uint32_t height)
{
    float left = (float)p->x, top = (float)p->y;
    float right = left + (float)p->width, bottom = top + (float)p->height;
    return (p->x > 0 && b->x1 <= left + FOUND_EDGE) || (p->y > 0 && b->y1 <= top + FOUND_EDGE) ||
           (p->x + p->width < width && b->x2 >= right - FOUND_EDGE) ||
           (p->y + p->height < height && b->y2 >= bottom - FOUND_EDGE);
}

static float area(const wire_box_t *b)
{
    return (b->x2 - b->x1) * (b->y2 - b->y1);
}

static float common(const wire_box_t *a, const wire_box_t *b)
{
    float w = fminf(a->x2, b->x2) - fmaxf(a->x1, b->x1);
    float h = fminf(a->y2, b->y2) - fmaxf(a->y1, b->y1);
    return w > 0 && h > 0 ? w * h : 0;
}

static int by_score(const wire_box_t *a, const wire_box_t *b)
{
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->cls != b->cls)
        return a->cls < b->cls ? -1 : 1;
    if (a->x1 != b->x1)
        return a->x1 < b->x1 ? -1 : 1;
    return (a->y1 > b->y1) - (a->y1 < b->y1);
}

/* Whole ones first: what is left of a cut one must not suppress the whole. */
static int whole_first(const void *a, const void *b)
{
    const found_t *x = a, *y = b;
    if (x->cut != y->cut)
        return x->cut - y->cut;
    int order = by_score(&x->box, &y->box);
    return order ? order : (x->tile > y->tile) - (x->tile < y->tile);
}

static int best_first(const void *a, const void *b)
{
    const found_t *x = a, *y = b;
    int order = by_score(&x->box, &y->box);
    return order ? order : (x->tile > y->tile) - (x->tile < y->tile);
}

static int goes(const found_t *f, const found_t *kept, uint32_t n, double iou, int agnostic)
{
    for (uint32_t i = 0; i < n; i++) {
        const found_t *k = &kept[i];
        /* Within a tile it has been done. */
        if (k->tile == f->tile || (!agnostic && k->box.cls != f->box.cls))
            continue;
        float both = common(&f->box, &k->box);
        if (both == 0)
            continue;
        float own = area(&f->box);
        if ((double)(both / (own + area(&k->box) - both)) > iou)
            return 1;
        if (f->cut && both >= FOUND_COVERED * own)
            return 1;
    }
    return 0;
}

uint32_t found_merge(found_t *found, uint32_t n, double iou, int agnostic, uint32_t most)
{
    uint32_t kept = 0;
    qsort(found, n, sizeof *found, whole_first);
    for (uint32_t i = 0; i < n; i++) {
        found_t f = found[i];
        if (!goes(&f, found, kept, iou, agnostic))
            found[kept++] = f;
    }
    qsort(found, kept, sizeof *found, best_first);
    return kept < most ? kept : most;
}

/* ---- forms ---- */

const char *found_stem(const char *path, size_t *length)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    *length = dot && dot != name ? (size_t)(dot - name) : strlen(name);
    return name;
}

void found_string(FILE *out, const char *text)
{
    char buffer[8192 * 6];
    json_t j;
    json_begin(&j, buffer, sizeof buffer);
    json_string(&j, text);
    fputs(json_finish(&j) < 0 ? "\"\"" : buffer, out);
}

void found_text(FILE *out, const wire_box_t *boxes, uint32_t n, uint32_t width, uint32_t height)
{
    double w = width, h = height;
    for (uint32_t i = 0; i < n; i++) {
        const wire_box_t *b = &boxes[i];
        fprintf(out, "%u %.6g %.6g %.6g %.6g %.6g\n", b->cls,
                ((double)b->x1 + (double)b->x2) / 2 / w, ((double)b->y1 + (double)b->y2) / 2 / h,
                ((double)b->x2 - (double)b->x1) / w, ((double)b->y2 - (double)b->y1) / h,
                (double)b->score);
    }
}

static void image_id(FILE *out, const char *path)
{
    char text[512];
    size_t n, digits = 0;
    const char *stem = found_stem(path, &n);
    while (digits < n && isdigit((unsigned char)stem[digits]))
        digits++;
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : sizeof text - 1), stem);
    if (digits == n && n > 0 && n < 16)
        fprintf(out, "%llu", strtoull(text, NULL, 10));
    else
        found_string(out, text);
}

int found_coco(FILE *out, const char *path, const wire_box_t *boxes, uint32_t n, int first)
{
    const char *slash = strrchr(path, '/');
    for (uint32_t i = 0; i < n; i++) {
        const wire_box_t *b = &boxes[i];
        fputs(first ? "\n{\"image_id\":" : ",\n{\"image_id\":", out);
        first = 0;
        image_id(out, path);
        fputs(",\"file_name\":", out);
        found_string(out, slash ? slash + 1 : path);
        fprintf(out, ",\"category_id\":%u,\"bbox\":[%.3f,%.3f,%.3f,%.3f],\"score\":%.5f}",
                b->cls + 1, (double)b->x1, (double)b->y1, (double)b->x2 - (double)b->x1,
                (double)b->y2 - (double)b->y1, (double)b->score);
    }
    return first;
}

void found_json(FILE *out, const char *path, uint32_t width, uint32_t height,
                const wire_box_t *boxes, uint32_t n, const char *const *names, uint32_t n_names,
                int first)
{
    fputs(first ? "\n{\"image\":" : ",\n{\"image\":", out);
    found_string(out, path);
    fprintf(out, ",\"width\":%u,\"height\":%u,\"boxes\":[", width, height);
    for (uint32_t i = 0; i < n; i++) {
        const wire_box_t *b = &boxes[i];
        fprintf(out, "%s{\"class\":%u,\"name\":", i ? "," : "", b->cls);
        found_string(out, b->cls < n_names ? names[b->cls] : "");
        fprintf(out, ",\"confidence\":%.5f,\"xyxy\":[%.3f,%.3f,%.3f,%.3f]}", (double)b->score,
                (double)b->x1, (double)b->y1, (double)b->x2, (double)b->y2);
    }
    fputs("]}", out);
}
