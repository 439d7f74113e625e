/* A square RGB canvas with antialiased shapes; the ground the synthetic data set is painted on.
 *
 * A shape is a coverage function over a rectangle; painting reports the smallest box around the
 * pixels that it changed, which is what a label's exact box is made of. All lengths in pixels. One
 * thread per canvas.
 */
#ifndef SLUICE_TOOLS_SAMPLE_CANVAS_H
#define SLUICE_TOOLS_SAMPLE_CANVAS_H

#include <stdint.h>

typedef struct {
    int size;     /* pixels a side */
    uint8_t *rgb; /* owned; 3 * size * size */
} canvas_t;

typedef struct {
    float r, g, b;
} color_t;

/* Half-open: columns [x0, x1), rows [y0, y1); empty if x1 <= x0. */
typedef struct {
    int x0, y0, x1, y1;
} box_t;

/* How much of the pixel with centre (x, y) the shape covers, 0 to 1, and its colour there, which
 * the function may change from what is below. */
typedef float (*shape_fn)(const void *shape, float x, float y, color_t *color);

int canvas_init(canvas_t *c, int size);
void canvas_fini(canvas_t *c);

box_t box_empty(void);
box_t box_join(box_t a, box_t b);
int box_overlaps(box_t a, box_t b);
/* The box with `by` more on each side. */
box_t box_grown(box_t b, int by);

/* Paints the shape within `area` (clipped to the canvas). Coverage below 1/16 is left out, so that
 * a box holds no pixel that nobody could see. Returns the box of the pixels that changed. */
box_t canvas_paint(canvas_t *c, box_t area, shape_fn coverage, const void *shape);
/* A filled rectangle, not antialiased. */
void canvas_rect(canvas_t *c, box_t area, color_t color, float opacity);
/* Coverage of a shape whose signed distance to the pixel's centre is d: inside is negative. */
float canvas_edge(float d);
float canvas_mix(float a, float b, float t);
color_t color_scaled(color_t c, float by);
color_t color_mixed(color_t a, color_t b, float t);

#endif
