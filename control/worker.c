#include "control/worker.h"

#include "control/guard.h"
#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* The coordinator's death ends the wait for its welcome at once, and a worker that it does not want
 * it kills: what is left is a coordinator that is stopped (Ctrl-Z), which is no failure. */
enum { WORKER_WELCOME_S = 3600, WORKER_BYE_MS = 1000 };

/* What the coordinator put on the command line. */
typedef struct {
    const char *endpoint;
    long kind, index, incarnation, parent, lifeline;
} worker_args_t;

static int worker_number(const char *name, const char *text, long most, long *value)
{
    char *end;
    errno = 0;
    *value = text ? strtol(text, &end, 10) : -1;
    if (!text || errno || *end || end == text || *value < 0 || *value > most)
        return err_set(ERR_CONFIG, "%s needs a number from 0 to %ld, not '%s'", name, most,
                       text ? text : "");
    return 0;
}

/* Words that are not among these are the program's own. */
static int worker_parse(int argc, char **argv, worker_args_t *a)
{
    struct {
        const char *name;
        long most;
        long *value;
        int seen;
    } numbers[] = {{"--kind", BOARD_SCAN, &a->kind, 0},
                   {"--index", 1 << 20, &a->index, 0},
                   {"--incarnation", RING_OWNER_MAX, &a->incarnation, 0},
                   {"--parent", 1L << 30, &a->parent, 0},
                   {"--lifeline", 1 << 20, &a->lifeline, 0}};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--endpoint") == 0)
            a->endpoint = value;
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
            if (strcmp(argv[i], numbers[k].name) != 0)
                continue;
            int rc = worker_number(argv[i], value, numbers[k].most, numbers[k].value);
            if (rc < 0)
                return rc;
            numbers[k].seen = 1;
        }
    }
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
        if (!numbers[k].seen || !a->endpoint)
            return err_set(ERR_CONFIG,
                           "%s is started by `sluice train` and not by hand: %s is missing",
                           argv[0], a->endpoint ? numbers[k].name : "--endpoint");
    return 0;
}

/* The parent's death is ours. The signal comes first and the comparison behind it, so that a parent
 * that died in between is seen. */
static int worker_arm(const worker_args_t *a, worker_t *w)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return err_sys(ERR_ENV, "PR_SET_PDEATHSIG");
    if (getppid() != (pid_t)a->parent)
        return err_set(ERR_GONE, "the coordinator (pid %ld) is gone", a->parent);
    int flags = fcntl((int)a->lifeline, F_GETFL);
    if (flags < 0 || fcntl((int)a->lifeline, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl((int)a->lifeline, F_SETFD, FD_CLOEXEC) != 0)
        return err_sys(ERR_ENV, "lifeline descriptor %ld", a->lifeline);
    w->lifeline = (int)a->lifeline;
    return 0;
}

/* The lifeline carries no data: anything but "nothing to read" is the end of the coordinator. The
 * guard sees it too, and what is left to do is its to do. */
static int worker_orphaned(const worker_t *w)
{
    struct pollfd p = {.fd = w->lifeline, .events = POLLIN};
    int gone = poll(&p, 1, 0) > 0 && p.revents != 0;
    if (gone && guard_started())
        guard_wait();
    return gone;
}

static int worker_hello(worker_t *w, const worker_args_t *a)
{
    char identity[BUS_IDENTITY];
    wire_hello_t hello;
    memset(&hello, 0, sizeof hello);
    const char *token = getenv("SLUICE_TOKEN");
    if (!token || strlen(token) >= WIRE_TOKEN)
        return err_set(ERR_CONFIG, "no SLUICE_TOKEN: this program is started by `sluice train`");
    memcpy(hello.token, token, strlen(token));
    unsetenv("SLUICE_TOKEN");
    snprintf(hello.build, sizeof hello.build, "%s", wire_build());
    hello.kind = w->kind;
    hello.index = w->index;
    hello.incarnation = w->incarnation;
    hello.pid = (uint32_t)getpid();
    snprintf(identity, sizeof identity, "%s-%u.%u", board_kind_name(w->kind), w->index,
             w->incarnation);
    int rc = bus_connect(a->endpoint, identity, &w->bus);
    if (rc < 0)
        return rc;
    wire_begin(&hello, WIRE_HELLO, sizeof hello);
    return bus_send(w->bus, NULL, &hello, sizeof hello);
}

