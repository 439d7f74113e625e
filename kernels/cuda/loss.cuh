/* The loss's inside: the problem as its kernels see it, and the work of a call. For assign.cu and
 * loss.cu only; loss.cu says how the parts follow each other.
 *
 * Anchors are numbered level by level, row by row inside a level. A slot is a place for a box:
 * image * max_gt + box; a pick is one of the LOSS_TOPK anchors that a slot's box has chosen.
 */
#ifndef SLUICE_KERNELS_CUDA_LOSS_CUH
#define SLUICE_KERNELS_CUDA_LOSS_CUH

#include "kernels/cuda/boxes.cuh"
#include "kernels/cuda/types.cuh"

enum { LOSS_TOPK = 10, LOSS_BINS = 4 * K_REG_MAX, LOSS_THREADS = 256 };

typedef struct {
    const void *box, *cls;
    void *dbox, *dcls; /* NULL: loss only */
    int32_t box_ld, cls_ld, dbox_ld, dcls_ld;
    int32_t h, w, first; /* number of its first anchor */
    int32_t pixels;      /* h * w */
    float stride;
} loss_level_t;

/* An anchor that a box has chosen; behind assign_resolve, with the box that gets it. */
struct __align__(16) loss_pick_t
{
    int32_t anchor; /* -1: another pick stands for this anchor */
    int32_t owner;  /* among the image's boxes */
    float align;    /* behind assign_weigh: the target score */
    float overlap;
};

/* First and last of the boxes that have chosen an anchor. */
struct __align__(8) loss_claim_t
{
    int32_t first, last; /* INT32_MAX and -1: none */
};

/* The largest align and overlap of a box's anchors, as bits: floats that are not negative have the
 * order of their bits. */
struct __align__(8) loss_top_t
{
    int32_t align, overlap;
};

typedef struct {
    loss_level_t level[K_LEVELS];
    int32_t n, nc, anchors, max_gt; /* anchors of an image */
    const k_gt_t *gt;
    const int32_t *gt_count;
    float gain_box, gain_cls, gain_dfl, scale;
    const k_scaling_t *scaling; /* NULL: none */
    float *items;
    double *scores; /* sum of target scores */
    /* work */
    box_t *boxes;        /* [n][anchors] predictions, grid units */
    loss_claim_t *claim; /* [n][anchors] */
    loss_pick_t *pick;   /* [n][max_gt][LOSS_TOPK] */
    int32_t *pick_count; /* [n][max_gt] */
    loss_top_t *top;     /* [n][max_gt] */
} loss_t;

/* Boxes of an image: what the count says, as far as there is room. */
static __device__ __forceinline__ int32_t loss_boxes(const loss_t &p, int32_t image)
{
    return max(0, min(p.gt_count[image], p.max_gt));
}

/* Padding and empty rows have no coordinate above 0 (facts/yolo.md 3.1); a class that the head does
 * not have is ignored. */
static __device__ __forceinline__ bool loss_is_real(const loss_t &p, const k_gt_t &g)
{
    return g.x1 + g.y1 + g.x2 + g.y2 > 0.0f && g.cls >= 0.0f && g.cls < (float)p.nc;
}

static __device__ __forceinline__ int loss_level(const loss_t &p, int32_t anchor)
{
    return anchor >= p.level[2].first ? 2 : anchor >= p.level[1].first ? 1 : 0;
}

static inline int64_t loss_slots(const loss_t *p)
{
    return (int64_t)p->n * p->max_gt;
}

/* assign.cu: targets (facts/yolo.md 3.3). Fills boxes and picks; *scores = the sum of the target
 * scores. */
void loss_assign(cuda_dev_t *dev, const loss_t *p, k_dtype_t dtype);

#endif
