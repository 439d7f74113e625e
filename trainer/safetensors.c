#include "trainer/safetensors.h"

#include "control/wire.h"
#include "shm/err.h"
#include "trainer/readfile.h"
#include "trainer/safetensors_json.h"

#include <stdlib.h>
#include <string.h>

/* The format's own limit on the header, so that a hostile length costs nothing. */
#define HEADER_MAX 100000000u

typedef struct {
    const char *key, *value;
} metadata_t;

struct safetensors {
    char *origin;  /* path or what the caller calls it: for messages */
    void *owned;   /* the file's bytes, when loaded from a file */
    char *strings; /* decoded names and metadata; no longer than the header */
    size_t strings_used;
    safetensors_entry_t *entries;
    uint64_t (*offsets)[2]; /* of the data, as written; parallel to entries while reading */
    int32_t *by_name;       /* entry numbers in order of name */
    metadata_t *metadata;
    int32_t count, metadata_count, room, metadata_room;
};

static const struct {
    const char *name;
    uint32_t bytes;
} dtypes[] = {
    {"F64", 8},  {"I64", 8}, {"U64", 8},  {"F32", 4},     {"I32", 4},
    {"U32", 4},  {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},
    {"BOOL", 1}, {"I8", 1},  {"U8", 1},   {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

uint32_t safetensors_dtype_bytes(const char *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, dtype) == 0)
            return dtypes[i].bytes;
    }
    return 0;
}

static int broken(const safetensors_t *f, const char *what)
{
    return err_set(ERR_CONFIG, "%s: not a usable safetensors file: %s", f->origin, what);
}

static int out_of_memory(const safetensors_t *f)
{
    return err_set(ERR_ENV, "%s: out of memory while reading the header", f->origin);
}

/* Makes room for one more element of an array of `size` bytes each. */
static int grow(void **array, int32_t *room, int32_t count, size_t size)
{
    if (count < *room)
        return 0;
    int32_t more = *room ? *room * 2 : 64;
    void *bigger = realloc(*array, (size_t)more * size);
    if (!bigger)
        return -1;
    *array = bigger;
    *room = more;
    return 0;
}

static int read_string(safetensors_t *f, stjson_t *j, const char **text)
{
    size_t length, room = stjson_string_room(j);
    char *out = f->strings + f->strings_used;
    if (stjson_string(j, out, room, &length))
        return -1;
    f->strings_used += length + 1;
    *text = out;
    return 0;
}

static int read_metadata(safetensors_t *f, stjson_t *j)
{
    int rc = 0;
    if (f->metadata)
        return broken(f, "__metadata__ appears twice");
    f->metadata_room = 0;
    if (grow((void **)&f->metadata, &f->metadata_room, 0, sizeof *f->metadata))
        return out_of_memory(f);
    if (stjson_expect(j, '{'))
        return broken(f, j->what);
    if (stjson_accept(j, '}') == 1)
        return 0;
    do {
        if (grow((void **)&f->metadata, &f->metadata_room, f->metadata_count, sizeof *f->metadata))
            return out_of_memory(f);
        metadata_t *m = &f->metadata[f->metadata_count];
        if (read_string(f, j, &m->key) || stjson_expect(j, ':') || read_string(f, j, &m->value))
            return broken(f, j->what);
        f->metadata_count++;
    } while ((rc = stjson_accept(j, ',')) == 1);
    return stjson_expect(j, '}') ? broken(f, j->what) : 0;
}

/* A list of up to `most` numbers; returns how many, or -1 with j->what. */
static int read_list(stjson_t *j, int64_t *values, int32_t most)
{
    int32_t n = 0;
    if (stjson_expect(j, '['))
        return -1;
    if (stjson_accept(j, ']') == 1)
        return 0;
    do {
        if (n == most) {
            j->what = "a list has too many numbers";
            return -1;
        }
        if (stjson_integer(j, &values[n++]))
            return -1;
    } while (stjson_accept(j, ',') == 1);
    return stjson_expect(j, ']') ? -1 : n;
}

/* One of a tensor's three fields; seen collects which have come. */
static int read_field(stjson_t *j, safetensors_entry_t *e, uint64_t offsets[2], uint32_t *seen)
{
    char key[16];
    size_t length;
    int64_t pair[2];
    uint32_t field;
    if (stjson_string(j, key, sizeof key, &length) || stjson_expect(j, ':'))
        return -1;
    if (strcmp(key, "dtype") == 0) {
        field = 1;
        if (stjson_string(j, e->dtype, sizeof e->dtype, &length))
            return -1;
    } else if (strcmp(key, "shape") == 0) {
        field = 2;
        e->ndim = read_list(j, e->shape, 8);
        if (e->ndim < 0)
            return -1;
    } else if (strcmp(key, "data_offsets") == 0) {
        field = 4;
        int n = read_list(j, pair, 2);
        if (n >= 0 && n != 2)
            j->what = "data_offsets is not a pair";
        if (n != 2)
            return -1;
        offsets[0] = (uint64_t)pair[0];
        offsets[1] = (uint64_t)pair[1];
    } else {
        j->what = "a tensor has a field other than dtype, shape and data_offsets";
        return -1;
    }
    if (*seen & field) {
        j->what = "a tensor's field appears twice";
        return -1;
    }
    *seen |= field;
    return 0;
}

