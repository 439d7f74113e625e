/* control/coordinator with workers that misbehave. The program is its own scan and loader: links of
 * the programs' names lead here, and FAKE in the environment says what the loader does. */
#include "control/coordinator.h"
#include "control/worker.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { TRAIN = 21, VAL = 3 };

/* ---- the fakes ---- */

static int fake_scan(int argc, char **argv)
{
    worker_t w;
    catalog_builder_t *b;
    int fd = -1;
    if (worker_start(argc, argv, BOARD_SCAN, &w) < 0)
        return 1;
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], "--catalog-fd") == 0)
            fd = atoi(argv[i + 1]);
    if (strcmp(getenv("FAKE"), "scan-error") == 0) {
        worker_finish(&w, ERR_DATA, "there are no images here");
        return 3;
    }
    catalog_builder_new(&b);
    catalog_builder_class(b, "scratch");
    catalog_sample_t facts = {.width = 32, .height = 32, .orientation = 1};
    for (int i = 0; i < TRAIN + VAL; i++) {
        char path[64];
        snprintf(path, sizeof path, "/data/%02d.jpg", i);
        catalog_builder_sample(b, i < TRAIN ? CATALOG_TRAIN : CATALOG_VAL, path, &facts, NULL, 0,
                               NULL, 0);
    }
    catalog_builder_issue(b, CATALOG_DROPPED, CATALOG_TRAIN, "/data/broken.jpg", "not an image");
    int rc = catalog_builder_write(b, fd);
    catalog_builder_free(&b);
    worker_finish(&w, rc, rc < 0 ? err_text() : "");
    return 0;
}

static wire_ledger_t heard[2]; /* by `only` */

static int on_message(void *user, const bus_message_t *m)
{
    (void)user;
    wire_ledger_t e;
    if (m->type != WIRE_LEDGER)
        return 0;
    memcpy(&e, m->frame, sizeof e);
    heard[e.only != 0] = e;
    return 0;
}

static int fill_one(worker_t *w)
{
    for (uint32_t r = 0; r < w->plan.ranks; r++) {
        uint64_t seq = ring_tail(w->rings[r]);
        uint32_t cell = 0;
        if (ring_find_empty(w->rings[r], &seq, &cell) != 0)
            continue;
        plan_batch_t b = plan_locate(&w->plan, seq);
        if (b.epoch >= w->epochs_announced || !ring_claim(w->rings[r], seq, cell, w->incarnation))
            continue;
        ring_cell_meta_t *m = ring_meta(w->rings[r], seq, cell);
        m->phase = (uint32_t)b.phase;
        m->epoch = b.epoch;
        m->step = b.step;
        m->position = plan_position(&w->plan, &b, r, cell);
        m->sample = (uint32_t)m->position;
        m->digest = m->position * 1000003 + b.epoch;
        if (strcmp(getenv("FAKE"), "misplaced") == 0 && m->position == 6)
            m->position++;
        ring_commit(w->rings[r], seq, cell, w->incarnation);
        return 1;
    }
    return 0;
}

/* Reports sample 3, and insists on being told what to read in its place. */
static int report_bad(worker_t *w)
{
    wire_bad_sample_t bad;
    memset(&bad, 0, sizeof bad);
    wire_begin(&bad, WIRE_BAD_SAMPLE, sizeof bad);
    bad.split = CATALOG_TRAIN;
    bad.sample = 3;
    bad.position = 5;
    snprintf(bad.reason, sizeof bad.reason, "cut short");
    worker_send(w, &bad, sizeof bad);
    uint64_t until = clock_ns() + 60000000000ull;
    while (heard[1].number == 0 && clock_ns() < until)
        if (worker_poll(w, 50, on_message, NULL) < 0)
            break;
    /* This cell by name, and all from two windows of two batches of four on: nothing of it can be
     * claimed yet, for nothing has been made. */
    return heard[0].number == 1 && heard[0].sample == 3 && heard[0].substitute == 4 &&
           heard[0].from_epoch == 0 && heard[0].from_position == 16 && heard[1].number == 2 &&
           heard[1].sample == 3 && heard[1].substitute == 4 && heard[1].from_epoch == 0 &&
           heard[1].from_position == 5;
}

