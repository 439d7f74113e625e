/* Resize, warp and colour: exact cases, seams, and an independent double-precision statement of
 * each. */
#include "control/philox.h"
#include "loader/hash64.h"
#include "loader/hsv.h"
#include "loader/resize.h"
#include "loader/warp.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    uint8_t *pixels;
    uint32_t w, h;
} image_t;

static image_t image_new(uint32_t w, uint32_t h, uint32_t seed)
{
    image_t m = {calloc(3 * (size_t)w * h + WARP_SLACK, 1), w, h};
    philox_t p = philox_stream(seed, 0, 0, PHILOX_SAMPLE);
    assert_non_null(m.pixels);
    for (size_t i = 0; i < 3 * (size_t)w * h; i++)
        m.pixels[i] = (uint8_t)philox_u32(&p);
    return m;
}

static warp_tile_t whole(const image_t *m)
{
    return (warp_tile_t){m->pixels, 3 * (size_t)m->w, 0, 0, (int32_t)m->w, (int32_t)m->h, 0, 0};
}

static warp_view_t view_of(const image_t *m, const double inverse[6])
{
    warp_view_t v = {.tiles = {whole(m)}, .n_tiles = 1};
    memcpy(v.inverse, inverse, 6 * sizeof *inverse);
    v.inverse[8] = 1;
    return v;
}

static void warp_all(const warp_view_t *v, uint8_t *out, uint32_t w, uint32_t h)
{
    uint8_t *row = malloc(3 * (size_t)w + WARP_SLACK);
    assert_non_null(row);
    for (uint32_t y = 0; y < h; y++) {
        warp_row(v, y, w, row);
        memcpy(out + 3 * (size_t)y * w, row, 3 * (size_t)w);
    }
    free(row);
}

/* Canvas pixel by definition: the tile that covers it, else 114. */
static double canvas_at(const warp_view_t *v, int64_t x, int64_t y, int c)
{
    for (uint32_t i = 0; i < v->n_tiles; i++) {
        const warp_tile_t *t = &v->tiles[i];
        if (x >= t->x1 && x < t->x2 && y >= t->y1 && y < t->y2)
            return t->pixels[(size_t)(y - t->off_y) * t->stride + 3 * (size_t)(x - t->off_x) +
                             (size_t)c];
    }
    return 114;
}

static double warp_reference(const warp_view_t *v, double x, double y, int c)
{
    const double *m = v->inverse;
    double w = m[6] * x + m[7] * y + m[8];
    double sx = (m[0] * x + m[1] * y + m[2]) / w, sy = (m[3] * x + m[4] * y + m[5]) / w;
    double fx = floor(sx), fy = floor(sy), a = sx - fx, b = sy - fy;
    int64_t ix = (int64_t)fx, iy = (int64_t)fy;
    return (1 - b) * ((1 - a) * canvas_at(v, ix, iy, c) + a * canvas_at(v, ix + 1, iy, c)) +
           b * ((1 - a) * canvas_at(v, ix, iy + 1, c) + a * canvas_at(v, ix + 1, iy + 1, c));
}

/* Every pixel within 0.5 (rounding) + 0.13 (two weights of 1/2048, rounded) of the exact value. */
static void check_reference(const warp_view_t *v, uint32_t w, uint32_t h)
{
    uint8_t *out = malloc(3 * (size_t)w * h);
    assert_non_null(out);
    warp_all(v, out, w, h);
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (int c = 0; c < 3; c++) {
                double want = warp_reference(v, v->mirror ? w - 1.0 - x : x, y, c);
                double got = out[3 * ((size_t)y * w + x) + (size_t)c];
                if (fabs(got - want) > 0.63)
                    fail_msg("pixel %u,%u channel %d: %g, not %g", x, y, c, got, want);
            }
    free(out);
}

