/* Conv(c2, k, s): convolution, batch normalisation, SiLU. */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

int32_t block_conv(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    int32_t c1 = graph_channels(g, x[0]), c2 = graph_scaled(g, row, 0), k, s;
    if (graph_arg_int(g, row, 1, 1, 1, 15, &k) || graph_arg_int(g, row, 2, 1, 1, 2, &s))
        return -1;
    if (k % 2 == 0)
        return graph_fail(g, "kernel size %d: only odd ones are known", k);
    snprintf(row->summary, sizeof row->summary, "%d, %d, %d, %d", c1, c2, k, s);
    return graph_conv(g, graph_unit(g, c1, c2, k, s, "%s", name), x[0], K_ACT_SILU);
}
