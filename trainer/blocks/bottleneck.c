/* Bottleneck: cv1 3x3 to the hidden width, cv2 3x3 back; the input is added behind the activation.
 */
#include "trainer/blocks/blocks.h"

int32_t block_bottleneck(graph_t *g, int32_t x, int32_t hidden, int shortcut, const char *name)
{
    int32_t c = graph_channels(g, x);
    int32_t cv1 = graph_unit(g, c, hidden, 3, 1, "%s.cv1", name);
    int32_t cv2 = graph_unit(g, hidden, c, 3, 1, "%s.cv2", name);
    int32_t h = graph_conv(g, cv1, x, K_ACT_SILU);
    return shortcut ? graph_conv_add(g, cv2, h, K_ACT_SILU, x) : graph_conv(g, cv2, h, K_ACT_SILU);
}
