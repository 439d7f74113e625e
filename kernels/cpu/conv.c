/* Convolution as products of gathered rows (im2col.h) with the weights.
 *
 * The pixels of an operation are shared out over the threads in contiguous runs; a thread works
 * through its run in blocks whose gathered rows stay in its second-level cache.
 *
 *   conv     y[pixels][c2] = col(x)[pixels][k*k*c1] * w[c2][k*k*c1]^T (+ bias)
 *   conv_dx  stride s splits the pixels of dx into s*s classes by (y mod s, x mod s). Pixels of one
 *            class see the same taps of the kernel, so each class is a convolution of dy with step
 *            1 and those taps: dx_class[pixels][c1] = col(dy)[pixels][taps*c2] * b[taps*c2][c1],
 *            b = w transposed. Nothing is scattered, so any thread may take any pixels.
 *   conv_dw  dw[c2][k*k*c1] += dy[pixels][c2]^T * col(x)[pixels][k*k*c1], over runs of pixels into
 *            partials of their own, which are added in a fixed order.
 *
 * A 1x1 convolution of stride 1 needs no gathering: rows of x or dy are the matrix, ld its pitch.
 *
 * work: [threads] blocks of col and tmp, then transposed weights (dx) or partials (dw).
 */
#include "kernels/cpu/conv.h"
#include "kernels/cpu/im2col.h"

#include <string.h>

enum {
    CONV_BLOCK_FLOATS = 96 * 1024, /* of gathered rows: 384 KiB */
    CONV_BLOCK_LEAST = 64,         /* pixels; below, the product loses more than the cache gains */
    CONV_BLOCK_MOST = 2048,
    CONV_PARTS = 4,                /* runs of pixels a thread in conv_dw, if partials are small: */
    CONV_PARTIAL_SMALL = 2 << 20,  /* bytes, all of them */
    CONV_PARTIAL_BYTES = 64 << 20, /* most for the partials of conv_dw */
};

static int64_t round64(int64_t floats)
{
    return (floats + 63) / 64 * 64;
}

static int64_t block_pixels(int64_t columns)
{
    int64_t p = CONV_BLOCK_FLOATS / columns / 16 * 16;
    return p < CONV_BLOCK_LEAST ? CONV_BLOCK_LEAST : p > CONV_BLOCK_MOST ? CONV_BLOCK_MOST : p;
}

static int direct(const k_conv_t *p)
{
    return p->k == 1 && p->s == 1;
}

conv_parts_t conv_parts(const k_conv_t *p, int threads)
{
    int64_t partial = conv_partial_floats(p) * (int64_t)sizeof(float);
    for (int parts = CONV_PARTS * threads; parts > threads; parts -= threads)
        if (parts * partial <= CONV_PARTIAL_SMALL)
            return (conv_parts_t){parts, 1};
    for (int parts = threads; parts > 1; parts--)
        if (threads % parts == 0 && parts * partial <= CONV_PARTIAL_BYTES)
            return (conv_parts_t){parts, threads / parts};
    return (conv_parts_t){1, threads};
}

int64_t conv_partial_floats(const k_conv_t *p)
{
    return round64((int64_t)p->c2 * (p->k * p->k * p->c1 + 1));
}

/* Floats of one thread's block: the largest gathered block and, for a strided dx, its products. */
static int64_t thread_floats(const k_conv_t *p)
{
    if (direct(p))
        return 0;
    int64_t kk = (int64_t)p->k * p->k, fwd = block_pixels(kk * p->c1) * kk * p->c1, bwd = 0;
    for (int64_t taps = 1; taps <= kk; taps++) {
        int64_t pixels = block_pixels(taps * p->c2);
        int64_t floats = round64(pixels * taps * p->c2) + (p->s > 1 ? pixels * p->c1 : 0);
        bwd = floats > bwd ? floats : bwd;
    }
    return round64(fwd > bwd ? fwd : bwd);
}

