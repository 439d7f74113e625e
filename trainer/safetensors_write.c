/* The writing half of safetensors.h.
 *
 * The header lists tensors in the order in which they were added; the data lies in order of falling
 * element size (stable), so that every tensor is aligned to its elements once the header's end is a
 * multiple of 8.
 */
#include "trainer/safetensors.h"

#include "shm/err.h"
#include "trainer/safetensors_json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *name, *dtype;
    void *data;
    uint64_t bytes, first; /* length and place of the data */
    uint32_t element;      /* bytes of one */
    int32_t ndim;
    int64_t shape[8];
} tensor_t;

struct safetensors_writer {
    tensor_t *tensors;
    int32_t count, room;
    char *metadata; /* "key":"value",... as JSON, NUL-terminated; NULL if none */
    size_t metadata_bytes;
    uint64_t metadata_sum;
    uint64_t data; /* bytes of all tensors */
};

static int no_memory(const char *what)
{
    return err_set(ERR_ENV, "out of memory while laying %s into a safetensors image", what);
}

/* One tensor's part of the header: `"name":{...}`. With out NULL only its length. */
static size_t tensor_header(char *out, const tensor_t *t)
{
    char text[512];
    size_t n = stjson_quote(out, t->name);
    size_t k = (size_t)snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
    for (int32_t i = 0; i < t->ndim; i++)
        k += (size_t)snprintf(text + k, sizeof text - k, "%s%" PRId64, i ? "," : "", t->shape[i]);
    k +=
        (size_t)snprintf(text + k, sizeof text - k, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                         t->first, t->first + t->bytes);
    if (out)
        memcpy(out + n, text, k);
    return n + k;
}

/* Gives every tensor its place: behind all with larger elements, and equal ones added before it. */
static void place(safetensors_writer_t *w)
{
    w->data = 0;
    for (uint32_t element = 8; element > 0; element /= 2) {
        for (int32_t i = 0; i < w->count; i++) {
            if (w->tensors[i].element != element)
                continue;
            w->tensors[i].first = w->data;
            w->data += w->tensors[i].bytes;
        }
    }
}

/* The header as text; out NULL: its length only, without the spaces that round it up. */
static size_t header_text(const safetensors_writer_t *w, char *out)
{
    size_t n = 0;
    static const char meta[] = "\"__metadata__\":{";
    if (out)
        out[n] = '{';
    n++;
    if (w->metadata) {
        if (out) {
            memcpy(out + n, meta, sizeof meta - 1);
            memcpy(out + n + sizeof meta - 1, w->metadata, w->metadata_bytes);
            out[n + sizeof meta - 1 + w->metadata_bytes] = '}';
        }
        n += sizeof meta - 1 + w->metadata_bytes + 1;
    }
    for (int32_t i = 0; i < w->count; i++) {
        if (n > 1) {
            if (out)
                out[n] = ',';
            n++;
        }
        n += tensor_header(out ? out + n : NULL, &w->tensors[i]);
    }
    if (out)
        out[n] = '}';
    return n + 1;
}

/* Bytes of the header with the spaces that bring the data to a multiple of 8. */
static uint64_t header_bytes(const safetensors_writer_t *w)
{
    return (header_text(w, NULL) + 7) / 8 * 8;
}

int safetensors_writer_new(safetensors_writer_t **w)
{
    *w = calloc(1, sizeof **w);
    return *w ? 0 : no_memory("tensors");
}

static void tensor_fini(tensor_t *t)
{
    free(t->name);
    free(t->dtype);
    free(t->data);
}

void safetensors_writer_free(safetensors_writer_t **w)
{
    if (!*w)
        return;
    for (int32_t i = 0; i < (*w)->count; i++)
        tensor_fini(&(*w)->tensors[i]);
    free((*w)->tensors);
    free((*w)->metadata);
    free(*w);
    *w = NULL;
}

