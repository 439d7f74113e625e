/* From what the pickle says of a tensor to a view of its bytes.
 *
 * torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks) is how every
 * dense tensor is written; a Parameter and a tensor with attributes wrap it. The storage is a
 * persistent id ('storage', torch.FloatStorage, key, device, elements): member ROOT/data/KEY. Sizes
 * and offsets count elements.
 */
#include "trainer/torchfile_internal.h"

#include "shm/err.h"
#include "trainer/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { WRAPPERS_MAX = 4 };

static const struct {
    const char *storage, *dtype;
} storages[] = {
    {"FloatStorage", "F32"},  {"HalfStorage", "F16"}, {"BFloat16Storage", "BF16"},
    {"DoubleStorage", "F64"}, {"LongStorage", "I64"}, {"IntStorage", "I32"},
    {"ShortStorage", "I16"},  {"CharStorage", "I8"},  {"ByteStorage", "U8"},
    {"BoolStorage", "BOOL"},
};

__attribute__((format(printf, 3, 4))) static int
bad_tensor(const torchfile_t *f, const tensorview_t *v, const char *fmt, ...)
{
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(ERR_CONFIG, "%s: tensor %s %s", f->origin, v->name, what);
}

/* The arguments of _rebuild_tensor_v2 under the node's wrappers; NULL if it is no tensor. */
static const pickle_node_t *rebuild_args(const pickle_node_t *n)
{
    for (int depth = 0; n && n->kind == PICKLE_CALL && depth < WRAPPERS_MAX; depth++) {
        const pickle_node_t *args = n->args;
        if (pickle_is_global(n->of, "torch._utils", "_rebuild_tensor_v2"))
            return args;
        if (pickle_is_global(n->of, "torch._utils", "_rebuild_parameter") ||
            pickle_is_global(n->of, "torch._utils", "_rebuild_parameter_with_state")) {
            n = args->count > 0 ? args->items[0] : NULL;
        } else if (pickle_is_global(n->of, "torch._tensor", "_rebuild_from_type_v2")) {
            /* (function, type, its arguments, state) */
            const int plain =
                args->count == 4 && args->items[2]->kind == PICKLE_TUPLE &&
                pickle_is_global(args->items[0], "torch._utils", "_rebuild_tensor_v2");
            return plain ? args->items[2] : NULL;
        } else {
            return NULL;
        }
    }
    return NULL;
}

int torchfile_is_tensor(const pickle_node_t *n)
{
    return rebuild_args(n) != NULL;
}

/* Up to 8 numbers >= 0; how many, or -1. */
static int32_t numbers(const pickle_node_t *n, int64_t *values)
{
    if (n->kind != PICKLE_TUPLE || n->count > TENSORVIEW_DIMS)
        return -1;
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->items[i]->kind != PICKLE_INT || n->items[i]->integer < 0)
            return -1;
        values[i] = n->items[i]->integer;
    }
    return (int32_t)n->count;
}

static const char *storage_dtype(const pickle_node_t *class)
{
    for (size_t i = 0; i < sizeof storages / sizeof *storages; i++) {
        if (pickle_is_global(class, "torch", storages[i].storage))
            return storages[i].dtype;
    }
    return NULL;
}

/* The member of a storage's key, or NULL; a key with a slash would name something else. */
static const zipfile_member_t *find_member(const torchfile_t *f, const pickle_node_t *key)
{
    char name[2 * TORCHFILE_NAME];
    if (key->kind != PICKLE_TEXT || key->bytes == 0 || key->bytes > 64 ||
        memchr(key->text, '/', key->bytes))
        return NULL;
    const int n = snprintf(name, sizeof name, "%sdata/", f->root);
    memcpy(name + n, key->text, key->bytes);
    return zipfile_find(f->zip, name, (size_t)n + key->bytes);
}