uint64_t cpu_conv_work(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x)
{
    const cpu_dev_t *d = cpu_dev(dev);
    int64_t weights = (int64_t)p->k * p->k * p->c1 * p->c2; /* transposed, for dx */
    int64_t partials = conv_partial_floats(p) * conv_parts(p, d->threads).pixels;
    int64_t block = d->tiles ? conv_tile_block_floats(p, x) : thread_floats(p);
    if (d->tiles)
        weights = conv_tile_packed_floats(p);
    return (uint64_t)(block * d->threads + (weights > partials ? weights : partials)) *
           sizeof(float);
}

static int conv_check(cpu_dev_t *dev, const char *op, const k_conv_t *p, const k_tensor_t *x,
                      const k_tensor_t *y, k_at w, k_at bias, k_at work)
{
    if (p->k < 1 || p->k > IM2COL_K_MAX || p->k % 2 == 0 || p->s < 1 || p->s > p->k + 1)
        return cpu_fail(dev, "%s: kernel %d with stride %d: odd kernels up to %d are possible", op,
                        p->k, p->s, IM2COL_K_MAX);
    if (cpu_check_tensor(dev, op, "x", x) < 0 || cpu_check_tensor(dev, op, "y", y) < 0)
        return -1;
    int32_t pad = p->k / 2;
    int32_t oh = (x->h + 2 * pad - p->k) / p->s + 1, ow = (x->w + 2 * pad - p->k) / p->s + 1;
    if (x->c != p->c1 || y->c != p->c2 || x->n != y->n || y->h != oh || y->w != ow)
        return cpu_fail(
            dev,
            "%s: %d x %d x %d x %d to %d x %d x %d x %d does not fit kernel %d, stride %d, "
            "%d to %d channels",
            op, x->n, x->h, x->w, x->c, y->n, y->h, y->w, y->c, p->k, p->s, p->c1, p->c2);
    uint64_t weights = (uint64_t)p->c2 * (uint64_t)(p->k * p->k) * (uint64_t)p->c1;
    if (cpu_check_place(dev, op, "weights", w, weights * sizeof(float)) < 0)
        return -1;
    if (bias != K_NONE &&
        cpu_check_place(dev, op, "bias", bias, (uint64_t)p->c2 * sizeof(float)) < 0)
        return -1;
    return cpu_check_place(dev, op, "work", work, cpu_conv_work(&dev->base, p, x));
}

typedef struct {
    const k_conv_t *p;
    im2col_t gather;
    const float *src; /* direct: x or dy */
    int64_t src_ld;
    const float *w; /* forward: [c2][k*k*c1]; dx: one class's [taps*c2][c1] */
    const float *bias;
    float *dst; /* y or dx */
    int64_t dst_ld;
    float beta;
    float *blocks; /* work of the threads */
    int64_t block_floats;
    int32_t class_y, class_x, dx_h, dx_w; /* dx of one class */
} conv_job_t;

static im2col_t gather_forward(const cpu_dev_t *dev, const k_conv_t *p, const k_tensor_t *x,
                               const k_tensor_t *y)
{
    im2col_t g = {.src = cpu_f32(dev, x->at),
                  .h = x->h,
                  .w = x->w,
                  .c = x->c,
                  .ld = x->ld,
                  .grid_h = y->h,
                  .grid_w = y->w,
                  .step = p->s};
    for (int32_t ky = 0; ky < p->k; ky++) {
        for (int32_t kx = 0; kx < p->k; kx++, g.taps++) {
            g.oy[g.taps] = (int8_t)(ky - p->k / 2);
            g.ox[g.taps] = (int8_t)(kx - p->k / 2);
        }
    }
    return g;
}

static void fill_rows(float *dst, int64_t ld, int64_t rows, const float *values, int32_t c)
{
    for (int64_t i = 0; i < rows; i++, dst += ld)
        memcpy(dst, values, (size_t)c * sizeof *dst);
}

