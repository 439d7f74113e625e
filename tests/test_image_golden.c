/* Pictures against OpenCV (tests/reference/image_golden.py) on identical drawn input: resize,
 * letterbox, affine and perspective warp, colour; and whole training cells and their labels, from
 * (seed, epoch, position) alone, against an own statement of the order, the draws and the geometry
 * (tests/reference/stream.py).
 *
 * Bounds: within 1 on 99.9 % of the values for resize, letterbox and warps; colour is exact forwards
 * and rounds in float on the way back, so within 1 everywhere. A whole cell with colour turns the
 * warp's differences of 1 into larger ones where a channel is dark or hue hangs on one of them:
 * within 4 on 99 %.
 */
#include "loader/cell.h"
#include "loader/hsv.h"
#include "loader/resize.h"
#include "loader/warp.h"
#include "shm/err.h"
#include "tests/draws.h"
#include "tests/golden.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { SIDE = 64, FILES = 5, LABELS = 12, SEED = 5, EPOCHS = 3, CELLS = 4, CAP = 128 };

/* What two pictures share, over all cases of a kind. */
typedef struct {
    uint64_t values, equal, within; /* within `step` */
    int step, largest;
    char where[64]; /* of the largest */
} shared_t;

static void share(shared_t *s, const char *name, const uint8_t *ours, const uint8_t *want,
                  uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        int d = abs(ours[i] - want[i]);
        s->values++;
        s->equal += d == 0;
        s->within += d <= s->step;
        if (d >= s->largest) {
            s->largest = d;
            snprintf(s->where, sizeof s->where, "%s", name);
        }
    }
}

/* least: share of values that must be within s->step. */
static void say(const char *what, const shared_t *s, double least)
{
    const double n = (double)s->values;
    print_message(
        "golden: %s: %.3f %% within %d (%.1f %% needed), %.2f %% equal, largest %d (%s)\n", what,
        100 * (double)s->within / n, s->step, 100 * least, 100 * (double)s->equal / n, s->largest,
        s->where);
    assert_true(s->values > 0 && (double)s->within >= least * n);
}

static const uint8_t *golden_u8(const safetensors_t *f, const char *name, uint32_t h, uint32_t w)
{
    const safetensors_entry_t *e = golden_entry(f, name);
    assert_string_equal(e->dtype, "U8");
    assert_int_equal(e->bytes, 3 * (uint64_t)h * w);
    return e->data;
}

static uint8_t *picture(const char *kind, const char *name, draws_kind_t how, uint32_t w,
                        uint32_t h)
{
    char full[64];
    uint8_t *p = calloc(3 * (size_t)w * h + WARP_SLACK, 1);
    assert_non_null(p);
    snprintf(full, sizeof full, "%s/%s", kind, name);
    draws_pixels(full, how, w, h, p);
    return p;
}

static void test_resize(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        draws_kind_t how;
        uint32_t w, h, nw, nh;
    } cases[] = {{"down", DRAWS_NOISE, 97, 61, 64, 41},
                 {"up", DRAWS_SHADES, 31, 50, 40, 64},
                 {"thin", DRAWS_BLOCKS, 150, 33, 64, 15},
                 {"both", DRAWS_NOISE, 40, 90, 64, 64}};
    safetensors_t *f = golden_open("images");
    shared_t s = {.step = 1};
    resize_t r;
    resize_init(&r);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        uint8_t out[3 * SIDE * SIDE];
        const size_t stride = 3 * (size_t)cases[i].w, to = 3 * (size_t)cases[i].nw;
        uint8_t *in = picture("resize", cases[i].name, cases[i].how, cases[i].w, cases[i].h);
        assert_int_equal(
            resize_rgb(&r, in, cases[i].w, cases[i].h, stride, out, cases[i].nw, cases[i].nh, to),
            0);
        snprintf(name, sizeof name, "resize.%s", cases[i].name);
        share(&s, name, out, golden_u8(f, name, cases[i].nh, cases[i].nw), to * cases[i].nh);
        free(in);
    }
    say("resize", &s, 0.999);
    resize_fini(&r);
    safetensors_free(&f);
}

static void warp_all(const uint8_t *in, uint32_t w, uint32_t h, const double m[9], int perspective,
                     uint8_t *out)
{
    warp_view_t v = {.n_tiles = 1, .perspective = perspective};
    v.tiles[0] = (warp_tile_t){in, 3 * (size_t)w, 0, 0, (int32_t)w, (int32_t)h, 0, 0};
    geometry_invert(m, v.inverse);
    if (!perspective) {
        v.inverse[6] = v.inverse[7] = 0;
        v.inverse[8] = 1;
    }
    for (uint32_t y = 0; y < SIDE; y++) {
        uint8_t row[3 * SIDE + WARP_SLACK];
        warp_row(&v, y, SIDE, row);
        memcpy(out + 3 * SIDE * (size_t)y, row, 3 * SIDE);
    }
}

