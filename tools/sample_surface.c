#include "tools/sample_surface.h"

#include "shm/err.h"

#include <math.h>
#include <stdlib.h>

enum { GRAIN_NODES = 24 /* of a brush stroke's brightness along its way */, LIGHT_NODES = 9 };

static float uniform(philox_t *p, float lo, float hi)
{
    return (float)philox_range(p, (double)lo, (double)hi);
}

static uint8_t clamped(float v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v + 0.5f);
}

/* --- brushed metal
 * -------------------------------------------------------------------------------- */

/* Strokes run along one direction: brightness changes from line to line and slowly within a line.
 */
static int paint_metal(canvas_t *c, philox_t *random, surface_t *s)
{
    int n = c->size, vertical = (int)philox_below(random, 2);
    float *grain = malloc((size_t)n * GRAIN_NODES * sizeof *grain);
    if (!grain)
        return err_set(ERR_ENV, "no memory for a texture");
    float gray = uniform(random, 130, 185), strength = uniform(random, 7, 14), drift = 0;
    s->base =
        (color_t){gray, gray * uniform(random, 0.98f, 1.01f), gray * uniform(random, 0.97f, 1.04f)};
    for (int line = 0; line < n; line++) {
        drift = 0.9f * drift + uniform(random, -0.35f, 0.35f) * strength;
        float level = drift + uniform(random, -0.6f, 0.6f) * strength;
        for (int k = 0; k < GRAIN_NODES; k++)
            grain[line * GRAIN_NODES + k] = level + uniform(random, -0.7f, 0.7f) * strength;
    }
    float step = (float)(GRAIN_NODES - 1) / (float)n;
    for (int y = 0; y < n; y++) {
        for (int x = 0; x < n; x++) {
            int line = vertical ? x : y;
            float along = (float)(vertical ? y : x) * step;
            const float *node = grain + line * GRAIN_NODES + (int)along;
            float v = canvas_mix(node[0], node[1], along - floorf(along));
            uint8_t *p = c->rgb + 3 * ((size_t)y * (size_t)n + (size_t)x);
            p[0] = clamped(s->base.r + v);
            p[1] = clamped(s->base.g + v);
            p[2] = clamped(s->base.b + v);
        }
    }
    free(grain);
    return 0;
}

/* --- circuit board
 * -------------------------------------------------------------------------------- */

static const color_t masks[] = {{28, 92, 52}, {24, 62, 112}, {44, 46, 50}, {110, 34, 34}};

/* A conductor under the mask: straight runs with corners, along the axes. */
static void paint_trace(canvas_t *c, philox_t *random, color_t copper)
{
    int n = c->size, half = 1 + (int)(uniform(random, 0.002f, 0.005f) * (float)n);
    int x = (int)philox_below(random, (uint32_t)n), y = (int)philox_below(random, (uint32_t)n);
    int along_x = (int)philox_below(random, 2);
    for (int leg = 0; leg < 3; leg++, along_x = !along_x) {
        int to = (along_x ? x : y) + (int)(uniform(random, -0.5f, 0.5f) * (float)n);
        int lo = along_x ? (x < to ? x : to) : (y < to ? y : to);
        int hi = along_x ? (x < to ? to : x) : (y < to ? to : y);
        box_t run = along_x ? (box_t){lo - half, y - half, hi + half, y + half}
                            : (box_t){x - half, lo - half, x + half, hi + half};
        canvas_rect(c, run, copper, 0.8f);
        if (along_x)
            x = to;
        else
            y = to;
    }
}

/* An outline of a part, as printed on boards. */
static void paint_print(canvas_t *c, philox_t *random)
{
    const color_t ink = {205, 208, 200};
    int n = c->size, line = 1 + n / 400;
    int w = (int)(uniform(random, 0.04f, 0.14f) * (float)n),
        h = (int)(uniform(random, 0.03f, 0.1f) * (float)n);
    int x = (int)philox_below(random, (uint32_t)n), y = (int)philox_below(random, (uint32_t)n);
    canvas_rect(c, (box_t){x, y, x + w, y + line}, ink, 0.75f);
    canvas_rect(c, (box_t){x, y + h - line, x + w, y + h}, ink, 0.75f);
    canvas_rect(c, (box_t){x, y, x + line, y + h}, ink, 0.75f);
    canvas_rect(c, (box_t){x + w - line, y, x + w, y + h}, ink, 0.75f);
}

