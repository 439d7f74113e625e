#include "trainer/ap.h"

#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    AP_POINTS = 101,     /* of the precision-recall curve (facts/yolo.md 6.5) */
    CURVE_POINTS = 1000, /* of the confidence axis of P, R and F1 */
    SMOOTH = 101,        /* width of the box filter over F1: a tenth of the axis */
};

/* ---- matching (facts/yolo.md 6.4) ---- */

static float iou(const k_det_t *d, const k_gt_t *g)
{
    float w = fminf(d->x2, g->x2) - fmaxf(d->x1, g->x1);
    float h = fminf(d->y2, g->y2) - fmaxf(d->y1, g->y1);
    if (!(w > 0) || !(h > 0))
        return 0;
    float inter = w * h;
    float all = (d->x2 - d->x1) * (d->y2 - d->y1) + (g->x2 - g->x1) * (g->y2 - g->y1);
    return inter / (all - inter + 1e-7f);
}

/* The box of the detection's class that it overlaps most, or -1. */
static int32_t best_box(const k_det_t *d, const k_gt_t *gts, int32_t n_gts, float *best)
{
    int32_t which = -1;
    *best = 0;
    for (int32_t g = 0; g < n_gts; g++) {
        if (gts[g].cls != d->cls)
            continue;
        float v = iou(d, &gts[g]);
        if (v > *best) {
            *best = v;
            which = g;
        }
    }
    return which;
}

/* A detection has one candidate box, the best, at every threshold; detections come best first, so
 * the first to ask for a box gets it. taken[g]: thresholds at which box g is gone. */
int ap_match(const k_det_t *dets, int32_t n_dets, const k_gt_t *gts, int32_t n_gts, ap_row_t *rows)
{
    uint16_t *taken = calloc(n_gts > 0 ? (size_t)n_gts : 1, sizeof *taken);
    if (taken == NULL)
        return err_set(ERR_ENV, "validation: no memory to match %d boxes", n_gts);
    for (int32_t i = 0; i < n_dets; i++) {
        rows[i] = (ap_row_t){.score = dets[i].score, .cls = (uint16_t)dets[i].cls, .correct = 0};
        float best;
        int32_t g = best_box(&dets[i], gts, n_gts, &best);
        if (g < 0)
            continue;
        for (int t = 0; t < AP_THRESHOLDS; t++) {
            uint16_t bit = (uint16_t)(1u << t);
            if (best >= (float)(0.5 + 0.05 * t) && !(taken[g] & bit)) {
                taken[g] |= bit;
                rows[i].correct |= bit;
            }
        }
    }
    free(taken);
    return 0;
}

/* ---- one precision-recall curve (facts/yolo.md 6.5) ---- */

/* Integral over 101 recalls of the enveloped curve [0, recall.., last, 1] -> [1, precision.., 0,
 * 0], straight between points; where several points share a recall the last counts. precision is
 * turned into its envelope in place. */
static double integrate(const double *recall, double *precision, uint64_t n)
{
    if (n == 0)
        return 0;
    for (uint64_t i = n - 1; i > 0; i--)
        precision[i - 1] = precision[i - 1] > precision[i] ? precision[i - 1] : precision[i];
    double first = precision[0] > 1 ? precision[0] : 1, last_recall = recall[n - 1], sum = 0;
    uint64_t j = 0; /* points with recall <= x */
    for (int p = 0; p < AP_POINTS; p++) {
        double x = p == AP_POINTS - 1 ? 1.0 : p * 0.01, y;
        while (j < n && recall[j] <= x)
            j++;
        double r0 = j > 0 ? recall[j - 1] : 0, y0 = j > 0 ? precision[j - 1] : first;
        if (x >= last_recall)
            y = 0; /* the sentinels at the last recall and at 1 */
        else if (r0 == x)
            y = y0;
        else
            y = y0 + (precision[j] - y0) * ((x - r0) / (recall[j] - r0));
        sum += p == 0 || p == AP_POINTS - 1 ? y / 2 : y;
    }
    return sum * 0.01;
}

