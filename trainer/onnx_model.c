#include "trainer/onnx_model.h"

#include "shm/err.h"
#include "trainer/onnx_proto.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Field numbers of onnx.proto. */
enum {
    MODEL_IR_VERSION = 1,
    MODEL_PRODUCER = 2,
    MODEL_PRODUCER_VERSION = 3,
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    MODEL_METADATA = 14,
    OPSET_DOMAIN = 1,
    OPSET_VERSION = 2,
    ENTRY_KEY = 1,
    ENTRY_VALUE = 2,
    GRAPH_NODE = 1,
    GRAPH_TITLE = 2,
    GRAPH_INITIALIZER = 5,
    GRAPH_INPUT = 11,
    GRAPH_OUTPUT = 12,
    NODE_INPUT = 1,
    NODE_OUTPUT = 2,
    NODE_TITLE = 3,
    NODE_OP = 4,
    NODE_ATTRIBUTE = 5,
    ATTRIBUTE_TITLE = 1,
    ATTRIBUTE_I = 3,
    ATTRIBUTE_S = 4,
    ATTRIBUTE_INTS = 8,
    ATTRIBUTE_TYPE = 20,
    TENSOR_DIMS = 1,
    TENSOR_TYPE = 2,
    TENSOR_TITLE = 8,
    TENSOR_RAW = 9,
    VALUE_TITLE = 1,
    VALUE_TYPE = 2,
    TYPE_TENSOR = 1,
    TYPE_ELEMENT = 1,
    TYPE_SHAPE = 2,
    SHAPE_DIM = 1,
    DIM_VALUE = 1,
    DIM_PARAM = 2,
};

enum { NAME_BYTES = 192 };

struct onnx_model {
    int failed; /* code of the first failure */
    char scope[NAME_BYTES];
    char **names;  /* of tensors */
    char **titles; /* of nodes */
    int32_t n_names, room_names, n_titles, room_titles;
    void **owned; /* data of initialisers */
    int32_t n_owned, room_owned;
    proto_t head, nodes, initializers, inputs, outputs, metadata, file;
    struct iovec *parts;
};

int32_t onnx_fail(onnx_model_t *m, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (m->failed)
        return -1;
    m->failed = ERR_CONFIG;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(ERR_CONFIG, "%s", text);
    return -1;
}

static int32_t no_memory(onnx_model_t *m)
{
    if (!m->failed)
        m->failed = err_set(ERR_ENV, "out of memory for an ONNX model");
    return -1;
}

/* Room for one more pointer. */
static int grow(void ***array, int32_t *room, int32_t count)
{
    if (count < *room)
        return 0;
    const int32_t more = *room ? 2 * *room : 256;
    void **bigger = realloc(*array, (size_t)more * sizeof *bigger);
    if (!bigger)
        return -1;
    *array = bigger;
    *room = more;
    return 0;
}

static void free_all(void **array, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        free(array[i]);
    free(array);
}

int onnx_ir_version(int opset)
{
    /* Releases of ONNX: 1.12 had opset 17 and IR 8, 1.14 had 19 and 9, 1.16 had 21 and 10. */
    return opset >= 21 ? 10 : opset >= 19 ? 9 : 8;
}

int onnx_model_new(int opset, const char *producer, const char *version, onnx_model_t **model)
{
    onnx_model_t *m = calloc(1, sizeof *m);
    *model = m;
    if (!m)
        return err_set(ERR_ENV, "out of memory for an ONNX model");
    proto_int(&m->head, MODEL_IR_VERSION, onnx_ir_version(opset));
    proto_string(&m->head, MODEL_PRODUCER, producer);
    proto_string(&m->head, MODEL_PRODUCER_VERSION, version);
    const proto_mark_t set = proto_begin(&m->head, MODEL_OPSET);
    proto_string(&m->head, OPSET_DOMAIN, "");
    proto_int(&m->head, OPSET_VERSION, opset);
    proto_end(&m->head, set);
    return 0;
}

