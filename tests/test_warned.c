/* control/warned: each image counts once, the scan's included; and how often a person is told. */
#include "control/warned.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { TRAIN = 20, VAL = 3 };

static void add(catalog_builder_t *b, catalog_split_t split, int i)
{
    char path[32];
    snprintf(path, sizeof path, "/data/%d-%d.jpg", split, i);
    const catalog_sample_t facts = {.file_bytes = 10,
                                    .width = 20,
                                    .height = 20,
                                    .orientation = 1,
                                    .warned = split == CATALOG_TRAIN && i % 7 == 0};
    assert_int_equal(catalog_builder_sample(b, split, path, &facts, NULL, 0, NULL, 0), 0);
}

static void each_image_counts_once(void **state)
{
    (void)state;
    catalog_builder_t *b;
    catalog_t *catalog;
    warned_t w;
    int fd = memfd_create("test-warned", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "thing"), 0);
    for (int i = 0; i < TRAIN; i++)
        add(b, CATALOG_TRAIN, i);
    for (int i = 0; i < VAL; i++)
        add(b, CATALOG_VAL, i);
    assert_int_equal(catalog_builder_write(b, fd), 0);
    assert_int_equal(catalog_open(fd, &catalog), 0);
    assert_int_equal(warned_init(&w, catalog), 0);
    assert_int_equal(warned_count(&w), 3); /* 0, 7 and 14 are the scan's */
    assert_int_equal(warned_add(&w, CATALOG_TRAIN, 7), 0);
    assert_int_equal(warned_add(&w, CATALOG_TRAIN, 19), 1);
    assert_int_equal(warned_add(&w, CATALOG_TRAIN, 19), 0);
    assert_int_equal(warned_add(&w, CATALOG_VAL, 0), 1);
    assert_int_equal(warned_count(&w), 5);
    assert_int_equal(w.count[CATALOG_TRAIN], 4);
    assert_int_equal(warned_add(&w, CATALOG_TRAIN, TRAIN), ERR_FAILED);
    assert_int_equal(warned_add(&w, CATALOG_VAL, VAL), ERR_FAILED);
    assert_int_equal(warned_add(&w, CATALOG_SPLITS, 0), ERR_FAILED);
    assert_int_equal(warned_count(&w), 5);
    warned_fini(&w);
    catalog_close(&catalog);
    catalog_builder_free(&b);
    close(fd);
}

/* A million like things are a dozen lines. */
static void telling_does_not_flood(void **state)
{
    (void)state;
    uint32_t names = 0, last = 0, counts = 0;
    for (uint32_t i = 1; i <= 1000000; i++) {
        tell_t how = tell_how(i);
        names += how == TELL_NAME || how == TELL_NAME_LAST;
        last += how == TELL_NAME_LAST;
        counts += how == TELL_COUNT;
        assert_true(how != TELL_COUNT || i >= 100);
    }
    assert_true(names == 10 && last == 1 && counts == 5);
    assert_int_equal(tell_how(10), TELL_NAME_LAST);
    assert_int_equal(tell_how(11), TELL_NOTHING);
    assert_int_equal(tell_how(1000), TELL_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_image_counts_once),
        cmocka_unit_test(telling_does_not_flood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
