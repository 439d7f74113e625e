#include "control/coordinator.h"

#include "control/coordinator_state.h"
#include "control/machine.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { OUTBOX_SOFT = 8 << 20, OUTBOX_HARD = 64 << 20 };

const char *run_state_name(run_state_t state)
{
    static const char *const names[] = {[RUN_OPENING] = "opening the run directory",
                                        [RUN_SCANNING] = "reading the data set",
                                        [RUN_STARTING] = "starting",
                                        [RUN_TRAINING] = "training",
                                        [RUN_STOPPING] = "stopping",
                                        [RUN_LEAVING] = "ending",
                                        [RUN_OVER] = "over"};
    return names[state];
}

const char *run_state_text(const coordinator_t *c)
{
    if (c->state == RUN_TRAINING && !run_trains(c))
        return c->options.mode == OPT_MODE_VAL ? "validating" : "predicting";
    return run_state_name(c->state);
}

/* Nobody is needed to watch. */
static void open_watch(coordinator_t *c)
{
    snprintf(c->watch, sizeof c->watch, "%s-watch", c->endpoint);
    if (bus_publisher(c->watch, &c->watchers) < 0) {
        run_note(c, LOG_WARN, "sluice status --follow will not see this run: %s", err_text());
        c->watch[0] = '\0';
    }
}

/* A run that cannot be listed trains all the same. */
void run_register(coordinator_t *c)
{
    registry_entry_t e;
    if (c->registered)
        return;
    c->registered = 1;
    memset(&e, 0, sizeof e);
    e.pid = getpid();
    snprintf(e.endpoint, sizeof e.endpoint, "%s", c->endpoint);
    snprintf(e.token, sizeof e.token, "%s", c->token);
    snprintf(e.watch, sizeof e.watch, "%s", c->watch);
    if (registry_add(&e, &c->registry) < 0)
        run_note(c, LOG_WARN, "sluice status will not find this run: %s", err_text());
}

/* What entering a state brings with it. */
static void begin_state(coordinator_t *c)
{
    int rc = 0;
    switch (c->state) {
    case RUN_OPENING: rc = proc_start(c, proc_scribe(c)); break;
    case RUN_SCANNING:
        if (registry_set_run_dir(c->registry, c->run_dir) < 0)
            run_note(c, LOG_WARN, "sluice status finds this run by its pid alone: %s", err_text());
        rc = devices_begin(c);
        break;
    case RUN_STOPPING:
        c->stop_until_ns = c->state_ns + (uint64_t)(run_stop_seconds(c) * 1e9);
        proc_stop(c, BOARD_TRAINER, c->gave_up ? WIRE_STOP_NO_DATA : WIRE_STOP_USER,
                  run_stop_seconds(c));
        supervise_continue(&proc_scribe(c)->child); /* the checkpoint is its to write */
        break;
    case RUN_LEAVING:
        c->deadline_ns = clock_ns() + RUN_LEAVE_S * 1000000000ull;
        proc_stop(c, BOARD_NONE,
                  c->code < 0 && c->code != ERR_STOPPED ? WIRE_STOP_ERROR : WIRE_STOP_DONE,
                  RUN_LEAVE_S);
        break;
    case RUN_STARTING:
    case RUN_TRAINING:
    case RUN_OVER: break;
    }
    if (rc < 0)
        run_fail(c, rc, "%s", err_text());
}

/* What a run that gave up leaves to go on from. */
static void add_resume(coordinator_t *c)
{
    size_t n = strlen(c->text);
    if (c->weights_saved || c->resumed)
        snprintf(c->text + n, sizeof c->text - n,
                 "; when that is mended, resume=%s goes on from the last checkpoint", c->run_dir);
    else
        snprintf(c->text + n, sizeof c->text - n, "; there is no checkpoint yet");
}

/* A stop that came before the last epoch's end is one; a run that got there is done. ERR_STOPPED
 * promises that there is a checkpoint to go on from. */
static void judge_end(coordinator_t *c)
{
    if (c->gave_up)
        add_resume(c);
    if (c->code < 0 || c->stopped_early || c->first_epoch + c->epochs_done >= c->plan.epochs)
        return;
    const proc_t *rank0 = proc_trainer(c, 0);
    /* One that was tried is judged by whether it was written (judge_checkpoint). */
    int checkpoint =
        c->weights_saved || c->resumed || c->checkpoint_failed || c->snapshots_pending > 0;
    c->code = c->user_stop && checkpoint ? ERR_STOPPED : ERR_FAILED;
    if (c->user_stop && c->code == ERR_FAILED)
        snprintf(c->text, sizeof c->text, "stopped by the user before there was a checkpoint");
    else if (c->user_stop && rank0->bye_status == ERR_STOPPED)
        snprintf(c->text, sizeof c->text, "%s (resume=%s)", rank0->bye_text, c->run_dir);
    else if (c->user_stop)
        snprintf(c->text, sizeof c->text, "stopped after a checkpoint; resume=%s goes on",
                 c->run_dir);
    else
        snprintf(c->text, sizeof c->text,
                 "the trainers left after %u of %u epochs without saying why",
                 c->first_epoch + c->epochs_done, c->plan.epochs);
}

