/* Initial weights, and weights in and out under their state-dict names
 * (facts/yolo.md 1.3, 8.3, 8.4).
 *
 * Host arrays here are in the device's layout (OHWI, HWC): the trainer uploads and downloads whole
 * regions. Files are in the state dict's layout. Trainer's thread, `sluice model` and tests.
 */
#ifndef SLUICE_TRAINER_WEIGHTS_H
#define SLUICE_TRAINER_WEIGHTS_H

#include "trainer/graph.h"
#include "trainer/safetensors.h"

/* PyTorch's default initialisation and the head's bias_init (facts/yolo.md 1.3), from philox
 * streams keyed by (seed, tensor number): the same for every rank and machine. */
void weights_init(const graph_t *g, uint64_t seed, float *weights, float *buffers);
/* Copies tensors whose name (prefix + state-dict name) and shape match. Counts transferred. */
int weights_load(const graph_t *g, const safetensors_t *file, const char *prefix, float *weights,
                 float *buffers, int32_t *transferred);
/* Adds every state-dict entry to a file image under prefix + name, F32 (counters I64). */
int weights_store(const graph_t *g, const float *weights, const float *buffers, int64_t batches,
                  const char *prefix, safetensors_writer_t *out);

#endif
