/* Files that a model begins from, .safetensors or .pt: whole files (modelfile), and the pickle in one
 * (pickle), around which an archive is put that fits, because hardly a changed byte would get past
 * the archive's own checks. Their weights are taken into a small model. */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model.h"

#include "shm/err.h"
#include "trainer/modelfile.h"
#include "trainer/weights.h"

#include <stdlib.h>
#include <string.h>

enum { ELEMENTS_MOST = 1 << 20, STORAGE_BYTES = 4096 };

static void look_at(const tensorview_t *v)
{
    fuzz_require(v->ndim >= 0 && v->ndim <= TENSORVIEW_DIMS, "a tensor of impossible rank");
    fuzz_touch(v->name, strlen(v->name) + 1);
    tensorview_integer(v, 0);
    if (!tensorview_is_float(v) || v->count > ELEMENTS_MOST)
        return;
    float *values = malloc((v->count + 1) * sizeof *values);
    fuzz_require(values != NULL, "no memory");
    tensorview_floats(v, values);
    free(values);
}

static void use(const modelfile_t *f)
{
    static float *weights, *buffers;
    static const char *const names[] = {"scratch", "pit"};
    const graph_t *g = fuzz_small_model();
    weights_report_t report;
    char text[512];
    int32_t n;
    if (!weights) {
        weights = calloc(graph_sizes(g)->weights, sizeof *weights);
        buffers = calloc(graph_sizes(g)->buffers, sizeof *buffers);
    }
    fuzz_require(weights && buffers, "no memory");
    for (int32_t i = 0; i < modelfile_count(f); i++) {
        const tensorview_t *v = modelfile_at(f, i);
        look_at(v);
        fuzz_require(modelfile_find(f, v->name) != NULL, "a name is not found again");
    }
    const char *const *classes = modelfile_classes(f, &n);
    for (int32_t i = 0; i < n; i++)
        fuzz_touch(classes[i], strlen(classes[i]) + 1);
    modelfile_describe(f, text, sizeof text);
    if (weights_transfer(g, f, names, 2, weights, buffers, &report) == 0) {
        fuzz_require(report.moved >= 0 && report.moved <= report.of, "more tensors than there are");
        weights_say(&report, "fuzz", text, sizeof text);
    }
}

static void take(const void *file, size_t bytes)
{
    modelfile_t *f = NULL;
    int rc = modelfile_open_memory(file, bytes, "fuzz.pt", &f);
    fuzz_require((rc == 0) == (f != NULL), "a file and an error");
    if (rc < 0)
        fuzz_require(rc == ERR_CONFIG && err_text()[0], "bytes of a file failed as something else");
    else
        use(f);
    modelfile_free(&f);
}

void fuzz_modelfile(const uint8_t *data, size_t bytes)
{
    char *file = malloc(bytes ? bytes : 1);
    fuzz_require(file != NULL, "no memory");
    memcpy(file, data, bytes);
    take(file, bytes);
    free(file);
}

/* ---- an archive around a pickle (APPNOTE.TXT 6.3: 4.3.7, 4.3.12, 4.3.16) ---- */

typedef struct {
    uint8_t *data;
    size_t used;
} zip_t;

static void put(zip_t *z, uint64_t value, int width)
{
    for (int i = 0; i < width; i++)
        z->data[z->used++] = i < 8 ? (uint8_t)(value >> 8 * i) : 0;
}

static void put_bytes(zip_t *z, const void *data, size_t bytes)
{
    if (bytes > 0)
        memcpy(z->data + z->used, data, bytes);
    z->used += bytes;
}

typedef struct {
    const char *name;
    const void *data;
    size_t bytes, header;
} member_t;

/* What the local header and the directory share; a checksum of 0 was left out by the writer. */
static void put_common(zip_t *z, const member_t *m)
{
    put(z, 0, 2); /* flags */
    put(z, 0, 2); /* stored */
    put(z, 0, 4); /* time and date */
    put(z, 0, 4); /* checksum */
    put(z, m->bytes, 4);
    put(z, m->bytes, 4);
    put(z, strlen(m->name), 2);
    put(z, 0, 2); /* extra field */
}

static void put_archive(zip_t *z, member_t *members, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        members[i].header = z->used;
        put(z, 0x04034b50, 4);
        put(z, 20, 2);
        put_common(z, &members[i]);
        put_bytes(z, members[i].name, strlen(members[i].name));
        put_bytes(z, members[i].data, members[i].bytes);
    }
    size_t directory = z->used;
    for (size_t i = 0; i < n; i++) {
        put(z, 0x02014b50, 4);
        put(z, 20, 2);
        put(z, 20, 2);
        put_common(z, &members[i]);
        put(z, 0, 2 + 2 + 2 + 4); /* comment, disk, attributes */
        put(z, members[i].header, 4);
        put_bytes(z, members[i].name, strlen(members[i].name));
    }
    size_t end = z->used;
    put(z, 0x06054b50, 4);
    put(z, 0, 4);
    put(z, n, 2);
    put(z, n, 2);
    put(z, end - directory, 4);
    put(z, directory, 4);
    put(z, 0, 2);
}

void fuzz_pickle(const uint8_t *data, size_t bytes)
{
    static const uint8_t storage[STORAGE_BYTES];
    member_t members[] = {
        {"archive/data.pkl", data, bytes, 0},
        {"archive/byteorder", "little", 6, 0},
        {"archive/data/0", storage, sizeof storage, 0},
        {"archive/data/1", storage, 64, 0},
        {"archive/version", "3\n", 2, 0},
    };
    zip_t z = {.data = malloc(bytes + 3 * STORAGE_BYTES)};
    fuzz_require(z.data != NULL, "no memory");
    put_archive(&z, members, sizeof members / sizeof members[0]);
    take(z.data, z.used);
    free(z.data);
}
