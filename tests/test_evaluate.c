/* What `sluice val` and `sluice predict` compute beside the model: confusion matrix, parts of images, boxes
 * back in the file's pixels, tiles put together, the forms of files, names, drawing. */
#include "control/found.h"
#include "control/outnames.h"
#include "control/parts.h"
#include "control/spool.h"
#include "loader/draw.h"
#include "loader/font.h"
#include "loader/geometry.h"
#include "loader/jpeg_encode.h"
#include "loader/decode.h"
#include "shm/err.h"
#include "trainer/ap.h"
#include "trainer/confusion.h"
#include "trainer/evaluate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

/* ---- confusion ---- */

static uint32_t at(const confusion_t *m, int predicted, int actual)
{
    return m->counts[predicted * (m->classes + 1) + actual];
}

static void confusion_pairs_boxes(void **state)
{
    (void)state;
    confusion_t m;
    const k_gt_t gts[] = {{0, 0, 0, 10, 10}, {1, 20, 0, 30, 10}, {2, 40, 0, 50, 10}};
    const k_det_t dets[] = {
        {0, 0, 10, 10, 0.9f, 0},  /* box 0, right */
        {20, 0, 30, 10, 0.8f, 2}, /* box 1, taken for class 2 */
        {0, 1, 10, 10, 0.7f, 1},  /* box 0 again: a better one has it */
        {70, 0, 80, 10, 0.6f, 1}, /* nothing there */
        {40, 0, 50, 10, 0.2f, 2}, /* box 2, but not sure enough */
    };
    assert_int_equal(confusion_init(&m, 3, 0.25, 0.45), 0);
    assert_int_equal(confusion_add(&m, dets, 5, gts, 3), 0);
    assert_int_equal(at(&m, 0, 0), 1);
    assert_int_equal(at(&m, 2, 1), 1);
    assert_int_equal(at(&m, 3, 2), 1); /* box 2 was missed */
    assert_int_equal(at(&m, 1, 3), 2); /* two of background */
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += m.counts[i];
    assert_int_equal(sum, 5);
    wire_confused_t *rows;
    uint32_t n;
    assert_int_equal(confusion_rows(&m, &rows, &n), 0);
    assert_int_equal(n, 4);
    assert_int_equal(rows[1].predicted, 1);
    assert_int_equal(rows[1].actual, 3);
    assert_int_equal(rows[1].count, 2);
    free(rows);
    confusion_fini(&m);
}

/* A detection between two boxes goes to the nearer one; the other box is missed though it overlaps. */
static void confusion_takes_the_larger_overlap(void **state)
{
    (void)state;
    confusion_t m;
    const k_gt_t gts[] = {{0, 0, 0, 10, 10}, {1, 2, 0, 12, 10}};
    const k_det_t dets[] = {{1.8f, 0, 11.8f, 10, 0.9f, 0}, {60, 60, 61, 61, 0.26f, 0}};
    assert_int_equal(confusion_init(&m, 2, 0.25, 0.45), 0);
    assert_int_equal(confusion_add(&m, dets, 2, gts, 2), 0);
    assert_int_equal(at(&m, 0, 1), 1);
    assert_int_equal(at(&m, 2, 0), 1);
    assert_int_equal(at(&m, 0, 2), 1);
    /* The thresholds themselves do not pass. */
    const k_det_t same = {0, 0, 10, 10, 0.25f, 0};
    assert_int_equal(confusion_add(&m, &same, 1, gts, 1), 0);
    assert_int_equal(at(&m, 2, 0), 2);
    confusion_fini(&m);
    assert_int_equal(confusion_init(&m, CONFUSION_CLASSES + 1, 0.25, 0.45), ERR_FAILED);
    confusion_fini(&m);
}

static void each_class_has_its_ap(void **state)
{
    (void)state;
    const ap_row_t rows[] = {{0.9f, 0, 0x3ff}, {0.8f, 0, 0x001}, {0.7f, 1, 0}, {0.6f, 0, 0}};
    const uint64_t labels[] = {2, 1, 0};
    ap_result_t all, plain;
    ap_class_t each[3];
    assert_int_equal(ap_compute_classes(rows, 4, labels, 3, &all, each), 0);
    assert_int_equal(ap_compute(rows, 4, labels, 3, &plain), 0);
    assert_memory_equal(&all, &plain, sizeof all);
    /* A perfect class scores 0.995 (facts/yolo.md 6.5). */
    assert_float_equal(each[0].map50, 0.995, 1e-9);
    assert_float_equal(each[1].map50, 0, 1e-12);
    assert_float_equal(all.map50, (each[0].map50 + each[1].map50) / 2, 1e-12);
    assert_float_equal(all.map, (each[0].map + each[1].map) / 2, 1e-12);
    assert_float_equal(all.precision, (each[0].precision + each[1].precision) / 2, 1e-12);
    assert_float_equal(all.recall, (each[0].recall + each[1].recall) / 2, 1e-12);
    assert_true(each[0].map < each[0].map50);
    assert_true(each[2].map == 0 && each[2].precision == 0);
}

