/* Every block of the models on its own against PyTorch (tests/reference/block_golden.py): forward in
 * training and inference, gradients of its input and of every parameter, running statistics.
 *
 * A case is a graph of one row. Its input is one map, cut by channels into the block's inputs: a
 * slice is not the graph's input, so its gradient is computed too. The block's output stands for all
 * six heads, which share its gradient then; Detect has its own.
 */
#include "tests/draws.h"
#include "tests/golden.h"
#include "tests/model_fixture.h"
#include "tests/trainer_rig.h"
#include "trainer/blocks/blocks.h"
#include "trainer/graph_plan.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BATCH = 2, NC = 5, INPUTS = 3, SKIP = 8 /* of "model.0." */ };

static int32_t build_dwconv(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    (void)row;
    return graph_conv(g, graph_unit_dw(g, graph_channels(g, x[0]), "%s", name), x[0], K_ACT_SILU);
}

static int32_t build_bottleneck(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    return block_bottleneck(g, x[0], 8, (int)row->args[0].number, name);
}

static int32_t build_c3k(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    return block_c3k(g, x[0], row->repeats, 1, name);
}

/* Three maps of one size, two of them enlarged. */
static int32_t build_detect(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    const int32_t maps[K_LEVELS] = {graph_upsample(g, graph_upsample(g, x[0])),
                                    graph_upsample(g, x[1]), x[2]};
    g->legacy_head = (int)row->args[0].number;
    return block_detect(g, row, maps, name);
}

static int32_t build_upsample(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    row->args[0].kind = GRAPH_ARG_NULL;
    row->args[1] = (graph_arg_t){.kind = GRAPH_ARG_NUMBER, .number = 2};
    strcpy(row->args[2].word, "nearest");
    row->n_args = 3;
    return block_upsample(g, row, x, name);
}

typedef struct {
    const char *name;
    graph_build_fn build;
    int32_t c[INPUTS];
    int32_t shrink, h, w; /* of the input map; the sides are of that map */
    int32_t repeats;
    double args[3];
} case_t;

