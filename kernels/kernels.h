/* Device operations: one header, two implementations (design 8).
 *
 * Everything the trainer computes goes through the operation table k_ops_t of a device. kernels/cpu
 * is plain C with BLAS for matrix products: the reference, and what runs without a GPU.
 * kernels/cuda holds the same operations. The trainer never sees a device pointer: data is named by
 * its byte offset in the device's one arena, whose places the planner (planner.h) gives out before
 * the first step. No operation allocates, and none reads back to the host except k_ops_t.download
 * and event waits.
 *
 * Number formats: what changes hands between operations of the model (images, activations, their
 * gradients, the convolutions' weights) is in the format that the tensor names: K_F32, or K_BF16 or
 * K_F16 on a GPU. All tensors of a call have the same. Everything else is float32 (weights as the
 * optimiser keeps them, their gradients, momenta, biases, normalisation, loss items), sums of
 * normalisation are doubles, and arithmetic inside an operation is float32 or better.
 *
 * Layout: images are NHWC; the element (n, y, x, c) of a tensor is element ((n*h + y)*w + x)*ld + c
 * behind `at`. ld >= c lets a tensor be a channel slice of a wider one, which is how concat and
 * split cost nothing. Convolution weights are [out][kh][kw][in] (OHWI), depthwise weights
 * [kh][kw][c].
 *
 * Accumulation: every argument called `acc` says whether the result overwrites (0) or adds to (1)
 * the destination. Weight gradients (dw, dbias, dgamma, dbeta) always add: micro-batches sum
 * (facts/yolo.md 3.2); the optimiser zeroes them.
 *
 * Threads: a device belongs to one thread of the trainer. Operations are enqueued in order on the
 * main stream; on the CPU they are complete when they return. Results do not depend on timing: for
 * a given thread count they are the same to the bit. Errors: 0 or negative; k_ops_t.error gives the
 * sentence.
 */
#ifndef SLUICE_KERNELS_KERNELS_H
#define SLUICE_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t k_at; /* byte offset in the device arena */
#define K_NONE ((k_at)-1)
enum { K_ALIGN = 256 }; /* bytes; every place in the arena is a multiple */

typedef enum { K_F32 = 0, K_BF16, K_F16 } k_dtype_t;
typedef enum { K_STREAM_MAIN = 0, K_STREAM_COPY, K_STREAM_COMM, K_STREAMS } k_stream_t;
/* Events and recorded steps are numbered by whoever uses them. */
enum { K_EVENTS = 96, K_GRAPHS = 16, K_COMM_ID = 128 };
typedef enum { K_ACT_NONE = 0, K_ACT_SILU } k_act_t;

typedef struct {
    k_at at;
    int32_t n, h, w, c;
    int32_t ld;      /* elements from one pixel to the next, >= c */
    k_dtype_t dtype; /* K_F32 on the CPU */
} k_tensor_t;

typedef struct k_ops k_ops_t;
/* A device; the implementation's own struct begins with this one. */
typedef struct {
    const k_ops_t *ops;
} k_dev_t;

typedef struct {
    int ordinal; /* CUDA ordinal; ignored on the CPU */
    int threads; /* CPU: worker threads, the caller's included */
    int deterministic;
    k_dtype_t compute; /* format of activations; open refuses what the device cannot do */
} k_open_t;

/* Square kernel, padding k / 2 (facts/yolo.md 1.2). */
typedef struct {
    int32_t k, s;
    int32_t c1, c2;
} k_conv_t;

/* Batch normalisation: eps 1e-3, momentum 0.03 (facts/yolo.md 1.2). All places hold c floats,
 * except stats and bwd_stats: 2 * c doubles that add over ranks (sync_bn) before bn_finish /
 * bn_bwd_apply. */
typedef struct {
    k_at gamma, beta;
    k_at running_mean, running_var;
    k_at mean, invstd; /* of the batch, kept for backward */
    k_at stats;        /* sum x, sum x*x */
    k_at bwd_stats;    /* sum dz, sum dz * xhat */
    k_at dgamma, dbeta;
    float eps, momentum;
} k_bn_t;

/* What changes from step to step, in device memory so that a captured step can be replayed. */
typedef struct {
    float lr[3],
        weight_decay[3]; /* by parameter group: weights, norms, biases (facts/yolo.md 4.1) */
    float momentum;      /* SGD; AdamW's beta1 */
    float beta2, eps;
    float bias1, bias2; /* AdamW: 1 - beta^t */
    float max_norm;     /* clip of the global L2 norm: 10 (facts/yolo.md 4.5) */
    float ema_decay;    /* d(u) of facts/yolo.md 4.6 */
    float grad_scale;   /* multiplies gradients before clip: 1 without loss scaling */
    float first_step;   /* SGD: 1 on the first update, buf = g */
    float step;         /* number of this update, from 1: AdamW's t before any were left out */
    float pad[2];
} k_hyper_t;

