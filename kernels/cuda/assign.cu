/* The task-aligned assigner (facts/yolo.md 3.3): which ground-truth box each anchor learns, and how
 * strongly. Topk 10, alpha 0.5, beta 6; ties as on the CPU (kernels/cpu/assign.h): of anchors with
 * equal metric the first is taken, of boxes with equal overlap the first.
 *
 *   decode   every anchor's box, four threads an anchor; claims emptied
 *   choose   a block a box looks at the anchors around it, picks its ten best and claims them
 *   resolve  a thread a pick: where several boxes claim the anchor, the first one's pick stands for
 *            it and gives it to the box it overlaps most; largest metric and overlap of each box
 *   weigh    a thread a pick that stands: its target score; their sum
 *
 * Atomics are on integers, and on floats not below 0 by their bits, whose order is the same: what is
 * left does not depend on who came first.
 */
#include "kernels/cuda/loss.cuh"

enum { CHOOSE = 128, CHOOSE_WARPS = CHOOSE / 32, EACH = 4 };

#define EPS    1e-9f
#define MARGIN 1.0001f /* the plain IoU bounds the CIoU but for roundings */

/* A thread's first item among all, and its step. */
static __device__ __forceinline__ int64_t item(void)
{
    return (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x;
}

static __device__ __forceinline__ int64_t item_step(void)
{
    return (int64_t)gridDim.x * LOSS_THREADS;
}

/* ---- decode ---- */

/* Softmax expectation of 16 bins, V at a time; sums by halves, in the order of the CPU's. */
template <typename T, int V> static __device__ __forceinline__ float expectation(const T *bins)
{
    float e[K_REG_MAX], s[K_REG_MAX];
#pragma unroll
    for (int i = 0; i < K_REG_MAX; i += V) {
        float piece[V];
        load(bins + i, piece);
#pragma unroll
        for (int k = 0; k < V; k++)
            e[i + k] = piece[k];
    }
    float top = e[0];
#pragma unroll
    for (int i = 1; i < K_REG_MAX; i++)
        top = fmaxf(top, e[i]);
#pragma unroll
    for (int i = 0; i < K_REG_MAX; i++) {
        e[i] = expf(e[i] - top);
        s[i] = e[i] * (float)i;
    }
#pragma unroll
    for (int half = K_REG_MAX / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < half; i++) {
            e[i] += e[i + half];
            s[i] += s[i + half];
        }
    return s[0] / e[0];
}

/* grid: anchors of an image by sides, images. */
template <typename T, int V>
static __global__ void __launch_bounds__(LOSS_THREADS)
    assign_decode(const __grid_constant__ loss_t p)
{
    for (int32_t image = (int32_t)blockIdx.y; image < p.n; image += (int32_t)gridDim.y) {
        const int64_t base = (int64_t)image * p.anchors;
        float *boxes = (float *)(p.boxes + base);
        for (int64_t i = item(); i < (int64_t)p.anchors * 4; i += item_step()) {
            const int32_t anchor = (int32_t)(i / 4), side = (int32_t)(i % 4);
            const loss_level_t &v = p.level[loss_level(p, anchor)];
            const int32_t in_level = anchor - v.first;
            const int64_t pixel = (int64_t)image * v.pixels + in_level;
            const float far =
                expectation<T, V>((const T *)v.box + pixel * v.box_ld + side * K_REG_MAX);
            const float centre = (float)(side % 2 == 0 ? in_level % v.w : in_level / v.w) + 0.5f;
            boxes[i] = side < 2 ? centre - far : centre + far;
            if (side == 0)
                p.claim[base + anchor] = {INT32_MAX, -1};
        }
    }
}

/* ---- candidates and their metric ---- */

/* A side below the smallest stride counts as long as the second stride, for the candidate test only
 * (facts/yolo.md 3.3 step 1). */
static __device__ __forceinline__ void enlarge(const loss_t &p, float *lo, float *hi)
{
    if (*hi - *lo < p.level[0].stride) {
        const float centre = (*lo + *hi) / 2.0f, half = p.level[1].stride / 2.0f;
        *lo = centre - half;
        *hi = centre + half;
    }
}

static __device__ __forceinline__ box_t reach(const loss_t &p, const k_gt_t &g)
{
    box_t r = {g.x1, g.y1, g.x2, g.y2};
    enlarge(p, &r.x1, &r.x2);
    enlarge(p, &r.y1, &r.y2);
    return r;
}

static __device__ __forceinline__ bool inside(const box_t &r, int32_t x, int32_t y, float stride)
{
    const float ax = __fmul_rn((float)x + 0.5f, stride), ay = __fmul_rn((float)y + 0.5f, stride);
    return ax - r.x1 > EPS && ay - r.y1 > EPS && r.x2 - ax > EPS && r.y2 - ay > EPS;
}

/* First grid index whose centre may lie between lo and hi, and how many may. */
static __device__ __forceinline__ void span(float lo, float hi, float stride, int32_t size,
                                            int32_t *first, int32_t *count)
{
    const float a = floorf(lo / stride - 0.5f), b = ceilf(hi / stride + 0.5f);
    const int32_t begin = a > 0.0f ? (a < (float)size ? (int32_t)a : size) : 0;
    const int32_t end = b > 0.0f ? (b < (float)size ? (int32_t)b : size) : 0;
    *first = begin;
    *count = end > begin ? end - begin : 0;
}

static __device__ __forceinline__ box_t in_pixels(const box_t &b, float stride)
{
    return {__fmul_rn(b.x1, stride), __fmul_rn(b.y1, stride), __fmul_rn(b.x2, stride),
            __fmul_rn(b.y2, stride)};
}

/* score^0.5 * overlap^6. */
static __device__ __forceinline__ float metric(float score, float overlap)
{
    const float o2 = overlap * overlap;
    return sqrtf(score) * (o2 * o2 * o2);
}

/* The class's score; its argument is kept from where exp overflows: above 0 for every number. */
template <typename T>
static __device__ __forceinline__ float score_of(const loss_t &p, const loss_level_t &v,
                                                 int64_t pixel, float cls)
{
    const T *logits = (const T *)v.cls + pixel * v.cls_ld;
    return sigmoid(fminf(fmaxf(to_float(logits[(int32_t)cls]), -87.0f), 87.0f));
}

/* ---- choose ---- */

/* A candidate's key: larger is better; of equal metrics the first anchor. Keys are distinct and above
 * 0. */
static __device__ __forceinline__ uint64_t key_of(float align, int32_t anchor)
{
    return (uint64_t)__float_as_uint(align) << 32 | (uint32_t)~anchor;
}

/* Keeps the ten largest, largest first. */
static __device__ __forceinline__ void keep(uint64_t (&best)[LOSS_TOPK], uint64_t key)
{
#pragma unroll
    for (int i = 0; i < LOSS_TOPK; i++) {
        const uint64_t low = best[i] < key ? best[i] : key;
        best[i] = best[i] < key ? key : best[i];
        key = low;
    }
}

/* One candidate inside; most are refused without arcus tangents once ten are known. */
template <typename T>
static __device__ __forceinline__ void consider(const loss_t &p, const loss_level_t &v,
                                                const k_gt_t &g, const box_t &guess, int64_t pixel,
                                                int32_t anchor, uint64_t (&best)[LOSS_TOPK])
{
    const box_t box = {g.x1, g.y1, g.x2, g.y2};
    const float least = __uint_as_float((uint32_t)(best[LOSS_TOPK - 1] >> 32));
    const float bound = boxes_iou(box, guess) * MARGIN, b2 = bound * bound;
    if (!(bound > 0.0f) || b2 * b2 * b2 * MARGIN <= least)
        return;
    const float score = score_of<T>(p, v, pixel, g.cls);
    if (metric(score, bound) * MARGIN <= least)
        return;
    const float overlap = boxes_ciou(box, guess);
    if (!(overlap > 0.0f))
        return;
    const float align = metric(score, overlap);
    if (align > 0.0f)
        keep(best, key_of(align, anchor));
}

/* A thread's share of a level's candidates, EACH boxes under way at a time. */
template <typename T>
static __device__ __forceinline__ void look_at_level(const loss_t &p, const loss_level_t &v,
                                                     int32_t image, const k_gt_t &g,
                                                     uint64_t (&best)[LOSS_TOPK])
{
    const box_t r = reach(p, g);
    const box_t *boxes = p.boxes + (int64_t)image * p.anchors + v.first;
    const int64_t pixels = (int64_t)image * v.pixels;
    int32_t x0, y0, columns, rows;
    span(r.x1, r.x2, v.stride, v.w, &x0, &columns);
    span(r.y1, r.y2, v.stride, v.h, &y0, &rows);
    const int64_t cells = (int64_t)columns * rows;
    for (int64_t cell = threadIdx.x; cell < cells; cell += CHOOSE * EACH) {
        int32_t at[EACH];
        box_t guess[EACH];
#pragma unroll
        for (int u = 0; u < EACH; u++) {
            const int64_t c = cell + u * CHOOSE;
            at[u] = -1;
            if (c < cells) {
                const int32_t y = y0 + (int32_t)((uint32_t)c / (uint32_t)columns);
                const int32_t x = x0 + (int32_t)((uint32_t)c % (uint32_t)columns);
                if (inside(r, x, y, v.stride)) {
                    at[u] = y * v.w + x;
                    guess[u] = boxes[at[u]];
                }
            }
        }
#pragma unroll
        for (int u = 0; u < EACH; u++)
            if (at[u] >= 0)
                consider<T>(p, v, g, in_pixels(guess[u], v.stride), pixels + at[u], v.first + at[u],
                            best);
    }
}

/* The block's largest of the threads' keys, for all of them. lanes: words that nobody has looked at
 * since the barrier before. */
static __device__ __forceinline__ uint64_t block_most(uint64_t key, uint64_t *lanes)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, (unsigned long long)key, step);
        key = other > key ? other : key;
    }
    if (threadIdx.x % 32 == 0)
        lanes[threadIdx.x / 32] = key;
    __syncthreads();
    uint64_t most = lanes[0];
