#include "loader/bmp.h"

#include "shm/err.h"

#include <string.h>

/* Offsets of BITMAPFILEHEADER and BITMAPINFOHEADER (Windows SDK, wingdi.h). The file header comes
 * first, then the DIB header, whose own size says which version it is:
 *
 *   0 'BM'   10 offset of the pixels   14 DIB header size
 *   size 12:  18 width u16   20 height u16   24 bits u16
 *   size 40+: 18 width i32   22 height i32 (negative: top row first)   28 bits u16
 *             30 compression u32   46 palette entries u32   54 masks R G B (A)
 */
enum { FILE_HEADER = 14, CORE_HEADER = 12, INFO_HEADER = 40, MASKS = 54, PALETTE_MAX = 256 };
enum { BI_RGB = 0, BI_RLE8, BI_RLE4, BI_BITFIELDS, BI_JPEG, BI_PNG, BI_ALPHABITFIELDS };

static uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | get16(p + 2) << 16;
}

static int refuse_compression(uint32_t compression)
{
    static const char *const names[] = {[BI_RLE8] = "RLE8 compression",
                                        [BI_RLE4] = "RLE4 compression",
                                        [BI_JPEG] = "an embedded JPEG",
                                        [BI_PNG] = "an embedded PNG"};
    if (compression < sizeof names / sizeof names[0] && names[compression])
        return err_set(ERR_DATA, "BMP with %s is not supported", names[compression]);
    return err_set(ERR_DATA, "BMP with compression %u is not supported", compression);
}

/* A mask must be one run of bits within the pixel. */
static int set_channel(bmp_channel_t *channel, uint32_t mask, uint32_t bits)
{
    channel->shift = 0;
    channel->max = mask;
    if (mask == 0 || (bits < 32 && mask >> bits))
        return err_set(ERR_DATA, "BMP: colour mask %08x does not fit %u bits", mask, bits);
    while (!(channel->max & 1)) {
        channel->max >>= 1;
        channel->shift++;
    }
    if (channel->max & (channel->max + 1))
        return err_set(ERR_DATA, "BMP: colour mask %08x has holes", mask);
    return 0;
}

