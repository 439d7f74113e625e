/* From a file of weights to a model: which of the ten it is, under which names, and all the way to a
 * file of our own.
 */
#include "shm/err.h"
#include "tests/pt_build.h"
#include "tests/scratch.h"
#include "trainer/import.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *const classes[] = {"scratch", "pit", "missing hole"};

typedef struct {
    graph_t *g;
    float *weights, *buffers;
} net_t;

static net_t net_new(const char *name, int32_t nc, uint64_t seed)
{
    net_t n;
    if (graph_build(name, nc, &n.g) < 0)
        fail_msg("%s", err_text());
    n.weights = malloc(graph_sizes(n.g)->weights * sizeof(float));
    n.buffers = malloc(graph_sizes(n.g)->buffers * sizeof(float));
    assert_true(n.weights && n.buffers);
    weights_init(n.g, seed, n.weights, n.buffers);
    for (uint64_t i = 0; i < graph_sizes(n.g)->buffers; i++)
        n.buffers[i] += (float)(i % 97);
    return n;
}

static void net_free(net_t *n)
{
    graph_free(&n->g);
    free(n->weights);
    free(n->buffers);
}

/* Every parameter of both is the same. */
static void same_net(const net_t *a, const net_t *b)
{
    for (int32_t i = 0; i < graph_params(a->g); i++) {
        const graph_param_t *p = graph_param(a->g, i);
        if (p->place == GRAPH_COUNTER || p->place == GRAPH_CONSTANT)
            continue;
        const float *x = p->place == GRAPH_BUFFER ? a->buffers : a->weights,
                    *y = p->place == GRAPH_BUFFER ? b->buffers : b->weights;
        assert_memory_equal(x + p->first, y + p->first, p->count * sizeof(float));
    }
}

static modelfile_t *opened(const void *bytes, uint64_t total)
{
    modelfile_t *f;
    if (modelfile_open_memory(bytes, total, "x/test", &f) < 0)
        fail_msg("%s", err_text());
    return f;
}

static void test_checkpoint(void **state)
{
    (void)state;
    static const char *const prefixes[] = {"", "module.", "model."};
    for (int i = 0; i < 3; i++) {
        static zip_t z;
        int32_t n;
        weights_report_t r;
        net_t a = net_new("yolov8n", 3, 5), b = net_new("yolov8n", 3, 6);
        pt_checkpoint(&z, a.g, a.weights, a.buffers, prefixes[i], classes);
        modelfile_t *f = opened(z.out.at, z.out.bytes);
        const modelfile_info_t *info = modelfile_info(f);
        assert_string_equal(info->model, "yolov8n");
        assert_int_equal(info->nc, 3);
        assert_int_equal(info->channels, 3);
        assert_int_equal(info->extra, 0);
        assert_int_equal(info->averaged, 0);
        assert_string_equal(info->part, "model");
        assert_string_equal(info->dtype, "F32");
        assert_int_equal(modelfile_count(f), 355);
        assert_string_equal(modelfile_classes(f, &n)[1], "pit");
        assert_int_equal(n, 3);
        assert_non_null(modelfile_find(f, "model.22.cv3.0.2.bias"));
        assert_null(modelfile_find(f, "module.model.22.cv3.0.2.bias"));
        assert_int_equal(weights_transfer(b.g, f, classes, 3, b.weights, b.buffers, &r), 0);
        assert_int_equal(r.moved, 355);
        assert_int_equal(r.rows, 3);
        same_net(&a, &b);
        modelfile_free(&f);
        zip_free(&z);
        net_free(&a);
        net_free(&b);
    }
}