void onnx_model_free(onnx_model_t **model)
{
    onnx_model_t *m = *model;
    if (!m)
        return;
    proto_t *const buffers[] = {&m->head,    &m->nodes,    &m->initializers, &m->inputs,
                                &m->outputs, &m->metadata, &m->file};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        proto_fini(buffers[i]);
    free_all((void **)m->names, m->n_names);
    free_all((void **)m->titles, m->n_titles);
    free_all(m->owned, m->n_owned);
    free(m->parts);
    free(m);
    *model = NULL;
}

int32_t onnx_nodes(const onnx_model_t *m)
{
    return m->n_titles;
}

/* ---- names ---- */

static int32_t find(char *const *names, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

void onnx_scope(onnx_model_t *m, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(m->scope, sizeof m->scope - 32, fmt, args);
    va_end(args);
}

/* Number of a new tensor. */
static int32_t name_tensor(onnx_model_t *m, const char *name)
{
    if (find(m->names, m->n_names, name) >= 0)
        return onnx_fail(m, "two tensors of the ONNX model are named %s", name);
    char *copy = strdup(name);
    if (!copy || grow((void ***)&m->names, &m->room_names, m->n_names)) {
        free(copy);
        return no_memory(m);
    }
    m->names[m->n_names] = copy;
    return m->n_names++;
}

/* "/model.2/m.0/Concat", or with "_1" and so on behind it where there is one already. */
static const char *title_node(onnx_model_t *m, const char *op)
{
    char text[2 * NAME_BYTES];
    int k = 0;
    snprintf(text, sizeof text, "%s/%s", m->scope, op);
    while (find(m->titles, m->n_titles, text) >= 0)
        snprintf(text, sizeof text, "%s/%s_%d", m->scope, op, ++k);
    char *copy = strdup(text);
    if (!copy || grow((void ***)&m->titles, &m->room_titles, m->n_titles)) {
        free(copy);
        no_memory(m);
        return NULL;
    }
    m->titles[m->n_titles++] = copy;
    return copy;
}

/* ---- inputs, outputs, constants ---- */

static void put_value(proto_t *p, uint32_t field, const char *name, onnx_type_t type,
                      const onnx_dim_t *dims, int n_dims)
{
    const proto_mark_t value = proto_begin(p, field);
    proto_string(p, VALUE_TITLE, name);
    const proto_mark_t kind = proto_begin(p, VALUE_TYPE), tensor = proto_begin(p, TYPE_TENSOR);
    proto_int(p, TYPE_ELEMENT, type);
    const proto_mark_t shape = proto_begin(p, TYPE_SHAPE);
    for (int i = 0; i < n_dims; i++) {
        const proto_mark_t dim = proto_begin(p, SHAPE_DIM);
        if (dims[i].open)
            proto_string(p, DIM_PARAM, dims[i].open);
        else
            proto_int(p, DIM_VALUE, dims[i].size);
        proto_end(p, dim);
    }
    proto_end(p, shape);
    proto_end(p, tensor);
    proto_end(p, kind);
    proto_end(p, value);
}

int32_t onnx_input(onnx_model_t *m, const char *name, onnx_type_t type, const onnx_dim_t *dims,
                   int n_dims)
{
    put_value(&m->inputs, GRAPH_INPUT, name, type, dims, n_dims);
    return name_tensor(m, name);
}

void onnx_output(onnx_model_t *m, int32_t tensor, onnx_type_t type, const onnx_dim_t *dims,
                 int n_dims)
{
    if (tensor >= 0)
        put_value(&m->outputs, GRAPH_OUTPUT, m->names[tensor], type, dims, n_dims);
}

static size_t element_bytes(onnx_type_t type)
{
    return type == ONNX_INT64 ? 8 : type == ONNX_FLOAT16 ? 2 : 4;
}

int32_t onnx_take(onnx_model_t *m, const char *name, onnx_type_t type, const int64_t *shape,
                  int n_dims, void *data)
{
    size_t bytes = element_bytes(type);
    if (!data || grow(&m->owned, &m->room_owned, m->n_owned)) {
        free(data);
        return no_memory(m);
    }
    m->owned[m->n_owned++] = data;
    const proto_mark_t tensor = proto_begin(&m->initializers, GRAPH_INITIALIZER);
    for (int i = 0; i < n_dims; i++) {
        proto_int(&m->initializers, TENSOR_DIMS, shape[i]);
        bytes *= (size_t)shape[i];
    }
    proto_int(&m->initializers, TENSOR_TYPE, type);
    proto_string(&m->initializers, TENSOR_TITLE, name);
    proto_borrow(&m->initializers, TENSOR_RAW, data, bytes);
    proto_end(&m->initializers, tensor);
    return name_tensor(m, name);
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes);
    if (copy)
        memcpy(copy, data, bytes);
    return copy;
}

