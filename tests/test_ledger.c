/* control/ledger: the substitution rule, cells by name, duplicates, and when it is too much. */
#include "control/catalog.h"
#include "control/ledger.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static uint32_t substitute;

/* Everything from position 1000 of epoch 3 on is unclaimed. */
static int report(ledger_t *l, uint32_t split, uint32_t sample, uint32_t epoch, uint64_t position)
{
    const ledger_place_t beyond = {3, 1000};
    wire_bad_sample_t bad;
    memset(&bad, 0, sizeof bad);
    bad.split = split;
    bad.sample = sample;
    bad.epoch = epoch;
    bad.position = position;
    return ledger_report(l, &bad, &beyond, &substitute);
}

static void the_next_usable_sample_stands_in(void **state)
{
    (void)state;
    ledger_t *l;
    assert_int_equal(ledger_new(100, 100, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 30), LEDGER_NEW);
    assert_int_equal(substitute, 8);
    assert_int_equal(report(l, CATALOG_TRAIN, 6, 2, 31), LEDGER_NEW);
    assert_int_equal(substitute, 8); /* 7 is itself bad */
    assert_int_equal(report(l, CATALOG_TRAIN, 99, 2, 32), LEDGER_NEW);
    assert_int_equal(substitute, 0); /* around the end of the list */
    assert_int_equal(report(l, CATALOG_VAL, 7, 2, 7), LEDGER_NEW);
    assert_int_equal(substitute, 8);
    assert_int_equal(ledger_samples(l), 4);
    assert_int_equal(ledger_count(l), 8);
    ledger_free(&l);
    assert_null(l);
}

static void check_entry(const ledger_t *l, uint32_t i, int only, uint32_t epoch, uint64_t position)
{
    wire_ledger_t e = *ledger_at(l, i);
    assert_int_equal(wire_check(&e, sizeof e), 0);
    assert_true(e.split == CATALOG_TRAIN && e.sample == 7 && e.substitute == 8);
    assert_int_equal(e.number, i + 1);
    assert_int_equal(e.only, only);
    assert_true(e.from_epoch == epoch && e.from_position == position);
}

/* One entry beyond what is claimed; before that place, each cell that met the sample by name. What
 * stands there stays as it is. */
static void blocked_cells_are_named(void **state)
{
    (void)state;
    ledger_t *l;
    assert_int_equal(ledger_new(100, 0, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 30), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 30), LEDGER_KNOWN);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 2, 29), LEDGER_CELL);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 3, 999), LEDGER_CELL);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 3, 1000), LEDGER_KNOWN);
    assert_int_equal(report(l, CATALOG_TRAIN, 7, 4, 1), LEDGER_KNOWN);
    assert_int_equal(ledger_samples(l), 1);
    assert_int_equal(ledger_count(l), 4);
    check_entry(l, 0, 0, 3, 1000);
    check_entry(l, 1, 1, 2, 30);
    check_entry(l, 2, 1, 2, 29);
    check_entry(l, 3, 1, 3, 999);
    assert_null(ledger_at(l, 4));
    ledger_free(&l);
}

/* Two neighbours that are bad, met in either order: a chain ends at the same sample. */
static void the_order_of_reports_does_not_matter(void **state)
{
    (void)state;
    ledger_t *l;
    assert_int_equal(ledger_new(100, 0, &l), 0);
    report(l, CATALOG_TRAIN, 7, 0, 1);
    assert_int_equal(substitute, 8);
    report(l, CATALOG_TRAIN, 8, 0, 1);
    assert_int_equal(substitute, 9); /* 7 is read as 8, which is read as 9 */
    ledger_free(&l);
    assert_int_equal(ledger_new(100, 0, &l), 0);
    report(l, CATALOG_TRAIN, 8, 0, 5);
    assert_int_equal(substitute, 9);
    report(l, CATALOG_TRAIN, 7, 0, 1);
    assert_int_equal(substitute, 9);
    ledger_free(&l);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    ledger_t *l;
    assert_int_equal(ledger_new(10, 0, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 10, 0, 0), ERR_FAILED);
    assert_int_equal(report(l, CATALOG_VAL, 0, 0, 0), ERR_FAILED);
    assert_int_equal(report(l, 2, 0, 0, 0), ERR_FAILED);
    assert_int_equal(ledger_count(l), 0);
    ledger_free(&l);
}

static void too_many_end_the_run(void **state)
{
    (void)state;
    ledger_t *l;
    /* A tenth of 200 is allowed, one more is not. */
    assert_int_equal(ledger_new(200, 0, &l), 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(report(l, CATALOG_TRAIN, i, 0, i), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 50, 0, 50), ERR_DATA);
    ledger_free(&l);
    /* Fewer than ten are never too many while one is left. */
    assert_int_equal(ledger_new(12, 0, &l), 0);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(report(l, CATALOG_TRAIN, i, 0, i), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 9, 0, 9), ERR_DATA);
    ledger_free(&l);
    assert_int_equal(ledger_new(2, 0, &l), 0);
    assert_int_equal(report(l, CATALOG_TRAIN, 0, 0, 0), LEDGER_NEW);
    assert_int_equal(report(l, CATALOG_TRAIN, 1, 0, 0), ERR_DATA);
    ledger_free(&l);
}

