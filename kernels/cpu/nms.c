/* Decoding and non-maximum suppression (facts/yolo.md 6.3).
 *
 * An image is one item of work. Every (anchor, class) above the confidence is a candidate; the
 * max_nms best are sorted and suppressed greedily, a class at a time (or all together), until
 * max_det are kept. A candidate is one 64-bit key: the logit in an order-preserving form, inverted,
 * above the flat index anchor * nc + class, so that sorting keys up sorts scores down and ties by
 * index. Boxes are decoded only for candidates that are looked at.
 */
#include "kernels/cpu/anchors.h"

#include "kernels/cpu/vexp.h"

#include <math.h>
#include <string.h>

enum { BINS = 1 << 16 };

typedef struct {
    const k_nms_t *p;
    anchors_t head;
    k_det_t *dets;
    int32_t *counts;
    char *work;
    uint64_t slice;    /* bytes of work an image */
    float least, sure; /* no logit below least passes, every one above sure does */
} nms_t;

typedef struct {
    uint64_t *keys, *spare; /* [max_nms] */
    uint32_t *bins;         /* [BINS] */
} image_t;

static uint64_t slice_bytes(const k_nms_t *p)
{
    return (2 * (uint64_t)p->max_nms * sizeof(uint64_t) + BINS * sizeof(uint32_t) + 63) / 64 * 64;
}

uint64_t cpu_nms_work(k_dev_t *dev, const k_nms_t *p)
{
    (void)dev;
    return (uint64_t)p->box[0].n * slice_bytes(p);
}

