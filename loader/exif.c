#include "loader/exif.h"

#include <string.h>

/* Tag numbers and types of TIFF 6.0 and EXIF 2.3. */
enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, ENTRY_BYTES = 12 };

typedef struct {
    const uint8_t *data;
    size_t bytes;
    int big_endian;
} tiff_t;

static uint32_t get16(const tiff_t *t, size_t at)
{
    const uint8_t *p = t->data + at;
    return t->big_endian ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static uint32_t get32(const tiff_t *t, size_t at)
{
    uint32_t first = get16(t, at), second = get16(t, at + 2);
    return t->big_endian ? first << 16 | second : second << 16 | first;
}

static int malformed(const char **why, const char *text)
{
    *why = text;
    return -1;
}

static int entry_orientation(const tiff_t *t, size_t at, const char **why)
{
    if (get16(t, at + 2) != TYPE_SHORT || get32(t, at + 4) != 1)
        return malformed(why, "EXIF orientation is not one short number");
    uint32_t value = get16(t, at + 8);
    if (value < 1 || value > 8)
        return malformed(why, "EXIF orientation is not 1 to 8");
    return (int)value;
}

int exif_tiff(const uint8_t *data, size_t bytes, const char **why)
{
    tiff_t t = {.data = data, .bytes = bytes};
    if (bytes < 8)
        return malformed(why, "EXIF block is too short");
    if (memcmp(data, "MM", 2) == 0)
        t.big_endian = 1;
    else if (memcmp(data, "II", 2) != 0)
        return malformed(why, "EXIF byte order is neither II nor MM");
    if (get16(&t, 2) != 42)
        return malformed(why, "EXIF block has no TIFF mark");
    uint32_t directory = get32(&t, 4);
    if (directory < 8 || directory > bytes - 2)
        return malformed(why, "EXIF directory lies outside its block");
    uint32_t entries = get16(&t, directory);
    if (entries > (bytes - 2 - directory) / ENTRY_BYTES)
        return malformed(why, "EXIF directory is cut short");
    for (uint32_t i = 0; i < entries; i++) {
        size_t at = (size_t)directory + 2 + (size_t)i * ENTRY_BYTES;
        if (get16(&t, at) == TAG_ORIENTATION)
            return entry_orientation(&t, at, why);
    }
    return 0;
}

int exif_app1(const uint8_t *data, size_t bytes, const char **why)
{
    if (bytes < 6 || memcmp(data, "Exif\0\0", 6) != 0)
        return 0; /* XMP and others share the marker */
    return exif_tiff(data + 6, bytes - 6, why);
}
