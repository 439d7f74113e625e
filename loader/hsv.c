#include "loader/hsv.h"

#include "loader/clones.h"

#include <math.h>
#include <stddef.h>

/* Into every clone of its caller. */
#define HSV_INLINE static inline __attribute__((always_inline))

enum { HSV_SHIFT = 12, HSV_BLOCK = 128 };

/* n / i rounded: OpenCV's division tables. No quotient of 255 << 12 or 30 << 12 with 1 <= i <= 255
 * lies half way between two integers, so it does not matter which way those go. */
static int32_t hsv_rounded(int32_t n, int32_t i)
{
    return i == 0 ? 0 : (2 * n + i) / (2 * i);
}

static int32_t hsv_clip(double x)
{
    return x < 0 ? 0 : x > 255 ? 255 : (int32_t)x;
}

/* The float factor whose truncated products are the table, or 0 if none near `gain` is. */
static float hsv_gain(const int32_t table[256], double gain)
{
    float first = (float)gain;
    const float tries[3] = {first, nextafterf(first, 8), nextafterf(first, -8)};
    for (int k = 0; k < 3; k++) {
        int i = 0;
        while (i < 256 && (int32_t)fminf(fmaxf((float)i * tries[k], 0), 255) == table[i])
            i++;
        if (i == 256)
            return tries[k];
    }
    return 0;
}

/* The division tables as the vector code computes them. */
static int32_t hsv_quotient(float n, int32_t i)
{
    return (int32_t)(n / (float)i + 0.5f);
}

/* Whether the arithmetic twins give the tables. */
static int hsv_twins(hsv_lut_t *lut, const double r[3])
{
    lut->turn = lut->h[0];
    lut->s_gain = hsv_gain(lut->s, r[1] + 1);
    lut->v_gain = hsv_gain(lut->v, r[2] + 1);
    for (int32_t i = 0; i < 180; i++)
        if (lut->h[i] != (i + lut->turn) % 180)
            return 0;
    for (int32_t i = 1; i < 256; i++)
        if (hsv_quotient(255 << HSV_SHIFT, i) != lut->s_of[i] ||
            hsv_quotient(30 << HSV_SHIFT, i) != lut->h_of[i])
            return 0;
    return lut->s_gain > 0 && lut->v_gain > 0;
}

void hsv_lut(hsv_lut_t *lut, const double r[3], int active)
{
    lut->active = active;
    for (int i = 0; i < 256; i++) {
        double h = fmod(i + r[0] * 180, 180);
        if (h < 0)
            h += 180;
        /* A tiny negative sum can round up to 180 itself. */
        lut->h[i] = h >= 180 ? 0 : (int32_t)h;
        lut->s[i] = hsv_clip(i * (r[1] + 1));
        lut->v[i] = hsv_clip(i * (r[2] + 1));
    }
    lut->s[0] = 0; /* gray stays gray */
    for (int32_t i = 0; i < 256; i++) {
        lut->s_of[i] = hsv_rounded(255 << HSV_SHIFT, i);
        lut->h_of[i] = hsv_rounded(30 << HSV_SHIFT, i);
    }
    lut->plain = hsv_twins(lut, r);
}

typedef struct {
    int32_t r[HSV_BLOCK], g[HSV_BLOCK], b[HSV_BLOCK];
} hsv_planes_t;

/* OpenCV's hue of the three channels, before division: sectors of `diff` from red over green to
 * blue. */
HSV_INLINE int32_t hsv_arc(int32_t r, int32_t g, int32_t b, int32_t max, int32_t diff)
{
    return max == r ? g - b : max == g ? b - r + 2 * diff : r - g + 4 * diff;
}

HSV_INLINE int32_t hsv_scaled(int32_t a, int32_t b)
{
    return (a * b + (1 << (HSV_SHIFT - 1))) >> HSV_SHIFT;
}

HSV_INLINE int32_t hsv_max3(int32_t a, int32_t b, int32_t c)
{
    int32_t m = a > b ? a : b;
    return m > c ? m : c;
}

/* HSV to channel i of the planes. With h in sectors and f its fraction: p = v(1 - s), q = v(1 - s
 * f), t = v(1 - s(1 - f)); truncated. */
