/* control/plan: every batch located once and in order, the wrap, short and empty validation
 * batches. */
#include "control/plan.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static plan_t plan_of(uint32_t n_train, uint32_t n_val, uint32_t ranks, uint32_t batch)
{
    plan_t p = {.n_train = n_train,
                .n_val = n_val,
                .ranks = ranks,
                .batch = batch,
                .val_batch = 2 * batch / ranks,
                .imgsz = 64,
                .epochs = 3,
                .val_every_epoch = 1};
    return p;
}

/* What plan_locate must say, counted off phase by phase. */
static void check_sequence(const plan_t *p)
{
    uint64_t seq = 0;
    uint32_t train = plan_train_steps(p), val = plan_val_steps(p);
    for (uint32_t e = p->first_epoch; e < p->epochs; e++) {
        for (uint32_t s = 0; s < train; s++, seq++) {
            plan_batch_t b = plan_locate(p, seq);
            assert_int_equal(b.phase, PLAN_TRAIN);
            assert_int_equal(b.epoch, e);
            assert_int_equal(b.step, s);
            assert_int_equal(b.steps, train);
        }
        for (uint32_t s = 0; plan_validates(p, e) && s < val; s++, seq++) {
            plan_batch_t b = plan_locate(p, seq);
            assert_int_equal(b.phase, PLAN_VAL);
            assert_int_equal(b.epoch, e);
            assert_int_equal(b.step, s);
            assert_int_equal(b.steps, val);
        }
    }
    assert_int_equal(plan_batches(p), seq);
    for (uint64_t beyond = 0; beyond < 5; beyond++)
        assert_int_equal(plan_locate(p, seq + beyond).phase, PLAN_END);
    assert_int_equal(plan_locate(p, UINT64_MAX).phase, PLAN_END);
}

static void every_batch_is_located(void **state)
{
    (void)state;
    static const uint32_t trains[] = {1, 5, 16, 33}, vals[] = {0, 1, 7, 16}, ranks[] = {1, 2, 3};
    for (int t = 0; t < 4; t++)
        for (int v = 0; v < 4; v++)
            for (int r = 0; r < 3; r++)
                for (uint32_t first = 0; first <= 3; first++)
                    for (uint32_t every = 0; every < 2; every++) {
                        plan_t p = plan_of(trains[t], vals[v], ranks[r], 2 * ranks[r]);
                        p.first_epoch = first;
                        p.val_every_epoch = every;
                        check_sequence(&p);
                    }
}

/* All ranks' training batches are full; together an epoch's positions are 0, 1, 2, ... without a
 * gap, up to the end of the last batch, which is where the order wraps. */
static void training_batches_are_full_and_wrap(void **state)
{
    (void)state;
    static const uint32_t trains[] = {1, 3, 12, 13, 100};
    for (int t = 0; t < 5; t++)
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            plan_t p = plan_of(trains[t], 0, ranks, 4 * ranks);
            uint32_t steps = plan_train_steps(&p);
            uint64_t next = 0;
            for (uint32_t s = 0; s < steps; s++) {
                plan_batch_t b = plan_locate(&p, s);
                for (uint32_t r = 0; r < ranks; r++) {
                    assert_int_equal(plan_cells(&p, &b, r), 4);
                    for (uint32_t c = 0; c < 4; c++)
                        assert_int_equal(plan_position(&p, &b, r, c), next++);
                }
            }
            assert_int_equal(next, (uint64_t)steps * p.batch);
            assert_true(next >= p.n_train && next - p.n_train < p.batch);
        }
}

