/* The one poll loop. Nothing in it waits for longer than a tick, and everything that waits for
 * something has a deadline that is looked at here. */
#include "control/coordinator_state.h"
#include "control/held.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum {
    LOOP_LATE_NS = 2000000000, /* a tick this late: we were stopped, not the others */
    LOOP_REMARK_S = 30,        /* between remarks on something that takes long */
    LOOP_SCRIBE_S = 600,       /* for the scribe to write what is left at the end */
    LOOP_ECHO_MS = 400,        /* nobody presses Ctrl-C twice as fast and means it */
    LOOP_SLOW_S = 10,          /* for one thing to be written; then it is said */
};

int loop_signals(coordinator_t *c)
{
    sigset_t set;
    struct sigaction hup;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    /* nohup: an ignored SIGHUP stays ignored. */
    if (sigaction(SIGHUP, NULL, &hup) == 0 && hup.sa_handler != SIG_IGN)
        sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, &c->old_mask) != 0)
        return err_sys(ERR_ENV, "blocking signals");
    c->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return c->signal_fd < 0 ? err_sys(ERR_ENV, "signalfd") : 0;
}

/* A wrapper that passes on a Ctrl-C which the terminal has sent us already, a shell that repeats
 * the terminal's SIGHUP, a service manager that sends SIGTERM and SIGHUP together: one wish, told
 * twice.
 */
static int is_echo(coordinator_t *c, uint32_t signal)
{
    uint64_t now = clock_ns(), before = c->signal_ns;
    c->signal_ns = now;
    return c->interrupts > 0 && (signal == SIGHUP || now - before < LOOP_ECHO_MS * 1000000ull);
}

static void read_signals(coordinator_t *c)
{
    struct signalfd_siginfo s;
    while (read(c->signal_fd, &s, sizeof s) == (ssize_t)sizeof s)
        if (s.ssi_signo != SIGCHLD && /* children are looked at in every round anyway */
            !is_echo(c, s.ssi_signo))
            run_interrupt(c, s.ssi_signo == SIGINT ? "Ctrl-C" : strsignal((int)s.ssi_signo));
}

/* Sleeps until something happened, for at most timeout_ms. */
static void wait_for_news(coordinator_t *c, struct pollfd *fds, int timeout_ms)
{
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = c->signal_fd, .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = bus_descriptor(c->bus), .events = POLLIN};
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        const proc_t *p = &c->procs[i];
        if (!proc_alive(p))
            continue;
        if (p->child.pidfd >= 0)
            fds[n++] = (struct pollfd){.fd = p->child.pidfd, .events = POLLIN};
        fds[n++] = (struct pollfd){.fd = p->child.errors, .events = POLLIN};
    }
    if (poll(fds, n, timeout_ms) < 0 && errno != EINTR)
        run_fail(c, ERR_FAILED, "poll: %s", strerror(errno));
}

/* A coordinator that was itself stopped starts its deadlines anew (design 6). */
static void shift_deadlines(coordinator_t *c, uint64_t by)
{
    uint64_t *own[] = {&c->deadline_ns, &c->note_ns, &c->scan_beat_ns, &c->stop_until_ns};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (*own[i])
            *own[i] += by;
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        if (c->procs[i].deadline_ns)
            c->procs[i].deadline_ns += by;
    }
    run_note(c, LOG_INFO, "the coordinator was stopped for %.1f s; its deadlines start anew",
             (double)by / 1e9);
}

/* Epochs are announced two ahead of the slowest rank, so that nothing drains at an epoch's end. */
static void announce(coordinator_t *c)
{
    uint32_t slowest = c->plan.epochs;
    /* Also while stopping: the step to be finished may need a batch of an epoch just announced. */
    if (c->state < RUN_STARTING || c->state > RUN_STOPPING)
        return;
    if (c->config->digest_only)
        slowest = plan_locate(&c->plan, c->digest_seq).epoch;
    for (uint32_t r = 0; !c->config->digest_only && r < c->ranks; r++) {
        const proc_t *p = proc_trainer(c, r);
        board_page_t *page = board_page(c->board, p->page);
        uint32_t e = c->plan.first_epoch;
        if (p->ready)
            e = atomic_load_explicit(&page->epoch, memory_order_relaxed);
        if (e < slowest)
            slowest = e;
    }
    if (slowest < c->plan.first_epoch)
        slowest = c->plan.first_epoch;
    uint32_t until = slowest + 2 < c->plan.epochs ? slowest + 2 : c->plan.epochs;
    if (until > c->epochs_announced)
        c->epochs_announced = until;
    for (uint32_t i = 0; i < RUN_PROCESSES; i++)
        proc_catch_up(c, &c->procs[i]);
}

