/* The CUDA device's life: opening and its refusals, streams, the arena with its scratch, copies,
 * errors, and the checks every operation begins with. */
#include "kernels/cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef SLUICE_DEBUG
enum { POISON_MS = 60000 };
#endif

/* ---- errors ---- */

int cuda_fail(cuda_dev_t *dev, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(dev->error, sizeof dev->error, fmt, ap);
    va_end(ap);
    return -1;
}

int cuda_error_of(cuda_dev_t *dev, cudaError_t e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(dev->error, sizeof dev->error, fmt, ap);
    va_end(ap);
    if (n >= 0 && n < (int)sizeof dev->error)
        snprintf(dev->error + n, sizeof dev->error - (size_t)n, ": %s (%s)", cudaGetErrorString(e),
                 cudaGetErrorName(e));
    /* The runtime keeps it for the next question, which would be another operation's. */
    cudaGetLastError();
    return -1;
}

int cuda_launched(cuda_dev_t *dev, const char *op)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? 0 : cuda_error_of(dev, e, "%s: the launch was refused", op);
}

const char *cuda_error(k_dev_t *dev)
{
    return cuda_dev(dev)->error;
}

/* ---- checks ---- */

int cuda_check_place(cuda_dev_t *dev, const char *op, const char *what, k_at at, uint64_t bytes,
                     uint32_t align)
{
    if (at == K_NONE || at % align != 0)
        return cuda_fail(dev, "%s: %s has no place in the arena or is not aligned", op, what);
    if (at > dev->arena_bytes || bytes > dev->arena_bytes - at)
        return cuda_fail(dev, "%s: %s ends beyond the arena: %llu + %llu of %llu bytes", op, what,
                         (unsigned long long)at, (unsigned long long)bytes,
                         (unsigned long long)dev->arena_bytes);
    return 0;
}

int cuda_check_tensor(cuda_dev_t *dev, const char *op, const char *what, const k_tensor_t *t)
{
    if (t->dtype != K_F32 && t->dtype != K_BF16 && t->dtype != K_F16)
        return cuda_fail(dev, "%s: %s has no format (%d)", op, what, (int)t->dtype);
    if (t->dtype == K_BF16 && dev->capability < 80)
        return cuda_fail(dev, "%s: %s is bfloat16, which a GPU of capability %d.%d does not have",
                         op, what, dev->capability / 10, dev->capability % 10);
    if (t->n < 1 || t->h < 1 || t->w < 1 || t->c < 1 || t->ld < t->c)
        return cuda_fail(dev, "%s: %s has an impossible shape %d x %d x %d x %d, ld %d", op, what,
                         t->n, t->h, t->w, t->c, t->ld);
    /* Five numbers below 2^31 overflow 64 bits; an arena has fewer than 2^48 bytes. */
    uint64_t pixels = (uint64_t)t->n * (uint64_t)t->h;
    if (pixels > (UINT64_C(1) << 48) / (uint64_t)t->w ||
        pixels * (uint64_t)t->w > (UINT64_C(1) << 48) / (uint64_t)t->ld)
        return cuda_fail(dev, "%s: %s ends beyond the arena: %d x %d x %d pixels, ld %d", op, what,
                         t->n, t->h, t->w, t->ld);
    uint64_t elements = (pixels * (uint64_t)t->w - 1) * (uint64_t)t->ld + (uint64_t)t->c;
    uint32_t size = (uint32_t)cuda_size(t->dtype);
    return cuda_check_place(dev, op, what, t->at, elements * size, size);
}

int cuda_check_same(cuda_dev_t *dev, const char *op, const k_tensor_t *a, const k_tensor_t *b)
{
    if (a->dtype != b->dtype)
        return cuda_fail(dev, "%s: formats differ: %d and %d", op, (int)a->dtype, (int)b->dtype);
    if (a->n == b->n && a->h == b->h && a->w == b->w && a->c == b->c)
        return 0;
    return cuda_fail(dev, "%s: shapes differ: %d x %d x %d x %d and %d x %d x %d x %d", op, a->n,
                     a->h, a->w, a->c, b->n, b->h, b->w, b->c);
}

int cuda_check_stream(cuda_dev_t *dev, const char *op, k_stream_t s)
{
    /* An enumeration may be unsigned: one comparison holds for both. */
    return (unsigned)s < K_STREAMS ? 0
                                   : cuda_fail(dev, "%s: stream %d of %d", op, (int)s, K_STREAMS);
}

int cuda_vector(const k_tensor_t *t)
{
    /* The arena itself begins at a multiple of 256 bytes. */
    uint64_t size = cuda_size(t->dtype);
    return t->at % 16 == 0 && (uint64_t)t->ld * size % 16 == 0 && (uint64_t)t->c * size % 16 == 0;
}

/* ---- life ---- */

static int refuse(char *why, size_t why_bytes, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int refuse(char *why, size_t why_bytes, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, why_bytes, fmt, ap);
    va_end(ap);
    cudaGetLastError();
    return -1;
}

