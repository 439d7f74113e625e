/* What a device that works while the host goes on needs, on one that is done when it returns: events
 * have always fired, memory needs no pinning, steps are not recorded, there is nothing to choose. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int cpu_record(k_dev_t *dev, int32_t e, k_stream_t s)
{
    (void)s;
    if (e < 0 || e >= K_EVENTS)
        return cpu_fail(cpu_dev(dev), "record: event %d of %d", e, K_EVENTS);
    return 0;
}

int cpu_after(k_dev_t *dev, k_stream_t s, int32_t e)
{
    return cpu_record(dev, e, s);
}

int cpu_event(k_dev_t *dev, int32_t e, int timeout_ms)
{
    (void)timeout_ms;
    return cpu_record(dev, e, K_STREAM_MAIN);
}

float cpu_elapsed(k_dev_t *dev, int32_t from, int32_t to)
{
    (void)dev, (void)from, (void)to;
    return -1.0f; /* a CPU keeps no times by event */
}

int cpu_pin(k_dev_t *dev, void *host, uint64_t bytes)
{
    (void)dev, (void)host, (void)bytes;
    return 0;
}

int cpu_unpin(k_dev_t *dev, void *host)
{
    (void)dev, (void)host;
    return 0;
}

void *cpu_host_alloc(k_dev_t *dev, uint64_t bytes)
{
    (void)dev;
    return calloc(1, bytes);
}

void cpu_host_free(k_dev_t *dev, void *host)
{
    (void)dev;
    free(host);
}

int cpu_tick(k_dev_t *dev, k_stream_t s, uint64_t *word)
{
    (void)dev, (void)s;
    /* Relaxed: a counter that others only look at. */
    atomic_fetch_add_explicit((_Atomic uint64_t *)word, 1, memory_order_relaxed);
    return 0;
}

int cpu_capture(k_dev_t *dev, int32_t slot)
{
    return cpu_fail(cpu_dev(dev), "capture %d: a CPU records no steps", slot);
}

int cpu_captured(k_dev_t *dev)
{
    return cpu_fail(cpu_dev(dev), "captured: a CPU records no steps");
}

int cpu_replay(k_dev_t *dev, int32_t slot)
{
    return cpu_fail(cpu_dev(dev), "replay %d: a CPU records no steps", slot);
}

int cpu_forget(k_dev_t *dev, int32_t slot)
{
    (void)dev, (void)slot;
    return 0;
}

int cpu_measure(k_dev_t *dev, int on)
{
    (void)dev, (void)on;
    return 0;
}

int64_t cpu_choices(k_dev_t *dev, char *text, uint64_t bytes)
{
    (void)dev;
    if (bytes > 0)
        text[0] = '\0';
    return 0;
}

int cpu_choose(k_dev_t *dev, const char *text)
{
    (void)dev, (void)text;
    return 0;
}

static int no_comm(k_dev_t *dev)
{
    return cpu_fail(cpu_dev(dev), "sums over CPUs are the trainer's own (trainer/collective.h)");
}

int cpu_comm_id(k_dev_t *dev, uint8_t id[K_COMM_ID])
{
    (void)id;
    return no_comm(dev);
}

int cpu_comm_open(k_dev_t *dev, const uint8_t id[K_COMM_ID], int rank, int ranks)
{
    (void)id, (void)rank, (void)ranks;
    return no_comm(dev);
}

int cpu_comm_poll(k_dev_t *dev)
{
    return no_comm(dev);
}

int cpu_comm_begin(k_dev_t *dev)
{
    return no_comm(dev);
}

int cpu_comm_end(k_dev_t *dev)
{
    return no_comm(dev);
}

int cpu_comm_sum(k_dev_t *dev, k_stream_t s, k_at at, uint64_t count, int doubles)
{
    (void)s, (void)at, (void)count, (void)doubles;
    return no_comm(dev);
}

int cpu_comm_close(k_dev_t *dev, int abort)
{
    (void)dev, (void)abort;
    return 0;
}

int cpu_scale_update(k_dev_t *dev, k_at norm)
{
    return cpu_check_place(cpu_dev(dev), "scale_update", "norm", norm, sizeof(float));
}

int cpu_cast(k_dev_t *base, k_at src, k_at dst, k_dtype_t dtype, uint64_t count)
{
    cpu_dev_t *dev = cpu_dev(base);
    if (dtype != K_F32)
        return cpu_fail(dev, "cast: a CPU computes in float32");
    if (cpu_check_place(dev, "cast", "src", src, count * sizeof(float)) < 0 ||
        cpu_check_place(dev, "cast", "dst", dst, count * sizeof(float)) < 0)
        return -1;
    memmove(cpu_ptr(dev, dst), cpu_ptr(dev, src), count * sizeof(float));
    return 0;
}
