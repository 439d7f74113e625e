/* A file's model with its weights, whole: as arrays (`sluice export`), and as the image of a
 * best.safetensors of ours (design 9; `sluice import`). Any thread.
 */
#ifndef SLUICE_TRAINER_IMPORT_H
#define SLUICE_TRAINER_IMPORT_H

#include "trainer/modelfile.h"
#include "trainer/safetensors.h"
#include "trainer/weights.h"

typedef struct {
    graph_t *g;
    float *weights, *buffers; /* in the device's layout, as weights_init fills them */
    weights_report_t report;
} import_model_t;

/* ERR_CONFIG when the architecture is not known or a tensor is missing: nothing is made up. */
int import_load(const modelfile_t *file, import_model_t *model);
void import_fini(import_model_t *model);

typedef struct {
    int32_t tensors;
    uint64_t parameters; /* as facts/yolo.md 1.1 counts them */
    weights_report_t report;
} import_t;

/* Lays the file's model into out, F32, under the usual names, with the metadata of a checkpoint:
 * model, task, nc, strides, names and epoch where they are known, args (the image size where it is
 * known), source. Fails as import_load does. */
int import_image(const modelfile_t *file, safetensors_writer_t *out, import_t *what);

#endif
