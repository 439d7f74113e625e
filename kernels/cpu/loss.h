/* The loss in its parts, for loss.c and its test, which differentiates with the targets held fixed.
 */
#ifndef SLUICE_KERNELS_CPU_LOSS_H
#define SLUICE_KERNELS_CPU_LOSS_H

#include "kernels/cpu/assign.h"

/* Sum of the target scores in a. */
double loss_scores(const assign_t *a);
/* Weighted items and what they were divided by, S = max(scores, 1), from a's boxes, owners and
 * weights; writes dbox and dcls unless their places are K_NONE. partial: 3 doubles for each of n *
 * rows. */
typedef struct {
    double box, cls, dfl, scores;
} loss_items_t;
void loss_terms(cpu_dev_t *dev, const k_detect_loss_t *p, const assign_t *a, double scores,
                double *partial, loss_items_t *items);

#endif