static int paint_board(canvas_t *c, philox_t *random, surface_t *s)
{
    int n = c->size;
    color_t mask = color_scaled(masks[philox_below(random, 4)], uniform(random, 0.85f, 1.25f));
    float pitch = uniform(random, 0.7f, 1.3f) * 6.2831853f / (6.0f + (float)n / 160.0f);
    float *weave = malloc((size_t)n * sizeof *weave);
    if (!weave)
        return err_set(ERR_ENV, "no memory for a texture");
    s->base = mask;
    for (int i = 0; i < n; i++) /* the glass cloth shows through: one wave both ways */
        weave[i] = 1.0f + 0.035f * sinf(pitch * (float)i);
    for (int y = 0; y < n; y++) {
        for (int x = 0; x < n; x++) {
            float v = weave[x] * weave[y];
            uint8_t *p = c->rgb + 3 * ((size_t)y * (size_t)n + (size_t)x);
            p[0] = (uint8_t)(mask.r * v);
            p[1] = (uint8_t)(mask.g * v);
            p[2] = (uint8_t)(mask.b * v);
        }
    }
    free(weave);
    color_t copper = {mask.r * 1.25f + 14, mask.g * 1.25f + 14, mask.b * 1.2f + 6};
    for (int i = 18 + (int)philox_below(random, 14); i > 0; i--)
        paint_trace(c, random, copper);
    for (int i = 2 + (int)philox_below(random, 4); i > 0; i--)
        paint_print(c, random);
    return 0;
}

/* --- holes
 * ---------------------------------------------------------------------------------------- */

typedef struct {
    const surface_t *s;
    float x, y, radius;
    int drilled;
} hole_t;

static float hole_coverage(const void *shape, float x, float y, color_t *color)
{
    const hole_t *h = shape;
    float dx = x - h->x, dy = y - h->y, d = sqrtf(dx * dx + dy * dy), r = h->radius;
    int metal = h->s->kind == SURFACE_METAL;
    float inner = r * (metal ? 0.8f : 0.58f);
    /* lit from the upper left: the rim is bright where it faces the light */
    float lit = d > 0 ? -(dx + dy) / (d * 1.4142136f) : 0;
    color_t rim = metal ? color_scaled(h->s->base, 1.12f + 0.28f * lit) : (color_t){196, 164, 88};
    if (!metal)
        rim = color_scaled(rim, 1.0f + 0.12f * lit);
    color_t bottom = {18, 17, 16};
    color_t blind = metal ? color_scaled(h->s->base, 0.86f - 0.1f * lit) : color_scaled(rim, 0.9f);
    *color = color_mixed(rim, h->drilled ? bottom : blind, canvas_edge(d - inner));
    return canvas_edge(d - r);
}

box_t surface_hole(canvas_t *c, const surface_t *s, float x, float y, int drilled)
{
    hole_t h = {s, x, y, s->radius, drilled};
    box_t area = {(int)floorf(x - s->radius) - 1, (int)floorf(y - s->radius) - 1,
                  (int)ceilf(x + s->radius) + 1, (int)ceilf(y + s->radius) + 1};
    return canvas_paint(c, area, hole_coverage, &h);
}

