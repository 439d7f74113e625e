#include "kernels/cpu/assign.h"

#include "kernels/cpu/vexp.h"

#include <math.h>
#include <string.h>

static const float EPS = 1e-9f;

/* ---- memory ---- */

/* Gives out the next place of a block; with base = NULL only *used counts. */
static void *take(char *base, uint64_t *used, uint64_t bytes)
{
    char *here = base != NULL ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return here;
}

/* Lays the arrays into base; returns the bytes used. */
static uint64_t lay_out(assign_t *a, char *base)
{
    uint64_t anchors = (uint64_t)a->head.n * (uint64_t)a->head.anchors, used = 0;
    uint64_t gts = (uint64_t)a->head.n * (uint64_t)a->max_gt;
    a->boxes = take(base, &used, anchors * sizeof *a->boxes);
    a->owner = take(base, &used, anchors * sizeof *a->owner);
    a->weight = take(base, &used, anchors * sizeof *a->weight);
    a->pick = take(base, &used, gts * ASSIGN_TOPK * sizeof *a->pick);
    a->pick_count = take(base, &used, gts * sizeof *a->pick_count);
    a->align = take(base, &used, anchors * sizeof *a->align);
    a->overlap = take(base, &used, anchors * sizeof *a->overlap);
    a->top = take(base, &used, gts * 2 * sizeof *a->top);
    a->clash = take(base, &used, anchors * sizeof *a->clash);
    a->first = take(base, &used, ((uint64_t)a->head.n + 1) * sizeof *a->first);
    return used;
}

uint64_t assign_bytes(const k_detect_loss_t *p)
{
    assign_t a = {.max_gt = p->max_gt};
    anchors_shape(p->box, p->cls, p->stride, p->nc, &a.head);
    return lay_out(&a, NULL);
}

int assign_open(cpu_dev_t *dev, const k_detect_loss_t *p, void *work, assign_t *a)
{
    memset(a, 0, sizeof *a);
    if (anchors_open(dev, "detect_loss", p->box, p->cls, p->stride, p->nc, &a->head) < 0)
        return -1;
    int32_t n = a->head.n;
    uint64_t rows = (uint64_t)n * (uint64_t)p->max_gt;
    if (p->max_gt < 0 ||
        cpu_check_place(dev, "detect_loss", "gt", p->gt, rows * sizeof *a->gt) < 0 ||
        cpu_check_place(dev, "detect_loss", "gt_count", p->gt_count, (uint64_t)n * 4) < 0)
        return -1;
    a->max_gt = p->max_gt;
    a->gt = cpu_ptr(dev, p->gt);
    a->gt_count = cpu_ptr(dev, p->gt_count);
    lay_out(a, work);

    a->first[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t count = a->gt_count[i];
        if (count < 0 || count > a->max_gt)
            return cpu_fail(dev, "detect_loss: image %d has %d boxes, room for %d", i, count,
                            a->max_gt);
        for (int32_t g = 0; g < count; g++) {
            float cls = a->gt[(int64_t)i * a->max_gt + g].cls;
            if (!(cls >= 0) || cls >= (float)p->nc)
                return cpu_fail(dev, "detect_loss: image %d, box %d: class %g of %d", i, g,
                                (double)cls, p->nc);
        }
        a->first[i + 1] = a->first[i] + count;
    }
    return 0;
}

/* ---- step 1 and 2: candidates and their metric ---- */

static void decode_rows(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    assign_t *a = ctx;
    (void)dev, (void)thread;
    for (int64_t item = first; item < last; item++) {
        anchor_row_t r = anchors_row(&a->head, item);
        anchors_decode(anchors_bins(&a->head, r.level, r.pixel), a->head.box[r.level].ld, r.w, 0,
                       r.y, a->boxes + (int64_t)r.image * a->head.anchors + r.anchor);
    }
}

void assign_decode(cpu_dev_t *dev, assign_t *a)
{
    cpu_parallel(dev, decode_rows, a, (int64_t)a->head.n * a->head.rows);
}

/* A side below the smallest stride counts as long as the second stride, for the candidate test only
 * (facts/yolo.md 3.3 step 1). */
static void enlarge(float *lo, float *hi, const int32_t stride[K_LEVELS])
{
    if (*hi - *lo < (float)stride[0]) {
        float centre = (*lo + *hi) / 2;
        *lo = centre - (float)stride[1] / 2;
        *hi = centre + (float)stride[1] / 2;
    }
}

