/* nn.Upsample(None, 2, nearest). */
#include "trainer/blocks/blocks.h"

#include <stdio.h>
#include <string.h>

int32_t block_upsample(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    (void)name;
    int32_t factor;
    if (graph_arg_int(g, row, 1, 0, 2, 2, &factor))
        return -1;
    if (row->args[0].kind != GRAPH_ARG_NULL || strcmp(row->args[2].word, "nearest") != 0)
        return graph_fail(g, "only [None, 2, nearest] is known");
    snprintf(row->summary, sizeof row->summary, "None, 2, nearest");
    return graph_upsample(g, x[0]);
}