#pragma unroll
    for (int i = 1; i < CHOOSE_WARPS; i++)
        most = lanes[i] > most ? lanes[i] : most;
    return most;
}

/* The ten best of what the threads have: thread i returns the i-th, 0 where there is none. */
static __device__ __forceinline__ uint64_t ten_best(uint64_t (&best)[LOSS_TOPK])
{
    __shared__ uint64_t lanes[2][CHOOSE_WARPS];
    uint64_t mine = 0;
    for (int round = 0; round < LOSS_TOPK; round++) {
        const uint64_t most = block_most(best[0], lanes[round % 2]);
        if (most == 0)
            break;
        if ((int)threadIdx.x == round)
            mine = most;
        if (best[0] == most) {
#pragma unroll
            for (int i = 1; i < LOSS_TOPK; i++)
                best[i - 1] = best[i];
            best[LOSS_TOPK - 1] = 0;
        }
    }
    return mine;
}

/* A thread's pick is written and its anchor claimed. */
static __device__ __forceinline__ void take_pick(const loss_t &p, int32_t image, int32_t g,
                                                 const k_gt_t &gt, uint64_t key)
{
    const int32_t anchor = (int32_t) ~(uint32_t)key;
    const int64_t at = (int64_t)image * p.anchors + anchor;
    const box_t box = {gt.x1, gt.y1, gt.x2, gt.y2};
    loss_pick_t pick;
    pick.anchor = anchor;
    pick.owner = g;
    pick.align = __uint_as_float((uint32_t)(key >> 32));
    pick.overlap = boxes_ciou(box, in_pixels(p.boxes[at], p.level[loss_level(p, anchor)].stride));
    p.pick[((int64_t)image * p.max_gt + g) * LOSS_TOPK + threadIdx.x] = pick;
    atomicMin(&p.claim[at].first, g);
    atomicMax(&p.claim[at].last, g);
}

