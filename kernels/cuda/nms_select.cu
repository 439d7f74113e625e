/* The best max_nms candidates of each image, without a list of all of them.
 *
 * A candidate's key is the CPU's: the logit in an order-preserving form, inverted, above the flat
 * index anchor * nc + class; keys are distinct, and smaller is better. The key of the last one taken
 * is found digit by digit from the top: a histogram of the digit over the candidates whose higher
 * digits are the ones found, then the bin in which the count reaches what is wanted. Where a bin is
 * wanted whole the search ends early, usually with the first digits; the kernels of later digits
 * then return at once. What is collected is a set: places come from a counter in any order, and the
 * sort puts them in the only one. Integer counts alone are added atomically.
 */
#include "kernels/cuda/nms.cuh"

enum { THREADS = 256, EACH = 4 };

/* Calls visit(key) for the candidates among a thread's share of an image's logits. */
template <typename T, typename VISIT>
__device__ __forceinline__ void walk(const nms_t &p, uint32_t image, VISIT visit)
{
    const uint32_t total = p.first[K_LEVELS] * p.nc, step = gridDim.x * THREADS;
    const uint64_t end = total;
    for (uint64_t at = blockIdx.x * THREADS + threadIdx.x; at < end; at += (uint64_t)step * EACH) {
        float x[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const uint64_t i = at + (uint64_t)u * step;
            x[u] = NAN; /* never a candidate */
            if (i < end) {
                const uint32_t anchor = (uint32_t)i / p.nc, k = (uint32_t)i % p.nc;
                const int l = nms_level(p, anchor);
                const int64_t pixel = image * p.pixels[l] + (anchor - p.first[l]);
                x[u] = to_float(((const T *)p.cls[l])[pixel * p.cls_ld[l] + k]);
            }
        }
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (x[u] > p.sure || (x[u] >= p.least && nms_sigmoid(x[u]) > p.conf))
                visit((uint64_t)~nms_ordered(x[u]) << 32 | (uint32_t)(at + (uint64_t)u * step));
    }
}

/* grid: images. */
static __global__ void __launch_bounds__(THREADS) nms_begin(nms_t p)
{
    const uint32_t image = blockIdx.x;
    for (uint32_t i = threadIdx.x; i < NMS_BINS; i += THREADS)
        p.bins[image * NMS_BINS + i] = 0;
    if (threadIdx.x == 0) {
        nms_state_t s = {};
        s.want = p.max_nms;
        p.state[image] = s;
    }
}

/* grid: shares of an image, images. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) nms_histogram(nms_t p, int digit)
{
    __shared__ uint32_t bins[NMS_BINS];
    const uint32_t image = blockIdx.y;
    const nms_state_t &s = p.state[image];
    if (s.found)
        return;
    const uint64_t prefix = s.prefix;
    const int shift = nms_shift(digit), bits = nms_bits(digit);
    for (uint32_t i = threadIdx.x; i < NMS_BINS; i += THREADS)
        bins[i] = 0;
    __syncthreads();
    walk<T>(p, image, [&](uint64_t key) {
        const uint64_t digits = key >> shift;
        if (digits >> bits == (prefix >> shift) >> bits)
            atomicAdd(&bins[digits & ((1u << bits) - 1)], 1u);
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < NMS_BINS; i += THREADS)
        if (bins[i] > 0)
            atomicAdd(&p.bins[image * NMS_BINS + i], bins[i]);
}

/* The next digit of the last key taken; bins are zero again. grid: images. */
static __global__ void __launch_bounds__(THREADS) nms_find(nms_t p, int digit)
{
    enum { OWN = NMS_BINS / THREADS };
    __shared__ uint32_t sums[THREADS];
    nms_state_t *s = &p.state[blockIdx.x];
    if (s->found)
        return;
    uint32_t *bins = p.bins + blockIdx.x * NMS_BINS + threadIdx.x * OWN, own[OWN], sum = 0;
    const uint32_t want = s->want;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        own[i] = bins[i];
        sum += own[i];
        bins[i] = 0;
    }
    /* Sums up to and with each thread's bins. */
    sums[threadIdx.x] = sum;
    for (uint32_t step = 1; step < THREADS; step *= 2) {
        __syncthreads();
        const uint32_t more = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += more;
    }
    __syncthreads(); /* also: everyone has read the state */
    const uint32_t upto = sums[threadIdx.x], all = sums[THREADS - 1];
    if (all <= want) { /* no more candidates than are taken: only of the first digit */
        if (threadIdx.x == 0) {
            s->last = ~(uint64_t)0;
            s->found = 1;
        }
        return;
    }
    uint32_t before = upto - sum;
    if (want <= before || want > upto)
        return;
    const int shift = nms_shift(digit);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (want > before && want <= before + own[i]) {
            const uint64_t prefix = s->prefix | (uint64_t)(threadIdx.x * OWN + i) << shift;
            s->prefix = prefix;
            s->last = prefix | (((uint64_t)1 << shift) - 1);
            s->want = want - before;
            s->found = want - before == own[i];
        }
        before += own[i];
    }
}

/* grid: shares of an image, images. */
template <typename T> static __global__ void __launch_bounds__(THREADS) nms_collect(nms_t p)
{
    const uint32_t image = blockIdx.y;
    nms_state_t *s = &p.state[image];
    uint64_t *keys = p.keys + (uint64_t)image * p.max_nms;
    const uint64_t last = s->last;
    walk<T>(p, image, [&](uint64_t key) {
        if (key <= last) {
            const uint32_t at = atomicAdd(&s->count, 1u);
            if (at < p.max_nms)
                keys[at] = key;
        }
    });
}

template <typename T> static void select_of(cuda_dev_t *dev, const nms_t *p)
{
    const int64_t total = (int64_t)p->first[K_LEVELS] * p->nc;
    int64_t shares = (total + THREADS * EACH - 1) / (THREADS * EACH);
    const int64_t most = ((int64_t)dev->sms * 8 + p->images - 1) / p->images;
    shares = shares < most ? shares : most;
    const dim3 grid((unsigned)shares, p->images);
    cudaStream_t s = cuda_main(dev);
    nms_begin<<<p->images, THREADS, 0, s>>>(*p);
    for (int digit = 0; digit < NMS_DIGITS; digit++) {
        nms_histogram<T><<<grid, THREADS, 0, s>>>(*p, digit);
        nms_find<<<p->images, THREADS, 0, s>>>(*p, digit);
    }
    nms_collect<T><<<grid, THREADS, 0, s>>>(*p);
}

void nms_select(cuda_dev_t *dev, const nms_t *p, k_dtype_t dtype)
{
    CUDA_BY_TYPE(dtype, T, select_of<T>(dev, p));
}
