/* Starting processes, and what their ends mean. */
#include "control/coordinator_state.h"
#include "control/machine.h"
#include "control/programs.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum {
    AT_SCRIBE = 0,
    AT_SCAN,
    AT_SWEEP,
    AT_ASK,
    AT_TRAINERS,
    AT_LOADERS = AT_TRAINERS + WIRE_RANKS
};
enum { RESPAWN_FIRST_MS = 50, RESPAWN_MOST_MS = 5000 };

proc_t *proc_scribe(coordinator_t *c)
{
    return &c->procs[AT_SCRIBE];
}

proc_t *proc_scan(coordinator_t *c)
{
    return &c->procs[AT_SCAN];
}

proc_t *proc_sweep(coordinator_t *c)
{
    return &c->procs[AT_SWEEP];
}

proc_t *proc_ask(coordinator_t *c)
{
    return &c->procs[AT_ASK];
}

proc_t *proc_trainer(coordinator_t *c, uint32_t rank)
{
    return &c->procs[AT_TRAINERS + rank];
}

proc_t *proc_loader(coordinator_t *c, uint32_t index)
{
    return &c->procs[AT_LOADERS + index];
}

void proc_init(coordinator_t *c)
{
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        proc_t *p = &c->procs[i];
        p->page = i;
        p->kind = i == AT_SCRIBE || i == AT_SWEEP ? BOARD_SCRIBE
                  : i == AT_SCAN || i == AT_ASK   ? BOARD_SCAN
                  : i < AT_LOADERS                ? BOARD_TRAINER
                                                  : BOARD_LOADER;
        p->index = i < AT_TRAINERS ? 0 : i < AT_LOADERS ? i - AT_TRAINERS : i - AT_LOADERS;
        p->child.pidfd = p->child.lifeline = p->child.errors = p->child.start = -1;
        if (p->kind == BOARD_LOADER || p->kind == BOARD_TRAINER)
            snprintf(p->name, sizeof p->name, "%s-%u", board_kind_name(p->kind), p->index);
        else if (i == AT_SWEEP)
            snprintf(p->name, sizeof p->name, "sweep");
        else
            snprintf(p->name, sizeof p->name, "%s", board_kind_name(p->kind));
    }
}

proc_t *proc_find(coordinator_t *c, const char *identity)
{
    for (uint32_t i = 0; i < RUN_PROCESSES; i++)
        if (c->procs[i].state != PROC_NONE && strcmp(c->procs[i].identity, identity) == 0)
            return &c->procs[i];
    return NULL;
}

int proc_any_alive(coordinator_t *c, uint32_t kind)
{
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        const proc_t *p = &c->procs[i];
        if (p->state != PROC_NONE &&
            (kind == BOARD_NONE ? p->kind != BOARD_SCRIBE : p->kind == kind))
            return 1;
    }
    return 0;
}

/* Exactly what a process of this kind needs (design 3: arenas are inherited by descriptor). */
static int descriptors(const coordinator_t *c, const proc_t *p, int *fds)
{
    int n = 0;
    fds[n++] = c->board_fd;
    fds[n++] = c->catalog_fd;
    if (p->kind == BOARD_SCRIBE || p->kind == BOARD_TRAINER)
        fds[n++] = c->snapshot_fd;
    if (p->kind == BOARD_TRAINER) {
        fds[n++] = c->collective_fd;
        fds[n++] = c->ring_fd[p->index];
    }
    for (uint32_t r = 0; p->kind == BOARD_LOADER && r < c->ranks; r++)
        fds[n++] = c->ring_fd[r];
    return n;
}

static void program_of(const coordinator_t *c, const proc_t *p, char *path, size_t bytes)
{
    const char *name = p->kind == BOARD_SCRIBE ? "sluice-scribe" : "sluice-loader";
    if (p->kind == BOARD_TRAINER)
        programs_trainer(c->config->bin_dir, c->options.devices[p->index] >= 0, path, bytes);
    else
        snprintf(path, bytes, "%s/%s", c->config->bin_dir, name);
}

void proc_began(proc_t *p, uint32_t seconds)
{
    p->state = PROC_STARTED;
    p->since_ns = clock_ns();
    p->deadline_ns = p->since_ns + seconds * 1000000000ull;
    p->ready = p->said_bye = p->bye_status = p->stop_wanted = p->stop_sent = p->kill_sent =
        p->stuck_told = p->last_is_error = 0;
    p->inert = 0;
    p->epochs_sent = p->ledger_sent = 0;
    p->respawn_ns = 0;
    p->line_used = 0;
    p->last_words[0] = p->bye_text[0] = '\0';
}

