/* control/coordinator when a run is ended before it has begun: a run directory whose storage does
 * not answer, a data set that is not read to its end. The program is its own scribe and scan (links
 * of the programs' names lead here), and its own user, in a process of its own. */
#include "control/bus.h"
#include "control/coordinator.h"
#include "control/registry.h"
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
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { ANSWER_S = 60 };

static char bin[SCRATCH_PATH];

/* ---- the fakes ---- */

/* Says hello and then nothing more, whatever it is told. */
static int fake_silent(int argc, char **argv, board_kind_t kind)
{
    static worker_t w;
    if (worker_start(argc, argv, kind, &w) < 0)
        return 1;
    board_set_phase(w.page, kind == BOARD_SCAN ? BOARD_SCANNING : BOARD_IDLE);
    for (;;)
        pause();
}

/* ---- the user: asks for the status until `wanted` is in it, then presses Ctrl-C ---- */

static int ask(pid_t run, char *text, size_t bytes)
{
    registry_entry_t e;
    bus_t *bus = NULL;
    bus_message_t m;
    wire_command_t cmd;
    char which[16], identity[32];
    text[0] = '\0';
    snprintf(which, sizeof which, "%d", (int)run);
    snprintf(identity, sizeof identity, "command-%d", (int)getpid());
    if (registry_find(which, &e) < 0 || bus_connect(e.endpoint, identity, &bus) < 0)
        return -1;
    memset(&cmd, 0, sizeof cmd);
    wire_begin(&cmd, WIRE_COMMAND, sizeof cmd);
    cmd.command = WIRE_CMD_STATUS;
    cmd.argument = 1;
    snprintf(cmd.token, sizeof cmd.token, "%s", e.token);
    int got =
        bus_send(bus, NULL, &cmd, sizeof cmd) == 0 ? bus_receive(bus, ANSWER_S * 1000, &m) : -1;
    if (got == 1)
        snprintf(text, bytes, "%s", wire_text(m.frame, NULL));
    bus_close(&bus);
    return got == 1 ? 0 : -1;
}

static pid_t user_begin(const char *wanted)
{
    pid_t run = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    uint64_t until = clock_ns() + ANSWER_S * 1000000000ull;
    char text[4096];
    while (ask(run, text, sizeof text) < 0 || !strstr(text, wanted)) {
        if (clock_ns() > until) {
            fprintf(stderr, "the last status was: %s\n", text);
            kill(run, SIGINT);
            _exit(1);
        }
        usleep(20000);
    }
    kill(run, SIGINT);
    _exit(0);
}

static void user_end(pid_t user)
{
    int status;
    assert_int_equal(waitpid(user, &status, 0), user);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- the tests ---- */

typedef struct {
    char notes[4096];
} seen_t;

static void on_note(void *user, log_level_t level, const char *text)
{
    seen_t *s = user;
    size_t n = strlen(s->notes);
    snprintf(s->notes + n, sizeof s->notes - n, "%d %s\n", level, text);
}

static int run(int digest_only, const char *wanted, seen_t *seen)
{
    static coordinator_config_t config;
    const char *words[] = {"data=/data/data.yaml", "device=cpu"};
    memset(&config, 0, sizeof config);
    memset(seen, 0, sizeof *seen);
    options_default(&config.options);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        assert_int_equal(options_set(&config.options, words[i]), 0);
    config.bin_dir = bin;
    config.digest_only = digest_only;
    config.view = (coordinator_view_t){.user = seen, .note = on_note};
    pid_t user = user_begin(wanted);
    int rc = coordinator_run(&config);
    user_end(user);
    return rc;
}

/* Nothing is written yet, so nobody waits for the storage; and there is nothing to go on from, so
 * this is no stop after a checkpoint. */
static void storage_that_does_not_answer(void **state)
{
    (void)state;
    seen_t seen;
    assert_int_equal(run(0, "opening the run directory", &seen), ERR_FAILED);
    assert_non_null(strstr(err_text(), "stopped by Ctrl-C before training began"));
}

/* The scan is killed by us: that is no failure of its own. */
static void a_scan_that_is_not_over(void **state)
{
    (void)state;
    seen_t seen;
    assert_int_equal(run(1, "scanning", &seen), ERR_FAILED);
    assert_string_equal(err_text(), "stopped by Ctrl-C");
    assert_null(strstr(seen.notes, "signal 9"));
}

int main(int argc, char **argv)
{
    char self[SCRATCH_PATH], path[SCRATCH_PATH + 32];
    const char *base = strrchr(argv[0], '/');
    if (base && strcmp(base, "/sluice-scribe") == 0)
        return fake_silent(argc, argv, BOARD_SCRIBE);
    if (base && strcmp(base, "/sluice-loader") == 0)
        return fake_silent(argc, argv, BOARD_SCAN);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 1;
    self[n] = '\0';
    scratch_begin(bin);
    setenv("XDG_RUNTIME_DIR", bin, 1);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", bin, i ? "sluice-loader" : "sluice-scribe");
        if (symlink(self, path) != 0)
            return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(storage_that_does_not_answer),
        cmocka_unit_test(a_scan_that_is_not_over),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end(bin);
    return rc;
}
