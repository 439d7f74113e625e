/* What the augmentation draws: placement, matrices, purity, probabilities, letterbox golden
 * numbers. */
#include "loader/geometry.h"
#include "loader/order.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N = 50, SIDE = 640 };

/* Samples of three shapes. */
static void size_of(void *user, uint32_t sample, uint32_t *width, uint32_t *height)
{
    static const uint32_t sizes[3][2] = {{640, 640}, {1280, 720}, {333, 500}};
    int *calls = user;
    ++*calls;
    *width = sizes[sample % 3][0];
    *height = sizes[sample % 3][1];
}

static int size_calls;

static geometry_input_t input(const options_t *o, uint64_t position)
{
    return (geometry_input_t){.seed = 3,
                              .position = position,
                              .epoch = 2,
                              .n = N,
                              .imgsz = SIDE,
                              .mosaic = 1,
                              .options = o,
                              .size = size_of,
                              .user = &size_calls};
}

static options_t plain_options(void)
{
    options_t o;
    memset(&o, 0, sizeof o);
    return o;
}

static options_t busy_options(void)
{
    options_t o = plain_options();
    o.mosaic = 0.7;
    o.mixup = 0.5;
    o.translate = 0.1;
    o.scale = 0.5;
    o.degrees = 10;
    o.shear = 3;
    o.fliplr = 0.5;
    o.flipud = 0.25;
    o.bgr = 0.1;
    o.hsv_h = 0.015;
    o.hsv_s = 0.7;
    o.hsv_v = 0.4;
    return o;
}

static void test_pure(void **state)
{
    (void)state;
    options_t o = busy_options();
    geometry_t first[20], again;
    for (uint64_t p = 0; p < 20; p++) {
        geometry_input_t in = input(&o, p);
        geometry_draw(&in, &first[p]);
    }
    for (uint64_t p = 20; p-- > 0;) {
        geometry_input_t in = input(&o, p);
        geometry_draw(&in, &again);
        assert_memory_equal(&again, &first[p], sizeof again);
        in.epoch++;
        geometry_draw(&in, &again);
        assert_memory_not_equal(&again, &first[p], sizeof again);
    }
}

/* Every probability is its option's, within what 4000 draws allow (5 standard deviations). */
static void test_probabilities(void **state)
{
    (void)state;
    enum { DRAWS = 4000 };
    options_t o = busy_options();
    int mosaic = 0, mixup = 0, x = 0, y = 0, bgr = 0;
    double mix = 0, mix2 = 0;
    for (uint64_t p = 0; p < DRAWS; p++) {
        geometry_t g;
        geometry_input_t in = input(&o, p);
        geometry_draw(&in, &g);
        mosaic += g.views[0].n_tiles == 4;
        mixup += g.n_views == 2;
        x += g.flip_x;
        y += g.flip_y;
        bgr += g.bgr;
        if (g.n_views == 2) {
            mix += g.mix;
            mix2 += (g.mix - 0.5) * (g.mix - 0.5);
        }
        assert_true(fabs(g.hsv[0]) <= 0.015 && fabs(g.hsv[1]) <= 0.7 && fabs(g.hsv[2]) <= 0.4);
    }
    const double got[5] = {mosaic, mixup, x, y, bgr}, want[5] = {0.7, 0.5, 0.5, 0.25, 0.1};
    for (int i = 0; i < 5; i++)
        assert_true(fabs(got[i] / DRAWS - want[i]) < 5 * sqrt(want[i] * (1 - want[i]) / DRAWS));
    /* Beta(32, 32): mean 1/2, variance 1 / (4 * 65). */
    assert_true(fabs(mix / mixup - 0.5) < 0.01);
    assert_true(fabs(mix2 / mixup - 1.0 / 260) < 0.0008);
}

static void test_closed(void **state)
{
    (void)state;
    options_t o = busy_options();
    o.mosaic = o.mixup = 1;
    for (uint64_t p = 0; p < 50; p++) {
        geometry_t g;
        geometry_input_t in = input(&o, p);
        in.mosaic = 0;
        geometry_draw(&in, &g);
        assert_int_equal(g.n_views, 1);
        assert_int_equal(g.views[0].n_tiles, 1);
        in.mosaic = 1;
        geometry_draw(&in, &g);
        assert_int_equal(g.n_views, 2);
        assert_int_equal(g.views[0].n_tiles, 4);
        assert_int_equal(g.views[1].n_tiles, 4);
    }
}