static void test_warps(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        draws_kind_t how;
        uint32_t w, h;
        int perspective;
        double m[9];
    } cases[] = {
        {"affine_turn", DRAWS_NOISE, 80, 60, 0, {0.9, 0.35, -7.3, -0.3, 1.1, 11.9, 0, 0, 1}},
        {"affine_small", DRAWS_SHADES, 150, 120, 0, {0.41, 0.05, 1.7, -0.07, 0.44, 4.2, 0, 0, 1}},
        {"affine_large", DRAWS_BLOCKS, 40, 40, 0, {2.3, -0.6, -9.1, 0.5, 2.1, -20.3, 0, 0, 1}},
        {"perspective_turn",
         DRAWS_NOISE,
         80,
         60,
         1,
         {0.9, 0.35, -7.3, -0.3, 1.1, 11.9, 0.0011, -0.0007, 1}},
        {"perspective_small",
         DRAWS_SHADES,
         150,
         120,
         1,
         {0.5, 0.05, 1.7, -0.07, 0.6, 4.2, 0.0006, 0.0015, 1}},
    };
    safetensors_t *f = golden_open("images");
    shared_t s[2] = {{.step = 1}, {.step = 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        uint8_t out[3 * SIDE * SIDE];
        uint8_t *in = picture("warp", cases[i].name, cases[i].how, cases[i].w, cases[i].h);
        warp_all(in, cases[i].w, cases[i].h, cases[i].m, cases[i].perspective, out);
        snprintf(name, sizeof name, "warp.%s", cases[i].name);
        share(&s[cases[i].perspective], name, out, golden_u8(f, name, SIDE, SIDE), sizeof out);
        free(in);
    }
    say("affine warp", &s[0], 0.999);
    say("perspective warp", &s[1], 0.999);
    safetensors_free(&f);
}

static void test_colour(void **state)
{
    (void)state;
    enum { W = 64, H = 48 };
    static const struct {
        const char *name;
        double r[3];
    } cases[] = {{"zero", {0, 0, 0}},
                 {"warm", {0.0131, 0.43, -0.29}},
                 {"cold", {-0.0119, -0.66, 0.37}},
                 {"far", {0.4, 0.9, -0.9}}};
    safetensors_t *f = golden_open("images");
    shared_t s = {.step = 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        uint8_t rgb[3 * W * H];
        hsv_lut_t lut;
        draws_pixels("hsv", DRAWS_NOISE, W, H, rgb);
        hsv_lut(&lut, cases[i].r, 1);
        hsv_apply(&lut, rgb, W * H);
        snprintf(name, sizeof name, "hsv.%s", cases[i].name);
        share(&s, name, rgb, golden_u8(f, name, H, W), sizeof rgb);
    }
    say("colour", &s, 1);
    safetensors_free(&f);
}

/* ---- whole cells ---- */

static const struct {
    draws_kind_t how;
    uint32_t w, h;
} files[FILES] = {{DRAWS_SHADES, 150, 110},
                  {DRAWS_BLOCKS, 64, 96},
                  {DRAWS_NOISE, 100, 80},
                  {DRAWS_SHADES, 48, 40},
                  {DRAWS_BLOCKS, 90, 96}};

/* Validation: file, and the cell that it is put into. */
static const struct {
    const char *name;
    draws_kind_t how;
    uint32_t w, h, nw, nh;
} boxed[] = {{"wide", DRAWS_NOISE, 100, 70, 96, 64},
             {"tall", DRAWS_SHADES, 57, 120, 64, 96},
             {"small", DRAWS_NOISE, 33, 22, 64, 64},
             {"tight", DRAWS_BLOCKS, 90, 90, 64, 32}};
enum { BOXED = sizeof boxed / sizeof boxed[0] };

typedef struct {
    uint8_t *data;
    size_t bytes;
} bmp_t;

/* 24 bits, bottom-up. */
static bmp_t bmp_of(const uint8_t *rgb, uint32_t w, uint32_t h)
{
    const size_t stride = (3 * (size_t)w + 3) & ~(size_t)3;
    const uint32_t words[][2] = {
        {2, (uint32_t)(54 + stride * h)}, {10, 54}, {14, 40}, {18, w}, {22, h},
        {34, (uint32_t)(stride * h)}};
    bmp_t b = {.bytes = 54 + stride * h};
    b.data = calloc(b.bytes, 1);
    assert_non_null(b.data);
    memcpy(b.data, "BM", 2);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int k = 0; k < 4; k++)
            b.data[words[i][0] + (uint32_t)k] = (uint8_t)(words[i][1] >> 8 * k);
    b.data[26] = 1;
    b.data[28] = 24;
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (int c = 0; c < 3; c++)
                b.data[54 + (h - 1 - y) * stride + 3 * x + (size_t)(2 - c)] =
                    rgb[3 * ((size_t)y * w + x) + (size_t)c];
    return b;
}