static void validation_sees_each_sample_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 40; n++)
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            plan_t p = plan_of(1, n, ranks, 2 * ranks); /* val_batch 4 */
            unsigned char seen[40] = {0};
            uint32_t steps = plan_val_steps(&p), empty = 0;
            for (uint32_t s = 0; s < steps; s++) {
                plan_batch_t b = plan_locate(&p, plan_train_steps(&p) + s);
                assert_int_equal(b.phase, PLAN_VAL);
                for (uint32_t r = 0; r < ranks; r++) {
                    uint32_t cells = plan_cells(&p, &b, r);
                    assert_true(cells <= p.val_batch);
                    empty += cells == 0;
                    for (uint32_t c = 0; c < cells; c++) {
                        uint64_t at = plan_position(&p, &b, r, c);
                        assert_true(at < n);
                        seen[at]++;
                    }
                }
            }
            for (uint32_t i = 0; i < n; i++)
                assert_int_equal(seen[i], 1);
            /* Empty batches only in the last round, and never for all ranks. */
            assert_true(empty < ranks);
        }
}

static void the_order_does_not_depend_on_the_ranks(void **state)
{
    (void)state;
    plan_t one = plan_of(50, 0, 1, 12), three = plan_of(50, 0, 3, 12);
    assert_int_equal(plan_train_steps(&one), plan_train_steps(&three));
    plan_batch_t b = plan_locate(&one, 3);
    for (uint32_t c = 0; c < 12; c++)
        assert_int_equal(plan_position(&one, &b, 0, c), plan_position(&three, &b, c / 4, c % 4));
}

/* A plan that begins in the middle is the rest of the one from the epoch's beginning: the same
 * batches, with their numbers, where the batch is the same. */
static void a_plan_in_mid_epoch_is_the_rest(void **state)
{
    (void)state;
    static const uint32_t trains[] = {1, 5, 16, 33}, vals[] = {0, 3};
    for (int t = 0; t < 4; t++)
        for (uint32_t ranks = 1; ranks <= 3; ranks++)
            for (int k = 0; k < 4; k++) {
                plan_t whole = plan_of(trains[t], vals[k & 1], ranks, 2 * ranks);
                whole.val_every_epoch = k >> 1;
                uint32_t steps = plan_train_steps(&whole);
                uint64_t seq = steps + (plan_validates(&whole, 0) ? plan_val_steps(&whole) : 0);
                for (uint32_t s = 0; s <= steps; s++) {
                    plan_t rest = whole;
                    rest.first_epoch = 1;
                    if (s > 0) {
                        plan_batch_t last = plan_locate(&whole, seq + s - 1);
                        rest.first_position = plan_consumed(&whole, &last);
                    }
                    for (uint64_t i = seq + s; i < plan_batches(&whole) + 2; i++) {
                        plan_batch_t a = plan_locate(&whole, i);
                        plan_batch_t b = plan_locate(&rest, i - seq - s);
                        assert_memory_equal(&a, &b, sizeof a);
                        for (uint32_t r = 0; r < ranks && a.phase != PLAN_END; r++) {
                            assert_int_equal(plan_cells(&whole, &a, r), plan_cells(&rest, &b, r));
                            assert_int_equal(plan_position(&whole, &a, r, 0),
                                             plan_position(&rest, &b, r, 0));
                        }
                    }
                    assert_int_equal(plan_batches(&rest), plan_batches(&whole) - seq - s);
                }
            }
}

/* With any other batch and any other ranks: every position from the first on, once and in order, and
 * no step's number beyond those of a whole epoch. */
static void another_batch_goes_on_by_position(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 24; n++)
        for (uint64_t first = 1; first <= n; first++)
            for (uint32_t ranks = 1; ranks <= 3; ranks++)
                for (uint32_t batch = ranks; batch <= 4 * ranks; batch += ranks) {
                    plan_t p = plan_of(n, 0, ranks, batch);
                    p.first_epoch = 1;
                    p.first_position = first;
                    uint64_t next = first, seq = 0;
                    plan_batch_t b = plan_locate(&p, seq);
                    for (; b.phase == PLAN_TRAIN && b.epoch == 1; b = plan_locate(&p, ++seq)) {
                        assert_true(b.step < b.steps && b.steps <= plan_train_steps(&p));
                        assert_int_equal(b.step, first / batch + seq);
                        for (uint32_t r = 0; r < ranks; r++)
                            for (uint32_t c = 0; c < plan_cells(&p, &b, r); c++)
                                assert_int_equal(plan_position(&p, &b, r, c), next++);
                        assert_int_equal(plan_consumed(&p, &b), next < n ? next : n);
                    }
                    assert_true(next >= n && next < n + batch);
                    assert_true(first < n || seq == 0);
                    /* The epoch behind it is whole again. */
                    assert_int_equal(b.epoch, 2);
                    assert_true(b.phase == PLAN_TRAIN && b.step == 0);
                    assert_int_equal(plan_position(&p, &b, 0, 0), 0);
                }
}

