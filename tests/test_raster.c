/* PNG and BMP: every kind of pixels written here and read back, and what is refused or cut short.
 */
#include "control/philox.h"
#include "loader/bmp.h"
#include "loader/decode.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <png.h>

static const picture_limits_t limits = {1000000, 100, 0};
static decode_t *decoder;

static int set_up(void **state)
{
    (void)state;
    return decode_new(&decoder);
}

static int tear_down(void **state)
{
    (void)state;
    decode_free(&decoder);
    return 0;
}

typedef struct {
    uint8_t bytes[1 << 18];
    size_t n;
} sink_t;

static sink_t sink;

static void on_write(png_structp png, png_bytep data, size_t bytes)
{
    sink_t *s = png_get_io_ptr(png);
    assert_true(s->n + bytes <= sizeof s->bytes);
    memcpy(s->bytes + s->n, data, bytes);
    s->n += bytes;
}

static void on_flush(png_structp png)
{
    (void)png;
}

typedef struct {
    uint32_t width, height;
    int color, depth, interlaced, orientation; /* orientation 0: no eXIf */
    const uint8_t *rows;                       /* packed as PNG stores them */
    size_t row_bytes;
    png_color palette[256];
    int colors;
} png_case_t;

static void write_png(const png_case_t *c)
{
    sink.n = 0;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_set_write_fn(png, &sink, on_write, on_flush);
    png_set_IHDR(png, info, c->width, c->height, c->depth, c->color,
                 c->interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
    if (c->color == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(png, info, c->palette, c->colors);
    uint8_t exif[] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 0x01, 3,
                      0,   1,   0,  0, 0, 0, 0, 0, 0, 0, 0,    0,    0};
    exif[18] = (uint8_t)c->orientation;
    if (c->orientation)
        png_set_eXIf_1(png, info, sizeof exif, exif);
    png_write_info(png, info);
    uint8_t **rows = malloc(c->height * sizeof *rows);
    for (uint32_t y = 0; y < c->height; y++)
        rows[y] = (uint8_t *)(uintptr_t)(c->rows + y * c->row_bytes);
    png_write_image(png, rows);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    free(rows);
}

/* Sample i of a packed row, scaled to 8 bits (palette indices are not). */
static uint32_t sample(const png_case_t *c, uint32_t y, uint32_t i)
{
    const uint8_t *row = c->rows + y * c->row_bytes;
    if (c->depth == 16)
        return row[2 * i];
    if (c->depth == 8)
        return row[i];
    uint32_t bit = i * (uint32_t)c->depth, max = (1u << c->depth) - 1;
    uint32_t v = row[bit / 8] >> (8 - c->depth - (int)(bit % 8)) & max;
    return c->color == PNG_COLOR_TYPE_PALETTE ? v : v * 255 / max;
}

static void expected(const png_case_t *c, uint32_t x, uint32_t y, uint32_t rgb[3])
{
    int gray = !(c->color & PNG_COLOR_MASK_COLOR);
    uint32_t channels = (uint32_t)(gray ? 1 : 3) + (c->color & PNG_COLOR_MASK_ALPHA ? 1 : 0);
    if (c->color == PNG_COLOR_TYPE_PALETTE) {
        const png_color *p = &c->palette[sample(c, y, x)];
        rgb[0] = p->red;
        rgb[1] = p->green;
        rgb[2] = p->blue;
        return;
    }
    for (uint32_t k = 0; k < 3; k++)
        rgb[k] = sample(c, y, x * channels + (gray ? 0 : k));
}

static void check_png(const png_case_t *c)
{
    const picture_t *p;
    uint32_t rgb[3];
    decode_header_t h;
    write_png(c);
    assert_int_equal(decode_image(decoder, 0, sink.bytes, sink.n, &limits, &p), 0);
    assert_int_equal(p->warnings, 0);
    assert_int_equal(p->width, c->width);
    assert_int_equal(p->height, c->height);
    for (uint32_t y = 0; y < c->height; y++)
        for (uint32_t x = 0; x < c->width; x++) {
            expected(c, x, y, rgb);
            for (int k = 0; k < 3; k++)
                assert_int_equal(p->pixels[y * p->stride + 3 * x + (uint32_t)k], rgb[k]);
        }
    assert_int_equal(decode_probe(decoder, sink.bytes, sink.n, &limits, &h), 0);
    assert_int_equal(h.format, CATALOG_PNG);
    assert_int_equal(h.width, c->width);
}

static void random_bytes(uint8_t *to, size_t n, uint32_t seed)
{
    philox_t p = philox_stream(seed, 0, 0, PHILOX_SAMPLE);
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)philox_u32(&p);
}

