/* From rows to operations, and what a built graph tells about itself. */
#include "trainer/graph_internal.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every parameter begins at a multiple of the arena's alignment. */
enum { PAD_FLOATS = K_ALIGN / sizeof(float) };

static uint64_t padded(uint64_t floats)
{
    return (floats + PAD_FLOATS - 1) / PAD_FLOATS * PAD_FLOATS;
}

static int build_row(graph_t *g, int32_t i)
{
    graph_line_t *row = &g->rows[i];
    int32_t x[GRAPH_MAX_FROM];
    char name[GRAPH_NAME];
    g->row = i;
    for (int32_t k = 0; k < row->n_from; k++) {
        int32_t from = row->from[k] < 0 ? i + row->from[k] : row->from[k];
        x[k] = from < 0 ? g->input : g->rows[from].out;
    }
    if (row->n_from > 1 && strcmp(row->module, "Concat") != 0 && strcmp(row->module, "Detect") != 0)
        return graph_fail(g, "takes one input, not %d", row->n_from);
    if (g->has_head)
        return graph_fail(g, "nothing may follow Detect");
    snprintf(name, sizeof name, "model.%d", i);
    row->out = row->builder->build(g, row, x, name);
    return row->out < 0 ? -1 : 0;
}

/* Gives every parameter its place: the groups one behind the other, then the buffers on their own.
 */
static void place_params(graph_t *g)
{
    uint64_t at = 0;
    for (int group = 0; group < GRAPH_GROUPS; group++) {
        g->sizes.group_first[group] = at;
        for (int32_t i = 0; i < g->n_params; i++) {
            graph_param_t *p = &g->params[i];
            if ((int)p->place != group)
                continue;
            p->first = at;
            at += padded(p->count);
            g->sizes.gradients += p->count;
        }
        g->sizes.group_count[group] = at - g->sizes.group_first[group];
    }
    g->sizes.weights = at;
    g->sizes.parameters = g->sizes.gradients;
    at = 0;
    for (int32_t i = 0; i < g->n_params; i++) {
        graph_param_t *p = &g->params[i];
        if (p->place == GRAPH_CONSTANT)
            g->sizes.parameters += p->count;
        if (p->place != GRAPH_BUFFER)
            continue;
        p->first = at;
        at += padded(p->count);
    }
    g->sizes.buffers = at;
}

static int compare_names(const void *a, const void *b, void *user)
{
    const graph_t *g = user;
    return strcmp(g->params[*(const int32_t *)a].name, g->params[*(const int32_t *)b].name);
}

static int index_names(graph_t *g)
{
    g->by_name = malloc((size_t)g->n_params * sizeof *g->by_name);
    if (!g->by_name)
        return graph_fail(g, "out of memory");
    for (int32_t i = 0; i < g->n_params; i++)
        g->by_name[i] = i;
    qsort_r(g->by_name, (size_t)g->n_params, sizeof *g->by_name, compare_names, g);
    return 0;
}

int graph_finish(graph_t *g)
{
    place_params(g);
    return index_names(g);
}

/* graph_fail has set the text; its -1 becomes the code. */
static int build(graph_t *g, const char *name, int32_t nc)
{
    int rc = graph_read_table(g, name, nc);
    if (rc < 0)
        return rc;
    g->input = graph_add_value(g, 3, 1);
    if (g->input < 0)
        return ERR_CONFIG;
    for (int32_t i = 0; i < g->n_rows; i++) {
        if (build_row(g, i))
            return ERR_CONFIG;
    }
    g->row = -1;
    if (!g->has_head) {
        graph_fail(g, "there is no Detect row");
        return ERR_CONFIG;
    }
    for (int i = 1; i < K_LEVELS; i++) {
        if (g->values[g->box[i]].shrink <= g->values[g->box[i - 1]].shrink) {
            graph_fail(g, "Detect's maps do not go from fine to coarse");
            return ERR_CONFIG;
        }
    }
    return graph_finish(g) ? ERR_ENV : 0;
}