/* .pt -> import -> the file of ours that comes out -> the same model. */
static void test_import(void **state)
{
    (void)state;
    static zip_t z;
    safetensors_writer_t *w;
    safetensors_t *s;
    import_t what;
    weights_report_t r;
    net_t a = net_new("yolo11n", 3, 5), b = net_new("yolo11n", 3, 6);
    pt_checkpoint(&z, a.g, a.weights, a.buffers, "", classes);
    modelfile_t *f = opened(z.out.at, z.out.bytes);
    assert_int_equal(safetensors_writer_new(&w), 0);
    if (import_image(f, w, &what) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(what.tensors, 499);
    assert_int_equal(what.report.moved, 499);
    assert_int_equal(what.parameters, graph_sizes(a.g)->parameters);
    modelfile_free(&f);
    zip_free(&z);
    uint64_t bytes = safetensors_writer_bytes(w);
    void *image = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, image, bytes), 0);
    safetensors_writer_free(&w);

    assert_int_equal(safetensors_load_memory(image, bytes, "out", &s), 0);
    assert_string_equal(safetensors_metadata(s, "model"), "yolo11n");
    assert_string_equal(safetensors_metadata(s, "nc"), "3");
    assert_string_equal(safetensors_metadata(s, "task"), "detect");
    assert_string_equal(safetensors_metadata(s, "strides"), "[8, 16, 32]");
    assert_string_equal(safetensors_metadata(s, "names"),
                        "{\"0\":\"scratch\",\"1\":\"pit\",\"2\":\"missing hole\"}");
    assert_string_equal(safetensors_metadata(s, "source"), "test");
    assert_null(safetensors_metadata(s, "epoch"));
    int64_t counter;
    memcpy(&counter, safetensors_find(s, "model.0.bn.num_batches_tracked")->data, sizeof counter);
    assert_int_equal(counter, 33);
    safetensors_free(&s);
    f = opened(image, bytes);
    int32_t n;
    assert_string_equal(modelfile_classes(f, &n)[2], "missing hole");
    assert_int_equal(weights_transfer(b.g, f, classes, 3, b.weights, b.buffers, &r), 0);
    assert_int_equal(r.moved, 499);
    same_net(&a, &b);
    modelfile_free(&f);
    free(image);
    net_free(&a);
    net_free(&b);
}

/* Names and shapes of a model without its numbers: a byte an element. `skip` leaves one out, `cut`
 * bytes are taken off the front of the names. */
static uint64_t skeleton(const char *model, int32_t nc, const char *skip, size_t cut,
                         const char *claim, const char *names, void **image)
{
    graph_t *g;
    uint64_t most = 8;
    safetensors_writer_t *w;
    if (graph_build(model, nc, &g) < 0)
        fail_msg("%s", err_text());
    for (int32_t i = 0; i < graph_params(g); i++)
        most = graph_param(g, i)->count > most ? graph_param(g, i)->count : most;
    char *zeros = calloc(most, 1);
    assert_int_equal(safetensors_writer_new(&w), 0);
    if (claim)
        assert_int_equal(safetensors_writer_metadata(w, "model", claim), 0);
    if (names)
        assert_int_equal(safetensors_writer_metadata(w, "names", names), 0);
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        if (skip && strcmp(p->name, skip) == 0)
            continue;
        const uint64_t bytes = p->ndim ? p->count : 1;
        assert_int_equal(
            safetensors_writer_add(w, p->name + cut, "U8", p->shape, p->ndim, zeros, bytes), 0);
    }
    uint64_t bytes = safetensors_writer_bytes(w);
    *image = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, *image, bytes), 0);
    safetensors_writer_free(&w);
    free(zeros);
    graph_free(&g);
    return bytes;
}

static void test_ten_models(void **state)
{
    (void)state;
    static const char *const models[] = {"yolo11n", "yolo11s", "yolo11m", "yolo11l", "yolo11x",
                                         "yolov8n", "yolov8s", "yolov8m", "yolov8l", "yolov8x"};
    for (int i = 0; i < 10; i++) {
        void *image;
        const int32_t nc = i % 2 ? 80 : 7;
        const uint64_t bytes = skeleton(models[i], nc, NULL, 0, NULL, NULL, &image);
        modelfile_t *f = opened(image, bytes);
        assert_string_equal(modelfile_info(f)->model, models[i]);
        assert_int_equal(modelfile_info(f)->nc, nc);
        assert_int_equal(modelfile_info(f)->extra, 0);
        modelfile_free(&f);
        free(image);
    }
}

/* A state dict of the list of layers alone; names that only count; a claim that is no word. */
static void test_names(void **state)
{
    (void)state;
    void *image;
    int32_t n;
    uint64_t bytes =
        skeleton("yolo11n", 2, NULL, 6, "/etc/passwd", "{\"0\":\"0\",\"1\":\"1\"}", &image);
    modelfile_t *f = opened(image, bytes);
    assert_string_equal(modelfile_info(f)->model, "yolo11n");
    assert_non_null(modelfile_find(f, "model.23.cv3.2.2.bias"));
    assert_null(modelfile_classes(f, &n));
    assert_int_equal(n, 0);
    modelfile_free(&f);
    free(image);
    static const char *const odd[] = {"[\"a\"]", "{\"1\":\"a\"}", "{\"0\":\"a\"", "{\"0\":1}", "",
                                      "{}"};
    for (int i = 0; i < 6; i++) {
        bytes = skeleton("yolo11n", 2, NULL, 0, NULL, odd[i], &image);
        f = opened(image, bytes);
        assert_null(modelfile_classes(f, &n));
        modelfile_free(&f);
        free(image);
    }
}