/* Padding and empty rows have no coordinate above 0 (facts/yolo.md 3.1). */
static int is_real(const k_gt_t *g)
{
    return g->x1 + g->y1 + g->x2 + g->y2 > 0;
}

static box_t reach(const assign_t *a, const k_gt_t *g)
{
    box_t r = {g->x1, g->y1, g->x2, g->y2};
    enlarge(&r.x1, &r.x2, a->head.stride);
    enlarge(&r.y1, &r.y2, a->head.stride);
    return r;
}

static int inside(box_t r, float ax, float ay)
{
    return ax - r.x1 > EPS && ay - r.y1 > EPS && r.x2 - ax > EPS && r.y2 - ay > EPS;
}

/* First and last + 1 grid index whose centre may lie between lo and hi. */
static void span(float lo, float hi, int32_t stride, int32_t size, int32_t *first, int32_t *last)
{
    float a = floorf(lo / (float)stride - 0.5f), b = ceilf(hi / (float)stride + 0.5f);
    *first = a > 0 ? (a < (float)size ? (int32_t)a : size) : 0;
    *last = b > 0 ? (b < (float)size ? (int32_t)b : size) : 0;
}

static box_t in_pixels(box_t b, int32_t stride)
{
    float s = (float)stride;
    return (box_t){b.x1 * s, b.y1 * s, b.x2 * s, b.y2 * s};
}

/* score^0.5 * overlap^6. */
static float metric(float score, float overlap)
{
    float o2 = overlap * overlap;
    return sqrtf(score) * (o2 * o2 * o2);
}

/* Keeps the ten largest, best first; of equals the earlier stays in front. */
static void keep(assign_pick_t *pick, int32_t *count, assign_pick_t one)
{
    int32_t i = *count < ASSIGN_TOPK ? (*count)++ : ASSIGN_TOPK - 1;
    for (; i > 0 && pick[i - 1].align < one.align; i--)
        pick[i] = pick[i - 1];
    pick[i] = one;
}

/* Step 3 for one box. The plain IoU bounds the CIoU, so most candidates are refused without its
 * arcus tangents once ten are known. */
static void choose_for_box(assign_t *a, int32_t image, int32_t g)
{
    const anchors_t *h = &a->head;
    int64_t slot = (int64_t)image * a->max_gt + g;
    const k_gt_t *gt = &a->gt[slot];
    assign_pick_t *pick = a->pick + slot * ASSIGN_TOPK;
    int32_t *count = &a->pick_count[slot];
    *count = 0;
    if (!is_real(gt))
        return;
    box_t r = reach(a, gt), box = {gt->x1, gt->y1, gt->x2, gt->y2};
    for (int l = 0; l < K_LEVELS; l++) {
        int32_t x0, x1, y0, y1;
        float s = (float)h->stride[l];
        span(r.x1, r.x2, h->stride[l], h->w[l], &x0, &x1);
        span(r.y1, r.y2, h->stride[l], h->h[l], &y0, &y1);
        for (int32_t y = y0; y < y1; y++) {
            for (int32_t x = x0; x < x1; x++) {
                if (!inside(r, ((float)x + 0.5f) * s, ((float)y + 0.5f) * s))
                    continue;
                int32_t anchor = h->first_anchor[l] + y * h->w[l] + x;
                box_t p = in_pixels(a->boxes[(int64_t)image * h->anchors + anchor], h->stride[l]);
                float least = *count == ASSIGN_TOPK ? pick[ASSIGN_TOPK - 1].align : 0;
                float bound = boxes_iou(box, p);
                if (!(bound > 0) ||
                    bound * bound * bound * bound * bound * bound * 1.0001f <= least)
                    continue;
                float score = cpu_sigmoidf(
                    anchors_logits(h, l, anchors_pixel(h, image, l, y, x))[(int32_t)gt->cls]);
                if (metric(score, bound * 1.0001f) <= least)
                    continue;
                float overlap = boxes_ciou(box, p);
                float align = overlap > 0 ? metric(score, overlap) : 0;
                if (align > least)
                    keep(pick, count, (assign_pick_t){anchor, align, overlap});
            }
        }
    }
}

static void choose_boxes(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    assign_t *a = ctx;
    (void)dev, (void)thread;
    int32_t image = 0;
    for (int64_t item = first; item < last; item++) {
        while (item >= a->first[image + 1])
            image++;
        choose_for_box(a, image, (int32_t)(item - a->first[image]));
    }
}

/* ---- step 4: one box an anchor ---- */

