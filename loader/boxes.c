#include "loader/boxes.h"

#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The label filter of facts/yolo.md 5.4. */
#define BOXES_MIN_SIDE         2.0
#define BOXES_MIN_AREA         0.10
#define BOXES_MIN_AREA_POLYGON 0.01
#define BOXES_MAX_ASPECT       100.0
#define BOXES_EPS              1e-16
enum { BOXES_RESAMPLE = 1000 /* points of an outline */ };

void boxes_init(box_list_t *list)
{
    memset(list, 0, sizeof *list);
}

void boxes_fini(box_list_t *list)
{
    free(list->items);
    boxes_init(list);
}

void boxes_clear(box_list_t *list)
{
    list->count = 0;
}

static int boxes_reserve(box_list_t *list, uint32_t more)
{
    uint32_t want = list->count + more, capacity = list->capacity ? list->capacity : 64;
    if (want <= list->capacity)
        return 0;
    while (capacity < want)
        capacity *= 2;
    box_t *items = realloc(list->items, capacity * sizeof *items);
    if (!items)
        return err_set(ERR_ENV, "no memory for %u boxes", capacity);
    list->items = items;
    list->capacity = capacity;
    return 0;
}

static double clip(double x, double hi)
{
    return x < 0 ? 0 : x > hi ? hi : x;
}

static void boxes_map(const geometry_view_t *v, double x, double y, double *ox, double *oy)
{
    const double *m = v->forward;
    double w = v->perspective ? m[6] * x + m[7] * y + m[8] : 1;
    *ox = (m[0] * x + m[1] * y + m[2]) / w;
    *oy = (m[3] * x + m[4] * y + m[5]) / w;
}

/* A growing bounding box. */
static void boxes_none(box_t *b)
{
    b->x1 = b->y1 = INFINITY;
    b->x2 = b->y2 = -INFINITY;
}

static void boxes_add(box_t *b, double x, double y)
{
    b->x1 = fmin(b->x1, x);
    b->y1 = fmin(b->y1, y);
    b->x2 = fmax(b->x2, x);
    b->y2 = fmax(b->y2, y);
}

/* A label's box on the canvas; a mosaic clips it to the canvas, a single picture does not. */
static box_t boxes_on_canvas(const geometry_view_t *v, const geometry_tile_t *t,
                             const catalog_label_t *l)
{
    double w = l->w * (double)t->width, h = l->h * (double)t->height;
    double cx = l->cx * (double)t->width, cy = l->cy * (double)t->height;
    box_t b = {l->cls, cx - w / 2 + t->off_x, cy - h / 2 + t->off_y, cx + w / 2 + t->off_x,
               cy + h / 2 + t->off_y};
    if (v->n_tiles > 1) {
        b.x1 = clip(b.x1, v->canvas_width);
        b.x2 = clip(b.x2, v->canvas_width);
        b.y1 = clip(b.y1, v->canvas_height);
        b.y2 = clip(b.y2, v->canvas_height);
    }
    return b;
}

/* Point i of a closed outline of n points resampled to BOXES_RESAMPLE, then its n vertices; in
 * output pixels. Evenly spaced by vertex number, as the peer does it. */
static void boxes_outline_point(const geometry_view_t *v, const geometry_tile_t *t,
                                const float *points, uint32_t n, uint32_t i, double *ox, double *oy)
{
    double u = i < BOXES_RESAMPLE ? (double)i * n / (BOXES_RESAMPLE - 1) : i - BOXES_RESAMPLE;
    uint32_t k = (uint32_t)u;
    double f = u - k;
    const float *a = points + 2 * (size_t)(k % n), *b = points + 2 * (size_t)((k + 1) % n);
    double x = (a[0] + (b[0] - (double)a[0]) * f) * t->width + t->off_x;
    double y = (a[1] + (b[1] - (double)a[1]) * f) * t->height + t->off_y;
    if (v->n_tiles > 1) {
        x = clip(x, v->canvas_width);
        y = clip(y, v->canvas_height);
    }
    boxes_map(v, x, y, ox, oy);
}

/* The box of an outline's part inside the output. An outline that leaves the output on three sides
 * or more is clipped instead, so that an object larger than the output keeps its box. */