int proc_start(coordinator_t *c, proc_t *p)
{
    char program[PATH_MAX], token[64], kind[16], index[16], incarnation[16], list[16];
    int fds[SUPERVISE_FDS], n_env = 0;
    const char *env[5] = {NULL};
    p->incarnation = ++c->incarnations;
    program_of(c, p, program, sizeof program);
    snprintf(token, sizeof token, "SLUICE_TOKEN=%s", c->token);
    snprintf(kind, sizeof kind, "%u", p->kind);
    snprintf(index, sizeof index, "%u", p->index);
    snprintf(incarnation, sizeof incarnation, "%u", p->incarnation);
    snprintf(list, sizeof list, "%d", c->catalog_fd);
    const char *args[16] = {"--endpoint", c->endpoint,     "--kind",    kind, "--index",
                            index,        "--incarnation", incarnation, NULL};
    if (p->kind == BOARD_SCAN) {
        args[8] = "--scan";
        args[9] = "--catalog-fd";
        args[10] = list;
    } else if (p == proc_sweep(c)) {
        args[0] = "--sweep";
        args[1] = c->run_dir;
        /* A folder that was made for a run which never began goes, as with any start that fails. */
        args[2] = c->resumed || c->options.exist_ok ? NULL : "--discard";
        args[3] = NULL;
    }
    env[n_env++] = token;
    if (p->kind == BOARD_TRAINER) {
        const char *core = supervise_blas();
        env[n_env++] = "OPENBLAS_NUM_THREADS=1"; /* the kernels thread by themselves */
        if (core)
            env[n_env++] = core;
    }
    supervise_spec_t spec = {.program = program, .args = args, .env = env, .fds = fds};
    spec.n_fds = descriptors(c, p, fds);
    int rc = supervise_spawn(&spec, &p->child);
    if (rc < 0)
        return err_add(rc, "%s", p->name);
    snprintf(p->identity, sizeof p->identity, "%s-%u.%u",
             p == proc_sweep(c) ? p->name : board_kind_name(p->kind), p->index, p->incarnation);
    proc_began(p, p == proc_sweep(c) ? RUN_SWEEP_S : RUN_HELLO_S);
    return 0;
}

int proc_send(coordinator_t *c, const proc_t *p, const void *frame, size_t bytes)
{
    return p->state == PROC_JOINED ? bus_send(c->bus, p->identity, frame, bytes) : ERR_GONE;
}

/* Told now, or by proc_catch_up when it has joined: a stop must not pass by a process that is just
 * starting. The time runs from now in either case. */
static void send_stop(coordinator_t *c, proc_t *p, wire_stop_why_t why, double seconds)
{
    p->stop_wanted = (int)why + 1;
    p->deadline_ns = clock_ns() + (uint64_t)(seconds * 1e9);
    supervise_continue(&p->child);
    proc_catch_up(c, p);
}

static void catch_up_stop(coordinator_t *c, proc_t *p)
{
    wire_stop_t stop;
    uint64_t now = clock_ns();
    if (p->stop_wanted == 0 || p->stop_wanted == p->stop_sent)
        return;
    memset(&stop, 0, sizeof stop);
    wire_begin(&stop, WIRE_STOP, sizeof stop);
    stop.why = (uint32_t)p->stop_wanted - 1;
    stop.deadline_ms = p->deadline_ns > now ? (uint32_t)((p->deadline_ns - now) / 1000000) : 0;
    if (proc_send(c, p, &stop, sizeof stop) == 0)
        p->stop_sent = p->stop_wanted;
}

void proc_stop(coordinator_t *c, uint32_t kind, wire_stop_why_t why, double seconds)
{
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        proc_t *p = &c->procs[i];
        if (!proc_alive(p) || (kind == BOARD_NONE ? p->kind == BOARD_SCRIBE : p->kind != kind))
            continue;
        send_stop(c, p, why, seconds);
        if (p == proc_ask(c)) { /* it hears no message, and has nothing to leave in order */
            supervise_kill(&p->child);
            p->kill_sent = 1;
            p->deadline_ns = clock_ns() + RUN_UNKILLABLE_S * 1000000000ull;
        }
    }
}

void proc_kill(coordinator_t *c, int with_scribe)
{
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        proc_t *p = &c->procs[i];
        if (!proc_alive(p) || (!with_scribe && p->kind == BOARD_SCRIBE))
            continue;
        supervise_kill(&p->child);
        p->kill_sent = 1;
        p->deadline_ns = clock_ns() + RUN_UNKILLABLE_S * 1000000000ull;
    }
}

