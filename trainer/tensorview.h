/* A tensor as a file holds it: dtype, shape, strides, and a pointer into the file's bytes. Pure; any
 * thread.
 */
#ifndef SLUICE_TRAINER_TENSORVIEW_H
#define SLUICE_TRAINER_TENSORVIEW_H

#include <stdint.h>

enum { TENSORVIEW_DIMS = 8 };

typedef struct {
    const char *name;
    char dtype[8]; /* as in safetensors: "F32", "F16", "BF16", "F64", "I64", ... */
    int32_t ndim;
    int64_t shape[TENSORVIEW_DIMS], stride[TENSORVIEW_DIMS]; /* strides in elements, >= 0 */
    const void *data; /* element 0 of every dimension; need not be aligned */
    uint64_t count;   /* elements */
} tensorview_t;

/* 1 for the dtypes that tensorview_floats reads: F32, F16, BF16, F64. */
int tensorview_is_float(const tensorview_t *v);
/* All elements in row-major order of the shape, as floats: count of them. F64 is rounded, the others
 * are exact. */
void tensorview_floats(const tensorview_t *v, float *out);
/* The one element of an I64 scalar; `other` for anything else. */
int64_t tensorview_integer(const tensorview_t *v, int64_t other);

#endif
