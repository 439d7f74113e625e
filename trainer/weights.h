/* Initial weights, and weights in and out under their state-dict names
 * (facts/yolo.md 1.3, 8.3, 8.4).
 *
 * Host arrays here are in the device's layout (OHWI, HWC): the trainer uploads and downloads whole
 * regions. Files are in the state dict's layout. Trainer's thread, `sluice model` and tests.
 */
#ifndef SLUICE_TRAINER_WEIGHTS_H
#define SLUICE_TRAINER_WEIGHTS_H

#include "trainer/graph.h"
#include "trainer/modelfile.h"
#include "trainer/safetensors.h"

/* PyTorch's default initialisation and the head's bias_init (facts/yolo.md 1.3), from philox
 * streams keyed by (seed, tensor number): the same for every rank and machine. */
void weights_init(const graph_t *g, uint64_t seed, float *weights, float *buffers);

/* What weights_transfer did. */
typedef struct {
    int32_t moved, of;     /* tensors of the model's state dict */
    char first_left[96];   /* the first that was not moved; "" if none */
    int32_t rows, rows_of; /* class rows moved by name, of the model's classes; rows_of is 0 where
                                 rows went straight or not at all */
    int32_t channels;      /* of the file's first convolution where they are not the model's */
    uint64_t not_finite;   /* numbers moved that are NaN or infinite */
    int bare_sppf;         /* the file's model has no activation in SPPF.cv1; this one has */
} weights_report_t;

/* Copies into the model what a file has for it (facts/yolo.md 8.4); the rest stays as it is.
 *
 * Tensors go by name and shape; F16, BF16 and F64 become F32. The class branch's last convolutions
 * go row by row: a class of the file with the name of one of `names` (n_names = the model's classes;
 * exactly, else without regard to case) gives its row to it. Where the file or the caller has no
 * names and the numbers of classes are equal, rows go straight. A first convolution of one channel is
 * spread over the model's (each gets its share, so that a gray picture is seen as before); of more,
 * the model's first channels are taken; missing ones stay. ERR_CONFIG for a dtype that is no number
 * of these. */
int weights_transfer(const graph_t *g, const modelfile_t *file, const char *const *names,
                     int32_t n_names, float *weights, float *buffers, weights_report_t *report);
/* "transferred 493 of 499 tensors from X.pt; class rows by name: 3 of 4; ..." */
void weights_say(const weights_report_t *report, const char *origin, char *text, size_t room);

/* Place in the device's copy of element i (state-dict order) of a parameter. */
uint64_t weights_place(const graph_param_t *p, uint64_t i);
/* Adds every state-dict entry to a file image under prefix + name, F32 (counters I64). */
int weights_store(const graph_t *g, const float *weights, const float *buffers, int64_t batches,
                  const char *prefix, safetensors_writer_t *out);

#endif