/* The scan has no limit but a lack of progress. */
static void watch_scan(coordinator_t *c, uint64_t now)
{
    const proc_t *p = proc_scan(c);
    board_page_t *page = board_page(c->board, p->page);
    if (c->state != RUN_SCANNING || p->state != PROC_JOINED)
        return;
    uint64_t done = atomic_load_explicit(&page->progress, memory_order_relaxed);
    uint64_t of = atomic_load_explicit(&page->progress_of, memory_order_relaxed);
    if (c->scan_beat_ns == 0 || done != c->scan_progress) {
        c->scan_beat_ns = c->note_ns = now;
        c->scan_progress = done;
        if (c->view->scanning && (done || of))
            c->view->scanning(c->view->user, done, of);
    } else if (now - c->scan_beat_ns > RUN_SCAN_S * 1000000000ull) {
        run_fail(c, ERR_DATA,
                 "reading the data set has not moved for %d s (%llu of %llu files): is the "
                 "storage of %s there?",
                 RUN_SCAN_S, (unsigned long long)done, (unsigned long long)of, c->options.data);
    } else if (now - c->note_ns > LOOP_REMARK_S * 1000000000ull) {
        c->note_ns = now;
        run_note(c, LOG_WARN, "reading the data set has not moved for %.0f s; Ctrl-C ends it",
                 (double)(now - c->scan_beat_ns) / 1e9);
    }
}

/* Whether the scribe is in the middle of writing something. */
static int writes(coordinator_t *c, const proc_t *scribe)
{
    const board_page_t *page = board_page(c->board, scribe->page);
    uint32_t phase = atomic_load_explicit(&page->phase, memory_order_relaxed);
    return scribe->state == PROC_JOINED && (phase == BOARD_CHECKPOINT || phase == BOARD_WRITING);
}

/* Storage that takes long over one thing is named, and that nobody waits for it but the scribe. */
static void watch_scribe(coordinator_t *c, uint64_t now)
{
    const proc_t *p = proc_scribe(c);
    const board_page_t *page = board_page(c->board, p->page);
    uint32_t phase = atomic_load_explicit(&page->phase, memory_order_relaxed);
    uint64_t since = atomic_load_explicit(&page->since_ns, memory_order_relaxed);
    int busy = writes(c, p);
    if (c->slow_ns && (!busy || since != c->slow_ns)) {
        if (p->state == PROC_JOINED)
            run_note(c, LOG_INFO, "the storage of %s answers again, after %.0f s", c->run_dir,
                     (double)(now - c->slow_ns) / 1e9);
        c->slow_ns = 0;
    }
    if (!busy || c->state == RUN_LEAVING || now - since < LOOP_SLOW_S * 1000000000ull ||
        now < since || (c->slow_ns && now - c->slow_note_ns < LOOP_REMARK_S * 1000000000ull))
        return;
    c->slow_ns = since;
    c->slow_note_ns = now;
    run_note(c, LOG_WARN,
             "the storage of %s is slow or does not answer: the scribe (pid %d) has been writing "
             "%s for %.0f s, %zu messages wait for it; %s",
             c->run_dir, (int)p->child.pid,
             phase == BOARD_CHECKPOINT ? "a checkpoint" : "a line of a log",
             (double)(now - since) / 1e9, outbox_waiting(c->outbox),
             c->state == RUN_STOPPING ? "the stop waits for it too"
             : run_trains(c)          ? "training goes on"
                                      : "the run waits for it when it is too far ahead");
}

/* Only the kernel can hold a process that was killed a while ago: it is named, and left to the
 * kernel when nothing of it can hurt any more (control/held.h). */
