/* yolo11n and yolov8n on one fixed batch against a PyTorch statement of the same models
 * (tests/reference/model.py): head outputs, gradients of every parameter, and running statistics,
 * of a linear function of the outputs and of the detection loss.
 *
 * The golden file holds small tensors whole, and of every convolution weight's gradient its norm,
 * its largest element, a few projections on fixed patterns and some elements. With
 * SLUICE_MODEL_DUMP=FOLDER the test writes what the reference needs to compute them (and to compare
 * every gradient whole): see model.py.
 */
#include "tests/golden.h"
#include "tests/model_fixture.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { NC = 5, BATCH = 4, SIDE = 64, MAX_GT = 4, PATTERNS = 8, ELEMENTS = 24 };

/* Boxes of the fixed batch, network pixels. */
static const k_gt_t boxes[BATCH][MAX_GT] = {
    {{0, 4, 6, 40, 52}, {3, 30, 20, 60, 44}, {1, 9, 40, 15, 46}},
    {{4, 2, 3, 62, 60}, {2, 34, 35, 58, 57}},
    {{0, 0, 0, 0, 0}}, /* background: no box */
    {{2, 1, 1, 30, 33}, {2, 28, 4, 63, 31}, {0, 3, 36, 33, 61}, {1, 50, 50, 55, 58}},
};
static const int32_t box_count[BATCH] = {3, 2, 0, 4};

/* What the C side makes; every array in the layout of the state dict. */
typedef struct {
    model_t m;
    graph_plan_t plan;
    k_detect_loss_t loss;
    float items[4];
} case_t;

static void open_case(case_t *c, const char *name)
{
    memset(c, 0, sizeof *c);
    model_open(&c->m, name, NC, 2);
    model_plan(&c->m, GRAPH_TRAIN, BATCH, SIDE, SIDE, &c->plan);
    k_detect_loss_t *p = &c->loss;
    for (int l = 0; l < K_LEVELS; l++) {
        p->box[l] = c->plan.box[l];
        p->cls[l] = c->plan.cls[l];
        p->dbox[l] = c->plan.dbox[l];
        p->dcls[l] = c->plan.dcls[l];
        p->stride[l] = c->plan.stride[l];
    }
    p->nc = NC;
    p->max_gt = MAX_GT;
    p->gain_box = 7.5f;
    p->gain_cls = 0.5f;
    p->gain_dfl = 1.5f;
    p->scale = BATCH;
    p->work_bytes = c->m.dev->ops->detect_loss_work(c->m.dev, p);
    c->m.extra_bytes = 4096 + p->work_bytes;
    model_ready(&c->m, 11);
    p->gt = c->m.extra;
    p->gt_count = p->gt + sizeof boxes;
    p->items = p->gt + 2048;
    p->work = p->gt + 4096;
    model_write(&c->m, p->gt, boxes, sizeof boxes);
    model_write(&c->m, p->gt_count, box_count, sizeof box_count);
    model_input(&c->m, &c->plan, 1);
}

/* Forward, then the gradients of sum(outputs * normal draws), or of the loss. */
static void run_case(case_t *c, int with_loss)
{
    const graph_sizes_t *s = graph_sizes(c->m.g);
    model_check(c->m.dev->ops->zero(c->m.dev, c->m.memory.grads, s->weights * sizeof(float)),
                "zero");
    model_check(graph_forward(c->m.g, c->m.dev, GRAPH_TRAIN, &c->m.memory), "forward");
    if (with_loss) {
        if (c->m.dev->ops->detect_loss(c->m.dev, &c->loss) < 0)
            fail_msg("%s", c->m.dev->ops->error(c->m.dev));
        float *items = model_region(&c->m, c->loss.items, 4);
        memcpy(c->items, items, sizeof c->items);
        free(items);
    } else {
        for (uint32_t l = 0; l < K_LEVELS; l++) {
            model_fill(&c->m, &c->plan.dbox[l], 10 + l, NULL);
            model_fill(&c->m, &c->plan.dcls[l], 20 + l, NULL);
        }
    }
    model_check(graph_backward(c->m.g, c->m.dev, &c->m.memory), "backward");
}

