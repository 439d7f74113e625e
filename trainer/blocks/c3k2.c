/* C3k2(c2, c3k, e): C2f's wiring with either C3k blocks or half-width bottlenecks inside; residual.
 */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

static int32_t inner_bottleneck(graph_t *g, int32_t x, int shortcut, const char *name)
{
    return block_bottleneck(g, x, graph_channels(g, x) / 2, shortcut, name);
}

static int32_t inner_c3k(graph_t *g, int32_t x, int shortcut, const char *name)
{
    return block_c3k(g, x, 2, shortcut, name);
}

int32_t block_c3k2(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    int c3k;
    double e;
    int32_t c1 = graph_channels(g, x[0]), c2 = graph_scaled(g, row, 0);
    if (graph_arg_bool(g, row, 1, 0, &c3k) || graph_arg_double(g, row, 2, 0.5, &e))
        return -1;
    /* The larger scales use C3k everywhere (facts/yolo.md 1.1). */
    if (g->scale == 'm' || g->scale == 'l' || g->scale == 'x')
        c3k = 1;
    snprintf(row->summary, sizeof row->summary, "%d, %d, %d, %s, %g", c1, c2, row->repeats,
             c3k ? "True" : "False", e);
    return block_split_chain(g, x[0], c2, (int32_t)(c2 * e), row->repeats, 1,
                             c3k ? inner_c3k : inner_bottleneck, name);
}
