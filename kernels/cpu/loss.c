/* The detection loss (facts/yolo.md 3): boxes decoded, targets assigned, then one pass over the
 * anchors for values and gradients. All in float32, sums in double, partial sums a row of anchors:
 * the result does not depend on the number of threads.
 */
#include "kernels/cpu/loss.h"

#include "kernels/cpu/softplus.h"

#include <math.h>
#include <string.h>

typedef struct {
    const k_detect_loss_t *p;
    const assign_t *a;
    double *partial; /* [n * rows][3]: sums before division by S */
    double scores;   /* S */
    int grads;
} pass_t;

/* ---- class scores ---- */

enum { LANES = 16 };

/* Sum of log(1 + exp(x)), the cross-entropy with target 0; dx = k * sigmoid(x) unless dx is NULL.
 * Lanes are kept apart so that the loop is a vector loop, and are emptied into a double every few
 * thousand values. */
CPU_VECTOR static double background(const float *x, float *dx, int64_t count, float k)
{
    double sum = 0;
    int64_t i = 0;
    while (i + LANES <= count) {
        float lane[LANES] = {0};
        int64_t stop = count - i < 4096 ? i + (count - i) / LANES * LANES : i + 4096;
        for (; i < stop; i += LANES) {
            float s[LANES];
            for (int j = 0; j < LANES; j++)
                lane[j] += cpu_softplusf(x[i + j], &s[j]);
            if (dx != NULL)
                for (int j = 0; j < LANES; j++)
                    dx[i + j] = k * s[j];
        }
        for (int j = 0; j < LANES; j++)
            sum += (double)lane[j];
    }
    for (; i < count; i++) {
        float s;
        sum += (double)cpu_softplusf(x[i], &s);
        if (dx != NULL)
            dx[i] = k * s;
    }
    return sum;
}

/* A row's cross-entropy as if everything were background. */
static double class_row(const pass_t *c, cpu_dev_t *dev, const anchor_row_t *r)
{
    const anchors_t *h = &c->a->head;
    const k_tensor_t *d = &c->p->dcls[r->level];
    float k = (float)((double)c->p->gain_cls * (double)c->p->scale / c->scores);
    const float *x = anchors_logits(h, r->level, r->pixel);
    float *dx = c->grads ? cpu_f32(dev, d->at) + r->pixel * d->ld : NULL;
    int32_t ld = h->cls[r->level].ld;
    if (ld == h->nc && (dx == NULL || d->ld == h->nc))
        return background(x, dx, (int64_t)r->w * h->nc, k);
    double sum = 0;
    for (int32_t i = 0; i < r->w; i++)
        sum += background(x + (int64_t)i * ld, dx ? dx + (int64_t)i * d->ld : NULL, h->nc, k);
    return sum;
}

/* ---- boxes ---- */

/* One side's bins: softmax, expectation, log of the sum. */
static float side_softmax(const float *bins, float *prob, float *log_sum)
{
    float top = bins[0], sum = 0, mean = 0;
    for (int i = 1; i < K_REG_MAX; i++)
        top = bins[i] > top ? bins[i] : top;
    for (int i = 0; i < K_REG_MAX; i++) {
        prob[i] = expf(bins[i] - top);
        sum += prob[i];
    }
    for (int i = 0; i < K_REG_MAX; i++) {
        prob[i] /= sum;
        mean += prob[i] * (float)i;
    }
    *log_sum = top + logf(sum);
    return mean;
}

/* Distribution focal loss of one side (facts/yolo.md 3.5): its value, and into d k_dfl times its
 * gradient plus k_mean times that of the expectation. */
static double side_loss(const float *bins, float target, float k_dfl, float k_mean, float *d)
{
    float prob[K_REG_MAX], log_sum;
    float mean = side_softmax(bins, prob, &log_sum);
    float most = (float)(K_REG_MAX - 1) - 0.01f;
    target = target < 0 ? 0 : target > most ? most : target;
    int left = (int)target;
    float w_left = (float)(left + 1) - target, w_right = 1 - w_left;
    if (d != NULL) {
        for (int i = 0; i < K_REG_MAX; i++)
            d[i] = prob[i] * (k_dfl + k_mean * ((float)i - mean));
        d[left] -= k_dfl * w_left;
        d[left + 1] -= k_dfl * w_right;
    }
    return (double)(w_left * (log_sum - bins[left]) + w_right * (log_sum - bins[left + 1]));
}

