/* The head's decoding as nodes (facts/yolo.md 1.2 and 1.3): the distribution over distances to a
 * distance, distances from the anchors to boxes, grid units to pixels. In float whatever the body is:
 * half has a step of one pixel between 1024 and 2048. */
#include "trainer/onnx_internal.h"

#include <stdlib.h>

int32_t onnx_anchor_count(const onnx_t *x)
{
    int32_t n = 0;
    for (int l = 0; l < K_LEVELS; l++) {
        const int32_t shrink = x->g->values[x->g->box[l]].shrink;
        n += (x->c->h / shrink) * (x->c->w / shrink);
    }
    return n;
}

/* The levels' maps of c channels as one [N, c, A], in float. */
static int32_t join_levels(onnx_t *x, const int32_t *values, int64_t c)
{
    int32_t maps[K_LEVELS];
    for (int l = 0; l < K_LEVELS; l++)
        maps[l] = onnx_reshape(x->m, x->of[values[l]], (int64_t[]){0, c, -1}, 3);
    const int32_t all = onnx_concat(x->m, maps, K_LEVELS, 2);
    return x->c->half ? onnx_cast(x->m, all, ONNX_FLOAT) : all;
}

/* ---- anchors: [1, 2, A] in grid units, strides [1, 1, A] ---- */

static int anchors_of_size(onnx_t *x, int32_t *anchors, int32_t *strides)
{
    const int64_t n = onnx_anchor_count(x);
    float *points = malloc((size_t)n * 2 * sizeof *points);
    float *steps = malloc((size_t)n * sizeof *steps);
    int64_t at = 0;
    for (int l = 0; points && steps && l < K_LEVELS; l++) {
        const int32_t shrink = x->g->values[x->g->box[l]].shrink;
        for (int32_t i = 0; i < x->c->h / shrink; i++) {
            for (int32_t j = 0; j < x->c->w / shrink; j++, at++) {
                points[at] = (float)j + 0.5f;
                points[n + at] = (float)i + 0.5f;
                steps[at] = (float)shrink;
            }
        }
    }
    *anchors = onnx_take(x->m, "anchors", ONNX_FLOAT, (int64_t[]){1, 2, n}, 3, points);
    *strides = onnx_take(x->m, "strides", ONNX_FLOAT, (int64_t[]){1, 1, n}, 3, steps);
    return *anchors < 0 || *strides < 0 ? -1 : 0;
}

/* 0.5, 1.5, ... along one side of a map, of the shape given. */
static int32_t along(onnx_t *x, int32_t map, int64_t axis, const int64_t *shape)
{
    onnx_model_t *m = x->m;
    const float half = 0.5f;
    const onnx_node_t side = {
        .op = "Shape",
        .in = {map},
        .n_in = 1,
        .attr = {{"start", ONNX_A_INT, .i = axis}, {"end", ONNX_A_INT, .i = axis + 1}}};
    const int32_t length =
        onnx_binary(m, "Squeeze", onnx_add(m, &side), onnx_ints(m, (int64_t[]){0}, 1));
    const onnx_node_t range = {
        .op = "Range",
        .in = {onnx_ints(m, (int64_t[]){0}, -1), length, onnx_ints(m, (int64_t[]){1}, -1)},
        .n_in = 3};
    const int32_t whole = onnx_cast(m, onnx_add(m, &range), ONNX_FLOAT);
    return onnx_reshape(m, onnx_binary(m, "Add", whole, onnx_floats(m, &half, -1, ONNX_FLOAT)),
                        shape, 4);
}

