#include "control/supervise.h"

#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* What a child tells of a start that failed; written whole into the start pipe. */
typedef struct {
    int error;
    char what[1020];
} start_failure_t;
_Static_assert(sizeof(start_failure_t) <= PIPE_BUF, "it is written in one piece");

/* Everything the child needs between fork and exec, made before the fork: afterwards only
 * async-signal-safe calls are allowed, for the parent has threads. */
typedef struct {
    const char *program;
    char **argv, **envp;
    const int *fds;
    int n_fds;
    int null, lifeline, errors, start;
    pid_t parent;
} launch_t;

static void child_fail(const launch_t *l, const char *what)
{
    start_failure_t f = {.error = errno};
    strncpy(f.what, what, sizeof f.what - 1);
    strncat(f.what, l->program, sizeof f.what - 1 - strlen(f.what));
    ssize_t n = write(l->start, &f, sizeof f);
    (void)n;
    _exit(127);
}

/* Default dispositions and an empty mask; only an ignored SIGHUP (nohup) is kept, and SIGXFSZ: a
 * file beyond ulimit -f is a failed write. */
static void child_signals(void)
{
    struct sigaction now, plain = {.sa_handler = SIG_DFL};
    for (int s = 1; s < NSIG; s++) {
        if ((s == SIGHUP || s == SIGXFSZ) && sigaction(s, NULL, &now) == 0 &&
            now.sa_handler == SIG_IGN)
            continue;
        sigaction(s, &plain,
                  NULL); /* refused for SIGKILL, SIGSTOP and libc's own: as it should be */
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Every descriptor above 2 closes at exec, except those listed. */
static void child_descriptors(const launch_t *l)
{
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) != 0) {
        long most = sysconf(_SC_OPEN_MAX);
        for (int fd = 3; fd < (most > 0 && most < 65536 ? most : 65536); fd++)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    for (int i = 0; i < l->n_fds; i++)
        if (fcntl(l->fds[i], F_SETFD, 0) != 0)
            child_fail(l, "inherited descriptor of ");
    if (fcntl(l->lifeline, F_SETFD, 0) != 0)
        child_fail(l, "lifeline of ");
}

static void child_run(const launch_t *l)
{
    if (setsid() < 0)
        child_fail(l, "setsid of ");
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        child_fail(l, "PR_SET_PDEATHSIG of ");
    if (getppid() != l->parent)
        _exit(127); /* the parent died before the signal was armed: nobody is left to tell */
    child_signals();
    if (dup2(l->null, 0) < 0 || dup2(l->errors, 1) < 0 || dup2(l->errors, 2) < 0)
        child_fail(l, "standard streams of ");
    child_descriptors(l);
    execve(l->program, l->argv, l->envp);
    child_fail(l, "exec ");
}

static const char *env_name_end(const char *entry)
{
    const char *eq = strchr(entry, '=');
    return eq ? eq : entry + strlen(entry);
}

/* The environment with the additions; the strings stay the owners'. */
static char **env_merge(const char *const *added)
{
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    while (added && added[k])
        k++;
    char **out = calloc(n + k + 1, sizeof *out);
    if (!out)
        return NULL;
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        size_t name = (size_t)(env_name_end(environ[i]) - environ[i]) + 1;
        int replaced = 0;
        for (size_t j = 0; j < k && !replaced; j++)
            replaced = strncmp(environ[i], added[j], name) == 0;
        if (!replaced)
            out[used++] = environ[i];
    }
    for (size_t j = 0; j < k; j++)
        out[used++] = (char *)added[j];
    return out;
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0)
            close(pair[i]);
        pair[i] = -1;
    }
}

/* argv: program, the caller's words, --parent P --lifeline FD. */
static int build_argv(const supervise_spec_t *spec, const char *parent, const char *lifeline,
                      char *argv[SUPERVISE_ARGS])
{
    const char *tail[] = {"--parent", parent, "--lifeline", lifeline};
    int n = 0;
    argv[n++] = (char *)spec->program;
    for (int i = 0; spec->args && spec->args[i]; i++) {
        if (n + 5 >= SUPERVISE_ARGS)
            return err_set(ERR_FAILED, "too many words for %s", spec->program);
        argv[n++] = (char *)spec->args[i];
    }
    for (int i = 0; i < 4; i++)
        argv[n++] = (char *)tail[i];
    argv[n] = NULL;
    return 0;
}

