/* Printable ASCII in 5 x 7 pixels, for the names on drawn boxes. Any thread.
 */
#ifndef SLUICE_LOADER_FONT_H
#define SLUICE_LOADER_FONT_H

#include <stdint.h>

enum { FONT_WIDTH = 5, FONT_HEIGHT = 7, FONT_FIRST = ' ', FONT_LAST = '~' };

/* FONT_HEIGHT rows from the top; bit 4 is the left pixel. '?' stands for what is none of them. */
const uint8_t *font_glyph(unsigned char c);

#endif
