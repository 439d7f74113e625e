/* Answers to sluice status, stop and scale. */
#include "control/coordinator_state.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cell that has been in one phase for this long is named with its file. */
enum { STATUS_BYTES = 1 << 19, STATUS_LONG_NS = 1000000000 };

static const char *const cell_phases[] = {
    [CELL_FREE] = NULL,       [CELL_OPEN] = "open",       [CELL_READ] = "read",
    [CELL_DECODE] = "decode", [CELL_AUGMENT] = "augment",
};

static uint64_t word(const _Atomic uint64_t *w)
{
    return atomic_load_explicit(w, memory_order_relaxed);
}

static uint32_t half(const _Atomic uint32_t *w)
{
    return atomic_load_explicit(w, memory_order_relaxed);
}

static double seconds_since(uint64_t ns)
{
    uint64_t now = clock_ns();
    return ns && now > ns ? (double)(now - ns) / 1e9 : 0;
}

/* A process's page if it is the process's own by now, else NULL. */
static board_page_t *page_of(coordinator_t *c, const proc_t *p)
{
    board_page_t *page = board_page(c->board, p->page);
    return p->state != PROC_NONE && half(&page->incarnation) == p->incarnation ? page : NULL;
}

static void count_cells(const board_page_t *page, uint32_t n[5])
{
    memset(n, 0, 5 * sizeof *n);
    for (int i = 0; i < BOARD_INFLIGHT; i++) {
        uint32_t phase = half(&page->inflight[i].phase);
        if (phase < 5)
            n[phase]++;
    }
}

/* What of a loader's work has taken longest: the file, its phase, since when. 0: nothing takes
 * long. The words are read one by one while the loader works on: a mixture of two cells is possible
 * and of no consequence. */
typedef struct {
    const char *phase, *path;
    double seconds;
} slowest_t;

static int slowest_cell(coordinator_t *c, const board_page_t *page, slowest_t *s)
{
    uint64_t now = clock_ns(), oldest = 0;
    int at = -1;
    for (int i = 0; i < BOARD_INFLIGHT; i++) {
        const board_cell_t *cell = &page->inflight[i];
        uint64_t since = word(&cell->since_ns), age = now > since ? now - since : 0;
        if (half(&cell->phase) == CELL_FREE || age < STATUS_LONG_NS || age < oldest)
            continue;
        oldest = age;
        at = i;
    }
    if (at < 0 || !c->catalog)
        return 0;
    const board_cell_t *cell = &page->inflight[at];
    uint32_t phase = half(&cell->phase), split = half(&cell->split);
    const catalog_sample_t *sample =
        split < CATALOG_SPLITS
            ? catalog_sample(c->catalog, (catalog_split_t)split, half(&cell->sample))
            : NULL;
    if (!sample || phase == CELL_FREE || phase > CELL_AUGMENT)
        return 0;
    *s = (slowest_t){cell_phases[phase], catalog_path(c->catalog, sample), (double)oldest / 1e9};
    return 1;
}

static void json_process(coordinator_t *c, json_t *j, const proc_t *p)
{
    const board_page_t *page = page_of(c, p);
    json_object_begin(j);
    json_key_string(j, "name", p->name);
    json_key_int(j, "pid", p->child.pid);
    json_key_uint(j, "incarnation", p->incarnation);
    json_key_string(j, "phase", page ? board_phase_name(half(&page->phase)) : "starting");
    json_key_number(j, "since_s", page ? seconds_since(word(&page->since_ns)) : 0);
    if (page && p->kind == BOARD_TRAINER) {
        json_key_uint(j, "epoch", half(&page->epoch) + 1);
        json_key_uint(j, "step", half(&page->step) + 1);
        json_key_uint(j, "steps_done", word(&page->steps_done));
        json_key_uint(j, "images_done", word(&page->images_done));
        json_key_number(j, "wait_data_s", (double)word(&page->wait_data_ns) / 1e9);
    }
    if (page && p->kind == BOARD_LOADER) {
        slowest_t slow;
        uint32_t n[5];
        count_cells(page, n);
        json_key_uint(j, "cells_done", word(&page->cells_done));
        json_key_uint(j, "bytes_read", word(&page->bytes_read));
        for (int i = CELL_OPEN; i <= CELL_AUGMENT; i++)
            json_key_uint(j, cell_phases[i], n[i]);
        if (slowest_cell(c, page, &slow)) {
            json_key_string(j, "slowest_phase", slow.phase);
            json_key_number(j, "slowest_s", slow.seconds);
            json_key_string(j, "slowest_path", slow.path);
        }
    }
    if (page && word(&page->progress_of)) {
        json_key_uint(j, "progress", word(&page->progress));
        json_key_uint(j, "progress_of", word(&page->progress_of));
    }
    if (page)
        json_key_uint(j, "memory_bytes", word(&page->memory_bytes));
    json_object_end(j);
}

