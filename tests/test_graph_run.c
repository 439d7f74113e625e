/* Forward, backward and planning of whole models on the CPU device. The arena is full of NaN before
 * each run, so a read of what was never written, or was given away too early, ends in NaN. Values
 * are compared with PyTorch's in test_model_golden.c. */
#include "shm/err.h"
#include "tests/model_fixture.h"
#include "trainer/graph_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { NC = 5, HEADS = 2 * K_LEVELS };

static const k_tensor_t *head(const graph_plan_t *p, int i)
{
    return i < K_LEVELS ? &p->box[i] : &p->cls[i - K_LEVELS];
}

static const k_tensor_t *head_gradient(const graph_plan_t *p, int i)
{
    return i < K_LEVELS ? &p->dbox[i] : &p->dcls[i - K_LEVELS];
}

typedef struct {
    float *values[HEADS];
    uint64_t count[HEADS];
} outputs_t;

static void outputs_free(outputs_t *o)
{
    for (int i = 0; i < HEADS; i++)
        free(o->values[i]);
}

/* Poisons, fills the input from a stream, runs forward and fetches the head's outputs. */
static outputs_t forward(model_t *m, graph_mode_t mode, const graph_plan_t *p, uint32_t input)
{
    outputs_t o;
    model_poison(m);
    model_input(m, p, input);
    model_check(graph_forward(m->g, m->dev, mode, &m->memory, NULL), "forward");
    for (int i = 0; i < HEADS; i++) {
        o.values[i] = model_read(m, head(p, i));
        o.count[i] = model_count(head(p, i));
    }
    return o;
}

/* Sum of outputs times the normal draws that backward is given; scales receive the sum of
 * magnitudes. */
static double weigh(model_t *m, const graph_plan_t *p, const outputs_t *o)
{
    double sum = 0;
    for (int i = 0; i < HEADS; i++) {
        float *draws = malloc(o->count[i] * sizeof *draws);
        model_fill(m, head_gradient(p, i), 30 + (uint32_t)i, draws);
        for (uint64_t k = 0; k < o->count[i]; k++)
            sum += (double)draws[k] * o->values[i][k];
        free(draws);
    }
    return sum;
}

static void backward(model_t *m, const graph_plan_t *p)
{
    for (int i = 0; i < HEADS; i++)
        model_fill(m, head_gradient(p, i), 30 + (uint32_t)i, NULL);
    model_check(graph_backward(m->g, m->dev, &m->memory, NULL), "backward");
}

static void assert_same(const outputs_t *a, const outputs_t *b)
{
    for (int i = 0; i < HEADS; i++) {
        assert_int_equal(a->count[i], b->count[i]);
        assert_memory_equal(a->values[i], b->values[i], a->count[i] * sizeof(float));
    }
}

static double largest_difference(const float *a, const float *b, uint64_t n)
{
    double difference = 0, scale = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i]))
            return INFINITY;
        difference = fmax(difference, fabs((double)a[i] - b[i]));
        scale = fmax(scale, fabs(a[i]));
    }
    return difference / scale;
}

/* Along each tensor's own gradient the function must rise by the gradient's norm. The largest norms
 * are taken because in float32 a small one drowns in rounding. */
static void check_directions(const char *name)
{
    model_t m;
    graph_plan_t p;
    int checked = 0;
    double worst = 0;
    model_open(&m, name, NC, 2);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &p);
    model_ready(&m, 3);
    outputs_t o = forward(&m, GRAPH_TRAIN, &p, 1);
    outputs_free(&o);
    backward(&m, &p);
    const graph_sizes_t *s = graph_sizes(m.g);
    float *grads = model_region(&m, m.memory.grads, s->weights);
    float *weights = model_region(&m, m.memory.weights, s->weights);
    for (int32_t i = 0; i < graph_params(m.g); i++) {
        const graph_param_t *q = graph_param(m.g, i);
        if (q->place >= GRAPH_GROUPS || i % 35 >= 7)
            continue;
        double norm = 0, f[2];
        for (uint64_t k = 0; k < q->count; k++)
            norm += (double)grads[q->first + k] * grads[q->first + k];
        norm = sqrt(norm);
        assert_true(isfinite(norm));
        if (norm < 100) /* of a function whose values and their rounding are about 1e3 and 1e-4 */
            continue;
        const double step = 0.05 / norm;
        for (int side = 0; side < 2; side++) {
            float *moved = malloc(q->count * sizeof *moved);
            for (uint64_t k = 0; k < q->count; k++)
                moved[k] = (float)(weights[q->first + k] +
                                   (side ? step : -step) * grads[q->first + k] / norm);
            model_write(&m, m.memory.weights + q->first * sizeof(float), moved,
                        q->count * sizeof *moved);
            free(moved);
            o = forward(&m, GRAPH_TRAIN, &p, 1);
            f[side] = weigh(&m, &p, &o);
            outputs_free(&o);
        }
        model_write(&m, m.memory.weights + q->first * sizeof(float), weights + q->first,
                    q->count * sizeof *weights);
        double slope = (f[1] - f[0]) / (2 * step);
        worst = fmax(worst, fabs(slope - norm) / norm);
        checked++;
    }
    print_message("%s: %d directions, largest deviation %.2g\n", name, checked, worst);
    assert_true(checked >= 15);
    assert_true(worst < 0.02);
    free(grads);
    free(weights);
    model_close(&m);
}

