/* Convolution by register tiles (tile.h).
 *
 * A window of `ty` x `tx` source pixels slides over the source with a step; every grid pixel is one
 * row of the product. In a row of the source, tx neighbouring pixels of c channels are one run of
 * tx * c floats, so a product has ty runs and needs no gathering. What it needs is a border of
 * zeros: each block of grid rows copies its source rows, widened by the border, into the thread's
 * block first (1/(k*k) of a gather). A 1 x 1 window with step 1 reads the source itself.
 *
 *   forward  window k x k over x, step s; weights as panels of up to 32 output channels.
 *   dx       pixels of dx fall into s*s classes by (y mod s, x mod s); those of one class see a window
 *            of the same taps in dy, step 1. Weights transposed, panels of up to 32 input channels.
 *   dw       the same runs of x, now summed over pixels: rows of the product are output channels,
 *            columns the floats of a run, into partial sums for each run of pixels.
 */
#include "kernels/cpu/conv.h"
#include "kernels/cpu/tile.h"

#include <string.h>

enum {
    BLOCK_FLOATS =
        32 * 1024,       /* of copied rows: 128 KiB beside the weights in the second-level cache */
    BLOCK_PIXELS = 1024, /* of a 1 x 1 window */
    DW_PIXELS = 256,     /* one run's 32 columns of so many pixels stay in the first-level cache */
    BLOCK_SLACK = 64     /* tiles read whole registers beyond the last run */
};

typedef struct {
    const float *src; /* [n][h][w], pixels ld apart */
    int32_t n, h, w, c, ld;
    int32_t ty, tx, oy, ox, step; /* grid pixel (gy, gx) sees rows gy*step + oy .. + ty - 1 */
    int32_t grid_h, grid_w;
    const float *weights; /* panels */
    const float *bias;
    int32_t columns;
    float *dst;
    int64_t dst_pixel, dst_row, dst_image; /* floats */
    int acc;
    float *blocks;
    int64_t block_floats;
} window_t;

static int64_t round_up(int64_t value, int64_t to)
{
    return (value + to - 1) / to * to;
}

static int32_t least(int64_t a, int64_t b)
{
    return (int32_t)(a < b ? a : b);
}

/* Source pixels and grid pixels correspond one to one and both lie evenly in memory, so that all of
 * them are one run of rows. The grid of a strided dx does not: its rows leave lines out. */
static int whole_source(const window_t *g)
{
    return g->ty == 1 && g->tx == 1 && g->step == 1 && g->oy == 0 && g->ox == 0 &&
           g->grid_h == g->h && g->grid_w == g->w && g->dst_row == g->grid_w * g->dst_pixel &&
           g->dst_image == g->grid_h * g->dst_row;
}

/* Width of a copied row, in pixels. */
static int64_t padded_width(const window_t *g)
{
    return (int64_t)(g->grid_w - 1) * g->step + g->tx;
}

/* Grid rows whose source rows fit a block; at least one. */
static int32_t rows_of_block(const window_t *g)
{
    int64_t source_rows = BLOCK_FLOATS / (padded_width(g) * g->c);
    int64_t rows = (source_rows - g->ty) / g->step + 1;
    return rows < 1 ? 1 : least(rows, g->grid_h);
}

/* Copies one source row from pixel ox on, zeros outside the source. */
static void copy_row(const window_t *g, const float *row, float *dst)
{
    int64_t width = padded_width(g), c = g->c;
    int64_t left = g->ox < 0 ? -g->ox : 0, first = g->ox < 0 ? 0 : g->ox;
    left = left < width ? left : width;
    int64_t inside = g->w - first;
    inside = inside < 0 ? 0 : inside < width - left ? inside : width - left;
    memset(dst, 0, (size_t)(left * c) * sizeof *dst);
    dst += left * c;
    if (g->ld == c)
        memcpy(dst, row + first * c, (size_t)(inside * c) * sizeof *dst);
    else
        for (int64_t i = 0; i < inside; i++)
            memcpy(dst + i * c, row + (first + i) * g->ld, (size_t)c * sizeof *dst);
    memset(dst + inside * c, 0, (size_t)((width - left - inside) * c) * sizeof *dst);
}