/* What `norm` of the optimiser's operations names: the norm, and on a GPU the loss scale of float16
 * (K_F16), kept where a recorded step finds it. The gradients of a step are `scale` times too large;
 * grad_norm and the updates divide by it. When the norm is not finite and scale is not 1, the update
 * is left out (weights, momenta; the gradients are zeroed all the same). first_step and AdamW's t
 * then count from the first that was not. */
typedef struct {
    float norm;
    float scale;   /* 1: no scaling */
    float good;    /* updates since the scale last changed */
    float skipped; /* updates left out since the start */
} k_scaling_t;

enum { K_LEVELS = 3, K_REG_MAX = 16 };

/* A ground-truth box for the loss: network pixels, xyxy. */
typedef struct {
    float cls, x1, y1, x2, y2;
} k_gt_t;

/* Loss with its assigner (facts/yolo.md 3). Head outputs are raw logits, [n][h][w][64] and
 * [n][h][w][nc]. */
typedef struct {
    k_tensor_t box[K_LEVELS], cls[K_LEVELS];   /* predictions */
    k_tensor_t dbox[K_LEVELS], dcls[K_LEVELS]; /* gradients, overwritten; at = K_NONE: loss only */
    int32_t stride[K_LEVELS];
    int32_t nc, max_gt; /* rows of gt an image has room for */
    k_at gt;            /* k_gt_t [n][max_gt] */
    k_at gt_count;      /* int32 [n] */
    float gain_box, gain_cls, gain_dfl;
    float scale;  /* gradients are of (sum of weighted items) * scale: scale = batch of this rank */
    k_at scaling; /* k_scaling_t whose scale multiplies the gradients too; K_NONE: none. GPU only */
    k_at sum;     /* detect_assign, detect_terms: double, sum of target scores before max(., 1) */
    k_at items; /* out: float[4]: box, cls, dfl (weighted, facts/yolo.md 3.2), sum of target scores
                    S */
    k_at work;
    uint64_t work_bytes; /* >= detect_loss_work of the same shapes */
} k_detect_loss_t;

/* One detection, network pixels. */
typedef struct {
    float x1, y1, x2, y2, score, cls;
} k_det_t;

/* Decode and non-maximum suppression (facts/yolo.md 6.3). */
typedef struct {
    k_tensor_t box[K_LEVELS], cls[K_LEVELS];
    int32_t stride[K_LEVELS];
    int32_t nc, max_nms, max_det; /* 30000, 300 */
    float conf, iou;
    int32_t agnostic;
    k_at dets;   /* out: k_det_t [n][max_det], best first */
    k_at counts; /* out: int32 [n] */
    k_at work;
    uint64_t work_bytes;
} k_nms_t;

struct k_ops {
    const char *name; /* "cpu", "cuda" */
    int async;        /* operations are only enqueued when they return */

    /* Life. open does not take arena memory; reserve does, once, poisoned in debug builds. why: the
     * reason of a failure; after success empty, or a sentence worth logging (a slow BLAS kernel).
     */
    int (*open)(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes);
    void (*close)(k_dev_t **dev);
    int (*reserve)(k_dev_t *dev, uint64_t bytes);
    int (*memory)(k_dev_t *dev, uint64_t *free_bytes, uint64_t *total_bytes);
    const char *(*error)(k_dev_t *dev);

    /* Copies and order. host memory of upload must stay until the stream's next event has fired. */
    int (*upload)(k_dev_t *dev, k_stream_t s, k_at dst, const void *host, uint64_t bytes);
    int (*download)(k_dev_t *dev, k_stream_t s, void *host, k_at src, uint64_t bytes);
    int (*move)(k_dev_t *dev, k_at dst, k_at src, uint64_t bytes); /* within the arena */
    int (*zero)(k_dev_t *dev, k_at dst, uint64_t bytes);
    int (*wait)(k_dev_t *dev, k_stream_t s,
                int timeout_ms); /* 0 drained, 1 not yet, negative error */
    /* Event e: recorded behind what stream s has been given so far; `after` makes a stream wait for
     * it, `event` the host: 0 it has fired (or was never recorded), 1 not yet, negative error. */
    int (*record)(k_dev_t *dev, int32_t e, k_stream_t s);
    int (*after)(k_dev_t *dev, k_stream_t s, int32_t e);
    int (*event)(k_dev_t *dev, int32_t e, int timeout_ms);
    /* Milliseconds between two events that have fired, or negative. */
    float (*elapsed)(k_dev_t *dev, int32_t from, int32_t to);