int32_t onnx_ints(onnx_model_t *m, const int64_t *values, int n)
{
    char name[NAME_BYTES];
    const int count = n < 0 ? 1 : n;
    size_t at = (size_t)snprintf(name, sizeof name, n < 0 ? "int" : "ints");
    for (int i = 0; i < count && at < sizeof name; i++)
        at += (size_t)snprintf(name + at, sizeof name - at, "_%" PRId64, values[i]);
    const int32_t known = find(m->names, m->n_names, name);
    if (known >= 0)
        return known;
    return onnx_take(m, name, ONNX_INT64, (int64_t[]){n}, n < 0 ? 0 : 1,
                     copy_of(values, (size_t)count * sizeof *values));
}

uint16_t onnx_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return (uint16_t)(sign | 0x7E00);
    if (magnitude >= 0x477FF000) /* 65520: rounds beyond the largest */
        return (uint16_t)(sign | 0x7C00);
    if (magnitude < 0x38800000) { /* below 2^-14: multiples of 2^-24 */
        float scaled;
        memcpy(&scaled, &magnitude, sizeof scaled);
        return (uint16_t)(sign | (uint32_t)lrintf(scaled * 0x1p24f));
    }
    const uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (magnitude + 0xFFF + odd - (112u << 23)) >> 13);
}

int32_t onnx_floats(onnx_model_t *m, const float *values, int n, onnx_type_t type)
{
    char name[NAME_BYTES];
    uint16_t halves[16];
    const int half = type == ONNX_FLOAT16;
    const size_t count = n < 0 ? 1 : (size_t)n;
    size_t at =
        (size_t)snprintf(name, sizeof name, "%s%s", half ? "half" : "float", n < 0 ? "" : "s");
    assert(count <= sizeof halves / sizeof *halves);
    for (size_t i = 0; i < count && at < sizeof name; i++) {
        halves[i] = onnx_half(values[i]);
        at += (size_t)snprintf(name + at, sizeof name - at, "_%.9g", (double)values[i]);
    }
    const int32_t known = find(m->names, m->n_names, name);
    if (known >= 0)
        return known;
    return onnx_take(m, name, type, (int64_t[]){n}, n < 0 ? 0 : 1,
                     half ? copy_of(halves, count * sizeof *halves)
                          : copy_of(values, count * sizeof *values));
}

void onnx_metadata(onnx_model_t *m, const char *key, const char *value)
{
    const proto_mark_t entry = proto_begin(&m->metadata, MODEL_METADATA);
    proto_string(&m->metadata, ENTRY_KEY, key);
    proto_string(&m->metadata, ENTRY_VALUE, value);
    proto_end(&m->metadata, entry);
}

/* ---- nodes ---- */

static void put_attribute(proto_t *p, const onnx_attr_t *a)
{
    const proto_mark_t attribute = proto_begin(p, NODE_ATTRIBUTE);
    proto_string(p, ATTRIBUTE_TITLE, a->name);
    if (a->kind == ONNX_A_INT)
        proto_int(p, ATTRIBUTE_I, a->i);
    else if (a->kind == ONNX_A_STRING)
        proto_string(p, ATTRIBUTE_S, a->s);
    for (int i = 0; a->kind == ONNX_A_INTS && i < a->n; i++)
        proto_int(p, ATTRIBUTE_INTS, a->ints[i]);
    proto_int(p, ATTRIBUTE_TYPE, a->kind);
    proto_end(p, attribute);
}

