/* From the graph's operations to nodes.
 *
 * Values that operations write are tensors. Concat and split, which are views in the graph, become
 * nodes where somebody reads them: a value whose channels are all covered by parts is a Concat of
 * them, any other value with a parent is a Slice of it. Copies, which only exist so that a part lies
 * where its concat is, are the tensor that they copy.
 */
#include "trainer/onnx_internal.h"

#include "shm/err.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

onnx_type_t onnx_body_type(const onnx_t *x)
{
    return x->c->half ? ONNX_FLOAT16 : ONNX_FLOAT;
}

/* ---- values ---- */

static int by_offset(const void *a, const void *b)
{
    const graph_value_t *const *p = a, *const *q = b;
    return (*p)->offset - (*q)->offset;
}

/* The tensor of what was written to v, or to all parts of it; -1 where nobody has. */
static int32_t written(onnx_t *x, int32_t v)
{
    const graph_value_t *values = x->g->values, *parts[ONNX_IN];
    int32_t tensors[ONNX_IN], n = 0, c = 0;
    if (x->of[v] >= 0)
        return x->of[v];
    for (int32_t k = 0; k < x->g->n_values && n < ONNX_IN; k++) {
        if (values[k].parent != v || written(x, k) < 0)
            continue;
        parts[n++] = &values[k];
        c += values[k].c;
    }
    if (c != values[v].c)
        return -1;
    qsort(parts, (size_t)n, sizeof *parts, by_offset);
    for (int32_t k = 0; k < n; k++)
        tensors[k] = x->of[parts[k] - values];
    return x->of[v] = onnx_concat(x->m, tensors, n, 1);
}

/* The tensor that an operation reads. */
static int32_t tensor_of(onnx_t *x, int32_t v)
{
    const graph_value_t *value = &x->g->values[v];
    if (written(x, v) >= 0)
        return x->of[v];
    if (value->parent < 0)
        return onnx_fail(x->m, "%s: value %d is read before it is written", x->g->name, v);
    const onnx_node_t slice = {.op = "Slice",
                               .in = {tensor_of(x, value->parent),
                                      onnx_ints(x->m, (int64_t[]){value->offset}, 1),
                                      onnx_ints(x->m, (int64_t[]){value->offset + value->c}, 1),
                                      onnx_ints(x->m, (int64_t[]){1}, 1)},
                               .n_in = 4};
    return x->of[v] = onnx_add(x->m, &slice);
}

/* ---- operations ---- */

static int32_t add_conv(onnx_t *x, const graph_op_t *op, int32_t in)
{
    const graph_unit_t *u = &x->g->units[op->unit];
    const int64_t pad = u->k / 2; /* facts/yolo.md 1.2 */
    onnx_node_t node = {
        .op = "Conv",
        .n_in = 3,
        .attr = {{"dilations", ONNX_A_INTS, .ints = {1, 1}, .n = 2},
                 {"group", ONNX_A_INT, .i = u->depthwise ? u->c1 : 1},
                 {"kernel_shape", ONNX_A_INTS, .ints = {u->k, u->k}, .n = 2},
                 {"pads", ONNX_A_INTS, .ints = {pad, pad, pad, pad}, .n = 4},
                 {"strides", ONNX_A_INTS, .ints = {u->s, u->s}, .n = 2}},
    };
    node.in[0] = in;
    if (onnx_fold(x, u, &node.in[1], &node.in[2]) < 0)
        return -1;
    return onnx_add(x->m, &node);
}

/* What is left of a normalisation: the activation, and the residual behind it. */
static int32_t add_activation(onnx_t *x, const graph_op_t *op, int32_t in)
{
    int32_t y = in;
    if (op->act == K_ACT_SILU)
        y = onnx_binary(x->m, "Mul", in, onnx_unary(x->m, "Sigmoid", in));
    return op->extra < 0 ? y : onnx_binary(x->m, "Add", tensor_of(x, op->extra), y);
}

