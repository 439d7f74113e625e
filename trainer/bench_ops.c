#include "trainer/bench_ops.h"

#include "shm/err.h"
#include "trainer/bench_work.h"

#include <stdlib.h>
#include <string.h>

static bench_ops_t *of(const k_dev_t *dev)
{
    /* The table in use is the first member of the one writable object that holds it. */
    return (bench_ops_t *)(uintptr_t)dev->ops;
}

static uint64_t size_of(k_dtype_t dtype)
{
    return dtype == K_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* ---- around every operation ---- */

static int phase_before(const char *name)
{
    return strcmp(name, "image") == 0         ? BENCH_IMAGE
           : strcmp(name, "detect_loss") == 0 ? BENCH_LOSS
           : strcmp(name, "grad_norm") == 0   ? BENCH_UPDATE
                                              : -1;
}

static int phase_behind(const char *name)
{
    return strcmp(name, "image") == 0         ? BENCH_FORWARD
           : strcmp(name, "detect_loss") == 0 ? BENCH_BACKWARD
                                              : -1;
}

static int in_window(const bench_ops_t *b, int32_t i)
{
    return b->mode == BENCH_TIMES && i >= b->first && i < b->first + BENCH_WINDOW;
}

static void stamp(bench_ops_t *b, int i)
{
    if (i >= 0 && bench_stamp(b->clock, i) < 0)
        b->failed = 1;
}

static bench_op_t *list(bench_ops_t *b, const char *name)
{
    if (b->n == b->room) {
        int32_t room = b->room ? 2 * b->room : 1024;
        bench_op_t *grown = realloc(b->ops, (size_t)room * sizeof *grown);
        if (!grown) {
            err_set(ERR_ENV, "out of memory for a list of operations");
            b->failed = 1;
            return NULL;
        }
        b->ops = grown;
        b->room = room;
    }
    bench_op_t *op = &b->ops[b->n++];
    memset(op, 0, sizeof *op);
    op->name = name;
    return op;
}

/* The entry to describe while operations are listed, else NULL. */
static bench_op_t *begin(bench_ops_t *b, const char *name)
{
    const int32_t i = b->at++;
    if (b->mode == BENCH_LIST)
        return list(b, name);
    if (i >= b->n || strcmp(b->ops[i].name, name) != 0) {
        err_set(ERR_FAILED, "operation %d of a step is %s, and was %s in the pass before", i, name,
                i < b->n ? b->ops[i].name : "not there");
        b->failed = 1;
    } else if (b->mode == BENCH_PHASES) {
        stamp(b, phase_before(name));
    } else if (in_window(b, i)) {
        stamp(b, 2 * (i - b->first));
    }
    return NULL;
}

static int end(bench_ops_t *b, const char *name, int rc)
{
    const int32_t i = b->at - 1;
    if (rc >= 0 && b->mode == BENCH_PHASES)
        stamp(b, phase_behind(name));
    else if (rc >= 0 && in_window(b, i))
        stamp(b, 2 * (i - b->first) + 1);
    return rc;
}

/* ---- operations on maps ---- */

static int on_image(k_dev_t *dev, k_at u8, const k_tensor_t *y)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "image");
    if (op) {
        op->bytes = bench_bytes(y) + bench_bytes(y) / size_of(y->dtype);
        bench_shape(op, y, NULL, 0, 0);
    }
    return end(b, "image", b->real->image(dev, u8, y));
}

static int on_conv(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, k_at bias,
                   const k_tensor_t *y, k_at work)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "conv");
    if (op) {
        op->bytes = bench_bytes(x) + bench_bytes(y) + bench_weights(p, size_of(x->dtype));
        op->flops = bench_conv_flops(p, y);
        bench_shape(op, x, y, p->k, p->s);
        bench_layer(b->clock->t, op, w);
    }
    return end(b, "conv", b->real->conv(dev, p, x, w, bias, y, work));
}

static int on_conv_dx(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, k_at w,
                      const k_tensor_t *dx, int acc, k_at work)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "conv_dx");
    if (op) {
        op->bytes =
            bench_bytes(dy) + bench_bytes_into(dx, acc) + bench_weights(p, size_of(dy->dtype));
        op->flops = bench_conv_flops(p, dy);
        bench_shape(op, dy, dx, p->k, p->s);
        bench_layer(b->clock->t, op, w);
    }
    return end(b, "conv_dx", b->real->conv_dx(dev, p, dy, w, dx, acc, work));
}

