/* The modules that a model table may name. A new block is one file in trainer/blocks/ and a row
 * here. */
#include "trainer/blocks/blocks.h"

#include <string.h>

static const graph_module_t modules[] = {
    /* name, builder, fewest and most arguments, repeats are the block's inner count */
    {"Conv", block_conv, 1, 3, 0},     {"C2f", block_c2f, 1, 2, 1},
    {"C3k2", block_c3k2, 1, 3, 1},     {"SPPF", block_sppf, 1, 2, 0},
    {"C2PSA", block_c2psa, 1, 1, 1},   {"nn.Upsample", block_upsample, 3, 3, 0},
    {"Concat", block_concat, 0, 1, 0}, {"Detect", block_detect, 1, 1, 0},
};

enum { MODULES = sizeof modules / sizeof *modules };

const graph_module_t *graph_find_module(const char *name)
{
    for (int i = 0; i < MODULES; i++) {
        if (strcmp(modules[i].name, name) == 0)
            return &modules[i];
    }
    return NULL;
}

const char *graph_module_name(int i)
{
    return i >= 0 && i < MODULES ? modules[i].name : NULL;
}