    /* Host memory. pin registers memory that exists (a ring), so that copies run by DMA and `tick`
     * may write it; host_alloc gives memory of that kind. unpin and host_free before close. */
    int (*pin)(k_dev_t *dev, void *host, uint64_t bytes);
    int (*unpin)(k_dev_t *dev, void *host);
    void *(*host_alloc)(k_dev_t *dev, uint64_t bytes);
    void (*host_free)(k_dev_t *dev, void *host);
    /* Adds 1 to an aligned 64-bit word of pinned memory in the order of stream s, visible to all
     * processes: how others see what the device has begun and ended (design 5). */
    int (*tick)(k_dev_t *dev, k_stream_t s, uint64_t *word);

    /* A recorded step. What is enqueued between capture and captured, on the main stream and on
     * streams that wait for it and are waited for, is kept in slot and not run; replay enqueues it
     * on the main stream. A slot that is used already is recorded anew. Events recorded in between
     * are the step's own, and behind it as if they had never been. forget destroys one, or all
     * with slot = K_GRAPHS: before a communicator that they use is closed. async devices only. */
    int (*capture)(k_dev_t *dev, int32_t slot);
    int (*captured)(k_dev_t *dev);
    int (*replay)(k_dev_t *dev, int32_t slot);
    int (*forget)(k_dev_t *dev, int32_t slot);

    /* Algorithms. Between measure(1) and measure(0) a convolution of a shape that has no choice yet
     * times its candidates on the places it is given; results of that pass mean nothing. A shape
     * without a choice outside takes the first that the library proposes; so do shapes for which
     * no time was left, whose number measure(0) returns. choices writes lines of
     * text ("shape algorithm ..") and returns their length, also when `bytes` is too few; choose
     * takes such a text: lines that do not fit this device are left out. */
    int (*measure)(k_dev_t *dev, int on);
    int64_t (*choices)(k_dev_t *dev, char *text, uint64_t bytes);
    int (*choose)(k_dev_t *dev, const char *text);

    /* Sums over the devices of several processes. comm_id on rank 0, its bytes to all; comm_open
     * begins, comm_poll says 0 ready, 1 in progress, negative error. comm_sum: `count` floats (or
     * doubles) in place, enqueued on s; between comm_begin and comm_end several become one. It (or
     * comm_end) may return before the sum is in the stream: nothing more is given to s until
     * comm_poll says 0.
     * comm_close may hang while a device hangs: helper thread with a deadline, recorded steps
     * forgotten first. */
    int (*comm_id)(k_dev_t *dev, uint8_t id[K_COMM_ID]);
    int (*comm_open)(k_dev_t *dev, const uint8_t id[K_COMM_ID], int rank, int ranks);
    int (*comm_poll)(k_dev_t *dev);
    int (*comm_begin)(k_dev_t *dev);
    int (*comm_end)(k_dev_t *dev);
    int (*comm_sum)(k_dev_t *dev, k_stream_t s, k_at at, uint64_t count, int doubles);
    int (*comm_close)(k_dev_t *dev, int abort);

    /* uint8 RGB [n][h][w][3] at `u8` -> y = value / 255 (facts/yolo.md 5.9). */
    int (*image)(k_dev_t *dev, k_at u8, const k_tensor_t *y);

    /* Convolution, groups = 1. bias, dbias: K_NONE if none. work: conv_work bytes. */
    uint64_t (*conv_work)(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x);
    int (*conv)(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, k_at bias,
                const k_tensor_t *y, k_at work);
    int (*conv_dx)(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, k_at w,
                   const k_tensor_t *dx, int acc, k_at work);
    int (*conv_dw)(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                   k_at dw, k_at dbias, k_at work);

    /* Depthwise 3x3, stride 1, padding 1. */
    int (*dwconv)(k_dev_t *dev, const k_tensor_t *x, k_at w, const k_tensor_t *y);
    int (*dwconv_dx)(k_dev_t *dev, const k_tensor_t *dy, k_at w, const k_tensor_t *dx, int acc);
    int (*dwconv_dw)(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *dy, k_at dw);

    /* Batch normalisation, activation and residual in passes over x (the raw convolution output):
     * training: bn_stats, bn_finish (count = n*h*w over all ranks that share statistics), bn_apply;
     * inference: bn_apply with frozen = 1, from the running statistics.
     * y = act(gamma * (x - mean) * invstd + beta) + residual (residual may be NULL; y may alias x
     * only in inference). Backward from x, mean, invstd: z = the normalised and scaled value, dz =
     * dy * act'(z); dx = gamma * invstd * (dz - mean(dz) - xhat * mean(dz * xhat)). dx may alias
     * dy. bn_bwd_stats adds this rank's own sums to dgamma and dbeta, so that an all-reduce of the
     * gradients counts each rank once. */
    int (*bn_stats)(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x);
    int (*bn_finish)(k_dev_t *dev, const k_bn_t *p, int32_t c, uint64_t count);
    int (*bn_apply)(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *residual,
                    const k_tensor_t *y, k_act_t act, int frozen);
    int (*bn_bwd_stats)(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                        k_act_t act);
    int (*bn_bwd_apply)(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                        const k_tensor_t *dx, k_act_t act, uint64_t count);

