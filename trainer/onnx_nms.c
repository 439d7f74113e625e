/* Suppression as nodes: what is left of the anchors, as the usual tools have it in such a file.
 *
 * An anchor has one class, its best (as in prediction; validation gives it every class above the
 * threshold, facts/yolo.md 6.3). Suppression goes class by class, which NonMaxSuppression does by
 * itself from scores that are zero in all other classes: so no box is moved, and overlaps are exact. It
 * hands back pairs of image and anchor, as many as there happen to be. Their scores go into an
 * otherwise empty [N, A], of which the best max_det an image are taken: thus every image has its own
 * rows, best first, and rows of score 0 behind them, which are zeroed. */
#include "trainer/onnx_internal.h"

#include <stdlib.h>

static int32_t top(onnx_t *x, int32_t from, int64_t k, int32_t *which)
{
    int32_t out[2];
    const onnx_node_t node = {.op = "TopK",
                              .in = {from, onnx_ints(x->m, &k, 1)},
                              .n_in = 2,
                              .attr = {{"axis", ONNX_A_INT, .i = 1}}};
    onnx_add_many(x->m, &node, out, 2);
    *which = out[1];
    return out[0];
}

static int32_t gather(onnx_t *x, int32_t from, int32_t which)
{
    return onnx_add(x->m, &(onnx_node_t){.op = "GatherElements",
                                         .in = {from, which},
                                         .n_in = 2,
                                         .attr = {{"axis", ONNX_A_INT, .i = 1}}});
}

/* Scores in the anchors' best classes, 0 in all others: [N, classes, A]. */
static int32_t best_alone(onnx_t *x, int32_t scores, int32_t which)
{
    const int64_t nc = x->g->nc;
    const float zero = 0;
    int64_t *numbers = malloc((size_t)nc * sizeof *numbers);
    for (int64_t i = 0; numbers && i < nc; i++)
        numbers[i] = i;
    const int32_t classes =
        onnx_take(x->m, "classes", ONNX_INT64, (int64_t[]){1, nc, 1}, 3, numbers);
    const onnx_node_t choice = {.op = "Where",
                                .in = {onnx_binary(x->m, "Equal", which, classes), scores,
                                       onnx_floats(x->m, &zero, -1, ONNX_FLOAT)},
                                .n_in = 3};
    return onnx_add(x->m, &choice);
}

/* Scores of the anchors that are left, 0 for the rest: [N, A]. */
static int32_t survivors(onnx_t *x, int32_t boxes, int32_t alone, int32_t best)
{
    onnx_model_t *m = x->m;
    const onnx_node_t nms = {.op = "NonMaxSuppression",
                             .in = {boxes, alone, onnx_ints(m, (int64_t[]){x->c->max_det}, 1),
                                    onnx_floats(m, &x->c->iou, 1, ONNX_FLOAT),
                                    onnx_floats(m, &x->c->conf, 1, ONNX_FLOAT)},
                             .n_in = 5};
    /* Rows of image, class, anchor; of which image and anchor are a place in [N, A]. */
    const onnx_node_t place = {.op = "Gather",
                               .in = {onnx_add(m, &nms), onnx_ints(m, (int64_t[]){0, 2}, 2)},
                               .n_in = 2,
                               .attr = {{"axis", ONNX_A_INT, .i = 1}}};
    const int32_t places = onnx_add(m, &place);
    const onnx_node_t scatter = {
        .op = "ScatterND",
        .in = {onnx_unary(m, "ConstantOfShape", onnx_unary(m, "Shape", best)), places,
               onnx_binary(m, "GatherND", best, places)},
        .n_in = 3};
    return onnx_add(m, &scatter);
}

/* Rows of zeros behind the anchors where there may be fewer of them than rows are wanted. */
static int32_t pad(onnx_t *x, int32_t tensor, int n_dims)
{
    int64_t pads[6] = {0};
    if (!x->c->dynamic && onnx_anchor_count(x) >= x->c->max_det)
        return tensor;
    pads[n_dims + 1] = x->c->max_det;
    return onnx_binary(x->m, "Pad", tensor, onnx_ints(x->m, pads, 2 * n_dims));
}

int32_t onnx_suppress(onnx_t *x, int32_t boxes, int32_t scores)
{
    onnx_model_t *m = x->m;
    const float zero = 0;
    const int32_t one = onnx_ints(m, (int64_t[]){1}, 1), two = onnx_ints(m, (int64_t[]){2}, 1);
    int32_t which, kept, rows[3];
    const onnx_node_t turn = {.op = "Transpose",
                              .in = {boxes},
                              .n_in = 1,
                              .attr = {{"perm", ONNX_A_INTS, .ints = {0, 2, 1}, .n = 3}}};
    const int32_t corners = onnx_add(m, &turn);
    const int32_t best = top(x, scores, 1, &which);
    const int32_t left =
        survivors(x, corners, best_alone(x, scores, which), onnx_binary(m, "Squeeze", best, one));
    const int32_t values = top(x, pad(x, left, 2), x->c->max_det, &kept);
    const int32_t of_box = onnx_binary(m, "Expand", onnx_binary(m, "Unsqueeze", kept, two),
                                       onnx_ints(m, (int64_t[]){1, 1, 4}, 3));
    const int32_t classes = pad(x, onnx_binary(m, "Squeeze", which, one), 2);
    rows[0] = gather(x, pad(x, corners, 3), of_box);
    rows[1] = onnx_binary(m, "Unsqueeze", values, two);
    rows[2] = onnx_binary(m, "Unsqueeze", onnx_cast(m, gather(x, classes, kept), ONNX_FLOAT), two);
    const int32_t none = onnx_floats(m, &zero, -1, ONNX_FLOAT);
    return onnx_add(m, &(onnx_node_t){.op = "Where",
                                      .in = {onnx_binary(m, "Greater", rows[1], none),
                                             onnx_concat(m, rows, 3, 2), none},
                                      .n_in = 3,
                                      .output = "output0"});
}