/* The source rows of grid rows gy .. gy + rows - 1 of image n. */
static void copy_rows(const window_t *g, int64_t n, int32_t gy, int32_t rows, float *block)
{
    int64_t pitch = padded_width(g) * g->c;
    int32_t count = (rows - 1) * g->step + g->ty;
    for (int32_t i = 0; i < count; i++) {
        int64_t y = (int64_t)gy * g->step + g->oy + i;
        if (y < 0 || y >= g->h)
            memset(block + i * pitch, 0, (size_t)pitch * sizeof *block);
        else
            copy_row(g, g->src + (n * g->h + y) * g->w * g->ld, block + i * pitch);
    }
}

/* Panel `first` / 32 of the weights: `taps` rows of its columns, rounded up to whole registers. */
static int32_t panel_width(int32_t columns, int32_t first)
{
    return columns - first > TILE_LANES ? TILE_COLUMNS : TILE_LANES;
}

/* All tiles of `pixels` neighbouring grid pixels, from t->a and dst on, for one panel. */
static void tile_pixels(const window_t *g, tile_t *t, const float *a, float *dst, int64_t pixels)
{
    int32_t rows = tile_even_rows(pixels);
    for (int64_t i = 0; i < pixels; i += rows) {
        t->a = a + i * t->a_row;
        t->c = dst + i * g->dst_pixel;
        t->rows = least(rows, pixels - i);
        tile_product(t);
    }
}

/* One block of grid rows, copied, or of pixels as they lie (rows = 1): every panel over it in turn.
 */
static void window_block(const window_t *g, const float *a, int64_t pitch, int64_t a_row,
                         float *dst, int32_t rows, int64_t pixels)
{
    tile_t t = {.a_row = a_row,
                .a_k = 1,
                .a_run = pitch,
                .runs = g->ty,
                .len = (int64_t)g->tx * g->c,
                .c_row = g->dst_pixel,
                .acc = g->acc};
    for (int32_t first = 0; first < g->columns; first += TILE_COLUMNS) {
        t.columns = least(TILE_COLUMNS, g->columns - first);
        t.b = g->weights + first * t.runs * t.len;
        t.b_k = panel_width(g->columns, first);
        t.b_run = t.len * t.b_k;
        t.bias = g->bias ? g->bias + first : NULL;
        for (int32_t y = 0; y < rows; y++)
            tile_pixels(g, &t, a + y * g->step * pitch, dst + y * g->dst_row + first, pixels);
    }
}

/* Items: pixels of a whole source, else grid rows over all images. */
static void window_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev;
    const window_t *g = ctx;
    if (whole_source(g)) {
        for (int64_t at = first; at < last; at += BLOCK_PIXELS)
            window_block(g, g->src + at * g->ld, 0, g->ld, g->dst + at * g->dst_pixel, 1,
                         least(BLOCK_PIXELS, last - at));
        return;
    }
    float *block = g->blocks + thread * g->block_floats;
    int32_t step = rows_of_block(g);
    for (int64_t at = first; at < last;) {
        int32_t gy = (int32_t)(at % g->grid_h);
        int32_t rows = least(least(step, g->grid_h - gy), last - at);
        int64_t n = at / g->grid_h;
        copy_rows(g, n, gy, rows, block);
        window_block(g, block, padded_width(g) * g->c, (int64_t)g->step * g->c,
                     g->dst + n * g->dst_image + gy * g->dst_row, rows, g->grid_w);
        at += rows;
    }
}

static void run_window(cpu_dev_t *dev, window_t *g)
{
    int64_t rows = (int64_t)g->n * g->grid_h;
    if (whole_source(g))
        cpu_share(dev, window_range, g, rows * g->grid_w, BLOCK_PIXELS / 2);
    else
        cpu_share(dev, window_range, g, rows, rows_of_block(g));
}

