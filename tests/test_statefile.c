/* tools/statefile and tools/trim: where a run goes on, its substitutions, and what goes from the
 * files that grow. */
#include "shm/err.h"
#include "tests/scratch.h"
#include "tools/statefile.h"
#include "tools/trim.h"
#include "trainer/checkpoint.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define REST                                                                                       \
    "\"position\":\"40\",\"list_digest\":\"18446744073709551615\",\"ranks\":\"2\",\"batch\":"      \
    "\"8\",\"threads\":\"3\",\"pending\":\"1\",\"ledger_entries\":"
#define KIND "\"kind\":\"" CHECKPOINT_KIND "\","

static void a_header_is_read_strictly(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{\"__metadata__\":{" KIND "\"epoch\":\"12\"," REST "\"0\"}}",
        " { \"a\" : {\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}, \"__metadata__\" : "
        "{\"x\":\"a \\\"quoted\\\" thing\"," KIND REST
        "\"0\", \"epoch\":\"12\",\"finished\":\"0\"} , \"b\":[] } ",
    };
    static const char *const bad[] = {
        "",
        "{",
        "{}",
        "[]",
        "{\"__metadata__\":{\"epoch\":12}}",
        "{\"__metadata__\":{" KIND REST "\"0\"}}",
        "{\"__metadata__\":{" KIND REST "\"0\",\"epoch\":\"-1\"}}",
        "{\"__metadata__\":{" KIND REST "\"0\",\"epoch\":\"12x\"}}",
        "{\"__metadata__\":{" KIND REST "\"0\",\"epoch\":\"99999999999\"}}",
        "{\"__metadata__\":{" KIND REST "\"0\",\"epoch\":\"12\"}",
        "{\"__metadata__\":{" KIND REST "\"0\",\"epoch\":\"12\"},}",
        "{\"__metadata__\":{" REST "\"0\",\"epoch\":\"12\"}}",
        /* A substitution that is not there, and one that is too large for its tensor. */
        "{\"__metadata__\":{" KIND REST "\"1\",\"epoch\":\"12\"}}",
        "{\"__metadata__\":{" KIND REST "\"1\",\"epoch\":\"12\"},"
        "\"ledger\":{\"dtype\":\"I64\",\"shape\":[1,6],\"data_offsets\":[0,47]}}",
        "{\"__metadata__\":{" KIND REST "\"1\",\"epoch\":\"12\"},"
        "\"ledger\":{\"dtype\":\"I64\",\"shape\":[1,6],\"data_offsets\":[0,-48]}}",
        "{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":{\"i\":{\"j\":{}}}}}}}}}}}",
        "{\"a\":\"unfinished",
    };
    statefile_t s;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(statefile_parse(good[i], strlen(good[i]), "x", &s), 0);
        assert_true(s.next_epoch == 12 && !s.finished && s.position == 40);
        assert_true(s.ranks == 2 && s.batch == 8 && s.threads == 3 && s.pending == 1);
        assert_true(s.list_digest == UINT64_MAX && s.ledger == 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (statefile_parse(bad[i], strlen(bad[i]), "x", &s) != ERR_CONFIG)
            fail_msg("taken: %s", bad[i]);
}

static void another_version_is_named(void **state)
{
    (void)state;
    static const char old[] = "{\"__metadata__\":{\"kind\":\"sluice state 1\",\"epoch\":\"3\"}}";
    statefile_t s;
    assert_int_equal(statefile_parse(old, sizeof old - 1, "last.state", &s), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "another version of sluice ('sluice state 1'"));
    assert_non_null(strstr(err_text(), "new run from weights/last.safetensors"));
}

/* The ledger as the trainer writes it, in a file as the scribe reads it. */
static int file_with(const int64_t (*rows)[CHECKPOINT_LEDGER], uint32_t n)
{
    safetensors_writer_t *w;
    char count[16];
    float before[3] = {1, 2, 3};
    int64_t one[1] = {3}, shape[2] = {n, CHECKPOINT_LEDGER};
    static const char *const meta[][2] = {
        {"kind", CHECKPOINT_KIND}, {"epoch", "4"},  {"position", "17"},
        {"list_digest", "9"},      {"ranks", "1"},  {"batch", "4"},
        {"threads", "1"},          {"pending", "0"}};
    assert_int_equal(safetensors_writer_new(&w), 0);
    for (size_t i = 0; i < sizeof meta / sizeof meta[0]; i++)
        assert_int_equal(safetensors_writer_metadata(w, meta[i][0], meta[i][1]), 0);
    snprintf(count, sizeof count, "%u", n);
    assert_int_equal(safetensors_writer_metadata(w, "ledger_entries", count), 0);
    assert_int_equal(safetensors_writer_add(w, "x", "F32", one, 1, before, sizeof before), 0);
    assert_int_equal(safetensors_writer_add(w, "ledger", "I64", shape, 2, rows, n * sizeof *rows),
                     0);
    uint64_t bytes = safetensors_writer_bytes(w);
    void *image = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, image, bytes), 0);
    int fd = memfd_create("state", MFD_CLOEXEC);
    assert_int_equal(write(fd, image, bytes), bytes);
    free(image);
    safetensors_writer_free(&w);
    return fd;
}

