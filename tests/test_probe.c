/* loader/probe: one bad file among good ones, a storage that has gone, and how long a verdict
 * serves. */
#include "loader/probe.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { TRAIN = 60, VAL = PROBE_LEAST - 1, DEADLINE_MS = 60000 };

typedef struct {
    char folder[SCRATCH_PATH], away[SCRATCH_PATH + 8];
    int fd;
    catalog_t *catalog;
    reader_t *reader;
    probe_t probe;
} fixture_t;

static void add(fixture_t *f, catalog_builder_t *b, catalog_split_t split, int i)
{
    char name[32];
    uint8_t data[2 * PROBE_BYTES] = {0};
    /* Shorter and longer than what is read of one. */
    size_t bytes = i % 2 ? 100 : sizeof data;
    snprintf(name, sizeof name, "%d/%d.jpg", split, i);
    const char *path = scratch_write(f->folder, name, data, bytes);
    const catalog_sample_t facts = {
        .file_bytes = bytes, .width = 20, .height = 20, .orientation = 1};
    assert_int_equal(catalog_builder_sample(b, split, path, &facts, NULL, 0, NULL, 0), 0);
}

static int begin(void **state)
{
    fixture_t *f = calloc(1, sizeof *f);
    catalog_builder_t *b;
    scratch_begin(f->folder);
    snprintf(f->away, sizeof f->away, "%s-away", f->folder);
    f->fd = memfd_create("test-probe", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "thing"), 0);
    for (int i = 0; i < TRAIN; i++)
        add(f, b, CATALOG_TRAIN, i);
    for (int i = 0; i < VAL; i++)
        add(f, b, CATALOG_VAL, i);
    if (catalog_builder_write(b, f->fd) < 0 || catalog_open(f->fd, &f->catalog) < 0 ||
        reader_new(OPT_IO_AUTO, 4, &f->reader) < 0)
        fail_msg("%s", err_text());
    catalog_builder_free(&b);
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture_t *f = *state;
    probe_fini(&f->probe);
    assert_int_equal(reader_free(&f->reader), 0);
    catalog_close(&f->catalog);
    close(f->fd);
    scratch_end(f->folder);
    free(f);
    return 0;
}

static void verdict(fixture_t *f, catalog_split_t split)
{
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    int rc;
    while ((rc = probe_ask(&f->probe, f->reader, f->catalog, split)) == 0) {
        assert_true(clock_ns() < deadline);
        assert_int_equal(reader_poll(f->reader, 10), 0);
    }
    assert_int_equal(rc, 1);
}

static void test_one_file(void **state)
{
    fixture_t *f = *state;
    const char *path = catalog_path(f->catalog, catalog_sample(f->catalog, CATALOG_TRAIN, 7));
    assert_int_equal(unlink(path), 0);
    verdict(f, CATALOG_TRAIN);
    assert_int_equal(f->probe.probed, PROBE_FILES);
    /* It may have been drawn itself, and more than once. */
    assert_true(f->probe.unread < PROBE_FILES / 3);
    /* Fresh: the next file that fails is answered at once, and nothing is read for it. */
    f->probe.at_ns = clock_ns();
    assert_int_equal(probe_ask(&f->probe, f->reader, f->catalog, CATALOG_TRAIN), 1);
    assert_int_equal(reader_in_flight(f->reader), 0);
}

static void test_all_gone(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(rename(f->folder, f->away), 0);
    verdict(f, CATALOG_TRAIN);
    assert_true(f->probe.probed == PROBE_FILES && f->probe.unread == PROBE_FILES);
    assert_int_equal(rename(f->away, f->folder), 0);
    /* Old: it is looked again, and it is back. */
    f->probe.at_ns -= PROBE_FRESH_MS * 1000000ull;
    verdict(f, CATALOG_TRAIN);
    assert_true(f->probe.probed == PROBE_FILES && f->probe.unread == 0);
}

/* So few that the ledger's own rule is as fast. */
static void test_few_are_not_tried(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(probe_ask(&f->probe, f->reader, f->catalog, CATALOG_VAL), 1);
    assert_true(f->probe.probed == 0 && f->probe.unread == 0);
    assert_int_equal(reader_in_flight(f->reader), 0);
}

/* Files that do not answer count as unread when patience ends, and are not waited for any more;
 * should they answer after all, the next trial is one like any other. */
static void test_no_answer(void **state)
{
    fixture_t *f = *state;
    assert_int_equal(probe_ask(&f->probe, f->reader, f->catalog, CATALOG_TRAIN), 0);
    f->probe.at_ns -= PROBE_PATIENCE_MS * 1000000ull; /* none has been polled for */
    assert_int_equal(probe_ask(&f->probe, f->reader, f->catalog, CATALOG_TRAIN), 1);
    assert_int_equal(f->probe.probed, PROBE_FILES);
    while (reader_in_flight(f->reader))
        assert_int_equal(reader_poll(f->reader, 10), 0);
    f->probe.at_ns -= PROBE_FRESH_MS * 1000000ull;
    verdict(f, CATALOG_TRAIN);
    assert_true(f->probe.probed == PROBE_FILES && f->probe.unread == 0);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_one_file),
        CASE(test_all_gone),
        CASE(test_few_are_not_tried),
        CASE(test_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
