#include "tests/soak/process.h"

#include "tests/soak/clock.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENVIRON_BYTES = 1 << 16 };

int process_adopt(void)
{
    return prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void child(const char *const argv[], const char *mark, int output, int error, pid_t parent)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 ||
        dup2(error, 2) < 0)
        _exit(127);
    if (mark)
        setenv("SLUICE_SOAK", mark, 1);
    execv(argv[0], (char *const *)argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static pid_t start(const char *const argv[], const char *mark, int output, int error)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        child(argv, mark, output, error, parent);
    return pid;
}

pid_t process_start(const char *const argv[], const char *mark, const char *output)
{
    char errors[PATH_MAX];
    snprintf(errors, sizeof errors, "%s.err", output);
    int fd = open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error = open(errors, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    pid_t pid = fd < 0 || error < 0 ? -1 : start(argv, mark, fd, error);
    if (fd >= 0)
        close(fd);
    if (error >= 0)
        close(error);
    return pid;
}

int process_wait(pid_t pid, double seconds, int *status)
{
    for (double until = clock_s() + seconds;;) {
        pid_t got = waitpid(pid, status, WNOHANG);
        if (got == pid)
            return 1;
        if (got < 0 && errno != EINTR) {
            *status = 0;
            return 1;
        }
        if (clock_s() >= until)
            return 0;
        clock_sleep(0.005);
    }
}

/* What comes through the pipe until it closes or the time is over. */
static void read_until(int fd, double until, char *text, size_t bytes)
{
    size_t used = 0;
    for (;;) {
        double left = until - clock_s();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char spare[4096];
        if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) <= 0)
            break;
        int full = used + 1 >= bytes;
        ssize_t n = full ? read(fd, spare, sizeof spare) : read(fd, text + used, bytes - 1 - used);
        if (n <= 0)
            break;
        if (!full)
            used += (size_t)n;
    }
    text[used] = '\0';
}

int process_ask(const char *const argv[], double seconds, char *text, size_t bytes)
{
    double until = clock_s() + seconds;
    int pair[2], status = 0;
    text[0] = '\0';
    if (pipe2(pair, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = start(argv, NULL, pair[1], pair[1]);
    close(pair[1]);
    if (pid > 0)
        read_until(pair[0], until, text, bytes);
    close(pair[0]);
    if (pid < 0)
        return -1;
    double left = until - clock_s();
    if (!process_wait(pid, left > 0 ? left : 0, &status)) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char process_state(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : 0;
}

void process_name(pid_t pid, char *name, size_t bytes)
{
    char path[64];
    name[0] = '\0';
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fgets(name, (int)bytes, f))
        name[strcspn(name, "\n")] = '\0';
    fclose(f);
}

static int has_mark(pid_t pid, const char *wanted)
{
    static char text[ENVIRON_BYTES];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size_t used = 0;
    for (ssize_t n; (n = read(fd, text + used, sizeof text - 1 - used)) > 0;)
        used += (size_t)n;
    close(fd);
    text[used] = '\0';
    for (size_t at = 0; at < used; at += strlen(text + at) + 1)
        if (strcmp(text + at, wanted) == 0)
            return 1;
    return 0;
}

int process_marked(const char *mark, pid_t *pids)
{
    char wanted[96];
    int n = 0;
    DIR *proc = opendir("/proc");
    snprintf(wanted, sizeof wanted, "SLUICE_SOAK=%s", mark);
    if (!proc)
        return 0;
    for (struct dirent *e; (e = readdir(proc)) && n < PROCESS_LIST;) {
        pid_t pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;
        if (pid <= 0 || pid == getpid() || !has_mark(pid, wanted))
            continue;
        char state = process_state(pid);
        if (state && state != 'Z' && state != 'X')
            pids[n++] = pid;
    }
    closedir(proc);
    return n;
}

void process_reap(void)
{
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

const char *process_how(int status)
{
    static char text[64];
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "signal %d", WTERMSIG(status));
    else
        snprintf(text, sizeof text, "exit status %d", WEXITSTATUS(status));
    return text;
}
