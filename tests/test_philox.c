/* control/philox: the published vectors, and that draws are what their names say. */
#include "control/philox.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

/* Known answers of Philox4x32-10 that come with Random123 (kat_vectors). */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        philox_block(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void streams_depend_on_every_part_of_their_key(void **state)
{
    (void)state;
    const uint64_t high = UINT64_C(1) << 32;
    philox_t same[2] = {philox_stream(1, 2, 3, PHILOX_HSV), philox_stream(1, 2, 3, PHILOX_HSV)};
    philox_t others[] = {
        philox_stream(2, 2, 3, PHILOX_HSV),        philox_stream(1 + high, 2, 3, PHILOX_HSV),
        philox_stream(1, 3, 3, PHILOX_HSV),        philox_stream(1, 2, 4, PHILOX_HSV),
        philox_stream(1, 2, 3 + high, PHILOX_HSV), philox_stream(1, 2, 3, PHILOX_FLIP),
    };
    uint32_t first = philox_u32(&same[0]);
    assert_int_equal(first, philox_u32(&same[1]));
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_not_equal(first, philox_u32(&others[i]));
}

/* A copy goes on where the original was, also in the middle of a block. */
static void a_copy_is_a_cursor(void **state)
{
    (void)state;
    philox_t a = philox_stream(7, 0, 0, PHILOX_ORDER);
    for (int i = 0; i < 6; i++)
        philox_u32(&a);
    philox_t b = a;
    for (int i = 0; i < 9; i++)
        assert_int_equal(philox_u32(&a), philox_u32(&b));
}

static void draws_keep_their_ranges(void **state)
{
    (void)state;
    enum { N = 40000 };
    philox_t p = philox_stream(3, 1, 4, PHILOX_AFFINE);
    double sum = 0, squares = 0, normal = 0, normal2 = 0;
    for (int i = 0; i < N; i++) {
        double u = philox_unit(&p), r = philox_range(&p, -2, 5), z = philox_normal(&p);
        assert_true(u >= 0 && u < 1);
        assert_true(r >= -2 && r < 5);
        sum += u;
        squares += u * u;
        normal += z;
        normal2 += z * z;
    }
    /* Five standard errors of the mean, variance and so on: fixed draws, so this cannot flicker. */
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(squares / N - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
    assert_true(fabs(normal / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(normal2 / N - 1) < 5 * sqrt(2.0 / N));
}

static void below_is_even(void **state)
{
    (void)state;
    enum { N = 60000 };
    static const uint32_t limits[] = {1, 2, 3, 7, 10};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        uint32_t counts[10] = {0}, n = limits[i];
        philox_t p = philox_stream(11, n, 0, PHILOX_MOSAIC);
        for (int k = 0; k < N; k++) {
            uint32_t v = philox_below(&p, n);
            assert_true(v < n);
            counts[v]++;
        }
        double expected = (double)N / n;
        for (uint32_t v = 0; v < n; v++)
            assert_true(fabs(counts[v] - expected) < 5 * sqrt(expected) + 1);
    }
    /* The largest limits: Lemire's rejection has work to do. */
    philox_t p = philox_stream(12, 0, 0, PHILOX_MOSAIC);
    uint64_t upper = 0;
    for (int k = 0; k < 30000; k++)
        upper += philox_below(&p, 0xC0000000u) >= 0x60000000u;
    assert_true(fabs((double)upper - 15000) < 5 * sqrt(7500));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(streams_depend_on_every_part_of_their_key),
        cmocka_unit_test(a_copy_is_a_cursor),
        cmocka_unit_test(draws_keep_their_ranges),
        cmocka_unit_test(below_is_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