static void add_tensor(safetensors_writer_t *w, model_t *m, const char *name, int level,
                       const k_tensor_t *t)
{
    char full[32];
    float *values = model_read(m, t);
    const int64_t shape[4] = {t->n, t->h, t->w, t->c};
    snprintf(full, sizeof full, level < 0 ? "%s" : "%s.%d", name, level);
    model_check(
        safetensors_writer_add(w, full, "F32", shape, 4, values, model_count(t) * sizeof *values),
        full);
    free(values);
}

/* Weights or gradients, with the buffers as they are now. */
static void add_state(safetensors_writer_t *w, model_t *m, k_at region, const char *prefix)
{
    const graph_sizes_t *s = graph_sizes(m->g);
    float *values = model_region(m, region, s->weights);
    float *buffers = model_region(m, m->memory.buffers, s->buffers);
    model_check(weights_store(m->g, values, buffers, 0, prefix, w), prefix);
    free(values);
    free(buffers);
}

static safetensors_t *image_of(safetensors_writer_t **w, const char *name, const char *folder)
{
    safetensors_t *f;
    uint64_t bytes = safetensors_writer_bytes(*w);
    static void *image; /* lives as long as the file that points into it */
    free(image);
    image = malloc(bytes);
    assert_non_null(image);
    model_check(safetensors_writer_image(*w, image, bytes), "image");
    safetensors_writer_free(w);
    if (folder) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(image, 1, bytes, out), bytes);
        fclose(out);
    }
    model_check(safetensors_load_memory(image, bytes, name, &f), name);
    return f;
}

/* Everything that the reference may want, under the names that it uses. */
static safetensors_t *compute(const char *name, const char *folder)
{
    case_t c;
    safetensors_writer_t *w;
    model_check(safetensors_writer_new(&w), "writer");
    open_case(&c, name);
    add_tensor(w, &c.m, "input", -1, &c.plan.input);
    add_state(w, &c.m, c.m.memory.weights, "");
    run_case(&c, 0);
    add_state(w, &c.m, c.m.memory.grads, "linear.");
    /* The gradients' places may be in use again by now: draw the patterns once more for the
     * reference. */
    for (uint32_t l = 0; l < K_LEVELS; l++) {
        model_fill(&c.m, &c.plan.dbox[l], 10 + l, NULL);
        model_fill(&c.m, &c.plan.dcls[l], 20 + l, NULL);
        add_tensor(w, &c.m, "pattern.box", (int)l, &c.plan.dbox[l]);
        add_tensor(w, &c.m, "pattern.cls", (int)l, &c.plan.dcls[l]);
    }
    model_poison(&c.m);
    model_input(&c.m, &c.plan, 1);
    run_case(&c, 1);
    add_state(w, &c.m, c.m.memory.grads, "loss.");
    model_check(
        safetensors_writer_add(w, "items", "F32", (int64_t[]){4}, 1, c.items, sizeof c.items),
        "items");
    model_input(&c.m, &c.plan, 1);
    model_check(graph_forward(c.m.g, c.m.dev, GRAPH_TRAIN, &c.m.memory), "forward");
    for (int l = 0; l < K_LEVELS; l++) {
        add_tensor(w, &c.m, "box", l, &c.plan.box[l]);
        add_tensor(w, &c.m, "cls", l, &c.plan.cls[l]);
    }
    const int64_t shape[3] = {BATCH, MAX_GT, 5};
    model_check(safetensors_writer_add(w, "gt", "F32", shape, 3, boxes, sizeof boxes), "gt");
    model_check(safetensors_writer_add(w, "gt_count", "I32", shape, 1, box_count, sizeof box_count),
                "gt");
    model_close(&c.m);
    return image_of(&w, name, folder);
}

static float at(const safetensors_entry_t *e, uint64_t i)
{
    float v;
    memcpy(&v, (const char *)e->data + i * sizeof v, sizeof v);
    return v;
}

/* The fixed pattern number k at element i: a sign and a size that model.py repeats. */
static double pattern(uint32_t k, uint64_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + (k + 1) * 40503u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (double)(h >> 8) / 8388608.0 - 1;
}