static int32_t add_maxpool(onnx_t *x, const graph_op_t *op, int32_t in)
{
    const int64_t k = op->k, pad = op->k / 2;
    return onnx_add(
        x->m, &(onnx_node_t){.op = "MaxPool",
                             .in = {in},
                             .n_in = 1,
                             .attr = {{"kernel_shape", ONNX_A_INTS, .ints = {k, k}, .n = 2},
                                      {"pads", ONNX_A_INTS, .ints = {pad, pad, pad, pad}, .n = 4},
                                      {"strides", ONNX_A_INTS, .ints = {1, 1}, .n = 2}}});
}

/* Nearest, twice as large both ways. */
static int32_t add_upsample(onnx_t *x, int32_t in)
{
    const int32_t scales = onnx_floats(x->m, (float[]){1, 1, 2, 2}, 4, ONNX_FLOAT);
    return onnx_add(x->m, &(onnx_node_t){.op = "Resize",
                                         .in = {in, ONNX_ABSENT, scales},
                                         .n_in = 3,
                                         .attr = {{"coordinate_transformation_mode", ONNX_A_STRING,
                                                   .s = "asymmetric"},
                                                  {"mode", ONNX_A_STRING, .s = "nearest"},
                                                  {"nearest_mode", ONNX_A_STRING, .s = "floor"}}});
}

static int32_t transpose(onnx_t *x, int32_t in)
{
    return onnx_add(x->m,
                    &(onnx_node_t){.op = "Transpose",
                                   .in = {in},
                                   .n_in = 1,
                                   .attr = {{"perm", ONNX_A_INTS, .ints = {0, 1, 3, 2}, .n = 4}}});
}

/* [N, heads, hd, positions] back to the map of c channels that positions came from. */
static int32_t to_map(onnx_t *x, int32_t in, int32_t c, int32_t shrink, int32_t like)
{
    if (!x->c->dynamic)
        return onnx_reshape(x->m, in, (int64_t[]){0, c, x->c->h / shrink, x->c->w / shrink}, 4);
    const onnx_node_t sides = {
        .op = "Shape", .in = {like}, .n_in = 1, .attr = {{"start", ONNX_A_INT, .i = 2}}};
    const int32_t parts[] = {onnx_ints(x->m, (int64_t[]){0, c}, 2), onnx_add(x->m, &sides)};
    return onnx_binary(x->m, "Reshape", in, onnx_concat(x->m, parts, 2, 0));
}

/* softmax((q * scale)^T k) over positions, v times its transpose (facts/yolo.md 1.2). */
static int32_t add_attention(onnx_t *x, const graph_op_t *op, int32_t in)
{
    onnx_model_t *m = x->m;
    const int64_t kd = op->kd, hd = op->hd;
    const int32_t c = op->heads * op->hd, shrink = x->g->values[op->y].shrink;
    int32_t qkv[3];
    const onnx_node_t split = {
        .op = "Split",
        .in = {onnx_reshape(m, in, (int64_t[]){0, op->heads, 2 * kd + hd, -1}, 4),
               onnx_ints(m, (int64_t[]){kd, kd, hd}, 3)},
        .n_in = 2,
        .attr = {{"axis", ONNX_A_INT, .i = 2}}};
    onnx_add_many(m, &split, qkv, 3);
    const float scale = (float)(1 / sqrt((double)kd));
    const int32_t q =
        onnx_binary(m, "Mul", transpose(x, qkv[0]), onnx_floats(m, &scale, -1, onnx_body_type(x)));
    const onnx_node_t softmax = {.op = "Softmax",
                                 .in = {onnx_binary(m, "MatMul", q, qkv[1])},
                                 .n_in = 1,
                                 .attr = {{"axis", ONNX_A_INT, .i = 3}}};
    const int32_t share = transpose(x, onnx_add(m, &softmax));
    x->of[op->extra] = to_map(x, qkv[2], c, shrink, in);
    return to_map(x, onnx_binary(m, "MatMul", qkv[2], share), c, shrink, in);
}

