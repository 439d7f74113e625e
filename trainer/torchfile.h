/* A file of torch.save: a ZIP archive with a pickle (data.pkl) and a member for every storage.
 * Nothing in it is run (pickle.h), nothing is extracted (zipfile.h).
 *
 * What is looked for, in this order, at the top or a few dictionaries down: averaged weights
 * ("ema", ...), then "model", "state_dict" and the like, then the top itself. Each may be a state
 * dict or a whole pickled model, which is walked as PyTorch's state_dict does it: parameters, buffers
 * that are saved, children. Every tensor's size, strides and offset are compared with its storage,
 * and every storage with its member, before a byte is read.
 *
 * Files from before PyTorch 1.6, TorchScript archives and big-endian files are refused by a sentence.
 * The file points into the caller's bytes. Any thread.
 */
#ifndef SLUICE_TRAINER_TORCHFILE_H
#define SLUICE_TRAINER_TORCHFILE_H

#include "trainer/tensorview.h"

#include <stdint.h>

typedef struct {
    char part[64];       /* where the tensors were found: "ema", "model", "" for the top */
    int averaged;        /* 1: an EMA */
    char class_name[96]; /* of a whole model: "ultralytics.nn.tasks.DetectionModel"; else "" */
    char table[96];      /* the model table it says it was built from: "yolo11n.yaml"; else "" */
    char version[32], date[40]; /* of the program that wrote it, as it says; else "" */
    int64_t epoch;              /* as it says; -1: not said, or finished */
    int32_t imgsz;              /* that it was trained at, as it says; 0: not said */
    int bare_sppf; /* a whole model without activation in SPPF.cv1 (facts/yolo.md 0.1) */
} torchfile_info_t;

typedef struct torchfile torchfile_t;
/* origin is named in sentences. ERR_CONFIG for what cannot be read or is not allowed. */
int torchfile_open(const void *bytes, uint64_t total, const char *origin, torchfile_t **file);
void torchfile_free(torchfile_t **file);
const torchfile_info_t *torchfile_info(const torchfile_t *file);
int32_t torchfile_count(const torchfile_t *file);
/* In the order of the file; names as they are there ("model.0.conv.weight"). */
const tensorview_t *torchfile_at(const torchfile_t *file, int32_t i);
/* Class names that the file holds, in order of class; 0 of them where it holds none. Control
 * characters are spaces. */
int32_t torchfile_classes(const torchfile_t *file);
const char *torchfile_class(const torchfile_t *file, int32_t i);

#endif
