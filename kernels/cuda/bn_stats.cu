/* Batch normalisation: sums of x and x * x by channel, and what follows from them (facts/yolo.md
 * 1.2).
 *
 * A thread sums x - o and (x - o)^2 in float, o its first pixel: near the mean where that is large
 * against the deviation, so that the variance keeps its digits. In double these become sums of x
 * and x^2: s + n o and q + 2 o s + n o^2. stats is overwritten.
 */
#include "kernels/cuda/bn.cuh"

enum { STATS_LOADS = 4 }; /* in flight before the first is used */

template <typename T, int V>
static __global__ void __launch_bounds__(TILE_THREADS)
    bn_stats(tile_t t, const T *x, int64_t ld, int c, double *parts)
{
    __shared__ double lanes[2 * V * TILE_THREADS];
    const tile_spot_t at = tile_spot(t);
    float o[V] = {}, s[V] = {}, q[V] = {};
    int count = 0;
    x += at.group * V;
    if (at.item < t.items)
        load(x + at.item * ld, o);
    for (int64_t i = at.item; i < t.items; i += STATS_LOADS * at.step) {
        float v[STATS_LOADS][V];
#pragma unroll
        for (int u = 0; u < STATS_LOADS; u++)
            if (i + u * at.step < t.items)
                load(x + (i + u * at.step) * ld, v[u]);
#pragma unroll
        for (int u = 0; u < STATS_LOADS; u++) {
            if (i + u * at.step >= t.items)
                break;
            count++;
#pragma unroll
            for (int k = 0; k < V; k++) {
                const float d = v[u][k] - o[k];
                s[k] += d;
                q[k] += d * d;
            }
        }
    }
    double sums[2 * V];
#pragma unroll
    for (int k = 0; k < V; k++) {
        const double a = o[k], n = count;
        sums[k] = s[k] + n * a;
        sums[V + k] = q[k] + a * (2.0 * s[k] + n * a);
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

/* mean, 1 / sqrt(biased variance + eps); the running variance takes the unbiased one. */
static __global__ void bn_finish(const double *stats, float *mean, float *invstd,
                                 float *running_mean, float *running_var, int c, double n,
                                 float momentum, float eps)
{
    const int k = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (k >= c)
        return;
    const double m = momentum, unbias = n > 1.0 ? n / (n - 1.0) : 1.0;
    const double mu = stats[k] / n;
    double var = stats[c + k] / n - mu * mu;
    var = var < 0.0 ? 0.0 : var; /* not a NaN */
    mean[k] = (float)mu;
    invstd[k] = (float)(1.0 / sqrt(var + (double)eps));
    running_mean[k] = (float)((1.0 - m) * running_mean[k] + m * mu);
    running_var[k] = (float)((1.0 - m) * running_var[k] + m * var * unbias);
}

int bn_check(cuda_dev_t *dev, const char *op, const k_bn_t *p, const k_tensor_t *x)
{
    if (cuda_check_tensor(dev, op, "x", x) < 0 || tile_check_sums(dev, op, 2 * (int64_t)x->c) < 0)
        return -1;
    const uint64_t bytes = (uint64_t)x->c * sizeof(float);
    if (cuda_check_place(dev, op, "gamma", p->gamma, bytes, sizeof(float)) < 0)
        return -1;
    return cuda_check_place(dev, op, "beta", p->beta, bytes, sizeof(float));
}

int bn_check_batch(cuda_dev_t *dev, const char *op, const k_bn_t *p, int32_t c)
{
    const k_at at[] = {p->mean, p->invstd, p->stats, p->bwd_stats};
    const char *const name[] = {"mean", "invstd", "stats", "bwd_stats"};
    for (int i = 0; i < 4; i++) {
        const uint32_t size = i < 2 ? sizeof(float) : sizeof(double);
        if (i == 3 && at[i] == K_NONE)
            continue;
        if (cuda_check_place(dev, op, name[i], at[i], (uint64_t)c * size * (i < 2 ? 1 : 2), size) <
            0)
            return -1;
    }
    return 0;
}

int cuda_bn_stats(k_dev_t *device, const k_bn_t *p, const k_tensor_t *x)
{
    cuda_dev_t *dev = cuda_dev(device);
    if (bn_check(dev, "bn_stats", p, x) < 0 || bn_check_batch(dev, "bn_stats", p, x->c) < 0)
        return -1;
    double *parts = (double *)(void *)dev->scratch;
    CUDA_BY_TYPE_AND_WIDTH(x->dtype, cuda_vector(x), T, V, {
        const tile_t t = tile_share_sums(dev, cuda_pixels(x), x->c / V, 1, 2 * x->c);
        bn_stats<T, V><<<tile_grid(&t), tile_block(&t), 0, cuda_main(dev)>>>(
            t, (const T *)cuda_ptr(dev, x->at), x->ld, x->c, parts);
        cuda_add_parts(dev, t.blocks, 2 * x->c, (double *)cuda_ptr(dev, p->stats), NULL, NULL, 0);
    });
    return cuda_launched(dev, "bn_stats");
}

int cuda_bn_finish(k_dev_t *device, const k_bn_t *p, int32_t c, uint64_t count)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "bn_finish";
    if (c < 1 || count < 1)
        return cuda_fail(dev, "%s: %d channels over %llu values are impossible", op, c,
                         (unsigned long long)count);
    const uint64_t bytes = (uint64_t)c * sizeof(float);
    if (bn_check_batch(dev, op, p, c) < 0 ||
        cuda_check_place(dev, op, "running_mean", p->running_mean, bytes, sizeof(float)) < 0 ||
        cuda_check_place(dev, op, "running_var", p->running_var, bytes, sizeof(float)) < 0)
        return -1;
    bn_finish<<<(unsigned)(c + 127) / 128, 128, 0, cuda_main(dev)>>>(
        (const double *)cuda_ptr(dev, p->stats), cuda_f32(dev, p->mean), cuda_f32(dev, p->invstd),
        cuda_f32(dev, p->running_mean), cuda_f32(dev, p->running_var), c, (double)count,
        p->momentum, p->eps);
    return cuda_launched(dev, op);
}