/* Of none of the ten: a sentence that says what is nearest, and why it is not. */
static void test_unknown(void **state)
{
    (void)state;
    void *image;
    safetensors_writer_t *w;
    import_t what;
    uint64_t bytes =
        skeleton("yolo11s", 80, "model.6.cv1.conv.weight", 0, "/etc/x.yaml", NULL, &image);
    modelfile_t *f = opened(image, bytes);
    assert_string_equal(modelfile_info(f)->model, "");
    assert_non_null(strstr(modelfile_info(f)->why, "closest is yolo11s with 416 of 417"));
    assert_non_null(strstr(modelfile_info(f)->why, "model.6.cv1.conv.weight (256x256x1x1) is not"));
    assert_int_equal(safetensors_writer_new(&w), 0);
    assert_int_equal(import_image(f, w, &what), ERR_CONFIG);
    safetensors_writer_free(&w);
    modelfile_free(&f);
    free(image);
    /* A model of the user's own table is known by the word in its file. */
    bytes = skeleton("yolo11s", 80, "model.6.cv1.conv.weight", 0, "own-2", NULL, &image);
    f = opened(image, bytes);
    assert_string_equal(modelfile_info(f)->model, "own-2");
    modelfile_free(&f);
    free(image);
    /* Fused: biases where normalisation was. */
    const int64_t shape[1] = {16};
    const float zeros[16] = {0};
    assert_int_equal(safetensors_writer_new(&w), 0);
    assert_int_equal(
        safetensors_writer_add(w, "model.0.conv.bias", "F32", shape, 1, zeros, sizeof zeros), 0);
    bytes = safetensors_writer_bytes(w);
    image = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, image, bytes), 0);
    safetensors_writer_free(&w);
    f = opened(image, bytes);
    assert_non_null(strstr(modelfile_info(f)->why, "(fused)"));
    modelfile_free(&f);
    free(image);
}

/* "yolo11n.pt" is the first thing that anybody types. */
static void test_missing(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH], before[4096], want[SCRATCH_PATH + 64];
    modelfile_t *f;
    assert_non_null(getcwd(before, sizeof before));
    scratch_begin(folder);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(modelfile_open("yolo11n.pt", &f), ERR_CONFIG);
    snprintf(want, sizeof want, "yolo11n.pt is not in %s, and nothing is downloaded", folder);
    if (!strstr(err_text(), want))
        fail_msg("'%s' lacks '%s'", err_text(), want);
    assert_non_null(strstr(err_text(), "model=yolo11n, without .pt, begins with random weights"));
    assert_int_equal(modelfile_open("/no/such/own.pt", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "own.pt is not in /no/such, and nothing is downloaded"));
    assert_null(strstr(err_text(), "random weights"));
    assert_int_equal(modelfile_open(folder, &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "not a regular file"));
    /* A sparse file claims a terabyte, and is not asked for it. */
    scratch_text(folder, "huge.pt", "");
    assert_int_equal(truncate("huge.pt", (off_t)1 << 40), 0);
    assert_int_equal(modelfile_open("huge.pt", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "1099511627776 bytes: more than"));
    scratch_text(folder, "text.pt", "not weights");
    assert_int_equal(modelfile_open("text.pt", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "text.pt: not a file of torch.save"));
    assert_int_equal(chdir(before), 0);
    scratch_end(folder);
    assert_true(modelfile_is("a/b.pt"));
    assert_true(modelfile_is("B.PT"));
    assert_true(modelfile_is("x.safetensors"));
    assert_false(modelfile_is("yolo11n"));
    assert_false(modelfile_is("yolo11n.yaml"));
    assert_false(modelfile_is("pt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint), cmocka_unit_test(test_import),
        cmocka_unit_test(test_ten_models), cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown),    cmocka_unit_test(test_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