/* The table of block_golden.py. */
static const case_t cases[] = {
    {"conv_s2", block_conv, {16}, 16, 6, 10, 1, {24, 3, 2}},
    {"conv_3", block_conv, {16}, 16, 6, 10, 1, {16, 3, 1}},
    {"conv_1", block_conv, {16}, 16, 6, 10, 1, {8, 1, 1}},
    {"dwconv", build_dwconv, {16}, 16, 6, 10, 1, {0}},
    {"bottleneck", build_bottleneck, {16}, 16, 6, 10, 1, {0}},
    {"bottleneck_add", build_bottleneck, {16}, 16, 6, 10, 1, {1}},
    {"c3k", build_c3k, {16}, 16, 6, 10, 2, {0}},
    {"c2f", block_c2f, {16}, 16, 6, 10, 2, {24, 0}},
    {"c2f_add", block_c2f, {16}, 16, 6, 10, 2, {24, 1}},
    {"c3k2", block_c3k2, {16}, 16, 6, 10, 2, {24, 0, 0.25}},
    {"c3k2_deep", block_c3k2, {16}, 16, 6, 10, 2, {24, 1, 0.5}},
    {"sppf", block_sppf, {16}, 16, 6, 10, 1, {24, 5}},
    {"c2psa", block_c2psa, {128}, 16, 6, 10, 1, {128}},
    {"c2psa_two", block_c2psa, {256}, 32, 3, 5, 2, {256}},
    {"upsample", build_upsample, {16}, 16, 6, 10, 1, {0}},
    {"concat", block_concat, {16, 8, 12}, 16, 6, 10, 1, {1}},
    {"detect_11", build_detect, {16, 24, 32}, 32, 2, 3, 1, {0}},
    {"detect_8", build_detect, {16, 24, 32}, 32, 2, 3, 1, {1}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static graph_t *case_graph(const case_t *c)
{
    int32_t x[INPUTS], total = 0, at = 0, inputs = 0;
    graph_t *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->rows = calloc(1, sizeof *g->rows);
    assert_non_null(g->rows);
    g->n_rows = 1;
    g->nc = NC;
    g->width = g->depth = 1;
    g->max_channels = GRAPH_MAX_CHANNELS;
    g->scale = 'n';
    snprintf(g->name, sizeof g->name, "%s", c->name);
    graph_line_t *row = g->rows;
    row->repeats = c->repeats;
    row->n_args = 3;
    for (int i = 0; i < 3; i++)
        row->args[i] = (graph_arg_t){.kind = GRAPH_ARG_NUMBER, .number = c->args[i]};
    if (c->build == block_c2f || c->build == block_c3k2)
        row->args[1].kind = GRAPH_ARG_BOOL;
    for (int i = 0; i < INPUTS; i++)
        total += c->c[i];
    g->input = graph_add_value(g, total, c->shrink);
    for (; inputs < INPUTS && c->c[inputs]; at += c->c[inputs++])
        x[inputs] = graph_slice(g, g->input, at, c->c[inputs]);
    row->n_from = inputs;
    row->out = c->build(g, row, x, "model.0");
    assert_true(row->out >= 0);
    for (int l = 0; l < K_LEVELS && !g->has_head; l++)
        g->box[l] = g->cls[l] = row->out;
    assert_int_equal(graph_finish(g), 0);
    return g;
}

typedef struct {
    const case_t *c;
    const safetensors_t *golden;
    model_t m;
    graph_plan_t train, infer;
    golden_worst_t forward, backward;
    int compared;
} run_t;

/* Output number i, and its gradient; NULL behind the last. */
static const k_tensor_t *output(const run_t *r, const graph_plan_t *p, int i, int gradient)
{
    const int heads = r->m.g->has_head ? 2 * K_LEVELS : 1;
    if (i >= heads)
        return NULL;
    if (i < K_LEVELS)
        return gradient ? &p->dbox[i] : &p->box[i];
    return gradient ? &p->dcls[i - K_LEVELS] : &p->cls[i - K_LEVELS];
}

/* Draws CASE/WHAT into a tensor. */
static void fill(run_t *r, const k_tensor_t *t, const char *what, double scale)
{
    char name[64];
    uint64_t count = model_count(t);
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    assert_int_equal(t->ld, t->c);
    snprintf(name, sizeof name, "%s/%s", r->c->name, what);
    draws_fill(name, scale, 0, values, count);
    model_write(&r->m, t->at, values, count * sizeof *values);
    free(values);
}

static void compare(run_t *r, golden_worst_t *w, const char *what, const float *ours,
                    uint64_t count, double floor)
{
    char name[128];
    snprintf(name, sizeof name, "%s/%s", r->c->name, what);
    golden_note(w, golden_compare(r->golden, name, ours, count, floor), name);
    r->compared++;
}

static void compare_tensor(run_t *r, golden_worst_t *w, const char *what, const k_tensor_t *t)
{
    float *ours = model_read(&r->m, t);
    compare(r, w, what, ours, model_count(t), 0);
    free(ours);
}

static void forward(run_t *r, graph_mode_t mode, const graph_plan_t *p, const char *word)
{
    char what[32];
    model_poison(&r->m);
    fill(r, &p->input, "x", 2);
    model_check(graph_forward(r->m.g, r->m.dev, mode, &r->m.memory, NULL), "forward");
    for (int i = 0; output(r, p, i, 0); i++) {
        snprintf(what, sizeof what, "%s.%d", word, i);
        compare_tensor(r, &r->forward, what, output(r, p, i, 0));
    }
}

/* The largest gradient of any of the case's parameters. */
static double largest_gradient(const run_t *r)
{
    char name[128];
    double most = 1e-30;
    for (int32_t i = 0; i < graph_params(r->m.g); i++) {
        const graph_param_t *p = graph_param(r->m.g, i);
        snprintf(name, sizeof name, "%s/grad.%s", r->c->name, p->name + SKIP);
        if (p->place < GRAPH_GROUPS)
            most = fmax(most, golden_largest(r->golden, name));
    }
    return most;
}

/* A shift that the next normalisation removes has no gradient but rounding, which is that of the
 * sums it is left of: measured against a thousandth of the case's largest. */
static void compare_state(run_t *r, graph_place_t last, graph_place_t first, k_at region,
                          uint64_t floats, const char *word, double floor)
{
    float *all = model_region(&r->m, region, floats);
    for (int32_t i = 0; i < graph_params(r->m.g); i++) {
        const graph_param_t *p = graph_param(r->m.g, i);
        char what[112];
        if (p->place < first || p->place > last)
            continue;
        float *values = malloc(p->count * sizeof *values);
        assert_non_null(values);
        for (uint64_t k = 0; k < p->count; k++)
            values[k] = all[p->first + weights_place(p, k)];
        snprintf(what, sizeof what, "%s.%s", word, p->name + SKIP);
        compare(r, &r->backward, what, values, p->count, floor);
        free(values);
    }
    free(all);
}

static void begin(run_t *r, const case_t *c, const safetensors_t *golden)
{
    memset(r, 0, sizeof *r);
    r->c = c;
    r->golden = golden;
    model_adopt(&r->m, case_graph(c), 2);
    const int32_t h = c->h * c->shrink, w = c->w * c->shrink;
    model_plan(&r->m, GRAPH_TRAIN, BATCH, h, w, &r->train);
    model_plan(&r->m, GRAPH_INFER, BATCH, h, w, &r->infer);
    const graph_sizes_t *s = graph_sizes(r->m.g);
    float *weights = calloc(s->weights + 1, sizeof *weights);
    float *buffers = calloc(s->buffers + 1, sizeof *buffers);
    assert_non_null(weights);
    assert_non_null(buffers);
    draws_state(r->m.g, c->name, SKIP, weights, buffers);
    model_ready_with(&r->m, weights, buffers);
    free(weights);
    free(buffers);
}

static int check_case(const case_t *c, const safetensors_t *golden)
{
    char what[64];
    run_t r;
    begin(&r, c, golden);
    const graph_sizes_t *s = graph_sizes(r.m.g);
    forward(&r, GRAPH_INFER, &r.infer, "eval");
    forward(&r, GRAPH_TRAIN, &r.train, "y");
    for (int i = 0; output(&r, &r.train, i, 1); i++) {
        snprintf(what, sizeof what, "dy.%d", i);
        fill(&r, output(&r, &r.train, i, 1), what, 1);
    }
    model_check(graph_backward(r.m.g, r.m.dev, &r.m.memory, NULL), "backward");
    compare_tensor(&r, &r.backward, "dx", &r.m.g->schedule[GRAPH_TRAIN]->grad[r.m.g->input]);
    compare_state(&r, GRAPH_BIAS, GRAPH_WEIGHT, r.m.memory.grads, s->weights, "grad",
                  1e-3 * largest_gradient(&r));
    compare_state(&r, GRAPH_BUFFER, GRAPH_BUFFER, r.m.memory.buffers, s->buffers, "stat", 0);
    snprintf(what, sizeof what, "%sblock %s forward", model_where(), c->name);
    golden_say(what, &r.forward, 1e-4);
    snprintf(what, sizeof what, "%sblock %s backward", model_where(), c->name);
    golden_say(what, &r.backward, 1e-4);
    model_close(&r.m);
    return r.compared;
}

static void check_blocks(void)
{
    int compared = 0;
    safetensors_t *f = golden_open("blocks");
    for (int i = 0; i < CASES; i++)
        compared += check_case(&cases[i], f);
    assert_int_equal(compared, safetensors_count(f)); /* nothing of the file is left out */
    safetensors_free(&f);
}

static void test_blocks(void **state)
{
    (void)state;
    check_blocks();
}

/* In float32; the last test, for the device stays chosen when it fails. */
static void test_blocks_gpu(void **state)
{
    (void)state;
    const k_ops_t *gpu = rig_gpu(K_F32);
    if (!gpu)
        skip();
    model_on(gpu);
    check_blocks();
    model_on(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_blocks_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
