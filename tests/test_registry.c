/* control/registry: a live run is found by its names, a dead one's file goes, the folder must be
 * ours. */
#include "control/registry.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[SCRATCH_PATH];

static int set_up(void **state)
{
    (void)state;
    scratch_begin(folder);
    return setenv("XDG_RUNTIME_DIR", folder, 1);
}

static int tear_down(void **state)
{
    (void)state;
    scratch_end(folder);
    return 0;
}

static registry_entry_t entry_of(pid_t pid, const char *run_dir)
{
    registry_entry_t e;
    memset(&e, 0, sizeof e);
    e.pid = pid;
    snprintf(e.run_dir, sizeof e.run_dir, "%s", run_dir);
    snprintf(e.endpoint, sizeof e.endpoint, "ipc://@sluice-0123");
    snprintf(e.watch, sizeof e.watch, "ipc://@sluice-0123-watch");
    snprintf(e.token, sizeof e.token, "%08x89abcdef0123456789abcdef", (unsigned)pid);
    return e;
}

/* Registers in a child, which stays until it is killed. */
static pid_t run_in_child(const char *run_dir)
{
    int pipes[2];
    char c;
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        registry_t *r;
        registry_entry_t e = entry_of(getpid(), run_dir);
        c = registry_add(&e, &r) == 0 ? 'y' : 'n';
        if (write(pipes[1], &c, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(pipes[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    close(pipes[0]);
    close(pipes[1]);
    return pid;
}

static void a_run_is_found_while_it_lives(void **state)
{
    (void)state;
    registry_entry_t e;
    char number[16], path[SCRATCH_PATH + 64];
    struct stat st;
    assert_int_equal(registry_find(NULL, &e), ERR_CONFIG);
    pid_t a = run_in_child("/data/runs/detect/first run"), b = run_in_child("/data/runs/detect/b");
    snprintf(number, sizeof number, "%d", (int)a);
    assert_int_equal(registry_find("first run", &e), 0);
    assert_true(e.pid == a && strcmp(e.run_dir, "/data/runs/detect/first run") == 0);
    assert_string_equal(e.endpoint, "ipc://@sluice-0123");
    assert_string_equal(e.watch, "ipc://@sluice-0123-watch");
    assert_string_equal(e.token, entry_of(a, "").token);
    assert_int_equal(registry_find("/data/runs/detect/b", &e), 0);
    assert_int_equal(e.pid, b);
    assert_int_equal(registry_find(number, &e), 0);
    assert_int_equal(e.pid, a);
    registry_entry_t first = e, other = entry_of(a, "");
    assert_int_equal(registry_find(NULL, &e), ERR_CONFIG); /* which of the two? */
    assert_int_equal(registry_listed(&first), 1);
    other.token[0] = 'x'; /* another run of the same pid */
    assert_int_equal(registry_listed(&other), 0);
    assert_int_equal(registry_find("c", &e), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "first run"));
    snprintf(path, sizeof path, "%s/sluice/%d.run", folder, (int)b);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);

    /* Killed: its file is a dead run's, and goes with the next look. */
    kill(a, SIGKILL);
    waitpid(a, NULL, 0);
    assert_int_equal(registry_find(NULL, &e), 0);
    assert_int_equal(e.pid, b);
    assert_int_equal(registry_listed(&first), 0);
    snprintf(path, sizeof path, "%s/sluice/%d.run", folder, (int)a);
    assert_int_equal(access(path, F_OK), -1);
    kill(b, SIGKILL);
    waitpid(b, NULL, 0);
    assert_int_equal(registry_find(NULL, &e), ERR_CONFIG);
}

typedef struct {
    int live, dead;
    pid_t dead_pid;
} counts_t;

static int count(void *user, const registry_entry_t *e, int live)
{
    counts_t *c = user;
    c->live += live;
    c->dead += !live;
    if (!live)
        c->dead_pid = e->pid;
    return 0;
}

/* sluice ps names the dead ones that it removes, and a worker removes its coordinator's entry. */
static void dead_runs_are_named_and_forgotten(void **state)
{
    (void)state;
    counts_t c = {0, 0, 0};
    pid_t a = run_in_child("/a"), b = run_in_child("/b");
    assert_int_equal(registry_forget(a), 1); /* it lives, and stays */
    assert_int_equal(registry_list(count, &c), 0);
    assert_true(c.live == 2 && c.dead == 0);
    kill(a, SIGKILL);
    waitpid(a, NULL, 0);
    c = (counts_t){0, 0, 0};
    assert_int_equal(registry_list(count, &c), 0);
    assert_true(c.live == 1 && c.dead == 1 && c.dead_pid == a);
    kill(b, SIGKILL);
    waitpid(b, NULL, 0);
    assert_int_equal(registry_forget(b), 0);
    c = (counts_t){0, 0, 0};
    assert_int_equal(registry_list(count, &c), 0);
    assert_true(c.live == 0 && c.dead == 0);
}

static void removal_leaves_nothing(void **state)
{
    (void)state;
    registry_t *r;
    registry_entry_t e = entry_of(getpid(), "/x"), found;
    char path[SCRATCH_PATH + 64];
    assert_int_equal(registry_add(&e, &r), 0);
    assert_int_equal(registry_find("x", &found), 0);
    registry_remove(&r);
    assert_null(r);
    snprintf(path, sizeof path, "%s/sluice", folder);
    assert_int_equal(rmdir(path), 0); /* empty */
}

/* A run is found by its pid until it has a directory; the folder it was started from need not be
 * there for a name that is given as the run has it. */
static void a_directory_is_added_later(void **state)
{
    (void)state;
    registry_t *r;
    registry_entry_t e = entry_of(getpid(), ""), found;
    char number[16], path[SCRATCH_PATH + 64], here[SCRATCH_PATH];
    assert_int_equal(registry_set_run_dir(NULL, "/nowhere"), 0);
    assert_int_equal(registry_add(&e, &r), 0);
    snprintf(number, sizeof number, "%d", (int)getpid());
    assert_int_equal(registry_find(number, &found), 0);
    assert_string_equal(found.run_dir, "");
    assert_int_equal(registry_find("late", &found), ERR_CONFIG);
    assert_non_null(getcwd(here, sizeof here));
    snprintf(path, sizeof path, "%.4000s/no/such/late", here);
    assert_int_equal(registry_set_run_dir(r, path), 0);
    assert_int_equal(registry_find("late", &found), 0);
    assert_string_equal(found.run_dir, path);
    assert_string_equal(found.token, e.token);
    assert_int_equal(registry_find("no/such/late", &found), 0);
    assert_int_equal(registry_find("./no/such/late/", &found), 0);
    assert_int_equal(registry_find("other/late", &found), ERR_CONFIG);
    registry_remove(&r);
    assert_int_equal(registry_find("late", &found), ERR_CONFIG);
}

/* What a start leaves that was killed before its file had a name goes when it is old enough to be
 * no start of this moment. */
static void unfinished_files_go(void **state)
{
    (void)state;
    registry_entry_t found;
    char fresh[SCRATCH_PATH], old[SCRATCH_PATH];
    snprintf(fresh, sizeof fresh, "%s", scratch_text(folder, "sluice/11.run.tmp", "pid=11\n"));
    snprintf(old, sizeof old, "%s", scratch_text(folder, "sluice/12.run.tmp", "pid=12\n"));
    chmod(scratch_folder(folder, "sluice"), 0700);
    const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, old, times, 0), 0);
    assert_int_equal(registry_find(NULL, &found), ERR_CONFIG);
    assert_int_equal(access(old, F_OK), -1);
    assert_int_equal(access(fresh, F_OK), 0);
}