/* Compares what a tensor says of itself: bytes by shape and dtype, bytes by offsets, and the data
 * there is. */
static int check_tensor(const safetensors_t *f, safetensors_entry_t *e, const uint64_t offsets[2],
                        uint64_t data_bytes)
{
    uint64_t bytes = safetensors_dtype_bytes(e->dtype);
    if (bytes == 0)
        return err_set(ERR_CONFIG, "%s: tensor %s has the unknown dtype %s", f->origin, e->name,
                       e->dtype);
    for (int32_t i = 0; i < e->ndim; i++) {
        if (__builtin_mul_overflow(bytes, (uint64_t)e->shape[i], &bytes))
            return err_set(ERR_CONFIG, "%s: the shape of tensor %s is too large", f->origin,
                           e->name);
    }
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes)
        return err_set(ERR_CONFIG,
                       "%s: tensor %s lies outside the file's %llu bytes of data: cut short?",
                       f->origin, e->name, (unsigned long long)data_bytes);
    e->bytes = offsets[1] - offsets[0];
    if (e->bytes != bytes)
        return err_set(ERR_CONFIG, "%s: tensor %s has %llu bytes where its shape asks for %llu",
                       f->origin, e->name, (unsigned long long)e->bytes, (unsigned long long)bytes);
    return 0;
}

static int read_tensor(safetensors_t *f, stjson_t *j, const char *name, const char *data,
                       uint64_t data_bytes)
{
    uint32_t seen = 0;
    int32_t offsets_room = f->room;
    if (grow((void **)&f->entries, &f->room, f->count, sizeof *f->entries) ||
        grow((void **)&f->offsets, &offsets_room, f->count, sizeof *f->offsets))
        return out_of_memory(f);
    safetensors_entry_t *e = &f->entries[f->count];
    uint64_t *offsets = f->offsets[f->count];
    memset(e, 0, sizeof *e);
    e->name = name;
    if (stjson_expect(j, '{'))
        return broken(f, j->what);
    do {
        if (read_field(j, e, offsets, &seen))
            return broken(f, j->what);
    } while (stjson_accept(j, ',') == 1);
    if (stjson_expect(j, '}'))
        return broken(f, j->what);
    if (seen != 7)
        return err_set(ERR_CONFIG, "%s: tensor %s lacks dtype, shape or data_offsets", f->origin,
                       name);
    int rc = check_tensor(f, e, offsets, data_bytes);
    if (rc < 0)
        return rc;
    e->data = data + offsets[0];
    f->count++;
    return 0;
}

static int compare_names(const void *a, const void *b, void *user)
{
    const safetensors_t *f = user;
    return strcmp(f->entries[*(const int32_t *)a].name, f->entries[*(const int32_t *)b].name);
}

static int compare_offsets(const void *a, const void *b, void *user)
{
    const safetensors_t *f = user;
    const uint64_t *x = f->offsets[*(const int32_t *)a], *y = f->offsets[*(const int32_t *)b];
    if (x[0] != y[0])
        return x[0] < y[0] ? -1 : 1;
    return x[1] < y[1] ? -1 : x[1] > y[1];
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const metadata_t *)a)->key, ((const metadata_t *)b)->key);
}

/* No key may come twice: readers would differ in which they take. */
static int check_metadata(safetensors_t *f)
{
    if (f->metadata_count > 1)
        qsort(f->metadata, (size_t)f->metadata_count, sizeof *f->metadata, compare_keys);
    for (int32_t i = 1; i < f->metadata_count; i++)
        if (strcmp(f->metadata[i].key, f->metadata[i - 1].key) == 0)
            return err_set(ERR_CONFIG, "%s: the metadata have '%.60s' twice", f->origin,
                           f->metadata[i].key);
    return 0;
}

/* The tensors must tile the data: no overlap, no hole, nothing behind. And no name may come twice.
 */
static int check_layout(safetensors_t *f, uint64_t data_bytes)
{
    uint64_t at = 0;
    f->by_name = malloc(((size_t)f->count + 1) * sizeof *f->by_name);
    if (!f->by_name)
        return out_of_memory(f);
    for (int32_t i = 0; i < f->count; i++)
        f->by_name[i] = i;
    qsort_r(f->by_name, (size_t)f->count, sizeof *f->by_name, compare_offsets, f);
    for (int32_t i = 0; i < f->count; i++) {
        const uint64_t *o = f->offsets[f->by_name[i]];
        if (o[0] != at)
            return err_set(ERR_CONFIG, "%s: tensor %s %s", f->origin,
                           f->entries[f->by_name[i]].name,
                           o[0] < at ? "overlaps another" : "leaves a hole before it");
        at = o[1];
    }
    if (at != data_bytes)
        return broken(f, "bytes follow the last tensor");
    qsort_r(f->by_name, (size_t)f->count, sizeof *f->by_name, compare_names, f);
    for (int32_t i = 1; i < f->count; i++) {
        const char *name = f->entries[f->by_name[i]].name;
        if (strcmp(name, f->entries[f->by_name[i - 1]].name) == 0)
            return err_set(ERR_CONFIG, "%s: tensor %s appears twice", f->origin, name);
    }
    return 0;
}

