/* What convolution on the GPU decides without one: choices as text, forms, groups and places in
 * work. Needs a build with CUDA, not a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef SLUICE_CUDA
#include "kernels/cuda/conv_run.h"

static const char header[] = "cudnn 91900 deterministic 1 gpu Some GPU 9000";
static const conv_limits_t limits = {
    .copies = 512 << 20, .elements = INT32_MAX, .space_least = 4 << 20, .space_most = 256 << 20};

static conv_shape_t shape(int32_t c1, int32_t c2, int32_t xld, int32_t yld)
{
    return (conv_shape_t){.direction = CONV_DX,
                          .dtype = K_BF16,
                          .n = 8,
                          .h = 256,
                          .w = 254,
                          .c1 = c1,
                          .c2 = c2,
                          .k = 3,
                          .s = 2,
                          .acc = 1,
                          .xld = xld,
                          .yld = yld,
                          .xalign = 16,
                          .yalign = 16,
                          .walign = 16};
}

static void test_text(void **state)
{
    (void)state;
    conv_choices_t t, u;
    char text[512], again[512], wide[600];
    conv_choice_t c = {
        .shape = shape(64, 128, 192, 128),
        .form = CONV_PACKED,
        .engine = {.index = 57, .knobs = 2, .type = {2, 14}, .value = {1, -9007199254740993}},
        .workspace = 1 << 20,
        .us = 131.25};
    conv_choices_init(&t);
    conv_choices_init(&u);
    assert_non_null(conv_choices_put(&t, &c));
    c.shape.direction = CONV_FORWARD;
    c.form = CONV_PLAIN;
    c.engine = (conv_engine_t){0};
    c.us = 0.0;
    assert_non_null(conv_choices_put(&t, &c));
    const int64_t length = conv_choices_text(&t, header, text, sizeof text);
    assert_string_equal(text,
                        "cudnn 91900 deterministic 1 gpu Some GPU 9000\n"
                        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 1048576 "
                        "131.2 2=1 14=-9007199254740993\n"
                        "forward bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> plain 0 1048576 "
                        "0.0\n"
                        "sums: direct 0 packed 1 plain 1\n");
    assert_int_equal(length, strlen(text));
    assert_int_equal(conv_choices_text(&t, header, NULL, 0), length);
    assert_int_equal(conv_choices_text(&t, header, again, 50), length);
    assert_memory_equal(again, text, 49);
    assert_int_equal(again[49], '\0');

    snprintf(wide, sizeof wide, "lines of someone else\n%s", text);
    assert_int_equal(conv_choices_read(&u, header, wide), 0);
    conv_choices_text(&u, header, again, sizeof again);
    assert_string_equal(again, text);
    conv_choices_fini(&t);
    conv_choices_fini(&u);
}

/* Another library's lines, and lines cut short or changed, are left out. */
static void test_foreign_text(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 -> packed 57 0 1.0",
        "dx bf17 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 0 1.0",
        "dy bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 0 1.0",
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> odd 57 0 1.0",
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57x 0 1.0",
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 0 nan",
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 0 1.0 2",
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 0 1.0 2=",
        "dx bf16 8 256 254 64 128 3 2 1 192 99999999999 16 16 16 -> packed 57 0 1.0",
        "dx",
        "",
    };
    char text[1024];
    conv_choices_t t;
    conv_choices_init(&t);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "%s\n%s\n", header, bad[i]);
        assert_int_equal(conv_choices_read(&t, header, text), 0);
        assert_int_equal(t.count, 0);
    }
    static const char good[] =
        "dx bf16 8 256 254 64 128 3 2 1 192 128 16 16 16 -> packed 57 0 1.0 2=3";
    snprintf(text, sizeof text, "cudnn 91400 deterministic 1 gpu Some GPU 9000\n%s\n", good);
    assert_int_equal(conv_choices_read(&t, header, text), 0);
    assert_int_equal(t.count, 0);
    snprintf(text, sizeof text, "%s\n%s", header, good); /* the last line has no end */
    assert_int_equal(conv_choices_read(&t, header, text), 0);
    assert_int_equal(t.count, 1);
    conv_choices_fini(&t);
}

/* Many shapes: each is found again, and nothing else is. */
static void test_table(void **state)
{
    (void)state;
    conv_choices_t t;
    conv_choices_init(&t);
    for (int32_t i = 1; i <= 3000; i++) {
        const conv_choice_t c = {.shape = shape(i, 3001 - i, i, 3001 - i), .engine = {.index = i}};
        assert_non_null(conv_choices_put(&t, &c));
    }
    assert_int_equal(t.count, 3000);
    for (int32_t i = 1; i <= 3000; i++) {
        conv_shape_t s = shape(i, 3001 - i, i, 3001 - i);
        assert_int_equal(conv_choices_find(&t, &s)->engine.index, i);
        s.acc = 0;
        assert_null(conv_choices_find(&t, &s));
    }
    const conv_choice_t c = {.shape = shape(7, 2994, 7, 2994), .engine = {.index = 5000}};
    assert_int_equal(conv_choices_put(&t, &c)->engine.index, 5000);
    assert_int_equal(t.count, 3000);
    conv_choices_fini(&t);
}

