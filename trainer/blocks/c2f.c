/* C2f(c2, shortcut): a chain of bottlenecks whose every stage reaches the output. */
#include "trainer/blocks/blocks.h"

#include <stdio.h>
#include <stdlib.h>

int32_t block_split_chain(graph_t *g, int32_t x, int32_t c2, int32_t hidden, int32_t n,
                          int shortcut, block_inner_fn inner, const char *name)
{
    char child[GRAPH_NAME];
    int32_t cv1 = graph_unit(g, graph_channels(g, x), 2 * hidden, 1, 1, "%s.cv1", name);
    int32_t cv2 = graph_unit(g, (2 + n) * hidden, c2, 1, 1, "%s.cv2", name);
    int32_t *parts = calloc((size_t)n + 1, sizeof *parts);
    if (!parts)
        return graph_fail(g, "out of memory");
    parts[0] = graph_conv(g, cv1, x, K_ACT_SILU); /* both halves at once */
    int32_t last = graph_slice(g, parts[0], hidden, hidden);
    for (int32_t j = 0; j < n; j++) {
        snprintf(child, sizeof child, "%s.m.%d", name, j);
        last = parts[j + 1] = inner(g, last, shortcut, child);
    }
    int32_t all = graph_concat(g, parts, n + 1);
    free(parts);
    return graph_conv(g, cv2, all, K_ACT_SILU);
}

/* C2f's bottlenecks keep the full width (facts/yolo.md 1.2: e = 1.0). */
static int32_t inner(graph_t *g, int32_t x, int shortcut, const char *name)
{
    return block_bottleneck(g, x, graph_channels(g, x), shortcut, name);
}

int32_t block_c2f(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    int shortcut;
    int32_t c1 = graph_channels(g, x[0]), c2 = graph_scaled(g, row, 0);
    if (graph_arg_bool(g, row, 1, 0, &shortcut))
        return -1;
    snprintf(row->summary, sizeof row->summary, "%d, %d, %d, %s", c1, c2, row->repeats,
             shortcut ? "True" : "False");
    return block_split_chain(g, x[0], c2, c2 / 2, row->repeats, shortcut, inner, name);
}
