/* Overlaps of boxes x1 y1 x2 y2 (facts/yolo.md 3.4, 6.3). Pure.
 *
 * The order of the float operations is the spec's, so that sums and ties fall as in the reference.
 */
#ifndef SLUICE_KERNELS_CPU_BOXES_H
#define SLUICE_KERNELS_CPU_BOXES_H

typedef struct {
    float x1, y1, x2, y2;
} box_t;

/* Intersection over union with the spec's 1e-7 in heights and union. >= boxes_ciou. */
float boxes_iou(box_t a, box_t b);
/* IoU - (rho^2 / c^2 + alpha v), alpha a constant for the gradient. */
float boxes_ciou(box_t a, box_t b);
/* The same, and d CIoU / d a in grad. */
float boxes_ciou_grad(box_t a, box_t b, box_t *grad);
/* Plain intersection over union, nothing added: NMS. */
float boxes_overlap(box_t a, box_t b);

#endif