/* The longer the more often it has died. */
static void respawn_later(proc_t *p)
{
    uint64_t pause = RESPAWN_FIRST_MS;
    for (uint32_t i = 1; i < p->deaths && pause < RESPAWN_MOST_MS; i++)
        pause *= 4;
    p->respawn_ns = clock_ns() + pause * 1000000;
}

/* No process can be made at present: with other loaders at work that is no reason to end a run. */
static int loader_not_started(coordinator_t *c, proc_t *p, int rc)
{
    if (++p->deaths > RUN_DEATHS || !proc_any_alive(c, BOARD_LOADER)) {
        run_fail(c, rc, "%s", err_text());
        return rc;
    }
    run_note(c, LOG_WARN, "%s; tried again soon", err_text());
    respawn_later(p);
    return 0;
}

void proc_scale_loaders(coordinator_t *c)
{
    uint64_t now = clock_ns();
    if (c->state != RUN_STARTING && c->state != RUN_TRAINING && c->state != RUN_STOPPING)
        return;
    atomic_store_explicit(&c->hub->loaders_wanted, c->workers, memory_order_relaxed);
    /* A thousand at once would hold up the loop; the rest has its turn at the next tick. */
    uint32_t started = 0;
    for (uint32_t i = 0; i < RUN_LOADERS_MAX; i++) {
        proc_t *p = proc_loader(c, i);
        if (i < c->workers && p->state == PROC_NONE && now >= p->respawn_ns) {
            if (started++ >= RUN_STARTS)
                continue;
            int rc = proc_start(c, p);
            if (rc < 0 && loader_not_started(c, p, rc) < 0)
                return;
        } else if (i >= c->workers && proc_alive(p) && !p->stop_wanted) {
            send_stop(c, p, WIRE_STOP_DONE, RUN_LEAVE_S);
        }
    }
}

void proc_catch_up(coordinator_t *c, proc_t *p)
{
    if (p->state != PROC_JOINED)
        return;
    catch_up_stop(c, p);
    if (p->kind != BOARD_LOADER && p->kind != BOARD_TRAINER)
        return;
    /* The ledger before the epochs: a loader claims no cell of an epoch that it has not been told of,
     * and plans none without the entries that hold. */
    int ledger = p->kind == BOARD_LOADER || p->index == 0;
    for (; ledger && p->ledger_sent < ledger_count(c->ledger); p->ledger_sent++)
        if (proc_send(c, p, ledger_at(c->ledger, p->ledger_sent), sizeof(wire_ledger_t)) < 0)
            return;
    if (p->epochs_sent == 0)
        p->epochs_sent =
            c->epochs_announced >= c->first_epoch + 2 ? c->epochs_announced - 2 : c->first_epoch;
    for (; p->epochs_sent < c->epochs_announced; p->epochs_sent++) {
        uint32_t e = p->epochs_sent;
        wire_epoch_t m;
        memset(&m, 0, sizeof m);
        wire_begin(&m, WIRE_EPOCH, sizeof m);
        m.epoch = e;
        m.mosaic = (uint32_t)plan_mosaic(&c->plan, e);
        m.imgsz = c->plan.imgsz;
        m.ranks = c->plan.ranks;
        m.batch = c->plan.batch;
        m.train_steps = plan_end_step(&c->plan, e);
        m.val_steps = plan_validates(&c->plan, e) ? plan_val_steps(&c->plan) : 0;
        m.seed = c->plan.seed;
        m.list_digest = c->list_digest;
        m.agreement = wire_agreement(&c->plan, e, c->list_digest);
        if (proc_send(c, p, &m, sizeof m) < 0)
            return;
    }
}

uint64_t run_cells_done(coordinator_t *c)
{
    uint64_t sum = c->cells_before;
    for (uint32_t i = 0; i < RUN_LOADERS_MAX; i++) {
        proc_t *p = proc_loader(c, i);
        board_page_t *page = board_page(c->board, p->page);
        /* A page still shows its last owner until the next has opened it. */
        if (p->state != PROC_NONE &&
            atomic_load_explicit(&page->incarnation, memory_order_relaxed) == p->incarnation)
            sum += atomic_load_explicit(&page->cells_done, memory_order_relaxed);
    }
    return sum;
}

