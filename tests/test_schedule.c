/* The schedule against the golden numbers of facts/yolo.md 9 and the rules of section 4. */
#include "trainer/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* The defaults of facts/yolo.md 2 that the schedule reads. */
static options_t defaults(void)
{
    static options_t o;
    memset(&o, 0, sizeof o);
    o.epochs = 100;
    o.batch = 16;
    o.nbs = 64;
    o.optimizer = OPT_OPTIM_SGD;
    o.lr0 = o.lrf = 0.01;
    o.momentum = 0.937;
    o.weight_decay = 0.0005;
    o.warmup_epochs = 3;
    o.warmup_momentum = 0.8;
    o.warmup_bias_lr = 0.1;
    return o;
}

static void test_factor(void **state)
{
    (void)state;
    const uint32_t e[] = {0, 1, 50, 90, 99};
    const double linear[] = {1, .9901, .505, .109, .0199};
    const double cosine[] = {1, .99975575, .505, .03422702, .01024425};
    options_t o = defaults();
    schedule_t s;
    for (int i = 0; i < 5; i++) {
        o.cos_lr = 0;
        schedule_init(&s, &o, 16000, 1000, 80);
        assert_float_equal(schedule_factor(&s, e[i]), linear[i], 1e-9);
        o.cos_lr = 1;
        schedule_init(&s, &o, 16000, 1000, 80);
        assert_float_equal(schedule_factor(&s, e[i]), cosine[i], 1e-8);
    }
}

static void test_warmup(void **state)
{
    (void)state;
    options_t o = defaults();
    schedule_t s;
    schedule_point_t p;
    schedule_init(&s, &o, 16000, 1000, 80);
    assert_int_equal(s.warmup_steps, 3000);
    schedule_at(&s, 500, &p);
    assert_int_equal(p.accumulate, 2); /* 1.5, half to even */
    assert_float_equal(p.lr[0], .00166667, 1e-8);
    assert_float_equal(p.lr[1], .00166667, 1e-8);
    assert_float_equal(p.lr[2], .085, 1e-8);
    assert_float_equal(p.momentum, .82283, 1e-5);
    schedule_at(&s, 2999, &p);
    assert_int_equal(p.accumulate, 4);
    assert_float_equal(p.lr[0], .00979873, 1e-8);
    assert_float_equal(p.lr[2], .00983207, 1e-8);
    assert_float_equal(p.momentum, .93695, 1e-5);
    schedule_at(&s, 0, &p);
    assert_int_equal(p.accumulate, 1);
    assert_float_equal(p.lr[0], 0, 0);
    assert_float_equal(p.lr[2], .1, 1e-12);
    assert_float_equal(p.momentum, .8, 1e-12);
}

/* After warm-up: rates by epoch, accumulate and momentum as its last step left them. */
static void test_after_warmup(void **state)
{
    (void)state;
    options_t o = defaults();
    schedule_t s;
    schedule_point_t last, p;
    schedule_init(&s, &o, 16000, 1000, 80);
    schedule_at(&s, 2999, &last);
    schedule_at(&s, 3000, &p);
    for (int g = 0; g < 3; g++)
        assert_float_equal(p.lr[g], .01 * .9703, 1e-10);
    assert_int_equal(p.accumulate, last.accumulate);
    assert_float_equal(p.momentum, last.momentum, 0);
    schedule_at(&s, 99999, &p);
    assert_float_equal(p.lr[0], .01 * .0199, 1e-10);
    assert_int_equal(p.accumulate, 4);

    /* It ends inside an epoch: the rates stay until the next one starts. */
    o.warmup_epochs = 0.5;
    schedule_init(&s, &o, 16000, 1000, 80);
    assert_int_equal(s.warmup_steps, 500);
    schedule_at(&s, 499, &last);
    schedule_at(&s, 999, &p);
    assert_float_equal(p.lr[2], last.lr[2], 0);
    assert_true(p.lr[2] > .0101);
    schedule_at(&s, 1000, &p);
    assert_float_equal(p.lr[2], .01 * .9901, 1e-12);
}

/* nw = round(min(warmup_epochs, E - 1) * nb), Python's rounding; none for a run of one epoch. */
static void test_warmup_steps(void **state)
{
    (void)state;
    const struct {
        int epochs;
        double warm;
        uint32_t steps, nw;
    } row[] = {{100, 3, 1000, 3000}, {2, 3, 7, 7},    {1, 3, 1000, 0},
               {100, .5, 5, 2},      {100, .5, 7, 4}, {100, 0, 50, 0}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        options_t o = defaults();
        schedule_t s;
        schedule_point_t p;
        o.epochs = row[i].epochs;
        o.warmup_epochs = row[i].warm;
        schedule_init(&s, &o, 1000, row[i].steps, 80);
        assert_int_equal(s.warmup_steps, row[i].nw);
        if (row[i].nw > 0)
            continue;
        schedule_at(&s, 0, &p);
        assert_float_equal(p.lr[0], .01, 1e-12);
        assert_float_equal(p.momentum, .937, 1e-12);
        assert_int_equal(p.accumulate, 4);
    }
}

