/* Labels move with the pixels: each case by hand, and whole moves against the matrix. */
#include "loader/boxes.h"
#include "shm/err.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const double still[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};

/* One picture of 200 x 100 on its own canvas, moved by m. */
static geometry_view_t single(const double m[9])
{
    geometry_view_t v;
    memset(&v, 0, sizeof v);
    v.n_tiles = 1;
    v.tiles[0] = (geometry_tile_t){.width = 200, .height = 100, .x2 = 200, .y2 = 100};
    v.canvas_width = 200;
    v.canvas_height = 100;
    v.scale = 1;
    memcpy(v.forward, m, sizeof v.forward);
    return v;
}

static uint32_t move(const geometry_view_t *v, const catalog_label_t *l, uint32_t n, uint32_t side,
                     ring_label_t *out)
{
    box_list_t list;
    boxes_init(&list);
    for (uint32_t t = 0; t < v->n_tiles; t++)
        assert_int_equal(boxes_tile(&list, v, t, side, NULL, l, n), 0);
    uint32_t got = boxes_store(&list, side, side, out, 16);
    boxes_fini(&list);
    return got;
}

static void check(const ring_label_t *l, double cls, double x1, double y1, double x2, double y2,
                  double side)
{
    const double got[5] = {l->cls, (l->cx - l->w / 2) * side, (l->cy - l->h / 2) * side,
                           (l->cx + l->w / 2) * side, (l->cy + l->h / 2) * side};
    const double want[5] = {cls, x1, y1, x2, y2};
    for (int i = 0; i < 5; i++)
        if (fabs(got[i] - want[i]) > 1e-3)
            fail_msg("value %d: %g, not %g", i, got[i], want[i]);
}

static void test_affine(void **state)
{
    (void)state;
    ring_label_t out[16];
    const catalog_label_t l = {
        .cls = 3, .cx = 0.5f, .cy = 0.5f, .w = 0.2f, .h = 0.4f}; /* 80..120, 30..70 */
    geometry_view_t v = single(still);
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    check(out, 3, 80, 30, 120, 70, 200);
    const double twice[9] = {2, 0, -100, 0, 2, 10, 0, 0, 1};
    v = single(twice);
    v.scale = 2;
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    check(out, 3, 60, 70, 140, 150, 200);
    /* A quarter turn about the origin, moved back into view: (x, y) -> (150 - y, x). */
    const double turn[9] = {0, -1, 150, 1, 0, 0, 0, 0, 1};
    v = single(turn);
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    check(out, 3, 80, 80, 120, 120, 200);
    /* 45 degrees: the box of the turned box. */
    double r = sqrt(0.5);
    const double tilt[9] = {r, -r, 100, r, r, 0, 0, 0, 1};
    v = single(tilt);
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    check(out, 3, 100 + r * (80 - 70), r * (80 + 30), 100 + r * (120 - 30), r * (120 + 70), 200);
}

static void test_perspective(void **state)
{
    (void)state;
    ring_label_t out[16];
    const catalog_label_t l = {.cx = 0.5f, .cy = 0.5f, .w = 0.2f, .h = 0.4f};
    const double m[9] = {1, 0, 0, 0, 1, 0, 0.005, 0, 1};
    geometry_view_t v = single(m);
    v.perspective = 1;
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    /* w = 1.4 at x = 80 and 1.6 at x = 120. */
    check(out, 0, 80 / 1.4, 30 / 1.6, 120 / 1.6, 70 / 1.4, 200);
}

