/* A model as an ONNX file, for the tools that run detectors (`sluice export`).
 *
 * Batch normalisation is folded into the convolutions, and the head's decoding is in the graph
 * (facts/yolo.md 1.3). Input `images`: RGB / 255, [N, 3, H, W]. Output `output0`, float:
 * [N, 4 + classes, anchors], rows cx, cy, w, h in pixels of the input and the classes' scores, anchors
 * by level and within a level by row; with suppression [N, max_det, 6], rows x1, y1, x2, y2, score,
 * class, best first, zeros behind the last. Metadata as the usual tools look for them. Trainer's room
 * because it knows the graph; pure; any thread.
 */
#ifndef SLUICE_TRAINER_ONNX_H
#define SLUICE_TRAINER_ONNX_H

#include "trainer/graph.h"
#include "trainer/onnx_model.h"

typedef struct {
    int32_t batch, h, w; /* h, w: multiples of 32 */
    int dynamic;         /* batch, height and width left open; the three above are examples then */
    int half;  /* weights, input and the convolutions in half precision; decoding is not */
    int opset; /* ONNX_OPSET_MIN to ONNX_OPSET_MAX */
    int nms;   /* suppression in the graph: one class an anchor, per class (facts 6.3) */
    float conf, iou;
    int32_t max_det;
    const char *const *names; /* of the classes, or NULL: class0, class1, ... */
    const char *origin;       /* what was exported, for the description */
    const char *version;      /* of the program */
} onnx_config_t;

typedef struct {
    const struct iovec *parts; /* the file in order; belongs to the model */
    size_t n_parts;
    uint64_t bytes;
    int32_t nodes, anchors;
    uint64_t parameters; /* weights and biases after folding */
} onnx_file_t;

/* Weights and buffers: host arrays in the device's layout, as weights_init fills them; not needed
 * afterwards. ERR_CONFIG names a weight that is no number, or beyond what half precision holds. Free
 * *model when the file's parts have been written. */
int onnx_export(const graph_t *g, const float *weights, const float *buffers,
                const onnx_config_t *config, onnx_model_t **model, onnx_file_t *file);

#endif
