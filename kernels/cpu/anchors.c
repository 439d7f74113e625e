#include "kernels/cpu/anchors.h"

#include "kernels/cpu/vexp.h"

#include <string.h>

void anchors_shape(const k_tensor_t box[K_LEVELS], const k_tensor_t cls[K_LEVELS],
                   const int32_t stride[K_LEVELS], int32_t nc, anchors_t *h)
{
    memset(h, 0, sizeof *h);
    h->box = box;
    h->cls = cls;
    h->n = box[0].n;
    h->nc = nc;
    for (int l = 0; l < K_LEVELS; l++) {
        h->h[l] = box[l].h;
        h->w[l] = box[l].w;
        h->stride[l] = stride[l];
        h->first_anchor[l] = h->anchors;
        h->first_row[l] = h->rows;
        h->anchors += box[l].h * box[l].w;
        h->rows += box[l].h;
    }
}

int anchors_open(cpu_dev_t *dev, const char *op, const k_tensor_t box[K_LEVELS],
                 const k_tensor_t cls[K_LEVELS], const int32_t stride[K_LEVELS], int32_t nc,
                 anchors_t *h)
{
    for (int l = 0; l < K_LEVELS; l++) {
        if (cpu_check_tensor(dev, op, "box", &box[l]) < 0 ||
            cpu_check_tensor(dev, op, "cls", &cls[l]) < 0)
            return -1;
        if (box[l].c != ANCHORS_BINS || cls[l].c != nc)
            return cpu_fail(dev, "%s: level %d has %d box and %d class channels, not %d and %d", op,
                            l, box[l].c, cls[l].c, ANCHORS_BINS, nc);
        if (box[l].n != box[0].n || cls[l].n != box[0].n || cls[l].h != box[l].h ||
            cls[l].w != box[l].w || stride[l] <= 0)
            return cpu_fail(dev, "%s: level %d's box and class outputs differ in shape", op, l);
    }
    anchors_shape(box, cls, stride, nc, h);
    for (int l = 0; l < K_LEVELS; l++) {
        h->box_at[l] = cpu_f32(dev, box[l].at);
        h->cls_at[l] = cpu_f32(dev, cls[l].at);
    }
    return 0;
}

anchor_row_t anchors_row(const anchors_t *h, int64_t item)
{
    anchor_row_t r;
    int32_t row = (int32_t)(item % h->rows);
    r.image = (int32_t)(item / h->rows);
    r.level = K_LEVELS - 1;
    while (row < h->first_row[r.level])
        r.level--;
    r.y = row - h->first_row[r.level];
    r.w = h->w[r.level];
    r.anchor = h->first_anchor[r.level] + r.y * r.w;
    r.pixel = anchors_pixel(h, r.image, r.level, r.y, 0);
    return r;
}

void anchors_locate(const anchors_t *h, int32_t anchor, int32_t *level, int32_t *y, int32_t *x)
{
    int32_t l = K_LEVELS - 1;
    while (anchor < h->first_anchor[l])
        l--;
    *level = l;
    *y = (anchor - h->first_anchor[l]) / h->w[l];
    *x = (anchor - h->first_anchor[l]) % h->w[l];
}

/* Folds each side's 16 lanes by halves: an order the compiler may vectorise without reassociating.
 */
CPU_INLINE float fold_sum(float *v)
{
    for (int half = K_REG_MAX / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            v[i] += v[i + half];
    return v[0];
}

CPU_INLINE float fold_max(float *v)
{
    for (int half = K_REG_MAX / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
    return v[0];
}

CPU_INLINE float expectation(const float *bins)
{
    float e[K_REG_MAX], s[K_REG_MAX];
    for (int i = 0; i < K_REG_MAX; i++)
        s[i] = bins[i];
    float top = fold_max(s);
    for (int i = 0; i < K_REG_MAX; i++) {
        e[i] = cpu_expf(bins[i] - top);
        s[i] = e[i] * (float)i;
    }
    return fold_sum(s) / fold_sum(e);
}

CPU_VECTOR void anchors_decode(const float *bins, int32_t ld, int32_t count, int32_t x, int32_t y,
                               box_t *boxes)
{
    for (int32_t i = 0; i < count; i++, bins += ld) {
        float ax = (float)(x + i) + 0.5f, ay = (float)y + 0.5f;
        boxes[i].x1 = ax - expectation(bins);
        boxes[i].y1 = ay - expectation(bins + K_REG_MAX);
        boxes[i].x2 = ax + expectation(bins + 2 * K_REG_MAX);
        boxes[i].y2 = ay + expectation(bins + 3 * K_REG_MAX);
    }
}
