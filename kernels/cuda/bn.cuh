/* What the passes of batch normalisation share. For bn_*.cu only.
 *
 * Every pass reads each value once (and writes it once), so memory is what it costs. The arithmetic
 * keeps digits where a mean is large against the deviation: x - mean is formed first.
 */
#ifndef SLUICE_KERNELS_CUDA_BN_CUH
#define SLUICE_KERNELS_CUDA_BN_CUH

#include "kernels/cuda/tile.cuh"

/* bn_stats.cu. x, gamma, beta; of a batch also mean, invstd, stats, and bwd_stats unless K_NONE
 * (forward only). */
int bn_check(cuda_dev_t *dev, const char *op, const k_bn_t *p, const k_tensor_t *x);
int bn_check_batch(cuda_dev_t *dev, const char *op, const k_bn_t *p, int32_t c);

/* z sigmoid(z) (facts/yolo.md 1.2). The quick division is right to two units in the last place; where
 * exp(-z) is beyond 2^126 it gives 0, and the quotient is less than 1e-36. */
__device__ __forceinline__ float bn_silu(float z)
{
    return __fdividef(z, 1.0f + expf(-z));
}

/* Its derivative: s (1 + z (1 - s)), s = sigmoid(z). */
__device__ __forceinline__ float bn_silu_slope(float z)
{
    const float s = __fdividef(1.0f, 1.0f + expf(-z));
    return s * (1.0f + z * (1.0f - s));
}

#endif