double ap_single(const uint8_t *tp, uint64_t n, uint64_t n_gt)
{
    if (n == 0 || n_gt == 0)
        return 0;
    double *recall = malloc(2 * n * sizeof *recall);
    if (recall == NULL)
        return NAN;
    double *precision = recall + n;
    uint64_t hits = 0;
    for (uint64_t i = 0; i < n; i++) {
        hits += tp[i] != 0;
        recall[i] = (double)hits / (double)n_gt;
        precision[i] = (double)hits / (double)(i + 1);
    }
    double ap = integrate(recall, precision, n);
    free(recall);
    return ap;
}

/* ---- all classes ---- */

typedef struct {
    ap_row_t row;
    uint64_t order;
} sorted_t;

/* By class, then falling score, then order of gathering. */
static int by_class_and_score(const void *a, const void *b)
{
    const sorted_t *x = a, *y = b;
    if (x->row.cls != y->row.cls)
        return x->row.cls < y->row.cls ? -1 : 1;
    if (x->row.score != y->row.score)
        return x->row.score > y->row.score ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

typedef struct {
    sorted_t *rows;
    double *recall, *precision; /* of the longest class */
    double *f1;                 /* [CURVE_POINTS] sum over classes */
    double *p, *r;              /* [CURVE_POINTS] sums over classes */
    ap_class_t *classes;        /* NULL, or [nc] to fill */
    double *own;                /* then: [nc][2][CURVE_POINTS] each class's P and R */
} scratch_t;

/* Precision and recall at IoU 0.5 over the confidences k / 999: the value at the last row whose
 * score is
 * >= the confidence, straight between rows, 1 and 0 above the best score, the last row's below the
 * worst. */
static void add_curves(const scratch_t *s, int32_t c, const sorted_t *rows, uint64_t n)
{
    double *own = s->own ? s->own + 2 * (size_t)CURVE_POINTS * (size_t)c : NULL;
    uint64_t j = 0; /* rows with score >= confidence */
    for (int k = CURVE_POINTS - 1; k >= 0; k--) {
        double conf = k == CURVE_POINTS - 1 ? 1.0 : k * (1.0 / (CURVE_POINTS - 1)), p = 1, r = 0;
        while (j < n && (double)rows[j].row.score >= conf)
            j++;
        if (j > 0) {
            p = s->precision[j - 1];
            r = s->recall[j - 1];
        }
        if (j > 0 && j < n && (double)rows[j - 1].row.score > conf) {
            double s0 = (double)rows[j - 1].row.score, s1 = (double)rows[j].row.score;
            double x = (s0 - conf) / (s0 - s1);
            p += (s->precision[j] - p) * x;
            r += (s->recall[j] - r) * x;
        }
        s->p[k] += p;
        s->r[k] += r;
        if (own) {
            own[k] = p;
            own[CURVE_POINTS + k] = r;
        }
        s->f1[k] += 2 * p * r / (p + r + 1e-16);
    }
}

/* Adds one class: its ten APs and its curves. */
static void add_class(const scratch_t *s, int32_t c, const sorted_t *rows, uint64_t n,
                      uint64_t n_gt, double *ap50, double *ap)
{
    for (int t = AP_THRESHOLDS - 1; t >= 0; t--) { /* 0.5 last: add_curves needs its raw curve */
        uint64_t hits = 0;
        for (uint64_t i = 0; i < n; i++) {
            hits += rows[i].row.correct >> t & 1;
            s->recall[i] = (double)hits / (double)n_gt;
            s->precision[i] = (double)hits / (double)(i + 1);
        }
        if (t == 0)
            add_curves(s, c, rows, n);
        double one = integrate(s->recall, s->precision, n);
        *ap += one / AP_THRESHOLDS;
        if (t == 0)
            *ap50 += one;
        if (s->classes) {
            s->classes[c].map += one / AP_THRESHOLDS;
            s->classes[c].map50 = one;
        }
    }
}

/* Where the filtered F1 is largest: a box filter over SMOOTH points, ends repeated. */
static int best_confidence(const double *f1)
{
    int best = 0;
    double top = -1;
    for (int k = 0; k < CURVE_POINTS; k++) {
        double sum = 0;
        for (int i = k - SMOOTH / 2; i <= k + SMOOTH / 2; i++)
            sum += f1[i < 0 ? 0 : i >= CURVE_POINTS ? CURVE_POINTS - 1 : i];
        if (sum > top) {
            top = sum;
            best = k;
        }
    }
    return best;
}

static int scratch_new(scratch_t *s, uint64_t n, int32_t nc)
{
    s->rows = malloc((n + 1) * sizeof *s->rows);
    s->recall = malloc(2 * (n + 1) * sizeof *s->recall);
    s->f1 = calloc(3 * CURVE_POINTS, sizeof *s->f1);
    if (s->rows == NULL || s->recall == NULL || s->f1 == NULL)
        return err_set(ERR_ENV, "validation: no memory for %llu detections", (unsigned long long)n);
    if (s->classes)
        s->own = calloc((size_t)nc * 2 * CURVE_POINTS, sizeof *s->own);
    if (s->classes && s->own == NULL)
        return err_set(ERR_ENV, "validation: no memory for the curves of %d classes", nc);
    s->precision = s->recall + n;
    s->p = s->f1 + CURVE_POINTS;
    s->r = s->p + CURVE_POINTS;
    return 0;
}

static void scratch_free(scratch_t *s)
{
    free(s->own);
    free(s->f1);
    free(s->recall);
    free(s->rows);
}

static void fill_result(const scratch_t *s, int32_t nc, int32_t classes, double ap50, double ap,
                        ap_result_t *out)
{
    if (classes == 0)
        return;
    int k = best_confidence(s->f1);
    out->precision = s->p[k] / classes;
    out->recall = s->r[k] / classes;
    out->map50 = ap50 / classes;
    out->map = ap / classes;
    out->fitness = rint(out->map * 1e5) / 1e5;
    for (int32_t c = 0; s->classes && c < nc; c++) {
        const double *own = s->own + 2 * (size_t)CURVE_POINTS * (size_t)c;
        s->classes[c].precision = own[k];
        s->classes[c].recall = own[CURVE_POINTS + k];
    }
}

int ap_compute(const ap_row_t *rows, uint64_t n_rows, const uint64_t *gt_per_class, int32_t nc,
               ap_result_t *result)
{
    return ap_compute_classes(rows, n_rows, gt_per_class, nc, result, NULL);
}

int ap_compute_classes(const ap_row_t *rows, uint64_t n_rows, const uint64_t *gt_per_class,
                       int32_t nc, ap_result_t *result, ap_class_t *per_class)
{
    scratch_t s = {.classes = per_class};
    int rc;
    memset(result, 0, sizeof *result);
    if (per_class)
        memset(per_class, 0, (size_t)nc * sizeof *per_class);
    CHECK_GOTO(scratch_new(&s, n_rows, nc), rc, fail);
    for (uint64_t i = 0; i < n_rows; i++)
        s.rows[i] = (sorted_t){.row = rows[i], .order = i};
    qsort(s.rows, n_rows, sizeof *s.rows, by_class_and_score);

    double ap50 = 0, ap = 0;
    int32_t classes = 0;
    uint64_t first = 0;
    for (int32_t c = 0; c < nc; c++) {
        while (first < n_rows && s.rows[first].row.cls < c)
            first++;
        uint64_t last = first;
        while (last < n_rows && s.rows[last].row.cls == c)
            last++;
        if (gt_per_class[c] > 0) {
            classes++;
            result->labels += gt_per_class[c];
            if (last > first) /* else AP, P and R of the class are 0 */
                add_class(&s, c, s.rows + first, last - first, gt_per_class[c], &ap50, &ap);
        }
        first = last;
    }
    fill_result(&s, nc, classes, ap50, ap, result);
    rc = 0;
fail:
    scratch_free(&s);
    return rc;
}