/* ---- parts ---- */

static catalog_t *make_catalog(const char *const *paths, const uint32_t (*sizes)[2], uint32_t n)
{
    catalog_builder_t *b;
    catalog_t *c;
    int fd = memfd_create("parts", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "object"), 0);
    for (uint32_t i = 0; i < n; i++) {
        const catalog_sample_t s = {
            .file_bytes = 1, .width = sizes[i][0], .height = sizes[i][1], .orientation = 1};
        assert_int_equal(catalog_builder_sample(b, CATALOG_VAL, paths[i], &s, NULL, 0, NULL, 0), 0);
    }
    assert_int_equal(catalog_builder_write(b, fd), 0);
    catalog_builder_free(&b);
    assert_int_equal(catalog_open(fd, &c), 0);
    close(fd);
    return c;
}

static void tiles_cover_an_image(void **state)
{
    (void)state;
    static const char *const paths[] = {"/a.jpg", "/b.jpg", "/c.jpg"};
    static const uint32_t sizes[][2] = {{100, 80}, {1000, 300}, {256, 257}};
    catalog_t *c = make_catalog(paths, sizes, 3);
    options_t o;
    parts_t *p;
    options_default(&o);
    o.mode = OPT_MODE_PREDICT;
    o.tile = 256;
    o.overlap = 0.25;
    assert_int_equal(parts_open(c, &o, &p), 0);
    /* 1 + (1 + ceil(744 / 192)) * (1 + ceil(44 / 192)) + 1 * 2 */
    assert_int_equal(parts_count(p), 1 + 5 * 2 + 2);
    uint8_t *seen = calloc(1000, 300);
    for (uint32_t i = 0; i < parts_count(p); i++) {
        part_t t = parts_at(p, c, i);
        assert_true(t.x + t.width <= sizes[t.sample][0] && t.y + t.height <= sizes[t.sample][1]);
        assert_int_equal(t.sample, i < 1 ? 0 : i < 11 ? 1 : 2);
        assert_int_equal(t.of, t.sample == 0 ? 1 : t.sample == 1 ? 10 : 2);
        for (uint32_t y = t.y; t.sample == 1 && y < t.y + t.height; y++)
            memset(seen + 1000 * y + t.x, 1, t.width);
        if (i > 1 && i < 6) { /* a row of tiles: neighbours share a quarter at least */
            part_t before = parts_at(p, c, i - 1);
            assert_true(before.x + before.width >= t.x + 64);
        }
    }
    assert_null(memchr(seen, 0, 300000));
    free(seen);
    uint32_t h, w;
    parts_shape(p, c, 0, 1, 320, &h, &w); /* 100 x 80 -> 320 x 256 */
    assert_int_equal(w, 320);
    assert_int_equal(h, 256);
    parts_shape(p, c, 0, 2, 320, &h, &w); /* with a square tile */
    assert_int_equal(h, 320);
    parts_close(&p);
    o.tile = 0;
    assert_int_equal(parts_open(c, &o, &p), 0);
    assert_int_equal(parts_count(p), 3);
    parts_shape(p, c, 1, 1, 640, &h, &w); /* 1000 x 300 -> 640 x 192 */
    assert_int_equal(h, 192);
    parts_close(&p);
    o.mode = OPT_MODE_VAL;
    o.rect = OPT_RECT_OFF;
    assert_int_equal(parts_open(c, &o, &p), 0);
    parts_shape(p, c, 0, 3, 640, &h, &w);
    assert_int_equal(h * w, 640 * 640);
    parts_close(&p);
    /* NULL is a training's own validation. */
    uint32_t h2, w2;
    parts_shape(NULL, c, 0, 2, 640, &h, &w);
    catalog_val_shape(c, 0, 2, 640, &h2, &w2);
    assert_true(h == h2 && w == w2);
    catalog_close(&c);
}