static int on_conv_dw(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                      k_at dw, k_at dbias, k_at work)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "conv_dw");
    if (op) {
        op->bytes = bench_bytes(x) + bench_bytes(dy) + 2 * bench_weights(p, sizeof(float));
        op->flops = bench_conv_flops(p, dy);
        bench_shape(op, x, dy, p->k, p->s);
        bench_layer(b->clock->t, op, dw);
    }
    return end(b, "conv_dw", b->real->conv_dw(dev, p, x, dy, dw, dbias, work));
}

/* Depthwise 3x3: nine multiply-adds an element. */
static void describe_dw(bench_ops_t *b, bench_op_t *op, const k_tensor_t *x, uint64_t bytes,
                        k_at parameters)
{
    op->bytes = bytes;
    op->flops = 18.0 * (double)(bench_bytes(x) / size_of(x->dtype));
    bench_shape(op, x, NULL, 3, 0);
    bench_layer(b->clock->t, op, parameters);
}

static int on_dwconv(k_dev_t *dev, const k_tensor_t *x, k_at w, const k_tensor_t *y)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "dwconv");
    if (op)
        describe_dw(b, op, x, bench_bytes(x) + bench_bytes(y), w);
    return end(b, "dwconv", b->real->dwconv(dev, x, w, y));
}

static int on_dwconv_dx(k_dev_t *dev, const k_tensor_t *dy, k_at w, const k_tensor_t *dx, int acc)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "dwconv_dx");
    if (op)
        describe_dw(b, op, dy, bench_bytes(dy) + bench_bytes_into(dx, acc), w);
    return end(b, "dwconv_dx", b->real->dwconv_dx(dev, dy, w, dx, acc));
}

static int on_dwconv_dw(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *dy, k_at dw)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "dwconv_dw");
    if (op)
        describe_dw(b, op, x, bench_bytes(x) + bench_bytes(dy), dw);
    return end(b, "dwconv_dw", b->real->dwconv_dw(dev, x, dy, dw));
}

static void describe_bn(bench_ops_t *b, bench_op_t *op, const k_bn_t *p, const k_tensor_t *x,
                        uint64_t bytes)
{
    op->bytes = bytes;
    bench_shape(op, x, NULL, 0, 0);
    bench_layer(b->clock->t, op, p->gamma);
}

static int on_bn_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "bn_stats");
    if (op)
        describe_bn(b, op, p, x, bench_bytes(x));
    return end(b, "bn_stats", b->real->bn_stats(dev, p, x));
}

static int on_bn_finish(k_dev_t *dev, const k_bn_t *p, int32_t c, uint64_t count)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "bn_finish");
    if (op) {
        const k_tensor_t sums = {.n = 1, .h = 1, .w = 1, .c = c, .dtype = K_F32};
        /* Two sums (doubles) in; mean, 1 / deviation and two running values out, the last two in. */
        describe_bn(b, op, p, &sums, 10 * bench_bytes(&sums));
    }
    return end(b, "bn_finish", b->real->bn_finish(dev, p, c, count));
}

static int on_bn_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x,
                       const k_tensor_t *residual, const k_tensor_t *y, k_act_t act, int frozen)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "bn_apply");
    if (op)
        describe_bn(b, op, p, x,
                    bench_bytes(x) + bench_bytes(y) + (residual ? bench_bytes(residual) : 0));
    return end(b, "bn_apply", b->real->bn_apply(dev, p, x, residual, y, act, frozen));
}

static int on_bn_bwd_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                           k_act_t act)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "bn_bwd_stats");
    if (op)
        describe_bn(b, op, p, x, bench_bytes(x) + bench_bytes(dy));
    return end(b, "bn_bwd_stats", b->real->bn_bwd_stats(dev, p, x, dy, act));
}

static int on_bn_bwd_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                           const k_tensor_t *dx, k_act_t act, uint64_t count)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "bn_bwd_apply");
    if (op)
        describe_bn(b, op, p, x, bench_bytes(x) + bench_bytes(dy) + bench_bytes(dx));
    return end(b, "bn_bwd_apply", b->real->bn_bwd_apply(dev, p, x, dy, dx, act, count));
}

static void describe_map(bench_op_t *op, const k_tensor_t *x, const k_tensor_t *y, uint64_t bytes)
{
    op->bytes = bytes;
    bench_shape(op, x, y, 0, 0);
}

/* The index takes a byte an element. */
static int on_maxpool(k_dev_t *dev, int32_t k, const k_tensor_t *x, const k_tensor_t *y, k_at index)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "maxpool");
    if (op)
        describe_map(op, x, NULL,
                     bench_bytes(x) + bench_bytes(y) + bench_bytes(y) / size_of(y->dtype));
    return end(b, "maxpool", b->real->maxpool(dev, k, x, y, index));
}

