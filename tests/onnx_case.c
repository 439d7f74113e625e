#include "tests/onnx_case.h"

#include "control/philox.h"
#include "tests/model_fixture.h"
#include "trainer/graph_internal.h"
#include "trainer/safetensors.h"
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

static void spread(philox_t *draw, float *at, uint64_t n, double lo, double hi)
{
    for (uint64_t i = 0; i < n; i++)
        at[i] = (float)(at[i] * philox_range(draw, lo, hi));
}

static void shift(philox_t *draw, float *at, uint64_t n, double by)
{
    for (uint64_t i = 0; i < n; i++)
        at[i] = (float)(at[i] + by * philox_normal(draw));
}

void onnx_case_spoil(const graph_t *g, uint64_t seed, float *weights, float *buffers)
{
    philox_t draw = philox_stream(seed, 1, 0, PHILOX_SAMPLE);
    for (int32_t i = 0; i < g->n_units; i++) {
        const graph_unit_t *u = &g->units[i];
        const graph_param_t *w = &g->params[u->weight];
        if (u->gamma < 0) { /* the head's last: a new one says nearly the same everywhere */
            spread(&draw, weights + w->first, w->count, 3, 6);
            continue;
        }
        const uint64_t n = (uint64_t)u->c2;
        float *var = buffers + g->params[u->var].first, *mean = buffers + g->params[u->mean].first;
        for (uint64_t c = 0; c < n; c++)
            mean[c] += (float)(0.5 * sqrt((double)var[c]) * philox_normal(&draw));
        spread(&draw, var, n, 0.3, 1.7);
        spread(&draw, weights + g->params[u->gamma].first, n, 0.5, 1.5);
        shift(&draw, weights + g->params[u->beta].first, n, 0.3);
    }
    for (int l = 0; l < K_LEVELS; l++) {
        const graph_param_t *box = &g->params[g->box_bias[l]], *cls = &g->params[g->cls_bias[l]];
        shift(&draw, weights + box->first, box->count, 1);
        memset(weights + cls->first, 0, cls->count * sizeof *weights);
        shift(&draw, weights + cls->first, cls->count, 1);
        for (uint64_t c = 0; c < cls->count; c++)
            weights[cls->first + c] -= 1.5f;
    }
}

/* ---- what the program computes ---- */

typedef struct {
    const char *label, *model;
    int32_t nc, n, h, w, settle; /* settle: training passes that bring running statistics near */
} case_t;

static const case_t cases[] = {
    {"yolo11n_64", "yolo11n", 80, 3, 64, 64, 60},   {"yolov8n_64", "yolov8n", 80, 3, 64, 64, 60},
    {"yolo11n_160", "yolo11n", 6, 3, 160, 160, 30}, {"yolov8n_160", "yolov8n", 6, 3, 160, 160, 30},
    {"yolo11n_wide", "yolo11n", 1, 2, 96, 160, 30}, {"yolo11m_64", "yolo11m", 3, 2, 64, 64, 20},
};
enum { CASES = sizeof cases / sizeof *cases, MAX_DET = 300 };

static void add(safetensors_writer_t *w, const char *name, const char *dtype, const int64_t *shape,
                int32_t n_dims, const void *data, uint64_t bytes)
{
    model_check(safetensors_writer_add(w, name, dtype, shape, n_dims, data, bytes), name);
}

static void add_map(safetensors_writer_t *w, model_t *m, const char *name, int level,
                    const k_tensor_t *t)
{
    char full[32];
    float *values = model_read(m, t);
    const int64_t shape[4] = {t->n, t->h, t->w, t->c};
    snprintf(full, sizeof full, "%s.%d", name, level);
    add(w, full, "F32", shape, 4, values, model_count(t) * sizeof *values);
    free(values);
}

/* The input as other programs have it: planes instead of pixels. */
static void add_input(safetensors_writer_t *w, model_t *m, const k_tensor_t *t)
{
    const int64_t shape[4] = {t->n, t->c, t->h, t->w}, area = (int64_t)t->h * t->w;
    float *pixels = model_read(m, t), *planes = malloc(model_count(t) * sizeof *planes);
    assert_non_null(planes);
    for (int64_t i = 0; i < t->n; i++) {
        for (int64_t p = 0; p < area; p++) {
            for (int64_t c = 0; c < t->c; c++)
                planes[(i * t->c + c) * area + p] = pixels[(i * area + p) * t->c + c];
        }
    }
    add(w, "input", "F32", shape, 4, planes, model_count(t) * sizeof *planes);
    free(pixels);
    free(planes);
}

