/* SPPF(c2, k): three poolings in a row, all four maps joined. cv1 has its activation: the released
 * weights were trained so (facts/yolo.md 0.1). */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

int32_t block_sppf(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    int32_t c1 = graph_channels(g, x[0]), c2 = graph_scaled(g, row, 0), hidden = c1 / 2, k, maps[4];
    if (graph_arg_int(g, row, 1, 5, 3, 15, &k))
        return -1;
    if (k % 2 == 0)
        return graph_fail(g, "pooling size %d: only odd ones are known", k);
    snprintf(row->summary, sizeof row->summary, "%d, %d, %d", c1, c2, k);
    int32_t cv1 = graph_unit(g, c1, hidden, 1, 1, "%s.cv1", name);
    int32_t cv2 = graph_unit(g, 4 * hidden, c2, 1, 1, "%s.cv2", name);
    maps[0] = graph_conv(g, cv1, x[0], K_ACT_SILU);
    for (int i = 1; i < 4; i++)
        maps[i] = graph_maxpool(g, k, maps[i - 1]);
    return graph_conv(g, cv2, graph_concat(g, maps, 4), K_ACT_SILU);
}