static int read_masks(const uint8_t *file, size_t bytes, bmp_header_t *h)
{
    uint32_t mask[3] = {0x7C00, 0x03E0, 0x001F}; /* 16 bits without masks: 5-5-5 */
    if (h->bits == 32) {
        mask[0] = 0xFF0000;
        mask[1] = 0x00FF00;
        mask[2] = 0x0000FF;
    }
    if (h->bit_fields) {
        if (bytes < MASKS + 12)
            return err_set(ERR_DATA, "BMP: the file is cut short within its header");
        for (int i = 0; i < 3; i++)
            mask[i] = get32(file + MASKS + 4 * i);
    }
    for (int i = 0; i < 3; i++) {
        int rc = set_channel(&h->channel[i], mask[i], h->bits);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Width, height, bits and compression of either header version. */
static int read_dib(const uint8_t *file, size_t bytes, uint32_t size, bmp_header_t *h)
{
    if (size == CORE_HEADER) {
        h->width = get16(file + 18);
        h->height = get16(file + 20);
        h->bits = get16(file + 24);
        return 0;
    }
    if (size < INFO_HEADER || size > 1024)
        return err_set(ERR_DATA, "BMP: header of %u bytes is not supported", size);
    if (bytes < MASKS)
        return err_set(ERR_DATA, "BMP: the file is cut short within its header");
    int32_t width = (int32_t)get32(file + 18), height = (int32_t)get32(file + 22);
    if (width <= 0 || height == 0 || height == INT32_MIN)
        return err_set(ERR_DATA, "BMP: the header says %d x %d pixels", width, height);
    h->width = (uint32_t)width;
    h->height = (uint32_t)(height < 0 ? -height : height);
    h->top_down = height < 0;
    h->bits = get16(file + 28);
    uint32_t compression = get32(file + 30);
    h->bit_fields = compression == BI_BITFIELDS || compression == BI_ALPHABITFIELDS;
    if (compression != BI_RGB && !h->bit_fields)
        return refuse_compression(compression);
    if (h->bit_fields && h->bits != 16 && h->bits != 32)
        return err_set(ERR_DATA, "BMP: bit fields with %u bits a pixel", h->bits);
    h->colors = get32(file + 46);
    return 0;
}

int bmp_header(const uint8_t *file, size_t bytes, const picture_limits_t *limits, bmp_header_t *h)
{
    memset(h, 0, sizeof *h);
    if (bytes < FILE_HEADER + CORE_HEADER || file[0] != 'B' || file[1] != 'M')
        return err_set(ERR_DATA, "BMP: the file is cut short within its header");
    uint32_t size = get32(file + FILE_HEADER);
    int rc = read_dib(file, bytes, size, h);
    if (rc < 0)
        return rc;
    rc = picture_check(h->width, h->height, 0, limits);
    if (rc < 0)
        return rc;
    uint32_t b = h->bits;
    if (b != 1 && b != 4 && b != 8 && b != 16 && b != 24 && b != 32)
        return err_set(ERR_DATA, "BMP with %u bits a pixel is not supported", b);
    if (b == 16 || b == 32) {
        rc = read_masks(file, bytes, h);
        if (rc < 0)
            return rc;
    }
    h->row_bytes = ((uint64_t)h->width * b + 31) / 32 * 4;
    h->pixels = get32(file + 10);
    h->palette = FILE_HEADER + size;
    h->palette_entry = size == CORE_HEADER ? 3 : 4;
    if (b <= 8 && (h->colors == 0 || h->colors > 1u << b))
        h->colors = 1u << b;
    uint64_t before = h->palette + (b <= 8 ? (uint64_t)h->colors * h->palette_entry : 0);
    if (h->pixels < before)
        return err_set(ERR_DATA, "BMP: the pixels would begin within the header");
    h->needs_bytes = h->pixels + h->row_bytes * h->height;
    return 0;
}

/* ---- rows ---- */

static void read_palette(const uint8_t *file, const bmp_header_t *h, uint8_t palette[][3])
{
    memset(palette, 0, PALETTE_MAX * 3);
    for (uint32_t i = 0; i < h->colors; i++) {
        const uint8_t *entry = file + h->palette + (size_t)i * h->palette_entry;
        palette[i][0] = entry[2];
        palette[i][1] = entry[1];
        palette[i][2] = entry[0];
    }
}

static void palette_row(const uint8_t *src, const bmp_header_t *h, uint8_t palette[][3],
                        uint8_t *dst)
{
    uint32_t per_byte = 8 / h->bits, mask = (1u << h->bits) - 1;
    for (uint32_t x = 0; x < h->width; x++) {
        uint32_t shift = (per_byte - 1 - x % per_byte) * h->bits;
        memcpy(dst + (size_t)3 * x, palette[src[x / per_byte] >> shift & mask], 3);
    }
}

static void masked_row(const uint8_t *src, const bmp_header_t *h, uint8_t *dst)
{
    for (uint32_t x = 0; x < h->width; x++, dst += 3) {
        uint32_t value = h->bits == 16 ? get16(src + (size_t)2 * x) : get32(src + (size_t)4 * x);
        for (int i = 0; i < 3; i++) {
            const bmp_channel_t *c = &h->channel[i];
            uint64_t level = value >> c->shift & c->max;
            dst[i] = (uint8_t)((level * 255 + c->max / 2) / c->max);
        }
    }
}

static void bgr_row(const uint8_t *src, const bmp_header_t *h, uint8_t *dst)
{
    for (uint32_t x = 0; x < h->width; x++, src += 3, dst += 3) {
        dst[0] = src[2];
        dst[1] = src[1];
        dst[2] = src[0];
    }
}

int bmp_decode(const uint8_t *file, size_t bytes, const picture_limits_t *limits,
               picture_t *picture)
{
    bmp_header_t h;
    uint8_t palette[PALETTE_MAX][3];
    int rc = bmp_header(file, bytes, limits, &h);
    if (rc < 0)
        return rc;
    if (bytes < h.needs_bytes)
        return err_set(ERR_DATA, "BMP: the file is cut short: %zu bytes of %llu", bytes,
                       (unsigned long long)h.needs_bytes);
    rc = picture_begin(picture, h.width, h.height, 1);
    if (rc < 0)
        return rc;
    if (h.bits <= 8)
        read_palette(file, &h, palette);
    for (uint32_t y = 0; y < h.height; y++) {
        const uint8_t *src = file + h.pixels + h.row_bytes * (h.top_down ? y : h.height - 1 - y);
        uint8_t *dst = picture_row(picture, y);
        if (h.bits <= 8)
            palette_row(src, &h, palette, dst);
        else if (h.bits == 24)
            bgr_row(src, &h, dst);
        else
            masked_row(src, &h, dst);
    }
    return 0;
}
