/* PNG: header and whole decode, once as it is and once with the chunks' checksums put right, without
 * which hardly a changed byte would get past them. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/image.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* CRC-32 of PNG 1.2, annex D, bit by bit: chunks are short here. */
static uint32_t crc(const uint8_t *p, size_t n)
{
    uint32_t c = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
    }
    return ~c;
}

static void repair(uint8_t *file, size_t bytes)
{
    for (size_t at = 8; at + 12 <= bytes;) {
        size_t n = get32(file + at);
        if (n > bytes - at - 12)
            return;
        uint32_t c = crc(file + at + 4, n + 4);
        for (int i = 0; i < 4; i++)
            file[at + 8 + n + (size_t)i] = (uint8_t)(c >> (24 - 8 * i));
        at += 12 + n;
    }
}

void fuzz_png(const uint8_t *data, size_t bytes)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    uint8_t *file = malloc(bytes + 1);
    fuzz_require(file != NULL, "no memory");
    memcpy(file, data, bytes);
    if (bytes >= sizeof signature)
        memcpy(file, signature, sizeof signature);
    fuzz_decode(file, bytes);
    repair(file, bytes);
    fuzz_decode(file, bytes);
    free(file);
}

/* ---- seeds ---- */

typedef struct {
    uint8_t bytes[8192];
    size_t used;
} sink_t;

static void on_write(png_structp png, png_bytep data, size_t bytes)
{
    sink_t *s = png_get_io_ptr(png);
    if (bytes > sizeof s->bytes - s->used)
        png_error(png, "a seed is too long");
    memcpy(s->bytes + s->used, data, bytes);
    s->used += bytes;
}

static void on_flush(png_structp png)
{
    (void)png;
}

static void write_png(sink_t *s, int color, int depth, int interlace, int with_exif)
{
    static const png_byte exif[] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1,
                                    18,  0,   3, 0,  0, 0, 1, 0, 6, 0, 0};
    png_byte copy[sizeof exif], row[64];
    png_color palette[4] = {{1, 2, 3}, {90, 80, 70}, {255, 0, 0}, {9, 200, 9}};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    fuzz_require(info != NULL, "no PNG writer");
    s->used = 0;
    if (setjmp(png_jmpbuf(png)))
        fuzz_require(0, "a PNG seed cannot be written");
    png_set_write_fn(png, s, on_write, on_flush);
    png_set_IHDR(png, info, 7, 5, depth, color, interlace, PNG_COMPRESSION_TYPE_BASE,
                 PNG_FILTER_TYPE_BASE);
    if (color == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(png, info, palette, 4);
    memcpy(copy, exif, sizeof exif);
    if (with_exif)
        png_set_eXIf_1(png, info, sizeof copy, copy);
    png_write_info(png, info);
    for (int pass = 0; pass < png_set_interlace_handling(png); pass++)
        for (int y = 0; y < 5; y++) {
            for (size_t i = 0; i < sizeof row; i++)
                row[i] =
                    (png_byte)(color == PNG_COLOR_TYPE_PALETTE ? 0x1B : i * 31 + (size_t)y * 7);
            png_write_row(png, row);
        }
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
}

void fuzz_png_seeds(fuzz_seed_fn give, void *user)
{
    static const struct {
        const char *name;
        int color, depth, interlace, exif;
    } kinds[] = {
        {"gray1.png", PNG_COLOR_TYPE_GRAY, 1, 0, 0},
        {"gray16-interlaced.png", PNG_COLOR_TYPE_GRAY, 16, 1, 0},
        {"palette2.png", PNG_COLOR_TYPE_PALETTE, 2, 0, 1},
        {"rgb.png", PNG_COLOR_TYPE_RGB, 8, 0, 1},
        {"rgb-interlaced-turned.png", PNG_COLOR_TYPE_RGB, 8, 1, 1},
        {"rgba16.png", PNG_COLOR_TYPE_RGB_ALPHA, 16, 0, 0},
        {"gray-alpha.png", PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0, 0},
    };
    static sink_t s;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        write_png(&s, kinds[i].color, kinds[i].depth, kinds[i].interlace, kinds[i].exif);
        give(user, kinds[i].name, s.bytes, s.used);
    }
}