static void test_identity(void **state)
{
    (void)state;
    image_t m = image_new(97, 53, 1);
    const double one[6] = {1, 0, 0, 0, 1, 0};
    warp_view_t v = view_of(&m, one);
    uint8_t out[3 * 97 * 53];
    for (int isa = WARP_ISA_PLAIN; isa <= WARP_ISA_AVX2; isa++) {
        if (warp_set_isa((warp_isa_t)isa) < 0)
            continue;
        warp_all(&v, out, m.w, m.h);
        assert_memory_equal(out, m.pixels, sizeof out);
    }
    free(m.pixels);
}

static void test_translation_and_border(void **state)
{
    (void)state;
    image_t m = image_new(40, 30, 2);
    const double move[6] = {1, 0, -7, 0, 1, 5}; /* output (x, y) shows (x - 7, y + 5) */
    warp_view_t v = view_of(&m, move);
    uint8_t out[3 * 64 * 64];
    warp_all(&v, out, 64, 64);
    for (int y = 0; y < 64; y++)
        for (int x = 0; x < 64; x++)
            for (int c = 0; c < 3; c++) {
                int sx = x - 7, sy = y + 5;
                int inside = sx >= 0 && sx < 40 && sy < 30;
                assert_int_equal(out[3 * (64 * y + x) + c],
                                 inside ? m.pixels[3 * (40 * sy + sx) + c] : 114);
            }
    free(m.pixels);
}

static void test_half_pixel(void **state)
{
    (void)state;
    image_t m = image_new(8, 8, 3);
    const double half[6] = {1, 0, 0.5, 0, 1, 0};
    warp_view_t v = view_of(&m, half);
    uint8_t row[3 * 8 + WARP_SLACK];
    warp_row(&v, 4, 8, row);
    for (int x = 0; x < 8; x++)
        for (int c = 0; c < 3; c++) {
            int left = m.pixels[3 * (8 * 4 + x) + c];
            int right = x < 7 ? m.pixels[3 * (8 * 4 + x + 1) + c] : 114;
            assert_int_equal(row[3 * x + c], (left + right + 1) / 2);
        }
    free(m.pixels);
}

static const double affine_cases[][6] = {
    {0.7, 0.2, -11.3, -0.25, 0.8, 20.9}, {1.9, 0, -60.1, 0, 1.9, -80.7},
    {-0.9, 0.4, 150, -0.4, -0.9, 140},   {0, 1, 3.25, -1, 0, 90.5},
    {0.03, 0, 50, 0, 0.03, 40},          {30, 2, -500, 1, 25, -400},
};

/* The mirrored row is the row from right to left, and all variants agree, to the bit. */
static void test_affine(void **state)
{
    (void)state;
    enum { W = 131, H = 77 };
    image_t m = image_new(113, 91, 4);
    uint8_t *plain = malloc(3 * W * H), *other = malloc(3 * W * H);
    for (size_t i = 0; i < sizeof affine_cases / sizeof affine_cases[0]; i++) {
        warp_view_t v = view_of(&m, affine_cases[i]);
        assert_int_equal(warp_set_isa(WARP_ISA_PLAIN), 0);
        check_reference(&v, W, H);
        warp_all(&v, plain, W, H);
        if (warp_set_isa(WARP_ISA_AVX2) == 0) {
            warp_all(&v, other, W, H);
            assert_memory_equal(plain, other, 3 * W * H);
        }
        v.mirror = 1;
        warp_all(&v, other, W, H);
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++)
                assert_memory_equal(plain + 3 * (y * W + x), other + 3 * (y * W + W - 1 - x), 3);
    }
    warp_set_isa(WARP_ISA_BEST);
    free(plain);
    free(other);
    free(m.pixels);
}

static void test_perspective(void **state)
{
    (void)state;
    image_t m = image_new(100, 80, 5);
    warp_view_t v = view_of(&m, affine_cases[0]);
    v.perspective = 1;
    v.inverse[6] = 0.001;
    v.inverse[7] = -0.0007;
    check_reference(&v, 90, 90);
    v.mirror = 1;
    check_reference(&v, 90, 90);
    free(m.pixels);
}

