/* Batch normalisation, activation and residual in one pass: y = act(gamma * (x - mean) * invstd +
 * beta) + residual, from the batch's statistics or, frozen, from the running ones. y is
 * overwritten; it may lie where x or the residual does, since a thread reads a value before it
 * writes there. */
#include "kernels/cuda/bn.cuh"

enum { APPLY_LOADS = 2 }; /* pixels in flight before the first is used */

typedef struct {
    const float *gamma, *beta, *mean;
    const float *spread; /* invstd; frozen: the variance */
    float eps;
    int frozen;
} apply_from_t;

template <typename T, int V, int SILU>
static __global__ void __launch_bounds__(TILE_THREADS)
    bn_apply(tile_t t, apply_from_t from, const T *x, int64_t x_ld, const T *r, int64_t r_ld, T *y,
             int64_t y_ld)
{
    const tile_spot_t at = tile_spot(t);
    if (at.item >= t.items)
        return;
    float mean[V], scale[V], beta[V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        const int c = at.group * V + k;
        const float s = from.spread[c];
        mean[k] = from.mean[c];
        scale[k] = from.gamma[c] * (from.frozen ? 1.0f / sqrtf(s + from.eps) : s);
        beta[k] = from.beta[c];
    }
    x += at.group * V;
    y += at.group * V;
    r = r ? r + at.group * V : r;
    for (int64_t i = at.item; i < t.items; i += APPLY_LOADS * at.step) {
        float v[APPLY_LOADS][V], add[APPLY_LOADS][V] = {};
#pragma unroll
        for (int u = 0; u < APPLY_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
            load(x + (i + u * at.step) * x_ld, v[u]);
            if (r)
                load(r + (i + u * at.step) * r_ld, add[u]);
        }
#pragma unroll
        for (int u = 0; u < APPLY_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float z = (v[u][k] - mean[k]) * scale[k] + beta[k];
                v[u][k] = (SILU ? bn_silu(z) : z) + add[u][k];
            }
            store(y + (i + u * at.step) * y_ld, v[u]);
        }
    }
}

/* A residual in registers that is zero costs an addition that memory hides. */
template <typename T, int V, int SILU>
static void launch(cuda_dev_t *dev, const apply_from_t *from, const k_tensor_t *x,
                   const k_tensor_t *r, const k_tensor_t *y)
{
    const tile_t t = tile_share(dev, cuda_pixels(x), x->c / V, 2 * APPLY_LOADS);
    bn_apply<T, V, SILU><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
        t, *from, (const T *)cuda_ptr(dev, x->at), x->ld,
        r ? (const T *)cuda_ptr(dev, r->at) : NULL, r ? r->ld : 0, (T *)cuda_ptr(dev, y->at),
        y->ld);
}

int cuda_bn_apply(k_dev_t *device, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *residual,
                  const k_tensor_t *y, k_act_t act, int frozen)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "bn_apply";
    if (bn_check(dev, op, p, x) < 0 || cuda_check_tensor(dev, op, "y", y) < 0 ||
        cuda_check_same(dev, op, x, y) < 0)
        return -1;
    if (residual && (cuda_check_tensor(dev, op, "residual", residual) < 0 ||
                     cuda_check_same(dev, op, x, residual) < 0))
        return -1;
    const uint64_t bytes = (uint64_t)x->c * sizeof(float);
    const k_at mean = frozen ? p->running_mean : p->mean;
    const k_at spread = frozen ? p->running_var : p->invstd;
    if (cuda_check_place(dev, op, frozen ? "running_mean" : "mean", mean, bytes, 4) < 0 ||
        cuda_check_place(dev, op, frozen ? "running_var" : "invstd", spread, bytes, 4) < 0)
        return -1;
    const apply_from_t from = {cuda_f32(dev, p->gamma),
                               cuda_f32(dev, p->beta),
                               cuda_f32(dev, mean),
                               cuda_f32(dev, spread),
                               p->eps,
                               frozen};
    const int vector = cuda_vector(x) && cuda_vector(y) && (!residual || cuda_vector(residual));
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, vector, T, V, {
        if (act == K_ACT_SILU)
            launch<T, V, 1>(dev, &from, x, residual, y);
        else
            launch<T, V, 0>(dev, &from, x, residual, y);
    });
    return cuda_launched(dev, op);
}
