#include "control/guard.h"

#include "control/log.h"
#include "control/registry.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* The coordinator's descriptors close one after the other: its lifelines may go before the lock on
 * its registry entry. */
enum { GUARD_TRY_MS = 10 };

static struct {
    int lifeline;
    pid_t parent;
    int started;
    pthread_mutex_t mutex; /* over the two below */
    void (*farewell)(void *user);
    void *user;
} guard = {.lifeline = -1, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* The kernel ends us then, wherever this thread is by that time: a farewell may meet storage that
 * does not answer. */
static void arm_end(void)
{
    struct sigevent end;
    struct itimerspec when = {
        .it_value = {.tv_sec = GUARD_MOST_MS / 1000, .tv_nsec = GUARD_MOST_MS % 1000 * 1000000L}};
    timer_t timer;
    memset(&end, 0, sizeof end);
    end.sigev_notify = SIGEV_SIGNAL;
    end.sigev_signo = SIGKILL;
    if (timer_create(CLOCK_MONOTONIC, &end, &timer) != 0 ||
        timer_settime(timer, 0, &when, NULL) != 0)
        kill(getpid(), SIGKILL);
}

static void *guard_thread(void *unused)
{
    struct pollfd p = {.fd = guard.lifeline, .events = POLLIN};
    (void)unused;
    /* It carries no data: anything but "nothing to read" is the coordinator's end. */
    while (poll(&p, 1, -1) <= 0 || p.revents == 0)
        ;
    arm_end();
    int listed;
    do {
        listed = registry_forget(guard.parent);
        if (listed)
            poll(NULL, 0, GUARD_TRY_MS);
    } while (listed);
    pthread_mutex_lock(&guard.mutex);
    void (*farewell)(void *user) = guard.farewell;
    void *user = guard.user;
    pthread_mutex_unlock(&guard.mutex);
    if (farewell)
        farewell(user);
    kill(getpid(), SIGKILL);
    return NULL;
}

void guard_start(int lifeline, pid_t parent)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, old;
    guard.lifeline = lifeline;
    guard.parent = parent;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, &attr, guard_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        log_line(LOG_INFO, "no thread for the guard (%s): SIGKILL is the death signal",
                 strerror(rc));
        return;
    }
    guard.started = 1;
    if (prctl(PR_SET_PDEATHSIG, SIGCONT) != 0)
        log_line(LOG_INFO, "the death signal stays SIGKILL: %s", strerror(errno));
}

int guard_started(void)
{
    return guard.started;
}

void guard_farewell(void (*farewell)(void *user), void *user)
{
    pthread_mutex_lock(&guard.mutex);
    guard.farewell = farewell;
    guard.user = user;
    pthread_mutex_unlock(&guard.mutex);
}

void guard_wait(void)
{
    for (;;)
        pause();
}