static void look_at_held(coordinator_t *c, proc_t *p)
{
    held_state_t seen;
    if (supervise_ended(&p->child)) /* a moment ago: proc_collect concludes */
        return;
    int inert = held_look("", p->child.pid, &seen) == 0 && held_inert(&seen);
    p->inert = inert ? p->inert + 1 : 0;
    held_case_t h = {.loader = p->kind == BOARD_LOADER,
                     .leaving = c->state == RUN_LEAVING,
                     .told = p->stuck_told,
                     .inert = p->inert,
                     .held = c->held};
    held_action_t action = held_decide(&h);
    if (action == HELD_WAIT)
        return;
    p->stuck_told = 1;
    if (action == HELD_FAIL) {
        run_fail(c, ERR_FAILED,
                 "%u loaders were killed and do not end: the kernel holds them%s%s, most often in "
                 "storage that does not answer",
                 c->held + 1, seen.where[0] ? " in " : "", seen.where);
        return;
    }
    run_note(c, LOG_WARN,
             "%s (pid %d) was killed and does not end: the kernel holds it%s%s, most often in "
             "storage that does not answer%s",
             p->name, (int)p->child.pid, seen.where[0] ? " in " : "", seen.where,
             action == HELD_RETURN    ? "; others make its unfinished images"
             : h.loader && !h.leaving ? "; its unfinished images wait for that"
                                      : "");
    if (action != HELD_SAY)
        proc_leave_held(c, p);
}

/* A rank that has not left in a stop's time: it waits for the storage, or it is stuck itself. */
static void stop_failed(coordinator_t *c, const proc_t *p, uint64_t now)
{
    const proc_t *scribe = proc_scribe(c);
    double took = (double)(now - c->state_ns) / 1e9;
    const char *rest = c->weights_saved || c->resumed ? "; the checkpoint before it is whole" : "";
    if (c->snapshots_pending > 0 && scribe->state != PROC_NONE && writes(c, scribe))
        run_fail(c, ERR_FAILED,
                 "the checkpoint was not written within %.0f s (stop_deadline): the storage of %s "
                 "does not answer%s",
                 took, c->run_dir, rest);
    else
        run_fail(c, ERR_FAILED, "%s did not checkpoint within %.0f s (stop_deadline)%s", p->name,
                 took, rest);
}

static void process_deadline(coordinator_t *c, proc_t *p, uint64_t now)
{
    if (!proc_alive(p) || !p->deadline_ns || now < p->deadline_ns)
        return;
    p->deadline_ns = now + RUN_UNKILLABLE_S * 1000000000ull;
    if (p->kill_sent) {
        look_at_held(c, p);
        return;
    }
    if (p == proc_ask(c)) {
        devices_overdue(c, p);
        supervise_kill(&p->child);
        p->kill_sent = 1;
        return;
    }
    if (p->kind == BOARD_LOADER || p->stop_wanted || c->state == RUN_LEAVING) {
        /* A loader is replaced, a process that was told to leave has had its time. */
        if (p->kind == BOARD_TRAINER && c->state == RUN_STOPPING)
            stop_failed(c, p, now);
        if (p == proc_scribe(c) && c->run_dir[0])
            run_fail(c, ERR_FAILED,
                     "the storage of %s did not take what was left to write within %.0f s: not all "
                     "is there",
                     c->run_dir, (double)(now - c->scribe_told_ns) / 1e9);
        supervise_kill(&p->child);
        p->kill_sent = 1;
        return;
    }
    run_fail(c, ERR_FAILED, "%s did not %s within %d s (pid %d)", p->name,
             p->state == PROC_STARTED ? "say hello" : "get ready",
             p->state == PROC_STARTED ? RUN_HELLO_S : RUN_READY_S, (int)p->child.pid);
}

static void tell_end_event(coordinator_t *c)
{
    event_t e;
    if (c->end_told)
        return;
    c->end_told = 1;
    event_begin(&e, "end");
    json_key_int(&e.json, "exit", err_exit_status(c->code));
    if (c->code < 0)
        json_key_string(&e.json, "why", c->text);
    json_key_uint(&e.json, "epochs_done", c->epochs_done);
    if (c->has_map && !c->best_before)
        json_key_number(&e.json, "best_map", c->best_map);
    event_end(c, &e);
}

