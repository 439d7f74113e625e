/* What was found in an image: tiles put together, and the forms that files have (WIRE_PART). Pure.
 */
#ifndef SLUICE_CONTROL_FOUND_H
#define SLUICE_CONTROL_FOUND_H

#include "control/parts.h"
#include "control/wire.h"

#include <stdio.h>

/* A detection of one tile. */
typedef struct {
    wire_box_t box;
    uint32_t tile;
    int cut; /* it ends at a border of its tile that is none of the image's: a neighbour may see more */
} found_t;

/* Whether a box ends at an inner border of its tile; image: width and height. */
int found_is_cut(const wire_box_t *box, const part_t *part, uint32_t width, uint32_t height);
/* Suppression across tiles, class by class (all together if agnostic), in place; returns how many are
 * left, best first, `most` at the most. Boxes that are not cut come first, then by score. One goes when
 * it overlaps a kept one of another tile by more than iou, or when it is cut and half of it or more lies
 * in one: the rest of an object that a neighbour sees whole. */
uint32_t found_merge(found_t *found, uint32_t n, double iou, int agnostic, uint32_t most);

/* One line a box: class, centre, size as shares of the image's sides, confidence. */
void found_text(FILE *out, const wire_box_t *boxes, uint32_t n, uint32_t width, uint32_t height);
/* COCO rows, "," between and, unless first, before them: image id (a number where the file's name is
 * one), class + 1, x, y, width, height in pixels, score. Returns whether none was written yet. */
int found_coco(FILE *out, const char *path, const wire_box_t *boxes, uint32_t n, int first);
/* One image: path, size, boxes with class name, confidence and corners. */
void found_json(FILE *out, const char *path, uint32_t width, uint32_t height,
                const wire_box_t *boxes, uint32_t n, const char *const *names, uint32_t n_names,
                int first);
/* A file's name without folder and extension; its length. */
const char *found_stem(const char *path, size_t *length);
/* A JSON string, quotes and escapes included. */
void found_string(FILE *out, const char *text);

#endif
