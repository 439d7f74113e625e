/* `sluice bench step`: its line of JSON has all that it promises, and its counts are the model's. On a
 * CPU, and on a GPU where there is one. */
#include "control/yamldoc.h"
#include "shm/err.h"
#include "tests/scratch.h"
#include "tests/trainer_rig.h"
#include "trainer/bench_step.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <cmocka.h>

enum { TEXT = 1 << 16, BATCH = 2, SIDE = 64, CLASSES = 3, DEAREST = 10 };

static yamldoc_t *doc;

/* Runs the command with these words; its standard output in `text`. Returns the exit status. */
static int run(const char *words, char *text)
{
    char bin[PATH_MAX], command[PATH_MAX + 512];
    assert_non_null(realpath(getenv("SLUICE_BIN") ? getenv("SLUICE_BIN") : "build/bin", bin));
    snprintf(command, sizeof command, "timeout 100 '%s/sluice' bench %s 2>/dev/null", bin, words);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    size_t n = fread(text, 1, TEXT - 1, p);
    text[n] = '\0';
    int status = pclose(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static double number(const yamldoc_node_t *map, const char *key)
{
    double value = NAN;
    const yamldoc_node_t *n = yamldoc_get(map, key);
    if (!n || n->quoted || yamldoc_double(doc, n, &value) < 0)
        fail_msg("%s is no number", key);
    return value;
}

static const char *word(const yamldoc_node_t *map, const char *key)
{
    const yamldoc_node_t *n = yamldoc_get(map, key);
    if (!n || n->kind != YAMLDOC_SCALAR || !n->quoted)
        fail_msg("%s is no string", key);
    return n ? n->text : "";
}

static void check_costs(const yamldoc_node_t *op)
{
    assert_true(number(op, "ms") >= 0);
    assert_true(number(op, "floor_ms") >= 0);
    assert_true(number(op, "gbytes") > 0);
    assert_true(number(op, "gflop") >= 0);
}

static const yamldoc_node_t *operation(const yamldoc_node_t *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(word(list->values[i], "name"), name) == 0)
            return list->values[i];
    fail_msg("there is no %s", name);
    return NULL;
}

/* Five digits are printed. */
static void assert_about(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-4 * fabs(wanted)))
        fail_msg("%.8g, expected %.8g", value, wanted);
}

static void check_step(const yamldoc_node_t *root)
{
    assert_string_equal(word(root, "bench"), "step");
    assert_string_equal(word(root, "model"), "yolo11n");
    assert_true(number(root, "classes") == CLASSES && number(root, "batch") == BATCH);
    assert_true(number(root, "imgsz") == SIDE && number(root, "steps") == 4);
    double ms = number(root, "ms_per_step");
    assert_true(number(root, "ms_least") > 0 && number(root, "ms_least") <= ms);
    assert_true(number(root, "ms_most") >= ms);
    assert_about(number(root, "img_per_s"), BATCH / ms * 1e3);
    assert_about(number(root, "peak_gib"),
                 number(root, "arena_gib") + number(root, "overhead_gib"));
    assert_true(number(root, "arena_gib") > 0 &&
                number(root, "planned_gib") > number(root, "arena_gib"));
    assert_true(number(root, "copy_gb_s") > 0);
    const yamldoc_node_t *loss = yamldoc_get(root, "loss");
    assert_true(loss && loss->kind == YAMLDOC_LIST && loss->count == 3);
    const yamldoc_node_t *phases = yamldoc_get(root, "phases");
    assert_true(phases && phases->kind == YAMLDOC_MAP && phases->count == BENCH_END);
    assert_true(number(phases, "forward") > number(phases, "image"));
    assert_true(number(phases, "backward") > number(phases, "loss"));
    assert_true(number(phases, "update") > 0 && number(phases, "exchange") >= 0);
}

