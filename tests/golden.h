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

/* The largest of many differences. */
typedef struct {
    double worst;
    char name[128];
} golden_worst_t;
void golden_note(golden_worst_t *w, double difference, const char *name);
/* One line for the table of trainer/README.md, "golden: WHAT: DIFFERENCE of LIMIT allowed (NAME)";
 * fails the test if the difference is larger, or no number. */
void golden_say(const char *what, const golden_worst_t *w, double limit);

/* `ours` (count floats) against the tensor NAME, or where the file has only that, against
 * summary.NAME (tests/reference/store.py): largest difference over the tensor's largest element
 * (in projections: over its norm), or over `floor` where that is larger. Fails without either. */
double golden_compare(const safetensors_t *f, const char *name, const float *ours, uint64_t count,
                      double floor);
/* Largest element of that tensor. */
double golden_largest(const safetensors_t *f, const char *name);

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
