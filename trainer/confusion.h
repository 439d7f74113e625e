/* The confusion matrix of a validation (facts/yolo.md 6.5: confidence 0.25, IoU 0.45). Pure.
 *
 * Counts of (predicted class, actual class); the number behind the last class stands for background. A
 * detection and a box are a pair when they overlap by more than the threshold, whatever their classes;
 * of the pairs the one with the largest overlap comes first, and each detection and each box is in one
 * pair at most. A box in no pair was taken for background, a detection in none was made of it.
 */
#ifndef SLUICE_TRAINER_CONFUSION_H
#define SLUICE_TRAINER_CONFUSION_H

#include "control/wire.h"
#include "kernels/kernels.h"

typedef struct {
    int32_t classes;
    double conf, iou;
    uint32_t *counts; /* [classes + 1][classes + 1], owned; predicted is the row */
} confusion_t;

enum { CONFUSION_CLASSES = 4096 }; /* a matrix of more classes is not made */

/* ERR_ENV without memory; ERR_FAILED for more than CONFUSION_CLASSES. */
int confusion_init(confusion_t *m, int32_t classes, double conf, double iou);
void confusion_fini(confusion_t *m);
/* One image's detections and boxes, in the same pixels. */
int confusion_add(confusion_t *m, const k_det_t *dets, int32_t n_dets, const k_gt_t *gts,
                  int32_t n_gts);
/* The counts that are not 0, in order of (predicted, actual); *rows is the caller's to free. */
int confusion_rows(const confusion_t *m, wire_confused_t **rows, uint32_t *n);

#endif