/* Multiply-adds of the convolutions are those that `sluice model` counts. */
static void check_counts(const yamldoc_node_t *root)
{
    graph_t *g = NULL;
    graph_row_t row;
    double gflops = 0;
    assert_int_equal(graph_build("yolo11n", CLASSES, &g), 0);
    for (int32_t i = 0; i < graph_rows(g); i++) {
        assert_int_equal(graph_row(g, i, SIDE, &row), 0);
        gflops += row.gflops;
    }
    const yamldoc_node_t *ops = yamldoc_get(root, "operations");
    assert_true(ops && ops->kind == YAMLDOC_LIST);
    for (int i = 0; i < ops->count; i++)
        check_costs(ops->values[i]);
    const yamldoc_node_t *conv = operation(ops, "conv"), *dw = operation(ops, "dwconv");
    assert_about(number(conv, "gflop") + number(dw, "gflop"), BATCH * gflops);
    assert_about(number(operation(ops, "conv_dw"), "gflop"), number(conv, "gflop"));
    /* All but the first convolution pass a gradient on. */
    assert_true(number(operation(ops, "conv_dx"), "calls") == number(conv, "calls") - 1);
    assert_true(number(operation(ops, "image"), "calls") == 1);
    /* A byte in and an element out for each of three colours. */
    const double pixels = (double)BATCH * SIDE * SIDE * 3;
    const double element = strcmp(word(root, "format"), "fp32") == 0 ? 4 : 2;
    assert_about(number(operation(ops, "image"), "gbytes"), pixels * (1 + element) / 1e9);
    const double floats = (double)(graph_sizes(g)->weights + graph_sizes(g)->buffers);
    assert_about(number(operation(ops, "ema"), "gbytes"), 3 * 4 * floats / 1e9);
    graph_free(&g);
}

static void check_dearest(const yamldoc_node_t *root)
{
    const yamldoc_node_t *list = yamldoc_get(root, "dearest");
    int layers = 0;
    assert_true(list && list->kind == YAMLDOC_LIST && list->count == DEAREST);
    for (int i = 0; i < DEAREST; i++) {
        const yamldoc_node_t *op = list->values[i];
        check_costs(op);
        assert_true(word(op, "shape")[0]);
        layers += strncmp(word(op, "layer"), "model.", 6) == 0;
        if (i > 0)
            assert_true(number(op, "ms") <= number(list->values[i - 1], "ms"));
    }
    assert_true(layers > 0);
}

static void check_line(const char *device)
{
    static char text[TEXT];
    char words[256];
    snprintf(words, sizeof words,
             "step model=yolo11n batch=%d imgsz=%d nc=%d boxes=3 steps=4 warmup=4 device=%s", BATCH,
             SIDE, CLASSES, device);
    assert_int_equal(run(words, text), 0);
    assert_non_null(strchr(text, '\n'));
    assert_string_equal(strchr(text, '\n'), "\n"); /* one line */
    if (yamldoc_load_text(text, strlen(text), "the line", &doc) < 0)
        fail_msg("%s: %s", err_text(), text);
    const yamldoc_node_t *root = yamldoc_root(doc);
    check_step(root);
    check_counts(root);
    check_dearest(root);
}

static void a_step_on_a_cpu(void **state)
{
    (void)state;
    check_line("cpu");
    assert_string_equal(word(yamldoc_root(doc), "device"), "cpu");
    assert_string_equal(word(yamldoc_root(doc), "format"), "fp32");
    assert_string_equal(yamldoc_get(yamldoc_root(doc), "recorded")->text, "false");
    assert_string_equal(word(yamldoc_root(doc), "tflops_from"), "best convolution");
    assert_true(number(yamldoc_root(doc), "tflops") > 0);
    yamldoc_free(&doc);
}

static void a_step_on_a_gpu(void **state)
{
    (void)state;
    if (!rig_gpu(K_BF16))
        skip();
    check_line("0 tflops=900");
    assert_string_equal(word(yamldoc_root(doc), "format"), "bf16");
    assert_string_equal(yamldoc_get(yamldoc_root(doc), "recorded")->text, "true");
    assert_string_equal(word(yamldoc_root(doc), "tflops_from"), "given");
    assert_true(number(yamldoc_root(doc), "tflops") == 900);
    yamldoc_free(&doc);
}

static void what_cannot_be_measured(void **state)
{
    (void)state;
    static const struct {
        const char *words;
        int status;
    } cases[] = {
        {"", 2},
        {"steps", 2},
        {"step batches=2", 2},
        {"step imgsz=31", 2},
        {"step steps=0", 2},
        {"step device=cpu model=yolo99", 2},
        {"step device=cpu,cpu model=yolo11n", 2},
        {"step device=cpu model=/nowhere/x.safetensors", 2},
    };
    static char text[TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = run(cases[i].words, text);
        if (status != cases[i].status || text[0])
            fail_msg("bench %s: status %d, not %d; it said: %s", cases[i].words, status,
                     cases[i].status, text);
    }
}

static void medians(void **state)
{
    (void)state;
    const double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    assert_true(bench_median(odd, 3) == 2 && bench_median(even, 4) == 2.5);
    bench_op_t op = {.ms = {5, 1, 2}};
    assert_true(bench_op_ms(&op) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_on_a_cpu),
        cmocka_unit_test(a_step_on_a_gpu),
        cmocka_unit_test(what_cannot_be_measured),
        cmocka_unit_test(medians),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
