/* control/stream: the fold does not depend on order or on who folds, but on every cell and its
 * place; and it survives being taken apart for a sum over ranks. */
#include "control/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N = 37 };

static uint64_t cell(uint64_t position)
{
    return position * 0x123456789abcdefull + 5;
}

static stream_digest_t whole(void)
{
    stream_digest_t s = {0, 0};
    for (uint64_t p = 0; p < N; p++)
        stream_fold(&s, p, N, cell(p));
    return s;
}

static void order_and_ranks_do_not_matter(void **state)
{
    (void)state;
    stream_digest_t one = whole(), back = {0, 0}, rank[3] = {{0, 0}}, sum = {0, 0};
    for (uint64_t p = N; p-- > 0;) {
        stream_fold(&back, p, N, cell(p));
        stream_fold(&rank[p % 3], p, N, cell(p));
    }
    for (int r = 0; r < 3; r++)
        stream_add(&sum, &rank[r]);
    assert_true(stream_value(&one) == stream_value(&back));
    assert_true(stream_value(&one) == stream_value(&sum));
    assert_true(one.count == N && sum.count == N);
}

static void every_cell_and_place_matters(void **state)
{
    (void)state;
    uint64_t want;
    stream_digest_t s = whole();
    want = stream_value(&s);
    for (uint64_t at = 0; at < N; at++) {
        stream_digest_t changed = {0, 0}, missing = {0, 0}, swapped = {0, 0}, twice = whole();
        for (uint64_t p = 0; p < N; p++) {
            uint64_t other = p == at ? (at + 1) % N : p == (at + 1) % N ? at : p;
            stream_fold(&changed, p, N, cell(p) ^ (p == at));
            stream_fold(&swapped, p, N, cell(other));
            if (p != at)
                stream_fold(&missing, p, N, cell(p));
        }
        stream_fold(&twice, at, N, cell(at));
        assert_true(stream_value(&changed) != want && stream_value(&missing) != want);
        assert_true(stream_value(&swapped) != want && stream_value(&twice) != want);
    }
}

/* How far the last batch wraps depends on the batch. */
static void the_wrap_is_left_out(void **state)
{
    (void)state;
    stream_digest_t s = whole(), wrapped = whole();
    stream_fold(&wrapped, N, N, 1);
    stream_fold(&wrapped, N + 100, N, 2);
    assert_true(s.sum == wrapped.sum && s.count == wrapped.count);
}

/* As a collective does it: parts of all ranks are added as doubles. */
static void parts_add_up(void **state)
{
    (void)state;
    double sum[STREAM_PARTS] = {0}, parts[STREAM_PARTS];
    stream_digest_t want = {0, 0};
    for (uint64_t r = 0; r < 64; r++) {
        stream_digest_t s = {UINT64_MAX - r * r, (1ull << 40) + r};
        stream_add(&want, &s);
        stream_split(&s, parts);
        for (int i = 0; i < STREAM_PARTS; i++)
            sum[i] += parts[i];
    }
    stream_digest_t got = stream_join(sum);
    assert_true(got.sum == want.sum && got.count == want.count);
}

static void epochs_are_chained_in_order(void **state)
{
    (void)state;
    stream_digest_t a = {1, 2}, b = {2, 1};
    assert_true(stream_value(&a) != stream_value(&b));
    assert_true(stream_chain(stream_chain(0, &a), &b) != stream_chain(stream_chain(0, &b), &a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_and_ranks_do_not_matter),
        cmocka_unit_test(every_cell_and_place_matters),
        cmocka_unit_test(the_wrap_is_left_out),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(epochs_are_chained_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
