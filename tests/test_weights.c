/* Initial weights, and the way through files: layouts, dtypes, what does not match. */
#include "shm/err.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

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
    assert_non_null(n.weights);
    assert_non_null(n.buffers);
    weights_init(n.g, seed, n.weights, n.buffers);
    return n;
}

static void net_free(net_t *n)
{
    graph_free(&n->g);
    free(n->weights);
    free(n->buffers);
}

static const float *values(const net_t *n, const char *name)
{
    const graph_param_t *p = graph_find_param(n->g, name);
    assert_non_null(p);
    return (p->place == GRAPH_BUFFER ? n->buffers : n->weights) + p->first;
}

/* Uniform in (-b, b), b = 1 / sqrt(fan in): bounds, mean and variance (facts/yolo.md 1.3). */
static void check_uniform(const net_t *n, const char *name)
{
    const graph_param_t *p = graph_find_param(n->g, name);
    const float *v = values(n, name);
    const double bound = 1 / sqrt((double)(p->shape[1] * p->shape[2] * p->shape[3]));
    double sum = 0, square = 0, most = 0;
    for (uint64_t i = 0; i < p->count; i++) {
        sum += v[i];
        square += (double)v[i] * v[i];
        most = fmax(most, fabs(v[i]));
    }
    const double count = (double)p->count;
    assert_true(most <= bound * 1.000001);
    assert_true(most > 0.98 * bound);
    assert_true(fabs(sum / count) < 5 * bound / sqrt(3 * count));
    assert_true(fabs(square / count / (bound * bound / 3) - 1) < 5 / sqrt(count));
}

static void test_init(void **state)
{
    (void)state;
    net_t n = net_new("yolo11n", 80, 5);
    check_uniform(&n, "model.0.conv.weight");
    check_uniform(&n, "model.22.m.0.cv3.conv.weight");
    check_uniform(&n, "model.23.cv3.2.0.0.conv.weight"); /* depthwise: fan in 9 */
    check_uniform(&n, "model.23.cv3.0.2.weight");
    for (int i = 0; i < 16; i++) {
        assert_true(values(&n, "model.0.bn.weight")[i] == 1);
        assert_true(values(&n, "model.0.bn.bias")[i] == 0);
        assert_true(values(&n, "model.0.bn.running_mean")[i] == 0);
        assert_true(values(&n, "model.0.bn.running_var")[i] == 1);
    }
    /* bias_init: facts/yolo.md 1.3. */
    static const double at80[3] = {-11.5366, -10.1503, -8.7641},
                        at1[3] = {-7.1546, -5.7683, -4.3820};
    static const char *const cls[3] = {"model.23.cv3.0.2.bias", "model.23.cv3.1.2.bias",
                                       "model.23.cv3.2.2.bias"};
    for (int l = 0; l < 3; l++)
        assert_true(fabs(values(&n, cls[l])[79] - at80[l]) < 5e-5);
    assert_true(values(&n, "model.23.cv2.1.2.bias")[63] == 2);
    net_free(&n);
    n = net_new("yolo11n", 1, 5);
    for (int l = 0; l < 3; l++)
        assert_true(fabs(values(&n, cls[l])[0] - at1[l]) < 5e-5);
    net_free(&n);
}

/* A function of the seed, and different from tensor to tensor. */
static void test_seed(void **state)
{
    (void)state;
    net_t a = net_new("yolo11n", 80, 5), b = net_new("yolo11n", 80, 5),
          c = net_new("yolo11n", 80, 6);
    const size_t bytes = graph_sizes(a.g)->weights * sizeof(float);
    assert_memory_equal(a.weights, b.weights, bytes);
    assert_memory_not_equal(a.weights, c.weights, bytes);
    assert_memory_not_equal(values(&a, "model.23.cv2.0.1.conv.weight"),
                            values(&a, "model.23.cv2.1.1.conv.weight"), 64 * sizeof(float));
    /* The first draw of Philox4x32-10 worked out apart from this program: another would change
     * every run's start. */
    assert_true(fabs(values(&a, "model.0.conv.weight")[0] - -0.084933672) < 1e-7);
    net_free(&a);
    net_free(&b);
    net_free(&c);
}