static int fake_loader(int argc, char **argv)
{
    static worker_t w;
    const char *fake = getenv("FAKE");
    if (worker_start(argc, argv, BOARD_LOADER, &w) < 0)
        return 1;
    if (strcmp(fake, "crash") == 0) {
        fprintf(stderr, "these are my last words\n");
        raise(SIGABRT);
    }
    if (strcmp(fake, "error") == 0) {
        worker_finish(&w, ERR_ENV, "the disk is upside down");
        return 4;
    }
    if (strcmp(fake, "disagree") == 0 && w.index == 1)
        w.plan.seed++;
    if (strcmp(fake, "bad") == 0 && !report_bad(&w)) {
        worker_finish(&w, ERR_FAILED, "the ledger's answer did not come or is wrong");
        return 1;
    }
    /* With one that agrees and works, the run may be over before the other has come. */
    const int idle = strcmp(fake, "disagree") == 0;
    int rc = 0, made = 0;
    while (rc == 0 && !w.stop) {
        int any = idle ? 0 : fill_one(&w);
        made += any;
        atomic_fetch_add_explicit(&w.page->cells_done, (uint64_t)any, memory_order_relaxed);
        /* Dies with a cell claimed and not done; others have to take it. */
        if (strcmp(fake, "mortal") == 0 && made >= 4 && any) {
            uint64_t seq = ring_tail(w.rings[0]);
            uint32_t cell = 0;
            if (ring_find_empty(w.rings[0], &seq, &cell) == 0)
                ring_claim(w.rings[0], seq, cell, w.incarnation);
            raise(SIGKILL);
        }
        rc = worker_poll(&w, any ? 0 : 5, on_message, NULL);
    }
    worker_finish(&w, 0, "");
    return 0;
}

/* ---- the tests ---- */

typedef struct {
    char notes[16384];
    uint32_t batches, validation, samples[64];
    int refuse_batches;
    coordinator_summary_t summary;
} seen_t;

static void on_note(void *user, log_level_t level, const char *text)
{
    seen_t *s = user;
    size_t n = strlen(s->notes);
    snprintf(s->notes + n, sizeof s->notes - n, "%d %s\n", level, text);
}

static int on_batch(void *user, const coordinator_batch_t *b)
{
    seen_t *s = user;
    s->batches++;
    s->validation += b->validation != 0;
    return s->refuse_batches ? err_set(ERR_ENV, "nobody reads the digests") : 0;
}

static void on_end(void *user, const coordinator_summary_t *summary)
{
    ((seen_t *)user)->summary = *summary;
}

static char bin[SCRATCH_PATH];

static int run(const char *fake, const char *device, seen_t *seen)
{
    static coordinator_config_t config;
    const char *words[] = {
        "data=/data/data.yaml", "imgsz=32", "batch=4", "epochs=2", "workers=2", device,
        "ring_depth=2"};
    int refuse = seen->refuse_batches;
    memset(&config, 0, sizeof config);
    memset(seen, 0, sizeof *seen);
    seen->refuse_batches = refuse;
    options_default(&config.options);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_int_equal(options_set(&config.options, words[i]), 0);
    setenv("FAKE", fake, 1);
    config.bin_dir = bin;
    config.digest_only = 1;
    config.view =
        (coordinator_view_t){.user = seen, .note = on_note, .batch = on_batch, .end = on_end};
    return coordinator_run(&config);
}

static void all_batches_come_in_order(void **state)
{
    (void)state;
    seen_t one = {0}, two = {0}, mortal = {0};
    assert_int_equal(run("good", "device=cpu", &one), 0);
    assert_int_equal(one.batches, 2 * (6 + 1)); /* 21 images in batches of 4, 3 in one of 8 */
    assert_int_equal(one.validation, 2);
    assert_non_null(strstr(one.notes, "/data/broken.jpg: not an image"));
    assert_int_equal(run("good", "device=cpu,cpu", &two), 0);
    assert_int_equal(two.batches, 2 * (12 + 1)); /* the second rank's validation batch is empty */
    assert_true(one.summary.stream != 0 && one.summary.stream == two.summary.stream);
    assert_int_equal(run("mortal", "device=cpu", &mortal), 0);
    assert_true(mortal.batches == one.batches && mortal.summary.stream == one.summary.stream);
    assert_non_null(strstr(mortal.notes, "signal 9"));
}

