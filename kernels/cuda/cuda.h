/* The CUDA device behind k_ops_t, for the files of kernels/cuda only. C and CUDA C.
 *
 * A device owns one allocation (arena, then scratch), a stream for each k_stream_t, events, recorded
 * steps, and the libraries' handles. Every operation is a function here named cuda_<operation>;
 * ops.c puts them into the table. It belongs to one thread of the trainer.
 *
 * How an operation is written: check shapes and places (cuda_check_*, cuda_fail), choose a kernel by
 * format and by whether 16-byte accesses are possible (cuda_vector), launch on the main stream, and
 * return cuda_launched(dev, "name"). Nothing in an operation allocates, copies to the host, waits,
 * or looks at device memory: it may be recorded (k_ops_t.capture) and replayed with other contents.
 * So counts that live in device memory (gt_count) are read by the kernels, and a kernel that finds
 * impossible contents (a class beyond nc) ignores the entry; the host checks what it uploads.
 *
 * Results are the same to the bit in every run: no floating-point atomics; sums are over parts fixed
 * by shapes and the device's number of multiprocessors, in scratch, added in order.
 */
#ifndef SLUICE_KERNELS_CUDA_CUDA_H
#define SLUICE_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Scratch is one operation's partial sums; the next on the main stream uses it again. */
enum { CUDA_SCRATCH_BYTES = 32 << 20, CUDA_ERROR_BYTES = 1024 };

typedef struct cuda_conv cuda_conv_t; /* conv.c: library handle, plans, choices */
typedef struct cuda_comm cuda_comm_t; /* comm.c: communicator */

typedef struct {
    k_dev_t base; /* first: a k_dev_t * of this device is a cuda_dev_t * */
    int ordinal, deterministic;
    k_dtype_t compute;
    int sms;        /* multiprocessors */
    int capability; /* 90 for 9.0 */
    char *arena;    /* device address; NULL until reserve */
    uint64_t arena_bytes;
    char *scratch; /* device address: CUDA_SCRATCH_BYTES behind the arena */
    cudaStream_t stream[K_STREAMS];
    cudaEvent_t event[K_EVENTS];     /* NULL until first recorded */
    char event_in_capture[K_EVENTS]; /* 1: recorded in the step that is being recorded */
    cudaGraphExec_t graph[K_GRAPHS];
    int capturing; /* slot + 1 while recording; 0 otherwise */
    int measuring;
    cuda_conv_t *conv;
    cuda_comm_t *comm;            /* NULL until comm_open */
    char error[CUDA_ERROR_BYTES]; /* sentence of the last failure */
} cuda_dev_t;

static inline cuda_dev_t *cuda_dev(k_dev_t *dev)
{
    return (cuda_dev_t *)dev;
}

/* Device address of a place. */
static inline void *cuda_ptr(const cuda_dev_t *dev, k_at at)
{
    return dev->arena + at;
}

static inline float *cuda_f32(const cuda_dev_t *dev, k_at at)
{
    return (float *)(void *)(dev->arena + at);
}

static inline cudaStream_t cuda_main(const cuda_dev_t *dev)
{
    return dev->stream[K_STREAM_MAIN];
}

static inline int64_t cuda_pixels(const k_tensor_t *t)
{
    return (int64_t)t->n * t->h * t->w;
}

