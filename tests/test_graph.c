/* The models as built: counts, state-dict names and shapes, rows; and tables of a user's own. */
#include "shm/err.h"
#include "trainer/graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* facts/yolo.md 1.1. digest: FNV-1a of the lines "name TAB shape" of facts/tensors/NAME.tsv. */
static const struct {
    const char *name;
    uint64_t parameters, gradients;
    int32_t tensors;
    double gflops;
    uint64_t digest;
} models[] = {
    {"yolo11n", 2624080, 2624064, 499, 6.48, 0x298e9e6b3721f870},
    {"yolo11s", 9458752, 9458736, 499, 21.47, 0xef6a9813e5cffe01},
    {"yolo11m", 20114688, 20114672, 649, 67.98, 0x8945b89a051ed11d},
    {"yolo11l", 25372160, 25372144, 1015, 86.91, 0x4c00bae0e5491402},
    {"yolo11x", 56966176, 56966160, 1015, 194.90, 0x5af946101df13860},
    {"yolov8n", 3157200, 3157184, 355, 8.74, 0xfd6b2a0e7e715909},
    {"yolov8s", 11166560, 11166544, 355, 28.60, 0x9b0d0f41a068665},
    {"yolov8m", 25902640, 25902624, 475, 78.94, 0xb3d403c41f2e6c18},
    {"yolov8l", 43691520, 43691504, 595, 165.15, 0xe0a17992b6179005},
    {"yolov8x", 68229648, 68229632, 595, 257.80, 0xa1e15217cf4934e3},
};
enum { MODELS = sizeof models / sizeof *models };

/* Parameters by row for n s m l x (facts/yolo.md 1.1); rows that are not here have none. */
typedef struct {
    int32_t row;
    uint64_t parameters[5];
} row_t;
static const row_t rows11[] = {
    {0, {464, 928, 1856, 1856, 2784}},
    {1, {4672, 18560, 73984, 73984, 166272}},
    {2, {6640, 26080, 111872, 173824, 389760}},
    {3, {36992, 147712, 590336, 590336, 1327872}},
    {4, {26080, 103360, 444928, 691712, 1553664}},
    {5, {147712, 590336, 2360320, 2360320, 5309952}},
    {6, {87040, 346112, 1380352, 2234368, 5022720}},
    {7, {295424, 1180672, 2360320, 2360320, 5309952}},
    {8, {346112, 1380352, 1380352, 2234368, 5022720}},
    {9, {164608, 656896, 656896, 656896, 1476864}},
    {10, {249728, 990976, 990976, 1455616, 3264768}},
    {13, {111296, 443776, 1642496, 2496512, 5612544}},
    {16, {32096, 127680, 542720, 756736, 1700352}},
    {17, {36992, 147712, 590336, 590336, 1327872}},
    {19, {86720, 345472, 1511424, 2365440, 5317632}},
    {20, {147712, 590336, 2360320, 2360320, 5309952}},
    {22, {378880, 1511424, 1642496, 2496512, 5612544}},
    {23, {464912, 850368, 1472704, 1472704, 3237952}},
    {-1, {0}},
};
static const row_t rows8[] = {
    {0, {464, 928, 1392, 1856, 2320}},
    {1, {4672, 18560, 41664, 73984, 115520}},
    {2, {7360, 29056, 111360, 279808, 436800}},
    {3, {18560, 73984, 166272, 295424, 461440}},
    {4, {49664, 197632, 813312, 2101248, 3281920}},
    {5, {73984, 295424, 664320, 1180672, 1844480}},
    {6, {197632, 788480, 3248640, 8396800, 13117440}},
    {7, {295424, 1180672, 1991808, 2360320, 3687680}},
    {8, {460288, 1838080, 3985920, 4461568, 6969600}},
    {9, {164608, 656896, 831168, 656896, 1025920}},
    {12, {148224, 591360, 1993728, 4723712, 7379200}},
    {15, {37248, 148224, 517632, 1247744, 1948800}},
    {16, {36992, 147712, 332160, 590336, 922240}},
    {18, {123648, 493056, 1846272, 4592640, 7174400}},
    {19, {147712, 590336, 1327872, 2360320, 3687680}},
    {21, {493056, 1969152, 4207104, 4723712, 7379200}},
    {22, {897664, 2147008, 3822016, 5644480, 8795008}},
    {-1, {0}},
};