HSV_INLINE void hsv_back(hsv_planes_t *c, int i, int32_t hue, int32_t sat, int32_t value)
{
    float h = (float)hue * (6.0f / 180.0f);
    float s = (float)sat * (1.0f / 255.0f), v = (float)value * (1.0f / 255.0f);
    int32_t sector = (int32_t)h;
    h -= (float)sector;
    float vs = v * s, p = v - vs, q = v - vs * h, t = v - vs + vs * h;
    int32_t iv = (int32_t)(v * 255.0f), ip = (int32_t)(p * 255.0f);
    int32_t iq = (int32_t)(q * 255.0f), it = (int32_t)(t * 255.0f);
    c->r[i] = sector == 0 || sector == 5 ? iv : sector == 1 ? iq : sector == 4 ? it : ip;
    c->g[i] = sector == 1 || sector == 2 ? iv : sector == 0 ? it : sector == 3 ? iq : ip;
    c->b[i] = sector == 3 || sector == 4 ? iv : sector == 2 ? it : sector == 5 ? iq : ip;
}

/* By the tables. */
static void hsv_planes_tables(hsv_planes_t *restrict c, const hsv_lut_t *restrict lut)
{
    for (int i = 0; i < HSV_BLOCK; i++) {
        int32_t r = c->r[i], g = c->g[i], b = c->b[i];
        int32_t max = hsv_max3(r, g, b), diff = max + hsv_max3(-r, -g, -b);
        int32_t sat = hsv_scaled(diff, lut->s_of[max]);
        int32_t hue = hsv_scaled(hsv_arc(r, g, b, max, diff), lut->h_of[diff]);
        hue += hue < 0 ? 180 : 0;
        hsv_back(c, i, lut->h[hue], lut->s[sat], lut->v[max]);
    }
}

/* By their arithmetic twins. A divisor 0 stands over a dividend 0: any other will do. */
SLUICE_CLONES
static void hsv_planes_plain(hsv_planes_t *restrict c, int32_t turn, float s_gain, float v_gain)
{
    for (int i = 0; i < HSV_BLOCK; i++) {
        int32_t r = c->r[i], g = c->g[i], b = c->b[i];
        int32_t max = hsv_max3(r, g, b), diff = max + hsv_max3(-r, -g, -b);
        float over_max = (float)(max + (max == 0)), over_diff = (float)(diff + (diff == 0));
        int32_t s_of = (int32_t)((float)(255 << HSV_SHIFT) / over_max + 0.5f);
        int32_t h_of = (int32_t)((float)(30 << HSV_SHIFT) / over_diff + 0.5f);
        int32_t sat = hsv_scaled(diff, s_of);
        int32_t hue = hsv_scaled(hsv_arc(r, g, b, max, diff), h_of);
        hue += turn + (hue < 0 ? 180 : 0);
        hue -= hue >= 180 ? 180 : 0;
        int32_t s = (int32_t)((float)sat * s_gain), v = (int32_t)((float)max * v_gain);
        hsv_back(c, i, hue, s < 255 ? s : 255, v < 255 ? v : 255);
    }
}

SLUICE_CLONES
static void hsv_split(hsv_planes_t *restrict c, const uint8_t *restrict rgb, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        c->r[i] = rgb[3 * i];
        c->g[i] = rgb[3 * i + 1];
        c->b[i] = rgb[3 * i + 2];
    }
}

SLUICE_CLONES
static void hsv_join(const hsv_planes_t *restrict c, uint8_t *restrict rgb, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        rgb[3 * i] = (uint8_t)c->r[i];
        rgb[3 * i + 1] = (uint8_t)c->g[i];
        rgb[3 * i + 2] = (uint8_t)c->b[i];
    }
}

void hsv_apply(const hsv_lut_t *lut, uint8_t *rgb, uint32_t n)
{
    if (!lut->active)
        return;
    hsv_planes_t planes = {0};
    for (uint32_t at = 0; at < n; at += HSV_BLOCK) {
        uint32_t count = n - at < HSV_BLOCK ? n - at : HSV_BLOCK;
        hsv_split(&planes, rgb + 3 * (size_t)at, count);
        if (lut->plain)
            hsv_planes_plain(&planes, lut->turn, lut->s_gain, lut->v_gain);
        else
            hsv_planes_tables(&planes, lut);
        hsv_join(&planes, rgb + 3 * (size_t)at, count);
    }
}