static int on_maxpool_dx(k_dev_t *dev, int32_t k, const k_tensor_t *dy, k_at index,
                         const k_tensor_t *dx, int acc)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "maxpool_dx");
    if (op)
        describe_map(op, dy, NULL,
                     bench_bytes(dy) + bench_bytes_into(dx, acc) +
                         bench_bytes(dy) / size_of(dy->dtype));
    return end(b, "maxpool_dx", b->real->maxpool_dx(dev, k, dy, index, dx, acc));
}

static int on_upsample(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "upsample");
    if (op)
        describe_map(op, x, y, bench_bytes(x) + bench_bytes(y));
    return end(b, "upsample", b->real->upsample(dev, x, y));
}

static int on_upsample_dx(k_dev_t *dev, const k_tensor_t *dy, const k_tensor_t *dx, int acc)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "upsample_dx");
    if (op)
        describe_map(op, dy, dx, bench_bytes(dy) + bench_bytes_into(dx, acc));
    return end(b, "upsample_dx", b->real->upsample_dx(dev, dy, dx, acc));
}

static int on_copy(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y, int acc)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "copy");
    if (op)
        describe_map(op, x, NULL, bench_bytes(x) + bench_bytes_into(y, acc));
    return end(b, "copy", b->real->copy(dev, x, y, acc));
}

/* Products over all pairs of positions, of `wide` columns together: 2 a multiply-add. */
static double pairs_flops(const k_tensor_t *qkv, int32_t heads, double wide)
{
    const double positions = (double)qkv->h * (double)qkv->w;
    return 2.0 * (double)qkv->n * (double)heads * positions * positions * wide;
}

static int on_attention(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                        const k_tensor_t *y, const k_tensor_t *v, k_at lse, k_at work)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "attention");
    if (op) {
        describe_map(op, qkv, y, bench_bytes(qkv) + bench_bytes(y) + bench_bytes(v));
        op->flops = pairs_flops(qkv, heads, kd + hd); /* q k^T, p v */
    }
    return end(b, "attention", b->real->attention(dev, heads, kd, hd, qkv, y, v, lse, work));
}

static int on_attention_dx(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd,
                           const k_tensor_t *qkv, const k_tensor_t *y, k_at lse,
                           const k_tensor_t *dy, const k_tensor_t *dv, const k_tensor_t *dqkv,
                           k_at work)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "attention_dx");
    if (op) {
        describe_map(op, qkv, dy,
                     2 * bench_bytes(qkv) + bench_bytes(y) + bench_bytes(dy) + bench_bytes(dv));
        /* The scores anew, dq, dk; dp, dv. */
        op->flops = pairs_flops(qkv, heads, 3 * kd + 2 * hd);
    }
    return end(b, "attention_dx",
               b->real->attention_dx(dev, heads, kd, hd, qkv, y, lse, dy, dv, dqkv, work));
}

/* ---- loss and update ---- */

static int on_detect_loss(k_dev_t *dev, const k_detect_loss_t *p)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "detect_loss");
    for (int l = 0; op && l < K_LEVELS; l++)
        op->bytes += bench_bytes(&p->box[l]) + bench_bytes(&p->cls[l]) + bench_bytes(&p->dbox[l]) +
                     bench_bytes(&p->dcls[l]);
    if (op)
        bench_shape(op, &p->cls[0], NULL, 0, 0);
    return end(b, "detect_loss", b->real->detect_loss(dev, p));
}

/* Runs of `count` floats, read or written `times` times together. */
static void describe_run(bench_op_t *op, uint64_t count, uint64_t times)
{
    const k_tensor_t run = {.n = 1, .h = 1, .w = 1, .c = (int32_t)count};
    op->bytes = count * times * sizeof(float);
    bench_shape(op, &run, NULL, 0, 0);
}

static int on_grad_norm(k_dev_t *dev, k_at g, uint64_t count, k_at hyper, k_at norm)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "grad_norm");
    if (op)
        describe_run(op, count, 1);
    return end(b, "grad_norm", b->real->grad_norm(dev, g, count, hyper, norm));
}

/* Weight, gradient and momentum in and out. */
static int on_sgd(k_dev_t *dev, k_at w, k_at g, k_at m, uint64_t count, int32_t group, k_at hyper,
                  k_at norm)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "sgd");
    if (op)
        describe_run(op, count, 6);
    return end(b, "sgd", b->real->sgd(dev, w, g, m, count, group, hyper, norm));
}

