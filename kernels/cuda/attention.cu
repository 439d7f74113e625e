/* Attention over the positions of an image (facts/yolo.md 1.2): checks, the choice of kernels, and
 * what both families share. The matrix of scores is never kept: blocks walk over tiles of it.
 *
 *   forward   S = scale Q K^T, scale = kd^-1/2; P = exp(S - lse), lse = log sum exp(S) of the
 *             row; y = P V, with a running maximum and sum a row (Milakov & Gimelshein 2018).
 *   backward  P again from lse; D = row sum of dY * Y (delta, in work); dV = dv + P^T dY,
 *             dP = dY V^T, dS = P (dP - D), dQ = scale dS K, dK = scale dS^T Q.
 *             One kernel for dQ (a block has a tile of queries and walks over the keys), one for dK
 *             and dV (a tile of keys, walks over the queries): every sum has its order.
 */
#include "kernels/cuda/attention.cuh"

#include <math.h>

enum { DELTA_THREADS = 256 };

/* A warp sums one row of one head. */
template <typename T>
static __global__ void __launch_bounds__(DELTA_THREADS)
    attention_delta(attention_t a, int64_t items)
{
    const int lane = (int)threadIdx.x % 32;
    const int64_t warps = (int64_t)gridDim.x * (DELTA_THREADS / 32);
    int64_t i = (int64_t)blockIdx.x * (DELTA_THREADS / 32) + threadIdx.x / 32;
    for (; i < items; i += warps) {
        const int head = (int)(i % a.heads);
        const int64_t pixel = i / a.heads, image = pixel / a.positions;
        const T *y = (const T *)a.y.at + pixel * a.y.ld + head * a.hd;
        const T *dy = (const T *)a.dy.at + pixel * a.dy.ld + head * a.hd;
        float sum = 0.0f;
        for (int c = lane; c < a.hd; c += 32)
            sum += to_float(y[c]) * to_float(dy[c]);
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0)
            a.delta[(image * a.heads + head) * a.positions + pixel % a.positions] = sum;
    }
}

static uint64_t rows_bytes(const k_tensor_t *qkv, int32_t heads)
{
    return (uint64_t)cuda_pixels(qkv) * (uint64_t)heads * sizeof(float);
}

uint64_t cuda_attention_work(k_dev_t *dev, const k_tensor_t *qkv, int32_t heads, int32_t kd,
                             int32_t hd)
{
    (void)dev, (void)kd, (void)hd;
    return rows_bytes(qkv, heads);
}

/* Checks the tensor `t` of `c` channels against qkv's images and positions; map: as kernels see it.
 */
static int attention_shape(cuda_dev_t *dev, const char *op, const char *what, const k_tensor_t *t,
                           const k_tensor_t *qkv, int32_t c, attention_map_t *map)
{
    if (cuda_check_tensor(dev, op, what, t) < 0)
        return -1;
    if (t->n != qkv->n || t->h != qkv->h || t->w != qkv->w || t->c != c)
        return cuda_fail(dev, "%s: %s is %d x %d x %d x %d, not %d x %d x %d x %d", op, what, t->n,
                         t->h, t->w, t->c, qkv->n, qkv->h, qkv->w, c);
    if (t->dtype != qkv->dtype)
        return cuda_fail(dev, "%s: %s and qkv have different formats", op, what);
    map->at = cuda_ptr(dev, t->at);
    map->ld = t->ld;
    map->wide = cuda_vector(t);
    return 0;
}

