/* Matching of detections with ground truth and average precision (facts/yolo.md 6.4 to 6.6). Pure.
 *
 * Each rank matches its own images (ap_match) and keeps rows; rows of all ranks are gathered on
 * rank 0 and given to ap_compute in any rank order (rows are sorted there; ties by gather order).
 */
#ifndef SLUICE_TRAINER_AP_H
#define SLUICE_TRAINER_AP_H

#include "kernels/kernels.h"

#include <stdint.h>

enum { AP_THRESHOLDS = 10 };

typedef struct {
    float score;
    uint16_t cls;
    uint16_t correct; /* bit t: true positive at IoU 0.5 + 0.05 t */
} ap_row_t;

typedef struct {
    double precision, recall, map50, map; /* means over the classes that have labels */
    double fitness;                       /* = map (facts/yolo.md 6.6), rounded to 5 decimals */
    uint64_t labels, images;              /* images: left 0, the caller's to fill */
} ap_result_t;

/* One class. precision and recall are at the confidence where the mean F1 of all classes is best; all 0
 * for a class without labels or detections. */
typedef struct {
    double precision, recall, map50, map;
} ap_class_t;

/* Rows for one image's detections (best first) against its boxes. rows has n_dets places. */
int ap_match(const k_det_t *dets, int32_t n_dets, const k_gt_t *gts, int32_t n_gts, ap_row_t *rows);
/* gt_per_class: counts over the whole validation set, nc entries. */
int ap_compute(const ap_row_t *rows, uint64_t n_rows, const uint64_t *gt_per_class, int32_t nc,
               ap_result_t *result);
/* The same, and each class's own numbers (nc of them). */
int ap_compute_classes(const ap_row_t *rows, uint64_t n_rows, const uint64_t *gt_per_class,
                       int32_t nc, ap_result_t *result, ap_class_t *classes);
/* One class's AP curve: tp flags in order of falling score. The golden numbers of facts/yolo.md 9
 * use it. */
double ap_single(const uint8_t *tp, uint64_t n, uint64_t n_gt);

#endif
