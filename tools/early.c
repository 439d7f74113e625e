#include "tools/early.h"

#include "shm/err.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { EARLY_OVER = SIGUSR1 }; /* to the thread alone: its work is done */
static pthread_t early_thread;
static int early_on;

static void early_set(sigset_t *set)
{
    struct sigaction hup;
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    /* nohup: an ignored SIGHUP stays ignored. */
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        sigaddset(set, SIGHUP);
}

/* Called by the dynamic loader before any library's own start, which takes milliseconds. */
static void early_block(int argc, char **argv, char **envp)
{
    sigset_t set;
    (void)envp;
    static const char *const runs[] = {"train", "val", "predict", "digest"};
    int is_run = 0;
    for (size_t i = 0; argc > 1 && i < sizeof runs / sizeof runs[0]; i++)
        is_run |= strcmp(argv[1], runs[i]) == 0;
    if (!is_run)
        return;
    early_set(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
}
__attribute__((section(".preinit_array"),
               used)) static void (*const early_first)(int, char **, char **) = early_block;

static void *early_main(void *unused)
{
    static const char text[] = "sluice: ended before the run began: nothing was made\n";
    sigset_t set;
    int got;
    (void)unused;
    early_set(&set);
    sigaddset(&set, EARLY_OVER);
    if (sigwait(&set, &got) == 0 && got != EARLY_OVER) {
        ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
        (void)n;
        _exit(err_exit_status(ERR_FAILED));
    }
    return NULL;
}

void early_begin(void)
{
    sigset_t set, over, old;
    early_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigemptyset(&over);
    sigaddset(&over, EARLY_OVER);
    pthread_sigmask(SIG_BLOCK, &over, &old); /* the thread inherits it */
    early_on = pthread_create(&early_thread, NULL, early_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void early_hold(void)
{
    if (!early_on)
        return;
    pthread_kill(early_thread, EARLY_OVER);
    pthread_join(early_thread, NULL);
    early_on = 0;
}

void early_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return;
}
