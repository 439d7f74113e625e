/* From a file of weights to the image of a best.safetensors of ours (design 9): `sluice import`, and
 * tests. Any thread.
 */
#ifndef SLUICE_TRAINER_IMPORT_H
#define SLUICE_TRAINER_IMPORT_H

#include "trainer/modelfile.h"
#include "trainer/safetensors.h"
#include "trainer/weights.h"

typedef struct {
    int32_t tensors;
    uint64_t parameters; /* as facts/yolo.md 1.1 counts them */
    weights_report_t report;
} import_t;

/* Lays the file's model into out, F32, under the usual names, with the metadata of a checkpoint:
 * model, task, nc, strides, names and epoch where they are known, args (the image size where it is
 * known), source. ERR_CONFIG when the architecture is not known or a tensor is missing: nothing is
 * made up. */
int import_image(const modelfile_t *file, safetensors_writer_t *out, import_t *what);

#endif