static void test_layout(void **state)
{
    (void)state;
    const conv_shape_t s = shape(60, 6, 60, 6);
    const conv_layout_t l = conv_layout(&limits, &s);
    const uint64_t x = 8ull * 256 * 254 * 64 * 2, y = 8ull * 128 * 127 * 8 * 2;
    assert_int_equal(l.c1, 64);
    assert_int_equal(l.c2, 8);
    assert_int_equal(l.images, 8);
    assert_int_equal(l.x, 0);
    assert_true(l.y >= x && l.w >= l.y + y && l.dw >= l.w + 9 * 64 * 8 * 2);
    assert_true(l.space >= l.dw + 9 * 64 * 8 * 2 && l.total >= l.space + l.space_bytes);
    assert_true((l.y | l.w | l.dw | l.space | l.total) % K_ALIGN == 0);
    assert_int_equal(l.space_bytes, x + y + 9 * 64 * 8 * 4);

    conv_shape_t big = shape(64, 64, 64, 64);
    big.n = 12;
    big.h = big.w = 2048;
    big.s = 1;
    const uint64_t image = 2048ull * 2048 * 64 * 2;
    assert_int_equal(conv_layout(&limits, &big).images, 1); /* 2 x 512 MiB do not fit */
    assert_int_equal(conv_layout(&limits, &big).space_bytes, 256 << 20);
    assert_true(conv_layout(&limits, &big).total < 2 * image + (257ull << 20));
    big.h = big.w = 512;
    assert_int_equal(conv_layout(&limits, &big).images, 6); /* of 64 MiB each, 8 at most */
    big.dtype = K_F32;
    assert_int_equal(conv_layout(&limits, &big).images, 4);
    big.c1 = 60;
    assert_int_equal(conv_layout(&limits, &big).c1, 60);
}

static void test_forms(void **state)
{
    (void)state;
    conv_shape_t s = shape(64, 128, 64, 128);
    s.acc = 0;
    assert_false(conv_form_packs(&limits, &s));
    s.acc = 1;
    assert_true(conv_form_packs(&limits, &s));
    assert_int_equal(conv_form_shape(&limits, &s, CONV_PACKED).acc, 0);
    assert_int_equal(conv_form_shape(&limits, &s, CONV_DIRECT).acc, 1);

    /* A slice as wide as its padded number of channels is still a slice. */
    s = shape(6, 8, 8, 8);
    s.direction = CONV_FORWARD;
    s.acc = 0;
    assert_true(conv_form_packs(&limits, &s));
    const conv_shape_t p = conv_form_shape(&limits, &s, CONV_PACKED);
    assert_int_equal(p.c1, 8);
    assert_int_equal(p.xld, 8);
    assert_int_equal(p.yld, 8);
    assert_int_equal(p.n, 8);

    s = shape(64, 128, 192, 128);
    s.xalign = 4;
    const conv_shape_t q = conv_form_shape(&limits, &s, CONV_PACKED);
    assert_int_equal(q.xld, 64);
    assert_int_equal(q.xalign, 16);
    const conv_shape_t d = conv_form_shape(&limits, &s, CONV_DIRECT);
    assert_memory_equal(&d, &s, sizeof d);

    /* Beyond 32 bits of elements: groups, with the alignment that every group has. */
    s = shape(65, 64, 65, 64);
    s.n = 64;
    s.h = s.w = 1023;
    s.s = 1;
    const conv_shape_t g = conv_form_shape(&limits, &s, CONV_DIRECT);
    assert_int_equal(g.n, 16);
    assert_int_equal(g.xalign, 16);
    const conv_limits_t one = {.copies = 1, .elements = 1};
    const conv_shape_t h = conv_form_shape(&one, &s, CONV_DIRECT);
    assert_int_equal(h.n, 1);
    assert_int_equal(h.xalign, 2);
    assert_int_equal(h.yalign, 16);
}

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(conv_out(640, 3, 2), 320);
    assert_int_equal(conv_out(641, 3, 2), 321);
    assert_int_equal(conv_out(1, 3, 2), 1);
    assert_int_equal(conv_out(9, 1, 2), 5);
    assert_int_equal(conv_out(9, 5, 1), 9);
    const k_conv_t rgb = {.k = 3, .s = 2, .c1 = 3, .c2 = 96},
                   wide = {.k = 3, .c1 = 5, .s = 1, .c2 = 8};
    assert_true(cuda_stem_takes(&rgb));
    assert_false(cuda_stem_takes(&wide));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),  cmocka_unit_test(test_foreign_text),
        cmocka_unit_test(test_table), cmocka_unit_test(test_layout),
        cmocka_unit_test(test_forms), cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests_name("cuda_conv_choice", tests, NULL, NULL);
}

#else

static void test_text(void **state)
{
    (void)state;
    print_message("skipped: built without CUDA\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text)};
    return cmocka_run_group_tests_name("cuda_conv_choice", tests, NULL, NULL);
}
#endif
