/* What blocks build with: values, units with their parameters, operations. */
#include "trainer/graph_internal.h"

#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t graph_fail(graph_t *g, const char *fmt, ...)
{
    char text[256];
    va_list args;
    if (g->failed)
        return -1;
    g->failed = 1;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (g->row >= 0 && g->row < g->n_rows)
        err_set(ERR_CONFIG, "%s:%d: row %d (%s): %s", g->origin, g->rows[g->row].line, g->row,
                g->rows[g->row].module, text);
    else
        err_set(ERR_CONFIG, "%s: %s", g->origin, text);
    return -1;
}

/* Room for one more of an array of the graph. */
static int grow(graph_t *g, void **array, int32_t *room, int32_t count, size_t size)
{
    if (count < *room)
        return 0;
    int32_t more = *room ? *room * 2 : 64;
    void *bigger = realloc(*array, (size_t)more * size);
    if (!bigger)
        return graph_fail(g, "out of memory");
    *array = bigger;
    *room = more;
    return 0;
}

int32_t graph_add_value(graph_t *g, int32_t c, int32_t shrink)
{
    if (c < 1 || c > GRAPH_MAX_CHANNELS)
        return graph_fail(g, "%d channels: between 1 and %d are possible", c, GRAPH_MAX_CHANNELS);
    if (shrink < 1 || shrink > GRAPH_SHRINK_MAX)
        return graph_fail(g, "a map at 1/%d of the input: 1/1 to 1/%d are possible", shrink,
                          GRAPH_SHRINK_MAX);
    if (grow(g, (void **)&g->values, &g->room_values, g->n_values, sizeof *g->values))
        return -1;
    g->values[g->n_values] =
        (graph_value_t){.c = c, .shrink = shrink, .parent = -1, .offset = 0, .raw_of = -1};
    return g->n_values++;
}

int32_t graph_channels(const graph_t *g, int32_t v)
{
    return v < 0 ? -1 : g->values[v].c;
}

int32_t graph_root(const graph_t *g, int32_t v, int32_t *offset)
{
    int32_t at = 0;
    for (; g->values[v].parent >= 0; v = g->values[v].parent)
        at += g->values[v].offset;
    if (offset)
        *offset = at;
    return v;
}

/* A parameter named by base + suffix; returns its number. first is given later, when all are known.
 */
static int32_t add_param(graph_t *g, const char *base, const char *suffix, graph_place_t place,
                         graph_layout_t layout, const int64_t *shape, int32_t ndim)
{
    int32_t rows_room = g->room_params;
    if (grow(g, (void **)&g->params, &g->room_params, g->n_params, sizeof *g->params) ||
        grow(g, (void **)&g->param_rows, &rows_room, g->n_params, sizeof *g->param_rows))
        return -1;
    graph_param_t *p = &g->params[g->n_params];
    memset(p, 0, sizeof *p);
    if (snprintf(p->name, sizeof p->name, "%s%s", base, suffix) >= (int)sizeof p->name)
        return graph_fail(g, "the name %s%s is too long", base, suffix);
    p->ndim = ndim;
    p->place = place;
    p->layout = layout;
    p->count = place == GRAPH_COUNTER ? 0 : 1;
    for (int32_t i = 0; i < ndim; i++) {
        p->shape[i] = shape[i];
        p->count *= (uint64_t)shape[i];
    }
    g->param_rows[g->n_params] = g->row;
    return g->n_params++;
}

int32_t graph_add_constant(graph_t *g, const int64_t *shape, int32_t ndim, const char *fmt, ...)
{
    char name[GRAPH_NAME];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return add_param(g, name, "", GRAPH_CONSTANT, GRAPH_LAYOUT_FLAT, shape, ndim);
}

