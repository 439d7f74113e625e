/* Order between streams and the host: waits, events, pinned memory, recorded steps.
 *
 * The host never blocks in the driver here: a stream whose collective has lost its peer never ends
 * (facts/gpu.md, NCCL), so waits ask, sleep a little, and stop asking at their deadline. */
#include "kernels/cuda/cuda.h"

#include <string.h>
#include <time.h>

/* ---- waits ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Asks until the answer is other than "not ready" or the time is over. The sleep is a sixteenth of
 * what was waited already, from 10 to 200 microseconds: short waits end promptly, long ones cost no
 * core. Returns 0, 1 not yet, or negative. */
static int poll_until(cuda_dev_t *d, cudaError_t (*ask)(void *), void *what, const char *name,
                      int number, int timeout_ms)
{
    const int64_t begin = now_ns(), until = begin + (int64_t)timeout_ms * 1000000;
    for (;;) {
        cudaError_t e = ask(what);
        if (e == cudaSuccess)
            return 0;
        if (e != cudaErrorNotReady)
            return cuda_error_of(d, e, "%s %d: what the GPU was given before failed", name, number);
        cudaGetLastError(); /* "not ready" is kept like an error */
        int64_t now = now_ns(), pause = (now - begin) / 16;
        if (now >= until)
            return 1;
        pause = pause < 10000 ? 10000 : pause > 200000 ? 200000 : pause;
        nanosleep(&(struct timespec){.tv_nsec = pause < until - now ? pause : until - now}, NULL);
    }
}

static cudaError_t ask_stream(void *stream)
{
    return cudaStreamQuery(stream);
}

static cudaError_t ask_event(void *event)
{
    return cudaEventQuery(event);
}

static int check_event(cuda_dev_t *d, const char *op, int32_t e)
{
    return e >= 0 && e < K_EVENTS ? 0 : cuda_fail(d, "%s: event %d of %d", op, e, K_EVENTS);
}

/* *yes: the stream is part of the step that is being recorded. One that has not waited for the
 * recorded one runs as ever, and so do its events. */
static int takes_part(cuda_dev_t *d, k_stream_t s, int *yes)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t e = d->capturing ? cudaStreamIsCapturing(d->stream[s], &status) : cudaSuccess;
    *yes = status != cudaStreamCaptureStatusNone;
    return e == cudaSuccess ? 0 : cuda_error_of(d, e, "stream %d: is it recorded", (int)s);
}

int cuda_wait(k_dev_t *dev, k_stream_t s, int timeout_ms)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (cuda_check_stream(d, "wait", s) < 0)
        return -1;
    int recorded = 0;
    if (takes_part(d, s, &recorded) < 0)
        return -1;
    if (recorded) /* the question would spoil the recording */
        return cuda_fail(d, "wait: stream %d belongs to step %d, which is being recorded", (int)s,
                         d->capturing - 1);
    return poll_until(d, ask_stream, d->stream[s], "stream", (int)s, timeout_ms);
}

/* ---- events ---- */

int cuda_record(k_dev_t *dev, int32_t e, k_stream_t s)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_event(d, "record", e) < 0 || cuda_check_stream(d, "record", s) < 0)
        return -1;
    int recorded = 0;
    cudaError_t rc = cudaSuccess;
    if (!d->event[e])
        rc = cudaEventCreate(&d->event[e]); /* with times, for `elapsed` */
    if (rc == cudaSuccess)
        rc = cudaEventRecord(d->event[e], d->stream[s]);
    if (rc != cudaSuccess)
        return cuda_error_of(d, rc, "record: event %d on stream %d", e, (int)s);
    if (takes_part(d, s, &recorded) < 0)
        return -1;
    d->event_in_capture[e] = (char)recorded;
    return 0;
}

int cuda_after(k_dev_t *dev, k_stream_t s, int32_t e)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_event(d, "after", e) < 0 || cuda_check_stream(d, "after", s) < 0)
        return -1;
    if (!d->event[e])
        return 0;
    cudaError_t rc = cudaStreamWaitEvent(d->stream[s], d->event[e], 0);
    if (rc == cudaErrorStreamCaptureIsolation)
        return cuda_error_of(d, rc,
                             "after: event %d was recorded outside step %d, which is being "
                             "recorded: wait for it before",
                             e, d->capturing - 1);
    return rc == cudaSuccess ? 0 : cuda_error_of(d, rc, "after: event %d on stream %d", e, (int)s);
}

int cuda_event(k_dev_t *dev, int32_t e, int timeout_ms)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_event(d, "event", e) < 0)
        return -1;
    if (!d->event[e])
        return 0;
    if (d->event_in_capture[e])
        return cuda_fail(d, "event: event %d belongs to step %d, which is being recorded", e,
                         d->capturing - 1);
    return poll_until(d, ask_event, d->event[e], "event", e, timeout_ms);
}