static graph_t *built(const char *name, int32_t nc)
{
    graph_t *g;
    if (graph_build(name, nc, &g) < 0)
        fail_msg("%s: %s", name, err_text());
    return g;
}

static void test_counts(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        graph_t *g = built(models[m].name, 80);
        const graph_sizes_t *s = graph_sizes(g);
        double gflops = 0;
        for (int32_t i = 0; i < graph_rows(g); i++) {
            graph_row_t row;
            assert_int_equal(graph_row(g, i, 640, &row), 0);
            gflops += row.gflops;
        }
        assert_int_equal(s->parameters, models[m].parameters);
        assert_int_equal(s->gradients, models[m].gradients);
        assert_int_equal(graph_params(g), models[m].tensors);
        assert_true(gflops > models[m].gflops - 0.006 && gflops < models[m].gflops + 0.006);
        assert_string_equal(graph_name(g), models[m].name);
        assert_int_equal(graph_classes(g), 80);
        graph_free(&g);
    }
}

/* One line of the tsv for a parameter. */
static int line_of(const graph_param_t *p, char *line, size_t room)
{
    int n = snprintf(line, room, "%s\t%s", p->name, p->ndim ? "" : "scalar");
    for (int32_t i = 0; i < p->ndim; i++)
        n += snprintf(line + n, room - (size_t)n, "%s%lld", i ? "x" : "", (long long)p->shape[i]);
    return n + snprintf(line + n, room - (size_t)n, "\n");
}

static void test_state_dict(void **state)
{
    (void)state;
    const char *data = getenv("SLUICE_TEST_DATA");
    int compared = 0;
    for (int m = 0; m < MODELS; m++) {
        char path[4096], line[256], expected[256];
        graph_t *g = built(models[m].name, 80);
        uint64_t hash = 0xcbf29ce484222325;
        snprintf(path, sizeof path, "%s/../facts/tensors/%s.tsv", data ? data : "../shared/data",
                 models[m].name);
        FILE *f = fopen(path, "r");
        for (int32_t i = 0; i < graph_params(g); i++) {
            int n = line_of(graph_param(g, i), line, sizeof line);
            for (int k = 0; k < n; k++)
                hash = (hash ^ (unsigned char)line[k]) * 0x100000001b3;
            if (f) {
                assert_non_null(fgets(expected, sizeof expected, f));
                assert_string_equal(line, expected);
            }
        }
        if (f) {
            assert_null(fgets(expected, sizeof expected, f));
            fclose(f);
            compared++;
        }
        assert_int_equal(hash, models[m].digest);
        graph_free(&g);
    }
    print_message("%d of %d compared line by line with facts/tensors\n", compared, MODELS);
}

static void test_rows(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        graph_t *g = built(models[m].name, 80);
        const row_t *r = m < 5 ? rows11 : rows8;
        for (int32_t i = 0; i < graph_rows(g); i++) {
            graph_row_t row;
            assert_int_equal(graph_row(g, i, 640, &row), 0);
            uint64_t expected = r->row == i ? r->parameters[m % 5] : 0;
            r += r->row == i;
            assert_int_equal(row.parameters, expected);
        }
        assert_int_equal(r->row, -1);
        graph_free(&g);
    }
    graph_row_t row;
    graph_t *g = built("yolo11m", 80);
    assert_int_equal(graph_row(g, 12, 640, &row), 0);
    assert_int_equal(row.c, 1024);
    assert_int_equal(row.h, 40);
    assert_string_equal(row.from, "[-1, 6]");
    assert_int_equal(graph_row(g, 23, 640, &row), 0);
    assert_int_equal(row.w, 8400);
    assert_int_equal(graph_row(g, 0, 650, &row), ERR_CONFIG);
    assert_int_equal(graph_row(g, 24, 640, &row), ERR_CONFIG);
    graph_free(&g);
}

