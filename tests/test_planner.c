/* The planner: random lifetimes never overlap in place and time; alignment; the arena's size is
 * sane. */
#include "kernels/kernels.h"
#include "kernels/planner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t random_state = 12345;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * n) >> 32);
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
}

/* Most bytes alive at one operation: no plan can be smaller. */
static uint64_t peak(const planner_block_t *b, int32_t count, int32_t operations)
{
    uint64_t most = 0;
    for (int32_t t = 0; t < operations; t++) {
        uint64_t now = 0;
        for (int32_t i = 0; i < count; i++)
            if (b[i].first <= t && t <= b[i].last)
                now += rounded(b[i].bytes);
        most = now > most ? now : most;
    }
    return most;
}

static void check(const planner_block_t *b, int32_t count, uint64_t total)
{
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(b[i].at % K_ALIGN, 0);
        assert_true(b[i].at + b[i].bytes <= total);
        for (int32_t j = 0; j < i; j++) {
            int together = b[i].first <= b[j].last && b[j].first <= b[i].last;
            int overlap = b[i].at < b[j].at + b[j].bytes && b[j].at < b[i].at + b[i].bytes;
            assert_false(together && overlap && b[i].bytes && b[j].bytes);
        }
    }
}

static void test_random(void **state)
{
    (void)state;
    enum { MOST = 300, OPERATIONS = 120 };
    static planner_block_t b[MOST], again[MOST];
    double worst = 0.0;
    for (int round = 0; round < 200; round++) {
        int32_t count = 1 + (int32_t)random_below(MOST);
        for (int32_t i = 0; i < count; i++) {
            int32_t first = (int32_t)random_below(OPERATIONS);
            int32_t span = (int32_t)random_below(round % 2 ? 5 : OPERATIONS - (uint32_t)first);
            int32_t last = first + span < OPERATIONS ? first + span : OPERATIONS - 1;
            b[i] = (planner_block_t){random_below(100000), first, last, 77};
        }
        memcpy(again, b, sizeof b);
        uint64_t total, total_again;
        assert_int_equal(planner_place(b, count, &total), 0);
        check(b, count, total);
        assert_int_equal(planner_place(again, count, &total_again), 0);
        assert_int_equal(total, total_again);
        assert_memory_equal(b, again, (size_t)count * sizeof *b);
        uint64_t least = peak(b, count, OPERATIONS);
        assert_true(total >= least);
        double ratio = least ? (double)total / (double)least : 1.0;
        worst = ratio > worst ? ratio : worst;
    }
    /* Greedy placement is not optimal; beyond this it would be broken. */
    if (worst > 1.5)
        fail_msg("a plan takes %.2f times the bytes that live at once", worst);
}

static void test_corners(void **state)
{
    (void)state;
    uint64_t total = 5;
    assert_int_equal(planner_place(NULL, 0, &total), 0);
    assert_int_equal(total, 0);
    planner_block_t chain[] = {{1000, 0, 1, 0}, {1000, 1, 2, 0}, {1000, 2, 3, 0}, {0, 0, 3, 9}};
    assert_int_equal(planner_place(chain, 4, &total), 0);
    assert_int_equal(total, 2048); /* two live at once, the third takes the first's place */
    assert_int_equal(chain[0].at, chain[2].at);
    planner_block_t apart[] = {{5000, 0, 0, 0}, {4000, 1, 1, 0}, {3000, 2, 2, 0}};
    assert_int_equal(planner_place(apart, 3, &total), 0);
    assert_int_equal(total, 5120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_corners),
    };
    return cmocka_run_group_tests_name("planner", tests, NULL, NULL);
}
