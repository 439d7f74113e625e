/* C3k: a chain of bottlenecks beside a 1x1 branch, joined by cv3. */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

int32_t block_c3k(graph_t *g, int32_t x, int32_t n, int shortcut, const char *name)
{
    char child[GRAPH_NAME];
    int32_t c = graph_channels(g, x), hidden = c / 2;
    int32_t cv1 = graph_unit(g, c, hidden, 1, 1, "%s.cv1", name);
    int32_t cv2 = graph_unit(g, c, hidden, 1, 1, "%s.cv2", name);
    int32_t cv3 = graph_unit(g, 2 * hidden, c, 1, 1, "%s.cv3", name);
    int32_t last = graph_conv(g, cv1, x, K_ACT_SILU);
    for (int32_t j = 0; j < n; j++) {
        snprintf(child, sizeof child, "%s.m.%d", name, j);
        last = block_bottleneck(g, last, hidden, shortcut, child);
    }
    int32_t side = graph_conv(g, cv2, x, K_ACT_SILU);
    int32_t all = graph_concat(g, (int32_t[]){last, side}, 2);
    return graph_conv(g, cv3, all, K_ACT_SILU);
}