/* Nowhere: a singular matrix's inverse, and one that maps far away. */
static void test_far(void **state)
{
    (void)state;
    image_t m = image_new(10, 10, 6);
    const double cases[][6] = {
        {0, 0, INFINITY, 0, 0, INFINITY}, {1e9, 0, 0, 0, 1e9, 0}, {0, 0, NAN, 0, 0, 0}};
    for (int i = 0; i < 6; i++) {
        warp_view_t v = view_of(&m, cases[i % 3]);
        v.perspective = i >= 3;
        uint8_t row[3 * 20 + WARP_SLACK];
        warp_row(&v, 3, 20, row);
        for (int k = 0; k < 60; k++)
            assert_int_equal(row[k], 114);
    }
    free(m.pixels);
}

/* Four tiles give what one picture of the canvas gives, to the bit, seams and gaps included. */
static void test_seams(void **state)
{
    (void)state;
    enum { S = 96, XC = 83, YC = 110 };
    static const uint32_t sizes[4][2] = {{96, 60}, {70, 96}, {96, 96}, {96, 40}};
    image_t tiles[4], canvas = image_new(2 * S, 2 * S, 7);
    warp_view_t four = {.n_tiles = 4};
    memset(canvas.pixels, 114, 3 * 4 * S * S);
    for (int i = 0; i < 4; i++) {
        tiles[i] = image_new(sizes[i][0], sizes[i][1], 8 + (uint32_t)i);
        int w = (int)tiles[i].w, h = (int)tiles[i].h, left = i % 2 == 0, upper = i < 2;
        warp_tile_t *t = &four.tiles[i];
        *t = whole(&tiles[i]);
        t->off_x = left ? XC - w : XC;
        t->off_y = upper ? YC - h : YC;
        t->x1 = t->off_x > 0 ? t->off_x : 0;
        t->y1 = t->off_y > 0 ? t->off_y : 0;
        t->x2 = t->off_x + w < 2 * S ? t->off_x + w : 2 * S;
        t->y2 = t->off_y + h < 2 * S ? t->off_y + h : 2 * S;
        for (int y = t->y1; y < t->y2; y++)
            memcpy(canvas.pixels + 3 * (2 * S * y + t->x1),
                   t->pixels + 3 * (size_t)((y - t->off_y) * w + t->x1 - t->off_x),
                   3 * (size_t)(t->x2 - t->x1));
    }
    uint8_t *a = malloc(3 * 4 * S * S), *b = malloc(3 * 4 * S * S);
    for (size_t i = 0; i < sizeof affine_cases / sizeof affine_cases[0]; i++)
        for (int perspective = 0; perspective < 2; perspective++) {
            warp_view_t one = view_of(&canvas, affine_cases[i]);
            one.perspective = perspective;
            one.inverse[6] = perspective ? 0.0008 : 0;
            memcpy(four.inverse, one.inverse, sizeof one.inverse);
            four.perspective = perspective;
            warp_all(&one, a, 2 * S, 2 * S);
            warp_all(&four, b, 2 * S, 2 * S);
            assert_memory_equal(a, b, 3 * 4 * S * S);
        }
    four.perspective = 0;
    memcpy(four.inverse, (double[9]){1, 0, 0, 0, 1, 0, 0, 0, 1}, sizeof four.inverse);
    warp_all(&four, b, 2 * S, 2 * S);
    assert_memory_equal(b, canvas.pixels, 3 * 4 * S * S);
    free(a);
    free(b);
    free(canvas.pixels);
    for (int i = 0; i < 4; i++)
        free(tiles[i].pixels);
}

/* ---- resize ---- */

static double resize_reference(const image_t *m, double x, double y, int c)
{
    x = x < 0 ? 0 : x > m->w - 1 ? m->w - 1 : x;
    y = y < 0 ? 0 : y > m->h - 1 ? m->h - 1 : y;
    uint32_t ix = (uint32_t)x, iy = (uint32_t)y;
    uint32_t jx = ix + 1 < m->w ? ix + 1 : ix, jy = iy + 1 < m->h ? iy + 1 : iy;
    double a = x - ix, b = y - iy;
#define AT(u, v) m->pixels[3 * ((size_t)(v)*m->w + (u)) + (size_t)c]
    return (1 - b) * ((1 - a) * AT(ix, iy) + a * AT(jx, iy)) +
           b * ((1 - a) * AT(ix, jy) + a * AT(jx, jy));
#undef AT
}

