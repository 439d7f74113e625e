/* tools/scribe, rundir and statefile: names and locks, whole files or none, whole lines, resumes.
 */
#include "shm/err.h"
#include "tests/scratch.h"
#include "tools/rundir.h"
#include "tools/rundir_lock.h"
#include "tools/scribe.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[SCRATCH_PATH];
static char path_text[2 * SCRATCH_PATH];

static int set_up(void **state)
{
    (void)state;
    scratch_begin(folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_end(folder);
    return 0;
}

static options_t options_of(const char *name)
{
    options_t o;
    options_default(&o);
    snprintf(o.project, sizeof o.project, "%.4000s/runs/detect", folder);
    snprintf(o.name, sizeof o.name, "%s", name);
    return o;
}

static const char *in(const rundir_t *d, const char *name)
{
    snprintf(path_text, sizeof path_text, "%s/%s", d->path, name);
    return path_text;
}

static void assert_content(const rundir_t *d, const char *name, const char *expected)
{
    size_t n;
    uint8_t *got = scratch_read(in(d, name), &n);
    assert_non_null(got);
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(got, expected, n);
    free(got);
}

static const char *last_part(const rundir_t *d)
{
    return strrchr(d->path, '/') + 1;
}

static int refuse(void *user)
{
    *(int *)user = 1;
    return err_set(ERR_FAILED, "refused");
}

/* A check during which the process is told to end: it looks for the temporary name before and
 * after. */
static int leave_now(void *user)
{
    const rundir_t *d = user;
    int there = access(in(d, ".one.sluice-tmp"), F_OK) == 0;
    rundir_farewell(user);
    int gone = access(in(d, ".one.sluice-tmp"), F_OK) != 0;
    _exit(there && gone ? 0 : 2);
}

static void names_count_up(void **state)
{
    (void)state;
    options_t o = options_of("bolts and nuts");
    rundir_t a, b, c;
    assert_int_equal(rundir_make(&o, &a), 0);
    assert_int_equal(rundir_make(&o, &b), 0);
    assert_int_equal(rundir_make(&o, &c), 0);
    assert_string_equal(last_part(&a), "bolts and nuts");
    assert_string_equal(last_part(&b), "bolts and nuts-2");
    assert_string_equal(last_part(&c), "bolts and nuts-3");
    assert_true(rundir_free_bytes(&a) > 0);
    rundir_close(&b);
    o.exist_ok = 1;
    assert_int_equal(rundir_make(&o, &b), ERR_ENV); /* the first is locked */
    assert_non_null(strstr(err_text(), "in use by another run"));
    rundir_close(&a);
    assert_int_equal(access(in(&a, ".sluice.lock"), F_OK), -1);
    assert_int_equal(rundir_make(&o, &a), 0);
    assert_string_equal(last_part(&a), "bolts and nuts");
    rundir_close(&a);
    rundir_close(&c);
    snprintf(o.name, sizeof o.name, "../up");
    assert_int_equal(rundir_make(&o, &a), ERR_CONFIG);
}

static void nothing_lies_in_the_folder_but_on_shared_storage(void **state)
{
    (void)state;
    options_t o = options_of("x");
    rundir_t a;
    assert_int_equal(rundir_make(&o, &a), 0);
    assert_int_equal(access(in(&a, ".sluice.lock"), F_OK) == 0, rundir_shared(a.fd));
    assert_int_equal(rundir_sweep(a.path, 0), ERR_ENV); /* it is ours */
    rundir_close(&a);
}

/* As a scribe that was killed leaves it where there are no files without names. */
static void what_a_killed_scribe_left_is_swept(void **state)
{
    (void)state;
    options_t o = options_of("x");
    rundir_t a;
    assert_int_equal(rundir_make(&o, &a), 0);
    rundir_close(&a);
    scratch_text(a.path, ".sluice.lock", "pid 1 on a machine\n");
    scratch_text(a.path, "weights/.last.safetensors.sluice-tmp", "half");
    scratch_text(a.path, "events.jsonl", "{}\n");
    scratch_text(a.path, "args.yaml", "epochs: 1\n");
    assert_int_equal(rundir_sweep(a.path, 1), 0);
    assert_int_equal(access(in(&a, ".sluice.lock"), F_OK), -1);
    assert_int_equal(access(in(&a, "weights/.last.safetensors.sluice-tmp"), F_OK), -1);
    assert_int_equal(access(in(&a, "events.jsonl"), F_OK), 0); /* it had begun */
    assert_int_equal(unlink(in(&a, "args.yaml")), 0);
    assert_int_equal(rmdir(in(&a, "weights")), 0);
    assert_int_equal(rundir_sweep(a.path, 0), 0);
    assert_int_equal(access(a.path, F_OK), 0);
    assert_int_equal(rundir_sweep(a.path, 1), 0);
    assert_int_equal(access(a.path, F_OK), -1);
}

/* As on file systems that have no files without names. */
static void names_that_are_in_the_making_go_with_a_farewell(void **state)
{
    (void)state;
    options_t o = options_of("x");
    rundir_t a;
    int asked = 0;
    assert_int_equal(rundir_make(&o, &a), 0);
    a.plain_names = 1;
    assert_int_equal(rundir_write(&a, "one", "1", 1, NULL, NULL), 0);
    assert_int_equal(rundir_write(&a, "one", "2", 1, refuse, &asked), ERR_FAILED);
    assert_content(&a, "one", "1");
    assert_int_equal(access(in(&a, ".one.sluice-tmp"), F_OK), -1);
    pid_t pid = fork();
    if (pid == 0) {
        /* In the middle of a write: the check is called before the name is given. */
        rundir_write(&a, "one", "3", 1, leave_now, &a);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_content(&a, "one", "1");
    assert_int_equal(access(in(&a, ".one.sluice-tmp"), F_OK), -1);
    rundir_close(&a);
}

static void an_impossible_place_is_named(void **state)
{
    (void)state;
    options_t o = options_of("x");
    rundir_t a;
    scratch_text(folder, "runs", "a file where a folder must be");
    assert_int_equal(rundir_make(&o, &a), ERR_ENV);
    assert_non_null(strstr(err_text(), "/runs/detect"));
    assert_non_null(strstr(err_text(), "project="));
}

static void a_file_is_whole_or_not_there(void **state)
{
    (void)state;
    options_t o = options_of("x");
    rundir_t d;
    struct stat a, b;
    int asked = 0;
    assert_int_equal(rundir_make(&o, &d), 0);
    assert_int_equal(rundir_write(&d, "weights/last.safetensors", "first", 5, NULL, NULL), 0);
    assert_int_equal(
        rundir_copy(&d, "weights/last.safetensors", "weights/best.safetensors", "first", 5), 0);
    assert_int_equal(rundir_write(&d, "weights/last.safetensors", "second", 6, refuse, &asked),
                     ERR_FAILED);
    assert_int_equal(asked, 1);
    assert_content(&d, "weights/last.safetensors", "first");
    assert_int_equal(access(in(&d, "weights/.last.safetensors.sluice-tmp"), F_OK), -1);
    assert_int_equal(rundir_write(&d, "weights/last.safetensors", "second", 6, NULL, NULL), 0);
    assert_content(&d, "weights/last.safetensors", "second");
    assert_content(&d, "weights/best.safetensors", "first");
    /* The same bytes under both names, again: a link to itself is no obstacle. */
    assert_int_equal(
        rundir_copy(&d, "weights/last.safetensors", "weights/best.safetensors", "second", 6), 0);
    assert_int_equal(
        rundir_copy(&d, "weights/last.safetensors", "weights/best.safetensors", "second", 6), 0);
    assert_content(&d, "weights/best.safetensors", "second");
    assert_int_equal(stat(in(&d, "weights/last.safetensors"), &a), 0);
    assert_int_equal(stat(in(&d, "weights/best.safetensors"), &b), 0);
    assert_int_equal(a.st_ino, b.st_ino);
    const char *outside[] = {"../x", "/etc/x", "", "a/../../x", "weights/"};
    for (int i = 0; i < 5; i++)
        assert_true(rundir_write(&d, outside[i], "x", 1, NULL, NULL) < 0);
    rundir_close(&d);
}

static void leftovers_go_with_the_next_start(void **state)
{
    (void)state;
    options_t o = options_of("x");
    rundir_t d;
    assert_int_equal(rundir_make(&o, &d), 0);
    rundir_close(&d);
    scratch_text(d.path, "weights/.last.safetensors.sluice-tmp", "half");
    scratch_text(d.path, ".args.yaml.sluice-tmp", "half");
    scratch_text(d.path, "weights/mine.tmp", "the user's");
    o.exist_ok = 1;
    assert_int_equal(rundir_make(&o, &d), 0);
    assert_int_equal(access(in(&d, "weights/.last.safetensors.sluice-tmp"), F_OK), -1);
    assert_int_equal(access(in(&d, ".args.yaml.sluice-tmp"), F_OK), -1);
    assert_content(&d, "weights/mine.tmp", "the user's");
    rundir_close(&d);
}

static void growing_files_have_whole_lines(void **state)
{
    (void)state;
    options_t o = options_of("x");
    wire_run_info_t info;
    scribe_t s;
    char *yaml;
    size_t n;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_true(info.resumed == 0 && yaml == NULL);
    assert_int_equal(scribe_args(&s, "epochs: 1\n", 10), 0);
    assert_int_equal(scribe_event(&s, "{\"a\":1}", 7), 0);
    assert_int_equal(scribe_event(&s, "{\"b\":2}\n", 8), 0);
    assert_true(scribe_event(&s, "{\n}", 3) < 0);
    assert_int_equal(scribe_csv(&s, "1,2", 3), 0);
    assert_int_equal(scribe_csv(&s, "2,3", 3), 0);
    assert_int_equal(scribe_log(&s, "loader-3", "words", 5), 0);
    assert_true(scribe_log(&s, "../x", "words", 5) < 0);
    assert_content(&s.dir, "events.jsonl", "{\"a\":1}\n{\"b\":2}\n");
    assert_content(&s.dir, "logs/loader-3.log", "words\n");
    char expected[1024];
    snprintf(expected, sizeof expected,
             "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),"
             "metrics/recall(B),metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/cls_loss,"
             "val/dfl_loss,lr/pg0,lr/pg1,lr/pg2\n1,2\n2,3\n");
    assert_content(&s.dir, "results.csv", expected);
    /* A run of many processes holds no descriptor for each: the lowest free one stays. */
    int lowest = dup(0);
    close(lowest);
    for (int i = 0; i < 69; i++) {
        char name[32];
        snprintf(name, sizeof name, "loader-%d", i);
        assert_int_equal(scribe_log(&s, name, "x", 1), 0);
    }
    assert_content(&s.dir, "logs/loader-68.log", "x\n");
    int after = dup(0);
    close(after);
    assert_int_equal(after, lowest);
    scribe_close(&s);
    /* A line cut short by a death is cut off. */
    scratch_text(s.dir.path, "events.jsonl", "{\"a\":1}\n{\"cut");
    o.exist_ok = 1;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_int_equal(scribe_event(&s, "{\"c\":3}", 7), 0);
    assert_content(&s.dir, "events.jsonl", "{\"a\":1}\n{\"c\":3}\n");
    scribe_close(&s);
}

static void a_run_that_never_began_leaves_nothing(void **state)
{
    (void)state;
    options_t o = options_of("x");
    wire_run_info_t info;
    scribe_t s;
    char *yaml;
    size_t n;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_int_equal(scribe_event(&s, "{}", 2), 0);
    assert_int_equal(scribe_log(&s, "scan", "words", 5), 0);
    scribe_close(&s);
    assert_int_equal(access(s.dir.path, F_OK), -1);
    /* One that was there before stays, with what was in it. */
    scratch_text(s.dir.path, "notes.txt", "mine");
    o.exist_ok = 1;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    scribe_close(&s);
    assert_content(&s.dir, "notes.txt", "mine");
}

static void a_snapshot_is_checked(void **state)
{
    (void)state;
    options_t o = options_of("x");
    wire_run_info_t info;
    wire_saved_t saved;
    wire_snapshot_t m;
    scribe_t s;
    char *yaml;
    size_t n;
    unsigned char *base;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    s.snapshot_fd = memfd_create("test", MFD_CLOEXEC);
    assert_int_equal(ftruncate(s.snapshot_fd, 20000), 0);
    base = mmap(NULL, 20000, PROT_READ | PROT_WRITE, MAP_SHARED, s.snapshot_fd, 0);
    assert_true(base != MAP_FAILED);
    memcpy(base + 5001, "the image of some weights", 25);
    memset(&m, 0, sizeof m);
    m.epoch = 4;
    m.slot = 1;
    m.offset = 5001;
    m.length = 25;
    m.checksum = wire_checksum("the image of some weights", 25);
    snprintf(m.path, sizeof m.path, "weights/last.safetensors");
    snprintf(m.copy_to, sizeof m.copy_to, "weights/best.safetensors");
    scribe_snapshot(&s, &m, &saved);
    assert_int_equal(wire_check(&saved, sizeof saved), 0);
    assert_int_equal(saved.status, 0);
    assert_true(saved.epoch == 4 && saved.slot == 1);
    assert_string_equal(saved.path, "weights/last.safetensors");
    assert_content(&s.dir, "weights/last.safetensors", "the image of some weights");
    assert_content(&s.dir, "weights/best.safetensors", "the image of some weights");
    /* An image that is not what its sum says leaves the old file. */
    memcpy(base + 5001, "THE", 3);
    scribe_snapshot(&s, &m, &saved);
    assert_int_equal(saved.status, ERR_FAILED);
    assert_non_null(strstr(saved.text, "checksum"));
    assert_content(&s.dir, "weights/last.safetensors", "the image of some weights");
    /* Places outside the memory are refused, also those that overflow. */
    const uint64_t at[] = {19990, 20001, UINT64_MAX - 3, 0, 0};
    const uint64_t length[] = {11, 1, 25, UINT64_MAX, 0};
    for (int i = 0; i < 5; i++) {
        m.offset = at[i];
        m.length = length[i];
        scribe_snapshot(&s, &m, &saved);
        assert_true(saved.status < 0);
    }
    munmap(base, 20000);
    close(s.snapshot_fd);
    scribe_close(&s);
}

/* What the metadata of a state must say besides the epoch. */
#define STATE_REST                                                                                 \
    "\"kind\":\"sluice state "                                                                     \
    "3\",\"position\":\"0\",\"list_digest\":\"1\",\"ranks\":\"1\",\"batch\":\"8\","                \
    "\"threads\":\"1\",\"pending\":\"0\",\"ledger_entries\":\"0\""

/* A safetensors file of a header alone. */
static void write_state(rundir_t *d, const char *header)
{
    char file[512] = {0};
    size_t n = strlen(header);
    file[0] = (char)(n & 255);
    file[1] = (char)(n >> 8);
    memcpy(file + 8, header, n);
    assert_int_equal(rundir_write(d, "weights/last.state.safetensors", file, 8 + n, NULL, NULL), 0);
}

static void a_resume_finds_where_to_start(void **state)
{
    (void)state;
    options_t o = options_of("x");
    wire_run_info_t info;
    scribe_t s;
    char *yaml;
    size_t n;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_int_equal(scribe_args(&s, "epochs: 9\n", 10), 0);
    for (int i = 1; i <= 4; i++) {
        char row[8];
        snprintf(row, sizeof row, "%d,9", i);
        scribe_csv(&s, row, strlen(row));
    }
    scribe_close(&s);
    snprintf(o.resume, sizeof o.resume, "%.*s", (int)sizeof o.resume - 1, s.dir.path);
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "first checkpoint"));

    rundir_t d;
    options_t again = options_of("x");
    again.exist_ok = 1;
    assert_int_equal(rundir_make(&again, &d), 0);
    write_state(&d, "{\"__metadata__\":{\"epoch\":\"3\",\"finished\":\"0\"," STATE_REST "}}");
    assert_int_equal(rundir_write(&d, "args.yaml", "epochs: 7\n", 10, NULL, NULL), 0);
    rundir_close(&d);
    snprintf(o.resume, sizeof o.resume, "%.4000s/weights/last.state.safetensors", d.path);
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_true(info.resumed && info.next_epoch == 3 && !info.finished);
    assert_string_equal(info.run_dir, d.path);
    assert_string_equal(yaml, "epochs: 7\n");
    free(yaml);
    size_t bytes;
    uint8_t *csv = scratch_read(in(&s.dir, "results.csv"), &bytes);
    assert_non_null(csv);
    /* The row of the epoch that is done again is gone. */
    assert_memory_equal(csv + bytes - 4, "3,9\n", 4);
    free(csv);
    scribe_close(&s);

    assert_int_equal(rundir_make(&again, &d), 0);
    write_state(&d, "{\"__metadata__\":{\"epoch\":\"7\",\"finished\":\"1\"," STATE_REST "}}");
    rundir_close(&d);
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_true(info.finished);
    free(yaml);
    scribe_close(&s);
}

