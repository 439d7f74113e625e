#include "tests/pt_build.h"

#include "trainer/weights.h"
#include "trainer/zipfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(int truth)
{
    if (!truth)
        abort();
}

void blob_add(blob_t *b, const void *data, size_t bytes)
{
    if (b->bytes + bytes > b->room) {
        b->room = 2 * (b->bytes + bytes) + 256;
        b->at = realloc(b->at, b->room);
        need(b->at != NULL);
    }
    if (bytes)
        memcpy(b->at + b->bytes, data, bytes);
    b->bytes += bytes;
}

void blob_byte(blob_t *b, int byte)
{
    const unsigned char c = (unsigned char)byte;
    blob_add(b, &c, 1);
}

void blob_number(blob_t *b, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        blob_byte(b, i < 8 ? (int)(value >> (8 * i) & 255) : 0);
}

void blob_set(blob_t *b, size_t at, uint64_t value, int bytes)
{
    need(at + (size_t)bytes <= b->bytes);
    for (int i = 0; i < bytes; i++)
        b->at[at + (size_t)i] = (unsigned char)(value >> (8 * i));
}

void blob_free(blob_t *b)
{
    free(b->at);
    memset(b, 0, sizeof *b);
}

/* ---- archives ---- */

void zip_add(zip_t *z, const char *name, const void *data, size_t bytes)
{
    need(z->n < ZIP_MEMBERS);
    zip_member_t *m = &z->members[z->n++];
    *m = (zip_member_t){
        .name = name, .header = z->out.bytes, .bytes = bytes, .crc = zipfile_crc32(0, data, bytes)};
    blob_number(&z->out, 0x04034B50, 4);
    blob_number(&z->out, 20, 2);
    blob_number(&z->out, 0, 8); /* flags, method, time, date */
    blob_number(&z->out, m->crc, 4);
    blob_number(&z->out, bytes, 4);
    blob_number(&z->out, bytes, 4);
    blob_number(&z->out, strlen(name), 2);
    blob_number(&z->out, 0, 2);
    blob_add(&z->out, name, strlen(name));
    m->data = z->out.bytes;
    blob_add(&z->out, data, bytes);
}

static void directory(zip_t *z)
{
    z->directory = z->out.bytes;
    for (int i = 0; i < z->n; i++) {
        zip_member_t *m = &z->members[i];
        m->central = z->out.bytes;
        blob_number(&z->out, 0x02014B50, 4);
        blob_number(&z->out, 20, 2);
        blob_number(&z->out, 20, 2);
        blob_number(&z->out, 0, 8);
        blob_number(&z->out, m->crc, 4);
        blob_number(&z->out, m->bytes, 4);
        blob_number(&z->out, m->bytes, 4);
        blob_number(&z->out, strlen(m->name), 2);
        blob_number(&z->out, 0, 12); /* extra, comment, disk, attributes */
        blob_number(&z->out, m->header, 4);
        blob_add(&z->out, m->name, strlen(m->name));
    }
}

static void end_record(zip_t *z, uint64_t entries, uint64_t size, uint64_t offset)
{
    z->end = z->out.bytes;
    blob_number(&z->out, 0x06054B50, 4);
    blob_number(&z->out, 0, 4);
    blob_number(&z->out, entries, 2);
    blob_number(&z->out, entries, 2);
    blob_number(&z->out, size, 4);
    blob_number(&z->out, offset, 4);
    blob_number(&z->out, 0, 2);
}

void zip_end(zip_t *z)
{
    directory(z);
    const size_t bytes = z->out.bytes - z->directory;
    end_record(z, (uint64_t)z->n, bytes, z->directory);
}

void zip_end64(zip_t *z)
{
    directory(z);
    const size_t bytes = z->out.bytes - z->directory, at = z->out.bytes;
    blob_number(&z->out, 0x06064B50, 4);
    blob_number(&z->out, 44, 8);
    blob_number(&z->out, 45, 2);
    blob_number(&z->out, 45, 2);
    blob_number(&z->out, 0, 8);
    blob_number(&z->out, (uint64_t)z->n, 8);
    blob_number(&z->out, (uint64_t)z->n, 8);
    blob_number(&z->out, bytes, 8);
    blob_number(&z->out, z->directory, 8);
    blob_number(&z->out, 0x07064B50, 4);
    blob_number(&z->out, 0, 4);
    blob_number(&z->out, at, 8);
    blob_number(&z->out, 1, 4);
    end_record(z, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF);
}

void zip_free(zip_t *z)
{
    blob_free(&z->out);
    memset(z, 0, sizeof *z);
}

/* ---- pickles ---- */

void pk_begin(blob_t *b)
{
    blob_add(b, "\x80\x02", 2);
}