static int status_json(coordinator_t *c, char *text, size_t bytes)
{
    json_t j;
    json_begin(&j, text, bytes);
    json_object_begin(&j);
    json_key_string(&j, "run_dir", c->run_dir);
    json_key_string(&j, "state", run_state_name(c->state));
    json_key_number(&j, "since_s", seconds_since(c->state_ns));
    json_key_uint(&j, "epochs", c->plan.epochs);
    json_key_uint(&j, "epochs_done", c->first_epoch + c->epochs_done);
    json_key_uint(&j, "loaders", c->workers);
    json_key_uint(&j, "cells_done", run_cells_done(c));
    json_key_uint(&j, "bad_samples", c->ledger ? ledger_samples(c->ledger) : 0);
    json_key_uint(&j, "refused_messages", bus_refused(c->bus));
    json_key(&j, "rings");
    json_array_begin(&j);
    for (uint32_t r = 0; r < c->ranks && c->rings[r]; r++) {
        json_object_begin(&j);
        json_key_uint(&j, "rank", r);
        json_key_uint(&j, "ready", ring_fill(c->rings[r]));
        json_key_uint(&j, "depth", c->ring_config.depth);
        json_key_uint(&j, "batch", ring_tail(c->rings[r]));
        json_object_end(&j);
    }
    json_array_end(&j);
    json_key(&j, "processes");
    json_array_begin(&j);
    for (uint32_t i = 0; i < RUN_PROCESSES; i++)
        if (c->procs[i].state != PROC_NONE)
            json_process(c, &j, &c->procs[i]);
    json_array_end(&j);
    json_object_end(&j);
    return json_finish(&j);
}

/* A text that grows to its bound and then stays there. */
typedef struct {
    char *text;
    size_t room, used;
} page_t;

__attribute__((format(printf, 2, 3))) static void put(page_t *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->text + t->used, t->room - t->used, fmt, ap);
    va_end(ap);
    if (n > 0)
        t->used = (size_t)n < t->room - t->used ? t->used + (size_t)n : t->room - 1;
}

static void put_loader(coordinator_t *c, page_t *t, const board_page_t *page)
{
    slowest_t slow;
    uint32_t n[5];
    count_cells(page, n);
    put(t, "  %llu images made", (unsigned long long)word(&page->cells_done));
    const char *before = "; under way: ";
    for (int i = CELL_OPEN; i <= CELL_AUGMENT; i++) {
        if (n[i] > 0)
            put(t, "%s%s %u", before, cell_phases[i], n[i]);
        before = n[i] > 0 ? ", " : before;
    }
    if (slowest_cell(c, page, &slow))
        put(t, "\n%-12s          %s for %.1f s: %s", "", slow.phase, slow.seconds, slow.path);
}

static void put_process(coordinator_t *c, page_t *t, const proc_t *p)
{
    const board_page_t *page = page_of(c, p);
    put(t, "%-12s %7d  %-24s %8.1f s", p->name, (int)p->child.pid,
        page ? board_phase_name(half(&page->phase)) : "starting",
        seconds_since(page ? word(&page->since_ns) : p->since_ns));
    if (page && p->kind == BOARD_TRAINER)
        put(t, "  epoch %u step %u, %llu images, %.1f s waited for data", half(&page->epoch) + 1,
            half(&page->step) + 1, (unsigned long long)word(&page->images_done),
            (double)word(&page->wait_data_ns) / 1e9);
    if (page && p->kind == BOARD_LOADER)
        put_loader(c, t, page);
    if (page && p->kind == BOARD_SCRIBE && word(&page->progress_of))
        put(t, "  a file of %.1f MB", (double)word(&page->progress_of) / 1e6);
    else if (page && word(&page->progress_of))
        put(t, "  %llu of %llu", (unsigned long long)word(&page->progress),
            (unsigned long long)word(&page->progress_of));
    put(t, "\n");
}