static void conv_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev;
    const conv_job_t *j = ctx;
    const k_conv_t *p = j->p;
    int64_t columns = (int64_t)p->k * p->k * p->c1, step = block_pixels(columns);
    float *col = j->blocks + thread * j->block_floats;
    for (int64_t at = first; at < last; at += step) {
        int64_t rows = last - at < step ? last - at : step, lda = columns;
        const float *a = col;
        if (direct(p)) {
            a = j->src + at * j->src_ld;
            lda = j->src_ld;
        } else {
            im2col_rows(&j->gather, at, rows, col);
        }
        float *y = j->dst + at * j->dst_ld;
        if (j->bias)
            fill_rows(y, j->dst_ld, rows, j->bias, p->c2);
        cpu_gemm(0, 1, rows, p->c2, columns, 1.0f, a, lda, j->w, columns, j->bias ? 1.0f : 0.0f, y,
                 j->dst_ld);
    }
}

int cpu_conv(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, k_at bias,
             const k_tensor_t *y, k_at work)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (conv_check(d, "conv", p, x, y, w, bias, work) < 0)
        return -1;
    const float *bias_at = bias == K_NONE ? NULL : cpu_f32(d, bias);
    if (d->tiles) {
        conv_tile_forward(d, p, x, cpu_f32(d, w), bias_at, y, cpu_f32(d, work));
        return 0;
    }
    conv_job_t j = {.p = p,
                    .gather = gather_forward(d, p, x, y),
                    .src = cpu_f32(d, x->at),
                    .src_ld = x->ld,
                    .w = cpu_f32(d, w),
                    .bias = bias_at,
                    .dst = cpu_f32(d, y->at),
                    .dst_ld = y->ld,
                    .blocks = cpu_f32(d, work),
                    .block_floats = thread_floats(p)};
    cpu_share(d, conv_range, &j, cpu_pixels(y), block_pixels((int64_t)p->k * p->k * p->c1));
    return 0;
}

/* Adds or copies one class's products to its pixels of dx. */
static void class_store(const conv_job_t *j, int64_t first, int64_t rows, const float *tmp)
{
    int32_t gh = j->gather.grid_h, gw = j->gather.grid_w, s = j->p->s, c1 = j->p->c1;
    for (int64_t i = 0; i < rows; i++, tmp += c1) {
        int64_t at = first + i, line = at / gw;
        int64_t x = at % gw * s + j->class_x, y = line % gh * s + j->class_y, n = line / gh;
        float *dst = j->dst + ((n * j->dx_h + y) * j->dx_w + x) * j->dst_ld;
        if (j->beta == 0.0f)
            memcpy(dst, tmp, (size_t)c1 * sizeof *dst);
        else
            for (int32_t c = 0; c < c1; c++)
                dst[c] += tmp[c];
    }
}

static void conv_dx_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev;
    const conv_job_t *j = ctx;
    const k_conv_t *p = j->p;
    int64_t columns = (int64_t)j->gather.taps * p->c2;
    int64_t step = columns ? block_pixels(columns) : CONV_BLOCK_LEAST;
    float *col = j->blocks + thread * j->block_floats, *tmp = col + round64(step * columns);
    for (int64_t at = first; at < last; at += step) {
        int64_t rows = last - at < step ? last - at : step, lda = columns;
        const float *a = col;
        if (direct(p)) {
            a = j->src + at * j->src_ld;
            lda = j->src_ld;
        } else {
            im2col_rows(&j->gather, at, rows, col);
        }
        if (p->s == 1) {
            cpu_gemm(0, 0, rows, p->c1, columns, 1.0f, a, lda, j->w, p->c1, j->beta,
                     j->dst + at * j->dst_ld, j->dst_ld);
            continue;
        }
        if (columns)
            cpu_gemm(0, 0, rows, p->c1, columns, 1.0f, a, lda, j->w, p->c1, 0.0f, tmp, p->c1);
        else
            memset(tmp, 0, (size_t)(rows * p->c1) * sizeof *tmp);
        class_store(j, at, rows, tmp);
    }
}

/* The taps that pixels of class (cy, cx) see, and their weights as [taps][c2][c1]: input row y
 * meets kernel row ky in output row (y + pad - ky) / s where that divides. Kernel places are taken
 * backwards so that source places rise. */
