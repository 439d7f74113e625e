/* The detection loss (facts/yolo.md 3) on the device, without a look from the host: boxes decoded
 * and targets assigned (assign.cu), then values and gradients in two passes.
 *
 *   background  every class logit as if its anchor had no target: cross-entropy with 0, and its
 *               gradient; zeros for the gradients of boxes. A map over memory, 16 bytes a thread
 *   foreground  a warp a pick that stands for an anchor, two bins a lane: box and DFL terms with
 *               their gradients over the zeros, and what the target takes off the class term
 *   items       the blocks' sums, in order
 *
 * Everything is computed in float32 from the logits' format, sums are doubles in a fixed order.
 */
#include "kernels/cuda/loss.cuh"

enum { WARPS = LOSS_THREADS / 32 };

/* S = max(sum of target scores, 1) (facts/yolo.md 3.2). */
static __device__ __forceinline__ double divisor(const loss_t &p)
{
    return fmax(*p.scores, 1.0);
}

static __device__ __forceinline__ float loss_scale(const loss_t &p)
{
    return p.scaling ? p.scaling->scale : 1.0f;
}

/* ---- background ---- */

/* log(1 + exp(x)) with full relative accuracy also far below 0, where an untrained head's background
 * lies; its derivative. */
static __device__ __forceinline__ float softplus(float x, float *derivative)
{
    const float e = expf(-fabsf(x)), inverse = 1.0f / (1.0f + e);
    *derivative = x < 0.0f ? e * inverse : inverse;
    return fmaxf(x, 0.0f) + log1pf(e);
}

/* A level's elements as rows of neighbours, V at a time: one row where pixels lie without gaps. */
typedef struct {
    int64_t groups; /* in all rows */
    int32_t in_row; /* groups of a row; unused with one row */
    int one;
} rows_t;

static __device__ __forceinline__ rows_t rows_of(int64_t pixels, int32_t c, int32_t ld,
                                                 int32_t d_ld, int V)
{
    const int one = ld == c && d_ld == c;
    return {pixels * c / V, c / V, one};
}

/* Place of a group's first element with the pitch ld. */
static __device__ __forceinline__ int64_t place_of(const rows_t &r, int64_t group, int32_t ld,
                                                   int V)
{
    if (r.one)
        return group * V;
    const int64_t row =
        group >> 32 ? group / r.in_row : (int64_t)((uint32_t)group / (uint32_t)r.in_row);
    return row * ld + (group - row * r.in_row) * V;
}