void pk_text(blob_t *b, const char *text)
{
    blob_byte(b, 'X');
    blob_number(b, strlen(text), 4);
    blob_add(b, text, strlen(text));
}

void pk_int(blob_t *b, int64_t value)
{
    blob_byte(b, 0x8A);
    blob_byte(b, 8);
    blob_number(b, (uint64_t)value, 8);
}

void pk_global(blob_t *b, const char *module, const char *name)
{
    blob_byte(b, 'c');
    blob_add(b, module, strlen(module));
    blob_byte(b, '\n');
    blob_add(b, name, strlen(name));
    blob_byte(b, '\n');
}

static void pk_numbers(blob_t *b, const int64_t *values, int n)
{
    blob_byte(b, '(');
    for (int i = 0; i < n; i++)
        pk_int(b, values[i]);
    blob_byte(b, 't');
}

void pk_tensor(blob_t *b, const pk_tensor_t *t)
{
    pk_global(b, "torch._utils", "_rebuild_tensor_v2");
    blob_add(b, "((", 2);
    pk_text(b, "storage");
    pk_global(b, "torch", t->storage);
    pk_text(b, t->key);
    pk_text(b, "cpu");
    pk_int(b, t->elements);
    blob_add(b, "tQ", 2);
    pk_int(b, t->offset);
    pk_numbers(b, t->shape, t->ndim);
    pk_numbers(b, t->stride, t->ndim);
    blob_add(b, "\x89", 1);
    pk_global(b, "collections", "OrderedDict");
    blob_add(b, ")RtR", 4);
}

/* ---- files ---- */

void pt_file(zip_t *z, blob_t *pickle, int floats)
{
    float *data = calloc((size_t)floats + 1, sizeof *data);
    need(data != NULL);
    for (int i = 0; i < floats; i++)
        data[i] = (float)i;
    memset(z, 0, sizeof *z);
    zip_add(z, "a/data.pkl", pickle->at, pickle->bytes);
    zip_add(z, "a/byteorder", "little", 6);
    zip_add(z, "a/data/0", data, (size_t)floats * sizeof *data);
    zip_end(z);
    free(data);
    blob_free(pickle);
}

/* A parameter's values in state-dict order. */
static void values_of(const graph_param_t *p, const float *weights, const float *buffers,
                      float *out)
{
    const float *in = (p->place == GRAPH_BUFFER ? buffers : weights) + p->first;
    for (uint64_t i = 0; i < p->count; i++)
        out[i] = p->place == GRAPH_CONSTANT ? (float)i : in[weights_place(p, i)];
}

static void put_param(zip_t *z, blob_t *pickle, const graph_param_t *p, const float *weights,
                      const float *buffers, const char *prefix, int number)
{
    static char members[ZIP_MEMBERS][24];
    char name[256], key[16];
    snprintf(name, sizeof name, "%s%s", prefix, p->name);
    snprintf(key, sizeof key, "%d", number);
    snprintf(members[number], sizeof members[number], "m/data/%d", number);
    pk_tensor_t t = {.storage = "FloatStorage", .key = key, .ndim = p->ndim, .elements = 1};
    for (int d = p->ndim - 1; d >= 0; d--) {
        t.shape[d] = p->shape[d];
        t.stride[d] = t.elements;
        t.elements *= p->shape[d];
    }
    pk_text(pickle, name);
    if (p->place == GRAPH_COUNTER) {
        const int64_t batches = 33;
        t.storage = "LongStorage";
        zip_add(z, members[number], &batches, sizeof batches);
    } else {
        float *values = malloc(p->count * sizeof *values);
        need(values != NULL);
        values_of(p, weights, buffers, values);
        zip_add(z, members[number], values, p->count * sizeof *values);
        free(values);
    }
    pk_tensor(pickle, &t);
}

void pt_checkpoint(zip_t *z, const graph_t *g, const float *weights, const float *buffers,
                   const char *prefix, const char *const *names)
{
    blob_t pickle = {0};
    memset(z, 0, sizeof *z);
    pk_begin(&pickle);
    blob_add(&pickle, "}(", 2);
    pk_text(&pickle, "model");
    pk_global(&pickle, "collections", "OrderedDict");
    blob_add(&pickle, ")R(", 3);
    for (int32_t i = 0; i < graph_params(g); i++)
        put_param(z, &pickle, graph_param(g, i), weights, buffers, prefix, i);
    blob_byte(&pickle, 'u');
    if (names) {
        pk_text(&pickle, "names");
        blob_byte(&pickle, '(');
        for (int i = 0; i < graph_classes(g); i++)
            pk_text(&pickle, names[i]);
        blob_byte(&pickle, 'l');
    }
    blob_add(&pickle, "u.", 2);
    zip_add(z, "m/data.pkl", pickle.at, pickle.bytes);
    zip_end(z);
    blob_free(&pickle);
}