/* grid: a block a slot. */
template <typename T>
static __global__ void __launch_bounds__(CHOOSE) assign_choose(const __grid_constant__ loss_t p)
{
    const int32_t slot = (int32_t)blockIdx.x, image = slot / p.max_gt, g = slot % p.max_gt;
    const bool is_there = g < loss_boxes(p, image);
    k_gt_t gt = {};
    if (is_there)
        gt = p.gt[slot];
    uint64_t mine = 0;
    if (is_there && loss_is_real(p, gt)) {
        uint64_t best[LOSS_TOPK] = {};
        for (int l = 0; l < K_LEVELS; l++)
            look_at_level<T>(p, p.level[l], image, gt, best);
        mine = ten_best(best);
        if (mine != 0)
            take_pick(p, image, g, gt, mine);
    }
    /* The picks are those of the first threads, all of the first warp. */
    const unsigned picked = __ballot_sync(0xffffffffu, mine != 0);
    if (threadIdx.x == 0) {
        p.pick_count[slot] = __popc(picked);
        p.top[slot] = {0, 0};
    }
}

/* ---- resolve ---- */

/* Gives an anchor that several boxes want to the one it overlaps most, among all boxes of the image.
 */
template <typename T>
static __device__ __forceinline__ void most_overlapped(const loss_t &p, int32_t image,
                                                       loss_pick_t *pick)
{
    const loss_level_t &v = p.level[loss_level(p, pick->anchor)];
    const int32_t in_level = pick->anchor - v.first, boxes = loss_boxes(p, image);
    const box_t guess = in_pixels(p.boxes[(int64_t)image * p.anchors + pick->anchor], v.stride);
    const k_gt_t *gt = p.gt + (int64_t)image * p.max_gt;
    pick->overlap = 0.0f;
    for (int32_t g = 0; g < boxes; g++) {
        const k_gt_t one = gt[g];
        if (!loss_is_real(p, one) ||
            !inside(reach(p, one), in_level % v.w, in_level / v.w, v.stride))
            continue;
        const box_t box = {one.x1, one.y1, one.x2, one.y2};
        const float overlap = boxes_ciou(box, guess);
        if (overlap > pick->overlap) {
            pick->overlap = overlap;
            pick->owner = g;
        }
    }
    const float score =
        score_of<T>(p, v, (int64_t)image * v.pixels + in_level, gt[pick->owner].cls);
    pick->align = metric(score, pick->overlap);
}