/* The next multiple of K_ALIGN. */
static inline uint64_t cuda_align(uint64_t bytes)
{
    return (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
}

static inline uint64_t cuda_size(k_dtype_t dtype)
{
    return dtype == K_F32 ? 4 : 2;
}

/* device.c. Keep the sentence for k_ops_t.error; return -1. cuda_error_of adds the runtime's own. */
int cuda_fail(cuda_dev_t *dev, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cuda_error_of(cuda_dev_t *dev, cudaError_t e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 0 if the launches since the last call were accepted. */
int cuda_launched(cuda_dev_t *dev, const char *op);
/* 0 if [at, at + bytes) is in the arena and aligned to `align`; else fails naming op and what. */
int cuda_check_place(cuda_dev_t *dev, const char *op, const char *what, k_at at, uint64_t bytes,
                     uint32_t align);
/* The same for a tensor: a format that this device has, positive sizes, ld >= c. */
int cuda_check_tensor(cuda_dev_t *dev, const char *op, const char *what, const k_tensor_t *t);
/* 0 if both have the same n, h, w, c and format. */
int cuda_check_same(cuda_dev_t *dev, const char *op, const k_tensor_t *a, const k_tensor_t *b);
int cuda_check_stream(cuda_dev_t *dev, const char *op, k_stream_t s);
/* 1 if every pixel of the tensor can be read in pieces of 16 bytes: place, ld and c allow it. */
int cuda_vector(const k_tensor_t *t);

int cuda_open(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes);
void cuda_close(k_dev_t **dev);
int cuda_reserve(k_dev_t *dev, uint64_t bytes);
int cuda_memory(k_dev_t *dev, uint64_t *free_bytes, uint64_t *total_bytes);
const char *cuda_error(k_dev_t *dev);
int cuda_upload(k_dev_t *dev, k_stream_t s, k_at dst, const void *host, uint64_t bytes);
int cuda_download(k_dev_t *dev, k_stream_t s, void *host, k_at src, uint64_t bytes);
int cuda_move(k_dev_t *dev, k_at dst, k_at src, uint64_t bytes);
int cuda_zero(k_dev_t *dev, k_at dst, uint64_t bytes);

/* order.c: waits, events, host memory, recorded steps. tick.cu: the counter. */
int cuda_wait(k_dev_t *dev, k_stream_t s, int timeout_ms);
int cuda_record(k_dev_t *dev, int32_t e, k_stream_t s);
int cuda_after(k_dev_t *dev, k_stream_t s, int32_t e);
int cuda_event(k_dev_t *dev, int32_t e, int timeout_ms);
float cuda_elapsed(k_dev_t *dev, int32_t from, int32_t to);
int cuda_pin(k_dev_t *dev, void *host, uint64_t bytes);
int cuda_unpin(k_dev_t *dev, void *host);
void *cuda_host_alloc(k_dev_t *dev, uint64_t bytes);
void cuda_host_free(k_dev_t *dev, void *host);
int cuda_tick(k_dev_t *dev, k_stream_t s, uint64_t *word);
cudaError_t cuda_kernels_present(void); /* an error where this build has no code for the GPU */
int cuda_capture(k_dev_t *dev, int32_t slot);
int cuda_captured(k_dev_t *dev);
int cuda_replay(k_dev_t *dev, int32_t slot);
int cuda_forget(k_dev_t *dev, int32_t slot);

/* comm.c */
int cuda_comm_id(k_dev_t *dev, uint8_t id[K_COMM_ID]);
int cuda_comm_open(k_dev_t *dev, const uint8_t id[K_COMM_ID], int rank, int ranks);
int cuda_comm_poll(k_dev_t *dev);
int cuda_comm_begin(k_dev_t *dev);
int cuda_comm_end(k_dev_t *dev);
int cuda_comm_sum(k_dev_t *dev, k_stream_t s, k_at at, uint64_t count, int doubles);
int cuda_comm_close(k_dev_t *dev, int abort);

/* conv.c: the operations; stem.cu: three input channels; conv_new and conv_free with the device. */
cuda_conv_t *cuda_conv_new(cuda_dev_t *dev); /* NULL with the sentence set */
void cuda_conv_free(cuda_dev_t *dev);
int cuda_measure(k_dev_t *dev, int on);
int64_t cuda_choices(k_dev_t *dev, char *text, uint64_t bytes);
int cuda_choose(k_dev_t *dev, const char *text);
uint64_t cuda_conv_work(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x);
int cuda_conv(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, k_at bias,
              const k_tensor_t *y, k_at work);
int cuda_conv_dx(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, k_at w,
                 const k_tensor_t *dx, int acc, k_at work);
int cuda_conv_dw(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                 k_at dw, k_at dbias, k_at work);
/* stem.cu: what conv.c hands over when x has at most 4 channels (k 3, stride 2 in every model).
 * stem_dw adds to dw through scratch. */
int cuda_stem(cuda_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, const k_tensor_t *y);
int cuda_stem_dw(cuda_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                 k_at dw);
/* bias.cu: y += bias by channel; dbias += sums of dy by channel; dst (float32) += src (format). */
int cuda_bias(cuda_dev_t *dev, const k_tensor_t *y, k_at bias);
int cuda_bias_grad(cuda_dev_t *dev, const k_tensor_t *dy, k_at dbias);
int cuda_add_weights(cuda_dev_t *dev, const void *src, k_dtype_t dtype, k_at dst, uint64_t count);

int cuda_image(k_dev_t *dev, k_at u8, const k_tensor_t *y);
int cuda_dwconv(k_dev_t *dev, const k_tensor_t *x, k_at w, const k_tensor_t *y);
int cuda_dwconv_dx(k_dev_t *dev, const k_tensor_t *dy, k_at w, const k_tensor_t *dx, int acc);
int cuda_dwconv_dw(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *dy, k_at dw);

int cuda_bn_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x);
int cuda_bn_finish(k_dev_t *dev, const k_bn_t *p, int32_t c, uint64_t count);
int cuda_bn_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *residual,
                  const k_tensor_t *y, k_act_t act, int frozen);
int cuda_bn_bwd_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                      k_act_t act);
int cuda_bn_bwd_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                      const k_tensor_t *dx, k_act_t act, uint64_t count);

