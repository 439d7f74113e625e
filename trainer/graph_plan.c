/* Places and lifetimes of everything that one mode and input size needs. */
#include "trainer/graph_plan.h"

#include "kernels/planner.h"
#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

/* imgsz's most and the rim of a validation batch (facts/yolo.md 6.1); keeps every pixel count far
 * inside 63 bits. */
enum { SIDE_MAX = 16384 + 32, BATCH_MAX = 4096 };

typedef struct {
    int32_t first, last;
} life_t;

/* Places that wait for the planner: block i's goes to *to[i]. */
typedef struct {
    planner_block_t *blocks;
    k_at **to;
    int32_t count, room;
    int failed; /* out of memory */
} request_t;

int32_t graph_at_forward(int32_t op)
{
    return 1 + op;
}

int32_t graph_at_loss(const graph_t *g)
{
    return 1 + g->n_ops;
}

int32_t graph_at_backward(const graph_t *g, int32_t op)
{
    return graph_at_loss(g) + 2 * (g->n_ops - op) - 1;
}

int32_t graph_place_of(const graph_t *g, graph_mode_t mode, int32_t v)
{
    return mode == GRAPH_INFER && g->values[v].raw_of >= 0 ? g->values[v].raw_of : v;
}

static void touch(life_t *l, int32_t at)
{
    if (l->first < 0 || at < l->first)
        l->first = at;
    if (at > l->last)
        l->last = at;
}

static void ask(request_t *r, uint64_t bytes, life_t life, k_at *to)
{
    *to = K_NONE;
    if (bytes == 0 || life.first < 0 || r->failed)
        return;
    if (r->count == r->room) {
        int32_t room = r->room ? 2 * r->room : 256;
        planner_block_t *blocks = realloc(r->blocks, (size_t)room * sizeof *blocks);
        r->blocks = blocks ? blocks : r->blocks;
        k_at **places = realloc(r->to, (size_t)room * sizeof *places);
        r->to = places ? places : r->to;
        if (!blocks || !places) {
            r->failed = 1;
            return;
        }
        r->room = room;
    }
    r->blocks[r->count] = (planner_block_t){.bytes = bytes, .first = life.first, .last = life.last};
    r->to[r->count++] = to;
}

static uint64_t pixels(const graph_schedule_t *s, const graph_value_t *v)
{
    return (uint64_t)s->n * (uint64_t)(s->h / v->shrink) * (uint64_t)(s->w / v->shrink);
}

static void touch_value(const graph_t *g, const graph_schedule_t *s, life_t *lives, int32_t v,
                        int32_t at)
{
    touch(&lives[graph_root(g, graph_place_of(g, s->mode, v), NULL)], at);
}

static void touch_gradient(const graph_t *g, life_t *lives, int32_t v, int32_t at)
{
    touch(&lives[graph_root(g, graph_gradient_of(g, v), NULL)], at);
}

/* When each root's memory is used, by everything forward and by what backward reads again. */
static void value_lives(const graph_t *g, const graph_schedule_t *s, life_t *lives)
{
    touch_value(g, s, lives, g->input, 0);
    for (int l = 0; l < K_LEVELS; l++) {
        touch_value(g, s, lives, g->box[l], graph_at_loss(g));
        touch_value(g, s, lives, g->cls[l], graph_at_loss(g));
    }
    for (int32_t i = 0; i < g->n_ops; i++) {
        const graph_op_t *op = &g->ops[i];
        touch_value(g, s, lives, op->x, graph_at_forward(i));
        touch_value(g, s, lives, op->y, graph_at_forward(i));
        if (op->extra >= 0)
            touch_value(g, s, lives, op->extra, graph_at_forward(i));
        if (s->mode == GRAPH_INFER || !s->slot[i].runs)
            continue;
        if (op->unit >= 0 || op->kind == GRAPH_ATTENTION)
            touch_value(g, s, lives, op->x, graph_at_backward(g, i));
        if (op->kind == GRAPH_ATTENTION)
            touch_value(g, s, lives, op->y, graph_at_backward(g, i));
    }
}

