/* The map of the device's one arena: what a trainer holds, and where (design 8).
 *
 * Everything is known before a byte is reserved: weights and what follows them (gradients, momenta,
 * EMA, the convolutions' copy in the format of computation), buffers, the staging of a batch (of two
 * on a GPU, which copies one while it computes the other), and one activation block that serves the
 * training plan and every validation shape. memory_plan computes; memory_reserve compares with what may be used
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
/* Host bytes that a GPU's driver and libraries take of a process. */
enum { MEMORY_LIBRARIES = 400 << 20 };
/* Bytes of a GPU beside the arena: operations' scratch (32 MiB), code of kernels and of the library's
 * engines as they are first used, recorded steps. */
enum { MEMORY_DEVICE = 384 << 20 };
enum { MEMORY_BATCHES = 2 };

/* A batch on the device: uint8 images, k_gt_t [cells][max_gt], int32 [cells]. */
typedef struct {
    k_at u8, gt, gt_count;
} memory_batch_t;

typedef struct {
    k_dtype_t format;          /* of activations and of the weights that convolutions read */
    graph_memory_t train, ema; /* ema.grads = K_NONE; both have one `compute` between them */
    k_at extra;                /* directly behind train.grads: [0] to stop, [1] to save */
    k_at m, v;                 /* momenta; v = K_NONE with SGD */
    k_at hyper, norm, items;   /* k_hyper_t, k_scaling_t, float[4] */
    k_at sum;                  /* double: target scores, of all ranks with sync_bn */
    memory_batch_t batch[MEMORY_BATCHES]; /* both the same on a CPU */
    k_at dets, det_count;                 /* k_det_t [cells][max_det], int32 [cells] */
    k_at work;                            /* of the loss and the suppression, one after the other */
    k_at activation;
    uint64_t weight_bytes, buffer_bytes, u8_bytes, gt_bytes, work_bytes, activation_bytes;
    uint64_t batch_bytes; /* of all staging */
    uint64_t state_bytes; /* weights, gradients, momenta, EMA, buffers, the convolutions' copy */
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
    k_dtype_t format;   /* of computation; K_F32 on a CPU */
    int sgd;            /* no second momentum */
    int infer; /* weights alone: train and ema are one, nothing else of a training's state */
    const parts_t *parts; /* what validation shows; NULL: a training's own */
    uint64_t host;        /* bytes this rank wants beside the arena, in host memory */
    uint64_t reserved;    /* host memory that the run's other processes will still take */
    int device;           /* CUDA ordinal; -1: none */
    const char *holders;  /* who held its memory before this rank (devices_holders); NULL: nobody */
} memory_request_t;

/* A shape of this rank's validation batches, and how many have it. */
typedef struct {
    int32_t n, h, w;
    uint32_t batches;
} memory_shape_t;

/* Each once, in order of the batches; *shapes is the caller's to free. */
int memory_shapes(const memory_request_t *r, memory_shape_t **shapes, uint32_t *count);
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