/* Places do not overlap, are aligned, and fill the groups in order of the state dict. */
static void test_places(void **state)
{
    (void)state;
    graph_t *g = built("yolo11n", 3);
    const graph_sizes_t *s = graph_sizes(g);
    for (int place = GRAPH_WEIGHT; place <= GRAPH_BUFFER; place++) {
        uint64_t at = place == GRAPH_BUFFER ? 0 : s->group_first[place];
        for (int32_t i = 0; i < graph_params(g); i++) {
            const graph_param_t *p = graph_param(g, i);
            if ((int)p->place != place)
                continue;
            assert_int_equal(p->first, at);
            assert_int_equal(p->first % 64, 0);
            at += (p->count + 63) / 64 * 64;
        }
        assert_int_equal(at, place == GRAPH_BUFFER ? s->buffers
                                                   : s->group_first[place] + s->group_count[place]);
    }
    const graph_param_t *p = graph_find_param(g, "model.23.cv3.0.0.0.conv.weight");
    assert_non_null(p);
    assert_int_equal(p->layout, GRAPH_LAYOUT_HWC);
    p = graph_find_param(g, "model.23.cv3.2.2.bias");
    assert_int_equal(p->shape[0], 3);
    assert_int_equal(p->place, GRAPH_BIAS);
    assert_null(graph_find_param(g, "model.24.cv1.conv.weight"));
    graph_free(&g);
}

/* c3 of the class branch depends on nc for the n size only (facts/yolo.md 1.2). */
static void test_classes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int32_t nc;
        int64_t hidden;
    } cases[] = {{"yolo11n", 80, 80}, {"yolo11n", 2, 64},    {"yolo11n", 365, 100},
                 {"yolo11s", 2, 128}, {"yolov8n", 120, 100}, {"yolov8x", 365, 320}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        graph_t *g = built(cases[i].name, cases[i].nc);
        int v8 = strncmp(cases[i].name, "yolov8", 6) == 0;
        const graph_param_t *p =
            graph_find_param(g, v8 ? "model.22.cv3.0.2.weight" : "model.23.cv3.0.2.weight");
        assert_non_null(p);
        assert_int_equal(p->shape[0], cases[i].nc);
        assert_int_equal(p->shape[1], cases[i].hidden);
        graph_free(&g);
    }
}

static void test_names(void **state)
{
    (void)state;
    graph_t *g = built("yolov8s.yaml", 0);
    assert_string_equal(graph_name(g), "yolov8s");
    assert_int_equal(graph_classes(g), 80);
    assert_int_equal(graph_sizes(g)->parameters, 11166560);
    graph_free(&g);
    g = built("yolo11", 0); /* the first scale, said in the log */
    assert_string_equal(graph_name(g), "yolo11n");
    graph_free(&g);
    static const char *const unknown[] = {"yolo12n", "yolo11q",    "",
                                          "resnet",  "yolo11n.pt", "nowhere/yolo11n"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_int_equal(graph_build(unknown[i], 0, &g), ERR_CONFIG);
        assert_null(g);
    }
    assert_int_equal(graph_build("yolo11n", 10001, &g), ERR_CONFIG);
}

/* A table of the user's own, written to folder/yolotestx2.yaml. */
static const char head_rows[] = "head:\n"
                                "  - [-1, 1, Conv, [32, 3, 2]]\n"
                                "  - [-1, 1, Conv, [32, 3, 2]]\n"
                                "  - [[2, 3, 4], 1, Detect, [nc]]\n";
