/* ONNX files as they are written: read back by a reader of the tests' own, every message and number of
 * them, with the rules that a graph must keep. What they compute is compared in onnxruntime by
 * tests/reference/onnx_check.py, for which SLUICE_ONNX_DUMP=FOLDER writes models and what the program
 * itself computes with them. */
#include "shm/err.h"
#include "tests/onnx_case.h"
#include "tests/onnx_read.h"
#include "trainer/graph_internal.h"
#include "trainer/onnx.h"
#include "trainer/onnx_proto.h"
#include "trainer/tensorview.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- the wire ---- */

static void test_wire(void **state)
{
    (void)state;
    /* {1: 300, 2: {3: "ab" borrowed, 4: {5: -1}}, 6: 1.5} by hand. */
    static const uint8_t want[] = {0x08, 0xAC, 0x02, 0x12, 0x11, 0x1A, 0x02, 'a',
                                   'b',  0x22, 0x0B, 0x28, 0xFF, 0xFF, 0xFF, 0xFF,
                                   0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01};
    proto_t p = {0}, all = {0};
    struct iovec parts[3];
    uint8_t got[64];
    size_t n = 0;
    proto_int(&p, 1, 300);
    const proto_mark_t outer = proto_begin(&p, 2);
    proto_borrow(&p, 3, "ab", 2);
    const proto_mark_t inner = proto_begin(&p, 4);
    proto_int(&p, 5, -1);
    proto_end(&p, inner);
    proto_end(&p, outer);
    proto_append(&all, &p);
    assert_int_equal(proto_total(&all), sizeof want);
    const size_t stretches = proto_stretches(&all, parts);
    assert_int_equal(stretches, 3);
    for (size_t i = 0; i < stretches; i++) {
        memcpy(got + n, parts[i].iov_base, parts[i].iov_len);
        n += parts[i].iov_len;
    }
    assert_int_equal(n, sizeof want);
    assert_memory_equal(got, want, sizeof want);
    proto_fini(&p);
    proto_fini(&all);
}

static float widened(uint16_t half)
{
    float value;
    const tensorview_t v = {.dtype = "F16", .ndim = 0, .data = &half, .count = 1};
    tensorview_floats(&v, &value);
    return value;
}