typedef struct {
    bmp_t file[FILES], boxed[BOXED];
    catalog_t *catalog;
    int fd;
    options_t options;
    plan_t plan;
    substitutes_t ledger;
} set_t;

static void drawn_labels(uint32_t i, catalog_label_t labels[LABELS])
{
    char name[32];
    float u[4 * LABELS];
    snprintf(name, sizeof name, "labels/%u", i);
    draws_fill(name, 1, 0, u, 4 * LABELS);
    for (uint32_t k = 0; k < LABELS; k++)
        labels[k] = (catalog_label_t){.cls = (float)(k % 2),
                                      .cx = 0.5f + 0.25f * u[4 * k],
                                      .cy = 0.5f + 0.25f * u[4 * k + 1],
                                      .w = 0.25f + 0.125f * u[4 * k + 2],
                                      .h = 0.25f + 0.125f * u[4 * k + 3]};
}

static void add(catalog_builder_t *b, catalog_split_t split, const bmp_t *file, uint32_t i,
                uint32_t w, uint32_t h)
{
    char path[32];
    catalog_label_t labels[LABELS];
    const catalog_sample_t facts = {.file_bytes = file->bytes,
                                    .width = w,
                                    .height = h,
                                    .format = CATALOG_BMP,
                                    .orientation = 1};
    snprintf(path, sizeof path, "/made/up/%u.bmp", i);
    drawn_labels(i, labels);
    assert_int_equal(catalog_builder_sample(b, split, path, &facts, labels,
                                            split == CATALOG_TRAIN ? LABELS : 0, NULL, 0),
                     0);
}

static void set_open(set_t *s)
{
    catalog_builder_t *b;
    memset(s, 0, sizeof *s);
    s->fd = memfd_create("test-image-golden", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "a"), 0);
    assert_int_equal(catalog_builder_class(b, "b"), 0);
    for (uint32_t i = 0; i < FILES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%u", i);
        uint8_t *rgb = picture("image", name, files[i].how, files[i].w, files[i].h);
        s->file[i] = bmp_of(rgb, files[i].w, files[i].h);
        add(b, CATALOG_TRAIN, &s->file[i], i, files[i].w, files[i].h);
        free(rgb);
    }
    for (uint32_t i = 0; i < BOXED; i++) {
        uint8_t *rgb = picture("letterbox", boxed[i].name, boxed[i].how, boxed[i].w, boxed[i].h);
        s->boxed[i] = bmp_of(rgb, boxed[i].w, boxed[i].h);
        add(b, CATALOG_VAL, &s->boxed[i], i, boxed[i].w, boxed[i].h);
        free(rgb);
    }
    if (catalog_builder_write(b, s->fd) < 0 || catalog_open(s->fd, &s->catalog) < 0)
        fail_msg("%s", err_text());
    catalog_builder_free(&b);
    options_default(&s->options);
    substitutes_init(&s->ledger);
    s->plan = (plan_t){.seed = SEED,
                       .n_train = FILES,
                       .n_val = BOXED,
                       .ranks = 1,
                       .batch = CELLS,
                       .val_batch = 2 * CELLS,
                       .imgsz = SIDE,
                       .epochs = EPOCHS,
                       .close_mosaic = 1};
}

static void set_close(set_t *s)
{
    substitutes_fini(&s->ledger);
    catalog_close(&s->catalog);
    close(s->fd);
    for (int i = 0; i < FILES; i++)
        free(s->file[i].data);
    for (int i = 0; i < BOXED; i++)
        free(s->boxed[i].data);
}

static void set_options(options_t *o, int all)
{
    o->mosaic = 0.8;
    o->mixup = 0.5;
    o->degrees = 20;
    o->translate = 0.1;
    o->scale = 0.5;
    o->shear = 5;
    o->perspective = all ? 0.0008 : 0;
    o->hsv_h = all ? 0.015 : 0;
    o->hsv_s = all ? 0.7 : 0;
    o->hsv_v = all ? 0.4 : 0;
    o->flipud = all ? 0.4 : 0;
    o->fliplr = all ? 0.5 : 0;
    o->bgr = all ? 0.3 : 0;
}

