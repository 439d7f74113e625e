/* exp, sigmoid and SiLU as inline arithmetic, so that a loop over them vectorises (CPU_VECTOR).
 *
 * cpu_expf: x = n ln 2 + r, |r| <= ln 2 / 2, 2^n from the exponent field, e^r by a polynomial of
 * degree 6 (Cephes' expf coefficients). Relative error below 2e-7 on [-87, 87]; arguments outside
 * are clamped to that range (e^-87 = 1.6e-38), which keeps the result normal and finite. NaN stays
 * NaN. The sigmoid divides: a reciprocal by Newton steps takes a fifth longer.
 */
#ifndef SLUICE_KERNELS_CPU_VEXP_H
#define SLUICE_KERNELS_CPU_VEXP_H

#include "kernels/cpu/cpu.h"

#include <stdint.h>
#include <string.h>

/* cond ? a : b without control flow: gcc would split the loop body at a branch, compute both sides
 * for every lane, and lanes with subnormal values on the side not taken cost a hundred times the
 * arithmetic. */
CPU_INLINE float cpu_select(int cond, float a, float b)
{
    uint32_t mask = 0u - (uint32_t)(cond != 0), ia, ib;
    memcpy(&ia, &a, sizeof ia);
    memcpy(&ib, &b, sizeof ib);
    ia = (ia & mask) | (ib & ~mask);
    memcpy(&a, &ia, sizeof a);
    return a;
}

CPU_INLINE float cpu_expf(float x)
{
    x = cpu_select(x < -87.0f, -87.0f, x);
    x = cpu_select(x > 87.0f, 87.0f, x);
    /* Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits. */
    float t = x * 1.44269504f + 12582912.0f;
    float n = t - 12582912.0f;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

CPU_INLINE float cpu_sigmoidf(float x)
{
    return 1.0f / (1.0f + cpu_expf(-x));
}

CPU_INLINE float cpu_siluf(float x)
{
    return x / (1.0f + cpu_expf(-x));
}

/* d silu(z) / dz = s (1 + z (1 - s)), s = sigmoid(z). */
CPU_INLINE float cpu_silu_slope(float z)
{
    float s = cpu_sigmoidf(z);
    return s * (1.0f + z * (1.0f - s));
}

#endif