static void test_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        if ((h & 0x7FFF) <= 0x7C00)
            assert_int_equal(onnx_half(widened((uint16_t)h)), h);
    }
    /* Between two neighbours: the nearer one, and the even one from the middle. */
    for (uint16_t h = 0; h < 0x7BFF; h += 7) {
        const float low = widened(h), high = widened((uint16_t)(h + 1)), middle = (low + high) / 2;
        assert_int_equal(onnx_half(middle), h % 2 ? h + 1 : h);
        assert_int_equal(onnx_half(nextafterf(middle, 0)), h);
        assert_int_equal(onnx_half(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(onnx_half(65519), 0x7BFF);
    assert_int_equal(onnx_half(-65520), 0xFC00);
    assert_int_equal(onnx_half(NAN) & 0x7E00, 0x7E00);
}

/* ---- what may be in a graph ---- */

enum { INT = 2, STRING = 3, INTS = 7 };
static const struct {
    const char *op;
    int least, most, outs; /* inputs, outputs */
    struct {
        const char *name;
        int type, needed;
    } attrs[5];
} operators[] = {
    {"Add", 2, 2, 1, {{0}}},
    {"Cast", 1, 1, 1, {{"to", INT, 1}}},
    {"Concat", 1, 64, 1, {{"axis", INT, 1}}},
    {"ConstantOfShape", 1, 1, 1, {{0}}},
    {"Conv",
     3,
     3,
     1,
     {{"dilations", INTS, 1},
      {"group", INT, 1},
      {"kernel_shape", INTS, 1},
      {"pads", INTS, 1},
      {"strides", INTS, 1}}},
    {"Equal", 2, 2, 1, {{0}}},
    {"Expand", 2, 2, 1, {{0}}},
    {"Gather", 2, 2, 1, {{"axis", INT, 1}}},
    {"GatherElements", 2, 2, 1, {{"axis", INT, 1}}},
    {"GatherND", 2, 2, 1, {{0}}},
    {"Greater", 2, 2, 1, {{0}}},
    {"MatMul", 2, 2, 1, {{0}}},
    {"MaxPool", 1, 1, 1, {{"kernel_shape", INTS, 1}, {"pads", INTS, 1}, {"strides", INTS, 1}}},
    {"Mul", 2, 2, 1, {{0}}},
    {"NonMaxSuppression", 5, 5, 1, {{0}}},
    {"Pad", 2, 2, 1, {{0}}},
    {"Range", 3, 3, 1, {{0}}},
    {"ReduceSum", 2, 2, 1, {{"keepdims", INT, 1}}},
    {"Reshape", 2, 2, 1, {{0}}},
    {"Resize",
     3,
     3,
     1,
     {{"coordinate_transformation_mode", STRING, 1},
      {"mode", STRING, 1},
      {"nearest_mode", STRING, 1}}},
    {"ScatterND", 3, 3, 1, {{0}}},
    {"Shape", 1, 1, 1, {{"start", INT, 0}, {"end", INT, 0}}},
    {"Sigmoid", 1, 1, 1, {{0}}},
    {"Slice", 4, 4, 1, {{0}}},
    {"Softmax", 1, 1, 1, {{"axis", INT, 1}}},
    {"Split", 2, 2, 3, {{"axis", INT, 1}}},
    {"Squeeze", 2, 2, 1, {{0}}},
    {"Sub", 2, 2, 1, {{0}}},
    {"TopK", 2, 2, 2, {{"axis", INT, 1}}},
    {"Transpose", 1, 1, 1, {{"perm", INTS, 1}}},
    {"Unsqueeze", 2, 2, 1, {{0}}},
    {"Where", 3, 3, 1, {{0}}},
};
enum { OPERATORS = sizeof operators / sizeof *operators };

static void check_operator(const read_node_t *n)
{
    int k = 0;
    while (k < OPERATORS && strcmp(operators[k].op, n->op) != 0)
        k++;
    if (k == OPERATORS)
        fail_msg("%s is a %s", n->name, n->op);
    assert_in_range(n->n_in, operators[k].least, operators[k].most);
    assert_in_range(n->n_out, 1, operators[k].outs);
    int known = 0;
    for (int i = 0; i < 5 && operators[k].attrs[i].name; i++) {
        const read_attr_t *a = onnx_read_attr(n, operators[k].attrs[i].name);
        if (!a && operators[k].attrs[i].needed)
            fail_msg("%s has no %s", n->name, operators[k].attrs[i].name);
        known += a != NULL;
        if (a)
            assert_int_equal(a->type, operators[k].attrs[i].type);
    }
    assert_int_equal(known, n->n_attrs);
}

/* Kernel, padding and the sizes of weight and bias belong together (facts/yolo.md 1.2). */
static void check_conv(const read_model_t *m, const read_node_t *n)
{
    const read_tensor_t *w = onnx_read_constant(m, n->in[1]), *b = onnx_read_constant(m, n->in[2]);
    const read_attr_t *kernel = onnx_read_attr(n, "kernel_shape"),
                      *pads = onnx_read_attr(n, "pads");
    assert_non_null(w);
    assert_non_null(b);
    assert_int_equal(w->n_dims, 4);
    assert_int_equal(b->n_dims, 1);
    assert_int_equal(b->dims[0], w->dims[0]);
    assert_int_equal(kernel->n_ints, 2);
    assert_int_equal(pads->n_ints, 4);
    for (int i = 0; i < 2; i++)
        assert_int_equal(kernel->ints[i], w->dims[2 + i]);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pads->ints[i], kernel->ints[0] / 2);
    const int64_t group = onnx_read_attr(n, "group")->i;
    assert_true(group == 1 || (group == w->dims[0] && w->dims[1] == 1));
}

/* Names of tensors, and whether somebody reads them. */
typedef struct {
    const char **names;
    int *reads, n;
} names_t;

static int find(const names_t *t, const char *name)
{
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->names[i], name) == 0)
            return i;
    }
    return -1;
}

static void define(names_t *t, const char *name)
{
    assert_true(name[0] != '\0');
    if (find(t, name) >= 0)
        fail_msg("%s is written twice", name);
    t->names[t->n] = name;
    t->reads[t->n++] = 0;
}

static void read_name(names_t *t, const char *name, const char *by)
{
    const int i = find(t, name);
    if (i < 0)
        fail_msg("%s reads %s, which nobody has written before", by, name);
    t->reads[i]++;
}