/* Nothing is written into a folder that is not a run's, whatever resume= names. */
static void a_resume_of_something_else_is_refused(void **state)
{
    (void)state;
    rundir_t d;
    char file[SCRATCH_PATH + 32];
    snprintf(file, sizeof file, "%s/plans/notes.txt", folder);
    scratch_text(folder, "plans/notes.txt", "mine");
    scratch_text(folder, "plans/weights/last.state.safetensors", "mine");
    assert_int_equal(rundir_resume(file, &d), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "last.state.safetensors in its weights folder"));
    snprintf(file, sizeof file, "%s/plans", folder);
    assert_int_equal(rundir_resume(file, &d), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "no args.yaml"));
    strcat(file, "/weights/last.state.safetensors");
    assert_int_equal(rundir_resume(file, &d), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "no args.yaml"));
    snprintf(file, sizeof file, "%s/plans/.sluice.lock", folder);
    assert_int_equal(access(file, F_OK), -1);
    /* A pipe in a file's place is no file. */
    scratch_text(folder, "plans/args.yaml", "epochs: 1\n");
    snprintf(file, sizeof file, "%s/plans", folder);
    assert_int_equal(rundir_resume(file, &d), 0);
    assert_int_equal(unlink(in(&d, "args.yaml")), 0);
    assert_int_equal(mkfifo(in(&d, "args.yaml"), 0600), 0);
    char *text;
    size_t n;
    assert_int_equal(rundir_read(&d, "args.yaml", 100, &text, &n), ERR_CONFIG);
    rundir_close(&d);
}