static void gradient_lives(const graph_t *g, const graph_schedule_t *s, life_t *lives)
{
    for (int l = 0; l < K_LEVELS; l++) {
        touch_gradient(g, lives, g->box[l], graph_at_loss(g));
        touch_gradient(g, lives, g->cls[l], graph_at_loss(g));
    }
    for (int32_t i = 0; i < g->n_ops; i++) {
        const graph_op_t *op = &g->ops[i];
        const graph_slot_t *slot = &s->slot[i];
        int32_t at = graph_at_backward(g, i);
        int conv = op->kind == GRAPH_CONV || op->kind == GRAPH_DWCONV;
        if (!slot->runs)
            continue;
        for (int32_t k = 0; k < slot->n_zero; k++)
            touch(&lives[slot->zero[k]], at);
        touch_gradient(g, lives, op->y, at);
        if (conv)
            touch_gradient(g, lives, op->y, at + 1);
        if (op->extra >= 0 && op->extra != g->input)
            touch_gradient(g, lives, op->extra, at);
        if (slot->wants_dx)
            touch_gradient(g, lives, op->x, conv ? at + 1 : at);
    }
}

/* Memory of an operation's own. */
static void ask_slot(const graph_t *g, k_dev_t *dev, graph_schedule_t *s, int32_t i, request_t *r)
{
    const graph_op_t *op = &g->ops[i];
    graph_slot_t *slot = &s->slot[i];
    const int32_t f = graph_at_forward(i), b = graph_at_backward(g, i);
    const int train = s->mode == GRAPH_TRAIN, back = train && slot->runs;
    const life_t forward = {f, f}, backward = {b, b + 1}, both = {f, back ? b : f};
    const uint64_t c = (uint64_t)g->values[op->y].c, area = pixels(s, &g->values[op->y]);
    uint64_t work = 0;
    slot->work = slot->work_bwd = slot->kept = slot->stats = slot->bwd_stats = K_NONE;
    if (op->kind == GRAPH_CONV) {
        const graph_unit_t *u = &g->units[op->unit];
        const k_conv_t p = {.k = u->k, .s = u->s, .c1 = u->c1, .c2 = u->c2};
        work = dev->ops->conv_work(dev, &p, &s->value[op->x]);
    } else if (op->kind == GRAPH_ATTENTION) {
        work = dev->ops->attention_work(dev, &s->value[op->x], op->heads, op->kd, op->hd);
        ask(r, area * (uint64_t)op->heads * sizeof(float), both, &slot->kept);
    } else if (op->kind == GRAPH_MAXPOOL) {
        ask(r, area * c, both, &slot->kept);
    } else if (op->kind == GRAPH_BN && train) {
        ask(r, 2 * c * sizeof(float), both, &slot->kept);
        ask(r, 2 * c * sizeof(double), forward, &slot->stats);
        if (back)
            ask(r, 2 * c * sizeof(double), backward, &slot->bwd_stats);
    }
    ask(r, work, forward, &slot->work);
    if (back)
        ask(r, work, backward, &slot->work_bwd);
}

/* Fills shapes; places are not known yet. */
static void shape_values(const graph_t *g, const graph_schedule_t *s, k_tensor_t *t)
{
    for (int32_t v = 0; v < g->n_values; v++) {
        const graph_value_t *value = &g->values[v];
        int32_t root = graph_root(g, v, NULL);
        t[v] = (k_tensor_t){.at = K_NONE,
                            .n = s->n,
                            .h = s->h / value->shrink,
                            .w = s->w / value->shrink,
                            .c = value->c,
                            .ld = g->values[root].c,
                            .dtype = s->format};
    }
}

static void ask_roots(const graph_t *g, const graph_schedule_t *s, k_tensor_t *t,
                      const life_t *lives, request_t *r)
{
    for (int32_t v = 0; v < g->n_values; v++) {
        if (g->values[v].parent < 0)
            ask(r, pixels(s, &g->values[v]) * (uint64_t)g->values[v].c * graph_size(s->format),
                lives[v], &t[v].at);
    }
}

/* Everything that is not a root gets the place of its range within one. */
static void place_views(const graph_t *g, k_tensor_t *t, graph_mode_t mode, int gradients)
{
    for (int32_t v = 0; v < g->n_values; v++) {
        int32_t first, like = gradients ? graph_gradient_of(g, v) : graph_place_of(g, mode, v);
        int32_t root = graph_root(g, like, &first);
        if (root == v)
            continue;
        t[v].ld = g->values[root].c;
        t[v].at =
            t[root].at == K_NONE ? K_NONE : t[root].at + (uint64_t)first * graph_size(t[v].dtype);
    }
}

static int schedule_new(const graph_t *g, graph_mode_t mode, k_dtype_t format,
                        graph_schedule_t **schedule)
{
    graph_schedule_t *s = calloc(1, sizeof *s);
    *schedule = s;
    if (!s)
        return -1;
    s->mode = mode;
    s->format = format;
    s->value = calloc((size_t)g->n_values, sizeof *s->value);
    s->slot = calloc((size_t)g->n_ops, sizeof *s->slot);
    if (mode == GRAPH_TRAIN)
        s->grad = calloc((size_t)g->n_values, sizeof *s->grad);
    return s->value && s->slot && (s->grad || mode == GRAPH_INFER) ? 0 : -1;
}

