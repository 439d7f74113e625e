/* Weights from a file into a model: what goes by name and shape, and the two places where the shapes
 * may differ, the classes and the channels of the images. */
#include "trainer/weights.h"

#include "shm/err.h"
#include "trainer/graph_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const graph_t *g;
    const modelfile_t *file;
    float *weights, *buffers;
    float *scratch;  /* room for the largest tensor of the file that the model has */
    int32_t *row_of; /* [nc] row of the file that a class takes, -1: none; NULL: straight */
    weights_report_t *report;
} load_t;

static int is_memory(const graph_param_t *p)
{
    return p->place < GRAPH_GROUPS || p->place == GRAPH_BUFFER;
}

/* Shapes from dimension `from` on. */
static int same_shape(const graph_param_t *p, const tensorview_t *v, int32_t from)
{
    if (v->ndim != p->ndim)
        return 0;
    for (int32_t i = from; i < p->ndim; i++) {
        if (v->shape[i] != p->shape[i])
            return 0;
    }
    return 1;
}

static float *place_of(const load_t *l, const graph_param_t *p)
{
    return (p->place == GRAPH_BUFFER ? l->buffers : l->weights) + p->first;
}

/* 1 for the last weight or bias of a class branch. */
static int is_class_tensor(const graph_t *g, const graph_param_t *p)
{
    for (int l = 0; l < K_LEVELS; l++) {
        if (p == &g->params[g->cls_bias[l]])
            return 1;
        for (int32_t u = 0; u < g->n_units; u++) {
            if (g->units[u].bias == g->cls_bias[l] && p == &g->params[g->units[u].weight])
                return 1;
        }
    }
    return 0;
}

/* ---- classes ---- */

static int32_t find_class(const char *const *names, int32_t n, const char *name)
{
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0)
            return i;
    }
    for (int32_t i = 0; i < n; i++) {
        if (strcasecmp(names[i], name) == 0)
            return i;
    }
    return -1;
}

/* The rows that the model's classes take; straight where nobody names them. */
static int map_classes(load_t *l, const char *const *names, int32_t n_names)
{
    int32_t n, rows = modelfile_info(l->file)->nc;
    const char *const *theirs = modelfile_classes(l->file, &n);
    if (rows == 0)
        return 0;
    if (!names || n_names != l->g->nc || !theirs || n != rows) {
        if (rows == l->g->nc)
            return 0;
        names = NULL; /* of other numbers and without names: no row is anybody's */
    }
    l->row_of = malloc((size_t)l->g->nc * sizeof *l->row_of);
    if (!l->row_of)
        return err_set(ERR_ENV, "out of memory for %d class rows", l->g->nc);
    for (int32_t i = 0; i < l->g->nc; i++) {
        l->row_of[i] = names ? find_class(theirs, n, names[i]) : -1;
        l->report->rows += l->row_of[i] >= 0;
    }
    l->report->rows_of = names ? l->g->nc : 0;
    return 0;
}

/* Rows of the file's tensor (in scratch) to the classes that take them; 1 if any did. */
static int move_rows(load_t *l, const graph_param_t *p)
{
    const uint64_t row = p->count / (uint64_t)l->g->nc;
    float *out = place_of(l, p);
    int any = 0;
    for (int32_t i = 0; i < l->g->nc; i++) {
        if (l->row_of[i] < 0)
            continue;
        const float *from = l->scratch + (uint64_t)l->row_of[i] * row;
        for (uint64_t k = 0; k < row; k++)
            out[weights_place(p, (uint64_t)i * row + k)] = from[k];
        any = 1;
    }
    return any;
}

/* ---- channels ---- */

/* OIHW with another I. */
static void move_channels(load_t *l, const graph_param_t *p, int64_t channels)
{
    const uint64_t out_c = (uint64_t)p->shape[0], in_c = (uint64_t)p->shape[1],
                   area = (uint64_t)(p->shape[2] * p->shape[3]), have = (uint64_t)channels;
    float *out = place_of(l, p);
    for (uint64_t o = 0; o < out_c; o++) {
        for (uint64_t c = 0; c < in_c; c++) {
            if (have > 1 && c >= have)
                continue;
            const float *from = l->scratch + (o * have + (have > 1 ? c : 0)) * area;
            for (uint64_t k = 0; k < area; k++)
                out[weights_place(p, (o * in_c + c) * area + k)] =
                    have > 1 ? from[k] : from[k] / (float)in_c;
        }
    }
}

/* ---- one tensor ---- */

/* dfl.conv.weight is 0, 1, ..., and the loss relies on it (facts/yolo.md 3.5). */
static int is_projection(load_t *l, const tensorview_t *v)
{
    tensorview_floats(v, l->scratch);
    for (uint64_t k = 0; k < v->count; k++) {
        if (l->scratch[k] != (float)k)
            return 0;
    }
    return 1;
}