int cuda_maxpool(k_dev_t *dev, int32_t k, const k_tensor_t *x, const k_tensor_t *y, k_at index);
int cuda_maxpool_dx(k_dev_t *dev, int32_t k, const k_tensor_t *dy, k_at index, const k_tensor_t *dx,
                    int acc);
int cuda_upsample(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y);
int cuda_upsample_dx(k_dev_t *dev, const k_tensor_t *dy, const k_tensor_t *dx, int acc);
int cuda_copy(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y, int acc);
int cuda_cast(k_dev_t *dev, k_at src, k_at dst, k_dtype_t dtype, uint64_t count);

uint64_t cuda_attention_work(k_dev_t *dev, const k_tensor_t *qkv, int32_t heads, int32_t kd,
                             int32_t hd);
int cuda_attention(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                   const k_tensor_t *y, const k_tensor_t *v, k_at lse, k_at work);
int cuda_attention_dx(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                      const k_tensor_t *y, k_at lse, const k_tensor_t *dy, const k_tensor_t *dv,
                      const k_tensor_t *dqkv, k_at work);

uint64_t cuda_detect_loss_work(k_dev_t *dev, const k_detect_loss_t *p);
int cuda_detect_loss(k_dev_t *dev, const k_detect_loss_t *p);
int cuda_detect_assign(k_dev_t *dev, const k_detect_loss_t *p);
int cuda_detect_terms(k_dev_t *dev, const k_detect_loss_t *p);
uint64_t cuda_nms_work(k_dev_t *dev, const k_nms_t *p);
int cuda_nms(k_dev_t *dev, const k_nms_t *p);

int cuda_grad_norm(k_dev_t *dev, k_at g, uint64_t count, k_at hyper, k_at norm);
int cuda_sgd(k_dev_t *dev, k_at w, k_at g, k_at m, uint64_t count, int32_t group, k_at hyper,
             k_at norm);
int cuda_adamw(k_dev_t *dev, k_at w, k_at g, k_at m, k_at v, uint64_t count, int32_t group,
               k_at hyper, k_at norm);
int cuda_ema(k_dev_t *dev, k_at src, k_at dst, uint64_t count, k_at hyper);
int cuda_scale_update(k_dev_t *dev, k_at norm);

#ifdef __cplusplus
}
#endif
#endif