/* 0 if the driver is there, can run this build, and shows a device of that number. */
static int look_for_device(int ordinal, char *why, size_t why_bytes)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int driver = 0, count = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return refuse(why, why_bytes,
                      "cuda device: this machine has no NVIDIA driver (libcuda.so.1)");
    if (driver / 1000 < CUDART_VERSION / 1000)
        return refuse(
            why, why_bytes,
            "cuda device: the driver is too old: it has CUDA %d.%d, this build needs %d.0 "
            "or later; update the driver or build with an older CUDA",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0)) {
        if (visible)
            return refuse(why, why_bytes, "cuda device: CUDA_VISIBLE_DEVICES=\"%s\" leaves no GPU",
                          visible);
        return refuse(why, why_bytes, "cuda device: the driver sees no GPU");
    }
    if (e != cudaSuccess)
        return refuse(why, why_bytes, "cuda device: %s (%s)", cudaGetErrorString(e),
                      cudaGetErrorName(e));
    if (ordinal < 0 || ordinal >= count)
        return refuse(why, why_bytes,
                      "cuda device: GPU %d was asked for; %d %s, numbered from 0%s%s", ordinal,
                      count, count == 1 ? "is there" : "are there",
                      visible ? ", with CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
    return 0;
}

static int look_at_device(cuda_dev_t *d, char *why, size_t why_bytes)
{
    int major = 0, minor = 0;
    cudaError_t e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, d->ordinal);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, d->ordinal);
    if (e != cudaSuccess)
        return refuse(why, why_bytes, "cuda device %d: %s (%s)", d->ordinal, cudaGetErrorString(e),
                      cudaGetErrorName(e));
    d->capability = major * 10 + minor;
    if (d->capability < 75)
        return refuse(why, why_bytes,
                      "cuda device %d: capability %d.%d; 7.5 (Turing) is the least that sluice "
                      "runs on",
                      d->ordinal, major, minor);
    if (d->compute == K_BF16 && d->capability < 80)
        return refuse(why, why_bytes,
                      "cuda device %d: capability %d.%d has no bfloat16 (8.0 and later do); use "
                      "amp=fp16 or amp=False",
                      d->ordinal, major, minor);
    return 0;
}

/* Context and streams. Waits of this device poll; where the runtime itself waits (memory given
 * back), a core is worth more than a few microseconds. */
static int start(cuda_dev_t *d)
{
    int least = 0, greatest = 0;
    cudaError_t e =
        cudaInitDevice(d->ordinal, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid);
    if (e == cudaSuccess)
        e = cudaSetDevice(d->ordinal);
    if (e != cudaSuccess)
        return cuda_error_of(d, e, "cuda device %d does not start", d->ordinal);
    e = cuda_kernels_present();
    if (e != cudaSuccess)
        return cuda_error_of(d, e,
                             "cuda device %d: this build has no code for capability %d.%d; build "
                             "with CUDA_ARCH=%d or CUDA_ARCH=all",
                             d->ordinal, d->capability / 10, d->capability % 10, d->capability);
    e = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    for (int i = 0; i < K_STREAMS && e == cudaSuccess; i++)
        e = cudaStreamCreateWithPriority(&d->stream[i], cudaStreamNonBlocking,
                                         i == K_STREAM_MAIN ? least : greatest);
    if (e != cudaSuccess)
        return cuda_error_of(d, e, "cuda device %d: streams", d->ordinal);
    d->conv = cuda_conv_new(d);
    return d->conv ? 0 : -1;
}

int cuda_open(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes)
{
    k_dev_t *base = NULL;
    if (why_bytes)
        why[0] = '\0';
    if (look_for_device(args->ordinal, why, why_bytes) < 0)
        return -1;
    cuda_dev_t *d = calloc(1, sizeof *d);
    if (!d)
        return refuse(why, why_bytes, "cuda device: out of memory");
    base = &d->base;
    d->base.ops = k_cuda_ops();
    d->ordinal = args->ordinal;
    d->deterministic = args->deterministic;
    d->compute = args->compute;
    if (look_at_device(d, why, why_bytes) < 0)
        goto fail;
    if (start(d) < 0) {
        refuse(why, why_bytes, "%s", d->error);
        goto fail;
    }
    *dev = base;
    return 0;
fail:
    cuda_close(&base);
    return -1;
}

void cuda_close(k_dev_t **dev)
{
    if (!*dev)
        return;
    cuda_dev_t *d = cuda_dev(*dev);
    if (d->capturing) {
        cudaGraph_t graph = NULL;
        cudaStreamEndCapture(cuda_main(d), &graph);
        if (graph)
            cudaGraphDestroy(graph);
        d->capturing = 0;
    }
    cuda_forget(*dev, K_GRAPHS);
    if (d->comm)
        cuda_comm_close(*dev, 1);
    if (d->conv)
        cuda_conv_free(d);
    for (int i = 0; i < K_EVENTS; i++)
        if (d->event[i])
            cudaEventDestroy(d->event[i]);
    for (int i = 0; i < K_STREAMS; i++)
        if (d->stream[i])
            cudaStreamDestroy(d->stream[i]);
    if (d->arena)
        cudaFree(d->arena);
    cudaGetLastError();
    free(d);
    *dev = NULL;
}