/* The net as a file in memory, in *image. */
static uint64_t stored(const net_t *n, const char *prefix, const char *names, void **image)
{
    safetensors_writer_t *w;
    assert_int_equal(safetensors_writer_new(&w), 0);
    if (names)
        assert_int_equal(safetensors_writer_metadata(w, "names", names), 0);
    assert_int_equal(weights_store(n->g, n->weights, n->buffers, 77, prefix, w), 0);
    uint64_t bytes = safetensors_writer_bytes(w);
    *image = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, *image, bytes), 0);
    safetensors_writer_free(&w);
    return bytes;
}

static weights_report_t transfer(net_t *n, const void *image, uint64_t bytes,
                                 const char *const *names, int32_t n_names)
{
    modelfile_t *f;
    weights_report_t report;
    if (modelfile_open_memory(image, bytes, "stored", &f) < 0)
        fail_msg("%s", err_text());
    if (weights_transfer(n->g, f, names, n_names, n->weights, n->buffers, &report) < 0)
        fail_msg("%s", err_text());
    modelfile_free(&f);
    return report;
}

static float element(const safetensors_entry_t *e, uint64_t i)
{
    float v;
    memcpy(&v, (const char *)e->data + i * sizeof v, sizeof v);
    return v;
}

static void test_round_trip(void **state)
{
    (void)state;
    void *image;
    safetensors_t *f;
    net_t a = net_new("yolo11n", 3, 5), b = net_new("yolo11n", 3, 6);
    for (uint64_t i = 0; i < 16; i++) /* buffers too must travel */
        ((float *)values(&a, "model.0.bn.running_var"))[i] = (float)i;
    const uint64_t bytes = stored(&a, "ema.", NULL, &image);
    assert_int_equal(safetensors_load_memory(image, bytes, "stored", &f), 0);
    assert_int_equal(safetensors_count(f), 499);
    assert_int_equal(transfer(&b, image, bytes, NULL, 0).moved, 499);
    assert_memory_equal(a.weights, b.weights, graph_sizes(a.g)->weights * sizeof(float));
    assert_memory_equal(a.buffers, b.buffers, graph_sizes(a.g)->buffers * sizeof(float));

    /* The file has the state dict's layout: OIHW; in memory it is OHWI, depthwise HWC. */
    const safetensors_entry_t *e = safetensors_find(f, "ema.model.1.conv.weight");
    assert_int_equal(e->shape[1], 16);
    const float *w = values(&a, "model.1.conv.weight");
    assert_true(element(e, ((5 * 16 + 7) * 3 + 2) * 3 + 1) == w[((5 * 3 + 2) * 3 + 1) * 16 + 7]);
    e = safetensors_find(f, "ema.model.10.m.0.attn.pe.conv.weight");
    w = values(&a, "model.10.m.0.attn.pe.conv.weight");
    assert_true(element(e, (9 * 3 + 2) * 3 + 1) == w[(2 * 3 + 1) * 128 + 9]);
    e = safetensors_find(f, "ema.model.23.dfl.conv.weight");
    assert_int_equal(e->ndim, 4);
    assert_true(element(e, 15) == 15);
    e = safetensors_find(f, "ema.model.0.bn.num_batches_tracked");
    int64_t batches;
    memcpy(&batches, e->data, sizeof batches);
    assert_string_equal(e->dtype, "I64");
    assert_int_equal(batches, 77);
    safetensors_free(&f);
    free(image);
    net_free(&a);
    net_free(&b);
}

/* From 80 classes to 3: all but the class branches arrive, those keep their own values. */
static void test_other_classes(void **state)
{
    (void)state;
    void *image;
    net_t a = net_new("yolo11s", 80, 5), b = net_new("yolo11s", 3, 6), c = net_new("yolo11s", 3, 6);
    const uint64_t bytes = stored(&a, "", NULL, &image);
    const weights_report_t r = transfer(&b, image, bytes, NULL, 0);
    assert_int_equal(r.moved, 499 - 6); /* the last weight and bias on three levels */
    assert_string_equal(r.first_left, "model.23.cv3.0.2.weight");
    assert_int_equal(r.rows_of, 0);
    assert_memory_equal(values(&b, "model.23.cv3.0.2.weight"),
                        values(&c, "model.23.cv3.0.2.weight"), 3 * 128 * sizeof(float));
    assert_memory_equal(values(&b, "model.23.cv3.0.1.1.conv.weight"),
                        values(&a, "model.23.cv3.0.1.1.conv.weight"), 128 * 128 * sizeof(float));
    free(image);
    net_free(&a);
    net_free(&b);
    net_free(&c);
}

