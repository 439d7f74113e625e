/* PNG in memory to an upright RGB picture, through libpng.
 *
 * 1 to 16 bits, gray, palette, RGB, interlaced. 16-bit samples keep their high byte and alpha is
 * dropped without compositing, as an imread in colour does. An eXIf chunk before the pixels gives
 * the orientation. Limits are checked before anything is allocated for the picture. One thread per
 * pngfile_t.
 */
#ifndef SLUICE_LOADER_PNGFILE_H
#define SLUICE_LOADER_PNGFILE_H

#include "loader/picture.h"

typedef struct pngfile pngfile_t; /* row buffers that are kept between files */

typedef struct {
    uint32_t width, height;  /* as stored */
    int orientation;         /* of eXIf; 1 if there is none */
    const char *exif_remark; /* why an EXIF block was not used, or NULL; static text */
} pngfile_header_t;

int pngfile_new(pngfile_t **r);
void pngfile_free(pngfile_t **r);
/* The header, from the file's beginning. ERR_DATA with the reason. */
int pngfile_probe(const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                  pngfile_header_t *header);
/* ERR_DATA with the reason; the picture is then without meaning. */
int pngfile_decode(pngfile_t *r, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                   picture_t *picture);

#endif
