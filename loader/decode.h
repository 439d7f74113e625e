/* One entry to all image formats: bytes of a file to an upright RGB picture.
 *
 * A decode_t holds the decoders and DECODE_SLOTS picture buffers, so that all sources of one cell
 * (a mosaic and its mixup partner) live at once. Buffers grow to the largest picture met and stay,
 * up to DECODE_KEEP: once warm nothing is allocated by us for an image. libjpeg allocates and frees its working memory
 * per image; decode_pin_heap keeps those pages in the process. One thread per decode_t.
 */
#ifndef SLUICE_LOADER_DECODE_H
#define SLUICE_LOADER_DECODE_H

#include "control/catalog.h"
#include "control/options.h"
#include "loader/picture.h"

enum {
    DECODE_SLOTS = 9,
    DECODE_KEEP = 256 << 20, /* bytes of one picture that are kept: 89 megapixels */
};

typedef struct decode decode_t;

/* What a header says, for the scan. */
typedef struct {
    catalog_format_t format;
    uint32_t width, height; /* upright */
    int orientation;        /* EXIF 1..8 */
    uint64_t needs_bytes;   /* a shorter file is cut short; 0 if the header does not tell */
    const char *remark;     /* why an EXIF block was not used, or NULL; static text */
    uint32_t warnings;      /* of the header alone */
    char warning[PICTURE_TEXT];
} decode_header_t;

/* The limits that the options set: the same for scan and training, and for every format. */
picture_limits_t decode_limits(const options_t *o);
int decode_new(decode_t **d);
void decode_free(decode_t **d);
/* Call once, early, in the process: freed memory stays in the heap (facts/loader.md 0.3: a fresh
 * page costs more than what is written into it). */
void decode_pin_heap(void);

/* The format that the first bytes tell, whatever the name says; ERR_DATA with what they are
 * instead. */
int decode_sniff(const uint8_t *file, size_t bytes, catalog_format_t *format);
/* Format, upright size and orientation from the file's beginning. ERR_DATA with the reason; when
 * `bytes` is not the whole file, more bytes may cure it. */
int decode_probe(decode_t *d, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                 decode_header_t *header);
/* Decodes into slot 0..DECODE_SLOTS-1. *picture is owned by d and valid until the next decode into
 * the same slot; its width and height are upright and may differ from the catalogue's if the file
 * was changed since the scan: the caller compares. ERR_DATA with the reason when the file cannot be
 * used. */
int decode_image(decode_t *d, unsigned slot, const uint8_t *file, size_t bytes,
                 const picture_limits_t *limits, const picture_t **picture);
/* Frees the buffers above DECODE_KEEP; their pictures are gone. */
void decode_trim(decode_t *d);
/* Bytes that all picture buffers hold. */
uint64_t decode_memory(const decode_t *d);

#endif
