/* What the parts of the export share. Private to trainer/onnx*.c. */
#ifndef SLUICE_TRAINER_ONNX_INTERNAL_H
#define SLUICE_TRAINER_ONNX_INTERNAL_H

#include "trainer/graph_internal.h"
#include "trainer/onnx.h"

typedef struct {
    const graph_t *g;
    const float *weights, *buffers;
    const onnx_config_t *c;
    onnx_model_t *m;
    int32_t *of; /* tensor of each value of the graph, -1: none yet */
    uint64_t parameters;
} onnx_t;

/* Type of the convolutions' tensors. */
onnx_type_t onnx_body_type(const onnx_t *x);

/* onnx_fold.c: a unit's weight [c2, c1 / groups, k, k] and bias [c2], normalisation folded in, in the
 * body's type. 0, or -1 with the model failed. */
int onnx_fold(onnx_t *x, const graph_unit_t *u, int32_t *weight, int32_t *bias);

/* onnx_detect.c: boxes [N, 4, A] in pixels, as cx, cy, w, h or with corners as x1, y1, x2, y2; scores
 * [N, classes, A]. Both float. 0 or -1. */
int onnx_decode(onnx_t *x, int corners, int32_t *boxes, int32_t *scores);
int32_t onnx_anchor_count(const onnx_t *x);
/* onnx_nms.c: from corners and scores to [N, max_det, 6], named output0. */
int32_t onnx_suppress(onnx_t *x, int32_t boxes, int32_t scores);
/* onnx_metadata.c */
int onnx_describe(onnx_t *x);

#endif