static void write_out(safetensors_writer_t **w, const char *folder, const char *label,
                      const char *tail)
{
    char path[4096];
    const uint64_t bytes = safetensors_writer_bytes(*w);
    void *image = malloc(bytes);
    assert_non_null(image);
    model_check(safetensors_writer_image(*w, image, bytes), "image");
    snprintf(path, sizeof path, "%s/%s%s.safetensors", folder, label, tail);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(image, 1, bytes, out), bytes);
    fclose(out);
    free(image);
    safetensors_writer_free(w);
}

static void store_weights(const case_t *c, model_t *m, const float *weights, const float *buffers,
                          const char *folder)
{
    safetensors_writer_t *w;
    char names[4096] = "{", nc[16];
    model_check(safetensors_writer_new(&w), "writer");
    for (int32_t i = 0; i < c->nc; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s\"%d\": \"it's %d\"",
                 i ? ", " : "", i, i);
    strcat(names, "}");
    snprintf(nc, sizeof nc, "%d", c->nc);
    model_check(safetensors_writer_metadata(w, "model", c->model), "model");
    model_check(safetensors_writer_metadata(w, "nc", nc), "nc");
    model_check(safetensors_writer_metadata(w, "names", names), "names");
    model_check(weights_store(m->g, weights, buffers, c->settle, "", w), "store");
    write_out(&w, folder, c->label, "");
}

static void suppression_of(const model_t *m, const graph_plan_t *p, int32_t nc, k_nms_t *nms)
{
    memset(nms, 0, sizeof *nms);
    memcpy(nms->box, p->box, sizeof nms->box);
    memcpy(nms->cls, p->cls, sizeof nms->cls);
    memcpy(nms->stride, p->stride, sizeof nms->stride);
    nms->nc = nc;
    nms->max_nms = 30000;
    nms->max_det = MAX_DET;
    nms->conf = 0.25f;
    nms->iou = 0.7f;
    nms->work_bytes = m->dev->ops->nms_work(m->dev, nms);
}

static void dump(const case_t *c, const char *folder)
{
    model_t m;
    graph_plan_t settle, p;
    k_nms_t nms;
    safetensors_writer_t *w;
    model_open(&m, c->model, c->nc, 2);
    model_plan(&m, GRAPH_TRAIN, 2, 64, 64, &settle);
    model_plan(&m, GRAPH_INFER, c->n, c->h, c->w, &p);
    suppression_of(&m, &p, c->nc, &nms);
    const uint64_t dets = (uint64_t)c->n * MAX_DET * sizeof(k_det_t);
    m.extra_bytes = nms.work_bytes + 2 * K_ALIGN + dets + 4096;
    model_ready(&m, 5);
    for (int i = 0; i < c->settle; i++) {
        model_input(&m, &settle, 100 + (uint32_t)i);
        model_check(graph_forward(m.g, m.dev, GRAPH_TRAIN, &m.memory, NULL), "settle");
    }
    const graph_sizes_t *s = graph_sizes(m.g);
    float *weights = model_region(&m, m.memory.weights, s->weights);
    float *buffers = model_region(&m, m.memory.buffers, s->buffers);
    onnx_case_spoil(m.g, 6, weights, buffers);
    model_write(&m, m.memory.weights, weights, s->weights * sizeof *weights);
    model_write(&m, m.memory.buffers, buffers, s->buffers * sizeof *buffers);
    store_weights(c, &m, weights, buffers, folder);

    model_check(safetensors_writer_new(&w), "writer");
    model_poison(&m);
    model_input(&m, &p, 1);
    add_input(w, &m, &p.input);
    model_check(graph_forward(m.g, m.dev, GRAPH_INFER, &m.memory, NULL), "forward");
    for (int l = 0; l < K_LEVELS; l++) {
        add_map(w, &m, "box", l, &p.box[l]);
        add_map(w, &m, "cls", l, &p.cls[l]);
    }
    nms.dets = m.extra;
    nms.counts = nms.dets + (dets + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    nms.work = nms.counts + 4096;
    if (m.dev->ops->nms(m.dev, &nms) < 0)
        fail_msg("%s", m.dev->ops->error(m.dev));
    float *rows = model_region(&m, nms.dets, dets / sizeof(float));
    float *counts = model_region(&m, nms.counts, (uint64_t)c->n);
    add(w, "dets", "F32", (int64_t[]){c->n, MAX_DET, 6}, 3, rows, dets);
    add(w, "counts", "I32", (int64_t[]){c->n}, 1, counts, (uint64_t)c->n * sizeof *counts);
    write_out(&w, folder, c->label, ".run");
    free(rows);
    free(counts);
    free(weights);
    free(buffers);
    model_close(&m);
}

void onnx_case_dump(const char *folder)
{
    for (int i = 0; i < CASES; i++)
        dump(&cases[i], folder);
}