/* Weights to panels. Item: a panel. */
typedef struct {
    const float *w; /* [c2][k][k][c1] */
    const k_conv_t *p;
    float *packed;
    int32_t columns;
    int32_t ty, tx, ky,
        kx; /* dx: last kernel place of the class; the others are s before one another */
} pack_t;

/* packed[k*k*c1][output channel] */
static void pack_forward(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev, (void)thread;
    const pack_t *j = ctx;
    int64_t taps = (int64_t)j->p->k * j->p->k * j->p->c1;
    for (int64_t panel = first; panel < last; panel++) {
        int32_t c0 = (int32_t)panel * TILE_COLUMNS, width = panel_width(j->columns, c0);
        int32_t used = least(TILE_COLUMNS, j->columns - c0);
        float *dst = j->packed + c0 * taps;
        for (int64_t t = 0; t < taps; t++) {
            for (int32_t o = 0; o < used; o++)
                dst[t * width + o] = j->w[(c0 + o) * taps + t];
            for (int32_t o = used; o < width; o++)
                dst[t * width + o] = 0.0f;
        }
    }
}

/* packed[window place][output channel][input channel] */
static void pack_dx(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev, (void)thread;
    const pack_t *j = ctx;
    const k_conv_t *p = j->p;
    int64_t taps = (int64_t)j->ty * j->tx * p->c2;
    for (int64_t panel = first; panel < last; panel++) {
        int32_t c0 = (int32_t)panel * TILE_COLUMNS, width = panel_width(j->columns, c0);
        int32_t used = least(TILE_COLUMNS, j->columns - c0);
        float *dst = j->packed + c0 * taps;
        for (int64_t t = 0; t < taps; t++, dst += width) {
            int64_t o = t % p->c2, place = t / p->c2;
            int64_t ky = j->ky - place / j->tx * p->s, kx = j->kx - place % j->tx * p->s;
            memcpy(dst, j->w + ((o * p->k + ky) * p->k + kx) * p->c1 + c0,
                   (size_t)used * sizeof *dst);
            memset(dst + used, 0, (size_t)(width - used) * sizeof *dst);
        }
    }
}