static void fill(const set_t *s, cell_maker_t *m, uint32_t epoch, uint32_t cell, uint8_t *image,
                 ring_label_t *labels, ring_cell_meta_t *meta)
{
    cell_plan_t plan;
    cell_file_t sources[CELL_SOURCES];
    uint32_t bad;
    const plan_batch_t batch = {.phase = PLAN_TRAIN, .epoch = epoch, .step = 0, .steps = 2};
    const cell_target_t target = {.image = image, .labels = labels, .label_cap = CAP, .meta = meta};
    cell_plan(m, &batch, 0, cell, &plan);
    for (uint32_t i = 0; i < plan.n_sources; i++)
        sources[i] = (cell_file_t){s->file[plan.sources[i]].data, s->file[plan.sources[i]].bytes};
    if (cell_fill(m, &plan, sources, &target, &bad) < 0)
        fail_msg("%s", err_text());
}

static void check_set(set_t *s, const safetensors_t *f, const char *word, int step, double least)
{
    char name[64], what[64];
    shared_t pixels = {.step = step};
    golden_worst_t boxes = {0};
    int64_t rows = 0;
    cell_maker_t *m;
    const cell_config_t config = {
        .catalog = s->catalog, .plan = &s->plan, .options = &s->options, .ledger = &s->ledger};
    assert_int_equal(cell_maker_new(&config, &m), 0);
    for (uint32_t i = 0; i < EPOCHS * CELLS; i++) {
        uint8_t image[3 * SIDE * SIDE];
        ring_label_t labels[CAP];
        ring_cell_meta_t meta;
        fill(s, m, i / CELLS, i % CELLS, image, labels, &meta);
        snprintf(name, sizeof name, "cell.%s.%u.%u", word, i / CELLS, i % CELLS);
        share(&pixels, name, image, golden_u8(f, name, SIDE, SIDE), sizeof image);
        snprintf(name, sizeof name, "labels.%s.%u.%u", word, i / CELLS, i % CELLS);
        int64_t count;
        const float *want = golden_f32(f, name, &count);
        assert_int_equal(meta.n_labels, count / 5);
        rows += count / 5;
        for (int64_t k = 0; k < count; k++)
            golden_note(&boxes, fabs((double)((float *)labels)[k] - (double)want[k]), name);
    }
    cell_maker_free(&m);
    snprintf(what, sizeof what, "whole cells (%s)", word);
    say(what, &pixels, least);
    snprintf(what, sizeof what, "labels of whole cells (%s)", word);
    golden_say(what, &boxes, 1e-6); /* of the cell's side */
    assert_true(rows > 5 * EPOCHS * CELLS / 2);
}

static void test_cells(void **state)
{
    (void)state;
    set_t s;
    safetensors_t *f = golden_open("images");
    set_open(&s);
    set_options(&s.options, 0);
    check_set(&s, f, "plain", 1, 0.999);
    set_options(&s.options, 1);
    check_set(&s, f, "all", 4, 0.99);
    set_close(&s);
    safetensors_free(&f);
}

/* Loaded, and put in the middle of a validation batch: of a shape that the case names, not of the
 * one that the list would have. */
static void test_letterbox(void **state)
{
    (void)state;
    set_t s;
    cell_maker_t *m;
    shared_t pixels = {.step = 1};
    safetensors_t *f = golden_open("images");
    set_open(&s);
    const cell_config_t config = {
        .catalog = s.catalog, .plan = &s.plan, .options = &s.options, .ledger = &s.ledger};
    assert_int_equal(cell_maker_new(&config, &m), 0);
    for (uint32_t i = 0; i < BOXED; i++) {
        char name[64];
        cell_plan_t plan;
        uint32_t bad;
        ring_cell_meta_t meta;
        const plan_batch_t batch = {.phase = PLAN_VAL, .steps = 1};
        const cell_file_t source = {s.boxed[i].data, s.boxed[i].bytes};
        uint8_t *out = malloc(3 * (size_t)boxed[i].nw * boxed[i].nh);
        const cell_target_t target = {.image = out, .meta = &meta};
        assert_non_null(out);
        cell_plan(m, &batch, 0, i, &plan);
        assert_int_equal(plan.n_sources, 1);
        plan.width = boxed[i].nw;
        plan.height = boxed[i].nh;
        geometry_letterbox(boxed[i].w, boxed[i].h, SIDE, plan.width, plan.height, &plan.letterbox);
        if (cell_fill(m, &plan, &source, &target, &bad) < 0)
            fail_msg("%s", err_text());
        snprintf(name, sizeof name, "letterbox.%s", boxed[i].name);
        share(&pixels, name, out, golden_u8(f, name, plan.height, plan.width),
              3 * (uint64_t)plan.width * plan.height);
        free(out);
    }
    say("letterbox", &pixels, 0.999);
    cell_maker_free(&m);
    set_close(&s);
    safetensors_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resize),    cmocka_unit_test(test_warps),
        cmocka_unit_test(test_colour),    cmocka_unit_test(test_cells),
        cmocka_unit_test(test_letterbox),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