int worker_welcome(worker_t *w, const bus_message_t *m)
{
    size_t bytes;
    const char *text = wire_text(m->frame, &bytes);
    memcpy(&w->welcome, m->frame, sizeof w->welcome);
    w->plan = w->welcome.plan;
    options_default(&w->options);
    int rc = options_load_yaml_text(&w->options, text, bytes, "the coordinator's welcome");
    /* The scan and the scribe start before there is a plan. */
    if (rc == 0 && (w->kind == BOARD_LOADER || w->kind == BOARD_TRAINER))
        rc = plan_check(&w->plan);
    return rc;
}

static int worker_await_welcome(worker_t *w)
{
    uint64_t deadline = clock_ns() + WORKER_WELCOME_S * 1000000000ull;
    for (;;) {
        bus_message_t m;
        int rc = bus_receive(w->bus, FUTEX_RECHECK_MS, &m);
        if (rc < 0)
            return rc;
        if (rc == 1 && m.type == WIRE_WELCOME)
            return worker_welcome(w, &m);
        if (rc == 1 && m.type == WIRE_STOP)
            return err_set(ERR_GONE, "the coordinator does not want this process");
        if (worker_orphaned(w))
            return err_set(ERR_GONE, "the coordinator is gone");
        if (clock_ns() > deadline)
            return err_set(ERR_TIMEOUT, "the coordinator did not answer within %d s",
                           WORKER_WELCOME_S);
    }
}

