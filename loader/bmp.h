/* BMP in memory to an RGB picture: 1, 4, 8, 16, 24 and 32 bits, plain or with bit fields.
 *
 * A palette index beyond the palette is black; alpha is dropped. RLE and embedded JPEG or PNG are
 * refused by name. No state: any thread.
 */
#ifndef SLUICE_LOADER_BMP_H
#define SLUICE_LOADER_BMP_H

#include "loader/picture.h"

typedef struct {
    uint32_t shift, max; /* level = pixel >> shift & max */
} bmp_channel_t;

typedef struct {
    uint32_t width, height, bits; /* bits a pixel */
    int top_down, bit_fields;
    uint32_t colors;          /* palette entries */
    uint64_t palette, pixels; /* offsets in the file */
    uint32_t palette_entry;   /* bytes: 3 or 4 */
    uint64_t row_bytes;       /* rows are padded to 4 bytes */
    uint64_t needs_bytes;     /* a shorter file is cut short */
    bmp_channel_t channel[3]; /* R, G, B of 16 and 32 bits */
} bmp_header_t;

/* From the file's beginning; checks all that the pixels' place depends on. ERR_DATA with the
 * reason. */
int bmp_header(const uint8_t *file, size_t bytes, const picture_limits_t *limits, bmp_header_t *h);
/* ERR_DATA with the reason; the picture is then without meaning. */
int bmp_decode(const uint8_t *file, size_t bytes, const picture_limits_t *limits,
               picture_t *picture);

#endif