void run_enter(coordinator_t *c, run_state_t state)
{
    static const uint8_t from[] = {
        [RUN_OPENING] = 1 << RUN_OPENING,
        [RUN_SCANNING] = 1 << RUN_OPENING,
        [RUN_STARTING] = 1 << RUN_SCANNING,
        [RUN_TRAINING] = 1 << RUN_STARTING,
        [RUN_STOPPING] = 1 << RUN_STARTING | 1 << RUN_TRAINING,
        [RUN_LEAVING] = (1 << RUN_LEAVING) - 1,
        [RUN_OVER] = 1 << RUN_LEAVING,
    };
    if (!(from[state] & 1 << c->state))
        return;
    int trained = c->state >= RUN_STARTING && !c->config->digest_only;
    c->state = state;
    c->state_ns = c->note_ns = clock_ns();
    c->deadline_ns = 0;
    if (state == RUN_LEAVING && trained)
        judge_end(c);
    begin_state(c);
}

/* The run's reason and its event. 0 when there was a reason before: what a failure brings down has
 * its say in the events only. */
static int note_failure(coordinator_t *c, int code, const char *text)
{
    event_t e;
    int first = c->code == 0 || c->code == ERR_STOPPED;
    event_begin(&e, first ? "failure" : "after-failure");
    json_key_string(&e.json, first ? "why" : "what", text);
    if (first)
        json_key_string(&e.json, "state", run_state_name(c->state));
    event_end(c, &e);
    if (!first)
        return 0;
    c->code = code < 0 ? code : ERR_FAILED;
    snprintf(c->text, sizeof c->text, "%s", text);
    return 1;
}

