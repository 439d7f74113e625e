/* The CPU device's life: threads, arena, copies, errors, and the checks every operation begins
 * with. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int cpu_fail(cpu_dev_t *dev, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(dev->error, sizeof dev->error, fmt, ap);
    va_end(ap);
    return -1;
}

int cpu_check_place(cpu_dev_t *dev, const char *op, const char *what, k_at at, uint64_t bytes)
{
    if (at == K_NONE || at % sizeof(float) != 0)
        return cpu_fail(dev, "%s: %s has no place in the arena or is not aligned", op, what);
    if (at > dev->arena_bytes || bytes > dev->arena_bytes - at)
        return cpu_fail(dev, "%s: %s ends beyond the arena: %llu + %llu of %llu bytes", op, what,
                        (unsigned long long)at, (unsigned long long)bytes,
                        (unsigned long long)dev->arena_bytes);
    return 0;
}

int cpu_check_tensor(cpu_dev_t *dev, const char *op, const char *what, const k_tensor_t *t)
{
    if (t->dtype != K_F32)
        return cpu_fail(dev, "%s: %s is not float32, the only type on the CPU", op, what);
    if (t->n < 1 || t->h < 1 || t->w < 1 || t->c < 1 || t->ld < t->c)
        return cpu_fail(dev, "%s: %s has an impossible shape %d x %d x %d x %d, ld %d", op, what,
                        t->n, t->h, t->w, t->c, t->ld);
    uint64_t floats = (uint64_t)(cpu_pixels(t) - 1) * (uint64_t)t->ld + (uint64_t)t->c;
    return cpu_check_place(dev, op, what, t->at, floats * sizeof(float));
}

int cpu_check_same(cpu_dev_t *dev, const char *op, const k_tensor_t *a, const k_tensor_t *b)
{
    if (a->n == b->n && a->h == b->h && a->w == b->w && a->c == b->c)
        return 0;
    return cpu_fail(dev, "%s: shapes differ: %d x %d x %d x %d and %d x %d x %d x %d", op, a->n,
                    a->h, a->w, a->c, b->n, b->h, b->w, b->c);
}

typedef struct {
    cpu_dev_t *dev;
    cpu_range_fn fn;
    void *ctx;
    int64_t items, grain;
    _Atomic int64_t
        next; /* cpu_share: first item nobody has taken; relaxed, the pool orders the rest */
} cpu_job_t;

/* Subnormal numbers count as zero while an operation runs: vanishing gradients would otherwise cost
 * a hundred times the arithmetic of others. Returns what float_mode_restore wants back. */
static unsigned float_mode_fast(void)
{
#if defined(__x86_64__)
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 0x8040u); /* flush to zero, denormals are zero */
    return mode;
#else
    return 0;
#endif
}

static void float_mode_restore(unsigned mode)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(mode);
#else
    (void)mode;
#endif
}

static void cpu_job_run(void *arg, int thread)
{
    const cpu_job_t *job = arg;
    int64_t threads = job->dev->threads;
    int64_t first = job->items * thread / threads, last = job->items * (thread + 1) / threads;
    if (first >= last)
        return;
    unsigned mode = float_mode_fast();
    job->fn(job->dev, job->ctx, thread, first, last);
    float_mode_restore(mode);
}

void cpu_parallel(cpu_dev_t *dev, cpu_range_fn fn, void *ctx, int64_t items)
{
    cpu_job_t job = {.dev = dev, .fn = fn, .ctx = ctx, .items = items};
    cpu_pool_run(dev->pool, cpu_job_run, &job);
}

static void cpu_share_run(void *arg, int thread)
{
    cpu_job_t *job = arg;
    unsigned mode = float_mode_fast();
    int64_t first;
    while ((first = atomic_fetch_add_explicit(&job->next, job->grain, memory_order_relaxed)) <
           job->items) {
        int64_t last = first + job->grain < job->items ? first + job->grain : job->items;
        job->fn(job->dev, job->ctx, thread, first, last);
    }
    float_mode_restore(mode);
}

void cpu_share(cpu_dev_t *dev, cpu_range_fn fn, void *ctx, int64_t items, int64_t grain)
{
    cpu_job_t job = {.dev = dev, .fn = fn, .ctx = ctx, .items = items, .grain = grain};
    cpu_pool_run(dev->pool, cpu_share_run, &job);
}

int cpu_open(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes)
{
    cpu_dev_t *d = NULL;
    if (why_bytes)
        why[0] = '\0';
    if (args->threads < 1 || args->threads > CPU_THREADS_MAX) {
        snprintf(why, why_bytes, "cpu device: %d threads asked for, 1 to %d are possible",
                 args->threads, CPU_THREADS_MAX);
        return -1;
    }
    d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(why, why_bytes, "cpu device: out of memory");
        return -1;
    }
    d->base.ops = k_cpu_ops();
    d->threads = args->threads;
    d->tiles = tile_available();
    d->scratch = aligned_alloc(4096, (2 * (size_t)args->threads + 1) * CPU_SCRATCH_BYTES);
    d->pool = cpu_pool_new(args->threads);
    if (!d->scratch || !d->pool) {
        snprintf(why, why_bytes, "cpu device: the system refuses %d threads or their memory: %s",
                 args->threads, strerror(errno));
        goto fail;
    }
    if (cpu_gemm_check(why, why_bytes) < 0)
        goto fail;
    *dev = &d->base;
    return 0;