/* Box and DFL terms of one foreground anchor, and what its target takes off the class term. */
static void foreground(const pass_t *c, cpu_dev_t *dev, const anchor_row_t *r, int32_t x,
                       double sum[3])
{
    const assign_t *a = c->a;
    const anchors_t *h = &a->head;
    int64_t at = (int64_t)r->image * h->anchors + r->anchor + x, pixel = r->pixel + x;
    const k_gt_t *gt = &a->gt[(int64_t)r->image * a->max_gt + a->owner[at]];
    float weight = a->weight[at], s = (float)h->stride[r->level];
    box_t target = {gt->x1 / s, gt->y1 / s, gt->x2 / s, gt->y2 / s}, g;
    float unit = (float)((double)c->p->scale * (double)weight / c->scores);

    sum[0] += (double)((1 - boxes_ciou_grad(a->boxes[at], target, &g)) * weight);
    float k_box = c->p->gain_box * unit, k_dfl = c->p->gain_dfl * unit / 4;
    float ax = (float)x + 0.5f, ay = (float)r->y + 0.5f;
    float goal[4] = {ax - target.x1, ay - target.y1, target.x2 - ax, target.y2 - ay};
    float k_mean[4] = {k_box * g.x1, k_box * g.y1, -k_box * g.x2, -k_box * g.y2};
    const k_tensor_t *db = &c->p->dbox[r->level], *dc = &c->p->dcls[r->level];
    float *d = c->grads ? cpu_f32(dev, db->at) + pixel * db->ld : NULL;
    const float *bins = anchors_bins(h, r->level, pixel);
    double dfl = 0;
    for (int side = 0; side < 4; side++)
        dfl += side_loss(bins + side * K_REG_MAX, goal[side], k_dfl, k_mean[side],
                         d ? d + side * K_REG_MAX : NULL);
    sum[2] += dfl / 4 * (double)weight;

    int32_t cls = (int32_t)gt->cls;
    sum[1] -= (double)(anchors_logits(h, r->level, pixel)[cls] * weight);
    if (c->grads)
        (cpu_f32(dev, dc->at) + pixel * dc->ld)[cls] -= c->p->gain_cls * unit;
}

static void loss_rows(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last)
{
    const pass_t *c = ctx;
    (void)thread;
    for (int64_t item = first; item < last; item++) {
        anchor_row_t r = anchors_row(&c->a->head, item);
        const int32_t *owner = c->a->owner + (int64_t)r.image * c->a->head.anchors + r.anchor;
        double sum[3] = {0, class_row(c, dev, &r), 0};
        const k_tensor_t *db = &c->p->dbox[r.level];
        for (int32_t x = 0; x < r.w; x++) {
            if (c->grads)
                memset(cpu_f32(dev, db->at) + (r.pixel + x) * db->ld, 0,
                       ANCHORS_BINS * sizeof(float));
            if (owner[x] >= 0)
                foreground(c, dev, &r, x, sum);
        }
        memcpy(c->partial + item * 3, sum, sizeof sum);
    }
}

double loss_scores(const assign_t *a)
{
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)a->head.n * a->head.anchors; i++)
        sum += (double)a->weight[i];
    return sum;
}

void loss_terms(cpu_dev_t *dev, const k_detect_loss_t *p, const assign_t *a, double scores,
                double *partial, loss_items_t *items)
{
    /* max(sum of target scores, 1) (facts/yolo.md 3.2) */
    pass_t c = {.p = p, .a = a, .partial = partial, .scores = scores > 1 ? scores : 1};
    int64_t rows = (int64_t)a->head.n * a->head.rows;
    c.grads = p->dbox[0].at != K_NONE;
    cpu_parallel(dev, loss_rows, &c, rows);
    double sum[3] = {0, 0, 0};
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < 3; j++)
            sum[j] += partial[i * 3 + j];
    items->box = (double)p->gain_box * sum[0] / c.scores;
    items->cls = (double)p->gain_cls * sum[1] / c.scores;
    items->dfl = (double)p->gain_dfl * sum[2] / c.scores;
    items->scores = c.scores;
}