void run_fail(coordinator_t *c, int code, const char *fmt, ...)
{
    char text[sizeof c->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    /* A run that gave up is brought to its end by whatever fails behind that. */
    if (!note_failure(c, code, text) && !c->gave_up)
        return;
    if (c->hub) {
        /* Release with the bell: whoever wakes sees the word; partner: acquire loads of the bell.
         */
        atomic_store_explicit(&c->hub->abort_word, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&c->hub->work_bell, 1, memory_order_release);
        futex_wake(&c->hub->work_bell, INT_MAX);
    }
    run_enter(c, RUN_LEAVING);
}

double run_stop_seconds(coordinator_t *c)
{
    double longest = 0;
    for (uint32_t r = 0; r < c->ranks; r++) {
        const board_page_t *page = board_page(c->board, proc_trainer(c, r)->page);
        uint64_t n = atomic_load_explicit(&page->steps_done, memory_order_relaxed);
        double all = (double)atomic_load_explicit(&page->step_ns, memory_order_relaxed) / 1e9;
        if (n && all / (double)n > longest)
            longest = all / (double)n;
    }
    /* A quarter more than the usual step: it may be a slow one. */
    double step = longest * 1.25;
    return step > c->options.stop_deadline ? step + RUN_CHECKPOINT_S : c->options.stop_deadline;
}

static void tell_stop(coordinator_t *c, const char *who)
{
    event_t e;
    event_begin(&e, "stop");
    json_key_string(&e.json, "by", who);
    json_key_int(&e.json, "times", c->interrupts);
    event_end(c, &e);
}

static void end_at_once(coordinator_t *c, const char *who)
{
    run_note(c, LOG_WARN, "%s: everything is ended at once", who);
    c->interrupts = 2;
    if (c->code == 0 || c->code == ERR_STOPPED) {
        c->code = ERR_FAILED;
        snprintf(c->text, sizeof c->text, "ended at once by %s, without a checkpoint%s%s", who,
                 c->weights_saved || c->resumed ? "; the last one is whole: resume=" : "",
                 c->weights_saved || c->resumed ? c->run_dir : "");
    }
    run_enter(c, RUN_LEAVING);
    c->deadline_ns = clock_ns() + RUN_UNKILLABLE_S * 1000000000ull;
    proc_kill(c, 1);
}

void run_interrupt_now(coordinator_t *c, const char *who)
{
    c->interrupts++;
    c->user_stop = 1;
    tell_stop(c, who);
    end_at_once(c, who);
}

void run_give_up(coordinator_t *c, int code, const char *fmt, ...)
{
    char text[sizeof c->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->state == RUN_STOPPING && c->code == 0) {
        /* It is being stopped anyway, and only has no data to wait for; its time stays what it was. */
        uint64_t now = clock_ns(), until = c->stop_until_ns > now ? c->stop_until_ns : now;
        run_note(c, LOG_WARN, "%s", text);
        proc_stop(c, BOARD_TRAINER, WIRE_STOP_NO_DATA, (double)(until - now) / 1e9);
        return;
    }
    if (c->config->digest_only || !run_trains(c) || c->state != RUN_TRAINING || c->code < 0) {
        run_fail(c, code, "%s", text);
        return;
    }
    note_failure(c, code, text);
    c->gave_up = 1;
    run_note(c, LOG_ERROR, "%s; stopping after a checkpoint", text);
    run_enter(c, RUN_STOPPING);
}

/* Stopped before the trainers were started. What a run that is resumed had to go on from is still
 * there; before its folder is open nobody knows whether there is anything. */
static void stop_before_training(coordinator_t *c, const char *who, int trains)
{
    c->code = c->resumed ? ERR_STOPPED : ERR_FAILED;
    if (c->resumed)
        snprintf(
            c->text, sizeof c->text,
            "stopped by %s before training went on; resume=%s goes on from the checkpoint that it "
            "had",
            who, c->run_dir);
    else if (trains && c->options.resume[0])
        snprintf(c->text, sizeof c->text, "stopped by %s before %s was opened", who,
                 c->options.resume);
    else
        snprintf(c->text, sizeof c->text, "stopped by %s%s", who,
                 trains ? " before training began: there is no checkpoint" : "");
}

void run_interrupt(coordinator_t *c, const char *who)
{
    c->interrupts++;
    tell_stop(c, who);
    int waiting = c->state == RUN_LEAVING && clock_ns() - c->state_ns > RUN_LEAVE_S * 1000000000ull;
    if (c->interrupts > 1 || waiting) {
        end_at_once(c, who);
        return;
    }
    c->user_stop = 1;
    if (c->state == RUN_LEAVING)
        return;
    if (c->state == RUN_STOPPING) { /* it has given up: its checkpoint is under way */
        run_note(c, LOG_INFO, "%s: a checkpoint is being written already; again ends at once", who);
        return;
    }
    int trains = !c->config->digest_only && run_trains(c);
    if (trains && (c->state == RUN_STARTING || c->state == RUN_TRAINING)) {
        run_note(c, LOG_INFO,
                 "%s: finishing the step and writing a checkpoint (at most %g s); another Ctrl-C "
                 "ends at once",
                 who, run_stop_seconds(c));
        run_enter(c, RUN_STOPPING);
        return;
    }
    if (c->code == 0)
        stop_before_training(c, who, trains);
    run_enter(c, RUN_LEAVING);
    proc_kill(c, 0);
}

static int make_names(coordinator_t *c)
{
    unsigned char random[24];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_sys(ERR_ENV, "no random bytes");
    for (int i = 0; i < 16; i++)
        snprintf(c->token + 2 * i, 3, "%02x", random[i]);
    int n = snprintf(c->endpoint, sizeof c->endpoint, "ipc://@sluice-");
    for (int i = 16; i < 24; i++)
        n += snprintf(c->endpoint + n, sizeof c->endpoint - (size_t)n, "%02x", random[i]);
    return 0;
}

static int make_memfd(const char *name, int *fd)
{
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return *fd < 0 ? err_sys(ERR_ENV, "memfd %s", name) : 0;
}

static int begin(coordinator_t *c)
{
    int rc;
    CHECK_GOTO(resume_absolute(&c->options, c->config->digest_only), rc, fail);
    CHECK_GOTO(make_names(c), rc, fail);
    CHECK_GOTO(loop_signals(c), rc, fail);
    CHECK_GOTO(machine_prepare(), rc, fail);
    CHECK_GOTO(bus_trial(c->endpoint), rc, fail);
    CHECK_GOTO(bus_listen(c->endpoint, &c->bus), rc, fail);
    CHECK_GOTO(outbox_new(OUTBOX_SOFT, OUTBOX_HARD, &c->outbox), rc, fail);
    CHECK_GOTO(board_create(RUN_PROCESSES, &c->board, &c->board_fd), rc, fail);
    c->hub = board_hub(c->board);
    CHECK_GOTO(make_memfd("sluice-catalog", &c->catalog_fd), rc, fail);
    CHECK_GOTO(make_memfd("sluice-collective", &c->collective_fd), rc, fail);
    CHECK_GOTO(make_memfd("sluice-snapshot", &c->snapshot_fd), rc, fail);
    c->procs = calloc(RUN_PROCESSES, sizeof *c->procs);
    if (!c->procs)
        return err_set(ERR_ENV, "no memory for the table of processes");
    proc_init(c);
    CHECK_GOTO(options_dump_yaml(&c->options, c->yaml, sizeof c->yaml), rc, fail);
    open_watch(c);
    return 0;
fail:
    return rc;
}

/* What came too late would end the process by the signal, and not with its exit status. */
static void drain_signals(const coordinator_t *c)
{
    struct signalfd_siginfo s;
    while (read(c->signal_fd, &s, sizeof s) == (ssize_t)sizeof s)
        ;
}

static void end(coordinator_t *c)
{
    int fds[] = {c->signal_fd,     c->board_fd,    c->catalog_fd,
                 c->collective_fd, c->snapshot_fd, c->answer_fd};
    registry_remove(&c->registry);
    for (uint32_t i = 0; c->procs && i < RUN_PROCESSES; i++)
        if (c->procs[i].child.pid > 0)
            supervise_close(&c->procs[i].child);
    /* Watchers that read have the last message by now, or in a moment; nobody else is waited for
     * long. */
    bus_close_flushed(&c->watchers, RUN_WATCH_MS);
    bus_close(&c->bus);
    outbox_free(&c->outbox);
    ledger_free(&c->ledger);
    results_free(c);
    warned_fini(&c->warned);
    for (uint32_t r = 0; r < WIRE_RANKS; r++) {
        if (c->rings[r])
            ring_close(&c->rings[r]);
        if (c->ring_fd[r] >= 0)
            close(c->ring_fd[r]);
    }
    if (c->catalog)
        catalog_close(&c->catalog);
    if (c->board)
        board_close(&c->board);
    if (c->signal_fd >= 0) {
        drain_signals(c);
        sigprocmask(SIG_SETMASK, &c->old_mask, NULL);
    }
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(c->procs);
    free(c->replay);
    free(c->gpus);
    free(c);
}

/* The newest checkpoint did not reach the disk: the run has not left what it promised. */
static void judge_checkpoint(coordinator_t *c)
{
    if (!c->checkpoint_failed && c->snapshots_pending == 0)
        return;
    if (c->code < 0 && c->code != ERR_STOPPED)
        return;
    c->code = ERR_FAILED;
    snprintf(c->text, sizeof c->text, "the last checkpoint was not written: %s",
             c->checkpoint_failed ? c->checkpoint_text : "its storage did not answer");
}

static void tell_end(coordinator_t *c)
{
    coordinator_summary_t s = {.code = c->code,
                               .run_dir = c->run_dir,
                               .epochs_done = c->epochs_done,
                               .best_epoch = c->best_epoch,
                               .has_map = c->has_map,
                               .best_before = c->best_before,
                               .stopped_early = c->stopped_early,
                               .weights_saved = c->weights_saved,
                               .map50 = c->best_map50,
                               .map = c->best_map,
                               .last_map = (double)c->last_epoch.map,
                               .seconds = (double)(clock_ns() - c->start_ns) / 1e9,
                               .stream = c->stream,
                               .left_out = c->left_out,
                               .bad = (c->ledger ? ledger_samples(c->ledger) : 0) + c->bad_images,
                               .warned = warned_count(&c->warned)};
    if (c->view->end)
        c->view->end(c->view->user, &s);
}

/* log_sink's function: what modules below log is told as the coordinator's own notes are. */
static void take_log_line(void *user, log_level_t level, const char *text)
{
    run_note(user, level, "%s", text);
}

int coordinator_run(const coordinator_config_t *config)
{
    coordinator_t *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(ERR_ENV, "no memory for the coordinator");
    c->config = config;
    c->view = &config->view;
    c->options = config->options;
    c->start_ns = clock_ns();
    c->signal_fd = c->board_fd = c->catalog_fd = c->collective_fd = c->snapshot_fd = -1;
    c->answer_fd = -1;
    for (uint32_t r = 0; r < WIRE_RANKS; r++)
        c->ring_fd[r] = -1;
    if (c->view->note)
        log_sink(take_log_line, c);
    int rc = begin(c);
    if (rc < 0) {
        c->code = rc;
        snprintf(c->text, sizeof c->text, "%s", err_text());
    } else {
        run_enter(c, config->digest_only ? RUN_SCANNING : RUN_OPENING);
        loop_run(c);
        judge_checkpoint(c);
        record_end(c);
        tell_end(c);
    }
    rc = c->code;
    if (rc < 0)
        err_set(rc, "%s", c->text);
    log_sink(NULL, NULL);
    end(c);
    return rc;
}
