#include "trainer/confusion.h"

#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    float iou;
    int32_t det, gt;
} pair_t;

int confusion_init(confusion_t *m, int32_t classes, double conf, double iou)
{
    size_t side = (size_t)classes + 1;
    *m = (confusion_t){.classes = classes, .conf = conf, .iou = iou};
    if (classes > CONFUSION_CLASSES)
        return err_set(ERR_FAILED, "a confusion matrix of %d classes is not made, %d are the most",
                       classes, CONFUSION_CLASSES);
    m->counts = calloc(side * side, sizeof *m->counts);
    return m->counts ? 0
                     : err_set(ERR_ENV, "no memory for a confusion matrix of %d classes", classes);
}

void confusion_fini(confusion_t *m)
{
    free(m->counts);
    m->counts = NULL;
}

static float overlap(const k_det_t *d, const k_gt_t *g)
{
    float w = fminf(d->x2, g->x2) - fmaxf(d->x1, g->x1);
    float h = fminf(d->y2, g->y2) - fmaxf(d->y1, g->y1);
    if (!(w > 0) || !(h > 0))
        return 0;
    float all = (d->x2 - d->x1) * (d->y2 - d->y1) + (g->x2 - g->x1) * (g->y2 - g->y1);
    return w * h / (all - w * h + 1e-7f);
}

/* Largest overlap first; ties by the better detection, then by the box's number. */
static int by_overlap(const void *a, const void *b)
{
    const pair_t *x = a, *y = b;
    if (x->iou != y->iou)
        return x->iou > y->iou ? -1 : 1;
    if (x->det != y->det)
        return x->det < y->det ? -1 : 1;
    return (x->gt > y->gt) - (x->gt < y->gt);
}

static void count(confusion_t *m, int32_t predicted, int32_t actual)
{
    m->counts[(size_t)predicted * ((size_t)m->classes + 1) + (size_t)actual]++;
}

int confusion_add(confusion_t *m, const k_det_t *dets, int32_t n_dets, const k_gt_t *gts,
                  int32_t n_gts)
{
    int32_t n_pairs = 0, sure = 0;
    while (sure < n_dets && (double)dets[sure].score > m->conf) /* best first */
        sure++;
    size_t most = (size_t)sure * (size_t)n_gts;
    pair_t *pairs = malloc((most + 1) * sizeof *pairs);
    uint8_t *det_taken = calloc((size_t)sure + (size_t)n_gts + 1, 1), *gt_taken = det_taken + sure;
    if (!pairs || !det_taken) {
        free(pairs);
        free(det_taken);
        return err_set(ERR_ENV, "validation: no memory to compare %d boxes", n_gts);
    }
    for (int32_t d = 0; d < sure; d++)
        for (int32_t g = 0; g < n_gts; g++) {
            float iou = overlap(&dets[d], &gts[g]);
            if ((double)iou > m->iou)
                pairs[n_pairs++] = (pair_t){iou, d, g};
        }
    qsort(pairs, (size_t)n_pairs, sizeof *pairs, by_overlap);
    for (int32_t i = 0; i < n_pairs; i++) {
        const pair_t *p = &pairs[i];
        /* A detection's best box is its only one: a later pair of it is none. */
        if (det_taken[p->det])
            continue;
        det_taken[p->det] = 1;
        if (gt_taken[p->gt]) {
            det_taken[p->det] = 2; /* lost its box to a better one */
            continue;
        }
        gt_taken[p->gt] = 1;
        count(m, (int32_t)dets[p->det].cls, (int32_t)gts[p->gt].cls);
    }
    for (int32_t g = 0; g < n_gts; g++)
        if (!gt_taken[g])
            count(m, m->classes, (int32_t)gts[g].cls);
    for (int32_t d = 0; d < sure; d++)
        if (det_taken[d] != 1)
            count(m, (int32_t)dets[d].cls, m->classes);
    free(pairs);
    free(det_taken);
    return 0;
}

int confusion_rows(const confusion_t *m, wire_confused_t **rows, uint32_t *n)
{
    uint32_t side = (uint32_t)m->classes + 1, some = 0;
    size_t cells = m->counts ? (size_t)side * side : 0;
    for (size_t i = 0; i < cells; i++)
        some += m->counts[i] > 0;
    *n = 0;
    *rows = malloc(((size_t)some + 1) * sizeof **rows);
    if (!*rows)
        return err_set(ERR_ENV, "validation: no memory for the confusion matrix");
    for (size_t i = 0; i < cells; i++)
        if (m->counts[i] > 0)
            (*rows)[(*n)++] =
                (wire_confused_t){(uint32_t)(i / side), (uint32_t)(i % side), m->counts[i]};
    return 0;
}