static const struct {
    int color, depth;
} png_kinds[] = {
    {PNG_COLOR_TYPE_GRAY, 1},        {PNG_COLOR_TYPE_GRAY, 2},       {PNG_COLOR_TYPE_GRAY, 4},
    {PNG_COLOR_TYPE_GRAY, 8},        {PNG_COLOR_TYPE_GRAY, 16},      {PNG_COLOR_TYPE_GRAY_ALPHA, 8},
    {PNG_COLOR_TYPE_GRAY_ALPHA, 16}, {PNG_COLOR_TYPE_RGB, 8},        {PNG_COLOR_TYPE_RGB, 16},
    {PNG_COLOR_TYPE_RGB_ALPHA, 8},   {PNG_COLOR_TYPE_RGB_ALPHA, 16}, {PNG_COLOR_TYPE_PALETTE, 1},
    {PNG_COLOR_TYPE_PALETTE, 4},     {PNG_COLOR_TYPE_PALETTE, 8}};

static void test_png_kinds(void **state)
{
    (void)state;
    static uint8_t rows[37 * 53 * 8];
    for (size_t k = 0; k < sizeof png_kinds / sizeof png_kinds[0]; k++) {
        for (int interlaced = 0; interlaced < 2; interlaced++) {
            png_case_t c = {.width = 53,
                            .height = 37,
                            .color = png_kinds[k].color,
                            .depth = png_kinds[k].depth,
                            .interlaced = interlaced,
                            .rows = rows};
            uint32_t channels =
                (c.color & PNG_COLOR_MASK_COLOR && c.color != PNG_COLOR_TYPE_PALETTE) ? 3 : 1;
            channels += c.color & PNG_COLOR_MASK_ALPHA ? 1 : 0;
            c.row_bytes = ((size_t)c.width * channels * (size_t)c.depth + 7) / 8;
            random_bytes(rows, c.row_bytes * c.height, (uint32_t)k);
            c.colors = 1 << (c.depth < 8 ? c.depth : 8);
            for (int i = 0; i < 256; i++)
                c.palette[i] =
                    (png_color){(png_byte)(i * 7), (png_byte)(i * 13), (png_byte)(255 - i)};
            check_png(&c);
        }
    }
}

/* Orientation through eXIf, also when interlaced passes need the whole stored picture. */
static void test_png_orientation(void **state)
{
    (void)state;
    static uint8_t rows[40 * 23 * 3];
    random_bytes(rows, sizeof rows, 5);
    for (int o = 1; o <= 8; o++) {
        for (int interlaced = 0; interlaced < 2; interlaced++) {
            const picture_t *p;
            picture_t want;
            png_case_t c = {.width = 40,
                            .height = 23,
                            .color = PNG_COLOR_TYPE_RGB,
                            .depth = 8,
                            .interlaced = interlaced,
                            .orientation = o,
                            .rows = rows,
                            .row_bytes = 120};
            write_png(&c);
            assert_int_equal(decode_image(decoder, 0, sink.bytes, sink.n, &limits, &p), 0);
            picture_init(&want);
            assert_int_equal(picture_begin(&want, 40, 23, o), 0);
            picture_place(&want, 0, 23, rows, 120);
            assert_int_equal(p->orientation, o);
            assert_int_equal(p->width, want.width);
            assert_memory_equal(p->pixels, want.pixels, sizeof rows);
            picture_fini(&want);
        }
    }
}

static void test_png_damage(void **state)
{
    (void)state;
    static uint8_t rows[30 * 30 * 3];
    const picture_t *p;
    random_bytes(rows, sizeof rows, 9);
    png_case_t c = {.width = 30,
                    .height = 30,
                    .color = PNG_COLOR_TYPE_RGB,
                    .depth = 8,
                    .rows = rows,
                    .row_bytes = 90};
    write_png(&c);
    size_t whole = sink.n;
    /* Without its IEND chunk (12 bytes) all pixels are there: a warning; shorter: refused. */
    assert_int_equal(decode_image(decoder, 0, sink.bytes, whole - 12, &limits, &p), 0);
    assert_true(p->warnings > 0);
    assert_memory_equal(p->pixels, rows, sizeof rows);
    for (size_t n = 0; n < whole - 24; n += 7)
        assert_int_equal(decode_image(decoder, 0, sink.bytes, n, &limits, &p), ERR_DATA);
    sink.bytes[60] ^= 0x55; /* within the compressed pixels */
    assert_int_equal(decode_image(decoder, 0, sink.bytes, whole, &limits, &p), ERR_DATA);
    sink.bytes[60] ^= 0x55;
    picture_limits_t tight = {30 * 30 - 1, 100, 0};
    assert_int_equal(decode_image(decoder, 0, sink.bytes, whole, &tight, &p), ERR_DATA);
    assert_non_null(strstr(err_text(), "max_pixels"));
}