int safetensors_writer_metadata(safetensors_writer_t *w, const char *key, const char *value)
{
    size_t comma = w->metadata ? 1 : 0;
    size_t more = comma + stjson_quote(NULL, key) + 1 + stjson_quote(NULL, value);
    char *text = realloc(w->metadata, w->metadata_bytes + more + 1);
    if (!text)
        return no_memory(key);
    w->metadata = text;
    text += w->metadata_bytes;
    if (comma)
        *text++ = ',';
    text += stjson_quote(text, key);
    *text++ = ':';
    text += stjson_quote(text, value);
    *text = 0;
    w->metadata_bytes += more;
    w->metadata_sum += safetensors_pair_sum(key, value);
    return 0;
}

uint64_t safetensors_writer_sum(const safetensors_writer_t *w)
{
    return w->metadata_sum;
}

/* Bytes that a shape asks for; -1 if it is not usable. */
static int shape_bytes(uint32_t element, const int64_t *shape, int32_t ndim, uint64_t *bytes)
{
    *bytes = element;
    if (element == 0 || ndim < 0 || ndim > 8)
        return -1;
    for (int32_t i = 0; i < ndim; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(*bytes, (uint64_t)shape[i], bytes))
            return -1;
    }
    return 0;
}

static int find(const safetensors_writer_t *w, const char *name)
{
    for (int32_t i = 0; i < w->count; i++) {
        if (strcmp(w->tensors[i].name, name) == 0)
            return i;
    }
    return -1;
}

int safetensors_writer_add(safetensors_writer_t *w, const char *name, const char *dtype,
                           const int64_t *shape, int32_t ndim, const void *data, uint64_t bytes)
{
    uint64_t asked;
    uint32_t element = safetensors_dtype_bytes(dtype);
    if (shape_bytes(element, shape, ndim, &asked) || asked != bytes)
        return err_set(ERR_FAILED, "tensor %s: %llu bytes do not fit its %s shape", name,
                       (unsigned long long)bytes, dtype);
    if (find(w, name) >= 0 || strcmp(name, "__metadata__") == 0)
        return err_set(ERR_FAILED, "tensor %s is already in the file", name);
    if (w->count == w->room) {
        int32_t room = w->room ? w->room * 2 : 64;
        tensor_t *more = realloc(w->tensors, (size_t)room * sizeof *more);
        if (!more)
            return no_memory(name);
        w->tensors = more;
        w->room = room;
    }
    tensor_t t = {.name = strdup(name),
                  .dtype = strdup(dtype),
                  .data = malloc(bytes ? bytes : 1),
                  .bytes = bytes,
                  .element = element,
                  .ndim = ndim};
    if (!t.name || !t.dtype || !t.data) {
        tensor_fini(&t);
        return no_memory(name);
    }
    if (ndim)
        memcpy(t.shape, shape, (size_t)ndim * sizeof *shape);
    if (bytes)
        memcpy(t.data, data, bytes);
    w->tensors[w->count++] = t;
    place(w);
    return 0;
}

uint64_t safetensors_writer_bytes(const safetensors_writer_t *w)
{
    return 8 + header_bytes(w) + w->data;
}

int safetensors_writer_image(const safetensors_writer_t *w, void *out, uint64_t bytes)
{
    unsigned char *p = out;
    uint64_t header = header_bytes(w);
    if (bytes < 8 + header + w->data)
        return err_set(ERR_FAILED, "a safetensors image of %llu bytes does not fit in %llu",
                       (unsigned long long)(8 + header + w->data), (unsigned long long)bytes);
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)(header >> (8 * i));
    memset(p + 8, ' ', header);
    header_text(w, (char *)p + 8);
    for (int32_t i = 0; i < w->count; i++) {
        const tensor_t *t = &w->tensors[i];
        if (t->bytes)
            memcpy(p + 8 + header + t->first, t->data, t->bytes);
    }
    return 0;
}
