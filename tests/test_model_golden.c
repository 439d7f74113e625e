/* yolo11n and yolov8n whole against PyTorch (tests/reference/model_golden.py), on a batch of 64 px
 * and one of 160 px: head outputs in inference and training, running statistics, loss, and gradients
 * of every parameter, of a linear function of the outputs and of the loss. And what the ten models
 * are made of: names, shapes and order of their state dicts.
 *
 * Pixels, weights and gradients of the outputs are draws (tests/draws.h).
 */
#include "tests/draws.h"
#include "tests/golden.h"
#include "tests/model_fixture.h"
#include "tests/trainer_rig.h"
#include "trainer/graph_internal.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { NC = 5, MAX_GT = 4, MOST = 4 /* images */ };

typedef struct {
    const char *name; /* of the side in pixels */
    int32_t n, side;
    k_gt_t boxes[MOST][MAX_GT];
    int32_t count[MOST];
} case_t;

/* BATCHES of model_golden.py. */
static const case_t small = {
    "64",
    4,
    64,
    {{{0, 4, 6, 40, 52}, {3, 30, 20, 60, 44}, {1, 9, 40, 15, 46}},
     {{4, 2, 3, 62, 60}, {2, 34, 35, 58, 57}},
     {{0, 0, 0, 0, 0}}, /* background: no box */
     {{2, 1, 1, 30, 33}, {2, 28, 4, 63, 31}, {0, 3, 36, 33, 61}, {1, 50, 50, 55, 58}}},
    {3, 2, 0, 4},
};
static const case_t large = {
    "160",
    2,
    160,
    {{{0, 11, 17, 99, 132}, {3, 80, 41, 151, 118}, {1, 20, 101, 27, 108}, {4, 100, 3, 158, 60}},
     {{2, 3, 2, 77, 81}, {2, 70, 12, 157, 79}, {1, 125, 125, 139, 147}}},
    {4, 3},
};

typedef struct {
    const case_t *c;
    model_t m;
    graph_plan_t train, infer;
    k_detect_loss_t loss;
    k_at u8;
    safetensors_t *golden;
    int compared;
} run_t;

/* Drawn weights, and the head's last biases as before training (facts/yolo.md 1.3). */
static void upload_weights(run_t *r, const char *name)
{
    const graph_sizes_t *s = graph_sizes(r->m.g);
    float *weights = calloc(s->weights, sizeof *weights);
    float *buffers = calloc(s->buffers, sizeof *buffers);
    assert_non_null(weights);
    assert_non_null(buffers);
    draws_state(r->m.g, name, 0, weights, buffers);
    for (int l = 0; l < K_LEVELS; l++) {
        const graph_param_t *box = &r->m.g->params[r->m.g->box_bias[l]];
        const graph_param_t *cls = &r->m.g->params[r->m.g->cls_bias[l]];
        const double cells = 640.0 / r->train.stride[l];
        for (uint64_t i = 0; i < box->count; i++)
            weights[box->first + i] = 2;
        for (uint64_t i = 0; i < cls->count; i++)
            weights[cls->first + i] = (float)log(5.0 / NC / (cells * cells));
    }
    model_ready_with(&r->m, weights, buffers);
    free(weights);
    free(buffers);
}

/* Behind the activations: boxes, their counts, items, pixels, the loss's own memory. */
static void prepare_loss(run_t *r)
{
    k_detect_loss_t *p = &r->loss;
    memcpy(p->box, r->train.box, sizeof p->box);
    memcpy(p->cls, r->train.cls, sizeof p->cls);
    memcpy(p->dbox, r->train.dbox, sizeof p->dbox);
    memcpy(p->dcls, r->train.dcls, sizeof p->dcls);
    memcpy(p->stride, r->train.stride, sizeof p->stride);
    p->nc = NC;
    p->max_gt = MAX_GT;
    p->gain_box = 7.5f;
    p->gain_cls = 0.5f;
    p->gain_dfl = 1.5f;
    p->scale = (float)r->c->n;
    p->scaling = K_NONE;
    p->work_bytes = r->m.dev->ops->detect_loss_work(r->m.dev, p);
}

static uint64_t u8_bytes(const case_t *c)
{
    return ((uint64_t)c->n * (uint64_t)c->side * (uint64_t)c->side * 3 + K_ALIGN - 1) / K_ALIGN *
           K_ALIGN;
}

