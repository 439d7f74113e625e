/* Overlaps of boxes x1 y1 x2 y2 on the device (facts/yolo.md 3.4), as kernels/cpu/boxes.c has them.
 *
 * Products that are added are rounded first (no contraction to multiply-adds): the CPU's bits but for
 * the arcus tangents, so that what is equal there is equal here.
 */
#ifndef SLUICE_KERNELS_CUDA_BOXES_CUH
#define SLUICE_KERNELS_CUDA_BOXES_CUH

#define BOXES_EPS      1e-7f
#define BOXES_V_FACTOR 0.405284735f /* 4 / pi^2 */

struct alignas(16) box_t {
    float x1, y1, x2, y2;
};

/* Unlike fminf and fmaxf: of a NaN and a number the second. */
static __device__ __forceinline__ float boxes_least(float a, float b)
{
    return a < b ? a : b;
}

static __device__ __forceinline__ float boxes_most(float a, float b)
{
    return a > b ? a : b;
}

/* Intersection over union with the spec's 1e-7 in heights and union. >= boxes_ciou. */
static __device__ __forceinline__ float boxes_iou(const box_t &a, const box_t &b)
{
    const float iw = boxes_least(a.x2, b.x2) - boxes_most(a.x1, b.x1);
    const float ih = boxes_least(a.y2, b.y2) - boxes_most(a.y1, b.y1);
    if (!(iw > 0.0f) || !(ih > 0.0f))
        return 0.0f;
    const float inter = __fmul_rn(iw, ih);
    const float all = __fadd_rn(__fmul_rn(a.x2 - a.x1, a.y2 - a.y1 + BOXES_EPS),
                                __fmul_rn(b.x2 - b.x1, b.y2 - b.y1 + BOXES_EPS));
    return inter / (all - inter + BOXES_EPS);
}

/* The terms of one CIoU. */
typedef struct {
    float w, h;   /* of a; h with BOXES_EPS */
    float iw, ih; /* intersection, not below 0 */
    float cw, ch; /* enclosing box */
    float dx, dy; /* twice the distance of the centres, b - a */
    float all, iou, c2, rho2, angle, alpha;
} ciou_t;

static __device__ __forceinline__ float boxes_ciou_terms(const box_t &a, const box_t &b, ciou_t *t)
{
    const float wb = b.x2 - b.x1, hb = b.y2 - b.y1 + BOXES_EPS;
    t->w = a.x2 - a.x1;
    t->h = a.y2 - a.y1 + BOXES_EPS;
    t->iw = boxes_most(boxes_least(a.x2, b.x2) - boxes_most(a.x1, b.x1), 0.0f);
    t->ih = boxes_most(boxes_least(a.y2, b.y2) - boxes_most(a.y1, b.y1), 0.0f);
    const float inter = __fmul_rn(t->iw, t->ih);
    t->all = __fadd_rn(__fmul_rn(t->w, t->h), __fmul_rn(wb, hb)) - inter + BOXES_EPS;
    t->iou = inter / t->all;
    t->cw = boxes_most(a.x2, b.x2) - boxes_least(a.x1, b.x1);
    t->ch = boxes_most(a.y2, b.y2) - boxes_least(a.y1, b.y1);
    t->c2 = __fadd_rn(__fmul_rn(t->cw, t->cw), __fmul_rn(t->ch, t->ch)) + BOXES_EPS;
    t->dx = b.x1 + b.x2 - a.x1 - a.x2;
    t->dy = b.y1 + b.y2 - a.y1 - a.y2;
    t->rho2 = __fadd_rn(__fmul_rn(t->dx, t->dx), __fmul_rn(t->dy, t->dy)) / 4.0f;
    t->angle = atanf(wb / hb) - atanf(t->w / t->h);
    const float v = __fmul_rn(BOXES_V_FACTOR, __fmul_rn(t->angle, t->angle));
    t->alpha = v / (v - t->iou + (1.0f + BOXES_EPS));
    return t->iou - __fadd_rn(t->rho2 / t->c2, __fmul_rn(v, t->alpha));
}

/* IoU - (rho^2 / c^2 + alpha v). */
static __device__ __forceinline__ float boxes_ciou(const box_t &a, const box_t &b)
{
    ciou_t t;
    return boxes_ciou_terms(a, b, &t);
}

/* One axis of the gradient: a spans lo..hi, b spans blo..bhi. */
typedef struct {
    float d_inter, d_area;  /* d IoU / d (intersection side), d IoU / d (side of a) */
    float d_enclose, d_rho; /* d (rho2 / c2) / d (enclosing side), d (rho2 / c2) / d lo = d hi */
    float d_shape;          /* d (alpha v) / d (side of a) */
} ciou_axis_t;

/* d max(p, q) / d p, shared out on a tie as autograd does. */
static __device__ __forceinline__ float boxes_share(float p, float q)
{
    return p > q ? 1.0f : p < q ? 0.0f : 0.5f;
}

static __device__ __forceinline__ void boxes_axis_grad(const ciou_axis_t &g, float inter, float lo,
                                                       float hi, float blo, float bhi, float *d_lo,
                                                       float *d_hi)
{
    const float i = inter > 0.0f ? g.d_inter : 0.0f;
    *d_lo = -i * boxes_share(lo, blo) - g.d_area + g.d_enclose * boxes_share(blo, lo) - g.d_rho +
            g.d_shape;
    *d_hi = i * boxes_share(bhi, hi) + g.d_area - g.d_enclose * boxes_share(hi, bhi) - g.d_rho -
            g.d_shape;
}

/* The CIoU, and d CIoU / d a in grad, alpha a constant. With I the intersection and U the union, dI
 * -> (U + I) / U^2, d(area of a) -> -I / U^2. */
static __device__ __forceinline__ float boxes_ciou_grad(const box_t &a, const box_t &b, box_t *grad)
{
    ciou_t t;
    const float ciou = boxes_ciou_terms(a, b, &t);
    const float d_inter = (1.0f + t.iou) / t.all, d_area = -t.iou / t.all;
    const float d_c2 = -t.rho2 / (t.c2 * t.c2);
    /* through atan(w / h) */
    const float d_v = -2.0f * BOXES_V_FACTOR * t.angle * t.alpha / (t.w * t.w + t.h * t.h);
    const ciou_axis_t x = {d_inter * t.ih, d_area * t.h, 2.0f * t.cw * d_c2, -t.dx / (2.0f * t.c2),
                           d_v * t.h};
    const ciou_axis_t y = {d_inter * t.iw, d_area * t.w, 2.0f * t.ch * d_c2, -t.dy / (2.0f * t.c2),
                           -d_v * t.w};
    boxes_axis_grad(x, t.iw, a.x1, a.x2, b.x1, b.x2, &grad->x1, &grad->x2);
    boxes_axis_grad(y, t.ih, a.y1, a.y2, b.y1, b.y2, &grad->y1, &grad->y2);
    return ciou;
}

#endif