static void test_accumulate(void **state)
{
    (void)state;
    const struct {
        int batch;
        uint32_t accumulate;
        double decay;
    } row[] = {{12, 5, .00046875}, {16, 4, .0005},  {24, 3, .0005625}, {48, 1, .000375},
               {64, 1, .0005},     {96, 1, .00075}, {128, 1, .001}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        options_t o = defaults();
        schedule_t s;
        schedule_point_t p;
        o.batch = row[i].batch;
        o.warmup_epochs = 0;
        schedule_init(&s, &o, 16000, 1000, 80);
        schedule_at(&s, 0, &p);
        assert_int_equal(p.accumulate, row[i].accumulate);
        assert_float_equal(s.weight_decay, row[i].decay, 1e-12);
    }
}

static void test_ema(void **state)
{
    (void)state;
    const uint64_t u[] = {1, 10, 100, 2000, 10000};
    const double d[] = {.00049983, .00498702, .04876570, .63205735, .99316273};
    for (int i = 0; i < 5; i++)
        assert_float_equal(schedule_ema(u[i]), d[i], 1e-8);
}

static void test_auto(void **state)
{
    (void)state;
    const uint32_t nc[] = {1, 2, 6, 10, 20, 80};
    const double lr[] = {.002, .001667, .001, .000714, .000417, .000119};
    options_t o = defaults();
    schedule_t s;
    schedule_point_t p;
    o.optimizer = OPT_OPTIM_AUTO;
    for (int i = 0; i < 6; i++) {
        schedule_init(&s, &o, 6400, 400, nc[i]); /* 100 * 100 = 10000 iterations: not above */
        assert_int_equal(s.optimizer, OPT_OPTIM_ADAMW);
        assert_float_equal(s.lr0, lr[i], 1e-12);
        assert_float_equal(s.warmup_bias_lr, 0, 0);
        schedule_at(&s, 10, &p); /* beta1 takes no part in the warm-up, the biases start at 0 */
        assert_float_equal(p.momentum, .9, 0);
        assert_float_equal(p.lr[2], p.lr[0], 1e-15);
        schedule_at(&s, 100000, &p);
        assert_float_equal(p.momentum, .9, 0);
    }
    schedule_init(&s, &o, 6401, 401, 80); /* 101 * 100 iterations */
    assert_int_equal(s.optimizer, OPT_OPTIM_SGD);
    assert_float_equal(s.lr0, .01, 0);
    schedule_at(&s, s.warmup_steps, &p); /* the trap: warm-up ends near 0.937, not at 0.9 */
    assert_float_equal(p.momentum, .937, 2e-4);
    o.batch = 128; /* max(batch, nbs): 51 * 100 */
    schedule_init(&s, &o, 6401, 51, 80);
    assert_int_equal(s.optimizer, OPT_OPTIM_ADAMW);
}

static void test_explicit(void **state)
{
    (void)state;
    options_t o = defaults();
    schedule_t s;
    schedule_point_t p;
    o.optimizer = OPT_OPTIM_ADAMW;
    o.lr0 = .003;
    schedule_init(&s, &o, 1000, 63, 80);
    assert_float_equal(s.lr0, .003, 0);
    schedule_at(&s, 0, &p);
    assert_float_equal(p.momentum, .937, 0);
    assert_float_equal(p.lr[2], .1, 1e-12);
}

static void test_early_stop(void **state)
{
    (void)state;
    early_stop_t s;
    early_stop_init(&s, 3);
    const double fitness[] = {0, 0, .2, .1, .2, .15};
    for (int e = 0; e < 5; e++)
        assert_int_equal(early_stop_update(&s, e, fitness[e]), 0);
    assert_int_equal(s.best_epoch, 2); /* a tie is no improvement */
    assert_int_equal(early_stop_update(&s, 5, fitness[5]), 1);
    early_stop_init(&s, 2);
    for (int e = 0; e < 20; e++) /* as long as the best is 0, every epoch counts as the best */
        assert_int_equal(early_stop_update(&s, e, 0), 0);
    early_stop_init(&s, 0);
    for (int e = 0; e < 500; e++)
        assert_int_equal(early_stop_update(&s, e, e == 0 ? .5 : .1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factor),       cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_after_warmup), cmocka_unit_test(test_warmup_steps),
        cmocka_unit_test(test_accumulate),   cmocka_unit_test(test_ema),
        cmocka_unit_test(test_auto),         cmocka_unit_test(test_explicit),
        cmocka_unit_test(test_early_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