/* Holes come in rows of even pitch, as for a connector or a flange. */
static void paint_holes(canvas_t *c, philox_t *random, surface_t *s)
{
    float n = (float)c->size;
    s->radius = uniform(random, 0.022f, 0.036f) * n;
    s->n_holes = 0;
    for (int row = 2 + (int)philox_below(random, 3); row > 0; row--) {
        int count = 3 + (int)philox_below(random, 5), along_x = (int)philox_below(random, 2);
        float pitch = s->radius * uniform(random, 2.6f, 4.0f);
        float x = uniform(random, 0.08f, 0.7f) * n, y = uniform(random, 0.08f, 0.7f) * n;
        for (int i = 0; i < count && s->n_holes < SURFACE_HOLES; i++) {
            float hx = x + (along_x ? pitch * (float)i : 0),
                  hy = y + (along_x ? 0 : pitch * (float)i);
            float r = s->radius;
            box_t place = {(int)(hx - r) - 1, (int)(hy - r) - 1, (int)(hx + r) + 2,
                           (int)(hy + r) + 2};
            int free_place =
                place.x0 >= 0 && place.y0 >= 0 && place.x1 <= c->size && place.y1 <= c->size;
            for (int k = 0; free_place && k < s->n_holes; k++)
                free_place = !box_overlaps(place, s->holes[k]);
            if (free_place)
                s->holes[s->n_holes++] = surface_hole(c, s, hx, hy, 1);
        }
    }
}

int surface_paint(canvas_t *c, philox_t *random, surface_t *s)
{
    s->kind = philox_below(random, 2) ? SURFACE_BOARD : SURFACE_METAL;
    int rc = s->kind == SURFACE_BOARD ? paint_board(c, random, s) : paint_metal(c, random, s);
    if (rc < 0)
        return rc;
    paint_holes(c, random, s);
    return 0;
}

/* --- camera
 * --------------------------------------------------------------------------------------- */

/* Brightness at the nodes of a coarse grid: one lamp off the centre and a fall-off to the corners.
 */
static void make_light(philox_t *random, float light[LIGHT_NODES][LIGHT_NODES])
{
    float lx = uniform(random, 0.15f, 0.85f), ly = uniform(random, 0.15f, 0.85f);
    float depth = uniform(random, 0.15f, 0.45f), width = uniform(random, 0.4f, 0.9f);
    float gain = uniform(random, 0.9f, 1.15f);
    for (int i = 0; i < LIGHT_NODES; i++) {
        for (int k = 0; k < LIGHT_NODES; k++) {
            float x = (float)k / (LIGHT_NODES - 1), y = (float)i / (LIGHT_NODES - 1);
            float d2 = (x - lx) * (x - lx) + (y - ly) * (y - ly);
            float corner = (x - 0.5f) * (x - 0.5f) + (y - 0.5f) * (y - 0.5f);
            light[i][k] = gain * (1 - depth + depth * expf(-d2 / (width * width)) - 0.25f * corner);
        }
    }
}

/* Four uniform bytes add up to a bell with a deviation of 147.8 (their variances are (256^2 - 1) /
 * 12). */
static float bell(uint32_t word)
{
    int sum =
        (int)(word & 255) + (int)(word >> 8 & 255) + (int)(word >> 16 & 255) + (int)(word >> 24);
    return (float)(sum - 510) * (1.0f / 147.8f);
}

void surface_expose(canvas_t *c, philox_t *random)
{
    float light[LIGHT_NODES][LIGHT_NODES], row[LIGHT_NODES];
    int n = c->size;
    float noise = uniform(random, 2.0f, 4.5f), step = (float)(LIGHT_NODES - 1) / (float)n;
    make_light(random, light);
    for (int y = 0; y < n; y++) {
        float at = (float)y * step;
        int i = (int)at;
        for (int k = 0; k < LIGHT_NODES; k++)
            row[k] = canvas_mix(light[i][k], light[i + 1][k], at - (float)i);
        uint8_t *p = c->rgb + 3 * (size_t)y * (size_t)n;
        for (int x = 0; x < n; x++, p += 3) {
            float along = (float)x * step;
            int k = (int)along;
            float l = canvas_mix(row[k], row[k + 1], along - (float)k);
            uint32_t word = philox_u32(random);
            float gray = bell(word) * noise, tint = ((float)(word & 15) - 7.5f) * 0.12f * noise;
            p[0] = clamped((float)p[0] * l + gray + tint);
            p[1] = clamped((float)p[1] * l + gray);
            p[2] = clamped((float)p[2] * l + gray - tint);
        }
    }
}
