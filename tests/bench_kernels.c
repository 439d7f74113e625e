/* Times every operation of one training step of yolo11n (facts/yolo.md 1.1): bench_kernels [imgsz]
 * [batch] [threads] [rounds] [layers]. Prints milliseconds, GFLOP/s and the share of the step,
 * summed over layers; with a fifth argument each layer too. The layers run in the model's order,
 * each on tensors of its own, so that what an operation finds in the caches is what it finds in
 * training. Not a test: `make bench-kernels`.
 */
#include "kernels/kernels.h"
#include "kernels/planner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BENCH_LAYERS = 160 };

typedef enum {
    OP_IMAGE,
    OP_CONV,
    OP_CONV_DX,
    OP_CONV_DW,
    OP_DWCONV,
    OP_DWCONV_DX,
    OP_DWCONV_DW,
    OP_BN_STATS,
    OP_BN_APPLY,
    OP_BN_BWD_STATS,
    OP_BN_BWD_APPLY,
    OP_MAXPOOL,
    OP_MAXPOOL_DX,
    OP_UPSAMPLE,
    OP_UPSAMPLE_DX,
    OP_ATTENTION,
    OP_ATTENTION_DX,
    OP_OPTIMISER,
    OP_COUNT
} bench_op_t;

static const char *const op_names[OP_COUNT] = {
    "image",      "conv",     "conv_dx",     "conv_dw",      "dwconv",       "dwconv_dx",
    "dwconv_dw",  "bn_stats", "bn_apply",    "bn_bwd_stats", "bn_bwd_apply", "maxpool",
    "maxpool_dx", "upsample", "upsample_dx", "attention",    "attention_dx", "optimiser"};

typedef enum { LAYER_CONV, LAYER_DW, LAYER_POOL, LAYER_UP, LAYER_ATTENTION } layer_kind_t;

typedef struct {
    layer_kind_t kind;
    k_conv_t conv;
    int bn, act, first;
    k_tensor_t x, z, y; /* input, raw output, after normalisation */
    k_tensor_t dx, dy;
    k_at w, dw, bias, dbias, extra;
    k_bn_t p;
    double now[OP_COUNT], cpu_now[OP_COUNT]; /* this round */
    double ms[OP_COUNT], cpu_ms[OP_COUNT];   /* least of all rounds */
} layer_t;

typedef struct {
    const k_ops_t *ops;
    k_dev_t *dev;
    layer_t layers[BENCH_LAYERS];
    int count;
    int32_t n, size; /* batch; side of the present feature map */
    uint64_t used, work_bytes, grad_bytes;
    k_at work, grads[2], image, opt;
    uint64_t params;
    double ms[OP_COUNT], cpu_ms[OP_COUNT], flops[OP_COUNT];
} bench_t;

