#include "trainer/tensorview.h"

#include <string.h>

typedef enum { AS_F32 = 0, AS_F16, AS_BF16, AS_F64, AS_OTHER } as_t;

static as_t as_of(const tensorview_t *v)
{
    static const char *const names[] = {"F32", "F16", "BF16", "F64"};
    int i = 0;
    while (i < AS_OTHER && strcmp(v->dtype, names[i]) != 0)
        i++;
    return (as_t)i;
}

static float from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31,
                   fraction = h & 1023;
    float value;
    uint32_t bits;
    if (exponent == 0) /* zero and subnormals: fraction * 2^-24 */
        return (sign ? -1.0f : 1.0f) * (float)fraction * 0x1p-24f;
    bits = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float read_one(const char *data, as_t as)
{
    float value;
    double wide;
    uint16_t half;
    uint32_t bits;
    switch (as) {
    case AS_F16: memcpy(&half, data, sizeof half); return from_f16(half);
    case AS_BF16:
        memcpy(&half, data, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&value, &bits, sizeof value);
        return value;
    case AS_F64: memcpy(&wide, data, sizeof wide); return (float)wide;
    default: memcpy(&value, data, sizeof value); return value;
    }
}

int tensorview_is_float(const tensorview_t *v)
{
    return as_of(v) != AS_OTHER;
}

void tensorview_floats(const tensorview_t *v, float *out)
{
    static const int64_t sizes[] = {[AS_F32] = 4, [AS_F16] = 2, [AS_BF16] = 2, [AS_F64] = 8};
    const as_t as = as_of(v);
    int64_t index[TENSORVIEW_DIMS] = {0}, at = 0;
    if (as == AS_OTHER)
        return;
    for (uint64_t i = 0; i < v->count; i++) {
        out[i] = read_one((const char *)v->data + at * sizes[as], as);
        for (int32_t d = v->ndim - 1; d >= 0; d--) {
            at += v->stride[d];
            if (++index[d] < v->shape[d])
                break;
            at -= v->stride[d] * v->shape[d];
            index[d] = 0;
        }
    }
}

int64_t tensorview_integer(const tensorview_t *v, int64_t other)
{
    int64_t value;
    if (strcmp(v->dtype, "I64") != 0 || v->count != 1)
        return other;
    memcpy(&value, v->data, sizeof value);
    return value;
}
