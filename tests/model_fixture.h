/* A model on a device, for tests: built, planned, with initial weights, in an arena that was
 * filled with NaN first, so that whatever is read before it was written shows. Failures end the
 * test. */
#ifndef SLUICE_TESTS_MODEL_FIXTURE_H
#define SLUICE_TESTS_MODEL_FIXTURE_H

#include "trainer/graph.h"

typedef struct {
    graph_t *g;
    k_dev_t *dev;
    graph_memory_t memory;
    k_at base;     /* of the activation block */
    uint64_t room; /* bytes of it, over all plans until model_ready */
    k_at extra;    /* a block of `extra_bytes` behind it, for the test's own use */
    uint64_t extra_bytes;
} model_t;

/* The device of the models that are opened from now on, in float32; NULL, as at first: a CPU. */
void model_on(const k_ops_t *ops);
/* "GPU, " or "", for what a test says. */
const char *model_where(void);
void model_open(model_t *m, const char *name, int32_t nc, int threads);
/* Takes over a graph that the test has built. */
void model_adopt(model_t *m, graph_t *g, int threads);
void model_plan(model_t *m, graph_mode_t mode, int32_t n, int32_t h, int32_t w, graph_plan_t *plan);
/* Reserves and poisons the arena, then uploads weights and buffers and zero gradients: those of
 * weights_init(seed), or a test's own. */
void model_ready(model_t *m, uint64_t seed);
void model_ready_with(model_t *m, const float *weights, const float *buffers);
/* NaN into the activation block (plans are free to reuse it). */
void model_poison(model_t *m);
void model_close(model_t *m);

/* Fills the plan's input with pixels / 255 drawn from stream `number`. */
void model_input(model_t *m, const graph_plan_t *p, uint32_t number);
/* Values drawn from stream `number`, standard normal, to every element of t (dense); also to host
 * if not NULL. */
void model_fill(model_t *m, const k_tensor_t *t, uint32_t number, float *host);
uint64_t model_count(const k_tensor_t *t);
/* A dense tensor's elements; malloc'ed. */
float *model_read(model_t *m, const k_tensor_t *t);
float *model_region(model_t *m, k_at at, uint64_t floats);
void model_write(model_t *m, k_at at, const void *data, uint64_t bytes);
void model_check(int rc, const char *what);

#endif