static double now_ms(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static k_at take(bench_t *b, uint64_t bytes)
{
    k_at at = b->used;
    b->used += (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    return at;
}

static k_tensor_t tensor(bench_t *b, int32_t size, int32_t c, int place)
{
    k_tensor_t t = {.n = b->n, .h = size, .w = size, .c = c, .ld = c};
    uint64_t bytes = (uint64_t)b->n * (uint64_t)size * (uint64_t)size * (uint64_t)c * sizeof(float);
    if (place)
        t.at = take(b, bytes);
    b->grad_bytes = bytes > b->grad_bytes ? bytes : b->grad_bytes;
    return t;
}

/* Input of the next layer: the last output where it fits, as in the model, else a tensor of its
 * own. */
static k_tensor_t input(bench_t *b, int32_t c)
{
    const k_tensor_t *last = b->count ? &b->layers[b->count - 1].y : NULL;
    if (last && last->c == c && last->h == b->size)
        return *last;
    return tensor(b, b->size, c, 1);
}

static layer_t *add(bench_t *b, layer_kind_t kind, int32_t c1, int32_t c2, int32_t out_size)
{
    layer_t *l = &b->layers[b->count];
    if (b->count == BENCH_LAYERS) {
        fprintf(stderr, "too many layers\n");
        exit(1);
    }
    *l = (layer_t){.kind = kind, .x = input(b, c1), .bias = K_NONE, .dbias = K_NONE};
    l->z = l->y = tensor(b, out_size, c2, 1);
    l->dx = tensor(b, b->size, c1, 0);
    l->dy = tensor(b, out_size, c2, 0);
    b->count++;
    b->size = out_size;
    return l;
}

static void norm(bench_t *b, layer_t *l, int act)
{
    uint64_t c = (uint64_t)l->z.c, bytes = c * sizeof(float);
    l->bn = 1;
    l->act = act;
    l->y = tensor(b, l->z.h, l->z.c, 1);
    l->p = (k_bn_t){take(b, bytes), take(b, bytes), take(b, bytes),  take(b, bytes),
                    take(b, bytes), take(b, bytes), take(b, c * 16), take(b, c * 16),
                    take(b, bytes), take(b, bytes), 1e-3f,           0.03f};
    b->params += 2 * c;
}

static void conv(bench_t *b, int32_t c1, int32_t c2, int32_t k, int32_t s, int act)
{
    layer_t *l = add(b, LAYER_CONV, c1, c2, b->size / s);
    uint64_t weights = (uint64_t)c2 * (uint64_t)(k * k) * (uint64_t)c1;
    l->conv = (k_conv_t){k, s, c1, c2};
    l->first = b->count == 1;
    l->w = take(b, weights * 4);
    l->dw = take(b, weights * 4);
    b->params += weights;
    uint64_t work = b->ops->conv_work(b->dev, &l->conv, &l->x);
    b->work_bytes = work > b->work_bytes ? work : b->work_bytes;
    if (act >= 0) {
        norm(b, l, act);
        return;
    }
    l->bias = take(b, (uint64_t)c2 * 4);
    l->dbias = take(b, (uint64_t)c2 * 4);
}

static void dwconv(bench_t *b, int32_t c, int act)
{
    layer_t *l = add(b, LAYER_DW, c, c, b->size);
    l->w = take(b, (uint64_t)c * 36);
    l->dw = take(b, (uint64_t)c * 36);
    norm(b, l, act);
}

static void c3k(bench_t *b, int32_t c)
{
    int32_t h = c / 2;
    conv(b, c, h, 1, 1, 1);
    conv(b, c, h, 1, 1, 1);
    for (int i = 0; i < 4; i++)
        conv(b, h, h, 3, 1, 1);
    conv(b, 2 * h, c, 1, 1, 1);
}

/* n = 1 throughout yolo11n. */
static void c3k2(bench_t *b, int32_t c1, int32_t c2, int32_t c, int use_c3k)
{
    conv(b, c1, 2 * c, 1, 1, 1);
    if (use_c3k) {
        c3k(b, c);
    } else {
        conv(b, c, c / 2, 3, 1, 1);
        conv(b, c / 2, c, 3, 1, 1);
    }
    conv(b, 3 * c, c2, 1, 1, 1);
}

static void sppf(bench_t *b)
{
    conv(b, 256, 128, 1, 1, 1);
    for (int i = 0; i < 3; i++) {
        layer_t *l = add(b, LAYER_POOL, 128, 128, b->size);
        l->extra = take(b, (uint64_t)b->n * (uint64_t)(b->size * b->size) * 128);
    }
    conv(b, 512, 256, 1, 1, 1);
}

static void c2psa(bench_t *b)
{
    conv(b, 256, 256, 1, 1, 1);
    conv(b, 128, 256, 1, 1, 0);
    layer_t *l = add(b, LAYER_ATTENTION, 256, 128, b->size);
    l->extra = take(b, (uint64_t)b->n * 2 * (uint64_t)(b->size * b->size) * 4);
    uint64_t work = b->ops->attention_work(b->dev, &l->x, 2, 32, 64);
    b->work_bytes = work > b->work_bytes ? work : b->work_bytes;
    dwconv(b, 128, 0);
    conv(b, 128, 128, 1, 1, 0);
    conv(b, 128, 256, 1, 1, 1);
    conv(b, 256, 128, 1, 1, 0);
    conv(b, 256, 256, 1, 1, 1);
}

static void detect(bench_t *b, int32_t size, int32_t ch)
{
    b->size = size;
    conv(b, ch, 64, 3, 1, 1);
    conv(b, 64, 64, 3, 1, 1);
    conv(b, 64, 64, 1, 1, -1);
    dwconv(b, ch, 1);
    conv(b, ch, 80, 1, 1, 1);
    dwconv(b, 80, 1);
    conv(b, 80, 80, 1, 1, 1);
    conv(b, 80, 80, 1, 1, -1);
}

static void yolo11n(bench_t *b, int32_t imgsz)
{
    b->size = imgsz;
    conv(b, 3, 16, 3, 2, 1);
    conv(b, 16, 32, 3, 2, 1);
    c3k2(b, 32, 64, 16, 0);
    conv(b, 64, 64, 3, 2, 1);
    c3k2(b, 64, 128, 32, 0);
    conv(b, 128, 128, 3, 2, 1);
    c3k2(b, 128, 128, 64, 1);
    conv(b, 128, 256, 3, 2, 1);
    c3k2(b, 256, 256, 128, 1);
    sppf(b);
    c2psa(b);
    add(b, LAYER_UP, 256, 256, b->size * 2);
    c3k2(b, 384, 128, 64, 0);
    add(b, LAYER_UP, 128, 128, b->size * 2);
    c3k2(b, 256, 64, 32, 0);
    conv(b, 64, 64, 3, 2, 1);
    c3k2(b, 192, 128, 64, 0);
    conv(b, 128, 128, 3, 2, 1);
    c3k2(b, 384, 256, 128, 1);
    detect(b, imgsz / 8, 64);
    detect(b, imgsz / 16, 128);
    detect(b, imgsz / 32, 256);
}

static void check(bench_t *b, int rc)
{
    if (rc < 0) {
        fprintf(stderr, "bench_kernels: %s\n", b->ops->error(b->dev));
        exit(1);
    }
}

/* Runs one operation and books its time. */
#define TIMED(b, l, op, call)                                                                      \
    do {                                                                                           \
        double wall = now_ms(CLOCK_MONOTONIC), cpu = now_ms(CLOCK_PROCESS_CPUTIME_ID);             \
        check(b, call);                                                                            \
        (l)->now[op] += now_ms(CLOCK_MONOTONIC) - wall;                                            \
        (l)->cpu_now[op] += now_ms(CLOCK_PROCESS_CPUTIME_ID) - cpu;                                \
    } while (0)

static void forward(bench_t *b, layer_t *l)
{
    const k_ops_t *o = b->ops;
    k_dev_t *d = b->dev;
    k_act_t act = l->act ? K_ACT_SILU : K_ACT_NONE;
    switch (l->kind) {
    case LAYER_CONV:
        TIMED(b, l, OP_CONV, o->conv(d, &l->conv, &l->x, l->w, l->bias, &l->z, b->work));
        break;
    case LAYER_DW: TIMED(b, l, OP_DWCONV, o->dwconv(d, &l->x, l->w, &l->z)); break;
    case LAYER_POOL: TIMED(b, l, OP_MAXPOOL, o->maxpool(d, 5, &l->x, &l->y, l->extra)); break;
    case LAYER_UP: TIMED(b, l, OP_UPSAMPLE, o->upsample(d, &l->x, &l->y)); break;
    case LAYER_ATTENTION: {
        k_tensor_t v = l->y;
        v.at = b->grads[0];
        TIMED(b, l, OP_ATTENTION, o->attention(d, 2, 32, 64, &l->x, &l->y, &v, l->extra, b->work));
        break;
    }
    }
    if (!l->bn)
        return;
    uint64_t count = (uint64_t)l->z.n * (uint64_t)l->z.h * (uint64_t)l->z.w;
    TIMED(b, l, OP_BN_STATS, o->bn_stats(d, &l->p, &l->z));
    TIMED(b, l, OP_BN_STATS, o->bn_finish(d, &l->p, l->z.c, count));
    TIMED(b, l, OP_BN_APPLY, o->bn_apply(d, &l->p, &l->z, NULL, &l->y, act, 0));
}

static void backward(bench_t *b, layer_t *l, int parity)
{
    const k_ops_t *o = b->ops;
    k_dev_t *d = b->dev;
    k_act_t act = l->act ? K_ACT_SILU : K_ACT_NONE;
    uint64_t count = (uint64_t)l->z.n * (uint64_t)l->z.h * (uint64_t)l->z.w;
    l->dy.at = b->grads[parity];
    l->dx.at = b->grads[!parity];
    if (l->bn) {
        TIMED(b, l, OP_BN_BWD_STATS, o->bn_bwd_stats(d, &l->p, &l->z, &l->dy, act));
        TIMED(b, l, OP_BN_BWD_APPLY, o->bn_bwd_apply(d, &l->p, &l->z, &l->dy, &l->dy, act, count));
    }
    switch (l->kind) {
    case LAYER_CONV:
        TIMED(b, l, OP_CONV_DW, o->conv_dw(d, &l->conv, &l->x, &l->dy, l->dw, l->dbias, b->work));
        if (!l->first)
            TIMED(b, l, OP_CONV_DX, o->conv_dx(d, &l->conv, &l->dy, l->w, &l->dx, 0, b->work));
        break;
    case LAYER_DW:
        TIMED(b, l, OP_DWCONV_DW, o->dwconv_dw(d, &l->x, &l->dy, l->dw));
        TIMED(b, l, OP_DWCONV_DX, o->dwconv_dx(d, &l->dy, l->w, &l->dx, 0));
        break;
    case LAYER_POOL:
        TIMED(b, l, OP_MAXPOOL_DX, o->maxpool_dx(d, 5, &l->dy, l->extra, &l->dx, 0));
        break;
    case LAYER_UP: TIMED(b, l, OP_UPSAMPLE_DX, o->upsample_dx(d, &l->dy, &l->dx, 0)); break;
    case LAYER_ATTENTION: {
        k_tensor_t dv = l->dy;
        TIMED(b, l, OP_ATTENTION_DX,
              o->attention_dx(d, 2, 32, 64, &l->x, &l->y, l->extra, &l->dy, &dv, &l->dx, b->work));
        break;
    }
    }
}

static void step(bench_t *b)
{
    layer_t *l = b->layers;
    TIMED(b, l, OP_IMAGE, b->ops->image(b->dev, b->image, &l->x));
    for (int i = 0; i < b->count; i++)
        forward(b, &b->layers[i]);
    for (int i = b->count - 1; i >= 0; i--)
        backward(b, &b->layers[i], i & 1);
    k_at norm_at = b->opt, hyper = b->opt + K_ALIGN, w = hyper + K_ALIGN + sizeof(k_hyper_t);
    uint64_t bytes = b->params * sizeof(float), span = (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    w = (w + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    TIMED(b, l, OP_OPTIMISER, b->ops->grad_norm(b->dev, w + span, b->params, hyper, norm_at));
    TIMED(b, l, OP_OPTIMISER,
          b->ops->adamw(b->dev, w, w + span, w + 2 * span, w + 3 * span, b->params, 0, hyper,
                        norm_at));
    TIMED(b, l, OP_OPTIMISER, b->ops->ema(b->dev, w, w + 4 * span, b->params, hyper));
}

/* Small random values everywhere: no denormals, no NaN. */
static void fill(bench_t *b)
{
    enum { CHUNK = 1 << 16 };
    static float chunk[CHUNK];
    uint32_t x = 1;
    for (int i = 0; i < CHUNK; i++) {
        x = x * 1664525u + 1013904223u;
        chunk[i] = (float)(x >> 8) / 16777216.0f - 0.5f;
    }
    for (uint64_t at = 0; at < b->used; at += sizeof chunk) {
        uint64_t bytes = b->used - at < sizeof chunk ? b->used - at : sizeof chunk;
        check(b, b->ops->upload(b->dev, K_STREAM_MAIN, at, chunk, bytes));
    }
    k_hyper_t hyper = {
        .lr = {1e-4f, 1e-4f, 1e-4f}, .momentum = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    hyper.bias1 = hyper.bias2 = hyper.grad_scale = hyper.ema_decay = 1.0f;
    hyper.max_norm = 10.0f;
    check(b, b->ops->upload(b->dev, K_STREAM_MAIN, b->opt + K_ALIGN, &hyper, sizeof hyper));
}

static void count_flops(bench_t *b)
{
    for (int i = 0; i < b->count; i++) {
        const layer_t *l = &b->layers[i];
        double out = (double)l->z.n * l->z.h * l->z.w * l->z.c;
        double conv_flops = 2.0 * out * l->conv.k * l->conv.k * l->conv.c1;
        if (l->kind == LAYER_CONV) {
            b->flops[OP_CONV] += conv_flops;
            b->flops[OP_CONV_DW] += conv_flops;
            b->flops[OP_CONV_DX] += l->first ? 0.0 : conv_flops;
        } else if (l->kind == LAYER_DW) {
            for (int op = OP_DWCONV; op <= OP_DWCONV_DW; op++)
                b->flops[op] += 18.0 * out;
        } else if (l->kind == LAYER_ATTENTION) {
            double scores = 2.0 * l->x.n * 2.0 * (double)(l->x.h * l->x.w) * (l->x.h * l->x.w);
            b->flops[OP_ATTENTION] += scores * 96.0;
            b->flops[OP_ATTENTION_DX] += scores * (96.0 + 128.0);
        }
    }
}

/* One step; keeps each operation's least time, which other programs on the machine disturb least.
 */
static void round_of(bench_t *b, int number)
{
    for (int i = 0; i < b->count; i++) {
        memset(b->layers[i].now, 0, sizeof b->layers[i].now);
        memset(b->layers[i].cpu_now, 0, sizeof b->layers[i].cpu_now);
    }
    step(b);
    for (int i = 0; i < b->count; i++) {
        layer_t *l = &b->layers[i];
        for (int op = 0; op < OP_COUNT; op++) {
            if (number == 0 || l->now[op] < l->ms[op])
                l->ms[op] = l->now[op];
            if (number == 0 || l->cpu_now[op] < l->cpu_ms[op])
                l->cpu_ms[op] = l->cpu_now[op];
        }
    }
}

static void print_layers(const bench_t *b)
{
    for (int i = 0; i < b->count; i++) {
        const layer_t *l = &b->layers[i];
        printf("%3d %d %3dx%-3d %3d->%-3d k%d s%d", i, (int)l->kind, l->x.h, l->x.w, l->x.c, l->z.c,
               l->conv.k, l->conv.s);
        double flops =
            2e-6 * l->z.n * l->z.h * l->z.w * l->z.c * l->conv.k * l->conv.k * l->conv.c1;
        for (int op = 0; op < OP_COUNT; op++) {
            if (l->cpu_ms[op] == 0.0)
                continue;
            printf("  %s %.2f", op_names[op], l->cpu_ms[op]);
            if (op >= OP_CONV && op <= OP_CONV_DW)
                printf(" (%.0f)", flops / l->cpu_ms[op]);
        }
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    int imgsz = argc > 1 ? atoi(argv[1]) : 320, batch = argc > 2 ? atoi(argv[2]) : 16;
    int threads = argc > 3 ? atoi(argv[3]) : 2, rounds = argc > 4 ? atoi(argv[4]) : 3;
    static bench_t bench;
    bench_t *b = &bench;
    char why[512];
    k_open_t args = {.threads = threads};
    if (imgsz < 32 || imgsz % 32 != 0 || batch < 1 || rounds < 1) {
        fprintf(
            stderr,
            "usage: bench_kernels [imgsz, a multiple of 32] [batch] [threads] [rounds] [layers]\n");
        return 2;
    }
    b->ops = k_cpu_ops();
    b->n = batch;
    if (b->ops->open(&args, &b->dev, why, sizeof why) < 0) {
        fprintf(stderr, "bench_kernels: %s\n", why);
        return 1;
    }
    if (why[0])
        printf("%s\n", why);
    yolo11n(b, imgsz);
    b->image = take(b, (uint64_t)batch * (uint64_t)(imgsz * imgsz) * 3);
    b->work = take(b, b->work_bytes);
    b->grads[0] = take(b, b->grad_bytes);
    b->grads[1] = take(b, b->grad_bytes);
    b->opt = take(b, 5 * (b->params * sizeof(float) + K_ALIGN) + 4096);
    check(b, b->ops->reserve(b->dev, b->used));
    fill(b);
    count_flops(b);
    step(b); /* warm-up: page faults */
    for (int i = 0; i < rounds; i++)
        round_of(b, i);
    double total = 0.0, cpu_total = 0.0;
    for (int i = 0; i < b->count; i++) {
        for (int op = 0; op < OP_COUNT; op++) {
            b->ms[op] += b->layers[i].ms[op];
            total += b->layers[i].ms[op];
            b->cpu_ms[op] += b->layers[i].cpu_ms[op];
            cpu_total += b->layers[i].cpu_ms[op];
        }
    }
    if (argc > 5)
        print_layers(b);
    printf("yolo11n, %d px, batch %d, %d threads, %d layers, %.2f M parameters, arena %.0f MB\n",
           imgsz, batch, threads, b->count, (double)b->params * 1e-6, (double)b->used * 1e-6);
    for (int op = 0; op < OP_COUNT; op++) {
        printf("%-13s %8.2f ms, processor %8.2f ms %5.1f %%", op_names[op], b->ms[op],
               b->cpu_ms[op], 100.0 * b->cpu_ms[op] / cpu_total);
        if (b->flops[op] > 0.0)
            printf(" %7.1f GFLOP/s a core", b->flops[op] / b->cpu_ms[op] * 1e-6);
        printf("\n");
    }
    printf("step %.1f ms, %.2f ms an image; processor %.1f ms, %.2f ms an image\n", total,
           total / batch, cpu_total, cpu_total / batch);
    b->ops->close(&b->dev);
    return 0;
}
