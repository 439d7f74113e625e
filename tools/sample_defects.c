#include "tools/sample_defects.h"

#include "tools/sample_surface.h"

#include <math.h>

enum { SCRATCH_POINTS = 9, HARMONICS = 5, TRIES = 60, SIZE_MIN = 6 /* pixels */ };

static float uniform(philox_t *p, float lo, float hi)
{
    return (float)philox_range(p, (double)lo, (double)hi);
}

const char *defect_name(defect_t kind)
{
    static const char *const names[DEFECTS] = {"scratch", "pit", "stain", "missing-hole"};
    return names[kind];
}

/* --- scratch: a slightly bent line that swells and thins out
 * ---------------------------------------- */

typedef struct {
    float x[SCRATCH_POINTS], y[SCRATCH_POINTS], half[SCRATCH_POINTS]; /* half: of the width */
    color_t core;
    float opacity;
} scratch_t;

/* Distance beyond the line's edge at the nearest of its segments. */
static float scratch_distance(const scratch_t *s, float x, float y)
{
    float best = 1e9f;
    for (int i = 0; i + 1 < SCRATCH_POINTS; i++) {
        float vx = s->x[i + 1] - s->x[i], vy = s->y[i + 1] - s->y[i];
        float px = x - s->x[i], py = y - s->y[i];
        float t = (px * vx + py * vy) / (vx * vx + vy * vy + 1e-9f);
        t = t < 0 ? 0 : t > 1 ? 1 : t;
        float dx = px - t * vx, dy = py - t * vy;
        float d = sqrtf(dx * dx + dy * dy) - canvas_mix(s->half[i], s->half[i + 1], t);
        best = d < best ? d : best;
    }
    return best;
}

static float scratch_coverage(const void *shape, float x, float y, color_t *color)
{
    const scratch_t *s = shape;
    float core = canvas_edge(scratch_distance(s, x, y));
    if (core > 0) {
        *color = s->core;
        return core * s->opacity;
    }
    /* the thrown-up lip: a shadow on one side */
    float lip = canvas_edge(scratch_distance(s, x - s->half[4] * 1.6f, y - s->half[4] * 1.6f));
    *color = color_scaled(*color, 0.5f);
    return lip * s->opacity * 0.8f;
}

static box_t paint_scratch(canvas_t *c, philox_t *random, const surface_t *surface, box_t place)
{
    scratch_t s;
    float w = (float)(place.x1 - place.x0), h = (float)(place.y1 - place.y0);
    int falling = (int)philox_below(random, 2);
    float bend = uniform(random, -0.16f, 0.16f),
          width = uniform(random, 0.0022f, 0.0042f) * (float)c->size;
    for (int i = 0; i < SCRATCH_POINTS; i++) {
        float t = (float)i / (SCRATCH_POINTS - 1), arc = bend * 4 * t * (1 - t);
        float wobble = uniform(random, -0.012f, 0.012f);
        float along = 0.06f + 0.88f * t, across = along + arc + wobble;
        s.x[i] = (float)place.x0 + w * along;
        s.y[i] = (float)place.y0 + h * (falling ? across : 1 - across);
        float taper = i == 0 || i == SCRATCH_POINTS - 1 ? 0.4f : 1;
        s.half[i] = (width < 0.6f ? 0.6f : width) * taper * uniform(random, 0.75f, 1.2f);
    }
    s.core = surface->kind == SURFACE_METAL ? (color_t){242, 243, 246} : (color_t){216, 200, 150};
    s.opacity = uniform(random, 0.78f, 0.95f);
    return canvas_paint(c, place, scratch_coverage, &s);
}

/* --- pit and stain: blobs with an uneven outline
 * ----------------------------------------------------- */

typedef struct {
    float x, y, rx, ry, uneven, amplitude[HARMONICS], phase[HARMONICS];
    int pit;
    color_t tint; /* stain: factors; pit: unused */
    float opacity, soft;
} blob_t;

static blob_t make_blob(philox_t *random, box_t place, float uneven)
{
    blob_t b = {.uneven = uneven};
    float sum = 0;
    for (int i = 0; i < HARMONICS; i++) {
        b.amplitude[i] = uniform(random, 0.2f, 1) / (float)(i + 1);
        b.phase[i] = uniform(random, 0, 6.2831853f);
        sum += b.amplitude[i];
    }
    for (int i = 0; i < HARMONICS; i++)
        b.amplitude[i] *= uneven / sum;
    b.x = 0.5f * (float)(place.x0 + place.x1);
    b.y = 0.5f * (float)(place.y0 + place.y1);
    b.rx = 0.5f * (float)(place.x1 - place.x0) - 1;
    b.ry = 0.5f * (float)(place.y1 - place.y0) - 1;
    return b;
}

/* How far out the point is: 0 in the middle, 1 on the outline, which nowhere leaves the ellipse. */
static float blob_radius(const blob_t *b, float x, float y)
{
    float dx = (x - b->x) / b->rx, dy = (y - b->y) / b->ry, d = sqrtf(dx * dx + dy * dy);
    if (d >= 1)
        return 2;
    float angle = atan2f(dy, dx), edge = 1 - b->uneven;
    for (int i = 0; i < HARMONICS; i++)
        edge += b->amplitude[i] * sinf((float)(i + 1) * angle + b->phase[i]);
    return d / edge;
}