typedef struct {
    double worst, floor; /* floor: of the scale that differences are measured by */
    char name[128];
} worst_t;

static void note(worst_t *w, double difference, double scale, const char *name)
{
    if (!(difference >= 0)) /* NaN */
        fail_msg("%s is not a number", name);
    double d = difference / fmax(scale, w->floor);
    if (d > w->worst) {
        w->worst = d;
        snprintf(w->name, sizeof w->name, "%s", name);
    }
}

/* A golden tensor is whole, or a summary: [norm, max, projections, elements] of a tensor of the
 * same name. */
static void compare(const safetensors_entry_t *golden, const safetensors_entry_t *ours, int summary,
                    worst_t *worst)
{
    const uint64_t count = ours->bytes / sizeof(float);
    if (!summary) {
        double scale = 0, difference = 0;
        assert_int_equal(golden->bytes, ours->bytes);
        for (uint64_t i = 0; i < count; i++) {
            scale = fmax(scale, fabs(at(golden, i)));
            difference = fmax(difference, fabs((double)at(golden, i) - at(ours, i)));
            if (isnan(at(ours, i)))
                difference = NAN;
        }
        note(worst, difference, scale, golden->name);
        return;
    }
    assert_int_equal(golden->bytes, (2 + PATTERNS + ELEMENTS) * sizeof(float));
    const double norm = at(golden, 0), most = at(golden, 1);
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)at(ours, i) * at(ours, i);
    note(worst, fabs(sqrt(sum) - norm), norm, golden->name);
    for (uint32_t k = 0; k < PATTERNS; k++) {
        double dot = 0;
        for (uint64_t i = 0; i < count; i++)
            dot += pattern(k, i) * at(ours, i);
        /* A projection of independent errors is of the size of their norm. */
        note(worst, fabs(dot - at(golden, 2 + k)), norm, golden->name);
    }
    for (uint64_t k = 0; k < ELEMENTS; k++)
        note(worst, fabs((double)at(ours, k * count / ELEMENTS) - at(golden, 2 + PATTERNS + k)),
             most, golden->name);
}

/* Gradients that are zero by construction are measured against a part of the model's largest
 * (model.py). */
static double floor_of(const safetensors_t *golden, const char *name)
{
    const char *kind = strstr(name, "linear.") ? "floor.linear"
                       : strstr(name, "loss.") ? "floor.loss"
                                               : NULL;
    if (!kind || strstr(name, ".running_"))
        return 1e-30;
    const safetensors_entry_t *e = safetensors_find(golden, kind);
    assert_non_null(e);
    return at(e, 0);
}

static void check_model(const char *name)
{
    char file[64];
    const char *folder = getenv("SLUICE_MODEL_DUMP");
    safetensors_t *golden, *ours = compute(name, folder);
    if (folder) {
        safetensors_free(&ours);
        skip();
    }
    worst_t worst = {0};
    snprintf(file, sizeof file, "model_%s", name);
    golden = golden_open(file);
    for (int32_t i = 0; i < safetensors_count(golden); i++) {
        const safetensors_entry_t *e = safetensors_at(golden, i);
        if (strncmp(e->name, "floor.", 6) == 0)
            continue;
        const char *of = strncmp(e->name, "summary.", 8) == 0 ? e->name + 8 : e->name;
        const safetensors_entry_t *o = safetensors_find(ours, of);
        if (!o)
            fail_msg("golden tensor %s is of nothing that was computed", e->name);
        worst.floor = floor_of(golden, e->name);
        compare(e, o, of != e->name, &worst);
    }
    print_message("%s: %d tensors, largest difference %.2g of the largest element (%s)\n", name,
                  safetensors_count(golden), worst.worst, worst.name);
    assert_true(safetensors_count(golden) > 300);
    assert_true(worst.worst <= 1e-3);
    safetensors_free(&golden);
    safetensors_free(&ours);
}

static void test_yolo11n(void **state)
{
    (void)state;
    check_model("yolo11n");
}

static void test_yolov8n(void **state)
{
    (void)state;
    check_model("yolov8n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yolo11n),
        cmocka_unit_test(test_yolov8n),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