/* A point of the file goes through the letterbox and comes back. */
static void boxes_come_back_to_the_file(void **state)
{
    (void)state;
    const part_t part = {.x = 700, .y = 40, .width = 1024, .height = 512};
    geometry_letterbox_t box;
    wire_box_t found;
    geometry_fit(part.width, part.height, 640, 640, 352, &box);
    assert_int_equal(box.width, 640);
    assert_int_equal(box.height, 320);
    assert_int_equal(box.top, 16);
    const batch_place_t place = {0, box.ratio, (float)box.left, (float)box.top};
    const float x1 = 100, y1 = 50, x2 = 300, y2 = 200; /* of the part's pixels */
    const k_det_t d = {x1 * box.ratio + place.pad_left,
                       y1 * box.ratio + place.pad_top,
                       x2 * box.ratio + place.pad_left,
                       y2 * box.ratio + place.pad_top,
                       0.5f,
                       3};
    evaluate_place(&d, &place, &part, &found);
    assert_float_equal(found.x1, 800, 1e-3);
    assert_float_equal(found.y1, 90, 1e-3);
    assert_float_equal(found.x2, 1000, 1e-3);
    assert_float_equal(found.y2, 240, 1e-3);
    assert_int_equal(found.cls, 3);
    const k_det_t outside = {-50, -50, 900, 900, 0.5f, 0};
    evaluate_place(&outside, &place, &part, &found);
    assert_true(found.x1 == 700 && found.y1 == 40 && found.x2 == 1724 && found.y2 == 552);
}

/* ---- tiles together ---- */

static found_t of_tile(uint32_t tile, int cut, float x1, float x2, float score, uint32_t cls)
{
    return (found_t){{x1, 0, x2, 10, score, cls}, tile, cut};
}

static void tiles_are_put_together(void **state)
{
    (void)state;
    const part_t left = {.x = 0, .width = 100, .height = 100, .of = 2};
    const part_t right = {.x = 80, .width = 100, .height = 100, .index = 1, .of = 2};
    const wire_box_t inner = {90, 10, 100, 20, 0.5f, 0}, border = {0, 10, 20, 20, 0.5f, 0};
    assert_true(found_is_cut(&inner, &left, 180, 100));
    assert_false(found_is_cut(&border, &left, 180, 100)); /* the image's own border */
    assert_false(found_is_cut(&inner, &right, 180, 100));

    found_t f[] = {
        of_tile(0, 1, 60, 100, 0.95f, 0), /* cut, though the surest: a part of the next */
        of_tile(1, 0, 85, 150, 0.60f, 0), /* not a part of it: less than half is in common */
        of_tile(1, 0, 58, 104, 0.90f, 0), /* the whole of the first */
        of_tile(0, 0, 10, 20, 0.50f, 1),  /* the same object, seen by both tiles */
        of_tile(1, 0, 10, 20.5f, 0.55f, 1), of_tile(1, 0, 10, 20, 0.40f, 2), /* another class */
        of_tile(1, 0, 10, 20.2f, 0.54f, 1), /* the same tile as the kept one: NMS has seen it */
    };
    uint32_t n = found_merge(f, 7, 0.7, 0, 100);
    assert_int_equal(n, 5);
    assert_float_equal(f[0].box.score, 0.90f, 1e-6);
    for (uint32_t i = 1; i < n; i++)
        assert_true(f[i].box.score <= f[i - 1].box.score && f[i].box.score != 0.95f &&
                    f[i].box.score != 0.50f);
    assert_int_equal(found_merge(f, n, 0.7, 0, 2), 2);
    found_t g[] = {of_tile(0, 0, 10, 20, 0.5f, 1), of_tile(1, 0, 10, 20, 0.4f, 2)};
    assert_int_equal(found_merge(g, 2, 0.7, 1, 100), 1);
}

/* ---- forms ---- */

static char *written(void (*write)(FILE *out))
{
    char *text;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    write(out);
    fclose(out);
    return text;
}

static const wire_box_t box_of_form = {10, 20, 40, 80, 0.87654f, 1};

static void write_coco(FILE *out)
{
    int first = found_coco(out, "/x/000000042.jpg", &box_of_form, 1, 1);
    assert_int_equal(first, 0);
    assert_int_equal(found_coco(out, "/x/none.jpg", &box_of_form, 0, first), 0);
    found_coco(out, "/x/a \"b\".jpg", &box_of_form, 1, first);
}