/* facts/yolo.md 5.4: 2 px, aspect 100, a tenth of the area. */
static void test_filter(void **state)
{
    (void)state;
    ring_label_t out[16];
    geometry_view_t v = single(still);
    catalog_label_t l = {.cx = 0.5f, .cy = 0.5f, .w = 2.0f / 200, .h = 0.2f};
    assert_int_equal(move(&v, &l, 1, 200, out), 0); /* 2 px wide: not more than 2 */
    l.w = 2.1f / 200;
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    l = (catalog_label_t){.cx = 0.5f, .cy = 0.5f, .w = 1, .h = 2.05f / 100};
    assert_int_equal(move(&v, &l, 1, 200, out), 1); /* 200 / 2.05 = 97.6 */
    l.w = 1.04f;
    assert_int_equal(move(&v, &l, 1, 208, out),
                     1); /* clipped at 0: 204 / 2.05 = 99.5 is kept ... */
    const double right[9] = {1, 0, 8, 0, 1, 0, 0, 0, 1};
    v = single(right);
    assert_int_equal(move(&v, &l, 1, 216, out), 0); /* ... and 208 / 2.05 = 101.5 is not */
    /* 40 px wide, moved left until 4.1 and 3.9 px are left. */
    l = (catalog_label_t){.cx = 0.5f, .cy = 0.5f, .w = 0.2f, .h = 0.4f};
    const double keep[9] = {1, 0, -115.9, 0, 1, 0, 0, 0, 1},
                 drop[9] = {1, 0, -116.1, 0, 1, 0, 0, 0, 1};
    v = single(keep);
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    check(out, 0, 0, 30, 4.1, 70, 200);
    v = single(drop);
    assert_int_equal(move(&v, &l, 1, 200, out), 0);
    /* The area before is the scaled one: half the size is no loss. */
    const double half[9] = {0.25, 0, 0, 0, 0.25, 0, 0, 0, 1};
    v = single(half);
    v.scale = 0.25;
    assert_int_equal(move(&v, &l, 1, 200, out), 1);
    v.scale = 1;
    assert_int_equal(move(&v, &l, 1, 200, out), 0);
}

/* Two tiles of a canvas: offsets, clip at the canvas' edge, removal of what lies outside. */
static void test_mosaic(void **state)
{
    (void)state;
    ring_label_t out[16];
    geometry_view_t v = single(still);
    v.n_tiles = 2;
    v.canvas_width = v.canvas_height = 300;
    v.tiles[0] = (geometry_tile_t){.width = 200, .height = 100, .x2 = 150, .y2 = 100, .off_x = -50};
    v.tiles[1] = (geometry_tile_t){.width = 200,
                                   .height = 100,
                                   .x1 = 150,
                                   .x2 = 300,
                                   .y1 = 100,
                                   .y2 = 200,
                                   .off_x = 150,
                                   .off_y = 100};
    const catalog_label_t l[2] = {
        {.cls = 1, .cx = 0.25f, .cy = 0.5f, .w = 0.2f, .h = 0.4f}, /* 30..70 */
        {.cls = 2, .cx = 0.1f, .cy = 0.5f, .w = 0.1f, .h = 0.4f}}; /* 10..30 */
    assert_int_equal(move(&v, l, 2, 300, out), 3);
    check(&out[0], 1, 0, 30, 20, 70, 300);
    check(&out[1], 1, 180, 130, 220, 170, 300);
    check(&out[2], 2, 160, 130, 180, 170, 300);
}

static void test_flip(void **state)
{
    (void)state;
    ring_label_t out[16];
    box_list_t list;
    boxes_init(&list);
    geometry_view_t v = single(still);
    const catalog_label_t l = {
        .cls = 4, .cx = 0.2f, .cy = 0.3f, .w = 0.1f, .h = 0.4f}; /* 30..50, 10..50 */
    assert_int_equal(boxes_tile(&list, &v, 0, 200, NULL, &l, 1), 0);
    boxes_flip(&list, 200, 200, 1, 0);
    assert_int_equal(boxes_store(&list, 200, 200, out, 16), 1);
    check(out, 4, 150, 10, 170, 50, 200);
    boxes_flip(&list, 200, 200, 1, 1);
    boxes_store(&list, 200, 200, out, 16);
    check(out, 4, 30, 150, 50, 190, 200);
    assert_int_equal(boxes_store(&list, 200, 200, out, 0), 0);
    boxes_fini(&list);
}

static void test_letterbox(void **state)
{
    (void)state;
    ring_label_t out[16];
    box_list_t list;
    boxes_init(&list);
    geometry_letterbox_t b;
    geometry_letterbox(1280, 720, 640, 672, 384, &b);
    const catalog_label_t l = {.cls = 5, .cx = 0.5f, .cy = 0.25f, .w = 0.1f, .h = 0.2f};
    assert_int_equal(boxes_letterbox(&list, &b, &l, 1), 0);
    assert_int_equal(boxes_store(&list, 672, 384, out, 16), 1);
    assert_true(fabs(out[0].cx * 672 - (16 + 320)) < 1e-3 &&
                fabs(out[0].cy * 384 - (12 + 90)) < 1e-3);
    assert_true(fabs(out[0].w * 672 - 64) < 1e-3 && fabs(out[0].h * 384 - 72) < 1e-3);
    boxes_fini(&list);
}

