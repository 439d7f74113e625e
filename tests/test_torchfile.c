/* Files of torch.save: the forms that PyTorch wrote (tests/golden/pt, made by
 * tests/reference/pt_files.py), forms made here, and files that are made to hurt.
 */
#include "shm/err.h"
#include "tests/pt_build.h"
#include "tests/scratch.h"
#include "trainer/import.h"
#include "trainer/torchfile.h"
#include "trainer/weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- what PyTorch wrote ---- */

static const char *golden(const char *name)
{
    static char path[4096];
    const char *tests = getenv("SLUICE_TESTS");
    snprintf(path, sizeof path, "%s/golden/pt/%s.pt", tests ? tests : "tests", name);
    return path;
}

typedef struct {
    uint8_t *bytes;
    torchfile_t *f;
} file_t;

static file_t open_golden(const char *name)
{
    file_t file;
    size_t bytes;
    file.bytes = scratch_read(golden(name), &bytes);
    if (!file.bytes)
        fail_msg("%s cannot be read", golden(name));
    if (torchfile_open(file.bytes, bytes, name, &file.f) < 0)
        fail_msg("%s", err_text());
    return file;
}

static void close_file(file_t *file)
{
    torchfile_free(&file->f);
    free(file->bytes);
}

static const tensorview_t *tensor(const file_t *file, const char *name)
{
    for (int32_t i = 0; i < torchfile_count(file->f); i++) {
        if (strcmp(torchfile_at(file->f, i)->name, name) == 0)
            return torchfile_at(file->f, i);
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Element i is k + i / 8, as pt_files.py numbers them. */
static void check(const file_t *file, const char *name, const char *dtype, uint64_t count, int k)
{
    const tensorview_t *v = tensor(file, name);
    float values[64];
    assert_string_equal(v->dtype, dtype);
    assert_int_equal(v->count, count);
    assert_true(count <= 64 && tensorview_is_float(v));
    tensorview_floats(v, values);
    for (uint64_t i = 0; i < count; i++)
        assert_true(values[i] == (float)k + (float)i / 8);
}

static void check_state(const char *name, const char *dtype, const char *part)
{
    file_t file = open_golden(name);
    assert_int_equal(torchfile_count(file.f), 5);
    assert_string_equal(torchfile_info(file.f)->part, part);
    char full[64];
    const char *prefix = strncmp(torchfile_at(file.f, 0)->name, "module.", 7) == 0 ? "module." : "";
#define NAME(n) (snprintf(full, sizeof full, "%s%s", prefix, n), full)
    check(&file, NAME("conv.weight"), dtype, 6, 0);
    check(&file, NAME("bn.weight"), dtype, 4, 1);
    check(&file, NAME("part"), dtype, 6, 2);
    check(&file, NAME("empty"), dtype, 0, 0);
    const tensorview_t *v = tensor(&file, NAME("part"));
    assert_int_equal(v->ndim, 2);
    assert_int_equal(v->shape[1], 3);
    assert_int_equal(v->stride[0], 1);
    assert_int_equal(v->stride[1], 4);
    v = tensor(&file, NAME("bn.num_batches_tracked"));
    assert_int_equal(v->ndim, 0);
    assert_int_equal(tensorview_integer(v, 0), 73);
    assert_int_equal(tensor(&file, NAME("conv.weight"))->ndim, 4);
#undef NAME
    close_file(&file);
}

static void test_states(void **state)
{
    (void)state;
    check_state("plain", "F32", "");
    check_state("half", "F16", "");
    check_state("bf16", "BF16", "");
    check_state("double", "F64", "");
    check_state("protocol4", "F32", "");
    check_state("protocol5", "F32", "state_dict");
    check_state("unchecked", "F32", "");
    check_state("ema_state", "F32", "ema.module"); /* averaged, though the model is there too */
}

static void check_whole(const char *name, const char *dtype, const char *part, int averaged)
{
    file_t file = open_golden(name);
    const torchfile_info_t *info = torchfile_info(file.f);
    assert_string_equal(info->part, part);
    assert_int_equal(info->averaged, averaged);
    assert_string_equal(info->class_name, "detector.nn.tasks.DetectionModel");
    assert_string_equal(info->table, "yolo11n.yaml");
    /* The shared module is there under both of its names; what is None or not saved is not. */
    assert_int_equal(torchfile_count(file.f), 7);
    for (int m = 0; m < 2; m++) {
        char full[64];
        snprintf(full, sizeof full, "model.%d.weight", m);
        check(&file, full, dtype, 6, 0);
        snprintf(full, sizeof full, "model.%d.running_mean", m);
        check(&file, full, dtype, 4, 1);
        snprintf(full, sizeof full, "model.%d.num_batches_tracked", m);
        assert_int_equal(tensorview_integer(tensor(&file, full), 0), 72);
    }
    check(&file, "model.2.weight", dtype, 6, 3);
    assert_int_equal(torchfile_classes(file.f), 3);
    assert_string_equal(torchfile_class(file.f, 2), "missing hole");
    assert_null(torchfile_class(file.f, 3));
    close_file(&file);
}

static void test_whole(void **state)
{
    (void)state;
    check_whole("whole", "F32", "", 0);
    check_whole("whole_half", "F16", "model", 0);
    check_whole("ema", "F16", "ema", 1);
    file_t file = open_golden("whole_half");
    const torchfile_info_t *info = torchfile_info(file.f);
    assert_string_equal(info->version, "8.4.0");
    assert_string_equal(info->date, "2026-01-02");
    assert_int_equal(info->epoch, -1);
    assert_int_equal(info->imgsz, 640); /* of the arguments, before the model's own */
    close_file(&file);
    file = open_golden("ema");
    assert_int_equal(torchfile_info(file.f)->epoch, 6);
    assert_int_equal(torchfile_info(file.f)->imgsz, 320);
    close_file(&file);
}

/* One storage seen by three tensors, one of them a part of it. */
static void test_tied(void **state)
{
    (void)state;
    float values[4];
    file_t file = open_golden("tied");
    check(&file, "a", "F32", 4, 1);
    check(&file, "b", "F32", 4, 1);
    assert_ptr_equal(tensor(&file, "a")->data, tensor(&file, "b")->data);
    const tensorview_t *v = tensor(&file, "c");
    assert_int_equal(v->count, 2);
    tensorview_floats(v, values);
    assert_true(values[0] == 1.125f && values[1] == 1.25f);
    close_file(&file);
}

static void refuse_golden(const char *name, const char *why)
{
    size_t bytes;
    torchfile_t *f;
    uint8_t *data = scratch_read(golden(name), &bytes);
    assert_non_null(data);
    assert_int_equal(torchfile_open(data, bytes, name, &f), ERR_CONFIG);
    assert_null(f);
    if (!strstr(err_text(), why) || strchr(err_text(), '\n'))
        fail_msg("'%s' lacks '%s'", err_text(), why);
    free(data);
}

static void test_refused(void **state)
{
    (void)state;
    torchfile_t *f;
    refuse_golden("legacy", "from before PyTorch 1.6");
    refuse_golden("script", "TorchScript");
    refuse_golden("nothing", "neither a state dict nor a model");
    refuse_golden("hostile_system", "asks to call posix.system");
    refuse_golden("hostile_eval", "asks to call __builtin__.eval");
    refuse_golden("hostile_getattr", "asks to call __builtin__.__import__");
    refuse_golden("hostile_tensor", "asks to call torch.serialization.load");
    assert_int_equal(access("sluice-hostile-ran", F_OK), -1);
    assert_int_equal(torchfile_open("", 0, "x", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "an empty file"));
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n";
    assert_int_equal(torchfile_open(lfs, sizeof lfs - 1, "x", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "git lfs pull"));
    assert_int_equal(torchfile_open("<html>", 6, "x", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "not a file of torch.save"));
}

/* Every file cut anywhere and changed anywhere: one sentence or a file that reads, and no crash. */
static void test_damaged(void **state)
{
    (void)state;
    static const char *const names[] = {"plain", "ema", "protocol5"};
    for (size_t n = 0; n < 3; n++) {
        size_t bytes;
        int refused = 0;
        uint8_t *data = scratch_read(golden(names[n]), &bytes);
        assert_non_null(data);
        for (size_t cut = 0; cut < bytes; cut += 7) {
            torchfile_t *f;
            uint8_t *shorter = malloc(cut ? cut : 1);
            memcpy(shorter, data, cut);
            assert_int_equal(torchfile_open(shorter, cut, "cut", &f), ERR_CONFIG);
            free(shorter);
        }
        for (size_t i = 0; i < bytes; i++) {
            static const uint8_t flips[] = {0x01, 0x80, 0xFF};
            for (size_t k = 0; k < sizeof flips; k++) {
                float values[64];
                torchfile_t *f;
                data[i] ^= flips[k];
                const int rc = torchfile_open(data, bytes, "changed", &f);
                refused += rc < 0;
                for (int32_t t = 0; rc == 0 && t < torchfile_count(f); t++) {
                    const tensorview_t *v = torchfile_at(f, t);
                    assert_true(v->count <= 64);
                    tensorview_floats(v, values);
                }
                torchfile_free(&f);
                data[i] ^= flips[k];
            }
        }
        /* The checksums see to it that hardly any change of what is read goes unseen. */
        assert_true(refused > (int)bytes / 2);
        free(data);
    }
}

/* ---- files made here ---- */

static const pk_tensor_t sound = {.storage = "FloatStorage",
                                  .key = "0",
                                  .elements = 24,
                                  .offset = 2,
                                  .ndim = 2,
                                  .shape = {2, 3},
                                  .stride = {8, 2}};

/* A file of one tensor "w" and a storage of 24 floats; NULL or the sentence in *why. */
static torchfile_t *one_tensor(zip_t *z, const pk_tensor_t *t)
{
    blob_t b = {0};
    torchfile_t *f;
    pk_begin(&b);
    blob_byte(&b, '}');
    pk_text(&b, "w");
    pk_tensor(&b, t);
    blob_add(&b, "s.", 2);
    pt_file(z, &b, 24);
    torchfile_open(z->out.at, z->out.bytes, "test", &f);
    return f;
}

static void refuse_tensor(const pk_tensor_t *t, const char *why)
{
    zip_t z;
    torchfile_t *f = one_tensor(&z, t);
    assert_null(f);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
    zip_free(&z);
}

static void test_geometry(void **state)
{
    (void)state;
    zip_t z;
    float values[6];
    torchfile_t *f = one_tensor(&z, &sound);
    if (!f)
        fail_msg("%s", err_text());
    tensorview_floats(torchfile_at(f, 0), values);
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == (float)(2 + 8 * (i / 3) + 2 * (i % 3)));
    torchfile_free(&f);
    zip_free(&z);
#define WITH(field, ...)                                                                           \
    do {                                                                                           \
        pk_tensor_t t = sound;                                                                     \
        t.field;                                                                                   \
        refuse_tensor(&t, __VA_ARGS__);                                                            \
    } while (0)
    WITH(offset = -1, "from 0 up");
    WITH(offset = 12, "reaches beyond its storage of 24 elements");
    WITH(offset = INT64_MAX, "reaches beyond");
    WITH(shape[0] = -1, "from 0 up");
    WITH(shape[1] = INT64_MAX, "too large");
    WITH(shape[0] = (int64_t)1 << 62, "too large");
    WITH(stride[0] = -8, "from 0 up");
    WITH(stride[0] = 20, "reaches beyond");
    WITH(stride[1] = INT64_MAX, "too large");
    WITH(stride[0] = (int64_t)1 << 62, "reaches beyond");
    WITH(ndim = 9, "from 0 up");
    WITH(elements = 23, "has a storage of 23 elements (F32) in a member of 96 bytes");
    WITH(elements = (int64_t)1 << 62, "in a member of 96 bytes");
    WITH(elements = -1, "no size");
    WITH(storage = "ComplexFloatStorage", "torch.ComplexFloatStorage, which is not known");
    WITH(storage = "HalfStorage", "has a storage of 24 elements (F16)");
    WITH(key = "1", "not in the archive");
    WITH(key = "../data.pkl", "not in the archive");
    WITH(key = "/etc/passwd", "not in the archive");
    WITH(key = "", "not in the archive");
#undef WITH
    /* A tensor of 2^40 elements out of one: strides of nothing. */
    pk_tensor_t t = sound;
    t.shape[0] = (int64_t)1 << 40;
    t.stride[0] = t.stride[1] = 0;
    refuse_tensor(&t, "reaches beyond");
    /* None of them costs nothing, wherever it begins. */
    t.shape[0] = 0;
    t.offset = 24;
    f = one_tensor(&z, &t);
    assert_non_null(f);
    assert_int_equal(torchfile_at(f, 0)->count, 0);
    torchfile_free(&f);
    zip_free(&z);
}

/* Opens a file of a pickle; refused with this. */
static void refuse_pickle(blob_t *b, const char *why)
{
    zip_t z;
    torchfile_t *f;
    pt_file(&z, b, 24);
    assert_int_equal(torchfile_open(z.out.at, z.out.bytes, "test", &f), ERR_CONFIG);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
    zip_free(&z);
}

/* One storage that is said to be two. */
static void test_overlapping(void **state)
{
    (void)state;
    blob_t b = {0};
    pk_tensor_t other = sound;
    other.storage = "DoubleStorage";
    other.elements = 12;
    pk_begin(&b);
    blob_byte(&b, '}');
    pk_text(&b, "a");
    pk_tensor(&b, &sound);
    blob_byte(&b, 's');
    pk_text(&b, "b");
    pk_tensor(&b, &other);
    blob_add(&b, "s.", 2);
    refuse_pickle(&b, "tensor b lies in a storage that another tensor sees as another one");
}

/* A module, open for its children: its dict of children is to be filled and closed. */
static void module_begin(blob_t *b)
{
    pk_global(b, "torch.nn.modules.module", "Module");
    blob_add(b, ")\x81}(", 4);
    pk_text(b, "_parameters");
    blob_byte(b, '}');
    pk_text(b, "w");
    pk_tensor(b, &sound);
    blob_byte(b, 's');
    pk_text(b, "_modules");
    blob_byte(b, '}');
}

static void module_end(blob_t *b)
{
    blob_add(b, "ub", 2);
}

static void test_recursion(void **state)
{
    (void)state;
    blob_t b = {0};
    /* A module that is its own child. */
    pk_begin(&b);
    pk_global(&b, "torch.nn.modules.module", "Module");
    blob_add(&b, ")\x81q\x01}(", 6);
    pk_text(&b, "_parameters");
    blob_byte(&b, '}');
    pk_text(&b, "_modules");
    blob_byte(&b, '}');
    pk_text(&b, "self");
    blob_add(&b, "h\x01sub.", 6);
    refuse_pickle(&b, "lie in one another");
    /* Modules in modules, deeper than any network. */
    pk_begin(&b);
    for (int i = 0; i < 200; i++) {
        module_begin(&b);
        pk_text(&b, "m");
    }
    module_begin(&b);
    for (int i = 0; i < 200; i++) {
        module_end(&b);
        blob_byte(&b, 's');
    }
    module_end(&b);
    blob_byte(&b, '.');
    refuse_pickle(&b, "lie in one another");
    /* Each of thirty has the one below ten times: 10^30 tensors, were they walked. */
    pk_begin(&b);
    for (int i = 0; i < 30; i++) {
        module_begin(&b);
        pk_text(&b, "m");
    }
    module_begin(&b);
    for (int i = 0; i < 30; i++) {
        char name[8];
        module_end(&b);
        blob_add(&b, "q\x07s", 3);
        for (int k = 0; k < 9; k++) {
            snprintf(name, sizeof name, "m%d", k);
            pk_text(&b, name);
            blob_add(&b, "h\x07s", 3);
        }
    }
    module_end(&b);
    blob_byte(&b, '.');
    refuse_pickle(&b, "more than 65536");
    /* A checkpoint that holds itself as its model and its ema. */
    pk_begin(&b);
    blob_add(&b, "}q\x01", 3);
    pk_text(&b, "model");
    blob_add(&b, "h\x01s", 3);
    pk_text(&b, "ema");
    blob_add(&b, "h\x01s.", 4);
    refuse_pickle(&b, "neither a state dict nor a model");
}

/* A module SPPF of a whole model; act is the class of what stands behind its first convolution. */
static void sppf(blob_t *b, const char *class_name, const char *act_module, const char *act)
{
    pk_begin(b);
    module_begin(b); /* the model */
    pk_text(b, "9");
    pk_global(b, "anything.nn.blocks", class_name);
    blob_add(b, ")\x81}(", 4);
    pk_text(b, "_parameters");
    blob_byte(b, '}');
    pk_text(b, "_modules");
    blob_byte(b, '}');
    pk_text(b, "cv1");
    module_begin(b);
    pk_text(b, "act");
    pk_global(b, act_module, act);
    blob_add(b, ")\x81}(", 4);
    pk_text(b, "_parameters");
    blob_byte(b, '}');
    pk_text(b, "_modules");
    blob_byte(b, '}');
    module_end(b);
    blob_byte(b, 's');
    module_end(b);
    blob_byte(b, 's');
    module_end(b);
    blob_byte(b, 's');
    module_end(b);
    blob_byte(b, '.');
}

static void check_sppf(const char *class_name, const char *act_module, const char *act, int bare)
{
    static const char note[] = "; its SPPF was built without SiLU behind cv1";
    blob_t b = {0};
    zip_t z;
    modelfile_t *f;
    graph_t *g;
    weights_report_t report;
    char text[512];
    sppf(&b, class_name, act_module, act);
    pt_file(&z, &b, 24);
    if (modelfile_open_memory(z.out.at, z.out.bytes, "test", &f) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(modelfile_info(f)->bare_sppf, bare);
    /* What a user is told when it is loaded. */
    assert_int_equal(graph_build("yolo11n", 3, &g), 0);
    float *weights = calloc(graph_sizes(g)->weights, sizeof *weights);
    float *buffers = calloc(graph_sizes(g)->buffers, sizeof *buffers);
    assert_true(weights && buffers);
    assert_int_equal(weights_transfer(g, f, NULL, 0, weights, buffers, &report), 0);
    weights_say(&report, "test", text, sizeof text);
    if ((strstr(text, note) != NULL) != bare)
        fail_msg("%s with %s: '%s'", class_name, act, text);
    free(weights);
    free(buffers);
    graph_free(&g);
    modelfile_free(&f);
    zip_free(&z);
}

/* Without activation behind its first convolution it is another function of the same tensors. */
static void test_sppf(void **state)
{
    (void)state;
    check_sppf("SPPF", "torch.nn.modules.linear", "Identity", 1);
    check_sppf("SPPF", "torch.nn.modules.activation", "SiLU", 0);
    check_sppf("Other", "torch.nn.modules.linear", "Identity", 0);
}

static void test_names(void **state)
{
    (void)state;
    blob_t b = {0};
    char name[400];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    pk_begin(&b);
    blob_byte(&b, '}');
    pk_text(&b, name);
    pk_tensor(&b, &sound);
    blob_add(&b, "s.", 2);
    refuse_pickle(&b, "longer than 256 bytes");
    /* The same name twice is the model file's to refuse. */
    zip_t z;
    modelfile_t *f;
    pk_begin(&b);
    blob_byte(&b, '}');
    for (int i = 0; i < 2; i++) {
        pk_text(&b, "w");
        pk_tensor(&b, &sound);
        blob_byte(&b, 's');
    }
    blob_byte(&b, '.');
    pt_file(&z, &b, 24);
    assert_int_equal(modelfile_open_memory(z.out.at, z.out.bytes, "test", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "tensor w is there twice"));
    zip_free(&z);
}

/* ---- archives around a pickle ---- */

static void refuse_zip(zip_t *z, const char *why)
{
    torchfile_t *f;
    zip_end(z);
    assert_int_equal(torchfile_open(z->out.at, z->out.bytes, "test", &f), ERR_CONFIG);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
    zip_free(z);
}

static void test_archives(void **state)
{
    (void)state;
    static const char empty[] = "\x80\x02}.";
    zip_t z;
    memset(&z, 0, sizeof z);
    zip_add(&z, "a/data/0", "1234", 4);
    refuse_zip(&z, "without a data.pkl");
    zip_add(&z, "a/data.pkl", empty, 4);
    zip_add(&z, "b/data.pkl", empty, 4);
    refuse_zip(&z, "more than one data.pkl");
    zip_add(&z, "a/data.pkl", empty, 4);
    zip_add(&z, "a/byteorder", "big", 3);
    refuse_zip(&z, "byte order");
    zip_add(&z, "a/mydata.pkl", empty, 4);
    refuse_zip(&z, "without a data.pkl");
    zip_add(&z, "data.pkl", empty, 4);
    refuse_zip(&z, "neither a state dict nor a model");
    zip_add(&z, "../../../etc/data.pkl", empty, 4);
    refuse_zip(&z, "neither a state dict nor a model");
    zip_add(&z, "a/data.pkl", "", 0);
    refuse_zip(&z, "ends too early");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),      cmocka_unit_test(test_whole),
        cmocka_unit_test(test_tied),        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damaged),     cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_overlapping), cmocka_unit_test(test_recursion),
        cmocka_unit_test(test_sppf),        cmocka_unit_test(test_names),
        cmocka_unit_test(test_archives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
