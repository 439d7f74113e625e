#include "tests/onnx_read.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- Protocol Buffers ---- */

typedef struct {
    const uint8_t *at, *end;
} span_t;

typedef struct {
    uint32_t number, wire;
    uint64_t value; /* wire 0 */
    span_t span;    /* wire 2 */
} field_t;

static uint64_t read_varint(span_t *s)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        assert_true(s->at < s->end);
        const uint8_t byte = *s->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return value;
    }
    fail_msg("a varint has no end");
    return 0;
}

static int next_field(span_t *s, field_t *f)
{
    if (s->at == s->end)
        return 0;
    const uint64_t key = read_varint(s);
    f->number = (uint32_t)(key >> 3);
    f->wire = key & 7;
    assert_true(f->number > 0);
    if (f->wire == 0) {
        f->value = read_varint(s);
        return 1;
    }
    assert_int_equal(f->wire, 2); /* nothing that is written here has another */
    const uint64_t length = read_varint(s);
    assert_true(length <= (uint64_t)(s->end - s->at));
    f->span = (span_t){s->at, s->at + length};
    s->at += length;
    return 1;
}

static void text(const field_t *f, char *out, size_t room)
{
    const size_t n = (size_t)(f->span.end - f->span.at);
    assert_int_equal(f->wire, 2);
    assert_true(n < room);
    memcpy(out, f->span.at, n);
    out[n] = '\0';
}

static int64_t number(const field_t *f)
{
    assert_int_equal(f->wire, 0);
    return (int64_t)f->value;
}

#define UNKNOWN(what, f) fail_msg("%s has an unexpected field %u", what, (f).number)

/* ---- messages, by the numbers of onnx.proto ---- */

static void read_attr(span_t s, read_attr_t *a)
{
    field_t f;
    memset(a, 0, sizeof *a);
    while (next_field(&s, &f)) {
        switch (f.number) {
        case 1: text(&f, a->name, sizeof a->name); break;
        case 3: a->i = number(&f); break;
        case 4: text(&f, a->s, sizeof a->s); break;
        case 8:
            assert_true(a->n_ints < READ_DIMS);
            a->ints[a->n_ints++] = number(&f);
            break;
        case 20: a->type = number(&f); break;
        default: UNKNOWN("an attribute", f);
        }
    }
}

static void read_node(span_t s, read_node_t *n)
{
    field_t f;
    memset(n, 0, sizeof *n);
    while (next_field(&s, &f)) {
        switch (f.number) {
        case 1:
            assert_true(n->n_in < READ_PORTS);
            text(&f, n->in[n->n_in++], READ_NAME);
            break;
        case 2:
            assert_true(n->n_out < READ_PORTS);
            text(&f, n->out[n->n_out++], READ_NAME);
            break;
        case 3: text(&f, n->name, sizeof n->name); break;
        case 4: text(&f, n->op, sizeof n->op); break;
        case 5:
            assert_true(n->n_attrs < READ_ATTRS);
            read_attr(f.span, &n->attrs[n->n_attrs++]);
            break;
        default: UNKNOWN("a node", f);
        }
    }
}

static void read_constant(span_t s, read_tensor_t *t)
{
    field_t f;
    memset(t, 0, sizeof *t);
    while (next_field(&s, &f)) {
        switch (f.number) {
        case 1:
            assert_true(t->n_dims < READ_DIMS);
            t->dims[t->n_dims++] = number(&f);
            break;
        case 2: t->type = number(&f); break;
        case 8: text(&f, t->name, sizeof t->name); break;
        case 9:
            t->raw = f.span.at;
            t->bytes = (size_t)(f.span.end - f.span.at);
            break;
        default: UNKNOWN("an initialiser", f);
        }
    }
}

static void read_shape(span_t s, read_tensor_t *t)
{
    field_t f, d;
    while (next_field(&s, &f)) {
        assert_int_equal(f.number, 1);
        assert_true(t->n_dims < READ_DIMS);
        span_t dim = f.span;
        while (next_field(&dim, &d)) {
            if (d.number == 1)
                t->dims[t->n_dims] = number(&d);
            else if (d.number == 2)
                text(&d, t->open[t->n_dims], sizeof t->open[0]);
            else
                UNKNOWN("a dimension", d);
        }
        t->n_dims++;
    }
}

