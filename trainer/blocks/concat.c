/* Concat(1): joins the channels of its inputs. */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

int32_t block_concat(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    (void)name;
    int32_t axis;
    if (graph_arg_int(g, row, 0, 1, 1, 1, &axis))
        return -1;
    snprintf(row->summary, sizeof row->summary, "%d", axis);
    return graph_concat(g, x, row->n_from);
}
