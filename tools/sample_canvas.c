#include "tools/sample_canvas.h"

#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float visible = 1.0f / 16;

int canvas_init(canvas_t *c, int size)
{
    c->size = size;
    c->rgb = calloc((size_t)size * (size_t)size, 3);
    return c->rgb ? 0 : err_set(ERR_ENV, "no memory for an image of %d x %d", size, size);
}

void canvas_fini(canvas_t *c)
{
    free(c->rgb);
    memset(c, 0, sizeof *c);
}

box_t box_empty(void)
{
    return (box_t){0, 0, 0, 0};
}

box_t box_join(box_t a, box_t b)
{
    if (a.x1 <= a.x0)
        return b;
    if (b.x1 <= b.x0)
        return a;
    return (box_t){a.x0 < b.x0 ? a.x0 : b.x0, a.y0 < b.y0 ? a.y0 : b.y0, a.x1 > b.x1 ? a.x1 : b.x1,
                   a.y1 > b.y1 ? a.y1 : b.y1};
}

int box_overlaps(box_t a, box_t b)
{
    return a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1;
}

box_t box_grown(box_t b, int by)
{
    return (box_t){b.x0 - by, b.y0 - by, b.x1 + by, b.y1 + by};
}

static box_t clipped(const canvas_t *c, box_t b)
{
    b.x0 = b.x0 < 0 ? 0 : b.x0;
    b.y0 = b.y0 < 0 ? 0 : b.y0;
    b.x1 = b.x1 > c->size ? c->size : b.x1;
    b.y1 = b.y1 > c->size ? c->size : b.y1;
    return b;
}

static uint8_t level(float v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v + 0.5f);
}

static void blend(uint8_t *p, color_t color, float a)
{
    p[0] = level((float)p[0] + (color.r - (float)p[0]) * a);
    p[1] = level((float)p[1] + (color.g - (float)p[1]) * a);
    p[2] = level((float)p[2] + (color.b - (float)p[2]) * a);
}

box_t canvas_paint(canvas_t *c, box_t area, shape_fn coverage, const void *shape)
{
    box_t drawn = box_empty();
    area = clipped(c, area);
    for (int y = area.y0; y < area.y1; y++) {
        for (int x = area.x0; x < area.x1; x++) {
            uint8_t *p = c->rgb + 3 * ((size_t)y * (size_t)c->size + (size_t)x);
            color_t color = {p[0], p[1], p[2]};
            float a = coverage(shape, (float)x + 0.5f, (float)y + 0.5f, &color);
            if (a < visible)
                continue;
            blend(p, color, a);
            drawn = box_join(drawn, (box_t){x, y, x + 1, y + 1});
        }
    }
    return drawn;
}

void canvas_rect(canvas_t *c, box_t area, color_t color, float opacity)
{
    area = clipped(c, area);
    for (int y = area.y0; y < area.y1; y++)
        for (int x = area.x0; x < area.x1; x++)
            blend(c->rgb + 3 * ((size_t)y * (size_t)c->size + (size_t)x), color, opacity);
}

float canvas_edge(float d)
{
    return d <= -0.5f ? 1 : d >= 0.5f ? 0 : 0.5f - d;
}

float canvas_mix(float a, float b, float t)
{
    return a + (b - a) * t;
}

color_t color_scaled(color_t c, float by)
{
    return (color_t){c.r * by, c.g * by, c.b * by};
}

color_t color_mixed(color_t a, color_t b, float t)
{
    return (color_t){canvas_mix(a.r, b.r, t), canvas_mix(a.g, b.g, t), canvas_mix(a.b, b.b, t)};
}
