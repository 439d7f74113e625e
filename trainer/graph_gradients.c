/* Which gradients are computed, which operation writes one first, and which must be cleared.
 *
 * The backward pass is walked through on marks, one for every channel of every root: has anything
 * been written there yet? The first writer of a range overwrites, later ones add. A range that is
 * only partly written when it is added to or read (possible in a user's own table, not in the ten
 * models) makes its whole root cleared before its first use; which roots those are is not known
 * before the end, so the walk is repeated until no more are found. An operation whose output's
 * gradient nobody writes has no influence on the loss and does not run.
 */
#include "trainer/graph_plan.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const graph_t *g;
    graph_schedule_t *s;
    uint8_t **mark;   /* by root value: one byte a channel */
    uint8_t *cleared; /* by root value: is cleared at its first use */
    uint8_t *touched; /* by root value: in this walk */
    int found;        /* roots that were found to need clearing in this walk */
} walk_t;

int32_t graph_gradient_of(const graph_t *g, int32_t v)
{
    return g->values[v].raw_of >= 0 ? g->values[v].raw_of : v;
}

/* How much of v's range is written: 0 nothing, 1 a part, 2 all. */
static int written(const walk_t *w, int32_t v)
{
    int32_t first, c = w->g->values[v].c, count = 0;
    int32_t root = graph_root(w->g, v, &first);
    for (int32_t i = 0; i < c; i++)
        count += w->mark[root][first + i];
    return count == 0 ? 0 : count == c ? 2 : 1;
}

/* The operation is about to use v's gradient: clears the root first if that has been found
 * necessary. */
static void touch(walk_t *w, graph_slot_t *slot, int32_t v)
{
    int32_t root = graph_root(w->g, v, NULL);
    if (w->cleared[root] && !w->touched[root]) {
        slot->zero[slot->n_zero++] = root;
        memset(w->mark[root], 1, (size_t)w->g->values[root].c);
    }
    w->touched[root] = 1;
}

static void must_clear(walk_t *w, int32_t v)
{
    int32_t root = graph_root(w->g, v, NULL);
    if (!w->cleared[root]) {
        w->cleared[root] = 1;
        w->found++;
    }
}

/* Reads v's gradient. */
static void read_gradient(walk_t *w, graph_slot_t *slot, int32_t v)
{
    touch(w, slot, v);
    if (written(w, v) != 2)
        must_clear(w, v);
}

/* Writes v's gradient; returns whether the writer adds. */
static int write_gradient(walk_t *w, graph_slot_t *slot, int32_t v)
{
    int32_t first;
    touch(w, slot, v);
    int state = written(w, v), root = graph_root(w->g, v, &first);
    if (state == 1)
        must_clear(w, v);
    memset(w->mark[root] + first, 1, (size_t)w->g->values[v].c);
    return state != 0;
}

static void walk_op(walk_t *w, int32_t i)
{
    const graph_op_t *op = &w->g->ops[i];
    graph_slot_t *slot = &w->s->slot[i];
    int32_t y = graph_gradient_of(w->g, op->y), x = graph_gradient_of(w->g, op->x);
    slot->n_zero = slot->acc_x = slot->acc_extra = 0;
    int reaches = written(w, y) || (op->kind == GRAPH_ATTENTION && written(w, op->extra));
    int has_weights = op->unit >= 0;
    slot->wants_dx = reaches && x != w->g->input;
    slot->runs = reaches && (has_weights || slot->wants_dx);
    if (!slot->runs)
        return;
    read_gradient(w, slot, y);
    if (op->kind == GRAPH_ATTENTION)
        read_gradient(w, slot, op->extra);
    if (op->kind == GRAPH_BN) {
        /* dx lies in dy's place, so x's gradient needs no writing; the residual's is a copy of dy.
         */
        if (op->extra >= 0 && op->extra != w->g->input)
            slot->acc_extra = write_gradient(w, slot, op->extra);
        return;
    }
    if (slot->wants_dx)
        slot->acc_x = write_gradient(w, slot, x);
}

static void walk(walk_t *w)
{
    const graph_t *g = w->g;
    w->found = 0;
    memset(w->touched, 0, (size_t)g->n_values);
    for (int32_t v = 0; v < g->n_values; v++) {
        if (w->mark[v])
            memset(w->mark[v], 0, (size_t)g->values[v].c);
    }
    for (int l = 0; l < K_LEVELS; l++) { /* the loss fills these */
        memset(w->mark[g->box[l]], 1, (size_t)g->values[g->box[l]].c);
        memset(w->mark[g->cls[l]], 1, (size_t)g->values[g->cls[l]].c);
    }
    for (int32_t i = g->n_ops - 1; i >= 0; i--)
        walk_op(w, i);
}

int graph_plan_gradients(const graph_t *g, graph_schedule_t *s)
{
    int rc = 0;
    size_t n = (size_t)g->n_values;
    walk_t w = {.g = g, .s = s};
    w.mark = calloc(n, sizeof *w.mark);
    w.cleared = calloc(n, 1);
    w.touched = calloc(n, 1);
    int ok = w.mark && w.cleared && w.touched;
    for (int32_t v = 0; ok && v < g->n_values; v++) {
        if (g->values[v].parent < 0)
            ok = (w.mark[v] = calloc((size_t)g->values[v].c, 1)) != NULL;
    }
    if (!ok) {
        rc = err_set(ERR_ENV, "out of memory while planning gradients");
        goto out;
    }
    do
        walk(&w);
    while (w.found);
out:
    for (size_t v = 0; w.mark && v < n; v++)
        free(w.mark[v]);
    free(w.mark);
    free(w.cleared);
    free(w.touched);
    return rc;
}