/* exist_ok: rows of the old run do not go on in the new one, and it cannot be resumed as the old.
 */
static void a_new_run_in_an_old_ones_folder(void **state)
{
    (void)state;
    options_t o = options_of("x");
    wire_run_info_t info;
    scribe_t s;
    char *yaml;
    size_t n;
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_int_equal(scribe_args(&s, "epochs: 9\n", 10), 0);
    assert_int_equal(scribe_csv(&s, "1,9", 3), 0);
    write_state(&s.dir, "{\"__metadata__\":{\"epoch\":\"1\",\"finished\":\"0\"," STATE_REST "}}");
    assert_int_equal(rundir_write(&s.dir, "weights/best.safetensors", "best", 4, NULL, NULL), 0);
    scribe_close(&s);
    o.exist_ok = 1;
    /* A start that fails leaves the old run as it was. */
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    scribe_close(&s);
    assert_int_equal(access(in(&s.dir, "weights/last.state.safetensors"), F_OK), 0);
    assert_int_equal(access(in(&s.dir, "results.csv"), F_OK), 0);
    assert_int_equal(scribe_open(&s, &o, &info, &yaml, &n), 0);
    assert_int_equal(scribe_args(&s, "epochs: 3\n", 10), 0);
    assert_int_equal(access(in(&s.dir, "weights/last.state.safetensors"), F_OK), -1);
    assert_int_equal(access(in(&s.dir, "results.csv"), F_OK), -1);
    assert_content(&s.dir, "weights/best.safetensors", "best");
    scribe_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_count_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_lies_in_the_folder_but_on_shared_storage, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_a_killed_scribe_left_is_swept, set_up, tear_down),
        cmocka_unit_test_setup_teardown(names_that_are_in_the_making_go_with_a_farewell, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(an_impossible_place_is_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_is_whole_or_not_there, set_up, tear_down),
        cmocka_unit_test_setup_teardown(leftovers_go_with_the_next_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(growing_files_have_whole_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_run_that_never_began_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_snapshot_is_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_resume_finds_where_to_start, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_resume_of_something_else_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_new_run_in_an_old_ones_folder, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