static box_t boxes_outline(const geometry_view_t *v, const geometry_tile_t *t, const float *points,
                           uint32_t n, double side)
{
    box_t all, inside;
    boxes_none(&all);
    boxes_none(&inside);
    for (uint32_t i = 0; i < BOXES_RESAMPLE + n; i++) {
        double x, y;
        boxes_outline_point(v, t, points, n, i, &x, &y);
        boxes_add(&all, x, y);
        if (x >= 0 && x <= side && y >= 0 && y <= side)
            boxes_add(&inside, x, y);
    }
    if ((all.x1 < 0) + (all.y1 < 0) + (all.x2 > side) + (all.y2 > side) >= 3)
        return (box_t){0, clip(all.x1, side), clip(all.y1, side), clip(all.x2, side),
                       clip(all.y2, side)};
    if (inside.x2 < inside.x1)
        return (box_t){0, 0, 0, 0, 0};
    return inside;
}

/* The box of the four moved corners. */
static box_t boxes_corners(const geometry_view_t *v, const box_t *from)
{
    box_t b;
    boxes_none(&b);
    for (int corner = 0; corner < 4; corner++) {
        double x, y;
        boxes_map(v, corner & 1 ? from->x2 : from->x1, corner & 2 ? from->y2 : from->y1, &x, &y);
        boxes_add(&b, x, y);
    }
    return b;
}

/* facts/yolo.md 5.4, box_candidates. */
static int boxes_keep(const box_t *before, double scale, const box_t *after, double min_area)
{
    double w1 = (before->x2 - before->x1) * scale, h1 = (before->y2 - before->y1) * scale;
    double w2 = after->x2 - after->x1, h2 = after->y2 - after->y1;
    double aspect = fmax(w2 / (h2 + BOXES_EPS), h2 / (w2 + BOXES_EPS));
    return w2 > BOXES_MIN_SIDE && h2 > BOXES_MIN_SIDE &&
           w2 * h2 / (w1 * h1 + BOXES_EPS) > min_area && aspect < BOXES_MAX_ASPECT;
}

int boxes_tile(box_list_t *list, const geometry_view_t *view, uint32_t tile, uint32_t side,
               const catalog_t *catalog, const catalog_label_t *labels, uint32_t n)
{
    const geometry_tile_t *t = &view->tiles[tile];
    int rc = boxes_reserve(list, n);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        const catalog_label_t *l = &labels[i];
        box_t before = boxes_on_canvas(view, t, l), after;
        if (view->n_tiles > 1 && (before.x2 - before.x1) * (before.y2 - before.y1) <= 0)
            continue;
        /* All labels of a split have polygons or none has (facts/yolo.md 7.4), so each label's own
         * tells what the peer asks of the whole mosaic. The other split may be different. */
        int polygon = catalog && l->n_points > 0;
        if (polygon)
            after = boxes_outline(view, t, catalog_points(catalog, l), l->n_points, side);
        else
            after = boxes_corners(view, &before);
        after.cls = l->cls;
        after.x1 = clip(after.x1, side);
        after.y1 = clip(after.y1, side);
        after.x2 = clip(after.x2, side);
        after.y2 = clip(after.y2, side);
        if (boxes_keep(&before, view->scale, &after,
                       polygon ? BOXES_MIN_AREA_POLYGON : BOXES_MIN_AREA))
            list->items[list->count++] = after;
    }
    return 0;
}

int boxes_letterbox(box_list_t *list, const geometry_letterbox_t *box,
                    const catalog_label_t *labels, uint32_t n)
{
    int rc = boxes_reserve(list, n);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        const catalog_label_t *l = &labels[i];
        double w = l->w * (double)box->width, h = l->h * (double)box->height;
        double cx = l->cx * (double)box->width + box->left,
               cy = l->cy * (double)box->height + box->top;
        list->items[list->count++] =
            (box_t){l->cls, cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2};
    }
    return 0;
}

void boxes_flip(box_list_t *list, double width, double height, int flip_x, int flip_y)
{
    for (uint32_t i = 0; i < list->count; i++) {
        box_t *b = &list->items[i], old = *b;
        if (flip_x) {
            b->x1 = width - old.x2;
            b->x2 = width - old.x1;
        }
        if (flip_y) {
            b->y1 = height - old.y2;
            b->y2 = height - old.y1;
        }
    }
}

uint32_t boxes_store(const box_list_t *list, double width, double height, ring_label_t *out,
                     uint32_t cap)
{
    uint32_t n = list->count < cap ? list->count : cap;
    for (uint32_t i = 0; i < n; i++) {
        const box_t *b = &list->items[i];
        out[i] =
            (ring_label_t){(float)b->cls, (float)((b->x1 + b->x2) / 2 / width),
                           (float)((b->y1 + b->y2) / 2 / height), (float)((b->x2 - b->x1) / width),
                           (float)((b->y2 - b->y1) / height)};
    }
    return n;
}
