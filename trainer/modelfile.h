/* A file that a model begins from: .safetensors or .pt, told apart by their first bytes.
 *
 * Whatever it is, it comes out as tensors under their usual state-dict names ("model.0.conv.weight"),
 * class names, and the architecture they belong to. A prefix before the model's first row ("module.",
 * "model.model.", none at all) is taken off; tensors outside of it are left out. The architecture is
 * found from names and shapes: the one of the ten models of which all tensors are there (the first
 * convolution may have another number of input channels); where that fails and the file names its
 * model itself, as ours do, that name is used. Whole files are read into memory. Trainer's thread,
 * `sluice import`, tests.
 */
#ifndef SLUICE_TRAINER_MODELFILE_H
#define SLUICE_TRAINER_MODELFILE_H

#include "trainer/tensorview.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char model[64];   /* "yolo11n"; "" when it is not known */
    char why[768];    /* model is "": a sentence that says why not */
    int32_t nc;       /* rows of the class branch; 0 where there is none */
    int32_t channels; /* that the first convolution reads; 0 where there is none */
    int32_t extra;    /* tensors that the model has no place for */
    char first_extra[96];
    char dtype[8];   /* that most elements have */
    char prefix[64]; /* taken off the names, as far as it is not "model." */
    char format[16]; /* "pt", "safetensors" */
    char part[64];   /* .pt: where in the file, "" for the top */
    int averaged;    /* 1: averaged (EMA) weights */
    char class_name[96], table[96], version[32], date[40]; /* .pt: as it says, or "" */
    int64_t epoch;                                         /* as it says, 0-based; -1: not said */
    int32_t imgsz;     /* that it was trained at, as it says; 0: not said */
    int bare_sppf;     /* .pt: a whole model without activation in SPPF.cv1 (facts/yolo.md 0.1) */
    uint64_t elements; /* of all tensors */
} modelfile_info_t;

typedef struct modelfile modelfile_t;
/* ERR_CONFIG for a missing file, with where it was looked for; ERR_CONFIG for what cannot be read as
 * one; a file of an unknown architecture opens. */
int modelfile_open(const char *path, modelfile_t **file);
/* The same from memory, which must stay; origin is named in sentences. */
int modelfile_open_memory(const void *bytes, uint64_t total, const char *origin,
                          modelfile_t **file);
void modelfile_free(modelfile_t **file);
const char *modelfile_origin(const modelfile_t *file);
const modelfile_info_t *modelfile_info(const modelfile_t *file);
/* Tensors in order of name. */
int32_t modelfile_count(const modelfile_t *file);
const tensorview_t *modelfile_at(const modelfile_t *file, int32_t i);
const tensorview_t *modelfile_find(const modelfile_t *file, const char *name);
/* Class names, in order of class; NULL and *n = 0 where the file has none. */
const char *const *modelfile_classes(const modelfile_t *file, int32_t *n);
/* 1 if the name of a model is that of such a file: it ends with .pt or .safetensors. */
int modelfile_is(const char *name);
/* One line: "yolo11n, 80 classes, EMA, F16, 499 tensors". */
void modelfile_describe(const modelfile_t *file, char *text, size_t room);

#endif