static uint64_t count_not_finite(const float *values, uint64_t n)
{
    uint64_t bad = 0;
    for (uint64_t i = 0; i < n; i++)
        bad += !isfinite(values[i]);
    return bad;
}

/* 1 when the tensor was moved, 0 when it does not fit. */
static int move_tensor(load_t *l, int32_t number, const tensorview_t *v)
{
    const graph_param_t *p = &l->g->params[number];
    const int by_rows = l->row_of && is_class_tensor(l->g, p);
    const int first = number == 0 && p->ndim == 4 && v->ndim == 4 && p->shape[1] != v->shape[1] &&
                      v->shape[0] == p->shape[0] && v->shape[1] > 0 && same_shape(p, v, 2);
    if (p->place == GRAPH_COUNTER)
        return v->count == 1;
    if (!first && !same_shape(p, v, by_rows ? 1 : 0))
        return 0;
    if (!tensorview_is_float(v))
        return err_set(ERR_CONFIG, "%s: tensor %s is %s: F32, F16, BF16 or F64 is needed",
                       modelfile_origin(l->file), v->name, v->dtype);
    if (p->place == GRAPH_CONSTANT)
        return is_projection(l, v);
    tensorview_floats(v, l->scratch);
    l->report->not_finite += count_not_finite(l->scratch, v->count);
    if (by_rows) /* every level's branch has the rows of the first, or is none */
        return v->shape[0] == modelfile_info(l->file)->nc && move_rows(l, p);
    if (first) {
        l->report->channels = (int32_t)v->shape[1];
        move_channels(l, p, v->shape[1]);
        return 1;
    }
    float *out = place_of(l, p);
    for (uint64_t k = 0; k < p->count; k++)
        out[weights_place(p, k)] = l->scratch[k];
    return 1;
}

static int move_all(load_t *l)
{
    weights_report_t *r = l->report;
    for (int32_t i = 0; i < l->g->n_params; i++) {
        const graph_param_t *p = &l->g->params[i];
        const tensorview_t *v = modelfile_find(l->file, p->name);
        const int moved = v ? move_tensor(l, i, v) : 0;
        if (moved < 0)
            return moved;
        r->moved += moved;
        if (!moved && !r->first_left[0])
            snprintf(r->first_left, sizeof r->first_left, "%s", p->name);
    }
    return 0;
}

static uint64_t largest(const graph_t *g, const modelfile_t *file)
{
    uint64_t most = 1;
    for (int32_t i = 0; i < g->n_params; i++) {
        const tensorview_t *v = modelfile_find(file, g->params[i].name);
        if (v && is_memory(&g->params[i]) && v->count > most)
            most = v->count;
        if (g->params[i].place == GRAPH_CONSTANT && g->params[i].count > most)
            most = g->params[i].count;
    }
    return most;
}

int weights_transfer(const graph_t *g, const modelfile_t *file, const char *const *names,
                     int32_t n_names, float *weights, float *buffers, weights_report_t *report)
{
    load_t l = {.g = g, .file = file, .weights = weights, .buffers = buffers, .report = report};
    int rc;
    memset(report, 0, sizeof *report);
    report->of = g->n_params;
    report->bare_sppf = modelfile_info(file)->bare_sppf;
    l.scratch = malloc(largest(g, file) * sizeof *l.scratch);
    if (!l.scratch) {
        rc = err_set(ERR_ENV, "out of memory while reading weights");
        goto done;
    }
    CHECK_GOTO(map_classes(&l, names, n_names), rc, done);
    rc = move_all(&l);
done:
    free(l.scratch);
    free(l.row_of);
    return rc;
}

void weights_say(const weights_report_t *r, const char *origin, char *text, size_t room)
{
    int n = snprintf(text, room, "transferred %d of %d tensors from %s", r->moved, r->of, origin);
    size_t at = n < 0 ? room : (size_t)n;
    if (r->first_left[0] && at < room)
        at += (size_t)snprintf(text + at, room - at, "; the first that was not: %s", r->first_left);
    if (r->rows_of && at < room)
        at += (size_t)snprintf(text + at, room - at, "; class rows by name: %d of %d%s", r->rows,
                               r->rows_of, r->rows < r->rows_of ? ", the others begin anew" : "");
    if (r->channels && at < room)
        at += (size_t)snprintf(text + at, room - at, "; first convolution from %d channel%s",
                               r->channels, r->channels == 1 ? ", spread over all" : "s");
    if (r->not_finite && at < room)
        at += (size_t)snprintf(text + at, room - at, "; %llu of the numbers are not finite",
                               (unsigned long long)r->not_finite);
    if (r->bare_sppf && at < room)
        snprintf(text + at, room - at,
                 "; its SPPF was built without SiLU behind cv1, here it has one: results differ "
                 "until it is trained on");
}
