/* The blocks of the model tables (facts/yolo.md 1.2). Those that a table may name have the
 * signature of graph_build_fn and a row in graph_modules.c; the others are parts of blocks. See
 * graph_internal.h for how failure passes through. */
#ifndef SLUICE_TRAINER_BLOCKS_H
#define SLUICE_TRAINER_BLOCKS_H

#include "trainer/graph_internal.h"

int32_t block_conv(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_c2f(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_c3k2(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_sppf(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_c2psa(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_upsample(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_concat(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);
int32_t block_detect(graph_t *g, graph_line_t *row, const int32_t *x, const char *name);

/* Two 3x3 convolutions c -> hidden -> c, with the input added if shortcut. */
int32_t block_bottleneck(graph_t *g, int32_t x, int32_t hidden, int shortcut, const char *name);
/* C3 with two bottlenecks, c -> c. */
int32_t block_c3k(graph_t *g, int32_t x, int32_t n, int shortcut, const char *name);

/* The wiring that C2f and C3k2 share: cv1 to 2c channels, n inner blocks chained from the second
 * half, concat of both halves and every inner output, cv2. inner builds block j from x. */
typedef int32_t (*block_inner_fn)(graph_t *g, int32_t x, int shortcut, const char *name);
int32_t block_split_chain(graph_t *g, int32_t x, int32_t c2, int32_t hidden, int32_t n,
                          int shortcut, block_inner_fn inner, const char *name);

#endif