/* A float's bits as an unsigned number of the same order. */
static uint32_t ordered(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* ---- candidates ---- */

/* What a walk over an image's logits does with the candidates. */
typedef struct {
    enum { WALK_COLLECT, WALK_BINS_HIGH, WALK_BINS_LOW } what;
    uint32_t
        from; /* COLLECT: order of the least logit taken; BINS_LOW: the upper 16 bits looked at */
    uint64_t equals; /* COLLECT: how many of order `from` are taken */
    uint64_t count;  /* candidates met */
} walk_t;

static void visit(const nms_t *c, const image_t *m, walk_t *w, float x, uint32_t flat)
{
    uint32_t order = ordered(x);
    if (w->what == WALK_BINS_HIGH) {
        m->bins[order >> 16]++;
    } else if (w->what == WALK_BINS_LOW) {
        if (order >> 16 == w->from)
            m->bins[order & 0xffff]++;
    } else if (order > w->from || (order == w->from && w->equals > 0)) {
        w->equals -= order == w->from;
        if (w->count < (uint64_t)c->p->max_nms)
            m->keys[w->count] = (uint64_t)~order << 32 | flat;
        w->count++;
    }
}

static void walk(const nms_t *c, const image_t *m, int32_t image, walk_t *w)
{
    const anchors_t *h = &c->head;
    w->count = 0;
    for (int32_t row = 0; row < h->rows; row++) {
        anchor_row_t r = anchors_row(h, (int64_t)image * h->rows + row);
        for (int32_t i = 0; i < r.w; i++) {
            const float *x = anchors_logits(h, r.level, r.pixel + i);
            uint32_t flat = (uint32_t)(r.anchor + i) * (uint32_t)h->nc;
            for (int32_t k = 0; k < h->nc; k++)
                if (x[k] > c->sure || (x[k] >= c->least && cpu_sigmoidf(x[k]) > c->p->conf))
                    visit(c, m, w, x[k], flat + (uint32_t)k);
        }
    }
}

/* The bin from above at which `want` is reached; *want is left with what is needed from that bin.
 */
static uint32_t find_bin(const uint32_t *bins, uint64_t *want)
{
    uint32_t b = BINS - 1;
    while (b > 0 && bins[b] < *want)
        *want -= bins[b--];
    return b;
}

/* More than max_nms: finds the order of the last one taken in two histograms of 16 bits, then
 * collects what lies above it and, by index, as many of its equals as there is room for. */
static void select_best(const nms_t *c, const image_t *m, int32_t image, walk_t *w)
{
    uint64_t want = (uint64_t)c->p->max_nms;
    memset(m->bins, 0, BINS * sizeof *m->bins);
    w->what = WALK_BINS_HIGH;
    walk(c, m, image, w);
    uint32_t high = find_bin(m->bins, &want);
    memset(m->bins, 0, BINS * sizeof *m->bins);
    w->what = WALK_BINS_LOW;
    w->from = high;
    walk(c, m, image, w);
    uint32_t low = find_bin(m->bins, &want);
    *w = (walk_t){.what = WALK_COLLECT, .from = high << 16 | low, .equals = want};
    walk(c, m, image, w);
}

/* Stable, by the upper 32 bits, up: four passes of eight bits. */
static void sort_keys(uint64_t *keys, uint64_t *spare, uint64_t n)
{
    for (int shift = 32; shift < 64; shift += 8) {
        uint64_t place[257] = {0};
        for (uint64_t i = 0; i < n; i++)
            place[(keys[i] >> shift & 255) + 1]++;
        for (int b = 0; b < 256; b++)
            place[b + 1] += place[b];
        for (uint64_t i = 0; i < n; i++)
            spare[place[keys[i] >> shift & 255]++] = keys[i];
        uint64_t *other = keys;
        keys = spare;
        spare = other;
    }
}

/* ---- suppression ---- */

static k_det_t detection(const nms_t *c, int32_t image, uint64_t key)
{
    const anchors_t *h = &c->head;
    uint32_t flat = (uint32_t)key;
    int32_t cls = (int32_t)(flat % (uint32_t)h->nc), level, y, x;
    anchors_locate(h, (int32_t)(flat / (uint32_t)h->nc), &level, &y, &x);
    int64_t pixel = anchors_pixel(h, image, level, y, x);
    float s = (float)h->stride[level];
    box_t b;
    anchors_decode(anchors_bins(h, level, pixel), h->box[level].ld, 1, x, y, &b);
    return (k_det_t){
        b.x1 * s,  b.y1 * s, b.x2 * s, b.y2 * s, cpu_sigmoidf(anchors_logits(h, level, pixel)[cls]),
        (float)cls};
}

static int suppressed(const k_nms_t *p, const k_det_t *kept, int32_t n, const k_det_t *d)
{
    box_t b = {d->x1, d->y1, d->x2, d->y2};
    for (int32_t i = 0; i < n; i++)
        if ((p->agnostic || kept[i].cls == d->cls) &&
            boxes_overlap((box_t){kept[i].x1, kept[i].y1, kept[i].x2, kept[i].y2}, b) > p->iou)
            return 1;
    return 0;
}

static void nms_image(const nms_t *c, int32_t image)
{
    char *at = c->work + (uint64_t)image * c->slice;
    uint64_t max = (uint64_t)c->p->max_nms;
    image_t m = {.keys = (uint64_t *)(void *)at,
                 .spare = (uint64_t *)(void *)at + max,
                 .bins = (uint32_t *)(void *)((uint64_t *)(void *)at + 2 * max)};
    walk_t w = {.what = WALK_COLLECT, .from = 0, .equals = 1};
    walk(c, &m, image, &w);
    if (w.count > max)
        select_best(c, &m, image, &w);
    sort_keys(m.keys, m.spare, w.count);

    k_det_t *kept = c->dets + (int64_t)image * c->p->max_det;
    int32_t n = 0;
    for (uint64_t i = 0; i < w.count && n < c->p->max_det; i++) {
        k_det_t d = detection(c, image, m.keys[i]);
        if (!suppressed(c->p, kept, n, &d))
            kept[n++] = d;
    }
    c->counts[image] = n;
}

static void nms_images(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    (void)dev, (void)thread;
    for (int64_t i = first; i < last; i++)
        nms_image(ctx, (int32_t)i);
}

int cpu_nms(k_dev_t *base, const k_nms_t *p)
{
    cpu_dev_t *dev = cpu_dev(base);
    nms_t c = {.p = p, .slice = slice_bytes(p)};
    if (anchors_open(dev, "nms", p->box, p->cls, p->stride, p->nc, &c.head) < 0)
        return -1;
    if (p->max_nms <= 0 || p->max_det <= 0 || !(p->conf >= 0) || !(p->conf <= 1) ||
        (uint64_t)c.head.anchors * (uint64_t)p->nc > UINT32_MAX)
        return cpu_fail(dev, "nms: max_nms %d, max_det %d, conf %g, %d anchors of %d classes",
                        p->max_nms, p->max_det, (double)p->conf, c.head.anchors, p->nc);
    uint64_t need = cpu_nms_work(base, p), n = (uint64_t)c.head.n;
    if (p->work_bytes < need)
        return cpu_fail(dev, "nms: %llu bytes of work, needs %llu",
                        (unsigned long long)p->work_bytes, (unsigned long long)need);
    if (cpu_check_place(dev, "nms", "work", p->work, need) < 0 ||
        cpu_check_place(dev, "nms", "counts", p->counts, n * sizeof(int32_t)) < 0 ||
        cpu_check_place(dev, "nms", "dets", p->dets, n * (uint64_t)p->max_det * sizeof(k_det_t)) <
            0)
        return -1;
    c.dets = cpu_ptr(dev, p->dets);
    c.counts = cpu_ptr(dev, p->counts);
    c.work = cpu_ptr(dev, p->work);
    /* Around the logit of conf the sigmoid decides. 0 and 1 give -inf and inf: all and none. */
    double logit = log((double)p->conf / (1 - (double)p->conf));
    c.least = (float)(logit - 1e-3);
    c.sure = (float)(logit + 1e-3);
    cpu_parallel(dev, nms_images, &c, c.head.n);
    return 0;
}
