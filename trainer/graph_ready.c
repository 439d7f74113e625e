/* When gradients are complete: for whoever gives them away during backward. */
#include "trainer/graph_internal.h"

/* A normalisation and its convolution are two operations of one unit. */
static int writes(const graph_op_t *op, const graph_unit_t *u, int32_t param)
{
    if (op->kind == GRAPH_BN)
        return u->gamma == param || u->beta == param;
    return u->weight == param || u->bias == param;
}

int32_t graph_ready_after(const graph_t *g, int32_t param)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const graph_op_t *op = &g->ops[i];
        if (op->unit >= 0 && writes(op, &g->units[op->unit], param))
            return i;
    }
    return -1;
}