/* facts/yolo.md 5.3: each tile touches the centre with its corner, is cropped by the canvas only,
 * and shows the matching part of its picture. */
static void test_mosaic_tiles(void **state)
{
    (void)state;
    options_t o = plain_options();
    o.mosaic = 1;
    for (uint64_t p = 0; p < 200; p++) {
        geometry_t g;
        geometry_input_t in = input(&o, p);
        geometry_draw(&in, &g);
        const geometry_view_t *v = &g.views[0];
        const geometry_tile_t *t = v->tiles;
        int32_t xc = t[0].x2, yc = t[0].y2, s = SIDE;
        assert_true(xc >= s / 2 && xc < 3 * s / 2 && yc >= s / 2 && yc < 3 * s / 2);
        assert_int_equal(v->canvas_width, 2 * s);
        assert_int_equal(t[0].sample, order_sample(3, 2, p, N));
        for (int i = 0; i < 4; i++) {
            int32_t w = (int32_t)t[i].width, h = (int32_t)t[i].height;
            assert_true(w == s || h == s);
            assert_int_equal(i % 2 == 0 ? t[i].x2 : t[i].x1, xc);
            assert_int_equal(i < 2 ? t[i].y2 : t[i].y1, yc);
            assert_true(t[i].x1 >= 0 && t[i].x2 <= 2 * s && t[i].y1 >= 0 && t[i].y2 <= 2 * s);
            assert_true(t[i].x2 - t[i].x1 == w || t[i].x1 == 0 || t[i].x2 == 2 * s);
            assert_true(t[i].y2 - t[i].y1 == h || t[i].y1 == 0 || t[i].y2 == 2 * s);
            /* Bottom-right corner of the top-left picture at the centre, and so on. */
            assert_int_equal(t[i].off_x, i % 2 == 0 ? xc - w : xc);
            assert_int_equal(t[i].off_y, i < 2 ? yc - h : yc);
        }
    }
}

static void map(const double m[9], double x, double y, double out[2])
{
    double w = m[6] * x + m[7] * y + m[8];
    out[0] = (m[0] * x + m[1] * y + m[2]) / w;
    out[1] = (m[3] * x + m[4] * y + m[5]) / w;
}

/* With nothing to draw the canvas' centre goes to the output's, at scale 1 (facts/yolo.md 5.4). */
static void test_still_matrix(void **state)
{
    (void)state;
    options_t o = plain_options();
    for (int mosaic = 0; mosaic < 2; mosaic++) {
        geometry_t g;
        geometry_input_t in = input(&o, 5);
        o.mosaic = mosaic;
        geometry_draw(&in, &g);
        const geometry_view_t *v = &g.views[0];
        const double want[9] = {1, 0, SIDE / 2.0 - v->canvas_width / 2.0,
                                0, 1, SIDE / 2.0 - v->canvas_height / 2.0,
                                0, 0, 1};
        for (int i = 0; i < 9; i++)
            assert_true(fabs(v->forward[i] - want[i]) < 1e-12);
        assert_true(g.hsv_active == 0 && g.flip_x == 0 && g.bgr == 0 && v->scale == 1);
    }
}

/* OpenCV's getRotationMatrix2D(angle, scale): positive angles turn counter-clockwise on the screen.
 */
static void test_rotation_direction(void **state)
{
    (void)state;
    options_t o = plain_options();
    o.degrees = 45;
    for (uint64_t p = 0; p < 20; p++) {
        geometry_t g;
        geometry_input_t in = input(&o, p);
        geometry_draw(&in, &g);
        const double *m = g.views[0].forward;
        philox_t draws = philox_stream(3, 2, p, PHILOX_AFFINE);
        philox_unit(&draws);
        philox_unit(&draws);
        double angle = philox_range(&draws, -45, 45) * 3.14159265358979 / 180;
        assert_true(fabs(m[0] - cos(angle)) < 1e-9 && fabs(m[1] - sin(angle)) < 1e-9);
        assert_true(fabs(m[3] + sin(angle)) < 1e-9 && fabs(m[4] - cos(angle)) < 1e-9);
    }
}