    /* Max pooling k x k, stride 1, padding k / 2 with -inf; index: uint8 [n][h][w][c], place in the
     * window of the first maximum in row order. */
    int (*maxpool)(k_dev_t *dev, int32_t k, const k_tensor_t *x, const k_tensor_t *y, k_at index);
    int (*maxpool_dx)(k_dev_t *dev, int32_t k, const k_tensor_t *dy, k_at index,
                      const k_tensor_t *dx, int acc);

    /* Nearest, x2 both ways. */
    int (*upsample)(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y);
    int (*upsample_dx)(k_dev_t *dev, const k_tensor_t *dy, const k_tensor_t *dx, int acc);

    /* y = x (acc 0) or y += x (acc 1). */
    int (*copy)(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y, int acc);

    /* Attention over the n = h*w positions (facts/yolo.md 1.2). qkv channels: per head q (kd), k
     * (kd), v (hd). y and v: heads * hd channels; v is a packed copy of the values for the
     * positional convolution. lse: float [n][heads][h*w], log-sum-exp of the scaled scores' rows,
     * kept for backward. Backward: dv is the gradient that came through v's copy; dqkv is
     * overwritten. */
    uint64_t (*attention_work)(k_dev_t *dev, const k_tensor_t *qkv, int32_t heads, int32_t kd,
                               int32_t hd);
    int (*attention)(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                     const k_tensor_t *y, const k_tensor_t *v, k_at lse, k_at work);
    int (*attention_dx)(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                        const k_tensor_t *y, k_at lse, const k_tensor_t *dy, const k_tensor_t *dv,
                        const k_tensor_t *dqkv, k_at work);

    /* Loss, suppression. */
    uint64_t (*detect_loss_work)(k_dev_t *dev, const k_detect_loss_t *p);
    int (*detect_loss)(k_dev_t *dev, const k_detect_loss_t *p);
    /* The same in two halves, for ranks that share their sum of target scores: what p->sum holds
     * when detect_terms begins is what it divides by. */
    int (*detect_assign)(k_dev_t *dev, const k_detect_loss_t *p);
    int (*detect_terms)(k_dev_t *dev, const k_detect_loss_t *p);
    uint64_t (*nms_work)(k_dev_t *dev, const k_nms_t *p);
    int (*nms)(k_dev_t *dev, const k_nms_t *p);

    /* Optimiser over a flat run of `count` floats that belong to one parameter group.
     * grad_norm: norm (k_scaling_t's first float; a CPU uses no more of it) = L2 norm of
     * grad_scale * g / scale, over all runs, in double.
     * sgd, adamw (facts/yolo.md 4.1): clip factor min(1, max_norm / (norm + 1e-6)), update, then g
     * = 0. ema: dst = d * dst + (1 - d) * src (facts/yolo.md 4.6). hyper: k_hyper_t in the arena.
     */
    int (*grad_norm)(k_dev_t *dev, k_at g, uint64_t count, k_at hyper, k_at norm);
    int (*sgd)(k_dev_t *dev, k_at w, k_at g, k_at m, uint64_t count, int32_t group, k_at hyper,
               k_at norm);
    int (*adamw)(k_dev_t *dev, k_at w, k_at g, k_at m, k_at v, uint64_t count, int32_t group,
                 k_at hyper, k_at norm);
    int (*ema)(k_dev_t *dev, k_at src, k_at dst, uint64_t count, k_at hyper);
    /* After the updates of a step: a norm that is not finite halves the scale, 2000 good updates in
     * a row double it (facts/yolo.md 4.5). Nothing where scale is 1. */
    int (*scale_update)(k_dev_t *dev, k_at norm);
    /* dst[i] in dtype = src[i] in float32: the convolutions' copy of the weights. */
    int (*cast)(k_dev_t *dev, k_at src, k_at dst, k_dtype_t dtype, uint64_t count);
};

const k_ops_t *k_cpu_ops(void);
/* Weak: the address is NULL in a program that kernels/cuda is not linked into, so that the same objects
 * make a trainer with CUDA's libraries and one without. Who calls it has looked. */
const k_ops_t *k_cuda_ops(void) __attribute__((weak));

#endif
