/* The CPU device behind k_ops_t, for the files of kernels/cpu only.
 *
 * A device owns one anonymous mapping (the arena), a pool of threads (pool.c) and one scratch block
 * a thread. It belongs to one thread of the trainer, which is thread 0 of the pool while an
 * operation runs. Every operation is a function here named cpu_<operation>; ops.c puts them into
 * the table.
 *
 * How an operation is written: check the shapes (cpu_check_tensor, cpu_fail), then share out items
 * (images, rows, pixels). Where an item's result does not depend on who computes it, cpu_share:
 * threads take the next items as they become free, so that a core shared with a loader does not
 * hold up the step. Where items are summed, the sums are over parts whose number depends on shapes
 * and threads alone, added in order of part: results are the same to the bit in every run.
 */
#ifndef SLUICE_KERNELS_CPU_H
#define SLUICE_KERNELS_CPU_H

#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

enum { CPU_THREADS_MAX = 256, CPU_SCRATCH_BYTES = 1 << 18, CPU_ARENA_SLACK = 4096 };

typedef struct cpu_pool cpu_pool_t;

typedef struct {
    k_dev_t base; /* first: a k_dev_t * of this device is a cpu_dev_t * */
    char *arena;  /* NULL until reserve */
    uint64_t arena_bytes;
    cpu_pool_t *pool;
    int threads;     /* >= 1 */
    int tiles;       /* 1: convolution by register tiles (conv.h), 0: by the BLAS */
    char *scratch;   /* (2 * threads + 1) * CPU_SCRATCH_BYTES, 64-byte aligned */
    char error[512]; /* sentence of the last failure */
} cpu_dev_t;

/* One inner loop, compiled for AVX-512, AVX2 + FMA and the baseline, chosen when the program is
 * loaded. Plain loops: gcc vectorises them, with 512-bit registers in the first variant. Off under
 * sanitizers (they are not ready when the choice is made) and for clang. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(SLUICE_SANITIZE) && defined(__OPTIMIZE__)
#define CPU_VECTOR __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define CPU_VECTOR
#endif
/* For helpers called from a CPU_VECTOR function: they must be inlined to get its instruction set.
 */
#define CPU_INLINE static inline __attribute__((always_inline))

/* Before a loop: its iterations do not depend on one another, though pointers may be equal. */
#if defined(__clang__)
#define CPU_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define CPU_IVDEP _Pragma("GCC ivdep")
#endif

static inline cpu_dev_t *cpu_dev(k_dev_t *dev)
{
    return (cpu_dev_t *)dev;
}

/* Host address of a place; the arena is host memory here. */
static inline void *cpu_ptr(const cpu_dev_t *dev, k_at at)
{
    return dev->arena + at;
}

static inline float *cpu_f32(const cpu_dev_t *dev, k_at at)
{
    return (float *)(void *)(dev->arena + at);
}

/* Pixels (n*h*w) of a tensor. */
static inline int64_t cpu_pixels(const k_tensor_t *t)
{
    return (int64_t)t->n * t->h * t->w;
}