static void gather_class(conv_job_t *j, const float *w, float *packed)
{
    const k_conv_t *p = j->p;
    im2col_t *g = &j->gather;
    int32_t pad = p->k / 2;
    g->taps = 0;
    for (int32_t ky = p->k - 1; ky >= 0; ky--) {
        for (int32_t kx = p->k - 1; kx >= 0; kx--) {
            int32_t y = j->class_y + pad - ky, x = j->class_x + pad - kx;
            if (y % p->s != 0 || x % p->s != 0)
                continue;
            for (int32_t o = 0; o < p->c2; o++)
                memcpy(packed + ((int64_t)g->taps * p->c2 + o) * p->c1,
                       w + (((int64_t)o * p->k + ky) * p->k + kx) * p->c1,
                       (size_t)p->c1 * sizeof *w);
            g->oy[g->taps] = (int8_t)(y / p->s);
            g->ox[g->taps] = (int8_t)(x / p->s);
            g->taps++;
        }
    }
    j->w = packed;
}

int cpu_conv_dx(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, k_at w, const k_tensor_t *dx,
                int acc, k_at work)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (conv_check(d, "conv_dx", p, dx, dy, w, K_NONE, work) < 0)
        return -1;
    if (d->tiles) {
        conv_tile_dx(d, p, dy, cpu_f32(d, w), dx, acc, cpu_f32(d, work));
        return 0;
    }
    conv_job_t j = {.p = p,
                    .src = cpu_f32(d, dy->at),
                    .src_ld = dy->ld,
                    .dst = cpu_f32(d, dx->at),
                    .dst_ld = dx->ld,
                    .beta = acc ? 1.0f : 0.0f,
                    .blocks = cpu_f32(d, work),
                    .block_floats = thread_floats(p),
                    .dx_h = dx->h,
                    .dx_w = dx->w};
    j.gather = (im2col_t){
        .src = j.src, .h = dy->h, .w = dy->w, .c = dy->c, .ld = dy->ld, .step = 1, .taps = 1};
    float *packed = j.blocks + j.block_floats * d->threads;
    for (j.class_y = 0; j.class_y < p->s; j.class_y++) {
        for (j.class_x = 0; j.class_x < p->s; j.class_x++) {
            j.gather.grid_h = (dx->h - j.class_y + p->s - 1) / p->s;
            j.gather.grid_w = (dx->w - j.class_x + p->s - 1) / p->s;
            if (direct(p))
                j.w = cpu_f32(d, w);
            else
                gather_class(&j, cpu_f32(d, w), packed);
            int64_t columns = (int64_t)j.gather.taps * p->c2;
            cpu_share(d, conv_dx_range, &j, (int64_t)dx->n * j.gather.grid_h * j.gather.grid_w,
                      columns ? block_pixels(columns) : CONV_BLOCK_MOST);
        }
    }
    return 0;
}

typedef struct {
    const k_conv_t *p;
    im2col_t gather;
    const k_tensor_t *dy;
    const float *x, *dy_at;
    int64_t x_ld, pixels;
    float *blocks, *partials;
    int64_t block_floats;
    conv_parts_t parts;
    int bias;
} conv_dw_job_t;

CPU_VECTOR static void add_columns(float *restrict sum, const float *restrict rows, int64_t ld,
                                   int64_t count, int32_t c)
{
    for (int64_t i = 0; i < count; i++, rows += ld)
        for (int32_t k = 0; k < c; k++)
            sum[k] += rows[k];
}

void conv_add_columns(float *sum, const float *rows, int64_t ld, int64_t count, int32_t c)
{
    add_columns(sum, rows, ld, count, c);
}