static float pit_coverage(const void *shape, float x, float y, color_t *color)
{
    const blob_t *b = shape;
    float d = blob_radius(b, x, y);
    if (d >= 1)
        return 0;
    /* Light from the upper left leaves the near wall dark and catches the far one. */
    float side = ((x - b->x) / b->rx + (y - b->y) / b->ry) * 0.7071068f;
    float wall = d > 0.6f ? (d - 0.6f) * 2.5f : 0;
    float shade = 0.22f + 0.2f * d + wall * (side > 0 ? 1.0f * side : 0.1f * side);
    *color = color_scaled(*color, shade < 0.1f ? 0.1f : shade);
    return (1 - d) * b->soft > 1 ? 1 : (1 - d) * b->soft;
}

static float stain_coverage(const void *shape, float x, float y, color_t *color)
{
    const blob_t *b = shape;
    float d = blob_radius(b, x, y);
    if (d >= 1)
        return 0;
    float ring = d > 0.82f ? 1.25f : 0.9f; /* what dries last leaves a darker edge */
    *color = (color_t){color->r * b->tint.r, color->g * b->tint.g, color->b * b->tint.b};
    float a = b->opacity * ring, fade = (1 - d) * b->soft;
    return (a > 1 ? 1 : a) * (fade > 1 ? 1 : fade);
}

static box_t paint_pit(canvas_t *c, philox_t *random, box_t place)
{
    blob_t b = make_blob(random, place, 0.14f);
    b.soft = 8;
    return canvas_paint(c, place, pit_coverage, &b);
}

static box_t paint_stain(canvas_t *c, philox_t *random, const surface_t *s, box_t place)
{
    static const color_t rust = {0.72f, 0.52f, 0.34f}, flux = {2.3f, 1.75f, 1.5f};
    blob_t b = make_blob(random, place, 0.3f);
    b.tint = s->kind == SURFACE_METAL ? rust : flux;
    b.opacity = uniform(random, 0.55f, 0.8f);
    b.soft = 14;
    return canvas_paint(c, place, stain_coverage, &b);
}

/* --- an image
 * ------------------------------------------------------------------------------------- */

static int at_least(int least, int value)
{
    return value < least ? least : value;
}

/* Width and height in pixels that a defect will take. */
static void draw_size(philox_t *random, defect_t kind, const surface_t *s, int side, int *w, int *h)
{
    float size, squeeze = 1;
    switch (kind) {
    case DEFECT_SCRATCH:
        size = uniform(random, 0.09f, 0.2f);
        squeeze = uniform(random, 0.35f, 1);
        break;
    case DEFECT_PIT:
        size = uniform(random, 0.035f, 0.08f);
        squeeze = uniform(random, 0.8f, 1);
        break;
    case DEFECT_STAIN:
        size = uniform(random, 0.09f, 0.2f);
        squeeze = uniform(random, 0.65f, 1);
        break;
    default: *w = *h = (int)(2 * s->radius) + 4; return;
    }
    int across = (int)philox_below(random, 2);
    *w = at_least(SIZE_MIN, (int)(size * (across ? squeeze : 1) * (float)side));
    *h = at_least(SIZE_MIN, (int)(size * (across ? 1 : squeeze) * (float)side));
}

/* A place of that size away from all that is there; 0 if none was found. */
static int find_place(philox_t *random, int side, int w, int h, const surface_t *s,
                      const sample_label_t *labels, int n, box_t *place)
{
    int gap = side / 100 + 1;
    for (int i = 0; i < TRIES; i++) {
        int x = gap + (int)philox_below(random, (uint32_t)(side - w - 2 * gap));
        int y = gap + (int)philox_below(random, (uint32_t)(side - h - 2 * gap));
        *place = (box_t){x, y, x + w, y + h};
        box_t wide = box_grown(*place, gap);
        int is_free = 1;
        for (int k = 0; is_free && k < s->n_holes; k++)
            is_free = !box_overlaps(wide, s->holes[k]);
        for (int k = 0; is_free && k < n; k++)
            is_free = !box_overlaps(wide, labels[k].box);
        if (is_free)
            return 1;
    }
    return 0;
}

static box_t paint_defect(canvas_t *c, philox_t *random, const surface_t *s, defect_t kind,
                          box_t place)
{
    switch (kind) {
    case DEFECT_SCRATCH: return paint_scratch(c, random, s, place);
    case DEFECT_PIT: return paint_pit(c, random, place);
    case DEFECT_STAIN: return paint_stain(c, random, s, place);
    default:
        return surface_hole(c, s, 0.5f * (float)(place.x0 + place.x1),
                            0.5f * (float)(place.y0 + place.y1), 0);
    }
}

int sample_image(canvas_t *c, uint64_t seed, uint64_t index,
                 sample_label_t labels[SAMPLE_DEFECTS_MAX])
{
    philox_t random = philox_stream(seed, 0, index, PHILOX_SAMPLE);
    /* The noise has a stream of its own: it takes a word a pixel, more than one stream's share
     * beside. */
    philox_t noise = philox_stream(seed, 1, index, PHILOX_SAMPLE);
    surface_t surface;
    int n = 0, rc = surface_paint(c, &random, &surface);
    if (rc < 0)
        return rc;
    int wanted = index % SAMPLE_GOOD_EVERY == SAMPLE_GOOD_EVERY - 1
                     ? 0
                     : 1 + (int)philox_below(&random, SAMPLE_DEFECTS_MAX);
    for (int i = 0; i < wanted; i++) {
        defect_t kind = (defect_t)philox_below(&random, DEFECTS);
        int w, h;
        box_t place;
        draw_size(&random, kind, &surface, c->size, &w, &h);
        if (!find_place(&random, c->size, w, h, &surface, labels, n, &place))
            continue;
        labels[n].kind = kind;
        labels[n].box = paint_defect(c, &random, &surface, kind, place);
        n += labels[n].box.x1 > labels[n].box.x0;
    }
    surface_expose(c, &noise);
    return n;
}
