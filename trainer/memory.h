/* The map of the device's one arena: what a trainer holds, and where (design 8).
 *
 * Everything is known before a byte is reserved: weights and what follows them (gradients, momenta,
 * EMA), buffers, the staging of one batch, and one activation block that serves the training plan
 * and every validation shape. memory_plan computes; memory_reserve compares with what may be used
 * and reserves. Owner: the trainer's one thread. Sizes are bytes.
 */
#ifndef SLUICE_TRAINER_MEMORY_H
#define SLUICE_TRAINER_MEMORY_H

#include "control/catalog.h"
#include "control/options.h"
#include "control/parts.h"
#include "control/plan.h"
#include "kernels/kernels.h"
#include "trainer/collective.h"
#include "trainer/graph.h"

enum { MEMORY_EXTRA = 64 };         /* floats behind the gradients, part of the same all-reduce */
enum { MEMORY_PROCESS = 16 << 20 }; /* bytes of a trainer beside what is planned: heap, libraries */

typedef struct {
    graph_memory_t train, ema; /* ema.grads = K_NONE */
    k_at extra;                /* directly behind train.grads: [0] to stop, [1] to save */
    k_at m, v;                 /* momenta; v = K_NONE with SGD */
    k_at hyper, norm, items;   /* k_hyper_t, float, float[4] */
    k_at u8, gt, gt_count;     /* a batch: uint8 images, k_gt_t [cells][max_gt], int32 [cells] */
    k_at dets, det_count;      /* k_det_t [cells][max_det], int32 [cells] */
    k_at work;                 /* of the loss and the suppression, one after the other */
    k_at activation;
    uint64_t weight_bytes, buffer_bytes, u8_bytes, gt_bytes, work_bytes, activation_bytes;
    uint64_t state_bytes; /* weights, gradients, momenta, EMA, buffers */
    uint64_t total;
    int32_t cells;  /* most images of a batch, training or validation */
    int32_t max_gt; /* rows of ground truth an image has room for */
    int32_t max_det;
} memory_map_t;

typedef struct {
    const plan_t *plan;
    const options_t *options;
    const catalog_t *catalog; /* for the validation shapes; may be NULL when plan->n_val is 0 */
    uint32_t rank;
    uint32_t label_cap; /* of the ring */
    int sgd;            /* no second momentum */
    int infer; /* weights alone: train and ema are one, nothing else of a training's state */
    const parts_t *parts; /* what validation shows; NULL: a training's own */
    uint64_t host;        /* bytes this rank wants beside the arena, in host memory */
    uint64_t reserved;    /* host memory that the run's other processes will still take */
} memory_request_t;

/* Computes the map. The graph is left without a plan of its own: plan again with the map's places.
 */
int memory_plan(graph_t *g, k_dev_t *dev, const memory_request_t *r, memory_map_t *m);
/* Host memory of this rank at its fullest: what is beside the arena, and a CPU's arena too. */
uint64_t memory_host(const memory_map_t *m, const k_dev_t *dev, const memory_request_t *r);
/* Adds the needs of all ranks, compares with what may be used and reserves the arena. ERR_ENV names
 * need, available and the options to lower. Collective: every rank calls it. */
int memory_reserve(const memory_map_t *m, k_dev_t *dev, collective_t *c, const memory_request_t *r,
                   const char *model);

#endif