/* One part: a run of pixels and a run of output channels. */
static void conv_dw_part(const conv_dw_job_t *j, int thread, int part)
{
    const k_conv_t *p = j->p;
    int run = part / j->parts.channels, channel_run = part % j->parts.channels;
    int64_t first = j->pixels * run / j->parts.pixels;
    int64_t last = j->pixels * (run + 1) / j->parts.pixels;
    int32_t c0 = (int32_t)((int64_t)p->c2 * channel_run / j->parts.channels);
    int32_t c = (int32_t)((int64_t)p->c2 * (channel_run + 1) / j->parts.channels) - c0;
    int64_t columns = (int64_t)p->k * p->k * p->c1, step = block_pixels(columns);
    float *col = j->blocks + thread * j->block_floats;
    float *partial = j->partials + run * conv_partial_floats(p);
    float *dw = partial + c0 * columns, *dbias = partial + p->c2 * columns + c0;
    if (c == 0)
        return;
    memset(dw, 0, (size_t)(c * columns) * sizeof *dw);
    memset(dbias, 0, (size_t)c * sizeof *dbias);
    for (int64_t at = first; at < last; at += step) {
        int64_t rows = last - at < step ? last - at : step, ldb = columns;
        const float *dy = j->dy_at + at * j->dy->ld + c0, *b = col;
        if (direct(p)) {
            b = j->x + at * j->x_ld;
            ldb = j->x_ld;
        } else {
            im2col_rows(&j->gather, at, rows, col);
        }
        cpu_gemm(1, 0, c, columns, rows, 1.0f, dy, j->dy->ld, b, ldb, 1.0f, dw, columns);
        if (j->bias)
            conv_add_columns(dbias, dy, j->dy->ld, rows, c);
    }
}

static void conv_dw_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev;
    for (int64_t part = first; part < last; part++)
        conv_dw_part(ctx, thread, (int)part);
}

typedef struct {
    float *dst;
    const float *partials;
    int64_t partial_floats;
    int parts;
} conv_sum_t;

CPU_VECTOR static void add_run(float *restrict dst, const float *restrict src, int64_t first,
                               int64_t last)
{
    for (int64_t i = first; i < last; i++)
        dst[i] += src[i];
}

/* Item: a weight. Partials are added in order of their run of pixels. */
static void conv_sum_range(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev, (void)thread;
    const conv_sum_t *j = ctx;
    for (int part = 0; part < j->parts; part++)
        add_run(j->dst, j->partials + part * j->partial_floats, first, last);
}

void conv_add_partials(cpu_dev_t *dev, const k_conv_t *p, conv_parts_t parts, const float *partials,
                       float *dw, float *dbias)
{
    int64_t weights = (int64_t)p->c2 * p->k * p->k * p->c1;
    conv_sum_t j = {dw, partials, conv_partial_floats(p), parts.pixels};
    cpu_parallel(dev, conv_sum_range, &j, weights);
    if (!dbias)
        return;
    for (int part = 0; part < parts.pixels; part++)
        add_run(dbias, partials + part * j.partial_floats + weights, 0, p->c2);
}

int cpu_conv_dw(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy, k_at dw,
                k_at dbias, k_at work)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (conv_check(d, "conv_dw", p, x, dy, dw, dbias, work) < 0)
        return -1;
    float *dbias_at = dbias == K_NONE ? NULL : cpu_f32(d, dbias);
    if (d->tiles) {
        conv_tile_dw(d, p, x, dy, cpu_f32(d, dw), dbias_at, cpu_f32(d, work));
        return 0;
    }
    conv_dw_job_t j = {.p = p,
                       .gather = gather_forward(d, p, x, dy),
                       .dy = dy,
                       .x = cpu_f32(d, x->at),
                       .dy_at = cpu_f32(d, dy->at),
                       .x_ld = x->ld,
                       .pixels = cpu_pixels(dy),
                       .blocks = cpu_f32(d, work),
                       .block_floats = thread_floats(p),
                       .parts = conv_parts(p, d->threads),
                       .bias = dbias_at != NULL};
    j.partials = j.blocks + j.block_floats * d->threads;
    cpu_share(d, conv_dw_range, &j, (int64_t)j.parts.pixels * j.parts.channels, 1);
    conv_add_partials(d, p, j.parts, j.partials, cpu_f32(d, dw), dbias_at);
    return 0;
}