static void test_directions(void **state)
{
    (void)state;
    check_directions("yolo11n");
    check_directions("yolov8n");
}

/* One graph, several plans: results depend on weights and input alone. */
static void test_replanning(void **state)
{
    (void)state;
    model_t m;
    graph_plan_t small, wide, again;
    model_open(&m, "yolo11n", NC, 2);
    model_plan(&m, GRAPH_TRAIN, 1, 96, 128, &wide);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &small);
    model_ready(&m, 3);
    assert_int_equal(small.stride[0], 8);
    assert_int_equal(small.stride[2], 32);
    assert_int_equal(small.anchors, 84);
    outputs_t first = forward(&m, GRAPH_TRAIN, &small, 1);
    outputs_t second = forward(&m, GRAPH_TRAIN, &small, 1);
    assert_same(&first, &second);
    outputs_free(&second);
    model_plan(&m, GRAPH_TRAIN, 1, 96, 128, &wide);
    assert_int_equal(wide.anchors, 96 * 128 / 64 + 96 * 128 / 256 + 96 * 128 / 1024);
    second = forward(&m, GRAPH_TRAIN, &wide, 2);
    for (int i = 0; i < HEADS; i++)
        assert_true(largest_difference(second.values[i], second.values[i], second.count[i]) == 0);
    outputs_free(&second);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &again);
    assert_int_equal(again.activation_bytes, small.activation_bytes);
    second = forward(&m, GRAPH_TRAIN, &again, 1);
    assert_same(&first, &second);
    outputs_free(&first);
    outputs_free(&second);
    assert_int_equal(graph_plan(m.g, m.dev, GRAPH_TRAIN, K_F32, 2, 64, 65, m.base, &again),
                     ERR_CONFIG);
    assert_int_equal(graph_plan(m.g, m.dev, GRAPH_TRAIN, K_F32, 0, 64, 64, m.base, &again),
                     ERR_CONFIG);
    model_close(&m);
}

/* Micro-batches sum: two passes over one batch give twice the gradient, and padding stays zero. */
static void test_gradients_add(void **state)
{
    (void)state;
    model_t m;
    graph_plan_t p;
    model_open(&m, "yolo11n", NC, 2);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &p);
    model_ready(&m, 3);
    const graph_sizes_t *s = graph_sizes(m.g);
    outputs_t o = forward(&m, GRAPH_TRAIN, &p, 1);
    outputs_free(&o);
    backward(&m, &p);
    float *once = model_region(&m, m.memory.grads, s->weights);
    o = forward(&m, GRAPH_TRAIN, &p, 1);
    outputs_free(&o);
    backward(&m, &p);
    float *twice = model_region(&m, m.memory.grads, s->weights);
    uint8_t *used = calloc(s->weights, 1);
    for (int32_t i = 0; i < graph_params(m.g); i++) {
        const graph_param_t *q = graph_param(m.g, i);
        if (q->place < GRAPH_GROUPS)
            memset(used + q->first, 1, q->count);
    }
    double difference = 0, scale = 0;
    uint64_t nonzero = 0;
    for (uint64_t i = 0; i < s->weights; i++) {
        assert_true(isfinite(twice[i]));
        difference = fmax(difference, fabs(twice[i] - 2.0 * once[i]));
        scale = fmax(scale, fabs(twice[i]));
        nonzero += once[i] != 0;
        assert_true(used[i] || (once[i] == 0 && twice[i] == 0));
    }
    assert_true(difference <= 1e-5 * scale);
    assert_true(nonzero > s->gradients / 2);
    free(once);
    free(twice);
    free(used);
    model_close(&m);
}

