/* sluice stop [RUN] [--now]: asks a run to end, says what it does, and waits for its end for as long
 * as that may take. No run directory is looked at. */
#include "tools/commands.h"

#include "control/text.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/ask.h"
#include "tools/jsonline.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <poll.h>
#include <unistd.h>

enum {
    STOP_LOOK_MS = 200,
    STOP_LEAVE_S = 20,   /* what follows the checkpoint: loaders, the scribe, what does not end */
    STOP_UNKNOWN_S = 60, /* where the run does not say how long its stop may take */
};

typedef struct {
    registry_entry_t run;
    bus_t *watch;
    int pidfd;
    int heard; /* end is the run's own last message */
    wire_end_t end;
} stop_t;

/* How long the run's stop may take, by its own word. */
static double stop_seconds(const stop_t *s)
{
    static char brief[6000];
    jsonline_t m;
    const char *at = NULL;
    double seconds = 0;
    if (ask_text(&s->run, WIRE_CMD_BRIEF, 0, brief, sizeof brief) < 0)
        return STOP_UNKNOWN_S;
    while (jsonline_next(brief, &at, &m) == 1)
        if (strcmp(m.key, "stop_s") == 0)
            seconds = strtod(m.value, NULL);
    return seconds > 0 ? seconds : STOP_UNKNOWN_S;
}

/* The process, not only its entry: what it holds is free when this says so. */
static int has_ended(const stop_t *s)
{
    struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
    if (s->pidfd >= 0)
        return poll(&p, 1, 0) > 0;
    /* Where pidfds are denied; a pid that is another's by now only makes us wait. */
    return registry_listed(&s->run) == 0 && kill(s->run.pid, 0) != 0 && errno == ESRCH;
}

/* 1 ended, 0 not within the time. */
static int wait_for_end(stop_t *s, double seconds)
{
    uint64_t until = clock_ns() + (uint64_t)(seconds * 1e9);
    bus_message_t m;
    while (clock_ns() < until) {
        int ended = has_ended(s), rc;
        /* Its last message may still be on its way when it has gone. */
        while (s->watch && (rc = bus_receive(s->watch, ended ? 0 : STOP_LOOK_MS, &m)) == 1)
            if (m.type == WIRE_END) {
                memcpy(&s->end, m.frame, sizeof s->end);
                s->heard = 1;
            }
        if (!s->watch && !ended)
            poll(NULL, 0, STOP_LOOK_MS);
        if (ended)
            return 1;
    }
    return 0;
}

static int say_end(stop_t *s, int now)
{
    if (!s->heard) {
        puts("the run has ended");
        return 0;
    }
    text_printable(s->end.text);
    int good = s->end.exit == 0 || s->end.exit == (uint32_t)err_exit_status(ERR_STOPPED);
    if (!good && !now)
        return err_set(ERR_FAILED, "the run ended with exit status %u: %s", s->end.exit,
                       s->end.text);
    printf("the run ended with exit status %u%s%s\n", s->end.exit, s->end.text[0] ? ": " : "",
           s->end.text);
    return 0;
}

static int stop_run(const char *which, int now)
{
    stop_t s;
    int rc;
    memset(&s, 0, sizeof s);
    s.pidfd = -1;
    CHECK_GOTO(ask_find(which, &s.run), rc, fail);
    s.pidfd = pidfd_open(s.run.pid, 0);
    /* Without a watch socket the end is seen all the same, not its reason. */
    if (s.run.watch[0] && bus_subscriber(s.run.watch, &s.watch) < 0)
        s.watch = NULL;
    double seconds = (now ? 0 : stop_seconds(&s)) + STOP_LEAVE_S;
    CHECK_GOTO(ask_entry(&s.run, WIRE_CMD_STOP, (uint32_t)now), rc, fail);
    fflush(stdout);
    if (wait_for_end(&s, seconds))
        rc = say_end(&s, now);
    else
        rc = err_set(ERR_FAILED,
                     "the run (pid %d) has not ended within %.0f s: `sluice status %d` shows what "
                     "it waits for; %s",
                     (int)s.run.pid, seconds, (int)s.run.pid,
                     now ? "kill -KILL ends it"
                         : "`sluice stop --now` ends it without a checkpoint");
fail:
    bus_close(&s.watch);
    if (s.pidfd >= 0)
        close(s.pidfd);
    return rc;
}

int cmd_stop(int argc, char **argv)
{
    const char *which = NULL;
    int now = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--now") == 0)
            now = 1;
        else if (argv[i][0] == '-')
            return err_set(ERR_CONFIG, "stop does not know '%s'", argv[i]);
        else if (which)
            return err_set(ERR_CONFIG, "stop takes one run: '%s' is too much", argv[i]);
        else
            which = argv[i];
    }
    return stop_run(which, now);
}