static int open_storage(torchfile_t *f, const pickle_node_t *n, const tensorview_t *v,
                        const torchfile_storage_t **storage)
{
    const pickle_node_t *id = n->kind == PICKLE_PERSISTENT ? n->args : NULL;
    char name[96];
    if (!id || id->kind != PICKLE_TUPLE || id->count < 5 ||
        !pickle_is_text(id->items[0], "storage"))
        return bad_tensor(f, v, "has no storage that is understood");
    const char *dtype = storage_dtype(id->items[1]);
    pickle_copy_name(id->items[1], name, sizeof name);
    if (!dtype)
        return bad_tensor(f, v, "is of the storage class %s, which is not known", name);
    if (id->items[4]->kind != PICKLE_INT || id->items[4]->integer < 0)
        return bad_tensor(f, v, "has a storage of no size");
    const uint64_t elements = (uint64_t)id->items[4]->integer;
    const zipfile_member_t *m = find_member(f, id->items[2]);
    if (!m)
        return bad_tensor(f, v, "lies in a storage that is not in the archive");
    torchfile_storage_t *s = &f->storages[m - zipfile_at(f->zip, 0)];
    if (s->seen && (strcmp(s->dtype, dtype) != 0 || s->elements != elements))
        return bad_tensor(f, v, "lies in a storage that another tensor sees as another one");
    if (!s->seen) {
        uint64_t bytes;
        int rc = zipfile_read(f->zip, m, &s->data);
        if (rc < 0)
            return rc;
        if (__builtin_mul_overflow(elements, (uint64_t)safetensors_dtype_bytes(dtype), &bytes) ||
            bytes != m->bytes)
            return bad_tensor(f, v, "has a storage of %llu elements (%s) in a member of %llu bytes",
                              (unsigned long long)elements, dtype, (unsigned long long)m->bytes);
        snprintf(s->dtype, sizeof s->dtype, "%s", dtype);
        s->elements = elements;
        s->seen = 1;
    }
    *storage = s;
    return 0;
}

/* Every element lies in the storage, and there are no more of them than it has. */
static int check_extent(const torchfile_t *f, const torchfile_storage_t *s, uint64_t offset,
                        tensorview_t *v)
{
    uint64_t count = 1, last = offset, span;
    for (int32_t i = 0; i < v->ndim; i++) {
        if (__builtin_mul_overflow(count, (uint64_t)v->shape[i], &count))
            return bad_tensor(f, v, "has a shape that is too large");
    }
    for (int32_t i = 0; i < v->ndim && count > 0; i++) {
        if (__builtin_mul_overflow((uint64_t)v->shape[i] - 1, (uint64_t)v->stride[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return bad_tensor(f, v, "has strides that are too large");
    }
    if (count > s->elements || offset > s->elements || (count > 0 && last >= s->elements))
        return bad_tensor(f, v, "reaches beyond its storage of %llu elements",
                          (unsigned long long)s->elements);
    v->count = count;
    return 0;
}

int torchfile_view(torchfile_t *f, const pickle_node_t *n, tensorview_t *v)
{
    const pickle_node_t *args = rebuild_args(n);
    const torchfile_storage_t *s = NULL;
    int rc;
    if (!args || args->count < 4 || args->items[1]->kind != PICKLE_INT)
        return bad_tensor(f, v, "is not written in a way that is understood");
    const int64_t offset = args->items[1]->integer;
    v->ndim = numbers(args->items[2], v->shape);
    if (offset < 0 || v->ndim < 0 || numbers(args->items[3], v->stride) != v->ndim)
        return bad_tensor(f, v,
                          "has an offset, a shape or strides that are no lists of up to %d numbers "
                          "from 0 up",
                          TENSORVIEW_DIMS);
    if ((rc = open_storage(f, args->items[0], v, &s)) < 0 ||
        (rc = check_extent(f, s, (uint64_t)offset, v)) < 0)
        return rc;
    snprintf(v->dtype, sizeof v->dtype, "%s", s->dtype);
    v->data = (const char *)s->data + (uint64_t)offset * safetensors_dtype_bytes(s->dtype);
    return 0;
}
