/* Decoding and non-maximum suppression (facts/yolo.md 6.3), on the device from the head's outputs to
 * the detections; order, ties and counts are the CPU's.
 *
 *   select    the best max_nms (anchor, class) pairs above the confidence (nms_select.cu)
 *   sort      by score down, then index up (nms_sort.cu)
 *   suppress  greedily until max_det are kept: here, a block an image
 *
 * A block of suppression takes candidates in batches of a thread each: a thread decodes its box and
 * looks for a kept box that suppresses it; then the first that is left is kept and the others look
 * at it, until none is left. So there is a round for each box that is kept and one for each batch,
 * whatever the number of candidates.
 *
 * Overlaps are computed without contraction to multiply-adds, as the CPU's: equal boxes overlap by
 * exactly 1.
 */
#include "kernels/cuda/nms.cuh"

#include <math.h>

enum { BATCH = 512, WARPS = BATCH / 32, SIDE_BINS = 4 * K_REG_MAX };

typedef struct {
    float x1, y1, x2, y2;
} corners_t;

/* Softmax expectation of 16 bins; sums by halves, in the order of the CPU's. */
template <typename T> __device__ __forceinline__ float expectation(const T *bins)
{
    float e[K_REG_MAX], s[K_REG_MAX], top = to_float(bins[0]);
#pragma unroll
    for (int i = 0; i < K_REG_MAX; i++) {
        e[i] = to_float(bins[i]);
        top = fmaxf(top, e[i]);
    }
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

template <typename T>
__device__ __forceinline__ k_det_t detection(const nms_t &p, uint32_t image, uint32_t flat)
{
    const uint32_t anchor = flat / p.nc, cls = flat % p.nc;
    const int l = nms_level(p, anchor);
    const uint32_t at = anchor - p.first[l];
    const int64_t pixel = image * p.pixels[l] + at;
    const T *bins = (const T *)p.box[l] + pixel * p.box_ld[l];
    const float s = (float)p.stride[l];
    const float x = (float)(at % (uint32_t)p.w[l]) + 0.5f,
                y = (float)(at / (uint32_t)p.w[l]) + 0.5f;
    k_det_t d;
    d.x1 = (x - expectation(bins)) * s;
    d.y1 = (y - expectation(bins + K_REG_MAX)) * s;
    d.x2 = (x + expectation(bins + 2 * K_REG_MAX)) * s;
    d.y2 = (y + expectation(bins + 3 * K_REG_MAX)) * s;
    d.score = nms_sigmoid(to_float(((const T *)p.cls[l])[pixel * p.cls_ld[l] + cls]));
    d.cls = (float)cls;
    return d;
}

__device__ __forceinline__ float side(float a, float b)
{
    const float d = __fsub_rn(a, b);
    return d > 0.0f ? d : 0.0f;
}

/* Plain intersection over union of `a`, kept, and b. */
__device__ __forceinline__ float overlap(const corners_t &a, const corners_t &b)
{
    const float iw = side(a.x2 < b.x2 ? a.x2 : b.x2, a.x1 > b.x1 ? a.x1 : b.x1);
    const float ih = side(a.y2 < b.y2 ? a.y2 : b.y2, a.y1 > b.y1 ? a.y1 : b.y1);
    const float inter = __fmul_rn(iw, ih);
    const float all = __fadd_rn(__fmul_rn(__fsub_rn(a.x2, a.x1), __fsub_rn(a.y2, a.y1)),
                                __fmul_rn(__fsub_rn(b.x2, b.x1), __fsub_rn(b.y2, b.y1)));
    return inter / __fsub_rn(all, inter);
}

__device__ __forceinline__ bool suppresses(const nms_t &p, const k_det_t &kept, const k_det_t &d)
{
    if (!p.agnostic && kept.cls != d.cls)
        return false;
    const corners_t a = {kept.x1, kept.y1, kept.x2, kept.y2}, b = {d.x1, d.y1, d.x2, d.y2};
    return overlap(a, b) > p.iou;
}

/* grid: images. keys: sorted. */
template <typename T>
static __global__ void __launch_bounds__(BATCH) nms_suppress(nms_t p, const uint64_t *keys)
{
    __shared__ k_det_t batch[BATCH];
    __shared__ uint32_t left[2][WARPS]; /* a bit for each thread whose box is left */
    const uint32_t image = blockIdx.x, count = p.state[image].count;
    const uint32_t me = threadIdx.x, lane = me % 32;
    k_det_t *kept = p.dets + (uint64_t)image * p.max_det;
    uint32_t n = 0, round = 0;
    keys += (uint64_t)image * p.max_nms;
    for (uint32_t first = 0; first < count && n < p.max_det; first += BATCH) {
        bool alive = first + me < count;
        k_det_t d = {};
        if (alive) {
            d = detection<T>(p, image, (uint32_t)keys[first + me]);
            for (uint32_t i = 0; i < n && alive; i++)
                alive = !suppresses(p, kept[i], d);
        }
        batch[me] = d;
        while (n < p.max_det) {
            /* Two sets of words: those of the round before last have been read by everyone. */
            uint32_t *words = left[round++ % 2];
            const uint32_t mine = __ballot_sync(0xffffffffu, alive);
            if (lane == 0)
                words[me / 32] = mine;
            __syncthreads();
            const uint32_t word = lane < WARPS ? words[lane] : 0;
            const uint32_t some = __ballot_sync(0xffffffffu, word != 0);
            if (some == 0)
                break;
            const uint32_t warp = (uint32_t)__ffs((int)some) - 1;
            const uint32_t best =
                warp * 32 + (uint32_t)__ffs((int)__shfl_sync(0xffffffffu, word, (int)warp)) - 1;
            if (me == best) {
                kept[n] = d;
                alive = false;
            } else if (alive) {
                alive = !suppresses(p, batch[best], d);
            }
            n++;
        }
        __syncthreads(); /* kept is written, batch is read */
    }
    if (me == 0)
        p.counts[image] = (int32_t)n;
}

/* ---- the operation ---- */

/* Bytes of the parts of the work, all images. */
static uint64_t keys_bytes(const k_nms_t *p)
{
    return cuda_align((uint64_t)p->box[0].n * (uint64_t)p->max_nms * sizeof(uint64_t));
}

static uint64_t bins_bytes(const k_nms_t *p)
{
    return cuda_align((uint64_t)p->box[0].n * NMS_BINS * sizeof(uint32_t));
}

uint64_t cuda_nms_work(k_dev_t *dev, const k_nms_t *p)
{
    (void)dev;
    return 2 * keys_bytes(p) + bins_bytes(p) +
           cuda_align((uint64_t)p->box[0].n * sizeof(nms_state_t));
}

/* Checks the head's outputs; fills in what kernels know of them. */
static int head_open(cuda_dev_t *dev, const k_nms_t *p, nms_t *m)
{
    uint64_t anchors = 0;
    for (int l = 0; l < K_LEVELS; l++) {
        const k_tensor_t *box = &p->box[l], *cls = &p->cls[l];
        if (cuda_check_tensor(dev, "nms", "box", box) < 0 ||
            cuda_check_tensor(dev, "nms", "cls", cls) < 0)
            return -1;
        if (box->c != SIDE_BINS || cls->c != p->nc)
            return cuda_fail(dev, "nms: level %d has %d box and %d class channels, not %d and %d",
                             l, box->c, cls->c, SIDE_BINS, p->nc);
        if (box->n != p->box[0].n || cls->n != p->box[0].n || cls->h != box->h ||
            cls->w != box->w || p->stride[l] <= 0)
            return cuda_fail(dev, "nms: level %d's box and class outputs differ in shape", l);
        if (box->dtype != p->box[0].dtype || cls->dtype != p->box[0].dtype)
            return cuda_fail(dev, "nms: level %d's outputs differ in format", l);
        m->box[l] = cuda_ptr(dev, box->at);
        m->cls[l] = cuda_ptr(dev, cls->at);
        m->box_ld[l] = box->ld;
        m->cls_ld[l] = cls->ld;
        m->w[l] = box->w;
        m->stride[l] = p->stride[l];
        m->pixels[l] = (int64_t)box->h * box->w;
        m->first[l] = (uint32_t)anchors;
        anchors += (uint64_t)m->pixels[l];
        if (anchors * (uint64_t)p->nc > UINT32_MAX)
            return cuda_fail(dev, "nms: %llu anchors of %d classes are too many",
                             (unsigned long long)anchors, p->nc);
    }
    m->first[K_LEVELS] = (uint32_t)anchors;
    m->images = (uint32_t)p->box[0].n;
    m->nc = (uint32_t)p->nc;
    return 0;
}

static int limits_open(cuda_dev_t *dev, const k_nms_t *p, nms_t *m)
{
    if (p->max_nms <= 0 || p->max_det <= 0 || !(p->conf >= 0) || !(p->conf <= 1) ||
        m->images > 65535)
        return cuda_fail(
            dev,
            "nms: max_nms %d and max_det %d (1 or more), conf %g (0 to 1) or %u images "
            "(65535 or fewer) are impossible",
            p->max_nms, p->max_det, (double)p->conf, m->images);
    m->max_nms = (uint32_t)p->max_nms;
    m->max_det = (uint32_t)p->max_det;
    m->agnostic = p->agnostic != 0;
    m->conf = p->conf;
    m->iou = p->iou;
    /* Around the logit of conf the sigmoid decides. 0 and 1 give -inf and inf: all and none. */
    const double logit = log((double)p->conf / (1 - (double)p->conf));
    m->least = (float)(logit - 1e-3);
    m->sure = (float)(logit + 1e-3);
    return 0;
}

static int places_open(cuda_dev_t *dev, const k_nms_t *p, nms_t *m)
{
    const uint64_t need = cuda_nms_work(&dev->base, p);
    if (p->work_bytes < need)
        return cuda_fail(dev, "nms: %llu bytes of work, needs %llu",
                         (unsigned long long)p->work_bytes, (unsigned long long)need);
    if (cuda_check_place(dev, "nms", "work", p->work, need, sizeof(uint64_t)) < 0 ||
        cuda_check_place(dev, "nms", "counts", p->counts, m->images * sizeof(int32_t),
                         sizeof(int32_t)) < 0 ||
        cuda_check_place(dev, "nms", "dets", p->dets,
                         (uint64_t)m->images * m->max_det * sizeof(k_det_t), sizeof(float)) < 0)
        return -1;
    m->dets = (k_det_t *)cuda_ptr(dev, p->dets);
    m->counts = (int32_t *)cuda_ptr(dev, p->counts);
    m->keys = (uint64_t *)cuda_ptr(dev, p->work);
    m->spare = (uint64_t *)cuda_ptr(dev, p->work + keys_bytes(p));
    m->bins = (uint32_t *)cuda_ptr(dev, p->work + 2 * keys_bytes(p));
    m->state = (nms_state_t *)cuda_ptr(dev, p->work + 2 * keys_bytes(p) + bins_bytes(p));
    return 0;
}

int cuda_nms(k_dev_t *device, const k_nms_t *p)
{
    cuda_dev_t *dev = cuda_dev(device);
    nms_t m = {};
    if (head_open(dev, p, &m) < 0 || limits_open(dev, p, &m) < 0 || places_open(dev, p, &m) < 0)
        return -1;
    nms_select(dev, &m, p->cls[0].dtype);
    const uint64_t *keys = nms_sort(dev, &m);
    CUDA_BY_TYPE(p->cls[0].dtype, T,
                 nms_suppress<T><<<m.images, BATCH, 0, cuda_main(dev)>>>(m, keys));
    return cuda_launched(dev, "nms");
}
