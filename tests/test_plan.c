/* control/plan: every batch located once and in order, the wrap, short and empty validation
 * batches. */
#include "control/plan.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_batch_is_located),
        cmocka_unit_test(training_batches_are_full_and_wrap),
        cmocka_unit_test(validation_sees_each_sample_once),
        cmocka_unit_test(the_order_does_not_depend_on_the_ranks),
        cmocka_unit_test(mosaic_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
