/* The detection head's outputs as a list of anchors (facts/yolo.md 1.2, 1.3): level-major,
 * row-major inside a level. Shared by the loss and NMS. A row is one line of one level; rows are
 * the items that threads share.
 */
#ifndef SLUICE_KERNELS_CPU_ANCHORS_H
#define SLUICE_KERNELS_CPU_ANCHORS_H

#include "kernels/cpu/boxes.h"
#include "kernels/cpu/cpu.h"

enum { ANCHORS_BINS = 4 * K_REG_MAX };

typedef struct {
    const k_tensor_t *box, *cls; /* [K_LEVELS] */
    const float *box_at[K_LEVELS], *cls_at[K_LEVELS];
    int32_t n, nc, anchors, rows; /* anchors and rows of one image */
    int32_t h[K_LEVELS], w[K_LEVELS], stride[K_LEVELS];
    int32_t first_anchor[K_LEVELS], first_row[K_LEVELS];
} anchors_t;

/* One row: level, line, its first anchor of the image, pixels before it in the level's tensor. */
typedef struct {
    int32_t image, level, y, w, anchor;
    int64_t pixel;
} anchor_row_t;

/* Sizes and places without a check: for the work functions. */
void anchors_shape(const k_tensor_t box[K_LEVELS], const k_tensor_t cls[K_LEVELS],
                   const int32_t stride[K_LEVELS], int32_t nc, anchors_t *h);
/* Checks shapes and places; negative with the device's sentence. */
int anchors_open(cpu_dev_t *dev, const char *op, const k_tensor_t box[K_LEVELS],
                 const k_tensor_t cls[K_LEVELS], const int32_t stride[K_LEVELS], int32_t nc,
                 anchors_t *h);
/* item in [0, n * rows). */
anchor_row_t anchors_row(const anchors_t *h, int64_t item);
/* Level, line and column of an anchor. */
void anchors_locate(const anchors_t *h, int32_t anchor, int32_t *level, int32_t *y, int32_t *x);

/* Pixel index of an anchor in its level's tensors. */
static inline int64_t anchors_pixel(const anchors_t *h, int32_t image, int32_t level, int32_t y,
                                    int32_t x)
{
    return ((int64_t)image * h->h[level] + y) * h->w[level] + x;
}

static inline const float *anchors_logits(const anchors_t *h, int32_t level, int64_t pixel)
{
    return h->cls_at[level] + pixel * h->cls[level].ld;
}

static inline const float *anchors_bins(const anchors_t *h, int32_t level, int64_t pixel)
{
    return h->box_at[level] + pixel * h->box[level].ld;
}

/* Softmax expectation of 4 x 16 bins and decoding of `count` anchors (x, y), (x + 1, y), ..: boxes
 * in grid units. bins: the first anchor's, ld floats apart. */
void anchors_decode(const float *bins, int32_t ld, int32_t count, int32_t x, int32_t y,
                    box_t *boxes);

#endif
