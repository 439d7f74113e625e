/* Label files: rows of class and box, or class and polygon (facts/yolo.md 7.4).
 *
 * One bad row makes the whole file unusable, and with it its image: a half-read label teaches the
 * model that a defect is background. A labels_t is reused from file to file; one thread.
 */
#ifndef SLUICE_LOADER_LABELS_H
#define SLUICE_LOADER_LABELS_H

#include "control/catalog.h"

#include <stddef.h>

enum { LABELS_MAX = 1 << 17 }; /* of an image; more is taken for damage */

typedef struct {
    catalog_label_t *rows; /* first_point counts from the start of points */
    uint32_t n, room;
    float *points; /* x, y, normalised; 2 * n_points floats */
    uint32_t n_points, points_room;
    int found;           /* 0: there is no such file */
    uint32_t duplicates; /* rows left out because they were there already */
} labels_t;

void labels_fini(labels_t *labels);
/* Reads a label file; a missing or empty one gives no rows (a background image). ERR_DATA with
 * "path:line: reason". single_cls makes every class 0. */
int labels_read(const char *path, uint32_t classes, int single_cls, labels_t *labels);
/* The same of a text; origin stands for the path in messages. */
int labels_parse(const char *text, size_t bytes, const char *origin, uint32_t classes,
                 int single_cls, labels_t *labels);

#endif
