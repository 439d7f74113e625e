/* The counter that others watch: a kernel of one thread adds 1 to a word of pinned host memory, in
 * the order of its stream. Measured: another process sees it move while a collective behind it hangs
 * (facts/gpu.md, NCCL). */
#include "kernels/cuda/cuda.h"

/* Its partner is the host's relaxed load of the word: a count that is looked at, which orders
 * nothing else. The fence sends it over the bus before the kernel ends. */
static __global__ void tick_kernel(unsigned long long *word)
{
    atomicAdd_system(word, 1ull);
    __threadfence_system();
}

int cuda_tick(k_dev_t *dev, k_stream_t s, uint64_t *word)
{
    cuda_dev_t *d = cuda_dev(dev);
    cudaPointerAttributes at = {};
    if (cuda_check_stream(d, "tick", s) < 0)
        return -1;
    if ((uintptr_t)word % sizeof *word != 0)
        return cuda_fail(d, "tick: the word at %p is not aligned to 8 bytes", (void *)word);
    cudaError_t e = cudaPointerGetAttributes(&at, word);
    if (e != cudaSuccess)
        return cuda_error_of(d, e, "tick: the word at %p", (void *)word);
    if (at.type != cudaMemoryTypeHost || !at.devicePointer)
        return cuda_fail(d, "tick: the word at %p does not lie in pinned memory", (void *)word);
    tick_kernel<<<1, 1, 0, d->stream[s]>>>((unsigned long long *)at.devicePointer);
    return cuda_launched(d, "tick");
}

cudaError_t cuda_kernels_present(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, tick_kernel);
}