/* A row of the class branch: 128 weights and a bias on the finest map. */
static void same_row(const net_t *a, int row_a, const net_t *b, int row_b)
{
    assert_memory_equal(values(a, "model.23.cv3.0.2.weight") + 128 * row_a,
                        values(b, "model.23.cv3.0.2.weight") + 128 * row_b, 128 * sizeof(float));
    assert_memory_equal(values(a, "model.23.cv3.0.2.bias") + row_a,
                        values(b, "model.23.cv3.0.2.bias") + row_b, sizeof(float));
}

/* Classes keep their rows by name, wherever they stand; new ones begin anew. */
static void test_class_names(void **state)
{
    (void)state;
    static const char *const names[] = {"pit", "Dent", "new", "scratch"};
    static const char theirs[] = "{\"0\": \"scratch\", \"1\": \"dent\", \"2\": \"pit\"}";
    char text[512];
    void *image;
    net_t a = net_new("yolo11s", 3, 5), b = net_new("yolo11s", 4, 6), c = net_new("yolo11s", 4, 6);
    for (int i = 0; i < 3; i++)
        ((float *)values(&a, "model.23.cv3.0.2.bias"))[i] = (float)i;
    uint64_t bytes = stored(&a, "", theirs, &image);
    weights_report_t r = transfer(&b, image, bytes, names, 4);
    assert_int_equal(r.moved, 499);
    assert_int_equal(r.rows, 3);
    assert_int_equal(r.rows_of, 4);
    same_row(&b, 0, &a, 2);
    same_row(&b, 1, &a, 1);
    same_row(&b, 2, &c, 2);
    same_row(&b, 3, &a, 0);
    weights_say(&r, "x.pt", text, sizeof text);
    assert_string_equal(text, "transferred 499 of 499 tensors from x.pt; class rows by name: 3 of "
                              "4, the others begin anew");
    /* Without names on one side, and as many: straight. */
    net_t d = net_new("yolo11s", 3, 6);
    r = transfer(&d, image, bytes, NULL, 0);
    assert_int_equal(r.moved, 499);
    for (int i = 0; i < 3; i++)
        same_row(&d, i, &a, i);
    /* Names that are all others: none of the rows, and that is said. */
    static const char *const other[] = {"x", "y", "z"};
    net_t e = net_new("yolo11s", 3, 6), fresh = net_new("yolo11s", 3, 6);
    r = transfer(&e, image, bytes, other, 3);
    assert_int_equal(r.moved, 499 - 6);
    assert_int_equal(r.rows, 0);
    assert_int_equal(r.rows_of, 3);
    same_row(&e, 1, &fresh, 1);
    free(image);
    net_free(&a);
    net_free(&b);
    net_free(&c);
    net_free(&d);
    net_free(&e);
    net_free(&fresh);
}

/* A net's file whose first convolution reads `channels` instead of three: element (o, c, k) is
 * o * 100 + c * 10 + k. */
static uint64_t with_channels(const net_t *n, int channels, void **image)
{
    safetensors_writer_t *w;
    safetensors_t *f;
    uint64_t bytes = stored(n, "", NULL, image);
    assert_int_equal(safetensors_load_memory(*image, bytes, "stored", &f), 0);
    assert_int_equal(safetensors_writer_new(&w), 0);
    for (int32_t i = 0; i < safetensors_count(f); i++) {
        const safetensors_entry_t *e = safetensors_at(f, i);
        if (strcmp(e->name, "model.0.conv.weight") != 0) {
            assert_int_equal(
                safetensors_writer_add(w, e->name, e->dtype, e->shape, e->ndim, e->data, e->bytes),
                0);
            continue;
        }
        const int64_t shape[4] = {16, channels, 3, 3};
        float data[16 * 8 * 9];
        for (int o = 0; o < 16; o++)
            for (int c = 0; c < channels; c++)
                for (int k = 0; k < 9; k++)
                    data[(o * channels + c) * 9 + k] = (float)(o * 100 + c * 10 + k);
        assert_int_equal(safetensors_writer_add(w, e->name, "F32", shape, 4, data,
                                                (uint64_t)(16 * channels * 9) * sizeof(float)),
                         0);
    }
    safetensors_free(&f);
    free(*image);
    bytes = safetensors_writer_bytes(w);
    *image = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, *image, bytes), 0);
    safetensors_writer_free(&w);
    return bytes;
}

