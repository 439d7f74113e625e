/* An operation on the GPU beside its twin on the CPU, for tests/test_cuda_*.c: two devices, tensors
 * that lie in both, the same values in both, comparisons. Where there is no GPU, or the build has no
 * CUDA, twin_open skips the test. Test programs only.
 *
 * In a half format the GPU's tensors are half and the CPU's hold the same values, rounded to it, in
 * float32; flat places (weights as the optimiser keeps them, sums) are float32 in both. Outputs are
 * poison (NaN) until they are written.
 */
#ifndef SLUICE_TESTS_TWIN_H
#define SLUICE_TESTS_TWIN_H

#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    k_dev_t *gpu, *cpu;
    k_dtype_t dtype;
    uint64_t bytes, used; /* of both arenas; a place has the same offset in both */
    uint64_t random;
} twin_t;

/* A tensor in both: same offset, ld and shape; gpu.dtype is the twin's. */
typedef struct {
    k_tensor_t gpu, cpu;
    int32_t before; /* channels of the pitch before its own */
} twin_tensor_t;

/* Opens both with arenas of `bytes` (counted in float32) full of NaN, or skips. bf16 is skipped on a
 * GPU below 8.0. */
void twin_open(twin_t *t, k_dtype_t dtype, uint64_t bytes);
void twin_close(twin_t *t);
/* Both have returned 0; else the test fails with the sentence. */
void twin_ok(twin_t *t, int gpu, int cpu);
/* The GPU refuses with a sentence that has `part` in it. */
void twin_refused(twin_t *t, int gpu, const char *part);

/* Poisoned. A pixel's channels lie `before` behind and `after` before the neighbours'. */
twin_tensor_t twin_tensor(twin_t *t, int32_t n, int32_t h, int32_t w, int32_t c, int32_t before,
                          int32_t after);
/* A flat place of `bytes` in both; poisoned. */
k_at twin_place(twin_t *t, uint64_t bytes);

double twin_random(twin_t *t, double lo, double hi);
/* Uniform values, rounded to the format of the twin, in both. */
void twin_fill(twin_t *t, const twin_tensor_t *x, double lo, double hi);
/* The same for float32 values; twin_fill_half: convolution weights: in the twin's format on the GPU,
 * as float32 with the same values on the CPU. */
void twin_fill_floats(twin_t *t, k_at at, int64_t count, double lo, double hi);
void twin_fill_half(twin_t *t, k_at at, int64_t count, double lo, double hi);
/* The caller's bytes to both. */
void twin_put(twin_t *t, k_at at, const void *data, uint64_t bytes);

/* Dense values as float, allocated; the caller frees. */
float *twin_get_gpu(twin_t *t, const twin_tensor_t *x);
float *twin_get_cpu(twin_t *t, const twin_tensor_t *x);
void *twin_bytes_gpu(twin_t *t, k_at at, uint64_t bytes);
void *twin_bytes_cpu(twin_t *t, k_at at, uint64_t bytes);

/* float32: max |gpu - cpu| <= 1e-4 max |cpu|. Half formats: the cosine of the two is >= 0.99 (0.999
 * for what no sum of many values made, which callers say with `limit`). Prints the figure when
 * SLUICE_TEST_VERBOSE is set; fails naming `what`. limit 0: those defaults; else in place of 1e-4
 * (float32), or with a value above 0.5 in place of 0.99 (half). */
void twin_same(twin_t *t, const char *what, const twin_tensor_t *x, double limit);
void twin_same_floats(twin_t *t, const char *what, k_at at, int64_t count, double limit);
void twin_same_doubles(twin_t *t, const char *what, k_at at, int64_t count, double limit);
void twin_same_bytes(twin_t *t, const char *what, k_at at, uint64_t bytes);
/* What lies before, between and behind the pixels of a slice is still poison, on the GPU. */
void twin_gaps_untouched(twin_t *t, const twin_tensor_t *x);

#endif
