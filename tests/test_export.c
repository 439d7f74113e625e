/* `sluice export`: its words, what it leaves, where it takes the weights, names and size from. What is
 * in the file is test_onnx.c's. */
#include "shm/err.h"
#include "tests/model_fixture.h"
#include "tests/onnx_read.h"
#include "tests/scratch.h"
#include "tools/commands.h"
#include "trainer/graph.h"
#include "trainer/onnx.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Standard output is cmocka's: what the command prints goes elsewhere meanwhile. */
static int run_command(const char *const *words, int n)
{
    char copies[6][SCRATCH_PATH], *argv[8] = {copies[0]};
    snprintf(copies[0], sizeof copies[0], "export");
    for (int i = 0; i < n; i++) {
        snprintf(copies[i + 1], sizeof copies[0], "%s", words[i]);
        argv[i + 1] = copies[i + 1];
    }
    fflush(stdout);
    const int kept = dup(1), none = open("/dev/null", O_WRONLY);
    dup2(none, 1);
    int rc = cmd_export(n + 1, argv);
    fflush(stdout);
    dup2(kept, 1);
    close(kept);
    close(none);
    return rc;
}

static void refuses(const char *a, const char *b, const char *word)
{
    const char *const words[] = {a, b};
    assert_int_equal(run_command(words, b ? 2 : 1), ERR_CONFIG);
    if (!strstr(err_text(), word))
        fail_msg("'%s' is not in: %s", word, err_text());
}

static int files_in(const char *folder)
{
    DIR *d = opendir(folder);
    int n = -2; /* . and .. */
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void test_command(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH], out[2 * SCRATCH_PATH];
    scratch_begin(folder);
    snprintf(out, sizeof out, "out=%.3000s/a.onnx", folder);
    refuses("modle=yolo11n", NULL, "nearest is model=");
    refuses("model=yolo11n", "dynamc=True", "nearest is dynamic=");
    refuses(out, NULL, "model= is missing");
    refuses("model=yolo11n", "format=torchscript", "format=torchscript");
    refuses("model=yolo11n", "opset=16", "from 17 to 22");
    refuses("model=yolo11n", "half=maybe", "True or False");
    refuses("model=yolo11n", "conf=0.5", "needs nms=True");
    refuses("model=yolo11n", "conf=x", "from 0 to 1");
    refuses("model=yolo11n", "imgsz=64,", "imgsz=64,");
    refuses("model=yolo11n", "imgsz=16", "imgsz=16");
    refuses("model=yolo11n", "out=a.pt", "ends with .onnx");
    refuses("model=yolo99z", out, "yolo99z");
    refuses("model=/nowhere/best.pt", out, "best.pt");
    refuses("model=best.pt", "seed=1", "seed=");
    refuses("model=/", out, "no weights/best.safetensors");
    assert_int_equal(files_in(folder), 0);

    const char *const words[] = {"model=yolo11n.yaml", out, "imgsz=50,90", "half=true"};
    assert_int_equal(run_command(words, 4), 0);
    assert_int_equal(files_in(folder), 1);
    size_t bytes;
    uint8_t *image = scratch_read(out + 4, &bytes);
    read_model_t m;
    assert_non_null(image);
    onnx_read(image, bytes, &m);
    assert_int_equal(m.opset, 17);
    assert_true(m.n_nodes > 300);
    assert_string_equal(onnx_read_entry(&m, "imgsz"), "[64, 96]");
    onnx_read_free(&m);
    free(image);
    /* What is there stays. */
    assert_int_equal(run_command(words, 4), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "is there already"));
    assert_int_equal(files_in(folder), 1);
    scratch_end(folder);
}

/* A file as a run writes it: names, and the size that it was trained at. */
static const char *write_run(const char *folder, float *first)
{
    graph_t *g;
    safetensors_writer_t *w;
    assert_int_equal(graph_build("yolov8n", 2, &g), 0);
    float *weights = calloc(graph_sizes(g)->weights, sizeof *weights);
    float *buffers = calloc(graph_sizes(g)->buffers, sizeof *buffers);
    assert_non_null(weights);
    assert_non_null(buffers);
    weights_init(g, 9, weights, buffers);
    *first = weights[graph_find_param(g, "model.22.cv3.0.2.weight")->first];
    model_check(safetensors_writer_new(&w), "writer");
    model_check(safetensors_writer_metadata(w, "names", "{\"0\": \"pit\", \"1\": \"dent\"}"),
                "names");
    model_check(safetensors_writer_metadata(w, "args", "batch: 4\nmy_imgsz: 1\nimgsz: 96\nlr0: 1"),
                "args");
    model_check(weights_store(g, weights, buffers, 1, "", w), "store");
    const uint64_t bytes = safetensors_writer_bytes(w);
    void *image = malloc(bytes);
    assert_non_null(image);
    model_check(safetensors_writer_image(w, image, bytes), "image");
    const char *path = scratch_write(folder, "best.safetensors", image, bytes);
    free(image);
    free(weights);
    free(buffers);
    safetensors_writer_free(&w);
    graph_free(&g);
    return path;
}

static void test_from_run(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH], model[2 * SCRATCH_PATH], out[2 * SCRATCH_PATH];
    float want, got;
    size_t bytes;
    read_model_t m;
    scratch_begin(folder);
    snprintf(model, sizeof model, "model=%.3000s", write_run(folder, &want));
    const char *const words[] = {model};
    if (run_command(words, 1) < 0)
        fail_msg("%s", err_text());
    snprintf(out, sizeof out, "%.3000s/best.onnx", folder);
    uint8_t *image = scratch_read(out, &bytes);
    assert_non_null(image);
    onnx_read(image, bytes, &m);
    assert_string_equal(onnx_read_entry(&m, "names"), "{0: 'pit', 1: 'dent'}");
    assert_string_equal(onnx_read_entry(&m, "imgsz"), "[96, 96]");
    assert_string_equal(onnx_read_entry(&m, "description"), "yolov8n detector of best.safetensors");
    /* A convolution without normalisation is as it was. */
    const read_tensor_t *last = onnx_read_constant(&m, "model.22.cv3.0.2.weight");
    assert_non_null(last);
    assert_int_equal(last->dims[0], 2);
    memcpy(&got, last->raw, sizeof got);
    assert_true(want == got && want != 0);
    onnx_read_free(&m);
    free(image);
    scratch_end(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command),
        cmocka_unit_test(test_from_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
