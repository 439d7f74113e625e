/* bus_trial: whether ZeroMQ can work here, found out in a process of its own.
 *
 * libzmq ends the process where the system refuses it something (eventfd, epoll, a thread); which
 * things it needs is for its version to know. So a child makes a pair of sockets and passes a frame
 * between them: if it does not live to say so, the parent has its last words.
 */
#include "control/bus.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIAL_MS = 10000 };

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
enum { TRIAL_POSSIBLE = 0 }; /* it does not allow threads in a forked child */
#else
enum { TRIAL_POSSIBLE = 1 };
#endif

static int exchange(const char *endpoint)
{
    bus_t *server = NULL, *client = NULL;
    bus_message_t m;
    wire_stop_t frame;
    int rc;
    memset(&frame, 0, sizeof frame);
    wire_begin(&frame, WIRE_STOP, sizeof frame);
    CHECK_GOTO(bus_listen(endpoint, &server), rc, done);
    CHECK_GOTO(bus_connect(endpoint, "trial-0.0", &client), rc, done);
    CHECK_GOTO(bus_send(client, NULL, &frame, sizeof frame), rc, done);
    CHECK_GOTO(bus_receive(server, TRIAL_MS / 2, &m), rc, done);
    if (rc == 0)
        rc = err_set(ERR_ENV, "a message did not arrive within %d s", TRIAL_MS / 2000);
done:
    /* Ending the process is the way to end it: nothing is flushed that is the parent's. */
    return rc;
}

static void child_main(const char *endpoint, int out)
{
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    log_sink(NULL, NULL);
    if (dup2(out, 2) < 0)
        _exit(1);
    if (exchange(endpoint) < 0) {
        const char *text = err_text();
        ssize_t n = write(2, text, strlen(text));
        _exit(n < 0 ? 1 : 2);
    }
    _exit(0);
}

/* Reads until the child has closed its end, or the deadline. */
static void listen_to(int fd, uint64_t deadline, char *text, size_t room)
{
    size_t used = 0;
    for (uint64_t now; (now = clock_ns()) < deadline;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char lost[256];
        if (poll(&p, 1, (int)((deadline - now) / 1000000) + 1) <= 0)
            continue;
        int full = used + 1 >= room;
        ssize_t n = read(fd, full ? lost : text + used, full ? sizeof lost : room - 1 - used);
        if (n == 0 || (n < 0 && errno != EINTR))
            break;
        used += n > 0 && !full ? (size_t)n : 0;
    }
    text[used] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

/* 0 ended well. */
static int child_end(pid_t pid, uint64_t deadline)
{
    int status = 0;
    for (pid_t got; (got = waitpid(pid, &status, WNOHANG)) != pid; usleep(1000)) {
        if (got < 0 && errno != EINTR)
            return 0; /* somebody else has its status: then nothing is known against it */
        if (clock_ns() > deadline) {
            kill(pid, SIGKILL);
            return waitpid(pid, &status, 0) == pid ? -1 : 0;
        }
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

/* The system call that is refused, where it is one of those that are denied most often. */
static const char *refused_call(int *error)
{
    static const char *const names[] = {"eventfd", "epoll_create1", "socket(AF_UNIX)"};
    for (int i = 0; i < 3; i++) {
        int fd = i == 0   ? eventfd(0, EFD_CLOEXEC)
                 : i == 1 ? epoll_create1(EPOLL_CLOEXEC)
                          : socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        *error = errno;
        if (fd < 0)
            return names[i];
        close(fd);
    }
    return NULL;
}

static int explain(const char *words)
{
    static const char head[] = "ZeroMQ, through which the processes of a run talk, does not work";
    int error;
    const char *call = refused_call(&error);
    if (call)
        return err_set(ERR_ENV,
                       "%s here: the system refuses %s (%s): allow it, for instance in the "
                       "container's seccomp profile",
                       head, call, strerror(error));
    return err_set(ERR_ENV, "%s here: %s", head, words[0] ? words : "it does not say why");
}

int bus_trial(const char *endpoint)
{
    char words[512], place[128];
    int out[2];
    if (!TRIAL_POSSIBLE)
        return 0;
    snprintf(place, sizeof place, "%s-trial", endpoint);
    if (pipe2(out, O_CLOEXEC) != 0)
        return err_sys(ERR_ENV, "pipe");
    pid_t pid = fork();
    if (pid == 0)
        child_main(place, out[1]);
    int error = errno;
    close(out[1]);
    uint64_t deadline = clock_ns() + TRIAL_MS * 1000000ull;
    int rc = 0;
    if (pid < 0) {
        errno = error;
        rc = err_sys(ERR_ENV, "no process can be started: raise the limit on processes (ulimit -u, "
                              "pids.max) or memory");
    } else {
        listen_to(out[0], deadline, words, sizeof words);
        if (child_end(pid, deadline) != 0)
            rc = explain(words);
    }
    close(out[0]);
    return rc;
}
