/* Boxes and names on an RGB picture. Pure: writes into the pixels it is given and nowhere else. Any
 * thread.
 */
#ifndef SLUICE_LOADER_DRAW_H
#define SLUICE_LOADER_DRAW_H

#include <stddef.h>
#include <stdint.h>

/* Rows of 3 * width bytes, `stride` apart. */
typedef struct {
    uint8_t *pixels;
    uint32_t width, height;
    size_t stride;
} draw_canvas_t;

/* Line width for a picture: 0.3 % of the mean of its sides, 2 pixels at least. */
int draw_line_width(uint32_t width, uint32_t height);
/* The colour of a class: hues a golden section apart, so that neighbours differ. */
void draw_colour(uint32_t cls, uint8_t rgb[3]);
/* A rectangle's outline, its outer edge at the box, in lines of `line` pixels; parts outside are cut. */
void draw_box(const draw_canvas_t *c, float x1, float y1, float x2, float y2, int line,
              const uint8_t rgb[3]);
/* The text on a plate of the colour, above the box's upper left corner, below where there is no room. */
void draw_label(const draw_canvas_t *c, float x, float y, const char *text, int line,
                const uint8_t rgb[3]);

#endif
