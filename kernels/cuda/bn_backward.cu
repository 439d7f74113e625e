/* Backward of batch normalisation with activation, in two passes over x and dy. With xhat = (x -
 * mean) * invstd, z = gamma * xhat + beta and dz = dy * act'(z):
 * bn_bwd_stats: sums of dz and dz * xhat by channel, overwritten in bwd_stats; added to dbeta and
 * dgamma. bn_bwd_apply: dx = gamma * invstd * (dz - mean(dz) - xhat * mean(dz * xhat)), overwritten;
 * dx may lie where dy does, since a thread reads a value before it writes there.
 */
#include "kernels/cuda/bn.cuh"

enum { BACK_LOADS = 2 }; /* pixels in flight before the first is used */

typedef struct {
    const float *gamma, *beta, *mean, *invstd;
    const double *stats; /* bn_bwd_apply: sums of dz and dz * xhat over `count` pixels */
    double count;
} back_from_t;

template <typename T, int V, int SILU>
static __global__ void __launch_bounds__(TILE_THREADS)
    bn_bwd_stats(tile_t t, back_from_t from, const T *x, int64_t x_ld, const T *dy, int64_t dy_ld,
                 int c, double *parts)
{
    __shared__ double lanes[2 * V * TILE_THREADS];
    const tile_spot_t at = tile_spot(t);
    float mean[V], invstd[V], gamma[V], beta[V], s[V] = {}, q[V] = {};
#pragma unroll
    for (int k = 0; k < V; k++) {
        const int channel = at.group < t.groups ? at.group * V + k : 0;
        mean[k] = from.mean[channel];
        invstd[k] = from.invstd[channel];
        gamma[k] = from.gamma[channel];
        beta[k] = from.beta[channel];
    }
    x += at.group * V;
    dy += at.group * V;
    for (int64_t i = at.item; i < t.items; i += BACK_LOADS * at.step) {
        float v[BACK_LOADS][V], g[BACK_LOADS][V];
#pragma unroll
        for (int u = 0; u < BACK_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
            load(x + (i + u * at.step) * x_ld, v[u]);
            load(dy + (i + u * at.step) * dy_ld, g[u]);
        }
#pragma unroll
        for (int u = 0; u < BACK_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float xhat = (v[u][k] - mean[k]) * invstd[k];
                const float dz =
                    SILU ? g[u][k] * bn_silu_slope(gamma[k] * xhat + beta[k]) : g[u][k];
                s[k] += dz;
                q[k] += dz * xhat;
            }
        }
    }
    double sums[2 * V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        sums[k] = s[k];
        sums[V + k] = q[k];
    }
    tile_sums(t, sums, lanes);
    if (at.row > 0 || at.group >= t.groups)
        return;
    parts += (int64_t)blockIdx.x * 2 * c + at.group * V;
#pragma unroll
    for (int k = 0; k < V; k++) {
        parts[k] = sums[k];
        parts[c + k] = sums[V + k];
    }
}

/* dx as scale dz - (k1 (x - mean) + k2); a block works out the constants of its channels once. */
enum { BACK_MEAN, BACK_SCALE, BACK_BETA, BACK_K1, BACK_K2, BACK_CONSTANTS };

template <int V>
__device__ __forceinline__ void back_constants(const tile_t &t, const back_from_t &from,
                                               float (&to)[BACK_CONSTANTS][V])
{
    __shared__ float of[BACK_CONSTANTS][TILE_GROUPS * V];
    const int c = t.groups * V, first = (int)blockIdx.y * t.tile * V;
    for (int j = (int)threadIdx.x; j < t.tile * V && first + j < c; j += (int)blockDim.x) {
        const int channel = first + j;
        const float inv = from.invstd[channel], scale = from.gamma[channel] * inv;
        of[BACK_MEAN][j] = from.mean[channel];
        of[BACK_SCALE][j] = scale;
        of[BACK_BETA][j] = from.beta[channel];
        of[BACK_K1][j] = (float)((double)scale * inv * (from.stats[c + channel] / from.count));
        of[BACK_K2][j] = (float)(scale * (from.stats[channel] / from.count));
    }
    __syncthreads();
    const int j = (int)threadIdx.x % t.tile * V;
#pragma unroll
    for (int i = 0; i < BACK_CONSTANTS; i++)
#pragma unroll
        for (int k = 0; k < V; k++)
            to[i][k] = of[i][j + k];
}