static void check_constants(const read_model_t *m, names_t *t)
{
    for (int i = 0; i < m->n_constants; i++) {
        const read_tensor_t *c = &m->constants[i];
        int64_t elements = 1;
        for (int d = 0; d < c->n_dims; d++)
            elements *= c->dims[d];
        const int64_t size = c->type == ONNX_INT64 ? 8 : c->type == ONNX_FLOAT16 ? 2 : 4;
        assert_true(c->type == ONNX_INT64 || c->type == ONNX_FLOAT16 || c->type == ONNX_FLOAT);
        if (elements < 1 || elements * size != (int64_t)c->bytes)
            fail_msg("%s has %zu bytes for %lld elements", c->name, c->bytes, (long long)elements);
        define(t, c->name);
    }
}

static void check_graph(const read_model_t *m)
{
    const size_t room = (size_t)(m->n_constants + 3 * m->n_nodes + 2);
    names_t t = {calloc(room, sizeof(char *)), calloc(room, sizeof(int)), 0};
    names_t titles = {calloc(room, sizeof(char *)), calloc(room, sizeof(int)), 0};
    check_constants(m, &t);
    define(&t, m->inputs[0].name);
    for (int i = 0; i < m->n_nodes; i++) {
        const read_node_t *n = &m->nodes[i];
        check_operator(n);
        define(&titles, n->name);
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k][0])
                read_name(&t, n->in[k], n->name);
            else
                assert_true(strcmp(n->op, "Resize") == 0 && k == 1);
        }
        for (int k = 0; k < n->n_out; k++)
            define(&t, n->out[k]);
        if (strcmp(n->op, "Conv") == 0)
            check_conv(m, n);
    }
    read_name(&t, m->outputs[0].name, "the model's output");
    for (int i = 0; i < t.n; i++) {
        if (t.reads[i] == 0)
            fail_msg("nobody reads %s", t.names[i]);
    }
    free(t.names);
    free(t.reads);
    free(titles.names);
    free(titles.reads);
}

/* ---- exporting in memory ---- */

typedef struct {
    graph_t *g;
    float *weights, *buffers;
    uint8_t *image;
    size_t bytes;
    read_model_t m;
} exported_t;

static const onnx_config_t plain = {.batch = 1,
                                    .h = 64,
                                    .w = 96,
                                    .opset = 17,
                                    .conf = 0.25f,
                                    .iou = 0.7f,
                                    .max_det = 300,
                                    .origin = "best.safetensors",
                                    .version = "1.2"};

static void build(exported_t *e, const char *name, int32_t nc)
{
    memset(e, 0, sizeof *e);
    assert_int_equal(graph_build(name, nc, &e->g), 0);
    e->weights = calloc(graph_sizes(e->g)->weights, sizeof *e->weights);
    e->buffers = calloc(graph_sizes(e->g)->buffers, sizeof *e->buffers);
    assert_non_null(e->weights);
    assert_non_null(e->buffers);
}

static int export(exported_t *e, const onnx_config_t *c, onnx_file_t *file)
{
    onnx_model_t *model;
    int rc = onnx_export(e->g, e->weights, e->buffers, c, &model, file);
    onnx_read_free(&e->m);
    free(e->image);
    e->image = NULL;
    if (rc < 0)
        return rc;
    e->bytes = 0;
    e->image = malloc(file->bytes);
    assert_non_null(e->image);
    for (size_t i = 0; i < file->n_parts; i++) {
        memcpy(e->image + e->bytes, file->parts[i].iov_base, file->parts[i].iov_len);
        e->bytes += file->parts[i].iov_len;
    }
    assert_int_equal(e->bytes, file->bytes);
    onnx_model_free(&model);
    onnx_read(e->image, e->bytes, &e->m);
    return 0;
}

static void end(exported_t *e)
{
    onnx_read_free(&e->m);
    free(e->image);
    free(e->weights);
    free(e->buffers);
    graph_free(&e->g);
}

static void check_dim(const read_tensor_t *t, int i, int64_t size, const char *open)
{
    assert_string_equal(t->open[i], open ? open : "");
    if (!open)
        assert_int_equal(t->dims[i], size);
}

