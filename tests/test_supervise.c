/* control/supervise: what a child gets, how a failed start and an end are told, and that a parent's
 * death takes children along. The program starts itself as the child: argv[1] says what to do. */
#include "control/supervise.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { WAIT_MS = 60000 };

static char self[4096];

static const char *argument(int argc, char **argv, const char *name)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return NULL;
}

/* Prints what it was given: session, parent, descriptors, environment, signals. */
static int child_report(int argc, char **argv)
{
    int given = atoi(argument(argc, argv, "--given")),
        held_back = atoi(argument(argc, argv, "--held"));
    int deathsig = 0;
    struct sigaction pipe_action, hup_action;
    sigset_t mask;
    prctl(PR_GET_PDEATHSIG, &deathsig);
    sigaction(SIGPIPE, NULL, &pipe_action);
    sigaction(SIGHUP, NULL, &hup_action);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    fprintf(stderr,
            "session %d parent %d death %d given %d held %d env %s %s pipe %d hup %d int %d\n",
            getsid(0) == getpid(), getppid() == atoi(argument(argc, argv, "--parent")),
            deathsig == SIGKILL, fcntl(given, F_GETFD) >= 0,
            fcntl(held_back, F_GETFD) < 0 && errno == EBADF, getenv("SUPERVISE_A"),
            getenv("SUPERVISE_B"), pipe_action.sa_handler == SIG_DFL,
            hup_action.sa_handler == SIG_IGN, sigismember(&mask, SIGINT));
    char c;
    return read(0, &c, 1) == 0 ? 3 : 4; /* standard input is /dev/null */
}

/* Waits for the lifeline's end alone: the death signal is put off first. */
static int child_lifeline(int argc, char **argv)
{
    prctl(PR_SET_PDEATHSIG, 0);
    struct pollfd p = {.fd = atoi(argument(argc, argv, "--lifeline")), .events = POLLIN};
    if (write(2, "up\n", 3) != 3)
        return 1;
    return poll(&p, 1, WAIT_MS) > 0 ? 0 : 1;
}

static int child_sleep(void)
{
    if (write(2, "up\n", 3) != 3)
        return 1;
    sleep(300);
    return 0;
}

static int wait_end(supervise_child_t *c)
{
    uint64_t until = clock_ns() + WAIT_MS * 1000000ull;
    while (!supervise_ended(c) && clock_ns() < until) {
        struct pollfd p = {.fd = c->pidfd, .events = POLLIN};
        poll(&p, 1, c->pidfd >= 0 ? 1000 : 20);
    }
    return c->ended;
}

/* All that it wrote, once it has written a line. */
static void read_line(supervise_child_t *c, char *text, size_t bytes)
{
    size_t n = 0;
    text[0] = '\0';
    while (!strchr(text, '\n')) {
        struct pollfd p = {.fd = c->errors, .events = POLLIN};
        assert_int_equal(poll(&p, 1, WAIT_MS), 1);
        ssize_t got = read(c->errors, text + n, bytes - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        text[n] = '\0';
    }
}

static void a_child_gets_what_is_listed(void **state)
{
    (void)state;
    int given[2], held[2];
    char text[512], expected[512], a[16], b[16], *end;
    supervise_child_t c;
    assert_int_equal(pipe2(given, O_CLOEXEC), 0);
    assert_int_equal(pipe(held), 0); /* without CLOEXEC, and still not the child's */
    snprintf(a, sizeof a, "%d", given[0]);
    snprintf(b, sizeof b, "%d", held[0]);
    setenv("SUPERVISE_A", "old", 1);
    setenv("SUPERVISE_B", "kept", 1);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    sigset_t block;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, NULL);
    const char *args[] = {"report", "--given", a, "--held", b, NULL};
    const char *env[] = {"SUPERVISE_A=new", NULL};
    supervise_spec_t spec = {
        .program = self, .args = args, .env = env, .fds = &given[0], .n_fds = 1};
    assert_int_equal(supervise_spawn(&spec, &c), 0);
    read_line(&c, text, sizeof text);
    snprintf(expected, sizeof expected,
             "session 1 parent 1 death 1 given 1 held 1 env new kept pipe 1 hup 1 int 0\n");
    assert_string_equal(text, expected);
    assert_true(wait_end(&c));
    supervise_describe(&c, text, sizeof text);
    end = strstr(text, "exit status 3");
    assert_non_null(end);
    supervise_close(&c);
    signal(SIGHUP, SIG_DFL);
}