template <typename T, int V, int SILU>
static __global__ void __launch_bounds__(TILE_THREADS)
    bn_bwd_apply(tile_t t, back_from_t from, const T *x, int64_t x_ld, const T *dy, int64_t dy_ld,
                 T *dx, int64_t dx_ld)
{
    const tile_spot_t at = tile_spot(t);
    float of[BACK_CONSTANTS][V];
    back_constants(t, from, of);
    x += at.group * V;
    dy += at.group * V;
    dx += at.group * V;
    for (int64_t i = at.item; i < t.items; i += BACK_LOADS * at.step) {
        float v[BACK_LOADS][V], g[BACK_LOADS][V];
#pragma unroll
        for (int u = 0; u < BACK_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
            load(x + (i + u * at.step) * x_ld, v[u]);
            load(dy + (i + u * at.step) * dy_ld, g[u]);
        }
#pragma unroll
        for (int u = 0; u < BACK_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float d = v[u][k] - of[BACK_MEAN][k];
                const float z = d * of[BACK_SCALE][k] + of[BACK_BETA][k];
                const float dz = SILU ? g[u][k] * bn_silu_slope(z) : g[u][k];
                g[u][k] = of[BACK_SCALE][k] * dz - (of[BACK_K1][k] * d + of[BACK_K2][k]);
            }
            store(dx + (i + u * at.step) * dx_ld, g[u]);
        }
    }
}

static back_from_t back_from(const cuda_dev_t *dev, const k_bn_t *p, uint64_t count)
{
    const back_from_t from = {cuda_f32(dev, p->gamma),
                              cuda_f32(dev, p->beta),
                              cuda_f32(dev, p->mean),
                              cuda_f32(dev, p->invstd),
                              (const double *)cuda_ptr(dev, p->bwd_stats),
                              (double)count};
    return from;
}

static int back_check(cuda_dev_t *dev, const char *op, const k_bn_t *p, const k_tensor_t *x,
                      const k_tensor_t *dy)
{
    if (bn_check(dev, op, p, x) < 0 || bn_check_batch(dev, op, p, x->c) < 0 ||
        cuda_check_tensor(dev, op, "dy", dy) < 0 || cuda_check_same(dev, op, x, dy) < 0)
        return -1;
    return cuda_check_place(dev, op, "bwd_stats", p->bwd_stats, (uint64_t)x->c * 2 * sizeof(double),
                            sizeof(double));
}

template <typename T, int V, int SILU>
static void launch_stats(cuda_dev_t *dev, const k_bn_t *p, const k_tensor_t *x,
                         const k_tensor_t *dy)
{
    const tile_t t = tile_share_sums(dev, cuda_pixels(x), x->c / V, 1, 2 * x->c);
    bn_bwd_stats<T, V, SILU><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
        t, back_from(dev, p, 1), (const T *)cuda_ptr(dev, x->at), x->ld,
        (const T *)cuda_ptr(dev, dy->at), dy->ld, x->c, (double *)(void *)dev->scratch);
    cuda_add_parts(dev, t.blocks, 2 * x->c, (double *)cuda_ptr(dev, p->bwd_stats),
                   cuda_f32(dev, p->dbeta), cuda_f32(dev, p->dgamma), x->c);
}

int cuda_bn_bwd_stats(k_dev_t *device, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                      k_act_t act)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "bn_bwd_stats";
    const uint64_t bytes = (uint64_t)x->c * sizeof(float);
    if (back_check(dev, op, p, x, dy) < 0 ||
        cuda_check_place(dev, op, "dgamma", p->dgamma, bytes, sizeof(float)) < 0 ||
        cuda_check_place(dev, op, "dbeta", p->dbeta, bytes, sizeof(float)) < 0)
        return -1;
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(x) && cuda_vector(dy), T, V, {
        if (act == K_ACT_SILU)
            launch_stats<T, V, 1>(dev, p, x, dy);
        else
            launch_stats<T, V, 0>(dev, p, x, dy);
    });
    return cuda_launched(dev, op);
}

template <typename T, int V, int SILU>
static void launch_apply(cuda_dev_t *dev, const back_from_t *from, const k_tensor_t *x,
                         const k_tensor_t *dy, const k_tensor_t *dx)
{
    const tile_t t = tile_share(dev, cuda_pixels(x), x->c / V, 2 * BACK_LOADS);
    bn_bwd_apply<T, V, SILU><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
        t, *from, (const T *)cuda_ptr(dev, x->at), x->ld, (const T *)cuda_ptr(dev, dy->at), dy->ld,
        (T *)cuda_ptr(dev, dx->at), dx->ld);
}

int cuda_bn_bwd_apply(k_dev_t *device, const k_bn_t *p, const k_tensor_t *x, const k_tensor_t *dy,
                      const k_tensor_t *dx, k_act_t act, uint64_t count)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "bn_bwd_apply";
    if (back_check(dev, op, p, x, dy) < 0 || cuda_check_tensor(dev, op, "dx", dx) < 0 ||
        cuda_check_same(dev, op, x, dx) < 0)
        return -1;
    if (count < 1)
        return cuda_fail(dev, "%s: a count of 0 is impossible", op);
    const back_from_t from = back_from(dev, p, count);
    const int vector = cuda_vector(x) && cuda_vector(dy) && cuda_vector(dx);
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, vector, T, V, {
        if (act == K_ACT_SILU)
            launch_apply<T, V, 1>(dev, &from, x, dy, dx);
        else
            launch_apply<T, V, 0>(dev, &from, x, dy, dx);
    });
    return cuda_launched(dev, op);
}
