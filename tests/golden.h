/* Golden files of tests/golden, written by tests/reference, and a CPU device to run them on. Tests
 * only: anything that fails fails the test.
 */
#ifndef SLUICE_TESTS_GOLDEN_H
#define SLUICE_TESTS_GOLDEN_H

#include "kernels/kernels.h"
#include "trainer/safetensors.h"

/* tests/golden/NAME.safetensors, from the repository root or $SLUICE_TESTS. */
safetensors_t *golden_open(const char *name);
/* A tensor's data, its element count in *count (may be NULL). */
const float *golden_f32(const safetensors_t *f, const char *name, int64_t *count);
const int32_t *golden_i32(const safetensors_t *f, const char *name, int64_t *count);
const double *golden_f64(const safetensors_t *f, const char *name, int64_t *count);
const safetensors_entry_t *golden_entry(const safetensors_t *f, const char *name);

/* max |a - b| / max |b|, at least 1e-30 below; NaN counts as infinite. */
double golden_difference(const float *a, const float *b, int64_t count);

/* A CPU device with an arena that is handed out from the front and starts filled with NaN. */
typedef struct {
    k_dev_t *dev;
    const k_ops_t *ops;
    uint64_t used, bytes;
} golden_dev_t;
void golden_dev_open(golden_dev_t *d, int threads, uint64_t bytes);
void golden_dev_close(golden_dev_t *d);
k_at golden_take(golden_dev_t *d, uint64_t bytes);
k_at golden_put(golden_dev_t *d, const void *host, uint64_t bytes);
void golden_get(golden_dev_t *d, void *host, k_at at, uint64_t bytes);
/* A float32 tensor of the golden entry's shape [n][h][w][c], with its data if fill. */
k_tensor_t golden_tensor(golden_dev_t *d, const safetensors_entry_t *e, int fill);

#endif
