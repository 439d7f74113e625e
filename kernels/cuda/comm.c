/* Sums over the devices of several processes, by NCCL.
 *
 * The communicator does not block (facts/gpu.md, NCCL): a call says that it is in progress, and its
 * kernel may not be in the stream yet. comm_sum and comm_end return then too; whoever called them
 * asks comm_poll until it says 0, with its own deadline, before the stream is given anything else.
 * NCCL's environment is honoured as found; what it writes with NCCL_DEBUG goes to the process's
 * standard output, which is its log. */
#include "kernels/cuda/cuda.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert((int)K_COMM_ID == NCCL_UNIQUE_ID_BYTES, "the id travels in K_COMM_ID bytes");

enum { CLOSE_MS = 10000 }; /* a clean end; the caller's helper thread has the last word */

struct cuda_comm {
    ncclComm_t comm; /* NULL where even the beginning failed */
    int ready;       /* comm_poll has seen it connected */
    int group;       /* between comm_begin and comm_end */
};

/* `comm` may be NULL: NCCL's last sentence is then the process's. */
static int nccl_fail(cuda_dev_t *d, ncclResult_t r, ncclComm_t comm, const char *what)
{
    const char *detail = ncclGetLastError(comm);
    return cuda_fail(d, "%s: %s%s%s", what, ncclGetErrorString(r), detail && *detail ? ": " : "",
                     detail ? detail : "");
}

int cuda_comm_id(k_dev_t *dev, uint8_t id[K_COMM_ID])
{
    ncclUniqueId made;
    ncclResult_t r = ncclGetUniqueId(&made);
    if (r != ncclSuccess)
        return nccl_fail(cuda_dev(dev), r, NULL, "comm_id");
    memcpy(id, made.internal, K_COMM_ID);
    return 0;
}

int cuda_comm_open(k_dev_t *dev, const uint8_t id[K_COMM_ID], int rank, int ranks)
{
    cuda_dev_t *d = cuda_dev(dev);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId theirs;
    if (d->comm)
        return cuda_fail(d, "comm_open: the device has a communicator already");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return cuda_fail(d, "comm_open: rank %d of %d", rank, ranks);
    d->comm = calloc(1, sizeof *d->comm);
    if (!d->comm)
        return cuda_fail(d, "comm_open: out of memory");
    config.blocking = 0;
    memcpy(theirs.internal, id, K_COMM_ID);
    ncclResult_t r = ncclCommInitRankConfig(&d->comm->comm, ranks, theirs, rank, &config);
    if (r == ncclSuccess || r == ncclInProgress)
        return 0;
    nccl_fail(d, r, d->comm->comm, "comm_open");
    if (d->comm->comm)
        ncclCommAbort(d->comm->comm);
    free(d->comm);
    d->comm = NULL;
    return -1;
}

int cuda_comm_poll(k_dev_t *dev)
{
    cuda_dev_t *d = cuda_dev(dev);
    ncclResult_t state = ncclSuccess;
    if (!d->comm)
        return cuda_fail(d, "comm_poll: there is no communicator");
    ncclResult_t r = ncclCommGetAsyncError(d->comm->comm, &state);
    if (r != ncclSuccess)
        return nccl_fail(d, r, d->comm->comm, "communicator");
    if (state == ncclInProgress)
        return 1;
    if (state != ncclSuccess)
        return nccl_fail(d, state, d->comm->comm, "communicator");
    d->comm->ready = 1;
    return 0;
}

static int check_ready(cuda_dev_t *d, const char *op)
{
    if (d->comm && d->comm->ready)
        return 0;
    return cuda_fail(d, "%s: the communicator is not %s", op, d->comm ? "ready" : "open");
}

int cuda_comm_begin(k_dev_t *dev)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (check_ready(d, "comm_begin") < 0)
        return -1;
    if (d->comm->group)
        return cuda_fail(d, "comm_begin: after another without comm_end");
    ncclResult_t r = ncclGroupStart();
    if (r != ncclSuccess)
        return nccl_fail(d, r, d->comm->comm, "comm_begin");
    d->comm->group = 1;
    return 0;
}

int cuda_comm_end(k_dev_t *dev)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (!d->comm || !d->comm->group)
        return cuda_fail(d, "comm_end: without comm_begin");
    d->comm->group = 0;
    ncclResult_t r = ncclGroupEnd();
    return r == ncclSuccess || r == ncclInProgress ? 0 : nccl_fail(d, r, d->comm->comm, "comm_end");
}

int cuda_comm_sum(k_dev_t *dev, k_stream_t s, k_at at, uint64_t count, int doubles)
{
    cuda_dev_t *d = cuda_dev(dev);
    const uint32_t size = doubles ? sizeof(double) : sizeof(float);
    if (check_ready(d, "comm_sum") < 0 || cuda_check_stream(d, "comm_sum", s) < 0)
        return -1;
    if (count > d->arena_bytes / size)
        return cuda_fail(d, "comm_sum: %llu values are more than the arena holds",
                         (unsigned long long)count);
    if (cuda_check_place(d, "comm_sum", "the values", at, count * size, size) < 0)
        return -1;
    ncclResult_t r =
        ncclAllReduce(cuda_ptr(d, at), cuda_ptr(d, at), count, doubles ? ncclDouble : ncclFloat,
                      ncclSum, d->comm->comm, d->stream[s]);
    if (r == ncclSuccess || r == ncclInProgress)
        return 0;
    nccl_fail(d, r, d->comm->comm, "comm_sum");
    if (d->comm->group) { /* left open it would swallow the calls of the next communicator */
        d->comm->group = 0;
        ncclGroupEnd();
    }
    return -1;
}

/* Ends what is under way together with the other ranks. */
static ncclResult_t finish(ncclComm_t comm)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    ncclResult_t r = ncclCommFinalize(comm);
    for (int ms = 0; r == ncclInProgress && ms < CLOSE_MS; ms++) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &r);
        if (asked != ncclSuccess)
            return asked;
        if (r == ncclInProgress)
            nanosleep(&pause, NULL);
    }
    return r;
}

int cuda_comm_close(k_dev_t *dev, int abort)
{
    cuda_dev_t *d = cuda_dev(dev);
    if (!d->comm)
        return 0;
    for (int i = 0; i < K_GRAPHS; i++)
        if (d->graph[i]) /* with one alive an abort does not return (facts/gpu.md, NCCL) */
            return cuda_fail(d, "comm_close: step %d is still recorded; forget it first", i);
    cudaSetDevice(d->ordinal); /* of this thread: a helper's own would be device 0 */
    cuda_comm_t *c = d->comm;
    d->comm = NULL;
    ncclResult_t r = ncclSuccess;
    if (c->group)
        ncclGroupEnd();
    if (!abort && c->ready)
        r = finish(c->comm);
    if (r != ncclSuccess)
        nccl_fail(d, r, c->comm, "comm_close: the ranks did not end together; aborted");
    /* Not ready or not finished: a clean destruction would wait for the other ranks. */
    ncclResult_t last =
        abort || !c->ready || r != ncclSuccess ? ncclCommAbort(c->comm) : ncclCommDestroy(c->comm);
    free(c);
    if (last != ncclSuccess && last != ncclInProgress)
        return nccl_fail(d, last, NULL, "comm_close");
    return r == ncclSuccess ? 0 : -1;
}