/* ---- the operation ---- */

uint64_t cpu_detect_loss_work(k_dev_t *dev, const k_detect_loss_t *p)
{
    anchors_t h;
    (void)dev;
    anchors_shape(p->box, p->cls, p->stride, p->nc, &h);
    return assign_bytes(p) + (uint64_t)h.n * (uint64_t)h.rows * 3 * sizeof(double);
}

static int check_gradients(cpu_dev_t *dev, const k_detect_loss_t *p)
{
    int none = p->dbox[0].at == K_NONE;
    for (int l = 0; l < K_LEVELS; l++) {
        if ((p->dbox[l].at == K_NONE) != none || (p->dcls[l].at == K_NONE) != none)
            return cpu_fail(dev, "detect_loss: some gradients have a place and some have none");
        if (!none && (cpu_check_tensor(dev, "detect_loss", "dbox", &p->dbox[l]) < 0 ||
                      cpu_check_tensor(dev, "detect_loss", "dcls", &p->dcls[l]) < 0 ||
                      cpu_check_same(dev, "detect_loss", &p->box[l], &p->dbox[l]) < 0 ||
                      cpu_check_same(dev, "detect_loss", &p->cls[l], &p->dcls[l]) < 0))
            return -1;
    }
    return 0;
}

/* Checks the call and lays out the assigner's arrays in the work area; NULL on failure. */
static char *open_call(cpu_dev_t *dev, const k_detect_loss_t *p, assign_t *a)
{
    uint64_t need = cpu_detect_loss_work(&dev->base, p);
    if (p->work_bytes < need) {
        cpu_fail(dev, "detect_loss: %llu bytes of work, needs %llu",
                 (unsigned long long)p->work_bytes, (unsigned long long)need);
        return NULL;
    }
    if (cpu_check_place(dev, "detect_loss", "work", p->work, need) < 0 ||
        cpu_check_place(dev, "detect_loss", "items", p->items, 4 * sizeof(float)) < 0 ||
        check_gradients(dev, p) < 0)
        return NULL;
    char *work = cpu_ptr(dev, p->work);
    return assign_open(dev, p, work, a) < 0 ? NULL : work;
}

static void put_items(cpu_dev_t *dev, const k_detect_loss_t *p, const assign_t *a, char *work,
                      double scores)
{
    loss_items_t items;
    loss_terms(dev, p, a, scores, (double *)(void *)(work + assign_bytes(p)), &items);
    float out[4] = {(float)items.box, (float)items.cls, (float)items.dfl, (float)items.scores};
    memcpy(cpu_ptr(dev, p->items), out, sizeof out);
}

int cpu_detect_loss(k_dev_t *base, const k_detect_loss_t *p)
{
    cpu_dev_t *dev = cpu_dev(base);
    assign_t a;
    char *work = open_call(dev, p, &a);
    if (!work)
        return -1;
    assign_decode(dev, &a);
    assign_choose(dev, &a);
    put_items(dev, p, &a, work, loss_scores(&a));
    return 0;
}

int cpu_detect_assign(k_dev_t *base, const k_detect_loss_t *p)
{
    cpu_dev_t *dev = cpu_dev(base);
    assign_t a;
    if (!open_call(dev, p, &a) || cpu_check_place(dev, "detect_assign", "sum", p->sum, 8) < 0)
        return -1;
    assign_decode(dev, &a);
    assign_choose(dev, &a);
    double sum = loss_scores(&a);
    memcpy(cpu_ptr(dev, p->sum), &sum, sizeof sum);
    return 0;
}

int cpu_detect_terms(k_dev_t *base, const k_detect_loss_t *p)
{
    cpu_dev_t *dev = cpu_dev(base);
    assign_t a;
    double sum;
    char *work = open_call(dev, p, &a);
    if (!work || cpu_check_place(dev, "detect_terms", "sum", p->sum, 8) < 0)
        return -1;
    memcpy(&sum, cpu_ptr(dev, p->sum), sizeof sum);
    put_items(dev, p, &a, work, sum);
    return 0;
}
