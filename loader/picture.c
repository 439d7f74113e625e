#include "loader/picture.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void picture_init(picture_t *p)
{
    memset(p, 0, sizeof *p);
}

void picture_fini(picture_t *p)
{
    free(p->pixels);
    memset(p, 0, sizeof *p);
}

int picture_check(uint64_t width, uint64_t height, uint64_t working, const picture_limits_t *limits)
{
    if (width == 0 || height == 0)
        return err_set(ERR_DATA, "the header says %llu x %llu pixels", (unsigned long long)width,
                       (unsigned long long)height);
    if (width > PICTURE_SIDE || height > PICTURE_SIDE)
        return err_set(ERR_DATA, "the header says %llu x %llu pixels; a side may have %d",
                       (unsigned long long)width, (unsigned long long)height, PICTURE_SIDE);
    if (width * height > limits->max_pixels)
        return err_set(ERR_DATA,
                       "the header says %llu x %llu, %.1f megapixels; max_pixels allows %.1f",
                       (unsigned long long)width, (unsigned long long)height,
                       (double)(width * height) * 1e-6, (double)limits->max_pixels * 1e-6);
    uint64_t need = width * height * 3 + working;
    if (limits->max_bytes && need > limits->max_bytes)
        return err_set(ERR_DATA, "decoding it takes %llu MB of memory; max_decode_mb allows %llu",
                       (unsigned long long)((need + 999999) / 1000000),
                       (unsigned long long)(limits->max_bytes / 1000000));
    return 0;
}

int picture_begin(picture_t *p, uint32_t width, uint32_t height, int orientation)
{
    size_t need = (size_t)width * height * 3 + PICTURE_SLACK;
    if (need > p->capacity) {
        /* The old pixels are not wanted: free first, so that the two never live side by side. */
        free(p->pixels);
        p->capacity = 0;
        p->pixels = malloc(need);
        if (!p->pixels)
            return err_set(ERR_ENV, "no memory for a picture of %u x %u pixels (%zu bytes)", width,
                           height, need);
        p->capacity = need;
    }
    p->width = orientation > 4 ? height : width;
    p->height = orientation > 4 ? width : height;
    p->stride = (size_t)p->width * 3;
    p->orientation = orientation;
    p->warnings = 0;
    p->warning[0] = '\0';
    return 0;
}

uint8_t *picture_row(picture_t *p, uint32_t y)
{
    if (p->orientation == 1)
        return p->pixels + y * p->stride;
    if (p->orientation == 4)
        return p->pixels + (p->height - 1 - y) * p->stride;
    return NULL;
}

static void copy_mirrored(uint8_t *dst, const uint8_t *src, uint32_t width)
{
    const uint8_t *from = src + (size_t)3 * width;
    for (uint32_t x = 0; x < width; x++, dst += 3) {
        from -= 3;
        dst[0] = from[0];
        dst[1] = from[1];
        dst[2] = from[2];
    }
}

/* Orientations 5 to 8: stored columns become rows. A band of several stored rows at once gives each
 * upright row a run of neighbouring pixels instead of a single one. */
static void place_turned(picture_t *p, uint32_t y, uint32_t n, const uint8_t *rows, size_t stride)
{
    uint32_t stored_width = p->height, stored_height = p->width;
    int column_reversed = p->orientation == 7 || p->orientation == 8; /* upright y = w - 1 - x */
    int row_reversed = p->orientation == 6 || p->orientation == 7;    /* upright x = h - 1 - y */
    uint32_t first = row_reversed ? stored_height - y - n : y;
    for (uint32_t x = 0; x < stored_width; x++) {
        uint32_t to = column_reversed ? stored_width - 1 - x : x;
        uint8_t *dst = p->pixels + to * p->stride + (size_t)3 * first;
        for (uint32_t i = 0; i < n; i++, dst += 3) {
            uint32_t row = row_reversed ? n - 1 - i : i;
            const uint8_t *src = rows + row * stride + (size_t)3 * x;
            dst[0] = src[0];
            dst[1] = src[1];
            dst[2] = src[2];
        }
    }
}

void picture_place(picture_t *p, uint32_t y, uint32_t n, const uint8_t *rows, size_t stride)
{
    if (p->orientation > 4) {
        place_turned(p, y, n, rows, stride);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = p->orientation > 2 ? p->height - 1 - (y + i) : y + i;
        uint8_t *dst = p->pixels + to * p->stride;
        if (p->orientation == 2 || p->orientation == 3)
            copy_mirrored(dst, rows + i * stride, p->width);
        else
            memcpy(dst, rows + i * stride, p->stride);
    }
}

void picture_warn(picture_t *p, const char *text)
{
    if (p->warnings++ == 0)
        snprintf(p->warning, sizeof p->warning, "%s", text);
}