static void test_resize(void **state)
{
    (void)state;
    static const uint32_t cases[][4] = {{50, 40, 50, 40}, {50, 40, 25, 20}, {50, 33, 64, 43},
                                        {97, 61, 20, 13}, {1, 1, 5, 7},     {3, 2, 300, 200},
                                        {200, 1, 64, 1},  {64, 48, 31, 90}};
    resize_t r;
    resize_init(&r);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t w = cases[i][2], h = cases[i][3];
        image_t m = image_new(cases[i][0], cases[i][1], 20 + (uint32_t)i);
        uint8_t *out = malloc(3 * (size_t)w * h);
        assert_int_equal(
            resize_rgb(&r, m.pixels, m.w, m.h, 3 * (size_t)m.w, out, w, h, 3 * (size_t)w), 0);
        for (uint32_t y = 0; y < h; y++)
            for (uint32_t x = 0; x < w; x++)
                for (int c = 0; c < 3; c++) {
                    double want = resize_reference(&m, (x + 0.5) * m.w / w - 0.5,
                                                   (y + 0.5) * m.h / h - 0.5, c);
                    double got = out[3 * ((size_t)y * w + x) + (size_t)c];
                    if (fabs(got - want) > 1)
                        fail_msg("case %zu pixel %u,%u: %g, not %g", i, x, y, got, want);
                }
        if (m.w == w && m.h == h)
            assert_memory_equal(out, m.pixels, 3 * (size_t)w * h);
        free(out);
        free(m.pixels);
    }
    resize_fini(&r);
}