static int status_text(coordinator_t *c, char *text, size_t bytes)
{
    page_t t = {text, bytes, 0};
    put(&t, "%s: %s for %.1f s", c->run_dir[0] ? c->run_dir : "sluice digest",
        run_state_name(c->state), seconds_since(c->state_ns));
    if (c->plan.epochs)
        put(&t, ", %u of %u epochs done", c->first_epoch + c->epochs_done, c->plan.epochs);
    put(&t, "\n%-12s %7s  %-24s %10s\n", "process", "pid", "phase", "since");
    for (uint32_t i = 0; i < RUN_PROCESSES; i++)
        if (c->procs[i].state != PROC_NONE)
            put_process(c, &t, &c->procs[i]);
    for (uint32_t r = 0; r < c->ranks && c->rings[r]; r++)
        put(&t, "ring of rank %u: %u of %u batches ready, next is batch %llu\n", r,
            ring_fill(c->rings[r]), c->ring_config.depth,
            (unsigned long long)ring_tail(c->rings[r]));
    put(&t, "%llu images made", (unsigned long long)run_cells_done(c));
    if (c->ledger && ledger_samples(c->ledger))
        put(&t, ", %u bad samples", ledger_samples(c->ledger));
    put(&t, "\n");
    return (int)t.used;
}

/* 0, or the length of the sentence that says why there cannot be n loaders. */
static int scale_refused(coordinator_t *c, uint32_t n, char *text, size_t bytes)
{
    arena_budget_t budget;
    if (n < 1 || n > RUN_LOADERS_MAX)
        return snprintf(text, bytes, "a run has 1 to %d loaders, not %u\n", RUN_LOADERS_MAX, n);
    if (c->state != RUN_STARTING && c->state != RUN_TRAINING)
        return snprintf(text, bytes, "the number of loaders stays: the run is %s\n",
                        run_state_name(c->state));
    if (n <= c->workers || arena_budget("", &budget) < 0)
        return 0;
    uint64_t need = (uint64_t)(n - c->workers) * RUN_LOADER_BYTES;
    if (need <= budget.available)
        return 0;
    return snprintf(text, bytes,
                    "%u more loaders need about %llu MiB and %llu MiB are available (%s): the "
                    "number of loaders stays %u\n",
                    n - c->workers, (unsigned long long)(need >> 20),
                    (unsigned long long)(budget.available >> 20), budget.source, c->workers);
}

static int scale(coordinator_t *c, uint32_t n, char *text, size_t bytes)
{
    event_t e;
    int refused = scale_refused(c, n, text, bytes);
    if (refused)
        return refused;
    event_begin(&e, "loader-scale");
    json_key_uint(&e.json, "from", c->workers);
    json_key_uint(&e.json, "to", n);
    event_end(c, &e);
    run_note(c, LOG_INFO, "loaders: %u, before %u", n, c->workers);
    uint32_t before = c->workers;
    c->workers = n;
    proc_scale_loaders(c);
    return snprintf(text, bytes, "loaders: %u, before %u\n", n, before);
}

void status_answer(coordinator_t *c, const char *to, const wire_command_t *command)
{
    if (command->command == WIRE_CMD_FOLLOW) {
        wire_plain_t heard;
        wire_begin(&heard, WIRE_REPLY, sizeof heard);
        record_publish(c, &heard, sizeof heard);
        return;
    }
    char *frame = malloc(STATUS_BYTES);
    if (!frame)
        return;
    char *text = frame + sizeof(wire_plain_t);
    size_t room = STATUS_BYTES - sizeof(wire_plain_t);
    int n;
    if (command->command == WIRE_CMD_STATUS)
        n = command->argument ? status_text(c, text, room) : status_json(c, text, room);
    else if (command->command == WIRE_CMD_SCALE)
        n = scale(c, command->argument, text, room);
    else if (command->command == WIRE_CMD_STOP && c->interrupts > 0) {
        /* Asking again is no second Ctrl-C: a script that repeats itself loses no checkpoint. */
        n = snprintf(text, room, "it is being stopped already: %s for %.0f s\n",
                     run_state_name(c->state), seconds_since(c->state_ns));
    } else if (command->command == WIRE_CMD_STOP) {
        run_interrupt(c, "sluice stop");
        n = snprintf(text, room, "%s\n",
                     c->state == RUN_STOPPING ? "stopping after a checkpoint" : "ending");
    } else if (command->command == WIRE_CMD_CHECKPOINT)
        n = snprintf(text, room,
                     "a checkpoint is written at the end of each epoch, and at a stop\n");
    else
        n = snprintf(text, room, "command %u is not known to this version\n", command->command);
    if (n >= 0) {
        wire_begin(frame, WIRE_REPLY, sizeof(wire_plain_t) + (size_t)n);
        if (bus_send(c->bus, to, frame, sizeof(wire_plain_t) + (size_t)n) < 0)
            log_line(LOG_INFO, "a command was not answered: %s", err_text());
    }
    free(frame);
}