static void stop_scribe(coordinator_t *c, proc_t *p, uint64_t now)
{
    wire_stop_t stop;
    memset(&stop, 0, sizeof stop);
    wire_begin(&stop, WIRE_STOP, sizeof stop);
    c->scribe_told_stop = 1;
    p->stop_wanted = p->stop_sent = WIRE_STOP_DONE + 1;
    /* Before there is a run directory there is nothing to write, only storage to wait for. Who stops
     * a run has been told how long that takes. */
    p->deadline_ns = now + RUN_LEAVE_S * 1000000000ull;
    if (c->run_dir[0] && !c->user_stop)
        p->deadline_ns = now + LOOP_SCRIBE_S * 1000000000ull;
    else if (c->stop_until_ns > p->deadline_ns)
        p->deadline_ns = c->stop_until_ns;
    c->note_ns = c->scribe_told_ns = now;
    supervise_continue(&p->child);
    outbox_push(c->outbox, &stop, sizeof stop, 0);
}

/* All but the scribe have ended: its last line, then its own end. */
static void leave_scribe(coordinator_t *c, uint64_t now)
{
    proc_t *p = proc_scribe(c);
    tell_end_event(c);
    if (p->state == PROC_NONE) {
        if (proc_sweep(c)->state == PROC_NONE)
            run_enter(c, RUN_OVER);
        return;
    }
    if (p->state == PROC_STARTED && !p->kill_sent) {
        supervise_kill(&p->child);
        p->kill_sent = 1;
        p->deadline_ns = 0;
    }
    if (p->kill_sent) {
        if (p->deadline_ns == 0)
            p->deadline_ns = now + RUN_UNKILLABLE_S * 1000000000ull;
    } else if (!c->scribe_told_stop) {
        stop_scribe(c, p, now);
    } else if (now - c->note_ns > LOOP_REMARK_S * 1000000000ull) {
        c->note_ns = now;
        run_note(c, LOG_WARN,
                 "the scribe is still writing to %s (%zu messages wait); Ctrl-C ends it",
                 c->run_dir, outbox_waiting(c->outbox));
    }
}

static void leave(coordinator_t *c, uint64_t now)
{
    if (c->state != RUN_LEAVING)
        return;
    if (!proc_any_alive(c, BOARD_NONE)) {
        leave_scribe(c, now);
        return;
    }
    if (now < c->deadline_ns)
        return;
    /* What does not end of that either is given up at its own deadline. */
    c->deadline_ns = now + 2 * RUN_UNKILLABLE_S * 1000000000ull;
    proc_kill(c, 0);
}

static void tick(coordinator_t *c)
{
    uint64_t now = clock_ns(), since = now - c->last_tick_ns;
    c->last_tick_ns = now;
    if (since > LOOP_LATE_NS)
        shift_deadlines(c, since);
    announce(c);
    watch_scan(c, now);
    watch_scribe(c, now);
    proc_scale_loaders(c);
    for (uint32_t i = 0; i < RUN_PROCESSES; i++)
        process_deadline(c, &c->procs[i], now);
    if (c->state == RUN_OPENING && now - c->note_ns > LOOP_REMARK_S * 1000000000ull) {
        c->note_ns = now;
        run_note(c, LOG_WARN, "the run directory is not there yet: does the storage of %s answer?",
                 c->options.resume[0] ? c->options.resume : c->options.project);
    }
    checkpoint_tick(c, now);
    leave(c, now);
}

void loop_run(coordinator_t *c)
{
    struct pollfd *fds = calloc(2 + 2 * (size_t)RUN_PROCESSES, sizeof *fds);
    uint64_t ticked = 0;
    if (!fds) {
        run_fail(c, ERR_ENV, "no memory for the poll loop");
        proc_kill(c, 1);
        return;
    }
    c->last_tick_ns = clock_ns();
    while (c->state != RUN_OVER) {
        int reading = c->config->digest_only && c->state == RUN_TRAINING;
        wait_for_news(c, fds, reading ? 0 : RUN_TICK_MS);
        read_signals(c);
        message_drain(c);
        proc_collect(c);
        if (reading)
            digest_pump(c);
        if (clock_ns() - ticked >= RUN_TICK_MS * 500000ull || c->state == RUN_LEAVING) {
            tick(c);
            ticked = clock_ns();
        }
        record_flush(c);
    }
    free(fds);
}