static int parse(safetensors_t *f, const void *bytes, uint64_t total)
{
    uint64_t length = 0;
    const unsigned char *p = bytes;
    if (total < 8)
        return broken(f, "shorter than the 8 bytes of the header's length");
    for (int i = 7; i >= 0; i--)
        length = length << 8 | p[i];
    if (length > HEADER_MAX)
        return broken(f, "the header's length is beyond 100 MB");
    if (length > total - 8)
        return broken(f, "the header is longer than the file: cut short?");
    /* Decoded strings are never longer than their text; the closing quote's byte pays for the NUL.
     */
    f->strings = malloc(length + 1);
    if (!f->strings)
        return out_of_memory(f);
    stjson_t j = {.text = (const char *)bytes + 8, .at = 0, .end = length};
    const char *data = (const char *)bytes + 8 + length;
    uint64_t data_bytes = total - 8 - length;
    if (length == 0 || j.text[0] != '{')
        return broken(f, "the header does not begin with {");
    j.at = 1;
    if (stjson_accept(&j, '}') != 1) {
        do {
            const char *name;
            if (read_string(f, &j, &name) || stjson_expect(&j, ':'))
                return broken(f, j.what);
            int rc = strcmp(name, "__metadata__") == 0 ? read_metadata(f, &j)
                                                       : read_tensor(f, &j, name, data, data_bytes);
            if (rc < 0)
                return rc;
        } while (stjson_accept(&j, ',') == 1);
        if (stjson_expect(&j, '}'))
            return broken(f, j.what);
    }
    if (stjson_finish(&j))
        return broken(f, j.what);
    int rc = check_metadata(f);
    return rc < 0 ? rc : check_layout(f, data_bytes);
}

int safetensors_load_memory(const void *data, uint64_t bytes, const char *origin,
                            safetensors_t **file)
{
    int rc = 0;
    safetensors_t *f = calloc(1, sizeof *f);
    *file = NULL;
    if (!f || !(f->origin = strdup(origin))) {
        free(f);
        return err_set(ERR_ENV, "%s: out of memory", origin);
    }
    CHECK_GOTO(parse(f, data, bytes), rc, fail);
    *file = f;
    return 0;
fail:
    safetensors_free(&f);
    return rc;
}

int safetensors_load_file(const char *path, safetensors_t **file)
{
    void *bytes = NULL;
    uint64_t total = 0;
    *file = NULL;
    int rc = readfile_all(path, &bytes, &total);
    if (rc < 0)
        return rc;
    rc = safetensors_load_memory(bytes, total, path, file);
    if (rc < 0) {
        free(bytes);
        return rc;
    }
    (*file)->owned = bytes;
    return 0;
}

void safetensors_free(safetensors_t **file)
{
    safetensors_t *f = *file;
    if (!f)
        return;
    free(f->origin);
    free(f->owned);
    free(f->strings);
    free(f->entries);
    free(f->offsets);
    free(f->by_name);
    free(f->metadata);
    free(f);
    *file = NULL;
}

int32_t safetensors_count(const safetensors_t *file)
{
    return file->count;
}

const safetensors_entry_t *safetensors_at(const safetensors_t *file, int32_t i)
{
    return i >= 0 && i < file->count ? &file->entries[i] : NULL;
}

const safetensors_entry_t *safetensors_find(const safetensors_t *file, const char *name)
{
    int32_t lo = 0, hi = file->count;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        const safetensors_entry_t *e = &file->entries[file->by_name[mid]];
        int order = strcmp(name, e->name);
        if (order == 0)
            return e;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const char *safetensors_metadata(const safetensors_t *file, const char *key)
{
    metadata_t wanted = {.key = key}, *found = NULL;
    if (file->metadata_count > 0)
        found = bsearch(&wanted, file->metadata, (size_t)file->metadata_count,
                        sizeof *file->metadata, compare_keys);
    return found ? found->value : NULL;
}

uint64_t safetensors_pair_sum(const char *key, const char *value)
{
    return wire_mix(wire_checksum(key, strlen(key)), wire_checksum(value, strlen(value)));
}

uint64_t safetensors_metadata_sum(const safetensors_t *file, const char *except)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < file->metadata_count; i++) {
        const metadata_t *m = &file->metadata[i];
        if (strcmp(m->key, except) != 0)
            sum += safetensors_pair_sum(m->key, m->value);
    }
    return sum;
}