/* What is known of an unexpected end, for a person; the code that a run failed by it has. */
static int last_words(const proc_t *p, char *text, size_t bytes)
{
    char how[512];
    supervise_describe(&p->child, how, sizeof how);
    int killed = WIFSIGNALED(p->child.status) && WTERMSIG(p->child.status) == SIGKILL;
    snprintf(text, bytes, "%s (pid %d) %.400s%s%s%.450s", p->name, (int)p->child.pid, how,
             killed ? ", which is often the kernel short of memory" : "",
             p->last_words[0] ? "; its last words: " : "", p->last_words);
    /* Our programs end with the documented statuses, also before they can say goodbye. */
    int status = WIFEXITED(p->child.status) ? WEXITSTATUS(p->child.status) : 0;
    if (programs_unloaded(&p->child))
        return ERR_ENV;
    return status >= 2 && status <= 4 ? -status : ERR_FAILED;
}

/* The loader has been seen dead (reaped, so every one of its threads is gone): its cells return to
 * EMPTY and the others are woken. */
static uint32_t fence(coordinator_t *c, const proc_t *p)
{
    uint32_t cells = 0;
    KILL_POINT(FENCE_BEFORE);
    for (uint32_t r = 0; r < c->ranks; r++)
        if (c->rings[r])
            cells += ring_fence(c->rings[r], p->incarnation);
    KILL_POINT(FENCE_AFTER);
    /* Release: the words above are seen by whoever sees the bell; partner: the loaders' acquire
     * load. */
    atomic_fetch_add_explicit(&c->hub->work_bell, 1, memory_order_release);
    futex_wake(&c->hub->work_bell, INT_MAX);
    return cells;
}

static void loader_died(coordinator_t *c, proc_t *p, uint32_t fenced, uint64_t own_cells)
{
    char how[1024];
    event_t e;
    uint64_t done = run_cells_done(c);
    int code = last_words(p, how, sizeof how);
    c->deaths = done > c->cells_at_death ? 1 : c->deaths + 1;
    c->cells_at_death = done;
    p->deaths = own_cells ? 1 : p->deaths + 1;
    event_begin(&e, "loader-dead");
    json_key_uint(&e.json, "loader", p->index);
    json_key_int(&e.json, "pid", p->child.pid);
    json_key_string(&e.json, "how", how);
    json_key_uint(&e.json, "cells_returned", fenced);
    event_end(c, &e);
    if (c->deaths > RUN_DEATHS || p->deaths > RUN_DEATHS) {
        run_fail(c, code, "loaders keep dying: %u deaths without an image made in between; %s",
                 c->deaths > p->deaths ? c->deaths : p->deaths, how);
        return;
    }
    respawn_later(p);
    run_note(c, LOG_WARN, "%s; its %u unfinished images go to other loaders, a new one starts", how,
             fenced);
}

/* Done by this incarnation. */
static uint64_t own_cells(coordinator_t *c, const proc_t *p)
{
    board_page_t *page = board_page(c->board, p->page);
    if (atomic_load_explicit(&page->incarnation, memory_order_relaxed) != p->incarnation)
        return 0;
    return atomic_load_explicit(&page->cells_done, memory_order_relaxed);
}

static void loader_ended(coordinator_t *c, proc_t *p)
{
    uint64_t own = own_cells(c, p);
    uint32_t fenced = fence(c, p);
    c->cells_before += own;
    p->state = PROC_NONE;
    if (c->state == RUN_LEAVING || c->state == RUN_OVER || p->stop_wanted)
        return;
    if (p->said_bye && p->bye_status < 0)
        run_fail(c, p->bye_status, "%s: %s", p->name, p->bye_text);
    else
        loader_died(c, p, fenced, own);
}

static void trainer_ended(coordinator_t *c, proc_t *p)
{
    char how[1024];
    if (c->state == RUN_LEAVING || c->state == RUN_OVER)
        return;
    if (p->said_bye && (p->bye_status == 0 || p->bye_status == ERR_STOPPED)) {
        if (!proc_any_alive(c, BOARD_TRAINER))
            run_enter(c, RUN_LEAVING);
        return;
    }
    if (p->said_bye) {
        run_fail(c, p->bye_status, "%s: %s", p->name, p->bye_text);
        return;
    }
    event_t e;
    int code = last_words(p, how, sizeof how);
    event_begin(&e, "rank-dead");
    json_key_uint(&e.json, "rank", p->index);
    json_key_string(&e.json, "how", how);
    event_end(c, &e);
    if (c->weights_saved || c->resumed)
        run_fail(c, code, "%s; resume=%s goes on from the last checkpoint", how, c->run_dir);
    else
        run_fail(c, code, "%s%s", how, run_trains(c) ? "; there is no checkpoint yet" : "");
}