void graph_schedule_free(struct graph_schedule **schedule)
{
    graph_schedule_t *s = *schedule;
    if (!s)
        return;
    free(s->value);
    free(s->grad);
    free(s->slot);
    free(s);
    *schedule = NULL;
}

/* Asks the planner and hands out the places, moved by base. */
static int place_all(request_t *r, k_at base, uint64_t *bytes)
{
    if (r->failed || planner_place(r->blocks, r->count, bytes) < 0)
        return err_set(ERR_ENV, "out of memory while planning the model's memory");
    for (int32_t i = 0; i < r->count; i++)
        *r->to[i] = base + r->blocks[i].at;
    return 0;
}

static int plan(const graph_t *g, k_dev_t *dev, graph_schedule_t *s, k_at base)
{
    int rc = 0;
    request_t r = {0};
    size_t n = (size_t)g->n_values;
    life_t *values = malloc(n * sizeof *values), *gradients = malloc(n * sizeof *gradients);
    if (!values || !gradients) {
        rc = err_set(ERR_ENV, "out of memory while planning the model's memory");
        goto out;
    }
    for (size_t v = 0; v < n; v++)
        values[v] = gradients[v] = (life_t){-1, -1};
    shape_values(g, s, s->value);
    if (s->mode == GRAPH_TRAIN) {
        CHECK_GOTO(graph_plan_gradients(g, s), rc, out);
        shape_values(g, s, s->grad);
        gradient_lives(g, s, gradients);
        ask_roots(g, s, s->grad, gradients, &r);
    }
    value_lives(g, s, values);
    ask_roots(g, s, s->value, values, &r);
    for (int32_t i = 0; i < g->n_ops; i++)
        ask_slot(g, dev, s, i, &r);
    CHECK_GOTO(place_all(&r, base, &s->bytes), rc, out);
    place_views(g, s->value, s->mode, 0);
    if (s->mode == GRAPH_TRAIN)
        place_views(g, s->grad, s->mode, 1);
out:
    free(values);
    free(gradients);
    free(r.blocks);
    free(r.to);
    return rc;
}

static void describe(const graph_t *g, const graph_schedule_t *s, graph_plan_t *p)
{
    memset(p, 0, sizeof *p);
    p->activation_bytes = s->bytes;
    p->input = s->value[g->input];
    for (int l = 0; l < K_LEVELS; l++) {
        p->box[l] = s->value[g->box[l]];
        p->cls[l] = s->value[g->cls[l]];
        p->stride[l] = g->values[g->box[l]].shrink;
        p->anchors += p->box[l].h * p->box[l].w;
        if (s->mode == GRAPH_TRAIN) {
            p->dbox[l] = s->grad[g->box[l]];
            p->dcls[l] = s->grad[g->cls[l]];
        } else {
            p->dbox[l].at = p->dcls[l].at = K_NONE;
        }
    }
}

int graph_plan(graph_t *g, k_dev_t *dev, graph_mode_t mode, k_dtype_t format, int32_t n, int32_t h,
               int32_t w, k_at base, graph_plan_t *result)
{
    graph_schedule_t *s = NULL;
    if (n < 1 || n > BATCH_MAX || h < GRAPH_SHRINK_MAX || w < GRAPH_SHRINK_MAX || h > SIDE_MAX ||
        w > SIDE_MAX || h % GRAPH_SHRINK_MAX || w % GRAPH_SHRINK_MAX)
        return err_set(ERR_CONFIG,
                       "%d images of %d x %d: 1 to %d images are possible, with sides that are "
                       "multiples of %d, up to %d: lower batch or imgsz",
                       n, h, w, BATCH_MAX, GRAPH_SHRINK_MAX, SIDE_MAX);
    int rc = schedule_new(g, mode, format, &s) ? err_set(ERR_ENV, "out of memory for the plan") : 0;
    if (rc == 0) {
        s->n = n;
        s->h = h;
        s->w = w;
        rc = plan(g, dev, s, base);
    }
    if (rc < 0) {
        graph_schedule_free(&s);
        return err_add(rc, "model %s", g->name);
    }
    graph_schedule_free(&g->schedule[mode]);
    g->schedule[mode] = s;
    describe(g, s, result);
    return 0;
}
