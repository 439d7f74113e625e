/* JPEG in memory to an upright RGB picture, through the libjpeg API (facts/loader.md 2).
 *
 * Pixels equal djpeg's: accurate integer DCT, fancy upsampling, block smoothing. Gray is spread
 * over three channels. CMYK and YCCK become RGB as djpeg writes them to PPM and as OpenCV reads
 * them: the channels are taken as inverted, as Adobe writes them, r = c * k / 255. Baseline,
 * extended 8-bit, progressive and arithmetic; 12-bit and lossless are refused. An object belongs to
 * one thread and is reused from file to file, after failures too.
 */
#ifndef SLUICE_LOADER_JPEG_H
#define SLUICE_LOADER_JPEG_H

#include "loader/picture.h"

typedef struct jpeg jpeg_t;

typedef struct {
    uint32_t width, height;  /* as stored */
    int orientation;         /* EXIF 1..8; 1 if there is none */
    const char *exif_remark; /* why an EXIF block was not used, or NULL; static text */
    int components, progressive, arithmetic;
    uint32_t warnings; /* of the header alone */
    char warning[PICTURE_TEXT];
} jpeg_header_t;

int jpeg_new(jpeg_t **j);
void jpeg_free(jpeg_t **j);
/* Reads up to the first scan; `bytes` may be only the file's beginning. ERR_DATA with the reason,
 * ERR_ENV without memory. */
int jpeg_probe(jpeg_t *j, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
               jpeg_header_t *header);
/* Decodes the whole image. Warnings are counted in the picture, whose pixels are then what libjpeg
 * made of the file. ERR_DATA with the reason when it gives up, ERR_ENV without memory; the picture
 * is then without meaning. */
int jpeg_decode(jpeg_t *j, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                picture_t *picture);

#endif
