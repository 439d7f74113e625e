/* Answers to sluice status, stop and scale. */
#include "control/coordinator_state.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Sums over the devices, as the GPU counts them itself; 0 where the rank has none. */
static const board_gpu_t *gpu_of(coordinator_t *c, const proc_t *p, const board_page_t *page)
{
    return page && p->kind == BOARD_TRAINER && half(&page->device_one) > 0
               ? board_gpu(c->board, p->index)
               : NULL;
}

static void json_gpu(coordinator_t *c, json_t *j, const proc_t *p, const board_page_t *page)
{
    const board_gpu_t *g = gpu_of(c, p, page);
    if (!g)
        return;
    json_key_uint(j, "gpu", half(&page->device_one) - 1);
    json_key_string(j, "stage", board_stage_name(half(&page->stage)));
    json_key_number(j, "stage_s", seconds_since(word(&page->stage_ns)));
    json_key_uint(j, "sums_launched", word(&page->sums_launched));
    json_key_uint(j, "sums_started", word(&g->started));
    json_key_uint(j, "sums_completed", word(&g->completed));
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
        json_gpu(c, j, p, page);
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
    json_key_string(&j, "state", run_state_text(c));
    json_key_number(&j, "since_s", seconds_since(c->state_ns));
    json_key_uint(&j, "epochs", c->plan.epochs);
    json_key_uint(&j, "epochs_done", c->first_epoch + c->epochs_done);
    json_key_uint(&j, "loaders", c->workers);
    json_key_uint(&j, "cells_done", run_cells_done(c));
    json_key_uint(&j, "bad_samples", c->ledger ? ledger_samples(c->ledger) : 0);
    json_key_uint(&j, "left_out", c->left_out);
    json_key_uint(&j, "warned", warned_count(&c->warned));
    if (c->last_epoch.stream.count) {
        char digest[24];
        snprintf(digest, sizeof digest, "%016llx",
                 (unsigned long long)stream_value(&c->last_epoch.stream));
        json_key_uint(&j, "stream_epoch", (uint64_t)c->last_epoch.epoch + 1);
        json_key_string(&j, "stream", digest);
    }
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

/* What `sluice ps` shows of a run, and how long `sluice stop` may have to wait. */
static int brief_json(coordinator_t *c, char *text, size_t bytes)
{
    json_t j;
    json_begin(&j, text, bytes);
    json_object_begin(&j);
    json_key_int(&j, "pid", getpid());
    json_key_string(&j, "run_dir", c->run_dir);
    json_key_string(&j, "command", c->config->digest_only ? "digest" : "train");
    json_key_string(&j, "state", run_state_text(c));
    json_key_number(&j, "since_s", seconds_since(c->state_ns));
    json_key_number(&j, "age_s", seconds_since(c->start_ns));
    json_key_uint(&j, "epochs", c->plan.epochs);
    json_key_uint(&j, "epochs_done", c->first_epoch + c->epochs_done);
    json_key_number(&j, "stop_s", run_stop_seconds(c));
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

static void put_gpu(coordinator_t *c, page_t *t, const proc_t *p, const board_page_t *page)
{
    const board_gpu_t *g = gpu_of(c, p, page);
    uint32_t stage = g ? half(&page->stage) : BOARD_STAGE_RUNNING;
    if (!g)
        return;
    put(t, ", GPU %u", half(&page->device_one) - 1);
    if (stage < BOARD_STAGE_RUNNING)
        put(t, " %s for %.1f s", board_stage_name(stage), seconds_since(word(&page->stage_ns)));
    if (c->ranks > 1)
        put(t, ", sums %llu begun, %llu done of %llu", (unsigned long long)word(&g->started),
            (unsigned long long)word(&g->completed),
            (unsigned long long)word(&page->sums_launched));
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
    put_gpu(c, t, p, page);
    if (page && p->kind == BOARD_LOADER)
        put_loader(c, t, page);
    if (page && p->kind == BOARD_SCRIBE && word(&page->progress_of))
        put(t, "  a file of %.1f MB", (double)word(&page->progress_of) / 1e6);
    else if (page && word(&page->progress_of))
        put(t, "  %llu of %llu", (unsigned long long)word(&page->progress),
            (unsigned long long)word(&page->progress_of));
    put(t, "\n");
}

static void put_files(const coordinator_t *c, page_t *t)
{
    uint32_t bad = c->ledger ? ledger_samples(c->ledger) : 0, warned = warned_count(&c->warned);
    if (c->left_out)
        put(t, ", %u files left out", c->left_out);
    if (bad)
        put(t, ", %u bad samples", bad);
    if (warned)
        put(t, ", %u used although their decoder warns", warned);
    put(t, "%s\n", (c->left_out || bad || warned) && c->run_dir[0] ? " (sluice files)" : "");
}

static int status_text(coordinator_t *c, char *text, size_t bytes)
{
    page_t t = {text, bytes, 0};
    put(&t, "%s: %s for %.1f s", c->run_dir[0] ? c->run_dir : "sluice digest", run_state_text(c),
        seconds_since(c->state_ns));
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
    put_files(c, &t);
    if (c->last_epoch.stream.count)
        put(&t, "stream of epoch %u: %016llx\n", c->last_epoch.epoch + 1,
            (unsigned long long)stream_value(&c->last_epoch.stream));
    return (int)t.used;
}

void status_answer(coordinator_t *c, const char *to, const wire_command_t *command)
{
    if (command->command == WIRE_CMD_FOLLOW) {
        wire_reply_t heard;
        memset(&heard, 0, sizeof heard);
        wire_begin(&heard, WIRE_REPLY, sizeof heard);
        record_publish(c, &heard, sizeof heard);
        return;
    }
    if (command->command == WIRE_CMD_CHECKPOINT) {
        checkpoint_request(c, to);
        return;
    }
    char *frame = malloc(STATUS_BYTES);
    if (!frame)
        return;
    char *text = frame + sizeof(wire_reply_t);
    size_t room = STATUS_BYTES - sizeof(wire_reply_t);
    wire_reply_t reply;
    int n;
    memset(&reply, 0, sizeof reply);
    if (command->command == WIRE_CMD_STATUS)
        n = command->argument ? status_text(c, text, room) : status_json(c, text, room);
    else if (command->command == WIRE_CMD_SCALE) {
        reply.status = scale_answer(c, command->argument, text, room);
        n = (int)strlen(text);
    } else if (command->command == WIRE_CMD_BRIEF)
        n = brief_json(c, text, room);
    else if (command->command == WIRE_CMD_STOP && command->argument) {
        run_interrupt_now(c, "sluice stop --now");
        n = snprintf(text, room, "ending at once, without a checkpoint\n");
    } else if (command->command == WIRE_CMD_STOP && c->interrupts > 0) {
        /* Asking again is no second Ctrl-C: a script that repeats itself loses no checkpoint. */
        n = snprintf(text, room, "it is being stopped already: %s for %.0f s\n", run_state_text(c),
                     seconds_since(c->state_ns));
    } else if (command->command == WIRE_CMD_STOP) {
        run_interrupt(c, "sluice stop");
        n = c->state == RUN_STOPPING
                ? snprintf(text, room, "stopping after a checkpoint, within about %.0f s\n",
                           run_stop_seconds(c))
                : snprintf(text, room, "ending: there is nothing to save yet\n");
    } else
        n = snprintf(text, room, "command %u is not known to this version\n", command->command);
    if (n >= 0) {
        wire_begin(&reply, WIRE_REPLY, sizeof reply + (size_t)n);
        memcpy(frame, &reply, sizeof reply);
        /* Who has gone without waiting for the answer wants none. */
        int rc = bus_send(c->bus, to, frame, sizeof reply + (size_t)n);
        if (rc < 0 && rc != ERR_GONE)
            log_line(LOG_INFO, "a command was not answered: %s", err_text());
    }
    free(frame);
}
