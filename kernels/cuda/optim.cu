/* Clip, update and loss scale (facts/yolo.md 4.1, 4.5): PyTorch's formulas, as kernels/cpu/optim.c
 * has them. What changes from step to step is read from device memory (k_hyper_t, k_scaling_t), so
 * that a recorded step can be replayed.
 */
#include "kernels/cuda/types.cuh"

#include <math.h>

enum { OPTIM_THREADS = 256, NORM_BLOCKS = 512 };

/* PyTorch's GradScaler (facts/yolo.md 4.5). */
static const float SCALE_UP = 2.0f, SCALE_DOWN = 0.5f, SCALE_AFTER = 2000.0f;

/* ---- norm ---- */

static __global__ void square_parts(const float *g, int64_t count, double *parts)
{
    __shared__ double lanes[32];
    double sum = 0;
    const int64_t step = (int64_t)gridDim.x * OPTIM_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * OPTIM_THREADS + threadIdx.x; i < count; i += step)
        sum += (double)g[i] * (double)g[i];
    sum = block_sum(sum, lanes);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = sum;
}

static __global__ void norm_of_parts(const double *parts, int count, const k_hyper_t *hyper,
                                     k_scaling_t *scaling)
{
    __shared__ double lanes[32];
    double sum = 0;
    for (int i = (int)threadIdx.x; i < count; i += OPTIM_THREADS)
        sum += parts[i];
    sum = block_sum(sum, lanes);
    if (threadIdx.x == 0)
        scaling->norm = (float)(sqrt(sum) * (double)hyper->grad_scale / (double)scaling->scale);
}

extern "C" int cuda_grad_norm(k_dev_t *base, k_at g, uint64_t count, k_at hyper, k_at norm)
{
    cuda_dev_t *dev = cuda_dev(base);
    if (cuda_check_place(dev, "grad_norm", "g", g, count * sizeof(float), 4) < 0 ||
        cuda_check_place(dev, "grad_norm", "hyper", hyper, sizeof(k_hyper_t), 4) < 0 ||
        cuda_check_place(dev, "grad_norm", "norm", norm, sizeof(k_scaling_t), 4) < 0)
        return -1;
    double *parts = (double *)(void *)dev->scratch;
    square_parts<<<NORM_BLOCKS, OPTIM_THREADS, 0, cuda_main(dev)>>>(cuda_f32(dev, g),
                                                                    (int64_t)count, parts);
    norm_of_parts<<<1, OPTIM_THREADS, 0, cuda_main(dev)>>>(parts, NORM_BLOCKS,
                                                           (const k_hyper_t *)cuda_ptr(dev, hyper),
                                                           (k_scaling_t *)cuda_ptr(dev, norm));
    return cuda_launched(dev, "grad_norm");
}

/* ---- updates ---- */

/* What every thread of an update needs. */
typedef struct {
    float clip; /* gradient's factor: scaling undone, clipped */
    float skipped;
    int leave; /* the norm is not finite under loss scaling: weights and momenta stay */
} factor_t;

/* A scale of exactly 1 may also have come down from more. */
__device__ __forceinline__ bool is_scaled(const k_scaling_t *s)
{
    return s->scale != 1.0f || s->skipped != 0.0f || s->good != 0.0f;
}

__device__ __forceinline__ factor_t factor_of(const k_hyper_t *h, const k_scaling_t *s)
{
    factor_t f;
    const float most = h->max_norm / (s->norm + 1e-6f);
    f.clip = (most > 1.0f ? 1.0f : most) * h->grad_scale / s->scale;
    f.skipped = s->skipped;
    f.leave = is_scaled(s) && !isfinite(s->norm);
    return f;
}

static __global__ void sgd(float *w, float *g, float *m, int64_t count, int group,
                           const k_hyper_t *h, const k_scaling_t *s)
{
    const factor_t f = factor_of(h, s);
    const float lr = h->lr[group], decay = h->weight_decay[group], momentum = h->momentum;
    /* Whatever the buffer held before the first update that is made. */
    const bool first = h->step > 0 ? h->step - f.skipped == 1.0f : h->first_step != 0;
    const int64_t step = (int64_t)gridDim.x * OPTIM_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * OPTIM_THREADS + threadIdx.x; i < count; i += step) {
        if (!f.leave) {
            const float d = g[i] * f.clip + decay * w[i];
            const float buf = first ? d : momentum * m[i] + d;
            m[i] = buf;
            w[i] -= lr * (d + momentum * buf);
        }
        g[i] = 0.0f;
    }
}