/* A unit with its parameters in the order of the state dict (facts/yolo.md 8.3). */
static int32_t add_unit(graph_t *g, graph_unit_t u, int plain, const char *name)
{
    const int64_t weight[4] = {u.c2, u.depthwise ? 1 : u.c1, u.k, u.k}, vector[1] = {u.c2};
    const graph_layout_t layout = u.depthwise ? GRAPH_LAYOUT_HWC : GRAPH_LAYOUT_OHWI;
    const graph_layout_t flat = GRAPH_LAYOUT_FLAT;
    if (u.c1 < 1 || u.c2 < 1)
        return u.c1 < 0 || u.c2 < 0 ? -1 : graph_fail(g, "%s has no channels", name);
    if (u.c1 > GRAPH_MAX_CHANNELS || u.c2 > GRAPH_MAX_CHANNELS)
        return graph_fail(g, "%s: %d to %d channels: at most %d are possible", name, u.c1, u.c2,
                          GRAPH_MAX_CHANNELS);
    u.bias = u.gamma = u.beta = u.mean = u.var = -1;
    u.weight =
        add_param(g, name, plain ? ".weight" : ".conv.weight", GRAPH_WEIGHT, layout, weight, 4);
    if (u.weight < 0)
        return -1;
    if (plain) {
        u.bias = add_param(g, name, ".bias", GRAPH_BIAS, flat, vector, 1);
        if (u.bias < 0)
            return -1;
    } else {
        u.gamma = add_param(g, name, ".bn.weight", GRAPH_NORM, flat, vector, 1);
        u.beta = add_param(g, name, ".bn.bias", GRAPH_BIAS, flat, vector, 1);
        u.mean = add_param(g, name, ".bn.running_mean", GRAPH_BUFFER, flat, vector, 1);
        u.var = add_param(g, name, ".bn.running_var", GRAPH_BUFFER, flat, vector, 1);
        if (u.gamma < 0 || u.beta < 0 || u.mean < 0 || u.var < 0 ||
            add_param(g, name, ".bn.num_batches_tracked", GRAPH_COUNTER, flat, NULL, 0) < 0)
            return -1;
    }
    if (grow(g, (void **)&g->units, &g->room_units, g->n_units, sizeof *g->units))
        return -1;
    g->units[g->n_units] = u;
    return g->n_units++;
}

int32_t graph_unit(graph_t *g, int32_t c1, int32_t c2, int32_t k, int32_t s, const char *fmt, ...)
{
    char name[GRAPH_NAME];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return add_unit(g, (graph_unit_t){.k = k, .s = s, .c1 = c1, .c2 = c2}, 0, name);
}

int32_t graph_unit_dw(graph_t *g, int32_t c, const char *fmt, ...)
{
    char name[GRAPH_NAME];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return add_unit(g, (graph_unit_t){.k = 3, .s = 1, .c1 = c, .c2 = c, .depthwise = 1}, 0, name);
}

int32_t graph_unit_plain(graph_t *g, int32_t c1, int32_t c2, const char *fmt, ...)
{
    char name[GRAPH_NAME];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return add_unit(g, (graph_unit_t){.k = 1, .s = 1, .c1 = c1, .c2 = c2}, 1, name);
}

/* Takes the operation as written, with its row filled in; returns its output value. */
static int32_t add_op(graph_t *g, graph_op_t op)
{
    if (grow(g, (void **)&g->ops, &g->room_ops, g->n_ops, sizeof *g->ops))
        return -1;
    op.row = g->row;
    g->ops[g->n_ops++] = op;
    return op.y;
}

int32_t graph_conv_plain(graph_t *g, int32_t unit, int32_t x)
{
    if (unit < 0 || x < 0)
        return -1;
    const graph_unit_t *u = &g->units[unit];
    if (graph_channels(g, x) != u->c1)
        return graph_fail(g, "a convolution for %d channels meets %d", u->c1, graph_channels(g, x));
    int32_t y = graph_add_value(g, u->c2, g->values[x].shrink * u->s);
    if (y < 0)
        return -1;
    return add_op(g, (graph_op_t){.kind = u->depthwise ? GRAPH_DWCONV : GRAPH_CONV,
                                  .x = x,
                                  .y = y,
                                  .extra = -1,
                                  .unit = unit});
}

