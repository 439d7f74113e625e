#include "loader/warp.h"

#include "loader/warp_span.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* DESIGN
 * Along an output row the canvas coordinate is linear in x, so the pixels whose four neighbours all
 * lie in one tile form an interval, found by integer division before the row is sampled. The row is
 * then: 114 where nothing of the canvas is near, spans of one tile sampled without any test, and,
 * between them, the few pixels at seams and edges, each of whose neighbours is looked up on its
 * own. A perspective view divides per pixel and tests each one.
 */

/* Farther than any canvas: a view that maps there is all border. Keeps fixed point from
 * overflowing. */
#define WARP_FAR 1e8

typedef struct {
    uint32_t begin, end; /* output x */
    const warp_tile_t *tile;
} warp_span_t;

/* ---- one pixel ---- */

static const uint8_t *warp_pixel(const warp_tile_t *t, int64_t x, int64_t y)
{
    return t->pixels + (size_t)(y - t->off_y) * t->stride + 3 * (size_t)(x - t->off_x);
}

static const uint8_t *warp_canvas(const warp_view_t *v, int64_t x, int64_t y)
{
    static const uint8_t border[3] = {WARP_BORDER, WARP_BORDER, WARP_BORDER};
    for (uint32_t i = 0; i < v->n_tiles; i++) {
        const warp_tile_t *t = &v->tiles[i];
        if (x >= t->x1 && x < t->x2 && y >= t->y1 && y < t->y2)
            return warp_pixel(t, x, y);
    }
    return border;
}

static void warp_blend(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d,
                       uint32_t wx, uint32_t wy, uint8_t *out)
{
    for (int k = 0; k < 3; k++) {
        uint32_t top = a[k] * (WARP_ONE - wx) + b[k] * wx;
        uint32_t bottom = c[k] * (WARP_ONE - wx) + d[k] * wx;
        out[k] = (uint8_t)((top * (WARP_ONE - wy) + bottom * wy + (1u << (2 * WARP_WEIGHT - 1))) >>
                           (2 * WARP_WEIGHT));
    }
}

static uint32_t warp_weight(int64_t fixed)
{
    return (uint32_t)(fixed >> (WARP_FRACTION - WARP_WEIGHT)) & (WARP_ONE - 1);
}

/* Any point of the plane, each neighbour looked up on its own unless one tile has them all. */
static void warp_anywhere(const warp_view_t *v, int64_t x, int64_t y, uint8_t *out)
{
    int64_t sx = x >> WARP_FRACTION, sy = y >> WARP_FRACTION;
    for (uint32_t i = 0; i < v->n_tiles; i++) {
        const warp_tile_t *t = &v->tiles[i];
        if (sx >= t->x1 && sx + 1 < t->x2 && sy >= t->y1 && sy + 1 < t->y2) {
            const uint8_t *p = warp_pixel(t, sx, sy);
            warp_blend(p, p + 3, p + t->stride, p + t->stride + 3, warp_weight(x), warp_weight(y),
                       out);
            return;
        }
    }
    warp_blend(warp_canvas(v, sx, sy), warp_canvas(v, sx + 1, sy), warp_canvas(v, sx, sy + 1),
               warp_canvas(v, sx + 1, sy + 1), warp_weight(x), warp_weight(y), out);
}

void warp_span_plain(const uint8_t *pixels, size_t stride, int64_t x, int64_t y, int64_t dx,
                     int64_t dy, uint32_t n, uint8_t *out)
{
    for (uint32_t i = 0; i < n; i++, x += dx, y += dy, out += 3) {
        const uint8_t *p =
            pixels + (size_t)(y >> WARP_FRACTION) * stride + 3 * (size_t)(x >> WARP_FRACTION);
        warp_blend(p, p + 3, p + stride, p + stride + 3, warp_weight(x), warp_weight(y), out);
    }
}

/* ---- choice of the variant ---- */

/* Written by warp_set_isa alone, before or between pictures; relaxed: a stale value is a correct
 * one. */
