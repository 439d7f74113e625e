/* The task-aligned assigner (facts/yolo.md 3.3): which ground-truth box each anchor learns, and how
 * strongly.
 *
 * Topk 10, alpha 0.5, beta 6. Deterministic: of anchors with equal metric the first is taken, of
 * boxes with equal overlap the first. Anchors whose metric is exactly 0 are never chosen. The
 * spec's top-k fills up with some of them, which ones is unspecified; their weight is 0, so they
 * matter only where one makes an anchor contested that a single box had chosen. All memory is the
 * caller's work block; nothing is allocated.
 */
#ifndef SLUICE_KERNELS_CPU_ASSIGN_H
#define SLUICE_KERNELS_CPU_ASSIGN_H

#include "kernels/cpu/anchors.h"

enum { ASSIGN_TOPK = 10 };

/* An anchor chosen by a box. */
typedef struct {
    int32_t anchor;
    float align, overlap;
} assign_pick_t;

typedef struct {
    anchors_t head;
    int32_t max_gt;
    const k_gt_t *gt;        /* [n][max_gt] */
    const int32_t *gt_count; /* [n] */
    /* results */
    box_t *boxes;   /* [n][anchors] predictions, grid units */
    int32_t *owner; /* [n][anchors] index of the box among the image's, or -1 */
    float *weight;  /* [n][anchors] target score of the owner's class; 0 where owner is -1 */
    /* on the way */
    assign_pick_t *pick;    /* [n][max_gt][ASSIGN_TOPK] */
    int32_t *pick_count;    /* [n][max_gt] */
    float *align, *overlap; /* [n][anchors] with the owner */
    float *top;             /* [n][max_gt][2]: the box's largest align and overlap */
    int32_t *clash;         /* [n][anchors]: anchors wanted by several boxes */
    int64_t *first;         /* [n + 1]: boxes of the images before */
} assign_t;

/* Bytes of work for the loss's shapes, assign_open's part. */
uint64_t assign_bytes(const k_detect_loss_t *p);
/* Checks the labels and lays the arrays into work. Negative with the device's sentence. */
int assign_open(cpu_dev_t *dev, const k_detect_loss_t *p, void *work, assign_t *a);
/* Decodes every anchor's box. */
void assign_decode(cpu_dev_t *dev, assign_t *a);
/* Chooses: fills owner and weight. */
void assign_choose(cpu_dev_t *dev, assign_t *a);

#endif