int cuda_memory(k_dev_t *dev, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t left = 0, total = 0;
    cudaError_t e = cudaMemGetInfo(&left, &total);
    if (e != cudaSuccess)
        return cuda_error_of(cuda_dev(dev), e, "memory");
    *free_bytes = left;
    *total_bytes = total;
    return 0;
}

int cuda_reserve(k_dev_t *dev, uint64_t bytes)
{
    cuda_dev_t *d = cuda_dev(dev);
    uint64_t left = 0, total = 0;
    void *p = NULL;
    if (d->arena)
        return cuda_fail(d, "reserve: the arena exists already (%llu bytes); it is taken once",
                         (unsigned long long)d->arena_bytes);
    if (bytes == 0 || bytes > UINT64_MAX / 2)
        return cuda_fail(d, "reserve: an arena of %llu bytes was asked for",
                         (unsigned long long)bytes);
    uint64_t scratch_at = cuda_align(bytes);
    cudaError_t e = cudaMalloc(&p, scratch_at + CUDA_SCRATCH_BYTES);
    if (e != cudaSuccess) {
        cudaGetLastError();
        if (cuda_memory(dev, &left, &total) < 0)
            left = total = 0;
        return cuda_error_of(d, e,
                             "reserve: %llu MiB for the arena were refused by GPU %d, which has "
                             "%llu of %llu MiB free; use a smaller batch or imgsz",
                             (unsigned long long)((scratch_at + CUDA_SCRATCH_BYTES) >> 20),
                             d->ordinal, (unsigned long long)(left >> 20),
                             (unsigned long long)(total >> 20));
    }
    d->arena = p;
    d->arena_bytes = bytes;
    d->scratch = d->arena + scratch_at;
#ifdef SLUICE_DEBUG
    /* NaN in every format, -1 as integer: a read before the first write shows. */
    e = cudaMemsetAsync(p, 0xff, scratch_at + CUDA_SCRATCH_BYTES, cuda_main(d));
    if (e != cudaSuccess)
        return cuda_error_of(d, e, "reserve: poison");
    /* Other streams are not ordered behind it. */
    if (cuda_wait(dev, K_STREAM_MAIN, POISON_MS) != 0)
        return cuda_fail(d, "reserve: the GPU did not fill the arena within %d ms", POISON_MS);
#endif
    return 0;
}

/* ---- copies ---- */

/* Byte copies: cuda_check_place without alignment. */
static int check_bytes(cuda_dev_t *d, const char *op, k_at at, uint64_t bytes)
{
    if (at != K_NONE && at <= d->arena_bytes && bytes <= d->arena_bytes - at)
        return 0;
    return cuda_fail(d, "%s: %llu bytes at %llu do not lie in the arena of %llu bytes", op,
                     (unsigned long long)bytes, (unsigned long long)at,
                     (unsigned long long)d->arena_bytes);
}

static int copied(cuda_dev_t *d, const char *op, uint64_t bytes, cudaError_t e)
{
    return e == cudaSuccess
               ? 0
               : cuda_error_of(d, e, "%s of %llu bytes", op, (unsigned long long)bytes);
}

int cuda_upload(k_dev_t *dev, k_stream_t s, k_at dst, const void *host, uint64_t bytes)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (cuda_check_stream(d, "upload", s) < 0 || check_bytes(d, "upload", dst, bytes) < 0)
        return -1;
    if (bytes == 0)
        return 0;
    return copied(
        d, "upload", bytes,
        cudaMemcpyAsync(cuda_ptr(d, dst), host, bytes, cudaMemcpyHostToDevice, d->stream[s]));
}

int cuda_download(k_dev_t *dev, k_stream_t s, void *host, k_at src, uint64_t bytes)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (cuda_check_stream(d, "download", s) < 0 || check_bytes(d, "download", src, bytes) < 0)
        return -1;
    if (bytes == 0)
        return 0;
    return copied(
        d, "download", bytes,
        cudaMemcpyAsync(host, cuda_ptr(d, src), bytes, cudaMemcpyDeviceToHost, d->stream[s]));
}

int cuda_move(k_dev_t *dev, k_at dst, k_at src, uint64_t bytes)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_bytes(d, "move", dst, bytes) < 0 || check_bytes(d, "move", src, bytes) < 0)
        return -1;
    if (bytes == 0 || dst == src)
        return 0;
    if (dst < src + bytes && src < dst + bytes) /* a copy inside the device has no direction */
        return cuda_fail(d, "move: %llu bytes from %llu to %llu overlap", (unsigned long long)bytes,
                         (unsigned long long)src, (unsigned long long)dst);
    return copied(d, "move", bytes,
                  cudaMemcpyAsync(cuda_ptr(d, dst), cuda_ptr(d, src), bytes,
                                  cudaMemcpyDeviceToDevice, cuda_main(d)));
}

int cuda_zero(k_dev_t *dev, k_at dst, uint64_t bytes)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_bytes(d, "zero", dst, bytes) < 0)
        return -1;
    if (bytes == 0)
        return 0;
    return copied(d, "zero", bytes, cudaMemsetAsync(cuda_ptr(d, dst), 0, bytes, cuda_main(d)));
}