static void read_value(span_t s, read_tensor_t *t)
{
    field_t f, type, tensor;
    memset(t, 0, sizeof *t);
    while (next_field(&s, &f)) {
        if (f.number == 1) {
            text(&f, t->name, sizeof t->name);
            continue;
        }
        assert_int_equal(f.number, 2);
        assert_true(next_field(&f.span, &type));
        assert_int_equal(type.number, 1);
        while (next_field(&type.span, &tensor)) {
            if (tensor.number == 1)
                t->type = number(&tensor);
            else if (tensor.number == 2)
                read_shape(tensor.span, t);
            else
                UNKNOWN("a tensor's type", tensor);
        }
    }
}

/* Room for one more of an array that doubles at powers of two. */
static void *room_for(void *array, int count, size_t size)
{
    if (count & (count - 1))
        return array;
    void *bigger = realloc(array, (count ? 2 * (size_t)count : 1) * size);
    assert_non_null(bigger);
    return bigger;
}

static void read_graph(span_t s, read_model_t *m)
{
    field_t f;
    while (next_field(&s, &f)) {
        switch (f.number) {
        case 1:
            m->nodes = room_for(m->nodes, m->n_nodes, sizeof *m->nodes);
            read_node(f.span, &m->nodes[m->n_nodes++]);
            break;
        case 2: text(&f, m->graph, sizeof m->graph); break;
        case 5:
            m->constants = room_for(m->constants, m->n_constants, sizeof *m->constants);
            read_constant(f.span, &m->constants[m->n_constants++]);
            break;
        case 11:
            assert_true(m->n_inputs < 2);
            read_value(f.span, &m->inputs[m->n_inputs++]);
            break;
        case 12:
            assert_true(m->n_outputs < 2);
            read_value(f.span, &m->outputs[m->n_outputs++]);
            break;
        default: UNKNOWN("the graph", f);
        }
    }
}

static void read_entry(span_t s, read_entry_t *e)
{
    field_t f;
    memset(e, 0, sizeof *e);
    while (next_field(&s, &f)) {
        if (f.number == 1)
            text(&f, e->key, sizeof e->key);
        else if (f.number == 2)
            text(&f, e->value, sizeof e->value);
        else
            UNKNOWN("an entry", f);
    }
}

static void read_opset(span_t s, read_model_t *m)
{
    field_t f;
    while (next_field(&s, &f)) {
        if (f.number == 1)
            assert_true(f.span.at == f.span.end); /* the domain of ONNX's own operators */
        else
            m->opset = number(&f);
    }
}

void onnx_read(const uint8_t *image, size_t bytes, read_model_t *m)
{
    span_t s = {image, image + bytes};
    field_t f;
    char version[32];
    memset(m, 0, sizeof *m);
    while (next_field(&s, &f)) {
        switch (f.number) {
        case 1: m->ir = number(&f); break;
        case 2: text(&f, m->producer, sizeof m->producer); break;
        case 3: text(&f, version, sizeof version); break;
        case 7: read_graph(f.span, m); break;
        case 8: read_opset(f.span, m); break;
        case 14:
            assert_true(m->n_entries < 32);
            read_entry(f.span, &m->entries[m->n_entries++]);
            break;
        default: UNKNOWN("the model", f);
        }
    }
}

void onnx_read_free(read_model_t *m)
{
    free(m->nodes);
    free(m->constants);
    memset(m, 0, sizeof *m);
}

const read_tensor_t *onnx_read_constant(const read_model_t *m, const char *name)
{
    for (int i = 0; i < m->n_constants; i++) {
        if (strcmp(m->constants[i].name, name) == 0)
            return &m->constants[i];
    }
    return NULL;
}

const read_attr_t *onnx_read_attr(const read_node_t *node, const char *name)
{
    for (int i = 0; i < node->n_attrs; i++) {
        if (strcmp(node->attrs[i].name, name) == 0)
            return &node->attrs[i];
    }
    return NULL;
}

const char *onnx_read_entry(const read_model_t *m, const char *key)
{
    for (int i = 0; i < m->n_entries; i++) {
        if (strcmp(m->entries[i].key, key) == 0)
            return m->entries[i].value;
    }
    return NULL;
}