/* With the batch's statistics as running statistics, inference computes what training did. */
static void check_inference(const char *name)
{
    model_t m;
    graph_plan_t train, infer;
    model_open(&m, name, NC, 2);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 96, &train);
    model_plan(&m, GRAPH_INFER, 2, 64, 96, &infer);
    model_ready(&m, 3);
    outputs_t a = forward(&m, GRAPH_TRAIN, &train, 1);
    for (int32_t i = 0; i < m.g->n_ops; i++) {
        if (m.g->ops[i].kind != GRAPH_BN)
            continue;
        const graph_unit_t *u = &m.g->units[m.g->ops[i].unit];
        const uint64_t c = (uint64_t)u->c2;
        float *kept = model_region(&m, m.g->schedule[GRAPH_TRAIN]->slot[i].kept, 2 * c);
        for (uint64_t k = 0; k < c; k++) /* invstd -> variance; eps is facts/yolo.md 1.2 */
            kept[c + k] = (float)(1.0 / ((double)kept[c + k] * kept[c + k]) - 1e-3);
        model_write(&m, m.memory.buffers + m.g->params[u->mean].first * sizeof(float), kept,
                    c * sizeof *kept);
        model_write(&m, m.memory.buffers + m.g->params[u->var].first * sizeof(float), kept + c,
                    c * sizeof *kept);
        free(kept);
    }
    outputs_t b = forward(&m, GRAPH_INFER, &infer, 1);
    double worst = 0;
    for (int i = 0; i < HEADS; i++)
        worst = fmax(worst, largest_difference(a.values[i], b.values[i], a.count[i]));
    assert_true(worst < 1e-3); /* rounding through the depth; a shared place would show as 1 */
    assert_true(infer.dbox[0].at == K_NONE);
    outputs_free(&a);
    outputs_free(&b);
    /* Inference frees what has been read; training keeps it for backward. */
    model_check(graph_plan(m.g, m.dev, GRAPH_TRAIN, K_F32, 1, 640, 640, 0, &train), "plan");
    model_check(graph_plan(m.g, m.dev, GRAPH_INFER, K_F32, 1, 640, 640, 0, &infer), "plan");
    print_message(
        "%s: inference differs by %.2g; 640 px: %.1f MB in inference, %.1f MB in training\n", name,
        worst, (double)infer.activation_bytes / 1e6, (double)train.activation_bytes / 1e6);
    assert_true(infer.activation_bytes * 3 < train.activation_bytes);
    model_close(&m);
}

static void test_inference(void **state)
{
    (void)state;
    check_inference("yolo11n");
    check_inference("yolov8n");
}

/* The number of threads changes the order of sums, nothing else. */
static void test_threads(void **state)
{
    (void)state;
    outputs_t o[2];
    float *grads[2];
    uint64_t floats = 0;
    for (int t = 0; t < 2; t++) {
        model_t m;
        graph_plan_t p;
        model_open(&m, "yolov8n", NC, t ? 3 : 1);
        model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &p);
        model_ready(&m, 3);
        o[t] = forward(&m, GRAPH_TRAIN, &p, 1);
        backward(&m, &p);
        floats = graph_sizes(m.g)->weights;
        grads[t] = model_region(&m, m.memory.grads, floats);
        model_close(&m);
    }
    for (int i = 0; i < HEADS; i++)
        assert_true(largest_difference(o[0].values[i], o[1].values[i], o[0].count[i]) < 1e-4);
    assert_true(largest_difference(grads[0], grads[1], floats) < 1e-4);
    for (int t = 0; t < 2; t++) {
        outputs_free(&o[t]);
        free(grads[t]);
    }
}

/* A graph that no table makes: only half of a map is used, so the other half of its gradient must
 * be cleared, and one branch leads nowhere, so it must not run. */