static void a_failed_exec_says_why(void **state)
{
    (void)state;
    supervise_child_t c;
    char text[256];
    supervise_spec_t spec = {.program = "/nonexistent/sluice-loader"};
    assert_int_equal(supervise_spawn(&spec, &c), 0);
    assert_true(wait_end(&c));
    supervise_describe(&c, text, sizeof text);
    assert_string_equal(
        text, "did not start: exec /nonexistent/sluice-loader: No such file or directory");
    supervise_close(&c);
    int wrong = 987;
    spec = (supervise_spec_t){.program = self, .fds = &wrong, .n_fds = 1};
    assert_int_equal(supervise_spawn(&spec, &c), 0);
    assert_true(wait_end(&c));
    supervise_describe(&c, text, sizeof text);
    assert_non_null(strstr(text, "did not start: inherited descriptor of "));
    assert_non_null(strstr(text, ": Bad file descriptor"));
    supervise_close(&c);
}

static void an_end_is_seen(void **state, int without_pidfd)
{
    (void)state;
    supervise_child_t c;
    char text[256];
    const char *args[] = {"sleep", NULL};
    supervise_spec_t spec = {.program = self, .args = args, .without_pidfd = without_pidfd};
    assert_int_equal(supervise_spawn(&spec, &c), 0);
    assert_int_equal(c.pidfd < 0, without_pidfd);
    read_line(&c, text, sizeof text);
    assert_int_equal(supervise_ended(&c), 0);
    supervise_describe(&c, text, sizeof text);
    assert_string_equal(text, "has not ended");
    int status;
    assert_int_equal(kill(c.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(c.pid, &status, WUNTRACED), c.pid);
    supervise_continue(&c);
    assert_int_equal(waitpid(c.pid, &status, WCONTINUED), c.pid);
    assert_true(WIFCONTINUED(status));
    supervise_kill(&c);
    assert_true(wait_end(&c));
    supervise_describe(&c, text, sizeof text);
    assert_string_equal(text, "ended by signal 9 (Killed)");
    supervise_close(&c);
    assert_true(c.pidfd == -1 && c.errors == -1 && c.lifeline == -1);
}

static void an_end_is_seen_by_pidfd(void **state)
{
    an_end_is_seen(state, 0);
}

static void an_end_is_seen_without_pidfd(void **state)
{
    an_end_is_seen(state, 1);
}

static void the_lifeline_ends_with_our_end(void **state)
{
    (void)state;
    supervise_child_t c;
    char text[256];
    const char *args[] = {"lifeline", NULL};
    supervise_spec_t spec = {.program = self, .args = args};
    assert_int_equal(supervise_spawn(&spec, &c), 0);
    read_line(&c, text, sizeof text);
    close(c.lifeline);
    c.lifeline = -1;
    assert_true(wait_end(&c));
    assert_true(WIFEXITED(c.status) && WEXITSTATUS(c.status) == 0);
    supervise_close(&c);
}

static int gone(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    const char *state = n > 0 ? strrchr(text, ')') : NULL;
    return !state || state[2] == 'Z' || state[2] == 'X'; /* a zombie is its new parent's to reap */
}

/* A process between us and the children is killed: both children go, one by the death signal, one
 * that has put that off by the lifeline. */
static void a_parents_death_takes_the_children(void **state)
{
    (void)state;
    int out[2];
    pid_t pids[2];
    assert_int_equal(pipe(out), 0);
    pid_t parent = fork();
    if (parent == 0) {
        supervise_child_t c[2];
        const char *sleeps[] = {"sleep", NULL}, *lifeline[] = {"lifeline", NULL};
        supervise_spec_t spec[2] = {{.program = self, .args = sleeps},
                                    {.program = self, .args = lifeline}};
        for (int i = 0; i < 2; i++) {
            char text[64];
            if (supervise_spawn(&spec[i], &c[i]) < 0)
                _exit(1);
            struct pollfd p = {.fd = c[i].errors, .events = POLLIN};
            if (poll(&p, 1, WAIT_MS) != 1 || read(c[i].errors, text, sizeof text) <= 0)
                _exit(1);
            pids[i] = c[i].pid;
        }
        if (write(out[1], pids, sizeof pids) != sizeof pids)
            _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(out[0], pids, sizeof pids), sizeof pids);
    assert_true(!gone(pids[0]) && !gone(pids[1]));
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    /* Design 1 allows 3 s; counted in looks, for a machine that stands still ends nobody. */
    for (int looks = 0; (!gone(pids[0]) || !gone(pids[1])) && looks < 300; looks++)
        usleep(10000);
    assert_true(gone(pids[0]));
    assert_true(gone(pids[1]));
    close(out[0]);
    close(out[1]);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "report") == 0)
        return child_report(argc, argv);
    if (argc > 1 && strcmp(argv[1], "lifeline") == 0)
        return child_lifeline(argc, argv);
    if (argc > 1 && strcmp(argv[1], "sleep") == 0)
        return child_sleep();
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_gets_what_is_listed),
        cmocka_unit_test(a_failed_exec_says_why),
        cmocka_unit_test(an_end_is_seen_by_pidfd),
        cmocka_unit_test(an_end_is_seen_without_pidfd),
        cmocka_unit_test(the_lifeline_ends_with_our_end),
        cmocka_unit_test(a_parents_death_takes_the_children),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