int onnx_add_many(onnx_model_t *m, const onnx_node_t *node, int32_t *out, int n_out)
{
    char name[2 * NAME_BYTES + 32];
    for (int i = 0; i < n_out; i++)
        out[i] = -1;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] < 0 && node->in[i] != ONNX_ABSENT)
            return -1;
    }
    const char *title = m->failed ? NULL : title_node(m, node->op);
    if (!title)
        return -1;
    const proto_mark_t message = proto_begin(&m->nodes, GRAPH_NODE);
    for (int i = 0; i < node->n_in; i++)
        proto_string(&m->nodes, NODE_INPUT,
                     node->in[i] == ONNX_ABSENT ? "" : m->names[node->in[i]]);
    for (int i = 0; i < n_out; i++) {
        if (i == 0 && node->output)
            snprintf(name, sizeof name, "%s", node->output);
        else
            snprintf(name, sizeof name, "%s_output_%d", title, i);
        out[i] = name_tensor(m, name);
        proto_string(&m->nodes, NODE_OUTPUT, name);
    }
    proto_string(&m->nodes, NODE_TITLE, title);
    proto_string(&m->nodes, NODE_OP, node->op);
    for (int i = 0; i < ONNX_ATTRS && node->attr[i].name; i++)
        put_attribute(&m->nodes, &node->attr[i]);
    proto_end(&m->nodes, message);
    return m->failed ? -1 : 0;
}

int32_t onnx_add(onnx_model_t *m, const onnx_node_t *node)
{
    int32_t out;
    onnx_add_many(m, node, &out, 1);
    return out;
}

int32_t onnx_unary(onnx_model_t *m, const char *op, int32_t x)
{
    return onnx_add(m, &(onnx_node_t){.op = op, .in = {x}, .n_in = 1});
}

int32_t onnx_binary(onnx_model_t *m, const char *op, int32_t a, int32_t b)
{
    return onnx_add(m, &(onnx_node_t){.op = op, .in = {a, b}, .n_in = 2});
}

int32_t onnx_concat(onnx_model_t *m, const int32_t *parts, int n, int64_t axis)
{
    onnx_node_t node = {.op = "Concat", .attr = {{.name = "axis", .kind = ONNX_A_INT, .i = axis}}};
    if (n > ONNX_IN)
        return onnx_fail(m, "%s joins %d tensors: %d are possible", m->scope, n, ONNX_IN);
    memcpy(node.in, parts, (size_t)n * sizeof *parts);
    node.n_in = n;
    return onnx_add(m, &node);
}

int32_t onnx_reshape(onnx_model_t *m, int32_t x, const int64_t *shape, int n)
{
    return onnx_binary(m, "Reshape", x, onnx_ints(m, shape, n));
}

int32_t onnx_cast(onnx_model_t *m, int32_t x, onnx_type_t type)
{
    return onnx_add(m, &(onnx_node_t){.op = "Cast",
                                      .in = {x},
                                      .n_in = 1,
                                      .attr = {{.name = "to", .kind = ONNX_A_INT, .i = type}}});
}

/* ---- the file ---- */

int onnx_finish(onnx_model_t *m, const char *graph_name, const struct iovec **parts, size_t *n,
                uint64_t *bytes)
{
    if (m->failed)
        return m->failed;
    proto_append(&m->file, &m->head);
    const proto_mark_t graph = proto_begin(&m->file, MODEL_GRAPH);
    proto_append(&m->file, &m->nodes);
    proto_string(&m->file, GRAPH_TITLE, graph_name);
    proto_append(&m->file, &m->initializers);
    proto_append(&m->file, &m->inputs);
    proto_append(&m->file, &m->outputs);
    proto_end(&m->file, graph);
    proto_append(&m->file, &m->metadata);
    m->parts = calloc(2 * m->file.n_pieces + 1, sizeof *m->parts);
    if (!m->parts || proto_failed(&m->file)) {
        no_memory(m);
        return m->failed;
    }
    *n = proto_stretches(&m->file, m->parts);
    *parts = m->parts;
    *bytes = proto_total(&m->file);
    return 0;
}