/* What a damaged state may say leads to no overflow and no endless run. */
static void an_impossible_place_is_an_end(void **state)
{
    (void)state;
    plan_t p = plan_of(10, 4, 1, 2);
    p.first_epoch = 2;
    p.first_position = UINT64_MAX;
    assert_int_equal(plan_batches(&p), 1);
    assert_int_equal(plan_locate(&p, 0).phase, PLAN_VAL);
    assert_int_equal(plan_locate(&p, 1).phase, PLAN_END);
    p.first_epoch = 9;
    assert_int_equal(plan_batches(&p), 0);
    assert_int_equal(plan_locate(&p, 0).phase, PLAN_END);
}

static void mosaic_closes(void **state)
{
    (void)state;
    plan_t p = plan_of(10, 0, 1, 2);
    p.epochs = 20;
    p.close_mosaic = 10;
    assert_true(plan_mosaic(&p, 0));
    assert_true(plan_mosaic(&p, 9));
    assert_false(plan_mosaic(&p, 10));
    assert_false(plan_mosaic(&p, 19));
    p.close_mosaic = 0;
    assert_true(plan_mosaic(&p, 19));
    p.close_mosaic = p.epochs; /* all of them: closed from the first on */
    assert_false(plan_mosaic(&p, 0));
    p.close_mosaic = p.epochs + 1; /* more than there are: never closes (facts/yolo.md 4.8) */
    assert_true(plan_mosaic(&p, 0));
    p.close_mosaic = UINT32_MAX;
    assert_true(plan_mosaic(&p, 5));
}

/* Numbers from a message, not from options: what would divide by zero or overflow is refused. */
static void impossible_numbers_are_refused(void **state)
{
    (void)state;
    plan_t good = plan_of(33, 5, 2, 4), bad;
    assert_int_equal(plan_check(&good), 0);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        bad = good;                                                                                \
        bad.field = value;                                                                         \
        assert_int_equal(plan_check(&bad), ERR_FAILED);                                            \
    } while (0)
    REFUSED(n_train, 0);
    REFUSED(n_train, UINT32_MAX);
    REFUSED(n_val, UINT32_MAX);
    REFUSED(ranks, 0);
    REFUSED(ranks, 3); /* 4 images do not divide over 3 */
    REFUSED(batch, 0);
    REFUSED(batch, 1u << 31);
    REFUSED(val_batch, 0);
    REFUSED(val_batch, UINT32_MAX);
    REFUSED(imgsz, 0);
    REFUSED(imgsz, 65);
    REFUSED(epochs, 0);
    REFUSED(first_epoch, 4);
    REFUSED(first_position, UINT64_MAX);
    REFUSED(val_every_epoch, 2);
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_batch_is_located),
        cmocka_unit_test(training_batches_are_full_and_wrap),
        cmocka_unit_test(validation_sees_each_sample_once),
        cmocka_unit_test(the_order_does_not_depend_on_the_ranks),
        cmocka_unit_test(a_plan_in_mid_epoch_is_the_rest),
        cmocka_unit_test(another_batch_goes_on_by_position),
        cmocka_unit_test(an_impossible_place_is_an_end),
        cmocka_unit_test(mosaic_closes),
        cmocka_unit_test(impossible_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