static const char good_rows[] = "backbone:\n"
                                "  - [-1, 1, Conv, [16, 3, 2]]\n"
                                "  - [-1, 1, Conv, [16, 3, 2]]\n"
                                "  - [-1, 3, C2f, [32, yes]]\n";

static int build_text(const char *folder, const char *text, const char *rest, graph_t **g)
{
    char path[256];
    snprintf(path, sizeof path, "%s/test2.yaml", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s%s", text, rest);
    fclose(f);
    int rc = graph_build(path, 0, g);
    unlink(path);
    return rc;
}

static void refuse(const char *folder, const char *text, const char *rest, const char *why)
{
    graph_t *g;
    assert_int_equal(build_text(folder, text, rest, &g), ERR_CONFIG);
    assert_null(g);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s'", err_text(), why);
}

static void test_own_table(void **state)
{
    (void)state;
    graph_t *g;
    graph_row_t row;
    char folder[] = "/tmp/sluice-test-XXXXXX", text[1024];
    assert_non_null(mkdtemp(folder));
    snprintf(text, sizeof text, "nc: 7\n%s", good_rows);
    if (build_text(folder, text, head_rows, &g) < 0)
        fail_msg("%s", err_text());
    assert_int_equal(graph_classes(g), 7);
    assert_int_equal(graph_row(g, 2, 64, &row), 0);
    assert_string_equal(row.args, "16, 32, 3, True");
    /* No scale, no C3k2: the head is the older one, full 3x3 convolutions for the classes. */
    assert_int_equal(graph_find_param(g, "model.5.cv3.0.0.conv.weight")->shape[2], 3);
    graph_free(&g);

    refuse(folder, "nc: 0\n", good_rows, "0 classes");
    refuse(folder, "reg_max: 8\n", good_rows, "only 16");
    refuse(folder, "activation: ReLU\n", good_rows, "activation");
    refuse(folder, "scales: {n: [1, 1]}\n", good_rows, "depth, width");
    refuse(folder, good_rows, "", "head");
    refuse(folder, "- 1\n", "", "not a map");
    refuse(folder, good_rows, "head: []\n", "no Detect");
    static const struct {
        const char *row, *why;
    } bad[] = {
        {"[-1, 1, Cnv, [16, 3, 2]]", "known: Conv"},
        {"[-4, 1, Conv, [16, 3, 2]]", "names row -4"},
        {"[2, 1, Conv, [16, 3, 2]]", "names row 2"},
        {"[-1, 1, Conv, [16, 4, 2]]", "kernel size 4"},
        {"[-1, 1, Conv, [16, 3, 3]]", "from 1 to 2"},
        {"[-1, 1, Conv, [x, 3, 2]]", "argument 1 is x"},
        {"[-1, 1, Conv, [99999, 3, 2]]", "argument 1 is 99999"},
        {"[[0, 1], 1, Conv, [16, 3, 2]]", "takes one input"},
        {"[-1, 2, Conv, [16, 3, 2]]", "2 repeats"},
        {"[-1, 1, Conv, [16, 3, 2, 1]]", "4 arguments"},
        {"[-1, 1, Conv]", "not [from"},
        {"[-1, 1, C2f, [16, 1]]", "True or False"},
        {"[-1, 1, C2f, [x]]", "argument 1 is x"},
        {"[-1, 1, C2PSA, [32]]", "C2PSA keeps"},
        {"[[0, 1], 1, Concat, [1]]", "1/2 and 1/4"},
        {"[-1, 1, nn.Upsample, [None, 3, nearest]]", "from 2 to 2"},
        {"[-1, 1, nn.Upsample, [None, 2, bilinear]]", "nearest"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(
            text, sizeof text,
            "backbone:\n  - [-1, 1, Conv, [16, 3, 2]]\n  - [-1, 1, Conv, [16, 3, 2]]\n  - %s\n",
            bad[i].row);
        refuse(folder, text, head_rows, bad[i].why);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),    cmocka_unit_test(test_state_dict),
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_places),
        cmocka_unit_test(test_classes),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_own_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