static void an_error_ends_the_run_with_its_status(void **state)
{
    (void)state;
    seen_t seen = {0};
    assert_int_equal(run("scan-error", "device=cpu", &seen), ERR_DATA);
    assert_string_equal(err_text(), "there are no images here");
    assert_int_equal(run("error", "device=cpu", &seen), ERR_ENV);
    assert_non_null(strstr(err_text(), "loader-"));
    assert_non_null(strstr(err_text(), "the disk is upside down"));
}

static void who_disagrees_is_named(void **state)
{
    (void)state;
    seen_t seen = {0};
    assert_int_equal(run("disagree", "device=cpu", &seen), ERR_FAILED);
    assert_non_null(strstr(err_text(), "loader-1 does not agree"));
}

static void endless_deaths_end_the_run(void **state)
{
    (void)state;
    seen_t seen = {0};
    assert_int_equal(run("crash", "device=cpu", &seen), ERR_FAILED);
    assert_non_null(strstr(err_text(), "loaders keep dying"));
    assert_non_null(strstr(err_text(), "signal 6"));
    assert_non_null(strstr(err_text(), "these are my last words"));
    assert_int_equal(seen.batches, 0);
}

static void a_misplaced_cell_is_noticed(void **state)
{
    (void)state;
    seen_t seen = {0};
    assert_int_equal(run("misplaced", "device=cpu", &seen), ERR_FAILED);
    assert_non_null(strstr(err_text(), "position 7"));
}

static void a_bad_sample_is_replaced_and_told_once(void **state)
{
    (void)state;
    seen_t seen = {0};
    /* Both loaders report it. */
    assert_int_equal(run("bad", "device=cpu", &seen), 0);
    const char *first = strstr(seen.notes, "/data/03.jpg: cut short");
    assert_non_null(first);
    assert_null(strstr(first + 1, "/data/03.jpg"));
}

static void digests_that_nobody_reads_end_the_run(void **state)
{
    (void)state;
    seen_t seen = {.refuse_batches = 1};
    assert_int_equal(run("good", "device=cpu", &seen), ERR_ENV);
    assert_non_null(strstr(err_text(), "nobody reads the digests"));
    assert_int_equal(seen.batches, 1);
}

static void a_missing_program_is_named(void **state)
{
    (void)state;
    seen_t seen = {0};
    char path[SCRATCH_PATH + 32], moved[SCRATCH_PATH + 32];
    snprintf(path, sizeof path, "%s/sluice-loader", bin);
    snprintf(moved, sizeof moved, "%s/moved", bin);
    assert_int_equal(rename(path, moved), 0);
    assert_int_equal(run("good", "device=cpu", &seen), ERR_ENV);
    assert_non_null(strstr(err_text(), "did not start: exec "));
    assert_non_null(strstr(err_text(), "/sluice-loader: No such file"));
    assert_int_equal(rename(moved, path), 0);
}

int main(int argc, char **argv)
{
    char self[SCRATCH_PATH], path[SCRATCH_PATH + 32];
    const char *base = strrchr(argv[0], '/');
    if (base && strcmp(base, "/sluice-loader") == 0) {
        for (int i = 1; i < argc; i++)
            if (strcmp(argv[i], "--scan") == 0)
                return fake_scan(argc, argv);
        return fake_loader(argc, argv);
    }
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 1;
    self[n] = '\0';
    scratch_begin(bin);
    setenv("XDG_RUNTIME_DIR", bin, 1);
    snprintf(path, sizeof path, "%s/sluice-loader", bin);
    if (symlink(self, path) != 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_batches_come_in_order),
        cmocka_unit_test(an_error_ends_the_run_with_its_status),
        cmocka_unit_test(who_disagrees_is_named),
        cmocka_unit_test(endless_deaths_end_the_run),
        cmocka_unit_test(a_misplaced_cell_is_noticed),
        cmocka_unit_test(a_bad_sample_is_replaced_and_told_once),
        cmocka_unit_test(digests_that_nobody_reads_end_the_run),
        cmocka_unit_test(a_missing_program_is_named),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end(bin);
    return rc;
}
