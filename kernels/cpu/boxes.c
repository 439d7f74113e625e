#include "kernels/cpu/boxes.h"

#include <math.h>

static const float EPS = 1e-7f;
static const float V_FACTOR = 0.405284735f; /* 4 / pi^2 */

static float least(float a, float b)
{
    return a < b ? a : b;
}

static float most(float a, float b)
{
    return a > b ? a : b;
}

float boxes_iou(box_t a, box_t b)
{
    float iw = least(a.x2, b.x2) - most(a.x1, b.x1), ih = least(a.y2, b.y2) - most(a.y1, b.y1);
    if (!(iw > 0) || !(ih > 0))
        return 0;
    float inter = iw * ih;
    float all = (a.x2 - a.x1) * (a.y2 - a.y1 + EPS) + (b.x2 - b.x1) * (b.y2 - b.y1 + EPS);
    return inter / (all - inter + EPS);
}

float boxes_overlap(box_t a, box_t b)
{
    float iw = most(least(a.x2, b.x2) - most(a.x1, b.x1), 0);
    float ih = most(least(a.y2, b.y2) - most(a.y1, b.y1), 0);
    float inter = iw * ih;
    float all = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1);
    return inter / (all - inter);
}

/* The terms of one CIoU. */
typedef struct {
    float w, h;   /* of a; h with EPS */
    float iw, ih; /* intersection, not below 0 */
    float cw, ch; /* enclosing box */
    float dx, dy; /* twice the distance of the centres, b - a */
    float all, iou, c2, rho2, angle, alpha;
} terms_t;

static float ciou_terms(box_t a, box_t b, terms_t *t)
{
    float wb = b.x2 - b.x1, hb = b.y2 - b.y1 + EPS;
    t->w = a.x2 - a.x1;
    t->h = a.y2 - a.y1 + EPS;
    t->iw = most(least(a.x2, b.x2) - most(a.x1, b.x1), 0);
    t->ih = most(least(a.y2, b.y2) - most(a.y1, b.y1), 0);
    float inter = t->iw * t->ih;
    t->all = t->w * t->h + wb * hb - inter + EPS;
    t->iou = inter / t->all;
    t->cw = most(a.x2, b.x2) - least(a.x1, b.x1);
    t->ch = most(a.y2, b.y2) - least(a.y1, b.y1);
    t->c2 = t->cw * t->cw + t->ch * t->ch + EPS;
    t->dx = b.x1 + b.x2 - a.x1 - a.x2;
    t->dy = b.y1 + b.y2 - a.y1 - a.y2;
    t->rho2 = (t->dx * t->dx + t->dy * t->dy) / 4;
    t->angle = atanf(wb / hb) - atanf(t->w / t->h);
    float v = V_FACTOR * (t->angle * t->angle);
    t->alpha = v / (v - t->iou + (1 + EPS));
    return t->iou - (t->rho2 / t->c2 + v * t->alpha);
}

float boxes_ciou(box_t a, box_t b)
{
    terms_t t;
    return ciou_terms(a, b, &t);
}

/* One axis of the gradient: a spans lo..hi, b spans blo..bhi. */
typedef struct {
    float d_inter, d_area;  /* d IoU / d (intersection side), d IoU / d (side of a) */
    float d_enclose, d_rho; /* d (rho2 / c2) / d (enclosing side), d (rho2 / c2) / d lo = d hi */
    float d_shape;          /* d (alpha v) / d (side of a) */
} axis_t;

/* d max(p, q) / d p, shared out on a tie as autograd does. */
static float share(float p, float q)
{
    return p > q ? 1 : p < q ? 0 : 0.5f;
}

static void axis_grad(const axis_t *g, float inter, float lo, float hi, float blo, float bhi,
                      float *d_lo, float *d_hi)
{
    float i = inter > 0 ? g->d_inter : 0;
    *d_lo = -i * share(lo, blo) - g->d_area;
    *d_hi = i * share(bhi, hi) + g->d_area;
    *d_lo -= -g->d_enclose * share(blo, lo) + g->d_rho - g->d_shape;
    *d_hi -= g->d_enclose * share(hi, bhi) + g->d_rho + g->d_shape;
}

/* With I the intersection and U the union, dI -> (U + I) / U^2, d(area of a) -> -I / U^2. */
float boxes_ciou_grad(box_t a, box_t b, box_t *grad)
{
    terms_t t;
    float ciou = ciou_terms(a, b, &t);
    float d_inter = (1 + t.iou) / t.all, d_area = -t.iou / t.all;
    float d_c2 = -t.rho2 / (t.c2 * t.c2);
    float d_v = -2 * V_FACTOR * t.angle * t.alpha / (t.w * t.w + t.h * t.h); /* atan(w/h) */

    axis_t x = {.d_inter = d_inter * t.ih,
                .d_area = d_area * t.h,
                .d_enclose = 2 * t.cw * d_c2,
                .d_rho = -t.dx / (2 * t.c2),
                .d_shape = d_v * t.h};
    axis_t y = {.d_inter = d_inter * t.iw,
                .d_area = d_area * t.w,
                .d_enclose = 2 * t.ch * d_c2,
                .d_rho = -t.dy / (2 * t.c2),
                .d_shape = -d_v * t.w};
    axis_grad(&x, t.iw, a.x1, a.x2, b.x1, b.x2, &grad->x1, &grad->x2);
    axis_grad(&y, t.ih, a.y1, a.y2, b.y1, b.y2, &grad->y1, &grad->y2);
    return ciou;
}