/* The same from the sizes that the maps turn out to have. */
static int anchors_of_maps(onnx_t *x, int32_t *anchors, int32_t *strides)
{
    onnx_model_t *m = x->m;
    int32_t points[K_LEVELS], steps[K_LEVELS];
    for (int l = 0; l < K_LEVELS; l++) {
        const int32_t map = x->of[x->g->box[l]];
        const float stride = (float)x->g->values[x->g->box[l]].shrink;
        const onnx_node_t sides = {
            .op = "Shape", .in = {map}, .n_in = 1, .attr = {{"start", ONNX_A_INT, .i = 2}}};
        const int32_t one_one = onnx_ints(m, (int64_t[]){1, 1}, 2);
        const int32_t shape = onnx_concat(m, (int32_t[]){one_one, onnx_add(m, &sides)}, 2, 0);
        const int32_t grid[] = {
            onnx_binary(m, "Expand", along(x, map, 3, (int64_t[]){1, 1, 1, -1}), shape),
            onnx_binary(m, "Expand", along(x, map, 2, (int64_t[]){1, 1, -1, 1}), shape)};
        points[l] = onnx_reshape(m, onnx_concat(m, grid, 2, 1), (int64_t[]){1, 2, -1}, 3);
        steps[l] = onnx_reshape(
            m, onnx_binary(m, "Expand", onnx_floats(m, &stride, -1, ONNX_FLOAT), shape),
            (int64_t[]){1, 1, -1}, 3);
    }
    *anchors = onnx_concat(m, points, K_LEVELS, 2);
    *strides = onnx_concat(m, steps, K_LEVELS, 2);
    return *anchors < 0 || *strides < 0 ? -1 : 0;
}

/* ---- boxes ---- */

/* Expected distances [N, 4, A], sides l, t, r, b, in grid units. */
static int32_t distances(onnx_t *x)
{
    onnx_model_t *m = x->m;
    float *bins = malloc(K_REG_MAX * sizeof *bins);
    for (int k = 0; bins && k < K_REG_MAX; k++)
        bins[k] = (float)k;
    const int32_t logits = onnx_reshape(m, join_levels(x, x->g->box, 4 * K_REG_MAX),
                                        (int64_t[]){0, 4, K_REG_MAX, -1}, 4);
    const onnx_node_t softmax = {
        .op = "Softmax", .in = {logits}, .n_in = 1, .attr = {{"axis", ONNX_A_INT, .i = 2}}};
    const int32_t weights =
        onnx_take(m, "bins", ONNX_FLOAT, (int64_t[]){1, 1, K_REG_MAX, 1}, 4, bins);
    const onnx_node_t sum = {.op = "ReduceSum",
                             .in = {onnx_binary(m, "Mul", onnx_add(m, &softmax), weights),
                                    onnx_ints(m, (int64_t[]){2}, 1)},
                             .n_in = 2,
                             .attr = {{"keepdims", ONNX_A_INT, .i = 0}}};
    return onnx_add(m, &sum);
}

int onnx_decode(onnx_t *x, int corners, int32_t *boxes, int32_t *scores)
{
    onnx_model_t *m = x->m;
    int32_t anchors, strides, sides[2], pair[2];
    const float half = 0.5f;
    const onnx_node_t split = {.op = "Split",
                               .in = {distances(x), onnx_ints(m, (int64_t[]){2, 2}, 2)},
                               .n_in = 2,
                               .attr = {{"axis", ONNX_A_INT, .i = 1}}};
    *scores = *boxes = -1;
    if (onnx_add_many(m, &split, sides, 2) < 0 ||
        (x->c->dynamic ? anchors_of_maps : anchors_of_size)(x, &anchors, &strides) < 0)
        return -1;
    const int32_t low = onnx_binary(m, "Sub", anchors, sides[0]);
    const int32_t high = onnx_binary(m, "Add", anchors, sides[1]);
    pair[0] = low;
    pair[1] = high;
    if (!corners) {
        pair[0] = onnx_binary(m, "Mul", onnx_binary(m, "Add", low, high),
                              onnx_floats(m, &half, -1, ONNX_FLOAT));
        pair[1] = onnx_binary(m, "Sub", high, low);
    }
    *boxes = onnx_binary(m, "Mul", onnx_concat(m, pair, 2, 1), strides);
    *scores = onnx_unary(m, "Sigmoid", join_levels(x, x->g->cls, x->g->nc));
    return *boxes < 0 || *scores < 0 ? -1 : 0;
}