static graph_t *half_used_graph(int32_t *bn_op, int32_t *dead_op)
{
    graph_t *g = calloc(1, sizeof *g);
    assert_non_null(g);
    g->row = -1;
    g->nc = NC;
    strcpy(g->name, "half");
    g->rows = calloc(1, sizeof *g->rows);
    g->input = graph_add_value(g, 3, 1);
    int32_t x = g->input;
    for (int l = 0; l < K_LEVELS; l++) {
        for (int down = l ? 0 : -2; down < 1; down++)
            x = graph_conv(g, graph_unit(g, graph_channels(g, x), 16, 3, 2, "down.%d.%d", l, down),
                           x, K_ACT_SILU);
        if (l == 1)
            *bn_op = g->n_ops - 1;
        int32_t half = graph_slice(g, x, 4, 8);
        int32_t box = graph_unit_plain(g, 8, 4 * K_REG_MAX, "box.%d", l);
        int32_t cls = graph_unit_plain(g, 8, NC, "cls.%d", l);
        g->box[l] = graph_conv_plain(g, box, half);
        g->cls[l] = graph_conv_plain(g, cls, half);
        g->box_bias[l] = g->units[box].bias;
        g->cls_bias[l] = g->units[cls].bias;
        x = half;
    }
    *dead_op = g->n_ops;
    assert_true(graph_conv(g, graph_unit(g, 8, 8, 3, 1, "dead"), x, K_ACT_SILU) >= 0);
    assert_int_equal(graph_finish(g), 0);
    return g;
}

static void test_partly_used(void **state)
{
    (void)state;
    model_t m;
    graph_plan_t p;
    int32_t bn_op = 0, dead_op = 0;
    model_adopt(&m, half_used_graph(&bn_op, &dead_op), 1);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &p);
    model_ready(&m, 3);
    const graph_schedule_t *s = m.g->schedule[GRAPH_TRAIN];
    assert_int_equal(s->slot[dead_op].runs, 0);
    assert_int_equal(s->slot[dead_op + 1].runs, 0);
    outputs_t o = forward(&m, GRAPH_TRAIN, &p, 1);
    backward(&m, &p);
    const uint64_t floats = graph_sizes(m.g)->weights;
    float *grads = model_region(&m, m.memory.grads, floats);
    for (uint64_t i = 0; i < floats; i++)
        assert_true(isfinite(grads[i]));
    const graph_param_t *beta = &m.g->params[m.g->units[m.g->ops[bn_op].unit].beta];
    for (uint64_t c = 0; c < 16; c++)
        assert_true((grads[beta->first + c] != 0) == (c >= 4 && c < 12));
    outputs_free(&o);
    free(grads);
    model_close(&m);
}

/* Calls without a plan are refused, not run. */
static void test_refusals(void **state)
{
    (void)state;
    model_t m;
    graph_plan_t p;
    model_open(&m, "yolov8n", NC, 1);
    assert_int_equal(graph_forward(m.g, m.dev, GRAPH_INFER, &m.memory, NULL), ERR_FAILED);
    assert_int_equal(graph_backward(m.g, m.dev, &m.memory, NULL), ERR_FAILED);
    model_plan(&m, GRAPH_TRAIN, 1, 64, 64, &p);
    assert_int_equal(graph_forward(m.g, m.dev, GRAPH_TRAIN, &m.memory, NULL),
                     ERR_FAILED); /* no arena yet */
    assert_non_null(strstr(err_text(), "row 0 (Conv)"));
    m.memory.grads = K_NONE;
    assert_int_equal(graph_backward(m.g, m.dev, &m.memory, NULL), ERR_FAILED);
    model_close(&m);
}

/* In a half format values and gradients take half the room, and a channel's place is two bytes from
 * the next; what normalisation, pooling and attention keep stays as it is. */
static void test_formats(void **state)
{
    (void)state;
    model_t m;
    graph_plan_t whole, half;
    model_open(&m, "yolo11n", 5, 1);
    const graph_t *g = m.g;
    model_check(graph_plan(m.g, m.dev, GRAPH_TRAIN, K_F32, 2, 160, 160, 0, &whole), "plan");
    model_check(graph_plan(m.g, m.dev, GRAPH_TRAIN, K_BF16, 2, 160, 160, 0, &half), "plan");
    const double share = (double)half.activation_bytes / (double)whole.activation_bytes;
    assert_true(share > 0.4 && share < 0.65);
    const graph_schedule_t *s = g->schedule[GRAPH_TRAIN];
    int views = 0;
    for (int32_t v = 0; v < g->n_values; v++) {
        int32_t first, root = graph_root(g, v, &first);
        assert_int_equal(s->value[v].dtype, K_BF16);
        assert_int_equal(s->grad[v].dtype, K_BF16);
        if (root == v)
            continue;
        assert_int_equal(s->value[v].at, s->value[root].at + (uint64_t)first * 2);
        views++;
    }
    assert_true(views > 20);
    assert_int_equal(half.dcls[0].dtype, K_BF16);
    graph_free(&m.g);
    m.dev->ops->close(&m.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_directions),    cmocka_unit_test(test_replanning),
        cmocka_unit_test(test_gradients_add), cmocka_unit_test(test_inference),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_partly_used),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