static int32_t add_op(onnx_t *x, const graph_op_t *op)
{
    const int32_t in = tensor_of(x, op->x);
    switch (op->kind) {
    case GRAPH_CONV:
    case GRAPH_DWCONV: return add_conv(x, op, in);
    case GRAPH_BN: return add_activation(x, op, in);
    case GRAPH_MAXPOOL: return add_maxpool(x, op, in);
    case GRAPH_UPSAMPLE: return add_upsample(x, in);
    case GRAPH_COPY: return in;
    case GRAPH_ATTENTION: return add_attention(x, op, in);
    case GRAPH_KINDS: break;
    }
    return -1;
}

/* "/model.2/m.0/cv1" for what belongs to a unit, "/model.12" for the rest. */
static void set_scope(onnx_t *x, const graph_op_t *op)
{
    if (op->unit < 0) {
        onnx_scope(x->m, "/model.%d", op->row);
        return;
    }
    const graph_unit_t *u = &x->g->units[op->unit];
    const char *name = x->g->params[u->weight].name;
    const size_t tail = strlen(u->gamma < 0 ? ".weight" : ".conv.weight");
    onnx_scope(x->m, "/%.*s", (int)(strlen(name) - tail), name);
}

static int add_body(onnx_t *x)
{
    const onnx_config_t *c = x->c;
    const onnx_dim_t dims[4] = {{c->batch, c->dynamic ? "batch" : NULL},
                                {x->g->values[x->g->input].c, NULL},
                                {c->h, c->dynamic ? "height" : NULL},
                                {c->w, c->dynamic ? "width" : NULL}};
    x->of[x->g->input] = onnx_input(x->m, "images", onnx_body_type(x), dims, 4);
    for (int32_t i = 0; i < x->g->n_ops; i++) {
        const graph_op_t *op = &x->g->ops[i];
        set_scope(x, op);
        x->of[op->y] = add_op(x, op);
        if (x->of[op->y] < 0)
            return -1;
    }
    return 0;
}

/* ---- output ---- */

static int add_head(onnx_t *x)
{
    const onnx_config_t *c = x->c;
    int32_t boxes, scores, out;
    onnx_dim_t dims[3] = {{c->batch, c->dynamic ? "batch" : NULL}};
    onnx_scope(x->m, "/model.%d", x->g->n_rows - 1);
    if (onnx_decode(x, c->nms, &boxes, &scores) < 0)
        return -1;
    if (c->nms) {
        out = onnx_suppress(x, boxes, scores);
        dims[1] = (onnx_dim_t){c->max_det, NULL};
        dims[2] = (onnx_dim_t){6, NULL};
    } else {
        out = onnx_add(x->m, &(onnx_node_t){.op = "Concat",
                                            .in = {boxes, scores},
                                            .n_in = 2,
                                            .attr = {{"axis", ONNX_A_INT, .i = 1}},
                                            .output = "output0"});
        dims[1] = (onnx_dim_t){4 + x->g->nc, NULL};
        dims[2] = (onnx_dim_t){onnx_anchor_count(x), c->dynamic ? "anchors" : NULL};
    }
    onnx_output(x->m, out, ONNX_FLOAT, dims, 3);
    return out < 0 ? -1 : 0;
}

int onnx_export(const graph_t *g, const float *weights, const float *buffers,
                const onnx_config_t *config, onnx_model_t **model, onnx_file_t *file)
{
    onnx_t x = {.g = g, .weights = weights, .buffers = buffers, .c = config};
    int rc;
    CHECK_GOTO(onnx_model_new(config->opset, "sluice", config->version, model), rc, fail);
    x.m = *model;
    x.of = malloc((size_t)g->n_values * sizeof *x.of);
    if (!x.of) {
        rc = err_set(ERR_ENV, "out of memory for an ONNX model");
        goto fail;
    }
    for (int32_t v = 0; v < g->n_values; v++)
        x.of[v] = -1;
    /* A failure is the model's to tell. */
    if (add_body(&x) == 0 && add_head(&x) == 0)
        onnx_describe(&x);
    CHECK_GOTO(onnx_finish(x.m, g->name, &file->parts, &file->n_parts, &file->bytes), rc, fail);
    file->nodes = onnx_nodes(x.m);
    file->anchors = onnx_anchor_count(&x);
    file->parameters = x.parameters;
    free(x.of);
    return 0;
fail:
    free(x.of);
    onnx_model_free(model);
    return rc;
}
