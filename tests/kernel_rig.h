/* What the kernel tests share: a device with a poisoned arena, tensors in it (also as channel
 * slices), dense double-precision twins on the host, and comparisons. Test programs only. */
#ifndef SLUICE_TESTS_KERNEL_RIG_H
#define SLUICE_TESTS_KERNEL_RIG_H

#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    k_dev_t *dev;
    const k_ops_t *ops;
    uint64_t bytes, used;
    uint64_t random;
} rig_t;

/* Opens the CPU device with an arena of `bytes`, filled with NaN. Fails the test if it cannot. */
void rig_open(rig_t *rig, int threads, uint64_t bytes);
void rig_close(rig_t *rig);
/* Fails the test with the device's sentence unless rc is 0. */
void rig_ok(rig_t *rig, int rc);
/* Fails the test unless rc < 0 and the device's sentence contains `part`. */
void rig_refused(rig_t *rig, int rc, const char *part);

/* A place in the arena; poisoned. */
k_at rig_bytes(rig_t *rig, uint64_t bytes);
/* A tensor whose pixels are `before` + c + `after` floats apart, the channels between. */
k_tensor_t rig_tensor(rig_t *rig, int32_t n, int32_t h, int32_t w, int32_t c, int32_t before,
                      int32_t after);

/* Uniform in [lo, hi), the same sequence in every run. */
double rig_random(rig_t *rig, double lo, double hi);
/* A dense array of random values that are exact in float. The caller frees. */
double *rig_values(rig_t *rig, int64_t count, double lo, double hi);
size_t rig_count(const k_tensor_t *t);
/* Dense doubles to and from the device, as float; get allocates. */
void rig_put(rig_t *rig, const k_tensor_t *t, const double *values);
double *rig_get(rig_t *rig, const k_tensor_t *t);
void rig_put_flat(rig_t *rig, k_at at, const double *values, int64_t count);
double *rig_get_flat(rig_t *rig, k_at at, int64_t count);
/* Fails the test if a float of the gaps between the tensor's pixels is no longer poison. */
void rig_gaps_untouched(rig_t *rig, const k_tensor_t *t);

/* max |a - b| / max |want|; infinite where a value is not finite. */
double rig_difference(const double *got, const double *want, int64_t count);
/* Fails the test with both figures when rig_difference exceeds `limit`. */
void rig_close_to(const char *what, const double *got, const double *want, int64_t count,
                  double limit);
/* Central differences of loss(ctx) for up to `samples` of the elements of x against grad; x is
 * restored. */
void rig_differences(rig_t *rig, const char *what, double (*loss)(void *ctx), void *ctx, double *x,
                     const double *grad, int64_t count, int samples, double step);

#endif