static void write_text(FILE *out)
{
    found_text(out, &box_of_form, 1, 100, 200);
}

static void write_json(FILE *out)
{
    static const char *const names[] = {"pit", "scratch"};
    found_json(out, "/x/a.jpg", 100, 200, &box_of_form, 1, names, 2, 1);
}

static void forms_are_as_documented(void **state)
{
    (void)state;
    char *text = written(write_coco);
    assert_string_equal(
        text,
        "\n{\"image_id\":42,\"file_name\":\"000000042.jpg\",\"category_id\":2,\"bbox\":[10.000,"
        "20.000,30.000,60.000],\"score\":0.87654},\n{\"image_id\":\"a "
        "\\\"b\\\"\",\"file_name\":\"a \\\"b\\\".jpg\",\"category_id\":2,\"bbox\":[10.000,20.000,"
        "30.000,60.000],\"score\":0.87654}");
    free(text);
    text = written(write_text);
    assert_string_equal(text, "1 0.25 0.25 0.3 0.3 0.87654\n");
    free(text);
    text = written(write_json);
    assert_string_equal(text, "\n{\"image\":\"/x/a.jpg\",\"width\":100,\"height\":200,\"boxes\":[{"
                              "\"class\":1,\"name\":\"scratch\",\"confidence\":0.87654,\"xyxy\":["
                              "10.000,20.000,40.000,80.000]}]}");
    free(text);
}

static void each_image_has_a_name_of_its_own(void **state)
{
    (void)state;
    static const char *const paths[] = {"/a/x.jpg", "/a/x.png", "/b/x-2.jpg", "/c/x.jpg",
                                        "/c/y.tar.jpg"};
    static const char *const want[] = {"x", "x-3", "x-2", "x-4", "y.tar"};
    static const uint32_t sizes[][2] = {{10, 10}, {10, 10}, {10, 10}, {10, 10}, {10, 10}};
    catalog_t *c = make_catalog(paths, sizes, 5);
    outnames_t names;
    char text[64];
    assert_int_equal(outnames_init(&names, c), 0);
    for (uint32_t i = 0; i < 5; i++) {
        outnames_get(&names, i, text, sizeof text);
        assert_string_equal(text, want[i]);
    }
    outnames_fini(&names);
    catalog_close(&c);
}

static void a_spool_is_read_back(void **state)
{
    (void)state;
    static const char *const names[] = {"pit", "kratzer"};
    static spool_image_t in, out;
    wire_box_t boxes[2] = {box_of_form, {1, 2, 3, 4, 0.5f, 0}};
    char **classes, *text;
    size_t bytes;
    uint32_t n;
    FILE *f = open_memstream(&text, &bytes);
    in =
        (spool_image_t){.width = 5, .height = 6, .n = 2, .boxes = boxes, .path = "/p", .name = "n"};
    spool_begin(f, names, 2);
    spool_image(f, &in);
    in.n = 0;
    spool_image(f, &in);
    fclose(f);
    f = fmemopen(text, bytes, "r");
    assert_int_equal(spool_open(f, &classes, &n), 0);
    assert_int_equal(n, 2);
    assert_string_equal(classes[1], "kratzer");
    assert_int_equal(spool_next(f, &out), 1);
    assert_int_equal(out.n, 2);
    assert_memory_equal(out.boxes, boxes, sizeof boxes);
    assert_string_equal(out.path, "/p");
    assert_int_equal(spool_next(f, &out), 1);
    assert_int_equal(spool_next(f, &out), 0);
    fclose(f);
    spool_classes_free(&classes, n);
    /* Cut anywhere, it is damaged or ends before an image, never more. */
    for (size_t cut = 1; cut < bytes; cut++) {
        f = fmemopen(text, cut, "r");
        int rc = spool_open(f, &classes, &n);
        for (int i = 0; rc == 0 && i < 3; i++)
            if (spool_next(f, &out) <= 0)
                break;
        fclose(f);
        spool_classes_free(&classes, n);
    }
    free(out.boxes);
    free(text);
}

/* ---- drawing ---- */

