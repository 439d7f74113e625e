/* Detect(nc): a box branch and a class branch on each of three maps; raw logits come out. */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

/* Two 3x3 convolutions and a 1x1 with bias; returns the logits, *bias the number of the last bias.
 */
static int32_t plain_branch(graph_t *g, int32_t x, int32_t hidden, int32_t c2, const char *name,
                            int32_t *bias)
{
    int32_t a = graph_unit(g, graph_channels(g, x), hidden, 3, 1, "%s.0", name);
    int32_t b = graph_unit(g, hidden, hidden, 3, 1, "%s.1", name);
    int32_t last = graph_unit_plain(g, hidden, c2, "%s.2", name);
    *bias = last < 0 ? -1 : g->units[last].bias;
    x = graph_conv(g, a, x, K_ACT_SILU);
    return graph_conv_plain(g, last, graph_conv(g, b, x, K_ACT_SILU));
}

/* YOLO11's class branch: depthwise 3x3 and 1x1, twice. */
static int32_t light_branch(graph_t *g, int32_t x, int32_t hidden, int32_t c2, const char *name,
                            int32_t *bias)
{
    int32_t c1 = graph_channels(g, x), units[4];
    units[0] = graph_unit_dw(g, c1, "%s.0.0", name);
    units[1] = graph_unit(g, c1, hidden, 1, 1, "%s.0.1", name);
    units[2] = graph_unit_dw(g, hidden, "%s.1.0", name);
    units[3] = graph_unit(g, hidden, hidden, 1, 1, "%s.1.1", name);
    int32_t last = graph_unit_plain(g, hidden, c2, "%s.2", name);
    *bias = last < 0 ? -1 : g->units[last].bias;
    for (int i = 0; i < 4; i++)
        x = graph_conv(g, units[i], x, K_ACT_SILU);
    return graph_conv_plain(g, last, x);
}

int32_t block_detect(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    char child[GRAPH_NAME];
    const int32_t box = 4 * K_REG_MAX;
    if (row->n_from != K_LEVELS)
        return graph_fail(g, "Detect takes %d maps, not %d", K_LEVELS, row->n_from);
    if (g->has_head)
        return graph_fail(g, "a second Detect");
    int32_t first = graph_channels(g, x[0]);
    int32_t c2 = first / 4 > box ? first / 4 : box; /* max(16, ch/4, 4*reg_max) */
    int32_t c3 = g->nc < 100 ? g->nc : 100;
    c3 = first > c3 ? first : c3;
    snprintf(row->summary, sizeof row->summary, "%d, [%d, %d, %d]", g->nc, first,
             graph_channels(g, x[1]), graph_channels(g, x[2]));
    for (int i = 0; i < K_LEVELS; i++) {
        snprintf(child, sizeof child, "%s.cv2.%d", name, i);
        g->box[i] = plain_branch(g, x[i], c2, box, child, &g->box_bias[i]);
        if (g->box[i] < 0)
            return -1;
    }
    for (int i = 0; i < K_LEVELS; i++) {
        snprintf(child, sizeof child, "%s.cv3.%d", name, i);
        g->cls[i] = (g->legacy_head ? plain_branch : light_branch)(g, x[i], c3, g->nc, child,
                                                                   &g->cls_bias[i]);
        if (g->cls[i] < 0)
            return -1;
    }
    /* The projection of the distribution to a distance is fixed (0 .. 15) and belongs to the loss.
     */
    if (graph_add_constant(g, (int64_t[]){1, K_REG_MAX, 1, 1}, 4, "%s.dfl.conv.weight", name) < 0)
        return -1;
    g->has_head = 1;
    return g->cls[0];
}
