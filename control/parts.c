#include "control/parts.h"

#include "shm/err.h"

#include <math.h>
#include <stdlib.h>

enum { PARTS_STRIDE = 32 }; /* pixels: the coarsest level's */

struct parts {
    const catalog_t *catalog;
    opt_mode_t mode;
    int square;
    uint32_t tile; /* 0: none */
    double overlap;
    uint32_t count;
    uint32_t *first; /* [samples + 1] position of each sample's first tile; NULL without tiles */
};

uint32_t parts_tiles(uint32_t side, uint32_t tile, double overlap)
{
    if (tile == 0 || side <= tile)
        return 1;
    double step = floor(tile * (1 - overlap));
    step = step < 1 ? 1 : step;
    return 1 + (uint32_t)ceil((side - tile) / step);
}

uint32_t parts_tile_start(uint32_t side, uint32_t tile, uint32_t tiles, uint32_t i)
{
    return tiles < 2 ? 0 : (uint32_t)((uint64_t)(side - tile) * i / (tiles - 1));
}

static uint64_t tiles_of(const parts_t *p, const catalog_sample_t *s)
{
    return (uint64_t)parts_tiles(s->width, p->tile, p->overlap) *
           parts_tiles(s->height, p->tile, p->overlap);
}

int parts_open(const catalog_t *catalog, const options_t *o, parts_t **parts)
{
    uint32_t n = catalog_count(catalog, CATALOG_VAL);
    parts_t *p = calloc(1, sizeof *p);
    *parts = NULL;
    if (!p)
        return err_set(ERR_ENV, "no memory for the order of cells");
    p->catalog = catalog;
    p->mode = o->mode;
    p->square = o->rect == OPT_RECT_OFF;
    p->tile = o->mode == OPT_MODE_PREDICT ? (uint32_t)o->tile : 0;
    p->overlap = o->overlap;
    p->count = n;
    if (p->tile > 0) {
        uint64_t sum = 0;
        p->first = malloc(((size_t)n + 1) * sizeof *p->first);
        if (!p->first) {
            parts_close(&p);
            return err_set(ERR_ENV, "no memory for the tiles of %u images", n);
        }
        for (uint32_t i = 0; i < n; i++) {
            p->first[i] = (uint32_t)sum;
            sum += tiles_of(p, catalog_sample(catalog, CATALOG_VAL, i));
            if (sum > INT32_MAX) {
                parts_close(&p);
                return err_set(ERR_DATA, "tile=%d makes more than 2^31 tiles: give a larger tile",
                               o->tile);
            }
        }
        p->first[n] = p->count = (uint32_t)sum;
    }
    *parts = p;
    return 0;
}

void parts_close(parts_t **parts)
{
    if (*parts)
        free((*parts)->first);
    free(*parts);
    *parts = NULL;
}

uint32_t parts_count(const parts_t *parts)
{
    return parts->count;
}

/* The sample whose tiles a position lies among. */
static uint32_t sample_of(const parts_t *p, uint32_t position)
{
    uint32_t low = 0, high = catalog_count(p->catalog, CATALOG_VAL);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (p->first[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

part_t parts_at(const parts_t *p, const catalog_t *catalog, uint32_t position)
{
    int tiled = p && p->first;
    uint32_t sample = tiled ? sample_of(p, position) : position;
    const catalog_sample_t *s = catalog_sample(catalog, CATALOG_VAL, sample);
    part_t out = {sample, 0, 0, s->width, s->height, 0, 1};
    if (!tiled)
        return out;
    uint32_t across = parts_tiles(s->width, p->tile, p->overlap);
    uint32_t down = parts_tiles(s->height, p->tile, p->overlap);
    out.index = position - p->first[sample];
    out.of = across * down;
    out.x = parts_tile_start(s->width, p->tile, across, out.index % across);
    out.y = parts_tile_start(s->height, p->tile, down, out.index / across);
    out.width = across > 1 ? p->tile : s->width;
    out.height = down > 1 ? p->tile : s->height;
    return out;
}

void parts_fit(uint32_t width, uint32_t height, uint32_t imgsz, uint32_t *fit_width,
               uint32_t *fit_height)
{
    uint32_t longest = width > height ? width : height;
    double r = (double)imgsz / longest;
    uint32_t w = (uint32_t)lrint(width * r), h = (uint32_t)lrint(height * r);
    *fit_width = w < 1 ? 1 : w;
    *fit_height = h < 1 ? 1 : h;
}

static uint32_t round_up(uint32_t x)
{
    return (x + PARTS_STRIDE - 1) / PARTS_STRIDE * PARTS_STRIDE;
}

void parts_shape(const parts_t *p, const catalog_t *catalog, uint32_t first, uint32_t count,
                 uint32_t imgsz, uint32_t *height, uint32_t *width)
{
    if (!p || (p->mode != OPT_MODE_PREDICT && !p->square)) {
        catalog_val_shape(catalog, first, count, imgsz, height, width);
        return;
    }
    *height = *width = p->square ? imgsz : 0;
    for (uint32_t i = first; !p->square && i < first + count; i++) {
        part_t part = parts_at(p, catalog, i);
        uint32_t w, h;
        parts_fit(part.width, part.height, imgsz, &w, &h);
        *width = round_up(w) > *width ? round_up(w) : *width;
        *height = round_up(h) > *height ? round_up(h) : *height;
    }
}