static void check_ports(const exported_t *e, const onnx_config_t *c)
{
    const read_tensor_t *in = &e->m.inputs[0], *out = &e->m.outputs[0];
    const int64_t anchors = c->h / 8 * c->w / 8 + c->h / 16 * c->w / 16 + c->h / 32 * c->w / 32;
    assert_int_equal(e->m.n_inputs, 1);
    assert_int_equal(e->m.n_outputs, 1);
    assert_string_equal(in->name, "images");
    assert_string_equal(out->name, "output0");
    assert_int_equal(in->type, c->half ? ONNX_FLOAT16 : ONNX_FLOAT);
    assert_int_equal(out->type, ONNX_FLOAT);
    assert_int_equal(in->n_dims, 4);
    assert_int_equal(out->n_dims, 3);
    check_dim(in, 0, c->batch, c->dynamic ? "batch" : NULL);
    check_dim(in, 1, 3, NULL);
    check_dim(in, 2, c->h, c->dynamic ? "height" : NULL);
    check_dim(in, 3, c->w, c->dynamic ? "width" : NULL);
    check_dim(out, 0, c->batch, c->dynamic ? "batch" : NULL);
    check_dim(out, 1, c->nms ? c->max_det : 4 + graph_classes(e->g), NULL);
    check_dim(out, 2, c->nms ? 6 : anchors, c->nms || !c->dynamic ? NULL : "anchors");
}

/* Those of facts/yolo.md 1.1 without the fixed projection; of a normalisation's two numbers a channel a
 * bias is left. */
static uint64_t folded_parameters(const graph_t *g)
{
    uint64_t n = graph_sizes(g)->gradients;
    for (int32_t u = 0; u < g->n_units; u++)
        n -= g->units[u].gamma >= 0 ? (uint64_t)g->units[u].c2 : 0;
    return n;
}

static void check_export(exported_t *e, const onnx_config_t *c)
{
    onnx_file_t file;
    int convolutions = 0;
    assert_int_equal(export(e, c, &file), 0);
    assert_int_equal(e->m.opset, c->opset);
    assert_int_equal(e->m.ir, c->opset >= 21 ? 10 : c->opset >= 19 ? 9 : 8);
    assert_string_equal(e->m.producer, "sluice");
    assert_int_equal(e->m.n_nodes, file.nodes);
    assert_int_equal(file.parameters, folded_parameters(e->g));
    check_graph(&e->m);
    check_ports(e, c);
    for (int i = 0; i < e->m.n_nodes; i++)
        convolutions += strcmp(e->m.nodes[i].op, "Conv") == 0;
    assert_int_equal(convolutions, e->g->n_units);
}

static void test_ten_models(void **state)
{
    (void)state;
    static const char *const names[] = {"yolo11n", "yolo11s", "yolo11m", "yolo11l", "yolo11x",
                                        "yolov8n", "yolov8s", "yolov8m", "yolov8l", "yolov8x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        exported_t e;
        build(&e, names[i], 0);
        check_export(&e, &plain);
        end(&e);
    }
}

static void test_options(void **state)
{
    (void)state;
    exported_t e[2];
    build(&e[0], "yolo11n", 3);
    build(&e[1], "yolov8n", 1);
    for (int i = 0; i < 64; i++) {
        onnx_config_t c = plain;
        c.dynamic = i & 1;
        c.half = i >> 1 & 1;
        c.nms = i >> 2 & 1;
        c.batch = i & 8 ? 4 : 1;
        c.max_det = i & 16 ? 20 : 300; /* fewer and more than the anchors */
        c.opset = i & 32 ? 22 : 17 + i % 6;
        check_export(&e[i % 2 ^ (i >> 3 & 1)], &c);
    }
    end(&e[0]);
    end(&e[1]);
}

/* ---- numbers ---- */

static float element(const read_tensor_t *t, uint64_t i)
{
    float value;
    memcpy(&value, t->raw + i * sizeof value, sizeof value);
    return value;
}

static const float *param_of(const exported_t *e, int32_t number)
{
    const graph_param_t *p = &e->g->params[number];
    return (p->place == GRAPH_BUFFER ? e->buffers : e->weights) + p->first;
}

static void check_unit(const exported_t *e, const graph_unit_t *u)
{
    char name[GRAPH_NAME];
    const graph_param_t *p = &e->g->params[u->weight];
    snprintf(name, sizeof name, "%.*sbias", (int)(strlen(p->name) - 6), p->name);
    const read_tensor_t *w = onnx_read_constant(&e->m, p->name),
                        *b = onnx_read_constant(&e->m, name);
    assert_non_null(w);
    assert_non_null(b);
    assert_int_equal(w->bytes, p->count * sizeof(float));
    const uint64_t row = p->count / (uint64_t)u->c2;
    for (uint64_t i = 0; i < p->count; i++) {
        const uint64_t c = i / row;
        double factor = 1, shift = u->bias < 0 ? 0 : (double)param_of(e, u->bias)[c];
        if (u->gamma >= 0) {
            factor = param_of(e, u->gamma)[c] / sqrt(param_of(e, u->var)[c] + 1e-3);
            shift = param_of(e, u->beta)[c] - factor * param_of(e, u->mean)[c];
        }
        const double want = factor * e->weights[p->first + weights_place(p, i)];
        if (fabs(element(w, i) - want) > 1e-6 * fabs(want) ||
            fabs(element(b, c) - shift) > 1e-6 * fabs(shift) + 1e-7)
            fail_msg("%s: element %llu is %g for %g, bias %g for %g", p->name,
                     (unsigned long long)i, (double)element(w, i), want, (double)element(b, c),
                     shift);
    }
}