static _Atomic(warp_span_fn) warp_chosen;

static warp_span_fn warp_find(warp_isa_t isa)
{
#if defined(__x86_64__)
    if (isa != WARP_ISA_PLAIN && __builtin_cpu_supports("avx2"))
        return warp_span_avx2();
#endif
    return isa == WARP_ISA_AVX2 ? NULL : warp_span_plain;
}

int warp_set_isa(warp_isa_t isa)
{
    warp_span_fn fn = warp_find(isa);
    if (!fn)
        return -1;
    atomic_store_explicit(&warp_chosen, fn, memory_order_relaxed);
    return 0;
}

static warp_span_fn warp_span_best(void)
{
    warp_span_fn fn = atomic_load_explicit(&warp_chosen, memory_order_relaxed);
    if (!fn) {
        fn = warp_find(WARP_ISA_BEST);
        atomic_store_explicit(&warp_chosen, fn, memory_order_relaxed);
    }
    return fn;
}

/* ---- affine rows ---- */

static int64_t warp_floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

/* Narrows [*begin, *end) to the x with lo <= base + x * step < hi. */
static void warp_narrow(int64_t base, int64_t step, int64_t lo, int64_t hi, int64_t *begin,
                        int64_t *end)
{
    int64_t first, last; /* inclusive */
    if (step == 0) {
        first = base >= lo && base < hi ? *begin : *end;
        last = *end - 1;
    } else if (step > 0) {
        first = -warp_floor_div(base - lo, step);
        last = warp_floor_div(hi - 1 - base, step);
    } else {
        first = -warp_floor_div(hi - 1 - base, -step);
        last = warp_floor_div(base - lo, -step);
    }
    if (first > *begin)
        *begin = first;
    if (last + 1 < *end)
        *end = last + 1;
    if (*end < *begin)
        *end = *begin;
}

/* Output x whose base coordinate lies in [x1, x2) x [y1, y2), whole pixels. */
static warp_span_t warp_interval(const int64_t at[2], const int64_t step[2], const int64_t rect[4],
                                 uint32_t width)
{
    const int64_t unit = (int64_t)1 << WARP_FRACTION;
    int64_t begin = 0, end = width;
    warp_narrow(at[0], step[0], rect[0] * unit, rect[2] * unit, &begin, &end);
    warp_narrow(at[1], step[1], rect[1] * unit, rect[3] * unit, &begin, &end);
    warp_span_t s = {(uint32_t)begin, (uint32_t)end, NULL};
    return s;
}

/* The tiles' own spans of a row, in order; *near is the interval outside of which all is border. */
static uint32_t warp_plan(const warp_view_t *v, const int64_t at[2], const int64_t step[2],
                          uint32_t width, warp_span_t spans[WARP_TILES], warp_span_t *near)
{
    uint32_t n = 0;
    int64_t box[4] = {INT32_MAX, INT32_MAX, INT32_MIN, INT32_MIN};
    for (uint32_t i = 0; i < v->n_tiles; i++) {
        const warp_tile_t *t = &v->tiles[i];
        if (t->x2 <= t->x1 || t->y2 <= t->y1)
            continue;
        box[0] = t->x1 - 1 < box[0] ? t->x1 - 1 : box[0];
        box[1] = t->y1 - 1 < box[1] ? t->y1 - 1 : box[1];
        box[2] = t->x2 > box[2] ? t->x2 : box[2];
        box[3] = t->y2 > box[3] ? t->y2 : box[3];
        const int64_t inner[4] = {t->x1, t->y1, t->x2 - 1, t->y2 - 1};
        warp_span_t s = warp_interval(at, step, inner, width);
        if (s.end <= s.begin)
            continue;
        s.tile = t;
        uint32_t k = n++;
        for (; k > 0 && spans[k - 1].begin > s.begin; k--)
            spans[k] = spans[k - 1];
        spans[k] = s;
    }
    *near = (warp_span_t){0, 0, NULL};
    if (box[0] < box[2])
        *near = warp_interval(at, step, box, width);
    return n;
}