float cuda_elapsed(k_dev_t *dev, int32_t from, int32_t to)
{
    cuda_dev_t *d = cuda_dev(dev);
    float ms = -1.0f;
    if (check_event(d, "elapsed", from) < 0 || check_event(d, "elapsed", to) < 0)
        return -1.0f;
    if (!d->event[from] || !d->event[to]) {
        cuda_fail(d, "elapsed: event %d was never recorded", d->event[from] ? to : from);
        return -1.0f;
    }
    cudaError_t e = cudaEventElapsedTime(&ms, d->event[from], d->event[to]);
    if (e != cudaSuccess) {
        cuda_error_of(d, e, "elapsed: from event %d to %d", from, to);
        return -1.0f;
    }
    return ms;
}

/* ---- host memory ---- */

int cuda_pin(k_dev_t *dev, void *host, uint64_t bytes)
{
    cuda_dev_t *d = cuda_dev(dev);
    cudaError_t e =
        cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (e == cudaSuccess)
        return 0;
    return cuda_error_of(d, e, "pin: %llu bytes at %p", (unsigned long long)bytes, host);
}

int cuda_unpin(k_dev_t *dev, void *host)
{
    cudaError_t e = cudaHostUnregister(host);
    return e == cudaSuccess ? 0 : cuda_error_of(cuda_dev(dev), e, "unpin: %p", host);
}

void *cuda_host_alloc(k_dev_t *dev, uint64_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (e != cudaSuccess) {
        cuda_error_of(cuda_dev(dev), e, "host_alloc: %llu bytes of pinned memory",
                      (unsigned long long)bytes);
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

void cuda_host_free(k_dev_t *dev, void *host)
{
    cudaError_t e = host ? cudaFreeHost(host) : cudaSuccess;
    if (e != cudaSuccess)
        cuda_error_of(cuda_dev(dev), e, "host_free: %p", host);
}

/* ---- recorded steps ---- */

static int check_slot(cuda_dev_t *d, const char *op, int32_t slot)
{
    return slot >= 0 && slot < K_GRAPHS ? 0 : cuda_fail(d, "%s: slot %d of %d", op, slot, K_GRAPHS);
}

/* What an event stood for is part of the step, which the host cannot wait for: as if it had never
 * been recorded. */
static void drop_captured_events(cuda_dev_t *d)
{
    for (int i = 0; i < K_EVENTS; i++) {
        if (!d->event_in_capture[i])
            continue;
        cudaEventDestroy(d->event[i]);
        d->event[i] = NULL;
        d->event_in_capture[i] = 0;
    }
}

static int forget_one(cuda_dev_t *d, int32_t slot)
{
    if (!d->graph[slot])
        return 0;
    cudaError_t e = cudaGraphExecDestroy(d->graph[slot]);
    d->graph[slot] = NULL;
    return e == cudaSuccess ? 0 : cuda_error_of(d, e, "forget: slot %d", slot);
}

int cuda_capture(k_dev_t *dev, int32_t slot)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_slot(d, "capture", slot) < 0)
        return -1;
    if (d->capturing)
        return cuda_fail(d, "capture %d: slot %d is still being recorded", slot, d->capturing - 1);
    if (forget_one(d, slot) < 0)
        return -1;
    /* Relaxed: streams that take no part go on, and their events may be asked after; other threads
     * of the process (the communicator's) call the runtime too. */
    cudaError_t e = cudaStreamBeginCapture(cuda_main(d), cudaStreamCaptureModeRelaxed);
    if (e != cudaSuccess)
        return cuda_error_of(d, e, "capture %d", slot);
    d->capturing = slot + 1;
    return 0;
}

int cuda_captured(k_dev_t *dev)
{
    cuda_dev_t *d = cuda_dev(dev);
    cudaGraph_t graph = NULL;
    if (!d->capturing)
        return cuda_fail(d, "captured: no step is being recorded");
    const int slot = d->capturing - 1;
    d->capturing = 0;
    cudaError_t e = cudaStreamEndCapture(cuda_main(d), &graph);
    drop_captured_events(d);
    /* Sums go first in a replay too, as their stream does. */
    if (e == cudaSuccess)
        e = cudaGraphInstantiate(&d->graph[slot], graph, cudaGraphInstantiateFlagUseNodePriority);
    if (graph)
        cudaGraphDestroy(graph);
    if (e == cudaSuccess)
        return 0;
    d->graph[slot] = NULL;
    return cuda_error_of(d, e, "captured: step %d cannot be recorded", slot);
}

int cuda_replay(k_dev_t *dev, int32_t slot)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_slot(d, "replay", slot) < 0)
        return -1;
    if (d->capturing)
        return cuda_fail(d, "replay %d: slot %d is being recorded", slot, d->capturing - 1);
    if (!d->graph[slot])
        return cuda_fail(d, "replay %d: nothing was recorded in this slot", slot);
    cudaError_t e = cudaGraphLaunch(d->graph[slot], cuda_main(d));
    return e == cudaSuccess ? 0 : cuda_error_of(d, e, "replay %d", slot);
}

int cuda_forget(k_dev_t *dev, int32_t slot)
{
    cuda_dev_t *d = cuda_dev(dev);
    int rc = 0;
    if (slot != K_GRAPHS)
        return check_slot(d, "forget", slot) < 0 ? -1 : forget_one(d, slot);
    for (int32_t i = 0; i < K_GRAPHS; i++)
        if (forget_one(d, i) < 0)
            rc = -1;
    return rc;
}