/* Keeps the sentence for k_ops_t.error; returns -1. */
int cpu_fail(cpu_dev_t *dev, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* 0 if the place [at, at + bytes) is in the arena and aligned to 4; else fails naming op and what.
 */
int cpu_check_place(cpu_dev_t *dev, const char *op, const char *what, k_at at, uint64_t bytes);
/* The same for a tensor, and that it is float32 with positive sizes and ld >= c. */
int cpu_check_tensor(cpu_dev_t *dev, const char *op, const char *what, const k_tensor_t *t);
/* 0 if both have the same n, h, w, c. */
int cpu_check_same(cpu_dev_t *dev, const char *op, const k_tensor_t *a, const k_tensor_t *b);

/* Runs fn on every thread that has items, the calling one included, and returns when all are done.
 * Thread t of T gets items [items*t/T, items*(t+1)/T): static. */
typedef void (*cpu_range_fn)(cpu_dev_t *dev, void *ctx, int thread, int64_t first, int64_t last);
void cpu_parallel(cpu_dev_t *dev, cpu_range_fn fn, void *ctx, int64_t items);
/* Like cpu_parallel, but threads take `grain` items at a time until none is left: fn is called
 * several times on a thread, and which thread gets which items is a matter of timing. */
void cpu_share(cpu_dev_t *dev, cpu_range_fn fn, void *ctx, int64_t items, int64_t grain);
/* CPU_SCRATCH_BYTES of memory private to a thread of the pool while fn runs. */
static inline void *cpu_scratch(const cpu_dev_t *dev, int thread)
{
    return dev->scratch + (size_t)thread * CPU_SCRATCH_BYTES;
}

/* threads * CPU_SCRATCH_BYTES more, for sums by part: written by the threads, read when they are
 * done. */
static inline void *cpu_partials(const cpu_dev_t *dev)
{
    return cpu_scratch(dev, dev->threads + 1);
}
/* The same amount, written by the operation before cpu_parallel and read by its threads. */
static inline void *cpu_constants(const cpu_dev_t *dev)
{
    return cpu_scratch(dev, dev->threads);
}

/* pool.c. threads - 1 threads are started; NULL when the system refuses. */
cpu_pool_t *cpu_pool_new(int threads);
void cpu_pool_free(cpu_pool_t **pool);
/* Calls run(arg, t) on thread t for 0 <= t < threads; t = 0 is the caller. Not reentrant. */
void cpu_pool_run(cpu_pool_t *pool, void (*run)(void *arg, int thread), void *arg);

/* gemm.c: C[m][n] = alpha * op(A) * op(B) + beta * C, row-major, one thread (the caller's). */
void cpu_gemm(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha,
              const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
              int64_t ldc);
/* Compares a few products with plain C and looks at the kernel that the BLAS chose. 0, or -1 if the
 * BLAS computes wrongly; why then says so, else it is empty or holds a remark worth logging. */
int cpu_gemm_check(char *why, size_t why_bytes);

/* The operations, as in kernels.h. */
int cpu_open(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes);
void cpu_close(k_dev_t **dev);
int cpu_reserve(k_dev_t *dev, uint64_t bytes);
int cpu_memory(k_dev_t *dev, uint64_t *free_bytes, uint64_t *total_bytes);
const char *cpu_error(k_dev_t *dev);
int cpu_upload(k_dev_t *dev, k_stream_t s, k_at dst, const void *host, uint64_t bytes);
int cpu_download(k_dev_t *dev, k_stream_t s, void *host, k_at src, uint64_t bytes);
int cpu_move(k_dev_t *dev, k_at dst, k_at src, uint64_t bytes);
int cpu_zero(k_dev_t *dev, k_at dst, uint64_t bytes);
int cpu_wait(k_dev_t *dev, k_stream_t s, int timeout_ms);

/* order.c */
int cpu_record(k_dev_t *dev, int32_t e, k_stream_t s);
int cpu_after(k_dev_t *dev, k_stream_t s, int32_t e);
int cpu_event(k_dev_t *dev, int32_t e, int timeout_ms);
float cpu_elapsed(k_dev_t *dev, int32_t from, int32_t to);
int cpu_pin(k_dev_t *dev, void *host, uint64_t bytes);
int cpu_unpin(k_dev_t *dev, void *host);
void *cpu_host_alloc(k_dev_t *dev, uint64_t bytes);
void cpu_host_free(k_dev_t *dev, void *host);
int cpu_tick(k_dev_t *dev, k_stream_t s, uint64_t *word);
int cpu_capture(k_dev_t *dev, int32_t slot);
int cpu_captured(k_dev_t *dev);
int cpu_replay(k_dev_t *dev, int32_t slot);
int cpu_forget(k_dev_t *dev, int32_t slot);
int cpu_measure(k_dev_t *dev, int on);
int64_t cpu_choices(k_dev_t *dev, char *text, uint64_t bytes);
int cpu_choose(k_dev_t *dev, const char *text);
int cpu_comm_id(k_dev_t *dev, uint8_t id[K_COMM_ID]);
int cpu_comm_open(k_dev_t *dev, const uint8_t id[K_COMM_ID], int rank, int ranks);
int cpu_comm_poll(k_dev_t *dev);
int cpu_comm_begin(k_dev_t *dev);
int cpu_comm_end(k_dev_t *dev);
int cpu_comm_sum(k_dev_t *dev, k_stream_t s, k_at at, uint64_t count, int doubles);
int cpu_comm_close(k_dev_t *dev, int abort);
int cpu_scale_update(k_dev_t *dev, k_at norm);
int cpu_cast(k_dev_t *dev, k_at src, k_at dst, k_dtype_t dtype, uint64_t count);

int cpu_image(k_dev_t *dev, k_at u8, const k_tensor_t *y);

uint64_t cpu_conv_work(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x);
int cpu_conv(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, k_at w, k_at bias,
             const k_tensor_t *y, k_at work);
int cpu_conv_dx(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *dy, k_at w, const k_tensor_t *dx,
                int acc, k_at work);
int cpu_conv_dw(k_dev_t *dev, const k_conv_t *p, const k_tensor_t *x, const k_tensor_t *dy, k_at dw,
                k_at dbias, k_at work);

int cpu_dwconv(k_dev_t *dev, const k_tensor_t *x, k_at w, const k_tensor_t *y);
int cpu_dwconv_dx(k_dev_t *dev, const k_tensor_t *dy, k_at w, const k_tensor_t *dx, int acc);
int cpu_dwconv_dw(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *dy, k_at dw);

int cpu_bn_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x);
int cpu_bn_finish(k_dev_t *dev, const k_bn_t *p, int32_t c, uint64_t count);
int cpu_bn_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *residual,
                 const k_tensor_t *y, k_act_t act, int frozen);