static void test_inverse(void **state)
{
    (void)state;
    options_t o = busy_options();
    for (int perspective = 0; perspective < 2; perspective++) {
        o.perspective = perspective ? 0.0005 : 0;
        for (uint64_t p = 0; p < 50; p++) {
            geometry_t g;
            geometry_input_t in = input(&o, p);
            geometry_draw(&in, &g);
            for (uint32_t v = 0; v < g.n_views; v++) {
                double there[2], back[2];
                map(g.views[v].forward, 411, 287, there);
                map(g.views[v].inverse, there[0], there[1], back);
                assert_true(fabs(back[0] - 411) < 1e-6 && fabs(back[1] - 287) < 1e-6);
            }
        }
    }
    double inverse[9];
    geometry_invert((double[9]){1, 2, 3, 2, 4, 6, 0, 0, 1}, inverse);
    assert_true(isinf(inverse[2]));
}

/* Every canvas pixel that an output pixel interpolates from lies in its tile's `need`. */
static void test_need(void **state)
{
    (void)state;
    options_t o = busy_options();
    int hidden = 0, shown = 0;
    for (uint64_t p = 0; p < 60; p++) {
        geometry_t g;
        geometry_input_t in = input(&o, p);
        o.perspective = p % 3 == 0 ? 0.0004 : 0;
        geometry_draw(&in, &g);
        for (uint32_t i = 0; i < g.n_views; i++) {
            const geometry_view_t *v = &g.views[i];
            for (int k = 0; k < 4 * SIDE; k++) { /* a lattice of the output, its rim included */
                double c[2];
                map(v->inverse, k % 64 * (SIDE - 1) / 63.0, k / 64 * (SIDE - 1) / 39.0, c);
                for (uint32_t t = 0; t < v->n_tiles; t++) {
                    const geometry_tile_t *q = &v->tiles[t];
                    for (int corner = 0; corner < 4; corner++) {
                        double x = floor(c[0]) + corner % 2, y = floor(c[1]) + corner / 2;
                        if (x < q->x1 || x >= q->x2 || y < q->y1 || y >= q->y2)
                            continue;
                        assert_true(x - q->off_x >= q->need[0] && x - q->off_x < q->need[2]);
                        assert_true(y - q->off_y >= q->need[1] && y - q->off_y < q->need[3]);
                    }
                }
            }
            for (uint32_t t = 0; t < v->n_tiles; t++) {
                const int32_t *n = v->tiles[t].need;
                if (n[0] < n[2] && n[1] < n[3])
                    shown++;
                else
                    hidden++;
            }
        }
    }
    assert_true(shown > 200 && hidden > 5); /* some tiles need not be read at all */
}

/* facts/yolo.md section 9. */
static void test_letterbox(void **state)
{
    (void)state;
    geometry_letterbox_t b;
    geometry_letterbox(1280, 720, 640, 672, 384, &b);
    assert_true(b.loaded_width == 640 && b.loaded_height == 360 && b.width == 640 &&
                b.height == 360);
    assert_true(b.top == 12 && b.left == 16 && b.ratio == 0.5f);
    geometry_letterbox(500, 333, 640, 672, 448, &b);
    assert_true(b.width == 640 && b.height == 427 && b.top == 10 && b.left == 16);
    assert_int_equal(448 - b.height - b.top, 11);
    geometry_letterbox(500, 333, 640, 640, 640, &b);
    assert_true(b.top == 106 && 640 - b.height - b.top == 107 && b.left == 0);
    /* What does not fit is made smaller, never larger. */
    geometry_letterbox(640, 640, 640, 672, 320, &b);
    assert_true(b.width == 320 && b.height == 320 && b.left == 176 && b.top == 0 &&
                b.ratio == 0.5f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pure),         cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_closed),       cmocka_unit_test(test_mosaic_tiles),
        cmocka_unit_test(test_still_matrix), cmocka_unit_test(test_rotation_direction),
        cmocka_unit_test(test_inverse),      cmocka_unit_test(test_need),
        cmocka_unit_test(test_letterbox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