static int64_t panels(int32_t columns)
{
    return (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
}

int64_t conv_tile_packed_floats(const k_conv_t *p)
{
    int64_t kk = (int64_t)p->k * p->k;
    int64_t forward = kk * p->c1 * round_up(p->c2, TILE_LANES);
    int64_t backward = kk * p->c2 * round_up(p->c1, TILE_LANES);
    return forward > backward ? forward : backward;
}

int64_t conv_tile_block_floats(const k_conv_t *p, const k_tensor_t *x)
{
    int64_t ow = (x->w + 2 * (p->k / 2) - p->k) / p->s + 1, taps = (p->k + p->s - 1) / p->s;
    int64_t forward = p->k * ((ow - 1) * p->s + p->k) * p->c1;
    int64_t backward = taps * ((x->w + p->s - 1) / p->s + taps) * p->c2;
    int64_t floats = forward > backward ? forward : backward;
    return round_up(floats > BLOCK_FLOATS ? floats : BLOCK_FLOATS, 64) + BLOCK_SLACK;
}

static window_t window_forward(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *x,
                               const k_tensor_t *y, float *work)
{
    return (window_t){.src = cpu_f32(dev, x->at),
                      .n = x->n,
                      .h = x->h,
                      .w = x->w,
                      .c = x->c,
                      .ld = x->ld,
                      .ty = p->k,
                      .tx = p->k,
                      .oy = -(p->k / 2),
                      .ox = -(p->k / 2),
                      .step = p->s,
                      .grid_h = y->h,
                      .grid_w = y->w,
                      .blocks = work,
                      .block_floats = conv_tile_block_floats(p, x)};
}

void conv_tile_forward(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const float *w,
                       const float *bias, const k_tensor_t *y, float *work)
{
    window_t g = window_forward(dev, p, x, y, work);
    pack_t pack = {
        .w = w, .p = p, .packed = work + g.block_floats * dev->threads, .columns = p->c2};
    cpu_parallel(dev, pack_forward, &pack, panels(p->c2));
    g.weights = pack.packed;
    g.bias = bias;
    g.columns = p->c2;
    g.dst = cpu_f32(dev, y->at);
    g.dst_pixel = y->ld;
    g.dst_row = (int64_t)y->w * y->ld;
    g.dst_image = y->h * g.dst_row;
    run_window(dev, &g);
}

/* Input row y meets kernel row ky in output row (y + pad - ky) / s, where s divides. For the class
 * y mod s = cls these are ky = last, last - s, ...: taps in number, and output rows y/s + first, +
 * first + 1, ... */
static void class_taps(const k_conv_t *p, int32_t cls, int32_t *taps, int32_t *last, int32_t *first)
{
    int32_t rest = (cls + p->k / 2) % p->s;
    *taps = rest < p->k ? (p->k - 1 - rest) / p->s + 1 : 0;
    *last = rest + (*taps - 1) * p->s;
    *first = (cls + p->k / 2 - *last) / p->s;
}

/* Pixels of a class that no window sees. */
static void class_zero(const window_t *g)
{
    for (int64_t n = 0; n < g->n && !g->acc; n++)
        for (int64_t y = 0; y < g->grid_h; y++)
            for (int64_t x = 0; x < g->grid_w; x++)
                memset(g->dst + n * g->dst_image + y * g->dst_row + x * g->dst_pixel, 0,
                       (size_t)g->columns * sizeof *g->dst);
}

void conv_tile_dx(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, const float *w,
                  const k_tensor_t *dx, int acc, float *work)
{
    int64_t line = (int64_t)dx->w * dx->ld;
    window_t g = {.src = cpu_f32(dev, dy->at),
                  .n = dy->n,
                  .h = dy->h,
                  .w = dy->w,
                  .c = dy->c,
                  .ld = dy->ld,
                  .step = 1,
                  .columns = p->c1,
                  .dst_pixel = (int64_t)p->s * dx->ld,
                  .dst_row = p->s * line,
                  .dst_image = dx->h * line,
                  .acc = acc,
                  .blocks = work,
                  .block_floats = conv_tile_block_floats(p, dx)};
    pack_t pack = {
        .w = w, .p = p, .packed = work + g.block_floats * dev->threads, .columns = p->c1};
    g.weights = pack.packed;
    for (int32_t cy = 0; cy < p->s && cy < dx->h; cy++) {
        for (int32_t cx = 0; cx < p->s && cx < dx->w; cx++) {
            class_taps(p, cy, &g.ty, &pack.ky, &g.oy);
            class_taps(p, cx, &g.tx, &pack.kx, &g.ox);
            g.grid_h = (dx->h - cy + p->s - 1) / p->s;
            g.grid_w = (dx->w - cx + p->s - 1) / p->s;
            g.dst = cpu_f32(dev, dx->at) + cy * line + (int64_t)cx * dx->ld;
            if (g.ty == 0 || g.tx == 0) {
                class_zero(&g);
                continue;
            }
            pack.ty = g.ty;
            pack.tx = g.tx;
            cpu_parallel(dev, pack_dx, &pack, panels(p->c1));
            run_window(dev, &g);
        }
    }
}

typedef struct {
    window_t g;
    const k_conv_t *p;
    const k_tensor_t *tdy;
    const float *dy;
    conv_parts_t parts;
    float *partials;
    int bias;
} tile_dw_t;

/* Adds a block's products to a partial: rows c0 .. c0 + c - 1 of dw; `runs` grid rows of `len`
 * pixels, whose source rows lie `pitch` floats apart from x on and whose pixels are x_pixel apart.
 */
static void dw_block(const tile_dw_t *j, const float *x, int64_t pitch, int64_t x_pixel,
                     const float *dy, int64_t runs, int64_t len, int32_t c0, int32_t c,
                     float *partial)
{
    const k_conv_t *p = j->p;
    int64_t run = (int64_t)p->k * p->c1, columns = p->k * run;
    int32_t rows = tile_even_rows(c);
    tile_t t = {.a_row = 1,
                .a_k = j->tdy->ld,
                .a_run = len * j->tdy->ld,
                .b_k = x_pixel,
                .b_run = j->g.step * pitch,
                .runs = runs,
                .len = len,
                .c_row = columns,
                .acc = 1};
    for (int32_t ky = 0; ky < p->k; ky++) {
        for (int64_t first = 0; first < run; first += TILE_COLUMNS) {
            t.b = x + ky * pitch + first;
            t.columns = least(TILE_COLUMNS, run - first);
            for (int32_t o = 0; o < c; o += rows) {
                t.a = dy + c0 + o;
                t.c = partial + (c0 + o) * columns + ky * run + first;
                t.rows = least(rows, c - o);
                tile_product(&t);
            }
        }
    }
    if (j->bias)
        conv_add_columns(partial + p->c2 * columns + c0, dy + c0, j->tdy->ld, runs * len, c);
}

static void dw_part(const tile_dw_t *j, int thread, int part)
{
    const k_conv_t *p = j->p;
    const window_t *g = &j->g;
    int run = part / j->parts.channels, channel_run = part % j->parts.channels,
        whole = whole_source(g);
    int64_t items = (int64_t)g->n * g->grid_h * (whole ? g->grid_w : 1);
    int64_t at = items * run / j->parts.pixels, last = items * (run + 1) / j->parts.pixels;
    int32_t c0 = (int32_t)((int64_t)p->c2 * channel_run / j->parts.channels);
    int32_t c = (int32_t)((int64_t)p->c2 * (channel_run + 1) / j->parts.channels) - c0;
    int64_t columns = (int64_t)p->k * p->k * p->c1;
    float *partial = j->partials + run * conv_partial_floats(p);
    float *block = g->blocks + thread * g->block_floats;
    if (c == 0)
        return;
    memset(partial + c0 * columns, 0, (size_t)(c * columns) * sizeof *partial);
    memset(partial + p->c2 * columns + c0, 0, (size_t)c * sizeof *partial);
    int32_t step = least(rows_of_block(g), DW_PIXELS / g->grid_w + 1);
    while (at < last) {
        if (whole) {
            int64_t pixels = least(DW_PIXELS, last - at);
            dw_block(j, g->src + at * g->ld, 0, g->ld, j->dy + at * j->tdy->ld, 1, pixels, c0, c,
                     partial);
            at += pixels;
            continue;
        }
        int32_t gy = (int32_t)(at % g->grid_h),
                rows = least(least(step, g->grid_h - gy), last - at);
        copy_rows(g, at / g->grid_h, gy, rows, block);
        dw_block(j, block, padded_width(g) * g->c, (int64_t)g->step * g->c,
                 j->dy + at * g->grid_w * j->tdy->ld, rows, g->grid_w, c0, c, partial);
        at += rows;
    }
}

static void dw_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev;
    for (int64_t part = first; part < last; part++)
        dw_part(ctx, thread, (int)part);
}

void conv_tile_dw(cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                  float *dw, float *dbias, float *work)
{
    tile_dw_t j = {.g = window_forward(dev, p, x, dy, work),
                   .p = p,
                   .tdy = dy,
                   .dy = cpu_f32(dev, dy->at),
                   .parts = conv_parts(p, dev->threads),
                   .bias = dbias != NULL};
    j.partials = work + j.g.block_floats * dev->threads;
    cpu_share(dev, dw_range, &j, (int64_t)j.parts.pixels * j.parts.channels, 1);
    conv_add_partials(dev, p, j.parts, j.partials, dw, dbias);
}
