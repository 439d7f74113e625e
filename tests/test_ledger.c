/* control/ledger: the substitution rule, duplicates, earlier reports, and when it is too much. */
#include "control/catalog.h"
#include "control/ledger.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static int report(ledger_t *l, uint32_t split, uint32_t sample, uint32_t epoch, uint64_t position,
                  wire_ledger_t *e)
{
    wire_bad_sample_t bad;
    memset(&bad, 0, sizeof bad);
    bad.split = split;
    bad.sample = sample;
    bad.epoch = epoch;
    bad.position = position;
    return ledger_report(l, &bad, e);
}

static void the_next_usable_sample_stands_in(void **state)
{
    (void)state;
    ledger_t *l;
    wire_ledger_t e;
    assert_int_equal(ledger_new(100, 100, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 30, &e), LEDGER_NEW);
    assert_int_equal(wire_check(&e, sizeof e), 0);
    assert_true(e.sample == 7 && e.substitute == 8 && e.number == 1);
    assert_true(e.from_epoch == 2 && e.from_position == 30);
    assert_int_equal(report(l, CATALOG_TRAIN, 6, 2, 31, &e), LEDGER_NEW);
    assert_int_equal(e.substitute, 8); /* 7 is itself bad */
    assert_int_equal(report(l, CATALOG_TRAIN, 99, 2, 32, &e), LEDGER_NEW);
    assert_int_equal(e.substitute, 0); /* around the end of the list */
    assert_int_equal(report(l, CATALOG_VAL, 7, 2, 7, &e), LEDGER_NEW);
    assert_true(e.split == CATALOG_VAL && e.substitute == 8);
    assert_int_equal(ledger_count(l), 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(ledger_at(l, i)->number, i + 1);
    assert_null(ledger_at(l, 4));
    ledger_free(&l);
    assert_null(l);
}

static void a_second_report_changes_nothing_but_the_start(void **state)
{
    (void)state;
    ledger_t *l;
    wire_ledger_t e;
    assert_int_equal(ledger_new(100, 0, &l), 0);
    report(l, CATALOG_TRAIN, 7, 2, 30, &e);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 30, &e), LEDGER_KNOWN);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 3, 1, &e), LEDGER_KNOWN);
    assert_true(e.from_epoch == 2 && e.from_position == 30);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 29, &e), LEDGER_LOWERED);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 1, 90, &e), LEDGER_LOWERED);
    assert_true(e.number == 1 && e.from_epoch == 1 && e.from_position == 90);
    assert_int_equal(ledger_count(l), 1);
    ledger_free(&l);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    ledger_t *l;
    wire_ledger_t e;
    assert_int_equal(ledger_new(10, 0, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 10, 0, 0, &e), ERR_FAILED);
    assert_int_equal(report(l, CATALOG_VAL, 0, 0, 0, &e), ERR_FAILED);
    assert_int_equal(report(l, 2, 0, 0, 0, &e), ERR_FAILED);
    assert_int_equal(ledger_count(l), 0);
    ledger_free(&l);
}

static void too_many_end_the_run(void **state)
{
    (void)state;
    ledger_t *l;
    wire_ledger_t e;
    /* A tenth of 200 is allowed, one more is not. */
    assert_int_equal(ledger_new(200, 0, &l), 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(report(l, CATALOG_TRAIN, i, 0, i, &e), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 50, 0, 50, &e), ERR_DATA);
    ledger_free(&l);
    /* Fewer than ten are never too many while one is left. */
    assert_int_equal(ledger_new(12, 0, &l), 0);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(report(l, CATALOG_TRAIN, i, 0, i, &e), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 9, 0, 9, &e), ERR_DATA);
    ledger_free(&l);
    assert_int_equal(ledger_new(2, 0, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 0, 0, 0, &e), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 1, 0, 0, &e), ERR_DATA);
    ledger_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_usable_sample_stands_in),
        cmocka_unit_test(a_second_report_changes_nothing_but_the_start),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(too_many_end_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