static void begin(run_t *r, const char *name, const case_t *c)
{
    char file[64], pixels[32];
    memset(r, 0, sizeof *r);
    r->c = c;
    model_open(&r->m, name, NC, 2);
    model_plan(&r->m, GRAPH_TRAIN, c->n, c->side, c->side, &r->train);
    model_plan(&r->m, GRAPH_INFER, c->n, c->side, c->side, &r->infer);
    prepare_loss(r);
    r->m.extra_bytes = 4096 + u8_bytes(c) + r->loss.work_bytes;
    upload_weights(r, name);
    r->loss.gt = r->m.extra;
    r->loss.gt_count = r->m.extra + 1024;
    r->loss.items = r->m.extra + 2048;
    r->loss.sum = r->m.extra + 3072;
    r->u8 = r->m.extra + 4096;
    r->loss.work = r->u8 + u8_bytes(c);
    _Static_assert(sizeof c->boxes <= 1024, "boxes have their room");
    model_write(&r->m, r->loss.gt, c->boxes, sizeof c->boxes);
    model_write(&r->m, r->loss.gt_count, c->count, sizeof c->count);
    uint8_t *u8 = malloc(u8_bytes(c));
    assert_non_null(u8);
    snprintf(pixels, sizeof pixels, "pixels/%s", c->name);
    draws_octets(pixels, u8, u8_bytes(c));
    model_write(&r->m, r->u8, u8, u8_bytes(c));
    free(u8);
    snprintf(file, sizeof file, "model_%s_%s", name, c->name);
    r->golden = golden_open(file);
}

static void end(run_t *r)
{
    assert_int_equal(r->compared, safetensors_count(r->golden)); /* nothing is left out */
    safetensors_free(&r->golden);
    model_close(&r->m);
}

static void forward(run_t *r, graph_mode_t mode, const graph_plan_t *p)
{
    model_poison(&r->m);
    assert_int_equal(r->m.dev->ops->image(r->m.dev, r->u8, &p->input), 0);
    model_check(graph_forward(r->m.g, r->m.dev, mode, &r->m.memory, NULL), "forward");
}

static const k_tensor_t *head(const graph_plan_t *p, int i, int gradient)
{
    if (i < K_LEVELS)
        return gradient ? &p->dbox[i] : &p->box[i];
    return gradient ? &p->dcls[i - K_LEVELS] : &p->cls[i - K_LEVELS];
}

static const char *const head_name[] = {"box.0", "box.1", "box.2", "cls.0", "cls.1", "cls.2"};
enum { HEADS = 2 * K_LEVELS };

static void compare_heads(run_t *r, const graph_plan_t *p, const char *word, golden_worst_t *w)
{
    for (int i = 0; i < HEADS; i++) {
        char name[32];
        const k_tensor_t *t = head(p, i, 0);
        float *ours = model_read(&r->m, t);
        snprintf(name, sizeof name, "%s.%s", word, head_name[i]);
        golden_note(w, golden_compare(r->golden, name, ours, model_count(t), 0), name);
        r->compared++;
        free(ours);
    }
}

static int has(const run_t *r, const char *name)
{
    char summary[160];
    snprintf(summary, sizeof summary, "summary.%s", name);
    return safetensors_find(r->golden, name) || safetensors_find(r->golden, summary);
}

/* Compares what of a region the golden file has; returns how many tensors that were. */
static int compare_region(run_t *r, int buffers, const char *word, double floor, golden_worst_t *w)
{
    const graph_sizes_t *s = graph_sizes(r->m.g);
    float *all = buffers ? model_region(&r->m, r->m.memory.buffers, s->buffers)
                         : model_region(&r->m, r->m.memory.grads, s->weights);
    int count = 0;
    for (int32_t i = 0; i < graph_params(r->m.g); i++) {
        const graph_param_t *p = graph_param(r->m.g, i);
        char name[128];
        snprintf(name, sizeof name, "%s.%s", word, p->name);
        if (p->place > GRAPH_BUFFER || (p->place == GRAPH_BUFFER) != buffers ||
            (buffers && !has(r, name)))
            continue;
        float *values = malloc(p->count * sizeof *values);
        assert_non_null(values);
        for (uint64_t k = 0; k < p->count; k++)
            values[k] = all[p->first + weights_place(p, k)];
        golden_note(w, golden_compare(r->golden, name, values, p->count, floor), name);
        free(values);
        count++;
    }
    free(all);
    r->compared += count;
    return count;
}

/* Some gradients are zero by construction (a shift that the next normalisation removes) and
 * otherwise rounding of what was summed: measured against a thousandth of the model's largest. */
static void compare_gradients(run_t *r, const char *word, golden_worst_t *w)
{
    double most = 0;
    for (int32_t i = 0; i < graph_params(r->m.g); i++) {
        const graph_param_t *p = graph_param(r->m.g, i);
        char name[128];
        snprintf(name, sizeof name, "%s.%s", word, p->name);
        if (p->place < GRAPH_GROUPS)
            most = fmax(most, golden_largest(r->golden, name));
    }
    assert_true(compare_region(r, 0, word, 1e-3 * most, w) > 150);
}

static void clear_gradients(run_t *r)
{
    const uint64_t bytes = graph_sizes(r->m.g)->weights * sizeof(float);
    assert_int_equal(r->m.dev->ops->zero(r->m.dev, r->m.memory.grads, bytes), 0);
}

static void draw_head_gradients(run_t *r)
{
    for (int i = 0; i < HEADS; i++) {
        char name[32];
        const k_tensor_t *t = head(&r->train, i, 1);
        float *values = malloc(model_count(t) * sizeof *values);
        assert_non_null(values);
        snprintf(name, sizeof name, "dy/%s/%s", r->c->name, head_name[i]);
        draws_fill(name, 1, 0, values, model_count(t));
        model_write(&r->m, t->at, values, model_count(t) * sizeof *values);
        free(values);
    }
}

