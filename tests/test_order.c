/* The order of samples: a bijection for every N, keyed by seed and epoch, with the wrap and the
 * window. */
#include "loader/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_bijection(uint64_t seed, uint32_t epoch, uint32_t n)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint32_t p = 0; p < n; p++) {
        uint32_t s = order_sample(seed, epoch, p, n);
        assert_true(s < n);
        assert_false(seen[s]);
        seen[s] = 1;
    }
    free(seen);
}

static void test_bijection(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 70; n++)
        check_bijection(n, n % 3, n);
    static const uint32_t sizes[] = {127, 128, 129, 255, 257, 1000, 4095, 4097, 65537};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_bijection(0x123456789abcdefull, 0xffffffffu, sizes[i]);
}

static void test_keys_differ(void **state)
{
    (void)state;
    enum { N = 1000 };
    uint32_t epoch = 0, seed = 0, fixed = 0, high = 0;
    for (uint32_t p = 0; p < N; p++) {
        uint32_t s = order_sample(7, 3, p, N);
        epoch += s == order_sample(7, 4, p, N);
        seed += s == order_sample(8, 3, p, N);
        high += s == order_sample(7 | 1ull << 40, 3, p, N);
        fixed += s == p;
    }
    /* Two unrelated permutations agree in one place on average (Poisson): 12 is beyond chance. */
    assert_true(epoch < 12 && seed < 12 && high < 12 && fixed < 12);
}

/* Neighbouring positions must not stay neighbours: mean distance of a random pair is N / 3. */
static void test_scatters(void **state)
{
    (void)state;
    enum { N = 1500 };
    double sum = 0;
    for (uint32_t p = 0; p + 1 < N; p++)
        sum += abs((int)order_sample(1, 0, p, N) - (int)order_sample(1, 0, p + 1, N));
    assert_true(sum / (N - 1) > 0.28 * N && sum / (N - 1) < 0.39 * N);
}

static void test_wrap(void **state)
{
    (void)state;
    for (uint64_t p = 0; p < 40; p++) {
        assert_int_equal(order_sample(5, 2, p + 11, 11), order_sample(5, 2, p, 11));
        assert_int_equal(order_sample(5, 2, p, 1), 0);
    }
    assert_int_equal(order_sample(5, 2, 11 * (1ull << 40) + 4, 11), order_sample(5, 2, 4, 11));
}

static void test_window_size(void **state)
{
    (void)state;
    assert_int_equal(order_window(0, 34), 34);
    assert_int_equal(order_window(0, 5000), 1000);
    assert_int_equal(order_window(16, 5000), 16);
}

/* Draws of a partner hit exactly the samples of the `window` positions before, in this epoch and,
 * at its start, in the one before; before epoch 0 that is epoch 0xffffffff. */
static void check_partners(uint32_t epoch, uint64_t position, uint32_t n, uint32_t window)
{
    unsigned char *allowed = calloc(n, 1), *met = calloc(n, 1);
    assert_non_null(allowed);
    assert_non_null(met);
    for (uint64_t back = 1; back <= window; back++) {
        uint32_t e = epoch;
        int64_t at = (int64_t)position - (int64_t)back;
        for (; at < 0; at += n)
            e--;
        allowed[order_sample(9, e, (uint64_t)at, n)] = 1;
    }
    philox_t draws = philox_stream(9, epoch, position, PHILOX_MOSAIC);
    for (uint32_t i = 0; i < 40 * window; i++) {
        uint32_t s = order_partner(9, epoch, position, n, window, &draws);
        assert_true(s < n && allowed[s]);
        met[s] = 1;
    }
    assert_memory_equal(allowed, met, n);
    free(allowed);
    free(met);
}

static void test_partners(void **state)
{
    (void)state;
    check_partners(3, 50, 100, 10);
    check_partners(3, 4, 100, 10);
    check_partners(0, 0, 100, 10);
    check_partners(0, 3, 100, 20);
    check_partners(1, 105, 100, 10); /* in the wrap of the last batch */
    check_partners(2, 1, 5, 12);     /* a window longer than the list */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijection),   cmocka_unit_test(test_keys_differ),
        cmocka_unit_test(test_scatters),    cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_window_size), cmocka_unit_test(test_partners),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