static void the_ledger_comes_back(void **state)
{
    (void)state;
    const int64_t rows[2][CHECKPOINT_LEDGER] = {{0, 7, 8, 2, 0, 4000000000}, {0, 7, 8, 1, 1, 30}};
    statefile_t s;
    wire_ledger_t *entries;
    int fd = file_with(rows, 2);
    assert_int_equal(statefile_read(fd, "x", &s), 0);
    assert_true(s.next_epoch == 4 && s.position == 17 && s.ledger == 2);
    assert_int_equal(statefile_ledger(fd, "x", &s, &entries), 0);
    for (uint32_t i = 0; i < 2; i++) {
        const wire_ledger_t *e = &entries[i];
        assert_int_equal(wire_check(&entries[i], sizeof *e), 0);
        assert_true(e->number == i + 1 && e->split == 0 && e->sample == 7 && e->substitute == 8);
        assert_true(e->from_epoch == 2 - i && e->only == i);
        assert_true(e->from_position == (i ? 30 : 4000000000u));
    }
    free(entries);
    assert_int_equal(ftruncate(fd, (off_t)(s.header_bytes + s.ledger_end - 1)), 0);
    assert_int_equal(statefile_ledger(fd, "x", &s, &entries), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "cut short"));
    close(fd);
    const int64_t wrong[1][CHECKPOINT_LEDGER] = {{0, -7, 8, 2, 0, 1}};
    fd = file_with(wrong, 1);
    assert_int_equal(statefile_read(fd, "x", &s), 0);
    assert_int_equal(statefile_ledger(fd, "x", &s, &entries), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "substitution 1"));
    close(fd);
}

static void only_what_is_made_again_goes(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH];
    options_t o;
    rundir_t d;
    size_t bytes;
    scratch_begin(folder);
    options_default(&o);
    snprintf(o.project, sizeof o.project, "%s", folder);
    snprintf(o.name, sizeof o.name, "run");
    assert_int_equal(rundir_make(&o, &d), 0);
    assert_int_equal(trim_csv(&d, 2), 0); /* there is none */
    static const char csv[] = "epoch,time\n1,9\n2,9\n3,9\n3,";
    static const char events[] =
        "{\"time\":\"t\",\"event\":\"start\",\"run_dir\":\"x\"}\n"
        "{\"time\":\"t\",\"event\":\"epoch\",\"epoch\":2,\"seconds\":1}\n"
        "{\"time\":\"t\",\"event\":\"checkpoint\",\"path\":\"p\",\"epoch\":3}\n"
        "{\"time\":\"t\",\"event\":\"epoch\",\"epoch\":3,\"seconds\":2}\n"
        "{\"time\":\"t\",\"event\":\"end\"}\n";
    assert_int_equal(rundir_write(&d, "results.csv", csv, sizeof csv - 1, NULL, NULL), 0);
    assert_int_equal(rundir_write(&d, "events.jsonl", events, sizeof events - 1, NULL, NULL), 0);
    assert_int_equal(trim_csv(&d, 2), 0);
    assert_int_equal(trim_events(&d, 2), 0);
    char path[SCRATCH_PATH + 64], *text;
    snprintf(path, sizeof path, "%s/run/results.csv", folder);
    text = (char *)scratch_read(path, &bytes);
    assert_int_equal(bytes, 19);
    assert_memory_equal(text, "epoch,time\n1,9\n2,9\n", 19);
    free(text);
    snprintf(path, sizeof path, "%s/run/events.jsonl", folder);
    text = (char *)scratch_read(path, &bytes);
    const char *gone = strstr(events, "{\"time\":\"t\",\"event\":\"epoch\",\"epoch\":3");
    size_t head = (size_t)(gone - events), line = strcspn(gone, "\n") + 1;
    assert_int_equal(bytes, sizeof events - 1 - line);
    assert_memory_equal(text, events, head);
    assert_memory_equal(text + head, gone + line, bytes - head);
    free(text);
    rundir_close(&d);
    scratch_end(folder);
}

/* A log of any size, or none, is no reason to refuse a resume. */
static void a_log_that_is_too_large_stays(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH], path[SCRATCH_PATH + 64];
    const off_t bytes = (off_t)300 << 20; /* a hole */
    options_t o;
    rundir_t d;
    struct stat st;
    scratch_begin(folder);
    options_default(&o);
    snprintf(o.project, sizeof o.project, "%s", folder);
    snprintf(o.name, sizeof o.name, "run");
    assert_int_equal(rundir_make(&o, &d), 0);
    snprintf(path, sizeof path, "%s/run/events.jsonl", folder);
    assert_int_equal(rundir_write(&d, "events.jsonl", "{}\n", 3, NULL, NULL), 0);
    assert_int_equal(truncate(path, bytes), 0);
    assert_int_equal(trim_events(&d, 2), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size == bytes);
    rundir_close(&d);
    scratch_end(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_is_read_strictly),
        cmocka_unit_test(another_version_is_named),
        cmocka_unit_test(the_ledger_comes_back),
        cmocka_unit_test(only_what_is_made_again_goes),
        cmocka_unit_test(a_log_that_is_too_large_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
