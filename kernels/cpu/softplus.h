/* log(1 + exp(x)) and its derivative as inline arithmetic, so that a loop over them vectorises
 * (CPU_VECTOR).
 */
#ifndef SLUICE_KERNELS_CPU_SOFTPLUS_H
#define SLUICE_KERNELS_CPU_SOFTPLUS_H

#include "kernels/cpu/vexp.h"

/* log(1 + e) for e in [0, 1]: 2 atanh(s), s = e / (2 + e) <= 1/3, as a series in s * s whose first
 * left-out term is below 1e-9 of the sum. Full relative accuracy also for small e, where an
 * untrained head's background lies. */
CPU_INLINE float cpu_log1pf(float e)
{
    float s = e / (2.0f + e), q = s * s;
    float p = 2.0f / 15;
    p = p * q + 2.0f / 13;
    p = p * q + 2.0f / 11;
    p = p * q + 2.0f / 9;
    p = p * q + 2.0f / 7;
    p = p * q + 2.0f / 5;
    p = p * q + 2.0f / 3;
    p = p * q + 2.0f;
    return s * p;
}

CPU_INLINE float cpu_softplusf(float x, float *sigmoid)
{
    float e = cpu_expf(x < 0 ? x : -x);
    float inverse = 1.0f / (1.0f + e);
    *sigmoid = x < 0 ? e * inverse : inverse;
    return (x > 0 ? x : 0.0f) + cpu_log1pf(e);
}

#endif
