/* What the cells of a validation or prediction show: position -> sample, the part of it, and the shape
 * of the batch.
 *
 * A validation shows each image once. A prediction with tile= shows an image that is larger than a tile
 * in overlapping tiles, each a cell of its own: positions then count tiles, image after image, row after
 * row. Pure functions of the sample list and the options, so that coordinator, loaders and trainers
 * compute the same. A parts_t is read-only once opened; NULL stands for a run's own validation: one cell
 * an image, rectangular (facts/yolo.md 6.1). Any thread.
 */
#ifndef SLUICE_CONTROL_PARTS_H
#define SLUICE_CONTROL_PARTS_H

#include "control/catalog.h"
#include "control/options.h"

typedef struct parts parts_t;

/* A part of a sample: a rectangle of its upright file pixels. */
typedef struct {
    uint32_t sample;
    uint32_t x, y, width, height;
    uint32_t index, of; /* among the sample's parts */
} part_t;

/* The catalogue is borrowed. ERR_DATA when there are more tiles than can be counted. */
int parts_open(const catalog_t *catalog, const options_t *options, parts_t **parts);
void parts_close(parts_t **parts);
/* Cells of the order: the plan's n_val. */
uint32_t parts_count(const parts_t *parts);
part_t parts_at(const parts_t *parts, const catalog_t *catalog, uint32_t position);
/* The shape of the batch of cells [first, first + count): facts/yolo.md 6.1, or a square (rect=False);
 * in prediction the smallest multiples of 32 that hold each letterboxed part (facts/yolo.md 5.10). */
void parts_shape(const parts_t *parts, const catalog_t *catalog, uint32_t first, uint32_t count,
                 uint32_t imgsz, uint32_t *height, uint32_t *width);
/* Network size of a part in prediction: its long side becomes imgsz. */
void parts_fit(uint32_t width, uint32_t height, uint32_t imgsz, uint32_t *fit_width,
               uint32_t *fit_height);
/* Starts of the tiles along one side: how many there are, and where the i-th begins. The first begins
 * at 0, the last ends at the end, those between are evenly spaced with at least `overlap` in common. */
uint32_t parts_tiles(uint32_t side, uint32_t tile, double overlap);
uint32_t parts_tile_start(uint32_t side, uint32_t tile, uint32_t tiles, uint32_t i);

#endif
