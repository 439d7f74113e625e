/* Inside of modelfile: modelfile.c reads both formats, modelfile_model.c finds prefix and
 * architecture. Private to trainer/modelfile*.c.
 */
#ifndef SLUICE_TRAINER_MODELFILE_INTERNAL_H
#define SLUICE_TRAINER_MODELFILE_INTERNAL_H

#include "trainer/modelfile.h"
#include "trainer/safetensors.h"
#include "trainer/torchfile.h"

struct modelfile {
    char *origin;
    void *owned; /* the file's bytes, when opened by path */
    safetensors_t *safetensors;
    torchfile_t *torch;
    tensorview_t *tensors; /* in order of name */
    char **names;          /* made here, of tensors that were named anew; parallel to nothing */
    int32_t count, n_names;
    char **classes;
    int32_t n_classes;
    modelfile_info_t info;
};

/* Takes the prefix off: names become "model.N....", the rest is dropped. */
int modelfile_rename(modelfile_t *f);
/* Fills model, why, nc, channels and extra; the tensors are in order of name. `claimed` is the name
 * that the file has for its model, or NULL. */
int modelfile_find_model(modelfile_t *f, const char *claimed);

#endif