/* grid: strides over picks. */
template <typename T>
static __global__ void __launch_bounds__(LOSS_THREADS)
    assign_resolve(const __grid_constant__ loss_t p)
{
    const int64_t picks = (int64_t)p.n * p.max_gt * LOSS_TOPK;
    for (int64_t i = item(); i < picks; i += item_step()) {
        const int32_t slot = (int32_t)(i / LOSS_TOPK);
        if ((int32_t)(i % LOSS_TOPK) >= p.pick_count[slot])
            continue;
        const int32_t image = slot / p.max_gt;
        loss_pick_t pick = p.pick[i];
        const loss_claim_t claim = p.claim[(int64_t)image * p.anchors + pick.anchor];
        if (claim.first != claim.last) {
            if (claim.first == slot % p.max_gt)
                most_overlapped<T>(p, image, &pick);
            else
                pick.anchor = -1;
            p.pick[i] = pick;
        }
        if (pick.anchor < 0)
            continue;
        loss_top_t *top = &p.top[(int64_t)image * p.max_gt + pick.owner];
        atomicMax(&top->align, __float_as_int(pick.align));
        atomicMax(&top->overlap, __float_as_int(pick.overlap));
    }
}

/* ---- weigh ---- */

/* Soft scores (facts/yolo.md 3.3 step 6). grid: strides over picks. parts: double [blocks]. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    assign_weigh(const __grid_constant__ loss_t p, double *parts)
{
    __shared__ double lanes[32];
    const int64_t picks = (int64_t)p.n * p.max_gt * LOSS_TOPK;
    double sum = 0.0;
    for (int64_t i = item(); i < picks; i += item_step()) {
        const int32_t slot = (int32_t)(i / LOSS_TOPK);
        if ((int32_t)(i % LOSS_TOPK) >= p.pick_count[slot] || p.pick[i].anchor < 0)
            continue;
        const loss_pick_t pick = p.pick[i];
        const loss_top_t top = p.top[(int64_t)(slot / p.max_gt) * p.max_gt + pick.owner];
        const float weight =
            pick.align * __int_as_float(top.overlap) / (__int_as_float(top.align) + EPS);
        p.pick[i].align = weight;
        sum += (double)weight;
    }
    sum = block_sum(sum, lanes);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

/* One block. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    assign_sum(const double *parts, int count, double *scores)
{
    __shared__ double lanes[32];
    double sum = 0.0;
    for (int i = (int)threadIdx.x; i < count; i += LOSS_THREADS)
        sum += parts[i];
    sum = block_sum(sum, lanes);
    if (threadIdx.x == 0)
        *scores = sum;
}

/* 1 if every anchor's bins can be read 16 bytes at a time. */
static int vector_bins(const loss_t *p, k_dtype_t dtype)
{
    for (int l = 0; l < K_LEVELS; l++)
        if ((uintptr_t)p->level[l].box % 16 != 0 ||
            (uint64_t)p->level[l].box_ld * cuda_size(dtype) % 16 != 0)
            return 0;
    return 1;
}

void loss_assign(cuda_dev_t *dev, const loss_t *p, k_dtype_t dtype)
{
    const cudaStream_t s = cuda_main(dev);
    const int64_t slots = loss_slots(p);
    const int64_t sides = (int64_t)p->anchors * 4;
    /* as many blocks in all as keep the device full */
    const int rows = p->n < 65535 ? p->n : 65535,
              all = cuda_blocks(dev, sides * rows, LOSS_THREADS);
    const dim3 grid((unsigned)((all + rows - 1) / rows), (unsigned)rows);
    double *parts = (double *)(void *)dev->scratch;
    int blocks = 0;
    CUDA_BY_TYPE_AND_WIDTH(dtype, vector_bins(p, dtype), T, V,
                           assign_decode<T, V><<<grid, LOSS_THREADS, 0, s>>>(*p));
    if (slots > 0) {
        blocks = cuda_blocks(dev, slots * LOSS_TOPK, LOSS_THREADS);
        CUDA_BY_TYPE(dtype, T, {
            assign_choose<T><<<(unsigned)slots, CHOOSE, 0, s>>>(*p);
            assign_resolve<T><<<(unsigned)blocks, LOSS_THREADS, 0, s>>>(*p);
        });
        assign_weigh<<<(unsigned)blocks, LOSS_THREADS, 0, s>>>(*p, parts);
    }
    assign_sum<<<1, LOSS_THREADS, 0, s>>>(parts, blocks, p->scores);
}
