/* control/options: batch= and device=, as people type them and as the machine has them. */
#include "control/options.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void set(options_t *o, const char *word)
{
    if (options_set(o, word) < 0)
        fail_msg("%s: %s", word, err_text());
}

/* Refused with ERR_CONFIG and a sentence with `said` in it; the values stay. */
static void refuse(const char *word, const char *said)
{
    options_t o, before;
    options_default(&o);
    before = o;
    if (options_set(&o, word) != ERR_CONFIG)
        fail_msg("%s was taken", word);
    if (!strstr(err_text(), said))
        fail_msg("%s: '%s' lacks '%s'", word, err_text(), said);
    assert_memory_equal(&o, &before, sizeof o);
}

static void batches(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        int batch;
        double share;
    } cases[] = {{"batch=24", 24, 0},
                 {"batch=65536", 65536, 0},
                 {"batch=1", 1, 0},
                 {"batch=8.0", 8, 0},
                 {"batch=auto", 0, OPTIONS_BATCH_SHARE},
                 {"batch=AUTO", 0, OPTIONS_BATCH_SHARE},
                 {"batch=-1", 0, OPTIONS_BATCH_SHARE},
                 {"batch=0.6", 0, 0.6},
                 {"batch=.99", 0, 0.99}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t o;
        options_default(&o);
        set(&o, "batch=auto"); /* a later word wins whole */
        set(&o, cases[i].word);
        assert_int_equal(o.batch, cases[i].batch);
        assert_true(o.batch_share >= cases[i].share && o.batch_share <= cases[i].share);
    }
}

static void devices(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        int n, first, last;
    } cases[] = {
        {"device=0,1,2,3", 4, 0, 3},
        {"device=[0, 1]", 2, 0, 1},
        {"device=cpu", 1, DEVICE_CPU, DEVICE_CPU},
        {"device=cpu,cpu", 2, DEVICE_CPU, DEVICE_CPU},
        {"device=CPU", 1, DEVICE_CPU, DEVICE_CPU},
        {"device=0,0", 2, 0, 0},
        {"device=7", 1, 7, 7},
        {"device=cuda:2", 1, 2, 2},
        {"device=cuda", 1, 0, 0},
        {"device=all", 1, DEVICE_ALL, DEVICE_ALL},
        {"device=auto", 1, DEVICE_AUTO, DEVICE_AUTO},
        {"device=", 1, DEVICE_AUTO, DEVICE_AUTO},
        {"device=none", 1, DEVICE_AUTO, DEVICE_AUTO},
        {"device=-1", 1, DEVICE_AUTO, DEVICE_AUTO},
        {"device=(2, 0)", 2, 2, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options_t o;
        options_default(&o);
        set(&o, cases[i].word);
        assert_int_equal(o.n_devices, cases[i].n);
        assert_int_equal(o.devices[0], cases[i].first);
        assert_int_equal(o.devices[o.n_devices - 1], cases[i].last);
    }
    refuse("device=0,cpu", "mixed");
    refuse("device=0,,1", "is needed");
    refuse("device=gpu", "is needed");
    refuse("device=0,all", "is needed");
    refuse("device=0 1,x", "is needed");
    char many[512] = "device=0";
    for (int i = 0; i < OPTIONS_DEVICES; i++)
        strcat(many, ",0");
    refuse(many, "at most 64");
}

static int resolve(const char *device, int batch, int gpus, options_t *o)
{
    options_default(o);
    set(o, device);
    o->batch = batch;
    return options_resolve_devices(o, gpus, gpus - 2, "nobody made one");
}

static void devices_are_resolved_on_the_machine(void **state)
{
    (void)state;
    options_t o;
    assert_int_equal(resolve("device=auto", 16, 0, &o), 0);
    assert_true(o.n_devices == 1 && o.devices[0] == DEVICE_CPU);
    assert_int_equal(resolve("device=auto", 16, 4, &o), 0);
    assert_true(o.n_devices == 1 && o.devices[0] == 2);
    assert_int_equal(resolve("device=all", 16, 2, &o), 0);
    assert_true(o.n_devices == 2 && o.devices[1] == 1);
    assert_int_equal(resolve("device=cpu,cpu", 16, 0, &o), 0);
    assert_true(o.n_devices == 2 && o.devices[1] == DEVICE_CPU);
    assert_int_equal(resolve("device=0,1", 16, 2, &o), 0);
    assert_int_equal(resolve("device=all", 16, 0, &o), ERR_ENV);
    assert_int_equal(resolve("device=0", 16, 0, &o), ERR_ENV);
    assert_non_null(strstr(err_text(), "nobody made one); use device=cpu"));
    assert_int_equal(resolve("device=1", 16, 1, &o), ERR_ENV);
    assert_non_null(strstr(err_text(), "one GPU, device=0"));
    assert_int_equal(resolve("device=0,2", 16, 2, &o), ERR_ENV);
    assert_non_null(strstr(err_text(), "0 to 1"));
    assert_int_equal(resolve("device=all", 16, 3, &o), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "batch=15 or batch=18"));
    options_default(&o);
    set(&o, "amp=bf16");
    assert_int_equal(options_resolve_devices(&o, 0, -1, "none"), ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches),
        cmocka_unit_test(devices),
        cmocka_unit_test(devices_are_resolved_on_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