/* grid: strides over groups of V. parts: double [blocks]. */
template <typename T, int V>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_background(const __grid_constant__ loss_t p, double *parts)
{
    __shared__ double lanes[32];
    const int64_t me = (int64_t)blockIdx.x * LOSS_THREADS + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * LOSS_THREADS;
    const float k = (float)((double)p.gain_cls * (double)p.scale / divisor(p)) * loss_scale(p);
    double sum = 0.0;
#pragma unroll
    for (int l = 0; l < K_LEVELS; l++) {
        const loss_level_t &v = p.level[l];
        const int64_t pixels = (int64_t)p.n * v.pixels;
        const rows_t r = rows_of(pixels, p.nc, v.cls_ld, v.dcls ? v.dcls_ld : v.cls_ld, V);
        for (int64_t i = me; i < r.groups; i += step) {
            float x[V], d[V], part = 0.0f;
            load((const T *)v.cls + place_of(r, i, v.cls_ld, V), x);
#pragma unroll
            for (int j = 0; j < V; j++) {
                part += softplus(x[j], &d[j]);
                d[j] *= k;
            }
            if (v.dcls)
                store((T *)v.dcls + place_of(r, i, v.dcls_ld, V), d);
            sum += (double)part;
        }
        if (!v.dbox)
            continue;
        const float zero[V] = {};
        const rows_t b = rows_of(pixels, LOSS_BINS, v.dbox_ld, v.dbox_ld, V);
        for (int64_t i = me; i < b.groups; i += step)
            store((T *)v.dbox + place_of(b, i, v.dbox_ld, V), zero);
    }
    sum = block_sum(sum, lanes);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

/* ---- foreground ---- */

/* The eight lanes that share a side. */
static __device__ __forceinline__ float side_max(float v)
{
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

static __device__ __forceinline__ float side_sum(float v)
{
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

/* A lane's two bins of its side (lanes 0 to 7: left, then top, right, bottom), and what all lanes of
 * the side have in common. */
typedef struct {
    float bin[2], prob[2];
    float mean, log_sum;
    int32_t first; /* number of bin[0] in the side */
} side_t;

template <typename T> static __device__ __forceinline__ side_t side_of(const T *bins)
{
    const int32_t lane = (int32_t)threadIdx.x % 32;
    side_t s;
    s.first = lane % 8 * 2;
    s.bin[0] = to_float(bins[lane * 2]);
    s.bin[1] = to_float(bins[lane * 2 + 1]);
    const float top = side_max(fmaxf(s.bin[0], s.bin[1]));
    s.prob[0] = expf(s.bin[0] - top);
    s.prob[1] = expf(s.bin[1] - top);
    const float sum = side_sum(s.prob[0] + s.prob[1]);
    s.prob[0] /= sum;
    s.prob[1] /= sum;
    s.mean = side_sum(s.prob[0] * (float)s.first + s.prob[1] * (float)(s.first + 1));
    s.log_sum = top + logf(sum);
    return s;
}

/* Distribution focal loss of a side (facts/yolo.md 3.5): the lane's share of its value, and into d
 * k_dfl times its gradient plus k_mean times that of the expectation. */
static __device__ __forceinline__ float side_loss(const side_t &s, float target, float k_dfl,
                                                  float k_mean, float (&d)[2])
{
    const float most = (float)(K_REG_MAX - 1) - 0.01f;
    target = target < 0.0f ? 0.0f : target > most ? most : target;
    const int32_t left = (int32_t)target;
    const float w_left = (float)(left + 1) - target, w_right = 1.0f - w_left;
    float value = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t bin = s.first + i;
        const float w = bin == left ? w_left : bin == left + 1 ? w_right : 0.0f;
        d[i] = s.prob[i] * (k_dfl + k_mean * ((float)bin - s.mean)) - k_dfl * w;
        if (w != 0.0f)
            value += w * (s.log_sum - s.bin[i]);
    }
    return value;
}

/* Where a pick's anchor is, and its target in grid units. */
typedef struct {
    int64_t pixel;
    float ax, ay;
    box_t target;
    int32_t cls;
} anchor_t;

static __device__ __forceinline__ anchor_t anchor_of(const loss_t &p, const loss_level_t &v,
                                                     int32_t image, const loss_pick_t &pick)
{
    const k_gt_t gt = p.gt[(int64_t)image * p.max_gt + pick.owner];
    const int32_t in_level = pick.anchor - v.first;
    anchor_t a;
    a.pixel = (int64_t)image * v.pixels + in_level;
    a.ax = (float)(in_level % v.w) + 0.5f;
    a.ay = (float)(in_level / v.w) + 0.5f;
    a.target = {gt.x1 / v.stride, gt.y1 / v.stride, gt.x2 / v.stride, gt.y2 / v.stride};
    a.cls = (int32_t)gt.cls;
    return a;
}

/* One anchor by a warp. sum: lane 0's box term, every lane's share of the DFL's, lane 0's of the
 * class. */
template <typename T>
static __device__ __forceinline__ void foreground(const loss_t &p, int32_t image,
                                                  const loss_pick_t &pick, double (&sum)[3])
{
    const loss_level_t &v = p.level[loss_level(p, pick.anchor)];
    const anchor_t a = anchor_of(p, v, image, pick);
    const int32_t lane = (int32_t)threadIdx.x % 32, side = lane / 8;
    const float weight = pick.align; /* the target score */
    const side_t s = side_of((const T *)v.box + a.pixel * v.box_ld);
    const float far[4] = {__shfl_sync(0xffffffffu, s.mean, 0), __shfl_sync(0xffffffffu, s.mean, 8),
                          __shfl_sync(0xffffffffu, s.mean, 16),
                          __shfl_sync(0xffffffffu, s.mean, 24)};
    const box_t box = {a.ax - far[0], a.ay - far[1], a.ax + far[2], a.ay + far[3]};
    box_t g;
    const float ciou = boxes_ciou_grad(box, a.target, &g);
    const float unit = (float)((double)p.scale * (double)weight / divisor(p)) * loss_scale(p);
    const float k_box = p.gain_box * unit, k_dfl = p.gain_dfl * unit / 4.0f;
    const float goal = side == 0   ? a.ax - a.target.x1
                       : side == 1 ? a.ay - a.target.y1
                       : side == 2 ? a.target.x2 - a.ax
                                   : a.target.y2 - a.ay;
    const float k_mean = k_box * (side == 0 ? g.x1 : side == 1 ? g.y1 : side == 2 ? -g.x2 : -g.y2);
    float d[2];
    sum[2] += (double)side_loss(s, goal, k_dfl, k_mean, d) / 4.0 * (double)weight;
    if (v.dbox) {
        T *to = (T *)v.dbox + a.pixel * v.dbox_ld + lane * 2;
        to[0] = from_float<T>(d[0]);
        to[1] = from_float<T>(d[1]);
    }
    if (lane != 0)
        return;
    sum[0] += (double)((1.0f - ciou) * weight);
    const float x = to_float(((const T *)v.cls)[a.pixel * v.cls_ld + a.cls]);
    sum[1] -= (double)(x * weight);
    if (v.dcls) {
        const float k = (float)((double)p.gain_cls * (double)p.scale / divisor(p)) * loss_scale(p);
        float sigma;
        softplus(x, &sigma);
        ((T *)v.dcls)[a.pixel * v.dcls_ld + a.cls] = from_float<T>(k * sigma - p.gain_cls * unit);
    }
}

/* grid: strides over picks, a warp each. parts: double [blocks][3]. */
template <typename T>
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_foreground(const __grid_constant__ loss_t p, double *parts)
{
    __shared__ double lanes[32];
    const int64_t picks = (int64_t)p.n * p.max_gt * LOSS_TOPK, step = (int64_t)gridDim.x * WARPS;
    double sum[3] = {0.0, 0.0, 0.0};
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < picks; i += step) {
        const int64_t slot = i / LOSS_TOPK;
        if ((int32_t)(i % LOSS_TOPK) >= p.pick_count[slot])
            continue;
        const loss_pick_t pick = p.pick[i];
        if (pick.anchor >= 0)
            foreground<T>(p, (int32_t)(slot / p.max_gt), pick, sum);
    }
#pragma unroll
    for (int j = 0; j < 3; j++) {
        const double all = block_sum(sum[j], lanes);
        if (threadIdx.x == 0)
            parts[(int64_t)blockIdx.x * 3 + j] = all;
    }
}

/* ---- items ---- */

/* back: double [backs], fore: double [fores][3]. One block. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_items(const __grid_constant__ loss_t p, const double *back, int32_t backs,
               const double *fore, int32_t fores)
{
    __shared__ double lanes[32];
    double sum[3] = {0.0, 0.0, 0.0};
    for (int32_t i = (int32_t)threadIdx.x; i < backs; i += LOSS_THREADS)
        sum[1] += back[i];
    for (int32_t i = (int32_t)threadIdx.x; i < fores; i += LOSS_THREADS)
#pragma unroll
        for (int j = 0; j < 3; j++)
            sum[j] += fore[(int64_t)i * 3 + j];
#pragma unroll
    for (int j = 0; j < 3; j++)
        sum[j] = block_sum(sum[j], lanes);
    if (threadIdx.x != 0)
        return;
    const double s = divisor(p);
    p.items[0] = (float)((double)p.gain_box * sum[0] / s);
    p.items[1] = (float)((double)p.gain_cls * sum[1] / s);
    p.items[2] = (float)((double)p.gain_dfl * sum[2] / s);
    p.items[3] = (float)s;
}

/* 1 if class logits, their gradients and those of the boxes can all be moved 16 bytes at a time. */
static int vector_maps(const loss_t *p, k_dtype_t dtype)
{
    const uint64_t size = cuda_size(dtype), wide = 16 / size;
    for (int l = 0; l < K_LEVELS; l++) {
        const loss_level_t *v = &p->level[l];
        const uint64_t nc = (uint64_t)p->nc;
        const int one = v->cls_ld == p->nc && (!v->dcls || v->dcls_ld == p->nc);
        if ((uintptr_t)v->cls % 16 != 0 || (uintptr_t)v->dcls % 16 != 0 ||
            (uintptr_t)v->dbox % 16 != 0 || (v->dbox && (uint64_t)v->dbox_ld % wide != 0))
            return 0;
        if (one ? (uint64_t)p->n * (uint64_t)v->pixels * nc % wide != 0
                : nc % wide != 0 || (uint64_t)v->cls_ld % wide != 0 ||
                      (v->dcls && (uint64_t)v->dcls_ld % wide != 0))
            return 0;
    }
    return 1;
}

static void loss_terms(cuda_dev_t *dev, const loss_t *p, k_dtype_t dtype)
{
    const cudaStream_t s = cuda_main(dev);
    const int64_t picks = loss_slots(p) * LOSS_TOPK;
    const int64_t values =
        (int64_t)p->n * p->anchors * (p->nc + (p->level[0].dbox ? LOSS_BINS : 0));
    const int fores = picks > 0 ? cuda_blocks(dev, picks * 32, LOSS_THREADS) : 0;
    double *back = (double *)(void *)dev->scratch;
    int backs = 0;
    CUDA_BY_TYPE_AND_WIDTH(dtype, vector_maps(p, dtype), T, V, {
        backs = cuda_blocks(dev, values / V, LOSS_THREADS);
        loss_background<T, V><<<(unsigned)backs, LOSS_THREADS, 0, s>>>(*p, back);
    });
    double *fore = back + backs;
    if (picks > 0)
        CUDA_BY_TYPE(dtype, T,
                     { loss_foreground<T><<<(unsigned)fores, LOSS_THREADS, 0, s>>>(*p, fore); });
    loss_items<<<1, LOSS_THREADS, 0, s>>>(*p, back, backs, fore, fores);
}

/* ---- the operation ---- */

/* Gives out the next bytes of the work area; returns where they begin. */
static uint64_t take(uint64_t *used, uint64_t bytes)
{
    const uint64_t at = *used;
    *used += cuda_align(bytes);
    return at;
}

/* Lays the arrays into work (NULL: only the bytes are counted); returns the bytes. */
static uint64_t lay_out(loss_t *m, char *work)
{
    const uint64_t anchors = (uint64_t)m->n * (uint64_t)m->anchors;
    const uint64_t slots = (uint64_t)m->n * (uint64_t)m->max_gt;
    uint64_t used = 0;
    const uint64_t boxes = take(&used, anchors * sizeof(box_t));
    const uint64_t claim = take(&used, anchors * sizeof(loss_claim_t));
    const uint64_t pick = take(&used, slots * LOSS_TOPK * sizeof(loss_pick_t));
    const uint64_t pick_count = take(&used, slots * sizeof(int32_t));
    const uint64_t top = take(&used, slots * sizeof(loss_top_t));
    const uint64_t scores = take(&used, sizeof(double));
    if (!work)
        return used;
    m->boxes = (box_t *)(void *)(work + boxes);
    m->claim = (loss_claim_t *)(void *)(work + claim);
    m->pick = (loss_pick_t *)(void *)(work + pick);
    m->pick_count = (int32_t *)(void *)(work + pick_count);
    m->top = (loss_top_t *)(void *)(work + top);
    m->scores = (double *)(void *)(work + scores);
    return used;
}

/* Shapes without a check: for the size of the work. */
static void shape_of(const k_detect_loss_t *p, loss_t *m)
{
    m->n = p->box[0].n;
    m->nc = p->nc;
    m->max_gt = p->max_gt;
    m->anchors = 0;
    for (int l = 0; l < K_LEVELS; l++)
        m->anchors += p->box[l].h * p->box[l].w;
}

uint64_t cuda_detect_loss_work(k_dev_t *dev, const k_detect_loss_t *p)
{
    loss_t m = {};
    (void)dev;
    shape_of(p, &m);
    return lay_out(&m, NULL);
}

/* Checks a level's outputs and gradients; fills in what kernels know of them. */
static int level_open(cuda_dev_t *dev, const char *op, const k_detect_loss_t *p, int l,
                      loss_level_t *v)
{
    const k_tensor_t *box = &p->box[l], *cls = &p->cls[l], *dbox = &p->dbox[l], *dcls = &p->dcls[l];
    if (cuda_check_tensor(dev, op, "box", box) < 0 || cuda_check_tensor(dev, op, "cls", cls) < 0)
        return -1;
    if (box->c != LOSS_BINS || cls->c != p->nc)
        return cuda_fail(dev, "%s: level %d has %d box and %d class channels, not %d and %d", op, l,
                         box->c, cls->c, LOSS_BINS, p->nc);
    if (box->n != p->box[0].n || cls->n != p->box[0].n || cls->h != box->h || cls->w != box->w ||
        p->stride[l] <= 0)
        return cuda_fail(dev, "%s: level %d's box and class outputs differ in shape", op, l);
    if (box->dtype != p->box[0].dtype || cls->dtype != p->box[0].dtype)
        return cuda_fail(dev, "%s: level %d's outputs differ in format", op, l);
    const int none = p->dbox[0].at == K_NONE;
    if ((dbox->at == K_NONE) != none || (dcls->at == K_NONE) != none)
        return cuda_fail(dev, "%s: some gradients have a place and some have none", op);
    if (!none &&
        (cuda_check_tensor(dev, op, "dbox", dbox) < 0 ||
         cuda_check_tensor(dev, op, "dcls", dcls) < 0 || cuda_check_same(dev, op, box, dbox) < 0 ||
         cuda_check_same(dev, op, cls, dcls) < 0))
        return -1;
    v->box = cuda_ptr(dev, box->at);
    v->cls = cuda_ptr(dev, cls->at);
    v->dbox = none ? NULL : cuda_ptr(dev, dbox->at);
    v->dcls = none ? NULL : cuda_ptr(dev, dcls->at);
    v->box_ld = box->ld;
    v->cls_ld = cls->ld;
    v->dbox_ld = dbox->ld;
    v->dcls_ld = dcls->ld;
    v->h = box->h;
    v->w = box->w;
    v->pixels = box->h * box->w;
    v->stride = (float)p->stride[l];
    return 0;
}

/* Checks the call; fills in the problem. scores: where the sum of target scores is, K_NONE for the
 * work's own. */
static int loss_open(cuda_dev_t *dev, const char *op, const k_detect_loss_t *p, k_at scores,
                     loss_t *m)
{
    int64_t anchors = 0;
    for (int l = 0; l < K_LEVELS; l++) {
        anchors += (int64_t)p->box[l].h * p->box[l].w;
        if (anchors > INT32_MAX)
            return cuda_fail(dev, "%s: more than %d anchors", op, INT32_MAX);
        m->level[l].first = (int32_t)(anchors - (int64_t)p->box[l].h * p->box[l].w);
        if (level_open(dev, op, p, l, &m->level[l]) < 0)
            return -1;
    }
    if (p->max_gt < 0 || (int64_t)p->box[0].n * p->max_gt > INT32_MAX)
        return cuda_fail(dev, "%s: room for %d boxes in each of %d images is impossible", op,
                         p->max_gt, p->box[0].n);
    shape_of(p, m);
    const uint64_t need = lay_out(m, NULL), slots = (uint64_t)loss_slots(m);
    if (p->work_bytes < need)
        return cuda_fail(dev, "%s: %llu bytes of work, needs %llu", op,
                         (unsigned long long)p->work_bytes, (unsigned long long)need);
    if (cuda_check_place(dev, op, "work", p->work, need, sizeof(box_t)) < 0 ||
        cuda_check_place(dev, op, "items", p->items, 4 * sizeof(float), sizeof(float)) < 0 ||
        cuda_check_place(dev, op, "gt", p->gt, slots * sizeof(k_gt_t), sizeof(float)) < 0 ||
        cuda_check_place(dev, op, "gt_count", p->gt_count, (uint64_t)m->n * sizeof(int32_t),
                         sizeof(int32_t)) < 0 ||
        (p->scaling != K_NONE && cuda_check_place(dev, op, "scaling", p->scaling,
                                                  sizeof(k_scaling_t), sizeof(float)) < 0) ||
        (scores != K_NONE &&
         cuda_check_place(dev, op, "sum", scores, sizeof(double), sizeof(double)) < 0))
        return -1;
    lay_out(m, (char *)cuda_ptr(dev, p->work));
    m->gt = (const k_gt_t *)cuda_ptr(dev, p->gt);
    m->gt_count = (const int32_t *)cuda_ptr(dev, p->gt_count);
    m->gain_box = p->gain_box;
    m->gain_cls = p->gain_cls;
    m->gain_dfl = p->gain_dfl;
    m->scale = p->scale;
    m->scaling = p->scaling == K_NONE ? NULL : (const k_scaling_t *)cuda_ptr(dev, p->scaling);
    m->items = cuda_f32(dev, p->items);
    if (scores != K_NONE)
        m->scores = (double *)cuda_ptr(dev, scores);
    return 0;
}

int cuda_detect_loss(k_dev_t *device, const k_detect_loss_t *p)
{
    cuda_dev_t *dev = cuda_dev(device);
    loss_t m = {};
    if (loss_open(dev, "detect_loss", p, K_NONE, &m) < 0)
        return -1;
    loss_assign(dev, &m, p->box[0].dtype);
    loss_terms(dev, &m, p->box[0].dtype);
    return cuda_launched(dev, "detect_loss");
}

/* K_NONE is no place for the sum, though loss_open takes it for the work's own. */
static int sum_open(cuda_dev_t *dev, const char *op, const k_detect_loss_t *p, loss_t *m)
{
    if (cuda_check_place(dev, op, "sum", p->sum, sizeof(double), sizeof(double)) < 0)
        return -1;
    return loss_open(dev, op, p, p->sum, m);
}

int cuda_detect_assign(k_dev_t *device, const k_detect_loss_t *p)
{
    cuda_dev_t *dev = cuda_dev(device);
    loss_t m = {};
    if (sum_open(dev, "detect_assign", p, &m) < 0)
        return -1;
    loss_assign(dev, &m, p->box[0].dtype);
    return cuda_launched(dev, "detect_assign");
}

int cuda_detect_terms(k_dev_t *device, const k_detect_loss_t *p)
{
    cuda_dev_t *dev = cuda_dev(device);
    loss_t m = {};
    if (sum_open(dev, "detect_terms", p, &m) < 0)
        return -1;
    loss_terms(dev, &m, p->box[0].dtype);
    return cuda_launched(dev, "detect_terms");
}