int cpu_bn_bwd_stats(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                     k_act_t act);
int cpu_bn_bwd_apply(k_dev_t *dev, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                     const k_tensor_t *dx, k_act_t act, uint64_t count);

int cpu_maxpool(k_dev_t *dev, int32_t k, const k_tensor_t *x, const k_tensor_t *y, k_at index);
int cpu_maxpool_dx(k_dev_t *dev, int32_t k, const k_tensor_t *dy, k_at index, const k_tensor_t *dx,
                   int acc);
int cpu_upsample(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y);
int cpu_upsample_dx(k_dev_t *dev, const k_tensor_t *dy, const k_tensor_t *dx, int acc);
int cpu_copy(k_dev_t *dev, const k_tensor_t *x, const k_tensor_t *y, int acc);

uint64_t cpu_attention_work(k_dev_t *dev, const k_tensor_t *qkv, int32_t heads, int32_t kd,
                            int32_t hd);
int cpu_attention(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                  const k_tensor_t *y, const k_tensor_t *v, k_at lse, k_at work);
int cpu_attention_dx(k_dev_t *dev, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                     const k_tensor_t *y, k_at lse, const k_tensor_t *dy, const k_tensor_t *dv,
                     const k_tensor_t *dqkv, k_at work);

/* assign.c, loss.c, nms.c, optim.c, ema.c */
uint64_t cpu_detect_loss_work(k_dev_t *dev, const k_detect_loss_t *p);
int cpu_detect_loss(k_dev_t *dev, const k_detect_loss_t *p);
int cpu_detect_assign(k_dev_t *dev, const k_detect_loss_t *p);
int cpu_detect_terms(k_dev_t *dev, const k_detect_loss_t *p);
uint64_t cpu_nms_work(k_dev_t *dev, const k_nms_t *p);
int cpu_nms(k_dev_t *dev, const k_nms_t *p);
int cpu_grad_norm(k_dev_t *dev, k_at g, uint64_t count, k_at hyper, k_at norm);
int cpu_sgd(k_dev_t *dev, k_at w, k_at g, k_at m, uint64_t count, int32_t group, k_at hyper,
            k_at norm);
int cpu_adamw(k_dev_t *dev, k_at w, k_at g, k_at m, k_at v, uint64_t count, int32_t group,
              k_at hyper, k_at norm);
int cpu_ema(k_dev_t *dev, k_at src, k_at dst, uint64_t count, k_at hyper);

#endif