int32_t graph_conv_add(graph_t *g, int32_t unit, int32_t x, k_act_t act, int32_t residual)
{
    if (residual < 0)
        return -1;
    int32_t y = graph_conv(g, unit, x, act);
    if (y < 0)
        return -1;
    if (g->values[residual].c != g->values[y].c ||
        g->values[residual].shrink != g->values[y].shrink)
        return graph_fail(g, "a sum of maps of different shapes");
    g->ops[g->n_ops - 1].extra = residual;
    return y;
}

int32_t graph_conv(graph_t *g, int32_t unit, int32_t x, k_act_t act)
{
    int32_t raw = graph_conv_plain(g, unit, x);
    int32_t y = raw < 0 ? -1 : graph_add_value(g, g->values[raw].c, g->values[raw].shrink);
    if (y < 0)
        return -1;
    g->values[raw].raw_of = y;
    return add_op(
        g, (graph_op_t){.kind = GRAPH_BN, .x = raw, .y = y, .extra = -1, .unit = unit, .act = act});
}

/* An operation with one input that only needs an output of c channels at 1/shrink. */
static int32_t add_simple(graph_t *g, graph_op_t op, int32_t c, int32_t shrink)
{
    op.y = graph_add_value(g, c, shrink);
    op.extra = op.unit = -1;
    return op.y < 0 ? -1 : add_op(g, op);
}

int32_t graph_maxpool(graph_t *g, int32_t k, int32_t x)
{
    return x < 0 ? -1
                 : add_simple(g, (graph_op_t){.kind = GRAPH_MAXPOOL, .x = x, .k = k},
                              g->values[x].c, g->values[x].shrink);
}

int32_t graph_upsample(graph_t *g, int32_t x)
{
    if (x < 0)
        return -1;
    if (g->values[x].shrink < 2)
        return graph_fail(g, "enlarges a map beyond the input");
    return add_simple(g, (graph_op_t){.kind = GRAPH_UPSAMPLE, .x = x}, g->values[x].c,
                      g->values[x].shrink / 2);
}

int32_t graph_copy(graph_t *g, int32_t x)
{
    return x < 0 ? -1
                 : add_simple(g, (graph_op_t){.kind = GRAPH_COPY, .x = x}, g->values[x].c,
                              g->values[x].shrink);
}

int32_t graph_attention(graph_t *g, int32_t qkv, int32_t heads, int32_t kd, int32_t hd, int32_t *v)
{
    if (qkv < 0)
        return -1;
    int32_t y = graph_add_value(g, heads * hd, g->values[qkv].shrink);
    *v = graph_add_value(g, heads * hd, g->values[qkv].shrink);
    if (y < 0 || *v < 0)
        return -1;
    return add_op(g, (graph_op_t){.kind = GRAPH_ATTENTION,
                                  .x = qkv,
                                  .y = y,
                                  .extra = *v,
                                  .unit = -1,
                                  .heads = heads,
                                  .kd = kd,
                                  .hd = hd});
}

int32_t graph_slice(graph_t *g, int32_t x, int32_t first, int32_t c)
{
    int32_t v = x < 0 ? -1 : graph_add_value(g, c, g->values[x].shrink);
    if (v < 0)
        return -1;
    g->values[v].parent = x;
    g->values[v].offset = first;
    return v;
}

int32_t graph_concat(graph_t *g, const int32_t *parts, int32_t n)
{
    int32_t c = 0, at = 0;
    for (int32_t i = 0; i < n; i++) {
        if (parts[i] < 0)
            return -1;
        if (g->values[parts[i]].shrink != g->values[parts[0]].shrink)
            return graph_fail(g, "joins maps of 1/%d and 1/%d of the input",
                              g->values[parts[0]].shrink, g->values[parts[i]].shrink);
        c += g->values[parts[i]].c;
    }
    int32_t all = graph_add_value(g, c, g->values[parts[0]].shrink);
    for (int32_t i = 0; all >= 0 && i < n; i++) {
        int32_t part = parts[i];
        /* A map lies in one place: what is elsewhere already, and the graph's input, is copied. */
        if (g->values[part].parent >= 0 || part == g->input)
            part = graph_copy(g, part);
        if (part < 0)
            return -1;
        g->values[part].parent = all;
        g->values[part].offset = at;
        at += g->values[part].c;
    }
    return all;
}