/* A scribe that was killed in the middle of something: another process looks, for it is storage. */
static void scribe_swept(coordinator_t *c, const proc_t *scribe)
{
    proc_t *p = proc_sweep(c);
    if (scribe->said_bye || !c->run_dir[0] || p->state != PROC_NONE)
        return;
    if (proc_start(c, p) < 0)
        run_note(c, LOG_WARN, "%s; the next start tidies up in %s", err_text(), c->run_dir);
}

/* The child that was asked. */
static void asked_ended(coordinator_t *c, const proc_t *p)
{
    char how[1024];
    if (p->kill_sent || c->state != RUN_SCANNING)
        return;
    int well = WIFEXITED(p->child.status) && WEXITSTATUS(p->child.status) == 0;
    int unloaded = programs_unloaded(&p->child) && strcmp(p->name, "devices") == 0;
    int rc = well       ? devices_answered(c)
             : unloaded ? devices_unloaded(c)
                        : last_words(p, how, sizeof how);
    if (rc < 0)
        run_fail(c, rc, "%s", well || unloaded ? err_text() : how);
}

static void helper_ended(coordinator_t *c, proc_t *p)
{
    char how[1024];
    if (p == proc_sweep(c))
        return;
    if (p == proc_scribe(c))
        scribe_swept(c, p);
    if (p == proc_ask(c)) {
        asked_ended(c, p);
        return;
    }
    /* What we killed, and a scan that nobody waits for any more, have nothing to say. */
    if (p->kill_sent || (p->kind == BOARD_SCAN && c->state != RUN_SCANNING))
        return;
    if (p->said_bye && p->bye_status < 0) {
        run_fail(c, p->bye_status, "%s", p->bye_text);
    } else if (p->kind == BOARD_SCAN && p->said_bye) {
        int rc = start_from_list(c);
        if (rc < 0)
            run_fail(c, rc, "%s", err_text());
    } else if (p->said_bye && c->state == RUN_LEAVING) {
        return;
    } else {
        int code = last_words(p, how, sizeof how);
        if (c->weights_saved || c->resumed)
            run_fail(c, code, "%s; resume=%s goes on from the last checkpoint", how, c->run_dir);
        else
            run_fail(c, code, "%s", how);
    }
}

/* A goodbye may still be in a socket when its sender has ended; a signal's victim sends none. */
static int still_to_come(const proc_t *p, uint64_t now)
{
    return !p->said_bye && !WIFSIGNALED(p->child.status) &&
           now - p->since_ns < RUN_LAST_WORDS_MS * 1000000ull;
}

void proc_leave_held(coordinator_t *c, proc_t *p)
{
    if (p->kind == BOARD_LOADER) {
        uint32_t fenced = fence(c, p);
        event_t e;
        c->held++;
        c->cells_before += own_cells(c, p);
        event_begin(&e, "loader-held");
        json_key_uint(&e.json, "loader", p->index);
        json_key_int(&e.json, "pid", p->child.pid);
        json_key_uint(&e.json, "cells_returned", fenced);
        event_end(c, &e);
        respawn_later(p);
    }
    p->state = PROC_NONE;
    supervise_close(&p->child);
    p->child.pid = 0;
}

static void conclude(coordinator_t *c, proc_t *p)
{
    /* The state changes first: what the end leads to asks who is still there. A loader's stays
     * until its cells are counted. */
    if (p->kind == BOARD_LOADER) {
        loader_ended(c, p);
    } else {
        p->state = PROC_NONE;
        if (p->kind == BOARD_TRAINER)
            trainer_ended(c, p);
        else
            helper_ended(c, p);
    }
    supervise_close(&p->child);
    p->child.pid = 0;
}

static int is_ours(void *user, int pid)
{
    const coordinator_t *c = user;
    for (uint32_t i = 0; i < RUN_PROCESSES; i++)
        if (c->procs[i].state != PROC_NONE && c->procs[i].child.pid == pid)
            return 1;
    return 0;
}

void proc_collect(coordinator_t *c)
{
    for (uint32_t i = 0; i < RUN_PROCESSES; i++) {
        proc_t *p = &c->procs[i];
        if (p->state == PROC_NONE)
            continue;
        record_stderr(c, p, 0);
        if (proc_alive(p) && supervise_ended(&p->child)) {
            p->state = PROC_ENDED;
            p->since_ns = clock_ns();
            p->deadline_ns = 0;
            message_drain(c);
            record_stderr(c, p, 1);
        }
        if (p->state == PROC_ENDED && !still_to_come(p, clock_ns()))
            conclude(c, p);
    }
    machine_reap_orphans(is_ours, c);
}