static void test_channels(void **state)
{
    (void)state;
    net_t a = net_new("yolo11n", 3, 5), fresh = net_new("yolo11n", 3, 6);
    for (int channels = 1; channels <= 5; channels++) {
        void *image;
        if (channels == 3)
            continue;
        net_t b = net_new("yolo11n", 3, 6);
        const uint64_t bytes = with_channels(&a, channels, &image);
        const weights_report_t r = transfer(&b, image, bytes, NULL, 0);
        const float *v = values(&b, "model.0.conv.weight"); /* OHWI */
        assert_int_equal(r.moved, 499);
        assert_int_equal(r.channels, channels);
        for (int c = 0; c < 3; c++) {
            const float at = v[(7 * 9 + 5) * 3 + c];
            if (channels == 1)
                assert_true(at == 705.0f / 3);
            else if (c < channels)
                assert_true(at == (float)(705 + c * 10));
            else
                assert_true(at == values(&fresh, "model.0.conv.weight")[(7 * 9 + 5) * 3 + c]);
        }
        free(image);
        net_free(&b);
    }
    net_free(&a);
    net_free(&fresh);
}

/* Numbers that are none are counted and said, not hidden. */
static void test_not_finite(void **state)
{
    (void)state;
    void *image;
    char text[512];
    net_t a = net_new("yolov8n", 3, 5), b = net_new("yolov8n", 3, 6);
    ((float *)values(&a, "model.0.bn.running_var"))[3] = NAN;
    ((float *)values(&a, "model.0.bn.bias"))[1] = INFINITY;
    const uint64_t bytes = stored(&a, "", NULL, &image);
    const weights_report_t r = transfer(&b, image, bytes, NULL, 0);
    assert_int_equal(r.not_finite, 2);
    weights_say(&r, "x", text, sizeof text);
    assert_non_null(strstr(text, "2 of the numbers are not finite"));
    free(image);
    net_free(&a);
    net_free(&b);
}

/* One bias tensor of 16 elements in a file, as a dtype. */
static int load_bias(net_t *n, const char *dtype, const void *data, uint64_t bytes,
                     int32_t *transferred)
{
    safetensors_writer_t *w;
    modelfile_t *f;
    weights_report_t report;
    const int64_t shape[1] = {16};
    assert_int_equal(safetensors_writer_new(&w), 0);
    assert_int_equal(safetensors_writer_add(w, "model.0.bn.bias", dtype, shape, 1, data, bytes), 0);
    uint64_t size = safetensors_writer_bytes(w);
    void *image = malloc(size);
    assert_int_equal(safetensors_writer_image(w, image, size), 0);
    safetensors_writer_free(&w);
    assert_int_equal(modelfile_open_memory(image, size, "half", &f), 0);
    int rc = weights_transfer(n->g, f, NULL, 0, n->weights, n->buffers, &report);
    *transferred = report.moved;
    modelfile_free(&f);
    free(image);
    return rc;
}

static void test_half(void **state)
{
    (void)state;
    int32_t transferred;
    net_t n = net_new("yolo11n", 3, 5);
    const uint16_t f16[16] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x8400, 0x3555, 0xFC00, 0x03FF};
    assert_int_equal(load_bias(&n, "F16", f16, sizeof f16, &transferred), 0);
    assert_int_equal(transferred, 1);
    static const float expected[8] = {
        1, -2, 0x1p-24f, 65504, -0x1p-14f, 0.333251953125f, -INFINITY, 1023 * 0x1p-24f};
    for (int i = 0; i < 8; i++)
        assert_true(values(&n, "model.0.bn.bias")[i] == expected[i]);
    const uint16_t bf16[16] = {0x3F80, 0xC040, 0x7F7F};
    assert_int_equal(load_bias(&n, "BF16", bf16, sizeof bf16, &transferred), 0);
    assert_true(values(&n, "model.0.bn.bias")[0] == 1);
    assert_true(values(&n, "model.0.bn.bias")[1] == -3);
    assert_true(values(&n, "model.0.bn.bias")[2] == 0x1.FEp127f);
    const double f64[16] = {0.1, -2e300, 1};
    assert_int_equal(load_bias(&n, "F64", f64, sizeof f64, &transferred), 0);
    assert_true(values(&n, "model.0.bn.bias")[0] == 0.1f);
    assert_true(isinf(values(&n, "model.0.bn.bias")[1]));
    assert_int_equal(load_bias(&n, "I16", bf16, sizeof bf16, &transferred), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "I16"));
    net_free(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),       cmocka_unit_test(test_seed),
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_other_classes),
        cmocka_unit_test(test_half),       cmocka_unit_test(test_class_names),
        cmocka_unit_test(test_channels),   cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