/* A catalogue with one polygon, a triangle on the left half of its box's lower edge. */
static catalog_t *polygon_catalog(int *fd)
{
    catalog_builder_t *b;
    catalog_t *c = NULL;
    const float points[6] = {0.4f, 0.7f, 0.6f, 0.7f, 0.4f, 0.3f};
    const catalog_label_t l = {.cx = 0.5f, .cy = 0.5f, .w = 0.2f, .h = 0.4f, .n_points = 3};
    const catalog_sample_t s = {
        .width = 200, .height = 100, .format = CATALOG_JPEG, .orientation = 1};
    *fd = memfd_create("test-boxes", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "thing"), 0);
    assert_int_equal(catalog_builder_sample(b, CATALOG_TRAIN, "/a.jpg", &s, &l, 1, points, 3), 0);
    if (catalog_builder_write(b, *fd) < 0 || catalog_open(*fd, &c) < 0)
        fail_msg("%s", err_text());
    catalog_builder_free(&b);
    return c;
}

static uint32_t move_polygon(const catalog_t *c, const geometry_view_t *v, uint32_t side,
                             ring_label_t *out)
{
    const catalog_sample_t *s = catalog_sample(c, CATALOG_TRAIN, 0);
    box_list_t list;
    boxes_init(&list);
    assert_int_equal(boxes_tile(&list, v, 0, side, c, catalog_labels(c, s), s->n_labels), 0);
    uint32_t n = boxes_store(&list, side, side, out, 16);
    boxes_fini(&list);
    return n;
}

static void test_polygons(void **state)
{
    (void)state;
    int fd;
    ring_label_t out[16];
    catalog_t *c = polygon_catalog(&fd);
    geometry_view_t v = single(still);
    assert_int_equal(move_polygon(c, &v, 200, out), 1);
    check(out, 0, 80, 30, 120, 70, 200);
    /* 45 degrees: the triangle's box is smaller than its box's box. Corners (80,70) (120,70)
     * (80,30). */
    double r = sqrt(0.5);
    const double tilt[9] = {r, -r, 100, r, r, 0, 0, 0, 1};
    v = single(tilt);
    assert_int_equal(move_polygon(c, &v, 200, out), 1);
    check(out, 0, 100 + r * 10, r * 110, 100 + r * 50, r * 190, 200);
    /* Of the triangle's right tip 5.8 px are left: 2 % of the box, enough (1 %), where a plain box
     * would need a tenth. 2.9 px are half a percent. */
    const double more[9] = {1, 0, -114.2, 0, 1, 0, 0, 0, 1};
    v = single(more);
    assert_int_equal(move_polygon(c, &v, 200, out), 1);
    assert_true(fabs(out[0].w * 200 - 5.8) < 0.05 && fabs(out[0].h * 200 - 5.8) < 0.05);
    const double less[9] = {1, 0, -117.1, 0, 1, 0, 0, 0, 1};
    v = single(less);
    assert_int_equal(move_polygon(c, &v, 200, out), 0);
    /* Larger than the output on every side: it keeps the whole of it. */
    const double zoom[9] = {20, 0, -1650, 0, 20, -1250, 0, 0, 1};
    v = single(zoom);
    v.scale = 20;
    assert_int_equal(move_polygon(c, &v, 100, out), 1);
    check(out, 0, 0, 0, 100, 100, 100);
    /* Plain boxes beside it (the other split's) keep the threshold of plain boxes: a twentieth of
     * the area is not enough. */
    box_list_t list;
    boxes_init(&list);
    const catalog_label_t plain = {.cx = 0.5f, .cy = 0.5f, .w = 0.2f, .h = 0.4f};
    const double twentieth[9] = {1, 0, -118, 0, 1, 0, 0, 0, 1};
    v = single(twentieth);
    assert_int_equal(boxes_tile(&list, &v, 0, 200, c, &plain, 1), 0);
    assert_int_equal(list.count, 0);
    v.forward[2] = -112; /* a fifth is */
    assert_int_equal(boxes_tile(&list, &v, 0, 200, c, &plain, 1), 0);
    assert_int_equal(list.count, 1);
    boxes_fini(&list);
    catalog_close(&c);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_affine),   cmocka_unit_test(test_perspective),
        cmocka_unit_test(test_filter),   cmocka_unit_test(test_mosaic),
        cmocka_unit_test(test_flip),     cmocka_unit_test(test_letterbox),
        cmocka_unit_test(test_polygons),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
