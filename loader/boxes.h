/* Labels moved with the pixels (facts/yolo.md 5.3, 5.4, 5.8, 5.10).
 *
 * A box_list_t collects a cell's boxes in output pixels, corner form, and gives them out
 * normalised. Its storage grows and is kept. One thread per list.
 */
#ifndef SLUICE_LOADER_BOXES_H
#define SLUICE_LOADER_BOXES_H

#include "control/catalog.h"
#include "loader/geometry.h"
#include "shm/ring.h"

typedef struct {
    double cls, x1, y1, x2, y2; /* output pixels */
} box_t;

typedef struct {
    box_t *items; /* owned */
    uint32_t count, capacity;
} box_list_t;

void boxes_init(box_list_t *list);
void boxes_fini(box_list_t *list);
void boxes_clear(box_list_t *list);

/* Appends a tile's labels: loaded pixels -> canvas (clipped) -> output (clipped), filtered. A label
 * with a polygon moves by its outline, and the filter's area threshold is lower for it. catalog
 * holds the points; it may be NULL where no label has any. ERR_ENV without memory. */
int boxes_tile(box_list_t *list, const geometry_view_t *view, uint32_t tile, uint32_t side,
               const catalog_t *catalog, const catalog_label_t *labels, uint32_t n);
/* Appends a validation sample's labels: file -> letterboxed. */
int boxes_letterbox(box_list_t *list, const geometry_letterbox_t *box,
                    const catalog_label_t *labels, uint32_t n);
void boxes_flip(box_list_t *list, double width, double height, int flip_x, int flip_y);
/* Writes at most cap labels, normalised by the output's size; returns how many. */
uint32_t boxes_store(const box_list_t *list, double width, double height, ring_label_t *out,
                     uint32_t cap);

#endif