fail:
    cpu_pool_free(&d->pool);
    free(d->scratch);
    free(d);
    return -1;
}

void cpu_close(k_dev_t **dev)
{
    if (!*dev)
        return;
    cpu_dev_t *d = cpu_dev(*dev);
    cpu_pool_free(&d->pool);
    if (d->arena)
        munmap(d->arena, d->arena_bytes + CPU_ARENA_SLACK);
    free(d->scratch);
    free(d);
    *dev = NULL;
}

int cpu_reserve(k_dev_t *dev, uint64_t bytes)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (d->arena)
        return cpu_fail(d, "reserve: the arena exists already (%llu bytes); it is taken once",
                        (unsigned long long)d->arena_bytes);
    if (bytes == 0)
        return cpu_fail(d, "reserve: an arena of 0 bytes was asked for");
    /* Register tiles read whole registers and so up to 124 bytes beyond the last value (tile.h). */
    uint64_t mapped = bytes + CPU_ARENA_SLACK;
    void *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return cpu_fail(d,
                        "reserve: %llu bytes for the arena were refused: %s; use a smaller batch "
                        "or imgsz",
                        (unsigned long long)bytes, strerror(errno));
    /* Fewer page faults and TLB misses; where the system has none to give nothing changes. */
    madvise(p, mapped, MADV_HUGEPAGE);
#ifdef SLUICE_DEBUG
    memset(p, 0xff, bytes); /* NaN as float, -1 as integer: a read before the first write shows */
#endif
    d->arena = p;
    d->arena_bytes = bytes;
    return 0;
}

int cpu_memory(k_dev_t *dev, uint64_t *free_bytes, uint64_t *total_bytes)
{
    unsigned long long total = 0, available = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return cpu_fail(cpu_dev(dev), "memory: /proc/meminfo: %s", strerror(errno));
    while (fgets(line, sizeof line, f)) {
        unsigned long long kib;
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1)
            total = kib;
        else if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            available = kib;
    }
    fclose(f);
    if (total == 0)
        return cpu_fail(cpu_dev(dev), "memory: /proc/meminfo has no MemTotal");
    *free_bytes = available * 1024;
    *total_bytes = total * 1024;
    return 0;
}

const char *cpu_error(k_dev_t *dev)
{
    return cpu_dev(dev)->error;
}

/* Byte copies: like cpu_check_place without the alignment of floats. */
static int cpu_check_bytes(cpu_dev_t *d, const char *op, k_at at, uint64_t bytes)
{
    if (at != K_NONE && at <= d->arena_bytes && bytes <= d->arena_bytes - at)
        return 0;
    return cpu_fail(d, "%s: %llu bytes at %llu do not lie in the arena of %llu bytes", op,
                    (unsigned long long)bytes, (unsigned long long)at,
                    (unsigned long long)d->arena_bytes);
}

int cpu_upload(k_dev_t *dev, k_stream_t s, k_at dst, const void *host, uint64_t bytes)
{
    (void)s; /* everything is complete when it returns: the streams do not differ */
    cpu_dev_t *d = cpu_dev(dev);
    if (cpu_check_bytes(d, "upload", dst, bytes) < 0)
        return -1;
    memcpy(cpu_ptr(d, dst), host, bytes);
    return 0;
}

int cpu_download(k_dev_t *dev, k_stream_t s, void *host, k_at src, uint64_t bytes)
{
    (void)s;
    cpu_dev_t *d = cpu_dev(dev);
    if (cpu_check_bytes(d, "download", src, bytes) < 0)
        return -1;
    memcpy(host, cpu_ptr(d, src), bytes);
    return 0;
}

int cpu_move(k_dev_t *dev, k_at dst, k_at src, uint64_t bytes)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (cpu_check_bytes(d, "move", dst, bytes) < 0 || cpu_check_bytes(d, "move", src, bytes) < 0)
        return -1;
    memmove(cpu_ptr(d, dst), cpu_ptr(d, src), bytes);
    return 0;
}

int cpu_zero(k_dev_t *dev, k_at dst, uint64_t bytes)
{
    cpu_dev_t *d = cpu_dev(dev);
    if (cpu_check_bytes(d, "zero", dst, bytes) < 0)
        return -1;
    memset(cpu_ptr(d, dst), 0, bytes);
    return 0;
}

int cpu_wait(k_dev_t *dev, k_stream_t s, int timeout_ms)
{
    (void)dev, (void)s, (void)timeout_ms;
    return 0;
}