/* Inherited descriptors are for this process alone. */
static void worker_own(int fd)
{
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int worker_attach(worker_t *w)
{
    const wire_welcome_t *in = &w->welcome;
    int rc = 0;
    worker_own(in->board_fd);
    worker_own(in->catalog_fd);
    worker_own(in->collective_fd);
    worker_own(in->snapshot_fd);
    CHECK_GOTO(board_attach(in->board_fd, &w->board), rc, fail);
    w->hub = board_hub(w->board);
    w->page = board_page(w->board, in->board_page);
    if (!w->page)
        return err_set(ERR_FAILED, "the status board has no page %u", in->board_page);
    board_open_page(w->page, w->kind, w->index, w->incarnation);
    /* The scribe starts before there is a list. */
    if (in->catalog_fd >= 0 && w->kind != BOARD_SCRIBE)
        CHECK_GOTO(catalog_open(in->catalog_fd, &w->catalog), rc, fail);
    for (uint32_t r = 0; r < WIRE_RANKS; r++) {
        if (in->ring_fd[r] < 0)
            continue;
        worker_own(in->ring_fd[r]);
        CHECK_GOTO(ring_attach(in->ring_fd[r], &w->hub->work_bell, &w->rings[r]), rc, fail);
    }
    return 0;
fail:
    return err_add(rc, "attaching shared memory");
}

static void worker_detach(worker_t *w)
{
    for (uint32_t r = 0; r < WIRE_RANKS; r++)
        ring_close(&w->rings[r]);
    if (w->catalog)
        catalog_close(&w->catalog);
    if (w->board)
        board_close(&w->board);
    w->page = NULL;
    w->hub = NULL;
}

int worker_start(int argc, char **argv, board_kind_t kind, worker_t *w)
{
    worker_args_t a = {0};
    int rc;
    memset(w, 0, sizeof *w);
    w->lifeline = -1;
    CHECK_GOTO(worker_parse(argc, argv, &a), rc, fail);
    if (a.kind != (long)kind) {
        rc = err_set(ERR_CONFIG, "%s was started as a %s", argv[0],
                     board_kind_name((uint32_t)a.kind));
        goto fail;
    }
    w->kind = kind;
    w->index = (uint32_t)a.index;
    w->incarnation = (uint32_t)a.incarnation;
    CHECK_GOTO(worker_arm(&a, w), rc, fail);
    log_identity(board_kind_name(kind), (int)w->index);
    guard_start(w->lifeline, (pid_t)a.parent);
    CHECK_GOTO(worker_hello(w, &a), rc, fail);
    CHECK_GOTO(worker_await_welcome(w), rc, fail);
    CHECK_GOTO(worker_attach(w), rc, fail);
    return 0;
fail:
    err_add(rc, "starting %s %ld", board_kind_name((uint32_t)kind), a.index);
    log_line(LOG_ERROR, "%s", err_text());
    if (w->bus)
        worker_finish(w, rc, err_text());
    return rc;
}

/* Agreement of an announced epoch: computed here from this process's own plan and list, so that a
 * process that sees something else says so before it works on it. */
static int worker_epoch(worker_t *w, const wire_epoch_t *e)
{
    wire_epoch_ack_t ack;
    memset(&ack, 0, sizeof ack);
    wire_begin(&ack, WIRE_EPOCH_ACK, sizeof ack);
    ack.epoch = e->epoch;
    ack.agreement = wire_agreement(&w->plan, e->epoch,
                                   w->catalog ? catalog_digest(w->catalog) : e->list_digest);
    if (ack.agreement != e->agreement)
        log_line(LOG_ERROR,
                 "epoch %u is not what this process computes: agreement %016llx, not %016llx",
                 e->epoch, (unsigned long long)ack.agreement, (unsigned long long)e->agreement);
    else if (e->epoch + 1 > w->epochs_announced)
        w->epochs_announced = e->epoch + 1;
    return worker_send(w, &ack, sizeof ack);
}

int worker_handle(worker_t *w, const bus_message_t *m,
                  int (*on_message)(void *user, const bus_message_t *m), void *user)
{
    if (m->type == WIRE_EPOCH) {
        wire_epoch_t e;
        memcpy(&e, m->frame, sizeof e);
        return worker_epoch(w, &e);
    }
    if (m->type == WIRE_STOP) {
        /* A later, harder stop replaces an earlier one, never the other way round. */
        wire_stop_t stop;
        memcpy(&stop, m->frame, sizeof stop);
        if (!w->stop || stop.why != WIRE_STOP_DONE)
            w->stop_message = stop;
        w->stop = 1;
        return 0;
    }
    return on_message ? on_message(user, m) : 0;
}

int worker_poll(worker_t *w, int timeout_ms, int (*on_message)(void *user, const bus_message_t *m),
                void *user)
{
    /* ZMQ_FD is edge-triggered: look for messages before sleeping on it, and drain afterwards. */
    for (int slept = 0;;) {
        bus_message_t m;
        int rc, any = 0;
        while ((rc = bus_receive(w->bus, 0, &m)) == 1) {
            any = 1;
            rc = worker_handle(w, &m, on_message, user);
            if (rc < 0)
                return rc;
        }
        if (rc < 0)
            return rc;
        /* The scribe writes the last words of a run that is being torn down. */
        if (w->hub && w->kind != BOARD_SCRIBE &&
            atomic_load_explicit(&w->hub->abort_word, memory_order_relaxed))
            return err_set(ERR_GONE, "the run is being torn down");
        if (any || slept || timeout_ms == 0)
            return worker_orphaned(w) ? err_set(ERR_GONE, "the coordinator is gone") : 0;
        struct pollfd p[2] = {{.fd = bus_descriptor(w->bus), .events = POLLIN},
                              {.fd = w->lifeline, .events = POLLIN}};
        if (poll(p, 2, timeout_ms) < 0 && errno != EINTR)
            return err_sys(ERR_FAILED, "poll");
        slept = 1;
    }
}

int worker_send(worker_t *w, const void *frame, size_t bytes)
{
    return bus_send(w->bus, NULL, frame, bytes);
}

void worker_finish(worker_t *w, int status, const char *text)
{
    wire_bye_t bye;
    memset(&bye, 0, sizeof bye);
    wire_begin(&bye, WIRE_BYE, sizeof bye);
    bye.kind = w->kind;
    bye.index = w->index;
    bye.incarnation = w->incarnation;
    bye.status = status;
    /* text may be err_text itself: keep it before another call changes it. */
    if (text)
        snprintf(bye.text, sizeof bye.text, "%s", text);
    if (w->page)
        board_set_phase(w->page, BOARD_STOPPING);
    if (w->bus && worker_send(w, &bye, sizeof bye) < 0)
        log_line(LOG_WARN, "could not say goodbye: %s", err_text());
    bus_close_flushed(&w->bus, WORKER_BYE_MS);
    worker_detach(w);
}
