/* Suppression's inside: the problem as its kernels see it, and the work of an image. For nms*.cu
 * only. nms.cu says how the parts follow each other.
 */
#ifndef SLUICE_KERNELS_CUDA_NMS_CUH
#define SLUICE_KERNELS_CUDA_NMS_CUH

#include "kernels/cuda/types.cuh"

enum { NMS_BINS = 2048, NMS_DIGITS = 6, NMS_CHUNK = 2048 };

/* The digits of a key, from the top: 11, 11, 10 bits of the score, then of the index. */
static __host__ __device__ inline int nms_shift(int digit)
{
    return digit == 0   ? 53
           : digit == 1 ? 42
           : digit == 2 ? 32
           : digit == 3 ? 21
           : digit == 4 ? 10
                        : 0;
}

static __host__ __device__ inline int nms_bits(int digit)
{
    return digit % 3 == 2 ? 10 : 11;
}

/* Where the search for an image's last key taken stands. */
typedef struct {
    uint64_t prefix; /* its digits found so far, zeros below */
    uint64_t last;   /* found: keys up to this one are taken */
    uint32_t want;   /* how many of those with this prefix are taken */
    uint32_t found;
    uint32_t count; /* keys collected */
    uint32_t pad;
} nms_state_t;

typedef struct {
    const void *box[K_LEVELS], *cls[K_LEVELS];
    int32_t box_ld[K_LEVELS], cls_ld[K_LEVELS];
    int32_t w[K_LEVELS], stride[K_LEVELS];
    int64_t pixels[K_LEVELS];     /* of an image */
    uint32_t first[K_LEVELS + 1]; /* anchor; the last: anchors of an image */
    uint32_t images, nc, max_nms, max_det, agnostic;
    float conf, iou, least, sure; /* no logit below least passes, every one above sure does */
    k_det_t *dets;
    int32_t *counts;
    /* Of an image, one behind the other: */
    uint64_t *keys, *spare; /* [images][max_nms] */
    uint32_t *bins;         /* [images][NMS_BINS] */
    nms_state_t *state;     /* [images] */
} nms_t;

/* The sigmoid with its argument kept from where exp overflows: above 0 for every number, as the
 * CPU's. */
__device__ __forceinline__ float nms_sigmoid(float x)
{
    return sigmoid(fminf(fmaxf(x, -87.0f), 87.0f));
}

/* A float's bits as an unsigned number of the same order. */
__device__ __forceinline__ uint32_t nms_ordered(float x)
{
    const uint32_t b = __float_as_uint(x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ __forceinline__ int nms_level(const nms_t &p, uint32_t anchor)
{
    return anchor >= p.first[2] ? 2 : anchor >= p.first[1] ? 1 : 0;
}

/* nms_select.cu: keys[image][0 .. state.count) = the best max_nms keys of each image, in any order.
 */
void nms_select(cuda_dev_t *dev, const nms_t *p, k_dtype_t dtype);
/* nms_sort.cu: sorts them up; the sorted keys are where it points afterwards, keys or spare. */
const uint64_t *nms_sort(cuda_dev_t *dev, const nms_t *p);

#endif
