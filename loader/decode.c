#include "loader/decode.h"

#include "loader/bmp.h"
#include "loader/jpeg.h"
#include "loader/pngfile.h"
#include "shm/err.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SNIFF_BYTES = 8 };

struct decode {
    jpeg_t *jpeg;
    pngfile_t *png;
    picture_t pictures[DECODE_SLOTS];
};

picture_limits_t decode_limits(const options_t *o)
{
    return (picture_limits_t){.max_pixels = (uint64_t)(o->max_pixels * 1e6),
                              .max_scans = (uint32_t)o->max_scans,
                              .max_bytes = (uint64_t)o->max_decode_mb * 1000000};
}

int decode_new(decode_t **out)
{
    decode_t *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(ERR_ENV, "no memory for the decoders");
    for (int i = 0; i < DECODE_SLOTS; i++)
        picture_init(&d->pictures[i]);
    int rc;
    CHECK_GOTO(jpeg_new(&d->jpeg), rc, fail);
    CHECK_GOTO(pngfile_new(&d->png), rc, fail);
    *out = d;
    return 0;
fail:
    decode_free(&d);
    return rc;
}

void decode_free(decode_t **d)
{
    if (!*d)
        return;
    for (int i = 0; i < DECODE_SLOTS; i++)
        picture_fini(&(*d)->pictures[i]);
    pngfile_free(&(*d)->png);
    jpeg_free(&(*d)->jpeg);
    free(*d);
    *d = NULL;
}

void decode_pin_heap(void)
{
    /* No block of its own for a large allocation, and the heap's top is never given back. The
     * bounds are what mallopt takes, an int. */
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT32_MAX);
}

int decode_sniff(const uint8_t *file, size_t bytes, catalog_format_t *format)
{
    static const uint8_t png[SNIFF_BYTES] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    if (bytes == 0)
        return err_set(ERR_DATA, "the file is empty");
    if (bytes >= 2 && file[0] == 0xFF && file[1] == 0xD8) {
        *format = CATALOG_JPEG;
        return 0;
    }
    if (bytes >= SNIFF_BYTES && memcmp(file, png, SNIFF_BYTES) == 0) {
        *format = CATALOG_PNG;
        return 0;
    }
    if (bytes >= 2 && file[0] == 'B' && file[1] == 'M') {
        *format = CATALOG_BMP;
        return 0;
    }
    char start[3 * SNIFF_BYTES + 1] = "";
    for (size_t i = 0; i < bytes && i < SNIFF_BYTES; i++)
        snprintf(start + 3 * i, 4, "%02x ", file[i]);
    return err_set(ERR_DATA, "neither a JPEG nor a PNG nor a BMP: the file begins with %s", start);
}

static int probe_jpeg(decode_t *d, const uint8_t *file, size_t bytes,
                      const picture_limits_t *limits, decode_header_t *header)
{
    jpeg_header_t h;
    int rc = jpeg_probe(d->jpeg, file, bytes, limits, &h);
    if (rc < 0)
        return rc;
    header->width = h.width;
    header->height = h.height;
    header->orientation = h.orientation;
    header->remark = h.exif_remark;
    header->warnings = h.warnings;
    memcpy(header->warning, h.warning, sizeof header->warning);
    return 0;
}

static int probe_png(const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                     decode_header_t *header)
{
    pngfile_header_t h;
    int rc = pngfile_probe(file, bytes, limits, &h);
    if (rc < 0)
        return rc;
    header->width = h.width;
    header->height = h.height;
    header->orientation = h.orientation;
    header->remark = h.exif_remark;
    return 0;
}

static int probe_bmp(const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                     decode_header_t *header)
{
    bmp_header_t h;
    int rc = bmp_header(file, bytes, limits, &h);
    if (rc < 0)
        return rc;
    header->width = h.width;
    header->height = h.height;
    header->orientation = 1;
    header->needs_bytes = h.needs_bytes;
    return 0;
}

int decode_probe(decode_t *d, const uint8_t *file, size_t bytes, const picture_limits_t *limits,
                 decode_header_t *header)
{
    memset(header, 0, sizeof *header);
    int rc = decode_sniff(file, bytes, &header->format);
    if (rc < 0)
        return rc;
    switch (header->format) {
    case CATALOG_JPEG: rc = probe_jpeg(d, file, bytes, limits, header); break;
    case CATALOG_PNG: rc = probe_png(file, bytes, limits, header); break;
    case CATALOG_BMP: rc = probe_bmp(file, bytes, limits, header); break;
    }
    if (rc < 0)
        return rc;
    if (header->orientation > 4) {
        uint32_t width = header->width;
        header->width = header->height;
        header->height = width;
    }
    return 0;
}

int decode_image(decode_t *d, unsigned slot, const uint8_t *file, size_t bytes,
                 const picture_limits_t *limits, const picture_t **picture)
{
    picture_t *p = &d->pictures[slot];
    catalog_format_t format;
    int rc = decode_sniff(file, bytes, &format);
    if (rc < 0)
        return rc;
    switch (format) {
    case CATALOG_JPEG: rc = jpeg_decode(d->jpeg, file, bytes, limits, p); break;
    case CATALOG_PNG: rc = pngfile_decode(d->png, file, bytes, limits, p); break;
    case CATALOG_BMP: rc = bmp_decode(file, bytes, limits, p); break;
    }
    if (rc < 0)
        return rc;
    *picture = p;
    return 0;
}

void decode_trim(decode_t *d)
{
    for (int i = 0; i < DECODE_SLOTS; i++)
        if (d->pictures[i].capacity > DECODE_KEEP)
            picture_fini(&d->pictures[i]);
}

uint64_t decode_memory(const decode_t *d)
{
    uint64_t sum = 0;
    for (int i = 0; i < DECODE_SLOTS; i++)
        sum += d->pictures[i].capacity;
    return sum;
}