static void test_fold(void **state)
{
    (void)state;
    static const char *const names[] = {"yolo11n", "yolov8n"};
    for (int i = 0; i < 2; i++) {
        exported_t e;
        onnx_file_t file;
        build(&e, names[i], 4);
        weights_init(e.g, 3, e.weights, e.buffers);
        onnx_case_spoil(e.g, 4, e.weights, e.buffers);
        assert_int_equal(export(&e, &plain, &file), 0);
        for (int32_t u = 0; u < e.g->n_units; u++)
            check_unit(&e, &e.g->units[u]);
        end(&e);
    }
}

/* A weight that no file can hold is named, not written. */
static void test_refused_weights(void **state)
{
    (void)state;
    exported_t e;
    onnx_file_t file;
    onnx_config_t half = plain;
    half.half = 1;
    build(&e, "yolov8n", 2);
    weights_init(e.g, 0, e.weights, e.buffers);
    const graph_param_t *w = graph_find_param(e.g, "model.4.m.1.cv2.conv.weight"),
                        *var = graph_find_param(e.g, "model.3.bn.running_var");
    e.weights[w->first + 5] = 1e5f;
    assert_int_equal(export(&e, &plain, &file), 0);
    assert_int_equal(export(&e, &half, &file), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "model.4.m.1.cv2.conv.weight of best.safetensors"));
    assert_non_null(strstr(err_text(), "half"));
    e.weights[w->first + 5] = NAN;
    assert_int_equal(export(&e, &plain, &file), ERR_CONFIG);
    e.weights[w->first + 5] = 0;
    e.buffers[var->first] = -1; /* of a broken file: the root of a negative number */
    assert_int_equal(export(&e, &plain, &file), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "model.3.conv.weight"));
    end(&e);
}

static void test_metadata(void **state)
{
    (void)state;
    static const char *const names[] = {"it's", "back\\slash", "Kratzer \xC3\xA4\n"};
    exported_t e;
    onnx_file_t file;
    onnx_config_t c = plain;
    c.names = names;
    c.nms = 1;
    c.batch = 2;
    build(&e, "yolo11n", 3);
    assert_int_equal(export(&e, &c, &file), 0);
    assert_string_equal(onnx_read_entry(&e.m, "names"),
                        "{0: 'it\\'s', 1: 'back\\\\slash', 2: 'Kratzer \xC3\xA4\\x0a'}");
    assert_string_equal(onnx_read_entry(&e.m, "stride"), "32");
    assert_string_equal(onnx_read_entry(&e.m, "task"), "detect");
    assert_string_equal(onnx_read_entry(&e.m, "batch"), "2");
    assert_string_equal(onnx_read_entry(&e.m, "imgsz"), "[64, 96]");
    assert_string_equal(onnx_read_entry(&e.m, "channels"), "3");
    assert_string_equal(onnx_read_entry(&e.m, "version"), "1.2");
    assert_string_equal(onnx_read_entry(&e.m, "args"),
                        "{'batch': 2, 'half': False, 'dynamic': False, 'opset': 17, 'nms': True, "
                        "'conf': 0.25, 'iou': 0.7, 'max_det': 300}");
    c = plain;
    assert_int_equal(export(&e, &c, &file), 0);
    assert_string_equal(onnx_read_entry(&e.m, "names"), "{0: 'class0', 1: 'class1', 2: 'class2'}");
    end(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),       cmocka_unit_test(test_half),
        cmocka_unit_test(test_ten_models), cmocka_unit_test(test_options),
        cmocka_unit_test(test_fold),       cmocka_unit_test(test_refused_weights),
        cmocka_unit_test(test_metadata),
    };
    const char *folder = getenv("SLUICE_ONNX_DUMP");
    if (folder) {
        onnx_case_dump(folder);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