/* The anchor's metric with box g; 0 and 0 where it is no candidate. */
static assign_pick_t measure(const assign_t *a, int32_t image, int32_t anchor, int32_t g)
{
    const anchors_t *h = &a->head;
    const k_gt_t *gt = &a->gt[(int64_t)image * a->max_gt + g];
    assign_pick_t m = {anchor, 0, 0};
    int32_t l, y, x;
    anchors_locate(h, anchor, &l, &y, &x);
    float s = (float)h->stride[l];
    if (!is_real(gt) || !inside(reach(a, gt), ((float)x + 0.5f) * s, ((float)y + 0.5f) * s))
        return m;
    box_t p = in_pixels(a->boxes[(int64_t)image * h->anchors + anchor], h->stride[l]);
    float overlap = boxes_ciou((box_t){gt->x1, gt->y1, gt->x2, gt->y2}, p);
    if (overlap > 0) {
        m.overlap = overlap;
        m.align = metric(
            cpu_sigmoidf(anchors_logits(h, l, anchors_pixel(h, image, l, y, x))[(int32_t)gt->cls]),
            overlap);
    }
    return m;
}

/* An anchor that several boxes want goes to the one it overlaps most, among all boxes of the image.
 */
static void settle(const assign_t *a, int32_t image, int32_t anchor)
{
    int64_t at = (int64_t)image * a->head.anchors + anchor;
    int32_t best = 0;
    assign_pick_t most = measure(a, image, anchor, 0);
    for (int32_t g = 1; g < a->gt_count[image]; g++) {
        assign_pick_t m = measure(a, image, anchor, g);
        if (m.overlap > most.overlap) {
            most = m;
            best = g;
        }
    }
    a->owner[at] = best;
    a->align[at] = most.align;
    a->overlap[at] = most.overlap;
}

enum { FREE = -1, CLASH = -2 };

/* Gives every picked anchor its owner. */
static void own_anchors(const assign_t *a, int32_t image)
{
    int64_t base = (int64_t)image * a->head.anchors, slot = (int64_t)image * a->max_gt;
    int32_t *clash = a->clash + base, clashes = 0;
    for (int32_t g = 0; g < a->gt_count[image]; g++) {
        for (int32_t i = 0; i < a->pick_count[slot + g]; i++) {
            const assign_pick_t *p = &a->pick[(slot + g) * ASSIGN_TOPK + i];
            int64_t at = base + p->anchor;
            if (a->owner[at] == FREE) {
                a->owner[at] = g;
                a->align[at] = p->align;
                a->overlap[at] = p->overlap;
            } else if (a->owner[at] != CLASH) {
                a->owner[at] = CLASH;
                clash[clashes++] = p->anchor;
            }
        }
    }
    for (int32_t i = 0; i < clashes; i++)
        settle(a, image, clash[i]);
}

/* ---- step 6: soft scores ---- */

/* Visits the owned anchors through the picks; an anchor of several picks comes up again,
 * harmlessly. */
static void weigh_anchors(const assign_t *a, int32_t image, int write)
{
    int64_t base = (int64_t)image * a->head.anchors, slot = (int64_t)image * a->max_gt;
    for (int32_t g = 0; g < a->gt_count[image]; g++) {
        for (int32_t i = 0; i < a->pick_count[slot + g]; i++) {
            int64_t at = base + a->pick[(slot + g) * ASSIGN_TOPK + i].anchor;
            float *top = a->top + (slot + a->owner[at]) * 2;
            if (write) {
                a->weight[at] = a->align[at] * top[1] / (top[0] + EPS);
                continue;
            }
            top[0] = top[0] > a->align[at] ? top[0] : a->align[at];
            top[1] = top[1] > a->overlap[at] ? top[1] : a->overlap[at];
        }
    }
}

static void choose_images(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    assign_t *a = ctx;
    (void)dev, (void)thread;
    for (int32_t image = (int32_t)first; image < (int32_t)last; image++) {
        int64_t base = (int64_t)image * a->head.anchors;
        for (int32_t i = 0; i < a->head.anchors; i++)
            a->owner[base + i] = FREE;
        memset(a->weight + base, 0, (size_t)a->head.anchors * sizeof *a->weight);
        memset(a->top + (int64_t)image * a->max_gt * 2, 0,
               (size_t)a->gt_count[image] * 2 * sizeof *a->top);
        own_anchors(a, image);
        weigh_anchors(a, image, 0);
        weigh_anchors(a, image, 1);
    }
}

void assign_choose(cpu_dev_t *dev, assign_t *a)
{
    cpu_parallel(dev, choose_boxes, a, a->first[a->head.n]);
    cpu_parallel(dev, choose_images, a, a->head.n);
}