/* Loaded sizes of facts/yolo.md section 9, and the peer's rounding up. */
static void test_load_size(void **state)
{
    (void)state;
    static const uint32_t cases[][5] = {{1280, 720, 640, 640, 360}, {500, 333, 640, 640, 427},
                                        {640, 640, 640, 640, 640},  {970, 2800, 640, 222, 640},
                                        {10, 1000, 320, 4, 320},    {2048, 1, 32, 32, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t w, h;
        resize_load_size(cases[i][0], cases[i][1], cases[i][2], &w, &h);
        assert_int_equal(w, cases[i][3]);
        assert_int_equal(h, cases[i][4]);
    }
}

/* ---- colour ---- */

static void one_pixel(const double r[3], const uint8_t in[3], uint8_t out[3])
{
    hsv_lut_t lut;
    hsv_lut(&lut, r, 1);
    memcpy(out, in, 3);
    hsv_apply(&lut, out, 1);
}

static void test_hsv(void **state)
{
    (void)state;
    const double still[3] = {0, 0, 0}, third[3] = {1.0 / 3, 0, 0}, grey[3] = {0, -1, 0},
                 half[3] = {0, 0, -0.5}, back[3] = {-1.0 / 3, 0, 0};
    uint8_t out[3];
    one_pixel(third, (uint8_t[3]){255, 0, 0}, out); /* a third of the circle: red becomes green */
    assert_memory_equal(out, ((uint8_t[3]){0, 255, 0}), 3);
    one_pixel(back, (uint8_t[3]){255, 0, 0}, out);
    assert_memory_equal(out, ((uint8_t[3]){0, 0, 255}), 3);
    one_pixel(grey, (uint8_t[3]){200, 40, 90}, out);
    assert_memory_equal(out, ((uint8_t[3]){200, 200, 200}), 3);
    one_pixel(half, (uint8_t[3]){200, 200, 200}, out);
    assert_memory_equal(out, ((uint8_t[3]){100, 100, 100}), 3);
    /* Gray has saturation 0, which no gain moves. */
    one_pixel((double[3]){0.2, 0.7, 0}, (uint8_t[3]){77, 77, 77}, out);
    assert_memory_equal(out, ((uint8_t[3]){77, 77, 77}), 3);
    /* The round trip through 180 hues and 256 saturations loses little; the value is exact. */
    for (int i = 0; i < 4096; i++) {
        uint8_t in[3] = {(uint8_t)(i * 37), (uint8_t)(i * 101 >> 2), (uint8_t)(i * 59 >> 4)};
        one_pixel(still, in, out);
        int max = in[0] > in[1] ? in[0] : in[1];
        max = max > in[2] ? max : in[2];
        int now = out[0] > out[1] ? out[0] : out[1];
        now = now > out[2] ? now : out[2];
        assert_true(abs(now - max) <= 1);
        for (int c = 0; c < 3; c++)
            assert_true(abs(in[c] - out[c]) <= 5);
    }
    hsv_lut_t off;
    hsv_lut(&off, third, 0);
    uint8_t red[3] = {255, 0, 0};
    hsv_apply(&off, red, 1);
    assert_memory_equal(red, ((uint8_t[3]){255, 0, 0}), 3);
}

/* The tables of the draws: facts/yolo.md 5.7, by hand. */
static void test_hsv_tables(void **state)
{
    (void)state;
    hsv_lut_t lut;
    hsv_lut(&lut, (double[3]){-0.01, 0.5, 0.25}, 1);
    assert_int_equal(lut.h[0], 178); /* -1.8 mod 180 = 178.2 */
    assert_int_equal(lut.h[2], 0);   /* 0.2 */
    assert_int_equal(lut.h[179], 177);
    assert_int_equal(lut.s[0], 0);
    assert_int_equal(lut.s[101], 151); /* 151.5 truncated */
    assert_int_equal(lut.s[200], 255);
    assert_int_equal(lut.v[3], 3); /* 3.75 */
    assert_int_equal(lut.v[204], 255);
}

/* A row of any length, in blocks or not, gives each pixel what it gets alone. */
static void test_hsv_blocks(void **state)
{
    (void)state;
    image_t m = image_new(301, 1, 30);
    const double r[3] = {0.011, -0.3, 0.2};
    hsv_lut_t lut;
    hsv_lut(&lut, r, 1);
    uint8_t all[3 * 301];
    memcpy(all, m.pixels, sizeof all);
    hsv_apply(&lut, all, 301);
    for (int i = 0; i < 301; i++) {
        hsv_apply(&lut, m.pixels + 3 * i, 1);
        assert_memory_equal(all + 3 * i, m.pixels + 3 * i, 3);
    }
    free(m.pixels);
}

static void test_hash(void **state)
{
    (void)state;
    uint8_t data[300];
    for (int i = 0; i < 300; i++)
        data[i] = (uint8_t)(i * 7);
    uint64_t seen[700];
    int n = 0;
    for (size_t bytes = 0; bytes < 200; bytes++)
        seen[n++] = hash64(data, bytes, 0);
    for (int bit = 0; bit < 400; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        seen[n++] = hash64(data, 200, 0);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    seen[n++] = hash64(data, 200, 0);
    seen[n++] = hash64(data, 200, 1);
    uint8_t zeros[128] = {0};
    for (size_t bytes = 64; bytes < 128; bytes++)
        seen[n++] = hash64(zeros, bytes, 0);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            assert_true(seen[i] != seen[k]);
    assert_true(hash64(data, 200, 0) == hash64(data, 200, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),    cmocka_unit_test(test_translation_and_border),
        cmocka_unit_test(test_half_pixel),  cmocka_unit_test(test_affine),
        cmocka_unit_test(test_perspective), cmocka_unit_test(test_far),
        cmocka_unit_test(test_seams),       cmocka_unit_test(test_resize),
        cmocka_unit_test(test_load_size),   cmocka_unit_test(test_hsv),
        cmocka_unit_test(test_hsv_tables),  cmocka_unit_test(test_hsv_blocks),
        cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
