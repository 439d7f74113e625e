/* Sorts each image's keys up: chunks in shared memory by a bitonic network, then runs two by two. A
 * key's place in a pair of runs is its place in its own plus how many of the other are smaller; keys
 * are distinct, so no two get the same. How many keys there are is known to the device alone: the
 * kernels are for max_nms, and threads beyond the count do nothing.
 */
#include "kernels/cuda/nms.cuh"

enum { CHUNK_THREADS = NMS_CHUNK / 2, MERGE_THREADS = 256 };

/* grid: chunks of an image, images. */
static __global__ void __launch_bounds__(CHUNK_THREADS) nms_chunks(nms_t p)
{
    __shared__ uint64_t chunk[NMS_CHUNK];
    const uint32_t first = blockIdx.x * NMS_CHUNK, count = p.state[blockIdx.y].count;
    if (first >= count)
        return;
    uint64_t *keys = p.keys + (uint64_t)blockIdx.y * p.max_nms + first;
    const uint32_t there = min(count - first, (uint32_t)NMS_CHUNK);
    for (uint32_t i = threadIdx.x; i < NMS_CHUNK; i += CHUNK_THREADS)
        chunk[i] = i < there ? keys[i] : ~(uint64_t)0; /* above every key */
    for (uint32_t size = 2; size <= NMS_CHUNK; size *= 2) {
        for (uint32_t step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            const uint32_t low = threadIdx.x / step * step * 2 + threadIdx.x % step;
            const uint64_t a = chunk[low], b = chunk[low + step];
            if ((a > b) == ((low & size) == 0)) {
                chunk[low] = b;
                chunk[low + step] = a;
            }
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < there; i += CHUNK_THREADS)
        keys[i] = chunk[i];
}

/* Runs of `run` keys in pairs. grid: keys of an image, images. */
static __global__ void __launch_bounds__(MERGE_THREADS)
    nms_merge(nms_t p, const uint64_t *from, uint64_t *to, uint32_t run)
{
    const uint32_t i = blockIdx.x * MERGE_THREADS + threadIdx.x, count = p.state[blockIdx.y].count;
    if (i >= count)
        return;
    from += (uint64_t)blockIdx.y * p.max_nms;
    to += (uint64_t)blockIdx.y * p.max_nms;
    const uint64_t key = from[i];
    const uint32_t mine = i / run, other = (mine ^ 1) * run;
    uint32_t low = min(other, count), high = min(other + run, count);
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (from[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    const uint32_t smaller = low - min(other, count);
    to[mine / 2 * 2 * run + i % run + smaller] = key;
}

const uint64_t *nms_sort(cuda_dev_t *dev, const nms_t *p)
{
    cudaStream_t s = cuda_main(dev);
    const dim3 chunks((p->max_nms + NMS_CHUNK - 1) / NMS_CHUNK, p->images);
    const dim3 merges((p->max_nms + MERGE_THREADS - 1) / MERGE_THREADS, p->images);
    uint64_t *from = p->keys, *to = p->spare;
    nms_chunks<<<chunks, CHUNK_THREADS, 0, s>>>(*p);
    for (uint64_t run = NMS_CHUNK; run < p->max_nms; run *= 2) {
        nms_merge<<<merges, MERGE_THREADS, 0, s>>>(*p, from, to, (uint32_t)run);
        uint64_t *other = from;
        from = to;
        to = other;
    }
    return from;
}
