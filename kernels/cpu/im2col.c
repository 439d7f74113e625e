#include "kernels/cpu/im2col.h"
#include "kernels/cpu/cpu.h"

#include <string.h>

/* count runs of len floats, from and to at constant distances. The lengths that models have get
 * loops of known length: a call of memcpy for 64 bytes costs more than the copy. */
CPU_VECTOR static void copy_runs(float *restrict dst, int64_t dst_step, const float *restrict src,
                                 int64_t src_step, int64_t count, int32_t len)
{
    if (len % 16 == 0) {
        for (int64_t i = 0; i < count; i++, dst += dst_step, src += src_step)
            for (int32_t j = 0; j < len; j += 16)
                for (int32_t l = 0; l < 16; l++)
                    dst[j + l] = src[j + l];
    } else if (len % 8 == 0) {
        for (int64_t i = 0; i < count; i++, dst += dst_step, src += src_step)
            for (int32_t j = 0; j < len; j += 8)
                for (int32_t l = 0; l < 8; l++)
                    dst[j + l] = src[j + l];
    } else if (len == 9) {
        for (int64_t i = 0; i < count; i++, dst += dst_step, src += src_step)
            memcpy(dst, src, 9 * sizeof(float));
    } else if (len == 3) {
        for (int64_t i = 0; i < count; i++, dst += dst_step, src += src_step)
            memcpy(dst, src, 3 * sizeof(float));
    } else {
        for (int64_t i = 0; i < count; i++, dst += dst_step, src += src_step)
            for (int32_t j = 0; j < len; j++)
                dst[j] = src[j];
    }
}

static void zero_runs(float *dst, int64_t dst_step, int64_t count, int32_t len)
{
    for (int64_t i = 0; i < count; i++, dst += dst_step)
        memset(dst, 0, (size_t)len * sizeof *dst);
}

/* Grid columns of [x0, x1) whose source column gx * step + ox lies in [0, w): [*lo, *hi). */
static void inside(const im2col_t *g, int32_t ox, int32_t x0, int32_t x1, int32_t *lo, int32_t *hi)
{
    int32_t first = ox < 0 ? (-ox + g->step - 1) / g->step : 0;
    int32_t last = g->w - 1 - ox < 0 ? 0 : (g->w - 1 - ox) / g->step + 1;
    *lo = first < x0 ? x0 : first > x1 ? x1 : first;
    *hi = last > x1 ? x1 : last < *lo ? *lo : last;
}

/* Columns of one tap for grid pixels x0..x1 of a row; row: its source row, NULL outside. */
static void tap_columns(const im2col_t *g, const float *row, int32_t tap, int32_t x0, int32_t x1,
                        float *col)
{
    int64_t pitch = (int64_t)g->taps * g->c;
    int32_t lo = x0, hi = x0;
    float *dst = col + (int64_t)tap * g->c;
    if (row)
        inside(g, g->ox[tap], x0, x1, &lo, &hi);
    zero_runs(dst, pitch, lo - x0, g->c);
    if (lo < hi)
        copy_runs(dst + (lo - x0) * pitch, pitch,
                  row + (int64_t)(lo * g->step + g->ox[tap]) * g->ld, (int64_t)g->step * g->ld,
                  hi - lo, g->c);
    zero_runs(dst + (hi - x0) * pitch, pitch, x1 - hi, g->c);
}

/* Columns of `run` taps that are neighbours in the source and lie there without gaps (ld == c). */
static void run_columns(const im2col_t *g, const float *row, int32_t tap, int32_t run, int32_t x0,
                        int32_t x1, float *col)
{
    int64_t pitch = (int64_t)g->taps * g->c;
    int32_t lo, hi, lo2, hi2;
    inside(g, g->ox[tap], x0, x1, &lo, &hi);
    inside(g, g->ox[tap + run - 1], x0, x1, &lo2, &hi2);
    lo = lo > lo2 ? lo : lo2;
    hi = hi < hi2 ? hi : hi2;
    hi = hi < lo ? lo : hi;
    for (int32_t t = tap; t < tap + run; t++) {
        tap_columns(g, row, t, x0, lo, col);
        tap_columns(g, row, t, hi, x1, col + (hi - x0) * pitch);
    }
    if (lo < hi)
        copy_runs(col + (lo - x0) * pitch + (int64_t)tap * g->c, pitch,
                  row + (int64_t)(lo * g->step + g->ox[tap]) * g->ld, (int64_t)g->step * g->ld,
                  hi - lo, run * g->c);
}

/* Taps from `tap` on that one copy can serve. */
static int32_t run_length(const im2col_t *g, int32_t tap)
{
    int32_t run = 1;
    if (g->ld != g->c)
        return run;
    while (tap + run < g->taps && g->oy[tap + run] == g->oy[tap] &&
           g->ox[tap + run] == g->ox[tap] + run)
        run++;
    return run;
}

/* Grid pixels x0..x1 of row gy of image n. */
static void row_segment(const im2col_t *g, int64_t n, int32_t gy, int32_t x0, int32_t x1,
                        float *col)
{
    for (int32_t t = 0; t < g->taps;) {
        int32_t y = gy * g->step + g->oy[t], run = run_length(g, t);
        const float *row =
            y < 0 || y >= g->h ? NULL : g->src + (n * g->h + y) * g->w * (int64_t)g->ld;
        if (row && run > 1)
            run_columns(g, row, t, run, x0, x1, col);
        else
            for (int32_t i = 0; i < run; i++)
                tap_columns(g, row, t + i, x0, x1, col);
        t += run;
    }
}

void im2col_rows(const im2col_t *g, int64_t first, int64_t count, float *col)
{
    int64_t pitch = (int64_t)g->taps * g->c;
    int64_t line = first / g->grid_w; /* image and grid row */
    int32_t x0 = (int32_t)(first % g->grid_w);
    while (count > 0) {
        int32_t x1 = x0 + count < g->grid_w ? x0 + (int32_t)count : g->grid_w;
        row_segment(g, line / g->grid_h, (int32_t)(line % g->grid_h), x0, x1, col);
        col += (x1 - x0) * pitch;
        count -= x1 - x0;
        x0 = 0;
        line++;
    }
}
