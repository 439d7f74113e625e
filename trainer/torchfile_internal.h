/* Inside of torchfile: torchfile.c opens the archive, torchfile_walk.c finds the model and names its
 * tensors, torchfile_tensor.c turns what a pickle says of a tensor into a checked view. Private to
 * trainer/torchfile*.c.
 */
#ifndef SLUICE_TRAINER_TORCHFILE_INTERNAL_H
#define SLUICE_TRAINER_TORCHFILE_INTERNAL_H

#include "trainer/pickle.h"
#include "trainer/torchfile.h"
#include "trainer/zipfile.h"

enum {
    TORCHFILE_TENSORS = 1 << 16,
    TORCHFILE_NAME = 256, /* bytes of a tensor's name */
    TORCHFILE_CLASSES = 10000,
};

/* What was said of a member the first time that a tensor lay in it. */
typedef struct {
    int seen;
    char dtype[8];
    uint64_t elements;
    const void *data;
} torchfile_storage_t;

struct torchfile {
    char *origin;
    zipfile_t *zip;
    pickle_t *pickle;
    char root[TORCHFILE_NAME];     /* of the member names, with its slash: "yolo11n/" */
    torchfile_storage_t *storages; /* parallel to the members */
    tensorview_t *tensors;
    int32_t count, room;
    torchfile_info_t info;
    char **classes;
    int32_t n_classes;
};

/* Finds the model and adds its tensors; fills info. */
int torchfile_walk(torchfile_t *f);
/* 1 if the node says how to make a tensor. */
int torchfile_is_tensor(const pickle_node_t *n);
/* The node's tensor as a view; v->name is set before, for sentences. */
int torchfile_view(torchfile_t *f, const pickle_node_t *n, tensorview_t *v);
/* Class names from a list, or from a dict by number; without effect where it is neither, or has a
 * hole. */
int torchfile_take_classes(torchfile_t *f, const pickle_node_t *names);

#endif