static void compare_items(run_t *r, golden_worst_t *w)
{
    float *ours = model_region(&r->m, r->loss.items, 4);
    const float *want = golden_f32(r->golden, "items", NULL);
    for (int i = 0; i < 4; i++)
        golden_note(w, fabs((double)ours[i] - (double)want[i]) / (double)want[i], "items");
    r->compared++;
    free(ours);
}

static void check_model(const char *name, const case_t *c)
{
    char what[96];
    golden_worst_t heads = {0}, stats = {0}, items = {0}, linear = {0}, loss = {0};
    run_t r;
    begin(&r, name, c);
    forward(&r, GRAPH_INFER, &r.infer);
    compare_heads(&r, &r.infer, "eval", &heads);
    forward(&r, GRAPH_TRAIN, &r.train);
    compare_heads(&r, &r.train, "train", &heads);
    assert_true(compare_region(&r, 1, "stat", 0, &stats) > 10);
    clear_gradients(&r);
    draw_head_gradients(&r);
    model_check(graph_backward(r.m.g, r.m.dev, &r.m.memory, NULL), "backward");
    compare_gradients(&r, "linear", &linear);

    forward(&r, GRAPH_TRAIN, &r.train);
    clear_gradients(&r);
    if (r.m.dev->ops->detect_loss(r.m.dev, &r.loss) < 0)
        fail_msg("%s", r.m.dev->ops->error(r.m.dev));
    compare_items(&r, &items);
    model_check(graph_backward(r.m.g, r.m.dev, &r.m.memory, NULL), "backward");
    compare_gradients(&r, "loss", &loss);
    end(&r);

    snprintf(what, sizeof what, "%s%s at %s px, head outputs", model_where(), name, c->name);
    golden_say(what, &heads, 1e-4);
    snprintf(what, sizeof what, "%s%s at %s px, running statistics", model_where(), name, c->name);
    golden_say(what, &stats, 1e-4);
    snprintf(what, sizeof what, "%s%s at %s px, loss items", model_where(), name, c->name);
    golden_say(what, &items, 1e-4);
    snprintf(what, sizeof what, "%s%s at %s px, gradients of a linear function", model_where(),
             name, c->name);
    golden_say(what, &linear, 1e-4);
    snprintf(what, sizeof what, "%s%s at %s px, gradients of the loss", model_where(), name,
             c->name);
    golden_say(what, &loss, 1e-4);
}

static void test_yolo11n(void **state)
{
    (void)state;
    check_model("yolo11n", &small);
    check_model("yolo11n", &large);
}

static void test_yolov8n(void **state)
{
    (void)state;
    check_model("yolov8n", &small);
    check_model("yolov8n", &large);
}

/* FNV-1a of the lines "name TAB shape" (model_golden.py). */
static uint64_t sum_of_shapes(const graph_t *g)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        char line[256];
        int n = snprintf(line, sizeof line, "%s\t%s", p->name, p->ndim ? "" : "scalar");
        for (int32_t k = 0; k < p->ndim; k++)
            n += snprintf(line + n, sizeof line - (size_t)n, "%s%lld", k ? "x" : "",
                          (long long)p->shape[k]);
        n += snprintf(line + n, sizeof line - (size_t)n, "\n");
        for (int k = 0; k < n; k++)
            hash = (hash ^ (unsigned char)line[k]) * 0x100000001B3u;
    }
    return hash;
}

/* In float32; the last tests, for the device stays chosen when one fails. */
static void check_on_gpu(const char *name)
{
    const k_ops_t *gpu = rig_gpu(K_F32);
    if (!gpu)
        skip();
    model_on(gpu);
    check_model(name, &small);
    check_model(name, &large);
    model_on(NULL);
}

static void test_yolo11n_gpu(void **state)
{
    (void)state;
    check_on_gpu("yolo11n");
}

static void test_yolov8n_gpu(void **state)
{
    (void)state;
    check_on_gpu("yolov8n");
}

static void test_ten_models(void **state)
{
    (void)state;
    safetensors_t *f = golden_open("models");
    assert_int_equal(safetensors_count(f), 10);
    for (int32_t i = 0; i < safetensors_count(f); i++) {
        const safetensors_entry_t *e = safetensors_at(f, i);
        int64_t want[3];
        graph_t *g;
        assert_int_equal(e->bytes, sizeof want);
        memcpy(want, e->data, sizeof want);
        model_check(graph_build(e->name, 80, &g), e->name);
        assert_int_equal((int64_t)sum_of_shapes(g), want[0]);
        assert_int_equal(graph_sizes(g)->parameters, want[1]);
        assert_int_equal(graph_params(g), want[2]);
        graph_free(&g);
    }
    safetensors_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ten_models),  cmocka_unit_test(test_yolo11n),
        cmocka_unit_test(test_yolov8n),     cmocka_unit_test(test_yolo11n_gpu),
        cmocka_unit_test(test_yolov8n_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