/* ---- BMP ---- */

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
    put16(p, v);
    put16(p + 2, v >> 16);
}

typedef struct {
    int32_t width, height;
    uint32_t bits, compression, colors;
    int core; /* the 12-byte header of OS/2 */
    const uint32_t *masks;
} bmp_case_t;

/* Header and palette (entry i: r = i*7, g = i*13, b = 255 - i); returns the offset of the pixels.
 */
static size_t begin_bmp(const bmp_case_t *c, uint8_t *to)
{
    uint32_t header = c->core ? 12 : 40, entry = c->core ? 3 : 4;
    size_t at = 14 + header;
    memset(to, 0, 256);
    memcpy(to, "BM", 2);
    put32(to + 14, header);
    if (c->core) {
        put16(to + 18, (uint32_t)c->width);
        put16(to + 20, (uint32_t)c->height);
        put16(to + 22, 1);
        put16(to + 24, c->bits);
    } else {
        put32(to + 18, (uint32_t)c->width);
        put32(to + 22, (uint32_t)c->height);
        put16(to + 26, 1);
        put16(to + 28, c->bits);
        put32(to + 30, c->compression);
        put32(to + 46, c->colors);
    }
    for (int i = 0; c->masks && i < 3; i++, at += 4)
        put32(to + at, c->masks[i]);
    uint32_t colors = c->bits > 8 ? 0 : c->colors ? c->colors : 1u << c->bits;
    for (uint32_t i = 0; i < colors; i++, at += entry) {
        to[at] = (uint8_t)(255 - i);
        to[at + 1] = (uint8_t)(i * 13);
        to[at + 2] = (uint8_t)(i * 7);
        if (!c->core)
            to[at + 3] = 0;
    }
    put32(to + 10, (uint32_t)at);
    return at;
}

/* Level of a channel in 8 bits, rounded. */
static uint32_t level(uint32_t pixel, uint32_t mask)
{
    uint32_t shift = (uint32_t)__builtin_ctz(mask), max = mask >> shift;
    return (uint32_t)(((uint64_t)(pixel >> shift & max) * 255 * 2 + max) / (2 * (uint64_t)max));
}

static void bmp_pixel(const bmp_case_t *c, const uint8_t *row, uint32_t x, uint32_t rgb[3])
{
    uint32_t bit = x * c->bits, v = 0, masks[3] = {0xFF0000, 0xFF00, 0xFF};
    for (uint32_t i = 0; i < (c->bits + 7) / 8; i++)
        v |= (uint32_t)row[bit / 8 + i] << 8 * i;
    if (c->bits <= 8) {
        v = v >> (8 - c->bits - bit % 8) & ((1u << c->bits) - 1);
        uint32_t colors = c->colors ? c->colors : 1u << c->bits;
        rgb[0] = v < colors ? (uint8_t)(v * 7) : 0;
        rgb[1] = v < colors ? (uint8_t)(v * 13) : 0;
        rgb[2] = v < colors ? (uint8_t)(255 - v) : 0;
        return;
    }
    if (c->bits == 16)
        memcpy(masks, (uint32_t[3]){0x7C00, 0x3E0, 0x1F}, sizeof masks);
    if (c->masks)
        memcpy(masks, c->masks, sizeof masks);
    for (int k = 0; k < 3; k++)
        rgb[k] = level(v, masks[k]);
}

static void check_bmp(const bmp_case_t *c)
{
    static uint8_t file[1 << 16];
    const picture_t *p;
    decode_header_t h;
    uint32_t rgb[3], height = (uint32_t)abs(c->height), width = (uint32_t)c->width;
    size_t at = begin_bmp(c, file), row_bytes = ((size_t)width * c->bits + 31) / 32 * 4;
    size_t bytes = at + row_bytes * height;
    random_bytes(file + at, row_bytes * height, c->bits);
    int rc = decode_image(decoder, 0, file, bytes, &limits, &p);
    if (rc < 0)
        print_error("%u bits: %s\n", c->bits, err_text());
    assert_int_equal(rc, 0);
    assert_int_equal(p->width, width);
    assert_int_equal(p->height, height);
    for (uint32_t y = 0; y < height; y++) {
        const uint8_t *row = file + at + row_bytes * (c->height < 0 ? y : height - 1 - y);
        for (uint32_t x = 0; x < width; x++) {
            bmp_pixel(c, row, x, rgb);
            for (int k = 0; k < 3; k++)
                assert_int_equal(p->pixels[y * p->stride + 3 * x + (uint32_t)k], rgb[k]);
        }
    }
    assert_int_equal(decode_image(decoder, 0, file, bytes - 1, &limits, &p), ERR_DATA);
    assert_non_null(strstr(err_text(), "cut short"));
    assert_int_equal(decode_probe(decoder, file, bytes, &limits, &h), 0);
    assert_int_equal(h.needs_bytes, bytes);
    for (size_t n = 0; n < 80; n++) /* short beginnings: a verdict without reading beyond them */
        decode_probe(decoder, file, n, &limits, &h);
}