static void warp_row_affine(const warp_view_t *v, uint32_t y, uint32_t width, uint8_t *row)
{
    const double *m = v->inverse;
    const double unit = 4294967296.0; /* 2^WARP_FRACTION */
    int64_t at[2] = {(int64_t)llrint((m[1] * y + m[2]) * unit) + WARP_ROUND,
                     (int64_t)llrint((m[4] * y + m[5]) * unit) + WARP_ROUND};
    int64_t step[2] = {(int64_t)llrint(m[0] * unit), (int64_t)llrint(m[3] * unit)};
    for (int k = 0; k < 2 && v->mirror; k++) {
        /* The same coordinates from the other end: a mirrored row has the same pixels to the bit.
         */
        at[k] += (int64_t)(width - 1) * step[k];
        step[k] = -step[k];
    }
    warp_span_t spans[WARP_TILES], near;
    uint32_t n = warp_plan(v, at, step, width, spans, &near);
    warp_span_fn span = warp_span_best();

    memset(row, WARP_BORDER, 3 * (size_t)width);
    uint32_t x = near.begin;
    for (uint32_t i = 0; i <= n; i++) {
        uint32_t until = i < n ? spans[i].begin : near.end;
        for (; x < until; x++)
            warp_anywhere(v, at[0] + x * step[0], at[1] + x * step[1], row + 3 * (size_t)x);
        if (i == n)
            break;
        const warp_tile_t *t = spans[i].tile;
        const int64_t shift_x = (int64_t)t->off_x * ((int64_t)1 << WARP_FRACTION);
        const int64_t shift_y = (int64_t)t->off_y * ((int64_t)1 << WARP_FRACTION);
        /* The span's slack overwrites what lies behind it: border pixels are put back. */
        uint8_t kept[WARP_SLACK];
        uint8_t *end = row + 3 * (size_t)spans[i].end;
        memcpy(kept, end, sizeof kept);
        span(t->pixels, t->stride, at[0] + x * step[0] - shift_x, at[1] + x * step[1] - shift_y,
             step[0], step[1], spans[i].end - x, row + 3 * (size_t)x);
        memcpy(end, kept, sizeof kept);
        x = spans[i].end;
    }
}

/* ---- perspective rows ---- */

static void warp_row_perspective(const warp_view_t *v, uint32_t y, uint32_t width, uint8_t *row)
{
    const double *m = v->inverse;
    const double unit = 4294967296.0;
    for (uint32_t x = 0; x < width; x++) {
        double w = m[6] * x + (m[7] * y + m[8]);
        double cx = (m[0] * x + (m[1] * y + m[2])) / w, cy = (m[3] * x + (m[4] * y + m[5])) / w;
        uint8_t *out = row + 3 * (size_t)(v->mirror ? width - 1 - x : x);
        /* Also where w is 0 and the quotient no number. */
        if (!(fabs(cx) < WARP_FAR && fabs(cy) < WARP_FAR)) {
            memset(out, WARP_BORDER, 3);
            continue;
        }
        warp_anywhere(v, (int64_t)llrint(cx * unit) + WARP_ROUND,
                      (int64_t)llrint(cy * unit) + WARP_ROUND, out);
    }
}

static int warp_is_near(const warp_view_t *v, double x, double y)
{
    const double *m = v->inverse;
    return fabs(m[0] * x) + fabs(m[1] * y) + fabs(m[2]) < WARP_FAR &&
           fabs(m[3] * x) + fabs(m[4] * y) + fabs(m[5]) < WARP_FAR;
}

void warp_row(const warp_view_t *view, uint32_t y, uint32_t width, uint8_t *row)
{
    if (view->perspective)
        warp_row_perspective(view, y, width, row);
    else if (warp_is_near(view, width, y))
        warp_row_affine(view, y, width, row);
    else
        memset(row, WARP_BORDER, 3 * (size_t)width);
}
