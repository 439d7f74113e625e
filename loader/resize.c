#include "loader/resize.h"

#include "loader/clones.h"
#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESIZE_BITS = 11, RESIZE_ONE = 1 << RESIZE_BITS };

void resize_init(resize_t *r)
{
    memset(r, 0, sizeof *r);
}

void resize_fini(resize_t *r)
{
    free(r->index);
    free(r->weight);
    free(r->row[0]);
    free(r->row[1]);
    resize_init(r);
}

static int resize_reserve(resize_t *r, uint32_t columns)
{
    if (columns <= r->columns)
        return 0;
    resize_fini(r);
    r->index = malloc(columns * sizeof *r->index);
    r->weight = malloc(2 * (size_t)columns * sizeof *r->weight);
    r->row[0] = malloc(3 * (size_t)columns * sizeof *r->row[0]);
    r->row[1] = malloc(3 * (size_t)columns * sizeof *r->row[1]);
    if (!r->index || !r->weight || !r->row[0] || !r->row[1]) {
        resize_fini(r);
        return err_set(ERR_ENV, "no memory for resizing to %u columns", columns);
    }
    r->columns = columns;
    return 0;
}

/* Source coordinate of destination pixel i, and its weight pair. The coordinate is rounded to float
 * before its integer part is taken, as OpenCV does: that decides ties. */
static int32_t resize_tap(uint32_t i, double scale, int16_t weight[2])
{
    float f = (float)((i + 0.5) * scale - 0.5);
    int32_t s = (int32_t)floorf(f);
    f -= (float)s;
    weight[0] = (int16_t)lrintf((1.0f - f) * RESIZE_ONE);
    weight[1] = (int16_t)lrintf(f * RESIZE_ONE);
    return s;
}

/* One source row to `dw` columns, 11 fraction bits. The pointer of a column's right neighbour is
 * the left one's where the row ends, with weight 0. */
SLUICE_CLONES
static void resize_row(const uint8_t *restrict src, uint32_t sw, const int32_t *restrict index,
                       const int16_t *restrict weight, uint32_t dw, uint32_t *restrict out)
{
    int32_t last = 3 * ((int32_t)sw - 1);
    for (uint32_t x = 0; x < dw; x++) {
        const uint8_t *left = src + index[x];
        const uint8_t *right = index[x] < last ? left + 3 : left;
        uint32_t w0 = (uint32_t)weight[2 * x], w1 = (uint32_t)weight[2 * x + 1];
        out[3 * x] = left[0] * w0 + right[0] * w1;
        out[3 * x + 1] = left[1] * w0 + right[1] * w1;
        out[3 * x + 2] = left[2] * w0 + right[2] * w1;
    }
}

/* Two resized rows to one of bytes. The two truncating shifts are OpenCV's vector code: a row loses
 * its 4 low bits, its product with the weight 16 more, and the last 2 are rounded. */
SLUICE_CLONES
static void resize_blend(const uint32_t *restrict a, const uint32_t *restrict b, uint32_t wa,
                         uint32_t wb, uint32_t n, uint8_t *restrict out)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)((((wa * (a[i] >> 4)) >> 16) + ((wb * (b[i] >> 4)) >> 16) + 2) >> 2);
}

int resize_rgb(resize_t *r, const uint8_t *src, uint32_t sw, uint32_t sh, size_t sstride,
               uint8_t *dst, uint32_t dw, uint32_t dh, size_t dstride)
{
    int rc = resize_reserve(r, dw);
    if (rc < 0)
        return rc;
    double xscale = (double)sw / dw, yscale = (double)sh / dh;
    for (uint32_t x = 0; x < dw; x++) {
        int16_t *w = r->weight + 2 * (size_t)x;
        int32_t s = resize_tap(x, xscale, w);
        if (s < 0 || s >= (int32_t)sw - 1) {
            s = s < 0 ? 0 : (int32_t)sw - 1;
            w[0] = RESIZE_ONE;
            w[1] = 0;
        }
        r->index[x] = 3 * s;
    }
    /* have[k] is the source row that row[k] holds; rows come in rising order, so two suffice. */
    int64_t have[2] = {-1, -1};
    int32_t bottom = (int32_t)sh - 1;
    for (uint32_t y = 0; y < dh; y++) {
        int16_t w[2];
        int32_t s = resize_tap(y, yscale, w);
        int32_t need[2] = {s < 0        ? 0
                           : s > bottom ? bottom
                                        : s,
                           s + 1 < 0        ? 0
                           : s + 1 > bottom ? bottom
                                            : s + 1};
        if (have[0] != need[0] && have[1] == need[0]) {
            uint32_t *swap = r->row[0];
            r->row[0] = r->row[1];
            r->row[1] = swap;
            have[1] = have[0];
            have[0] = need[0];
        }
        for (int k = 0; k < 2; k++)
            if (have[k] != need[k]) {
                resize_row(src + (size_t)need[k] * sstride, sw, r->index, r->weight, dw, r->row[k]);
                have[k] = need[k];
            }
        resize_blend(r->row[0], r->row[1], (uint32_t)w[0], (uint32_t)w[1], 3 * dw,
                     dst + (size_t)y * dstride);
    }
    return 0;
}

void resize_load_size(uint32_t width, uint32_t height, uint32_t imgsz, uint32_t *w, uint32_t *h)
{
    uint32_t longest = width > height ? width : height;
    *w = width;
    *h = height;
    if (longest == imgsz)
        return;
    double r = (double)imgsz / longest;
    double cw = ceil(width * r), ch = ceil(height * r);
    *w = cw < imgsz ? (uint32_t)cw : imgsz;
    *h = ch < imgsz ? (uint32_t)ch : imgsz;
}
