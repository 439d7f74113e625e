/* What is inspected: a brushed metal plate or a circuit board with drilled holes, and the camera's
 * share (uneven light, noise). One thread per canvas.
 */
#ifndef SLUICE_TOOLS_SAMPLE_SURFACE_H
#define SLUICE_TOOLS_SAMPLE_SURFACE_H

#include "control/philox.h"
#include "tools/sample_canvas.h"

typedef enum { SURFACE_METAL = 0, SURFACE_BOARD } surface_kind_t;
enum { SURFACE_HOLES = 48 };

typedef struct {
    surface_kind_t kind;
    color_t base; /* of the plain surface */
    float radius; /* of the holes with their rims, the same over a plate */
    int n_holes;
    box_t holes[SURFACE_HOLES];
} surface_t;

/* Paints a plate and its good holes over the whole canvas. ERR_ENV without memory. */
int surface_paint(canvas_t *c, philox_t *random, surface_t *s);
/* Paints a hole at (x, y): a good one, or one that was never drilled, whose rim alone is there.
 * Returns the box of what it changed. */
box_t surface_hole(canvas_t *c, const surface_t *s, float x, float y, int drilled);
/* Light falling off over the plate, then sensor noise: last of all. */
void surface_expose(canvas_t *c, philox_t *random);

#endif