static void drawing_stays_in_the_picture(void **state)
{
    (void)state;
    enum { W = 60, H = 40, PAD = 64 };
    uint8_t memory[PAD + 3 * W * H + PAD], rgb[3] = {200, 10, 20};
    memset(memory, 7, sizeof memory);
    draw_canvas_t c = {memory + PAD, W, H, 3 * W};
    draw_box(&c, 10, 10, 30, 25, 2, rgb);
    assert_memory_equal(c.pixels + 3 * (10 * W + 10), rgb, 3);
    assert_memory_equal(c.pixels + 3 * (24 * W + 29), rgb, 3);
    assert_int_equal(c.pixels[3 * (24 * W + 30)], 7); /* right of it */
    assert_int_equal(c.pixels[3 * (15 * W + 15)], 7); /* inside */
    assert_int_equal(c.pixels[3 * (9 * W + 15)], 7);  /* above */
    draw_box(&c, -50, -50, 500, 500, 3, rgb);
    draw_box(&c, NAN, -1e30f, 1e30f, INFINITY, 3, rgb);
    draw_label(&c, -20, -20, "a long label that does not fit", 9, rgb);
    draw_label(&c, 1e9f, 1e9f, "x", 2, rgb);
    draw_label(&c, 30, 30, "\xC3\xA4\xE2\x82\xAC", 2, rgb);
    for (int i = 0; i < PAD; i++)
        assert_true(memory[i] == 7 && memory[sizeof memory - 1 - (size_t)i] == 7);
}

static void a_label_shows_its_letters(void **state)
{
    (void)state;
    enum { W = 40, H = 30 };
    uint8_t pixels[3 * W * H], plate[3] = {255, 255, 0};
    memset(pixels, 9, sizeof pixels);
    draw_canvas_t c = {pixels, W, H, 3 * W};
    draw_label(&c, 5, 20, "L", 2, plate);
    /* Scale 1: a plate of 9 rows above row 20, the letter one pixel in, black on a bright plate. */
    const uint8_t *glyph = font_glyph('L');
    for (int y = 0; y < FONT_HEIGHT; y++)
        for (int x = 0; x < FONT_WIDTH; x++) {
            int set = glyph[y] >> (FONT_WIDTH - 1 - x) & 1;
            assert_int_equal(pixels[3 * ((12 + y) * W + 6 + x)], set ? 0 : 255);
        }
    assert_int_equal(pixels[3 * (20 * W + 6)], 9);
    for (int ch = '!'; ch <= '~'; ch++) {
        int some = 0;
        for (int y = 0; y < FONT_HEIGHT; y++)
            some |= font_glyph((unsigned char)ch)[y];
        assert_true(some > 0 && some < 32);
        assert_true(ch == '?' ||
                    memcmp(font_glyph((unsigned char)ch), font_glyph('?'), FONT_HEIGHT));
    }
    assert_ptr_equal(font_glyph(200), font_glyph('?'));
    assert_int_equal(draw_line_width(640, 480), 2);
    assert_int_equal(draw_line_width(8000, 6000), 21);
}

static void an_encoded_picture_decodes(void **state)
{
    (void)state;
    enum { W = 33, H = 17 };
    uint8_t pixels[3 * W * H];
    unsigned char *bytes;
    unsigned long size;
    decode_t *d;
    options_t o;
    const picture_t *picture;
    memset(pixels, 120, sizeof pixels);
    const draw_canvas_t c = {pixels, W, H, 3 * W};
    options_default(&o);
    const picture_limits_t limits = decode_limits(&o);
    assert_int_equal(jpeg_encode(&c, 90, &bytes, &size), 0);
    assert_int_equal(decode_new(&d), 0);
    assert_int_equal(decode_image(d, 0, bytes, size, &limits, &picture), 0);
    assert_true(picture->width == W && picture->height == H);
    for (size_t i = 0; i < 3 * W; i++)
        assert_in_range(picture->pixels[i], 117, 123);
    decode_free(&d);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confusion_pairs_boxes),
        cmocka_unit_test(confusion_takes_the_larger_overlap),
        cmocka_unit_test(each_class_has_its_ap),
        cmocka_unit_test(tiles_cover_an_image),
        cmocka_unit_test(boxes_come_back_to_the_file),
        cmocka_unit_test(tiles_are_put_together),
        cmocka_unit_test(forms_are_as_documented),
        cmocka_unit_test(each_image_has_a_name_of_its_own),
        cmocka_unit_test(a_spool_is_read_back),
        cmocka_unit_test(drawing_stays_in_the_picture),
        cmocka_unit_test(a_label_shows_its_letters),
        cmocka_unit_test(an_encoded_picture_decodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