static int on_adamw(k_dev_t *dev, k_at w, k_at g, k_at m, k_at v, uint64_t count, int32_t group,
                    k_at hyper, k_at norm)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "adamw");
    if (op)
        describe_run(op, count, 8);
    return end(b, "adamw", b->real->adamw(dev, w, g, m, v, count, group, hyper, norm));
}

static int on_ema(k_dev_t *dev, k_at src, k_at dst, uint64_t count, k_at hyper)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "ema");
    if (op)
        describe_run(op, count, 3);
    return end(b, "ema", b->real->ema(dev, src, dst, count, hyper));
}

static int on_scale_update(k_dev_t *dev, k_at norm)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "scale_update");
    if (op)
        op->bytes = 2 * sizeof(k_scaling_t);
    return end(b, "scale_update", b->real->scale_update(dev, norm));
}

static int on_cast(k_dev_t *dev, k_at src, k_at dst, k_dtype_t dtype, uint64_t count)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "cast");
    if (op) {
        describe_run(op, count, 1);
        op->bytes += count * size_of(dtype);
    }
    return end(b, "cast", b->real->cast(dev, src, dst, dtype, count));
}

static int on_zero(k_dev_t *dev, k_at dst, uint64_t bytes)
{
    bench_ops_t *b = of(dev);
    bench_op_t *op = begin(b, "zero");
    if (op)
        op->bytes = bytes;
    return end(b, "zero", b->real->zero(dev, dst, bytes));
}

/* ---- the table ---- */

void bench_ops_open(bench_ops_t *b, bench_clock_t *clock)
{
    trainer_t *t = clock->t;
    memset(b, 0, sizeof *b);
    b->real = t->ops;
    b->clock = clock;
    b->table = *t->ops;
    b->table.image = on_image;
    b->table.conv = on_conv;
    b->table.conv_dx = on_conv_dx;
    b->table.conv_dw = on_conv_dw;
    b->table.dwconv = on_dwconv;
    b->table.dwconv_dx = on_dwconv_dx;
    b->table.dwconv_dw = on_dwconv_dw;
    b->table.bn_stats = on_bn_stats;
    b->table.bn_finish = on_bn_finish;
    b->table.bn_apply = on_bn_apply;
    b->table.bn_bwd_stats = on_bn_bwd_stats;
    b->table.bn_bwd_apply = on_bn_bwd_apply;
    b->table.maxpool = on_maxpool;
    b->table.maxpool_dx = on_maxpool_dx;
    b->table.upsample = on_upsample;
    b->table.upsample_dx = on_upsample_dx;
    b->table.copy = on_copy;
    b->table.attention = on_attention;
    b->table.attention_dx = on_attention_dx;
    b->table.detect_loss = on_detect_loss;
    b->table.grad_norm = on_grad_norm;
    b->table.sgd = on_sgd;
    b->table.adamw = on_adamw;
    b->table.ema = on_ema;
    b->table.scale_update = on_scale_update;
    b->table.cast = on_cast;
    b->table.zero = on_zero;
    t->ops = t->dev->ops = &b->table;
}

void bench_ops_close(bench_ops_t *b)
{
    if (b->real)
        b->clock->t->ops = b->clock->t->dev->ops = b->real;
    free(b->ops);
    memset(b, 0, sizeof *b);
}

void bench_ops_begin(bench_ops_t *b, bench_mode_t mode, int32_t first)
{
    b->mode = mode;
    b->first = first;
    b->at = 0;
    if (mode == BENCH_LIST)
        b->n = 0;
}

int bench_ops_end(const bench_ops_t *b)
{
    if (b->failed)
        return err_add(ERR_FAILED, "listing the operations of a step");
    if (b->at != b->n)
        return err_set(ERR_FAILED, "a step of %d operations, where the pass before had %d", b->at,
                       b->n);
    return 0;
}

int bench_ops_take(bench_ops_t *b, int round)
{
    int rc = 0;
    for (int32_t i = b->first; rc == 0 && i < b->n && i < b->first + BENCH_WINDOW; i++)
        rc = bench_between(b->clock, 2 * (i - b->first), 2 * (i - b->first) + 1,
                           &b->ops[i].ms[round]);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_op_ms(const bench_op_t *op)
{
    double ms[BENCH_ROUNDS];
    memcpy(ms, op->ms, sizeof ms);
    qsort(ms, BENCH_ROUNDS, sizeof ms[0], by_value);
    return ms[BENCH_ROUNDS / 2];
}