static __global__ void adamw(float *w, float *g, float *m, float *v, int64_t count, int group,
                             const k_hyper_t *h, const k_scaling_t *s)
{
    const factor_t f = factor_of(h, s);
    const float b1 = h->momentum, b2 = h->beta2, eps = h->eps;
    float bias1 = h->bias1, bias2 = h->bias2;
    if (f.skipped > 0.0f) { /* bias corrections count the updates that were made */
        const double t = (double)h->step - (double)f.skipped;
        bias1 = (float)(1.0 - pow((double)b1, t));
        bias2 = (float)(1.0 - pow((double)b2, t));
    }
    const float shrink = 1.0f - h->lr[group] * h->weight_decay[group];
    const float rate = h->lr[group] / bias1, root2 = sqrtf(bias2);
    const int64_t step = (int64_t)gridDim.x * OPTIM_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * OPTIM_THREADS + threadIdx.x; i < count; i += step) {
        if (!f.leave) {
            const float d = g[i] * f.clip;
            const float m1 = m[i] + (1.0f - b1) * (d - m[i]);
            const float v1 = b2 * v[i] + (1.0f - b2) * d * d;
            m[i] = m1;
            v[i] = v1;
            w[i] = w[i] * shrink - rate * (m1 / (sqrtf(v1) / root2 + eps));
        }
        g[i] = 0.0f;
    }
}

static int check_update(cuda_dev_t *dev, const char *op, k_at w, k_at g, k_at m, k_at v,
                        uint64_t count, int32_t group, k_at hyper, k_at norm)
{
    const uint64_t bytes = count * sizeof(float);
    if (cuda_check_place(dev, op, "w", w, bytes, 4) < 0 ||
        cuda_check_place(dev, op, "g", g, bytes, 4) < 0 ||
        cuda_check_place(dev, op, "m", m, bytes, 4) < 0 ||
        cuda_check_place(dev, op, "v", v, bytes, 4) < 0 ||
        cuda_check_place(dev, op, "hyper", hyper, sizeof(k_hyper_t), 4) < 0 ||
        cuda_check_place(dev, op, "norm", norm, sizeof(k_scaling_t), 4) < 0)
        return -1;
    if (group < 0 || group >= 3)
        return cuda_fail(dev, "%s: parameter group %d of 3", op, group);
    return 0;
}

extern "C" int cuda_sgd(k_dev_t *base, k_at w, k_at g, k_at m, uint64_t count, int32_t group,
                        k_at hyper, k_at norm)
{
    cuda_dev_t *dev = cuda_dev(base);
    if (check_update(dev, "sgd", w, g, m, m, count, group, hyper, norm) < 0)
        return -1;
    sgd<<<cuda_blocks(dev, (int64_t)count, OPTIM_THREADS), OPTIM_THREADS, 0, cuda_main(dev)>>>(
        cuda_f32(dev, w), cuda_f32(dev, g), cuda_f32(dev, m), (int64_t)count, group,
        (const k_hyper_t *)cuda_ptr(dev, hyper), (const k_scaling_t *)cuda_ptr(dev, norm));
    return cuda_launched(dev, "sgd");
}

extern "C" int cuda_adamw(k_dev_t *base, k_at w, k_at g, k_at m, k_at v, uint64_t count,
                          int32_t group, k_at hyper, k_at norm)
{
    cuda_dev_t *dev = cuda_dev(base);
    if (check_update(dev, "adamw", w, g, m, v, count, group, hyper, norm) < 0)
        return -1;
    adamw<<<cuda_blocks(dev, (int64_t)count, OPTIM_THREADS), OPTIM_THREADS, 0, cuda_main(dev)>>>(
        cuda_f32(dev, w), cuda_f32(dev, g), cuda_f32(dev, m), cuda_f32(dev, v), (int64_t)count,
        group, (const k_hyper_t *)cuda_ptr(dev, hyper), (const k_scaling_t *)cuda_ptr(dev, norm));
    return cuda_launched(dev, "adamw");
}

/* ---- loss scale ---- */

static __global__ void scale_update(k_scaling_t *s)
{
    if (!is_scaled(s))
        return;
    if (!isfinite(s->norm)) {
        s->scale *= SCALE_DOWN;
        s->skipped += 1.0f;
        s->good = 0.0f;
    } else if (++s->good >= SCALE_AFTER) {
        s->scale *= SCALE_UP;
        s->good = 0.0f;
    }
}

extern "C" int cuda_scale_update(k_dev_t *base, k_at norm)
{
    cuda_dev_t *dev = cuda_dev(base);
    if (cuda_check_place(dev, "scale_update", "norm", norm, sizeof(k_scaling_t), 4) < 0)
        return -1;
    scale_update<<<1, 1, 0, cuda_main(dev)>>>((k_scaling_t *)cuda_ptr(dev, norm));
    return cuda_launched(dev, "scale_update");
}
