#include "loader/warp_span.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

/* DESIGN
 * Four pixels at a time, a 64-bit lane each. One 8-byte gather fetches a pixel and its right
 * neighbour (R0 G0 B0 R1 G1 B1 and two bytes of no interest); a shuffle pairs the channels (R0 R1
 * G0 G1 B0 B1), which are widened to 16 bits, so that one multiply-add makes the horizontal step of
 * a channel. The vertical step is two 32-bit products. All integers: equal to the plain loop by
 * construction.
 */

/* Horizontal step of two pixels: their gathered bytes in the low half of `bytes`, their weight
 * pairs in w. */
__attribute__((target("avx2"))) static inline __m256i span_across(__m128i bytes, __m256i w)
{
    return _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), w);
}

/* Vertical step, rounded: (top * (ONE - wy) + bottom * wy + half) >> 22. */
__attribute__((target("avx2"))) static inline __m256i span_down(__m256i top, __m256i bottom,
                                                                __m256i wy)
{
    const __m256i one = _mm256_set1_epi32(WARP_ONE);
    const __m256i half = _mm256_set1_epi32(1 << (2 * WARP_WEIGHT - 1));
    __m256i sum = _mm256_add_epi32(_mm256_mullo_epi32(top, _mm256_sub_epi32(one, wy)),
                                   _mm256_mullo_epi32(bottom, wy));
    return _mm256_srli_epi32(_mm256_add_epi32(sum, half), 2 * WARP_WEIGHT);
}

__attribute__((target("avx2"))) static void span_avx2(const uint8_t *pixels, size_t stride,
                                                      int64_t x, int64_t y, int64_t dx, int64_t dy,
                                                      uint32_t n, uint8_t *out)
{
    const __m256i pair = _mm256_setr_epi8(0, 3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15, 0,
                                          3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15);
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2);
    const __m256i second = _mm256_setr_epi32(4, 4, 4, 4, 6, 6, 6, 6);
    const __m256i mask = _mm256_set1_epi64x(WARP_ONE - 1), one = _mm256_set1_epi64x(WARP_ONE);
    const __m256i three = _mm256_set1_epi64x(3), vstride = _mm256_set1_epi64x((int64_t)stride);
    const __m128i squeeze = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    __m256i vx = _mm256_setr_epi64x(x, x + dx, x + 2 * dx, x + 3 * dx);
    __m256i vy = _mm256_setr_epi64x(y, y + dy, y + 2 * dy, y + 3 * dy);
    const __m256i stepx = _mm256_set1_epi64x(4 * dx), stepy = _mm256_set1_epi64x(4 * dy);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4, out += 12) {
        __m256i at = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(vy, 32), vstride),
                                      _mm256_mul_epu32(_mm256_srli_epi64(vx, 32), three));
        const long long *base = (const long long *)(const void *)pixels;
        __m256i top = _mm256_shuffle_epi8(_mm256_i64gather_epi64(base, at, 1), pair);
        __m256i bottom = _mm256_shuffle_epi8(
            _mm256_i64gather_epi64(base, _mm256_add_epi64(at, vstride), 1), pair);

        __m256i wx = _mm256_and_si256(_mm256_srli_epi64(vx, WARP_FRACTION - WARP_WEIGHT), mask);
        __m256i wy = _mm256_and_si256(_mm256_srli_epi64(vy, WARP_FRACTION - WARP_WEIGHT), mask);
        wx = _mm256_or_si256(_mm256_slli_epi64(wx, 16), _mm256_sub_epi64(one, wx));
        __m256i wx0 = _mm256_permutevar8x32_epi32(wx, first);
        __m256i wx1 = _mm256_permutevar8x32_epi32(wx, second);
        __m256i p0 = span_down(span_across(_mm256_castsi256_si128(top), wx0),
                               span_across(_mm256_castsi256_si128(bottom), wx0),
                               _mm256_permutevar8x32_epi32(wy, first));
        __m256i p1 = span_down(span_across(_mm256_extracti128_si256(top, 1), wx1),
                               span_across(_mm256_extracti128_si256(bottom, 1), wx1),
                               _mm256_permutevar8x32_epi32(wy, second));
        /* 16-bit lanes: pixels 0, 2 | 1, 3; put in order, then to bytes without the fourth one. */
        __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(p0, p1), 0xD8);
        __m128i rgbx =
            _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(void *)out, _mm_shuffle_epi8(rgbx, squeeze));
        vx = _mm256_add_epi64(vx, stepx);
        vy = _mm256_add_epi64(vy, stepy);
    }
    warp_span_plain(pixels, stride, x + (int64_t)i * dx, y + (int64_t)i * dy, dx, dy, n - i, out);
}

warp_span_fn warp_span_avx2(void)
{
    return span_avx2;
}
#else
warp_span_fn warp_span_avx2(void)
{
    return NULL;
}
#endif
