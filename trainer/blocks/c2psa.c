/* C2PSA(c2): half of the channels pass through attention blocks, the other half pass by. */
#include "trainer/blocks/blocks.h"

#include <stdio.h>

/* Attention: per-head attention over positions, plus a depthwise convolution of the values, then
 * proj; the block's input is added behind proj. */
static int32_t attention(graph_t *g, int32_t x, int32_t heads, const char *name)
{
    int32_t c = graph_channels(g, x), hd = c / heads, kd = hd / 2, v = -1;
    int32_t qkv = graph_unit(g, c, c + 2 * kd * heads, 1, 1, "%s.attn.qkv", name);
    int32_t proj = graph_unit(g, c, c, 1, 1, "%s.attn.proj", name);
    int32_t pe = graph_unit_dw(g, c, "%s.attn.pe", name);
    int32_t mixed = graph_attention(g, graph_conv(g, qkv, x, K_ACT_NONE), heads, kd, hd, &v);
    int32_t placed = graph_conv_add(g, pe, v, K_ACT_NONE, mixed);
    return graph_conv_add(g, proj, placed, K_ACT_NONE, x);
}

static int32_t psa_block(graph_t *g, int32_t x, int32_t heads, const char *name)
{
    int32_t c = graph_channels(g, x);
    x = attention(g, x, heads, name);
    int32_t up = graph_unit(g, c, 2 * c, 1, 1, "%s.ffn.0", name);
    int32_t down = graph_unit(g, 2 * c, c, 1, 1, "%s.ffn.1", name);
    return graph_conv_add(g, down, graph_conv(g, up, x, K_ACT_SILU), K_ACT_NONE, x);
}

int32_t block_c2psa(graph_t *g, graph_line_t *row, const int32_t *x, const char *name)
{
    char child[GRAPH_NAME];
    int32_t c = graph_channels(g, x[0]), hidden = c / 2, heads = hidden / 64 > 1 ? hidden / 64 : 1;
    int32_t c2 = graph_scaled(g, row, 0);
    if (c2 < 0)
        return -1;
    if (c2 != c || hidden % heads || hidden / heads % 2)
        return graph_fail(
            g, "C2PSA keeps its %d channels and splits half of them in heads of 64; %d asked", c,
            c2);
    snprintf(row->summary, sizeof row->summary, "%d, %d, %d", c, c2, row->repeats);
    int32_t cv1 = graph_unit(g, c, 2 * hidden, 1, 1, "%s.cv1", name);
    int32_t cv2 = graph_unit(g, 2 * hidden, c, 1, 1, "%s.cv2", name);
    int32_t both = graph_conv(g, cv1, x[0], K_ACT_SILU);
    int32_t by = graph_slice(g, both, 0, hidden), last = graph_slice(g, both, hidden, hidden);
    for (int32_t j = 0; j < row->repeats; j++) {
        snprintf(child, sizeof child, "%s.m.%d", name, j);
        last = psa_block(g, last, heads, child);
    }
    /* The half that passes by lies in cv1's output, so graph_concat copies it. */
    return graph_conv(g, cv2, graph_concat(g, (int32_t[]){by, last}, 2), K_ACT_SILU);
}