static void test_bmp_kinds(void **state)
{
    (void)state;
    static const uint32_t rgb565[3] = {0xF800, 0x07E0, 0x001F};
    static const uint32_t bgr10[3] = {0x3FF, 0xFFC00, 0x3FF00000};
    const bmp_case_t cases[] = {
        {31, 17, 1, 0, 0, 0, NULL},    {31, -17, 4, 0, 0, 0, NULL}, {31, 17, 8, 0, 0, 0, NULL},
        {31, 17, 8, 0, 100, 0, NULL},  {31, 17, 16, 0, 0, 0, NULL}, {31, 17, 16, 3, 0, 0, rgb565},
        {31, -17, 24, 0, 0, 0, NULL},  {30, 17, 24, 0, 0, 0, NULL}, {31, 17, 32, 0, 0, 0, NULL},
        {31, -17, 32, 3, 0, 0, bgr10}, {31, 17, 8, 0, 0, 1, NULL},  {31, 17, 24, 0, 0, 1, NULL},
        {12, 12, 1, 0, 0, 1, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_bmp(&cases[i]);
}

static void refused(const bmp_case_t *c, const char *word)
{
    static uint8_t file[4096];
    const picture_t *p;
    begin_bmp(c, file);
    assert_int_equal(decode_image(decoder, 0, file, sizeof file, &limits, &p), ERR_DATA);
    if (!strstr(err_text(), word))
        print_error("%s\n", err_text());
    assert_non_null(strstr(err_text(), word));
}

static void test_bmp_refused(void **state)
{
    (void)state;
    static const uint32_t holes[3] = {0xF00F00, 0xFF, 0xFF};
    static const uint32_t none[3] = {0, 0xFF, 0xFF};
    refused(&(bmp_case_t){20, 20, 8, 1, 0, 0, NULL}, "RLE8");
    refused(&(bmp_case_t){20, 20, 4, 2, 0, 0, NULL}, "RLE4");
    refused(&(bmp_case_t){20, 20, 24, 4, 0, 0, NULL}, "JPEG");
    refused(&(bmp_case_t){20, 20, 24, 5, 0, 0, NULL}, "PNG");
    refused(&(bmp_case_t){20, 20, 24, 77, 0, 0, NULL}, "compression 77");
    refused(&(bmp_case_t){20, 20, 7, 0, 0, 0, NULL}, "7 bits");
    refused(&(bmp_case_t){-5, 20, 24, 0, 0, 0, NULL}, "-5 x 20");
    refused(&(bmp_case_t){20, INT32_MIN, 24, 0, 0, 0, NULL}, "pixels");
    refused(&(bmp_case_t){INT32_MAX, INT32_MAX, 24, 0, 0, 0, NULL}, "a side may have");
    refused(&(bmp_case_t){2000, 2000, 24, 0, 0, 0, NULL}, "max_pixels");
    refused(&(bmp_case_t){20, 20, 32, 3, 0, 0, holes}, "holes");
    refused(&(bmp_case_t){20, 20, 32, 3, 0, 0, none}, "mask");
}

static void test_sniff(void **state)
{
    (void)state;
    catalog_format_t format;
    assert_int_equal(decode_sniff((const uint8_t *)"GIF89a..", 8, &format), ERR_DATA);
    assert_non_null(strstr(err_text(), "47 49 46"));
    assert_int_equal(decode_sniff((const uint8_t *)"", 0, &format), ERR_DATA);
    assert_non_null(strstr(err_text(), "empty"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png_kinds),   cmocka_unit_test(test_png_orientation),
        cmocka_unit_test(test_png_damage),  cmocka_unit_test(test_bmp_kinds),
        cmocka_unit_test(test_bmp_refused), cmocka_unit_test(test_sniff),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