static void the_folder_must_be_private(void **state)
{
    (void)state;
    char path[SCRATCH_PATH], made[SCRATCH_PATH];
    snprintf(made, sizeof made, "%.4000s/sluice", folder);
    assert_int_equal(mkdir(made, 0755), 0);
    assert_int_equal(registry_folder(path, sizeof path), ERR_ENV);
    assert_non_null(strstr(err_text(), "0700"));
    assert_int_equal(chmod(made, 0700), 0);
    assert_int_equal(registry_folder(path, sizeof path), 0);
    assert_string_equal(path, made);
}

/* What others have put there is neither waited for nor taken for a run. */
static void foreign_files_are_passed_by(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    registry_entry_t e;
    assert_int_equal(registry_folder(path, sizeof path), 0);
    char *end = path + strlen(path);
    strcpy(end, "/pipe.run");
    assert_int_equal(mkfifo(path, 0600), 0);
    strcpy(end, "/folder.run");
    assert_int_equal(mkdir(path, 0700), 0);
    strcpy(end, "/link.run");
    assert_int_equal(symlink("/etc/passwd", path), 0);
    *end = '\0';
    scratch_text(path, "12.run", "pid=12\nendpoint=\n\xFF\xFE=\n");
    scratch_text(path, "notes.txt", "mine");
    assert_int_equal(registry_find(NULL, &e), ERR_CONFIG);
    strcpy(end, "/notes.txt");
    assert_int_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_is_found_while_it_lives, set_up, tear_down),
        cmocka_unit_test_setup_teardown(dead_runs_are_named_and_forgotten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(removal_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_directory_is_added_later, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unfinished_files_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(foreign_files_are_passed_by, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_folder_must_be_private, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