static int make_pipes(int lifeline[2], int errors[2], int start[2])
{
    if (pipe2(lifeline, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC | O_NONBLOCK) != 0 ||
        pipe2(start, O_CLOEXEC) != 0)
        return err_sys(ERR_ENV, "pipe");
    /* Both ends of the error pipe are non-blocking: a coordinator that is stopped must not stop a
     * worker that logs; a line that finds no room is lost. More room makes that rare. */
    fcntl(errors[1], F_SETPIPE_SZ, 1 << 18);
    fcntl(start[0], F_SETFL, O_NONBLOCK);
    return 0;
}

int supervise_spawn(const supervise_spec_t *spec, supervise_child_t *child)
{
    int lifeline[2] = {-1, -1}, errors[2] = {-1, -1}, start[2] = {-1, -1}, rc;
    char parent[16], line[16], *argv[SUPERVISE_ARGS];
    launch_t l = {.program = spec->program, .fds = spec->fds, .n_fds = spec->n_fds, .argv = argv};
    memset(child, 0, sizeof *child);
    child->pidfd = child->lifeline = child->errors = child->start = -1;
    l.null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (l.null < 0) {
        rc = err_sys(ERR_ENV, "/dev/null");
        goto fail;
    }
    CHECK_GOTO(make_pipes(lifeline, errors, start), rc, fail);
    l.parent = getpid();
    snprintf(parent, sizeof parent, "%d", (int)l.parent);
    snprintf(line, sizeof line, "%d", lifeline[0]);
    CHECK_GOTO(build_argv(spec, parent, line, argv), rc, fail);
    l.envp = env_merge(spec->env);
    l.lifeline = lifeline[0];
    l.errors = errors[1];
    l.start = start[1];
    child->pid = l.envp ? fork() : -1;
    if (child->pid < 0) {
        rc = err_sys(ERR_ENV, "cannot start %s", spec->program);
        goto fail;
    }
    if (child->pid == 0)
        child_run(&l);
    child->pidfd = spec->without_pidfd ? -1 : pidfd_open(child->pid, 0);
    if (child->pidfd >= 0)
        fcntl(child->pidfd, F_SETFD, FD_CLOEXEC);
    child->lifeline = lifeline[1];
    child->errors = errors[0];
    child->start = start[0];
    lifeline[1] = errors[0] = start[0] = -1;
    rc = 0;
fail:
    close_pair(lifeline);
    close_pair(errors);
    close_pair(start);
    if (l.null >= 0)
        close(l.null);
    free(l.envp);
    return rc;
}

int supervise_ended(supervise_child_t *child)
{
    if (child->ended)
        return 1;
    int status;
    pid_t got = child->pid > 0 ? waitpid(child->pid, &status, WNOHANG) : 0;
    if (got == child->pid && child->pid > 0) {
        child->status = status;
        child->ended = 1;
    } else if (got < 0 && errno == ECHILD) {
        /* Somebody else reaped it, which the coordinator's design forbids; its status is lost. */
        child->status = 0xFF00;
        child->ended = 1;
    }
    return child->ended;
}

void supervise_describe(const supervise_child_t *child, char *text, size_t bytes)
{
    start_failure_t f;
    if (child->start >= 0 && read(child->start, &f, sizeof f) == (ssize_t)sizeof f)
        snprintf(text, bytes, "did not start: %s: %s", f.what, strerror(f.error));
    else if (!child->ended)
        snprintf(text, bytes, "has not ended");
    else if (WIFSIGNALED(child->status))
        snprintf(text, bytes, "ended by signal %d (%s)", WTERMSIG(child->status),
                 strsignal(WTERMSIG(child->status)));
    else
        snprintf(text, bytes, "ended with exit status %d", WEXITSTATUS(child->status));
}

void supervise_kill(const supervise_child_t *child)
{
    /* A pid that has not been reaped cannot have been given to somebody else. */
    if (child->pid > 0 && !child->ended)
        kill(child->pid, SIGKILL);
}

void supervise_continue(const supervise_child_t *child)
{
    if (child->pid > 0 && !child->ended)
        kill(child->pid, SIGCONT);
}

void supervise_close(supervise_child_t *child)
{
    int *fds[] = {&child->pidfd, &child->lifeline, &child->errors, &child->start};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

/* OpenBLAS 0.3.21 takes processors that it does not know for "Prescott" (SSE3): 32 instead of 80 to
 * 150 GFLOP/s a core, measured. Named by what the processor can do, unless the user has named one.
 */
const char *supervise_blas(void)
{
#if defined(__x86_64__)
    if (getenv("OPENBLAS_CORETYPE"))
        return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd"))
        return "OPENBLAS_CORETYPE=SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "OPENBLAS_CORETYPE=Haswell";
#endif
    return NULL;
}