int graph_build(const char *name, int32_t nc, graph_t **graph)
{
    graph_t *g = calloc(1, sizeof *g);
    *graph = NULL;
    if (!g)
        return err_set(ERR_ENV, "out of memory for the model");
    int rc = build(g, name, nc);
    if (rc < 0)
        graph_free(&g);
    *graph = g;
    return rc;
}

void graph_free(graph_t **graph)
{
    graph_t *g = *graph;
    if (!g)
        return;
    graph_schedule_free(&g->schedule[GRAPH_INFER]);
    graph_schedule_free(&g->schedule[GRAPH_TRAIN]);
    free(g->rows);
    free(g->values);
    free(g->units);
    free(g->ops);
    free(g->params);
    free(g->param_rows);
    free(g->by_name);
    free(g);
    *graph = NULL;
}

int32_t graph_classes(const graph_t *g)
{
    return g->nc;
}

const char *graph_name(const graph_t *g)
{
    return g->name;
}

const graph_sizes_t *graph_sizes(const graph_t *g)
{
    return &g->sizes;
}

int32_t graph_params(const graph_t *g)
{
    return g->n_params;
}

const graph_param_t *graph_param(const graph_t *g, int32_t i)
{
    return i >= 0 && i < g->n_params ? &g->params[i] : NULL;
}

const graph_param_t *graph_find_param(const graph_t *g, const char *name)
{
    int32_t lo = 0, hi = g->n_params;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        const graph_param_t *p = &g->params[g->by_name[mid]];
        int order = strcmp(name, p->name);
        if (order == 0)
            return p;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

int32_t graph_rows(const graph_t *g)
{
    return g->n_rows;
}

/* Multiplications and additions of one convolution at this input size, in units of 1e9. */
static double conv_gflops(const graph_t *g, const graph_op_t *op, int32_t imgsz)
{
    const graph_unit_t *u = &g->units[op->unit];
    double side = imgsz / g->values[op->y].shrink;
    return 2e-9 * side * side * u->c2 * (u->depthwise ? 1 : u->c1) * u->k * u->k;
}

static void from_text(const graph_line_t *line, char *text, size_t room)
{
    size_t n = 0;
    if (line->n_from == 1) {
        snprintf(text, room, "%d", line->from[0]);
        return;
    }
    for (int32_t i = 0; i < line->n_from && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%d%s", i ? ", " : "[", line->from[i],
                              i + 1 == line->n_from ? "]" : "");
}

int graph_row(const graph_t *g, int32_t i, int32_t imgsz, graph_row_t *row)
{
    if (i < 0 || i >= g->n_rows || imgsz < GRAPH_SHRINK_MAX || imgsz % GRAPH_SHRINK_MAX)
        return err_set(ERR_CONFIG, "imgsz=%d: a multiple of %d is needed", imgsz, GRAPH_SHRINK_MAX);
    const graph_line_t *line = &g->rows[i];
    *row = (graph_row_t){.index = i, .c = g->values[line->out].c};
    from_text(line, row->from, sizeof row->from);
    snprintf(row->module, sizeof row->module, "%s", line->module);
    snprintf(row->args, sizeof row->args, "%s", line->summary);
    row->h = row->w = imgsz / g->values[line->out].shrink;
    if (strcmp(line->module, "Detect") == 0) {
        row->c = 4 * K_REG_MAX + g->nc;
        row->h = 1;
        row->w = 0;
        for (int k = 0; k < K_LEVELS; k++) {
            int32_t side = imgsz / g->values[g->box[k]].shrink;
            row->w += side * side;
        }
    }
    for (int32_t p = 0; p < g->n_params; p++) {
        const graph_place_t place = g->params[p].place;
        if (g->param_rows[p] == i && (place < GRAPH_GROUPS || place == GRAPH_CONSTANT))
            row->parameters += g->params[p].count;
    }
    for (int32_t k = 0; k < g->n_ops; k++) {
        if (g->ops[k].row == i && (g->ops[k].kind == GRAPH_CONV || g->ops[k].kind == GRAPH_DWCONV))
            row->gflops += conv_gflops(g, &g->ops[k], imgsz);
    }
    return 0;
}