/* What was written down makes the same ledger again; what cannot have been is refused. */
static void a_ledger_is_replayed(void **state)
{
    (void)state;
    ledger_t *l, *again;
    wire_ledger_t e;
    assert_int_equal(ledger_new(100, 100, &l), 0);
    assert_int_equal(ledger_new(100, 100, &again), 0);
    report(l, CATALOG_TRAIN, 7, 2, 30);
    report(l, CATALOG_TRAIN, 8, 2, 31);
    report(l, CATALOG_TRAIN, 7, 2, 33);
    report(l, CATALOG_VAL, 99, 1, 99);
    for (uint32_t i = 0; i < ledger_count(l); i++) {
        e = *ledger_at(l, i);
        for (int wrong = 0; wrong < 6; wrong++) {
            e = *ledger_at(l, i);
            e.number += wrong == 0;
            e.split += wrong == 1 ? CATALOG_SPLITS : 0;
            e.sample += wrong == 2 ? 100 : 0;
            e.substitute = wrong == 3 ? e.sample : wrong == 4 ? 100 : e.substitute;
            e.only = wrong == 5 ? !e.only : e.only;
            assert_int_equal(ledger_replay(again, &e), ERR_FAILED);
        }
        assert_int_equal(ledger_replay(again, ledger_at(l, i)), 0);
        assert_int_equal(ledger_replay(again, ledger_at(l, i)), ERR_FAILED); /* again: no */
        assert_memory_equal(ledger_at(again, i), ledger_at(l, i), sizeof e);
    }
    assert_int_equal(ledger_count(again), ledger_count(l));
    assert_int_equal(ledger_samples(again), 3);
    /* And goes on as the one it is a copy of. */
    assert_int_equal(report(again, CATALOG_TRAIN, 8, 2, 31), LEDGER_KNOWN);
    assert_int_equal(report(again, CATALOG_TRAIN, 6, 2, 40), LEDGER_NEW);
    assert_int_equal(substitute, 9);
    ledger_free(&l);
    ledger_free(&again);
}

/* Substitutes by the plain rule: a walk along the list. */
static uint32_t walk(const unsigned char *bad, uint32_t n, uint32_t sample)
{
    do {
        sample = (sample + 1) % n;
    } while (bad[sample]);
    return sample;
}

/* Samples here and there, runs that grow at either end and into each other, and the list's end. */
static void substitutes_follow_the_list(void **state)
{
    (void)state;
    enum { N = 2000 };
    ledger_t *l, *again;
    unsigned char bad[N] = {0};
    uint32_t random = 12345;
    assert_int_equal(ledger_new(N, 0, &l), 0);
    for (uint32_t i = 0; i < N / 10; i++) {
        uint32_t sample = i % 3 == 0 ? i : i % 3 == 1 ? N - 1 - i / 3 : 0;
        if (i % 3 == 2)
            sample = (random = random * 1103515245 + 12345) / 65536 % N;
        if (bad[sample]) {
            assert_int_equal(report(l, CATALOG_TRAIN, sample, 3, 1000), LEDGER_KNOWN);
            continue;
        }
        bad[sample] = 1;
        assert_int_equal(report(l, CATALOG_TRAIN, sample, 3, 1000), LEDGER_NEW);
        assert_int_equal(substitute, walk(bad, N, sample));
    }
    /* A copy takes each in turn, and none that reads another sample in its place. */
    assert_int_equal(ledger_new(N, 0, &again), 0);
    for (uint32_t i = 0; i < ledger_count(l); i++) {
        wire_ledger_t e = *ledger_at(l, i);
        e.substitute = (e.substitute + 1) % N;
        if (e.substitute != e.sample)
            assert_int_equal(ledger_replay(again, &e), ERR_FAILED);
        assert_int_equal(ledger_replay(again, ledger_at(l, i)), 0);
    }
    ledger_free(&l);
    ledger_free(&again);
}

/* A tenth of a million in one run, met from its end on, each by three cells: where one question
 * walks the entries or the run, this takes minutes. */
static void a_large_ledger_answers(void **state)
{
    (void)state;
    enum { N = 1000000, BAD = 100000 };
    ledger_t *l, *again;
    assert_int_equal(ledger_new(N, 0, &l), 0);
    for (uint32_t i = BAD; i-- > 0;) {
        assert_int_equal(report(l, CATALOG_TRAIN, i, 2, i), LEDGER_NEW);
        assert_int_equal(substitute, BAD);
        assert_int_equal(report(l, CATALOG_TRAIN, i, 1, i), LEDGER_CELL);
        assert_int_equal(report(l, CATALOG_TRAIN, i, 1, i), LEDGER_KNOWN);
    }
    assert_int_equal(ledger_count(l), 3 * BAD);
    assert_int_equal(ledger_new(N, 0, &again), 0);
    for (uint32_t i = 0; i < ledger_count(l); i++)
        assert_int_equal(ledger_replay(again, ledger_at(l, i)), 0);
    assert_int_equal(ledger_samples(again), BAD);
    assert_int_equal(report(again, CATALOG_TRAIN, BAD, 0, 0), ERR_DATA);
    ledger_free(&l);
    ledger_free(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ledger_is_replayed),
        cmocka_unit_test(the_next_usable_sample_stands_in),
        cmocka_unit_test(blocked_cells_are_named),
        cmocka_unit_test(the_order_of_reports_does_not_matter),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(too_many_end_the_run),
        cmocka_unit_test(substitutes_follow_the_list),
        cmocka_unit_test(a_large_ledger_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