static int attention_check(cuda_dev_t *dev, const char *op, attention_t *a, const k_tensor_t *qkv,
                           const k_tensor_t *y, k_at lse, k_at work)
{
    if (a->heads < 1 || a->heads > 65535 || a->kd < 1 || a->hd < 1)
        return cuda_fail(dev, "%s: %d heads of %d + %d channels are impossible", op, a->heads,
                         a->kd, a->hd);
    if (a->kd % 8 != 0 || a->kd > ATTENTION_KD || a->hd % 8 != 0 || a->hd > ATTENTION_HD)
        return cuda_fail(dev,
                         "%s: a head has %d + %d channels; the GPU takes multiples of 8 up to "
                         "%d + %d",
                         op, a->kd, a->hd, ATTENTION_KD, ATTENTION_HD);
    if (attention_shape(dev, op, "qkv", qkv, qkv, a->heads * (2 * a->kd + a->hd), &a->qkv) < 0 ||
        attention_shape(dev, op, "y", y, qkv, a->heads * a->hd, &a->y) < 0)
        return -1;
    if ((int64_t)qkv->h * qkv->w > INT32_MAX / 2 || qkv->n > 65535)
        return cuda_fail(dev, "%s: %d images of %d x %d positions are too many", op, qkv->n, qkv->h,
                         qkv->w);
    if (cuda_check_place(dev, op, "lse", lse, rows_bytes(qkv, a->heads), sizeof(float)) < 0 ||
        cuda_check_place(dev, op, "work", work, rows_bytes(qkv, a->heads), sizeof(float)) < 0)
        return -1;
    a->n = qkv->n;
    a->positions = qkv->h * qkv->w;
    a->scale = 1.0f / sqrtf((float)a->kd);
    a->lse = cuda_f32(dev, lse);
    a->delta = cuda_f32(dev, work);
    return 0;
}

/* Tensor cores take half formats with 16 x 8 x 16 from 8.0 on; below it there is no bfloat16. */
static int by_tensor_cores(const cuda_dev_t *dev, k_dtype_t dtype)
{
    return dtype != K_F32 && dev->capability >= 80;
}

int cuda_attention(k_dev_t *device, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                   const k_tensor_t *y, const k_tensor_t *v, k_at lse, k_at work)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "attention";
    attention_t a = {};
    a.heads = heads;
    a.kd = kd;
    a.hd = hd;
    if (attention_check(dev, op, &a, qkv, y, lse, work) < 0 ||
        attention_shape(dev, op, "v", v, qkv, heads * hd, &a.v) < 0)
        return -1;
    if (by_tensor_cores(dev, qkv->dtype))
        attention_mma(dev, &a, qkv->dtype);
    else
        attention_fma(dev, &a, qkv->dtype);
    return cuda_launched(dev, op);
}

int cuda_attention_dx(k_dev_t *device, int32_t heads, int32_t kd, int32_t hd, const k_tensor_t *qkv,
                      const k_tensor_t *y, k_at lse, const k_tensor_t *dy, const k_tensor_t *dv,
                      const k_tensor_t *dqkv, k_at work)
{
    cuda_dev_t *dev = cuda_dev(device);
    const char *op = "attention_dx";
    attention_t a = {};
    a.heads = heads;
    a.kd = kd;
    a.hd = hd;
    if (attention_check(dev, op, &a, qkv, y, lse, work) < 0 ||
        attention_shape(dev, op, "dy", dy, qkv, heads * hd, &a.dy) < 0 ||
        attention_shape(dev, op, "dv", dv, qkv, heads * hd, &a.dv) < 0 ||
        attention_shape(dev, op, "dqkv", dqkv, qkv, qkv->c, &a.dqkv) < 0)
        return -1;
    const int64_t rows = cuda_pixels(qkv) * heads;
    CUDA_BY_TYPE(qkv->dtype, T, {
        attention_delta<T>
            <<<cuda_blocks(dev, rows, DELTA_THREADS / 32), DELTA_THREADS, 0, cuda_main(dev)>>>(
                a, rows);
    });
    if (by_tensor_cores(dev, qkv->dtype))
        attention_mma_dx(dev, &a, qkv->dtype);
    else
        attention_fma_dx(dev, &a, qkv->dtype);
    return cuda_launched(dev, op);
}
