/* What a message does. Frames of processes that have not said a proper hello are dropped. */
#include "control/coordinator_state.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DRAIN_MESSAGES = 4096 };

static void send_welcome(coordinator_t *c, proc_t *p)
{
    size_t yaml = strlen(c->yaml);
    char *frame = calloc(1, sizeof(wire_welcome_t) + yaml);
    if (!frame) {
        run_fail(c, ERR_ENV, "no memory for a welcome");
        return;
    }
    wire_welcome_t w;
    memset(&w, 0, sizeof w);
    start_welcome(c, p, &w);
    w.yaml_bytes = (uint32_t)yaml;
    wire_begin(&w, WIRE_WELCOME, sizeof w + yaml);
    memcpy(frame, &w, sizeof w);
    memcpy(frame + sizeof w, c->yaml, yaml);
    if (bus_send(c->bus, p->identity, frame, sizeof w + yaml) < 0)
        log_line(LOG_WARN, "%s was not welcomed: %s", p->name, err_text());
    free(frame);
}

static void on_hello(coordinator_t *c, const bus_message_t *m)
{
    wire_hello_t h;
    memcpy(&h, m->frame, sizeof h);
    proc_t *p = proc_find(c, m->from);
    if (!p || p->state != PROC_STARTED || strcmp(h.token, c->token) != 0 || h.kind != p->kind ||
        h.index != p->index || h.incarnation != p->incarnation || h.pid != (uint32_t)p->child.pid) {
        char why[96];
        snprintf(why, sizeof why, "a hello of pid %u, which was not started by this run", h.pid);
        bus_refuse(c->bus, m->from, why);
        return;
    }
    if (strcmp(h.build, wire_build()) != 0) {
        run_fail(c, ERR_ENV,
                 "%s in %s is of another build (%s, this is %s): install all of one build", p->name,
                 c->config->bin_dir, h.build, wire_build());
        return;
    }
    run_register(c);
    p->state = PROC_JOINED;
    p->since_ns = clock_ns();
    if (!p->stop_wanted)
        p->deadline_ns = p->kind == BOARD_TRAINER ? p->since_ns + RUN_READY_S * 1000000000ull : 0;
    send_welcome(c, p);
    proc_catch_up(c, p);
}

static void on_run_info(coordinator_t *c, const bus_message_t *m)
{
    const wire_run_info_t *info = m->frame;
    size_t bytes;
    const char *yaml = wire_text(m->frame, &bytes);
    if (c->state != RUN_OPENING)
        return;
    snprintf(c->run_dir, sizeof c->run_dir, "%.*s", (int)sizeof c->run_dir - 1, info->run_dir);
    c->disk_free = info->free_bytes;
    c->resumed = (int)info->resumed;
    c->first_epoch = info->resumed ? info->next_epoch : 0;
    c->was = *info;
    if (info->finished) {
        run_fail(c, ERR_CONFIG,
                 "the run in %s is finished: there is nothing to resume; "
                 "model=%s/weights/last.safetensors begins a new run with its weights",
                 c->run_dir, c->run_dir);
        return;
    }
    /* args.yaml says the name that the run really got. */
    const char *name = strrchr(c->run_dir, '/');
    if (!info->resumed && name)
        snprintf(c->options.name, sizeof c->options.name, "%.*s", (int)sizeof c->options.name - 1,
                 name + 1);
    int rc = info->resumed ? resume_options(c, yaml, bytes) : 0;
    if (rc < 0)
        run_fail(c, rc, "%s", err_text());
    else
        run_enter(c, RUN_SCANNING);
}

static void on_ack(coordinator_t *c, const proc_t *p, const wire_epoch_ack_t *a)
{
    uint64_t ours = wire_agreement(&c->plan, a->epoch, c->list_digest);
    if (a->agreement == ours)
        return;
    event_t e;
    event_begin(&e, "disagreement");
    json_key_string(&e.json, "process", p->name);
    json_key_uint(&e.json, "epoch", a->epoch);
    event_end(c, &e);
    run_fail(c, ERR_FAILED,
             "%s does not agree with the coordinator on epoch %u (seed, sample list, ranks, batch, "
             "image "
             "size or mosaic): %016llx, not %016llx; the run is stopped before it trains on it",
             p->name, a->epoch + 1, (unsigned long long)a->agreement, (unsigned long long)ours);
}

static void on_ready(coordinator_t *c, proc_t *p, const void *frame)
{
    size_t bytes;
    const char *text = wire_text(frame, &bytes);
    if (p->ready)
        return;
    p->ready = 1;
    if (bytes > 0)
        run_note(c, LOG_INFO, "%.*s", (int)bytes, text);
    if (!p->stop_wanted)
        p->deadline_ns = 0;
    for (uint32_t r = 0; r < c->ranks; r++)
        if (!proc_trainer(c, r)->ready)
            return;
    start_done(c);
}

static void on_progress(coordinator_t *c, const proc_t *p, const wire_progress_t *m)
{
    coordinator_progress_t out = {.epochs = c->plan.epochs};
    if (m->rank != p->index || m->rank >= c->ranks)
        return;
    c->progress[m->rank] = *m;
    record_publish(c, m, sizeof *m);
    if (m->rank != 0 || !c->view->progress)
        return;
    out.rank0 = *m;
    for (uint32_t r = 0; r < c->ranks; r++) {
        out.images_per_s += c->progress[r].images_per_s;
        if (c->progress[r].wait_share > out.wait_share)
            out.wait_share = c->progress[r].wait_share;
    }
    c->view->progress(c->view->user, &out);
}

/* Comparable only when it is of all cells: a run that was resumed with digest=True in the middle of
 * an epoch has seen a part. */
static void event_stream(event_t *e, const coordinator_t *c, const wire_epoch_end_t *m)
{
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)stream_value(&m->stream));
    if (m->stream.count == c->plan.n_train)
        json_key_string(&e->json, "stream", digest);
    else
        json_key_uint(&e->json, "stream_of_images", m->stream.count);
}

static void on_epoch_end(coordinator_t *c, const wire_epoch_end_t *m)
{
    event_t e;
    c->last_epoch = *m;
    c->epochs_done++;
    c->stopped_early |= m->early_stop != 0;
    /* A run that was resumed may have had its best epoch before. */
    int best_yet = !c->has_map || (c->best_before && (double)m->map > c->best_map);
    if (m->validated && (m->is_best || best_yet)) {
        c->has_map = 1;
        c->best_before = !m->is_best;
        c->best_epoch = m->epoch;
        c->best_map = (double)m->map;
        c->best_map50 = (double)m->map50;
    }
    record_csv(c, m);
    record_publish(c, m, sizeof *m);
    event_begin(&e, "epoch");
    json_key_uint(&e.json, "epoch", m->epoch + 1);
    json_key_number(&e.json, "seconds", m->seconds);
    static const char *const items[] = {"box_loss", "cls_loss", "dfl_loss"};
    for (int i = 0; i < 3; i++)
        json_key_number(&e.json, items[i], (double)m->train_items[i]);
    if (m->validated) {
        json_key_number(&e.json, "map50", (double)m->map50);
        json_key_number(&e.json, "map", (double)m->map);
        json_key_bool(&e.json, "best", m->is_best != 0);
    }
    json_key_bool(&e.json, "early_stop", m->early_stop != 0);
    if (m->stream.count)
        event_stream(&e, c, m);
    event_end(c, &e);
    if (c->view->epoch)
        c->view->epoch(c->view->user, m);
}

/* A file of a checkpoint is written, or is not: told to rank 0, whose slot it lies in. */
static void file_answered(coordinator_t *c, const wire_saved_t *s)
{
    event_t e;
    if (c->snapshots_pending > 0)
        c->snapshots_pending--;
    event_begin(&e, "checkpoint");
    json_key_string(&e.json, "path", s->path);
    json_key_uint(&e.json, "epoch", s->epoch + 1);
    json_key_bool(&e.json, "written", s->status == 0);
    if (s->status < 0)
        json_key_string(&e.json, "why", s->text);
    event_end(c, &e);
    /* What counts at the end is every file of the newest checkpoint. */
    if (s->number != c->checkpoint_number)
        c->checkpoint_failed = 0;
    c->checkpoint_number = s->number;
    if (s->status < 0 && !c->checkpoint_failed) {
        /* Once a checkpoint: its other files fare alike. */
        c->checkpoint_failed = 1;
        snprintf(c->checkpoint_text, sizeof c->checkpoint_text, "%s", s->text);
        run_note(c, LOG_WARN,
                 "the checkpoint of epoch %u was not written: %s; training goes on, and the next "
                 "one is tried as ever",
                 s->epoch + 1, s->text);
    } else if (s->status == 0 && strcmp(s->path, WIRE_STATE_PATH) == 0) {
        c->weights_saved = 1;
    }
    proc_send(c, proc_trainer(c, 0), s, sizeof *s);
}

static void on_snapshot(coordinator_t *c, const proc_t *p, const bus_message_t *m)
{
    if (p->index != 0)
        return;
    c->snapshots_pending++;
    if (outbox_push(c->outbox, m->frame, m->bytes, 0) == 0)
        return;
    wire_saved_t no;
    const wire_snapshot_t *image = m->frame;
    memset(&no, 0, sizeof no);
    wire_begin(&no, WIRE_SAVED, sizeof no);
    no.epoch = image->epoch;
    no.slot = image->slot;
    no.number = image->number;
    no.status = ERR_TIMEOUT;
    memcpy(no.path, image->path, sizeof no.path);
    snprintf(no.text, sizeof no.text, "the scribe does not write: %.400s", err_text());
    file_answered(c, &no);
}

static void on_bye(coordinator_t *c, proc_t *p, const wire_bye_t *m)
{
    p->said_bye = 1;
    p->bye_status = m->status;
    snprintf(p->bye_text, sizeof p->bye_text, "%s", m->text[0] ? m->text : "it did not say why");
    /* The others are not left waiting for a rank that has given up. */
    if (p->kind == BOARD_TRAINER && m->status < 0 && m->status != ERR_STOPPED)
        run_fail(c, m->status, "%s: %s", p->name, p->bye_text);
}

static void on_command(coordinator_t *c, const bus_message_t *m)
{
    wire_command_t cmd;
    memcpy(&cmd, m->frame, sizeof cmd);
    if (strcmp(cmd.token, c->token) != 0)
        bus_refuse(c->bus, m->from, "a command with a wrong token");
    else
        status_answer(c, m->from, &cmd);
}

/* An entry of the run that goes on. */
static void on_replay(coordinator_t *c, const wire_ledger_t *entry)
{
    if (c->state == RUN_OPENING && resume_entry(c, entry) < 0)
        run_fail(c, ERR_ENV, "%s", err_text());
}

void message_handle(coordinator_t *c, const bus_message_t *m)
{
    if (m->type == WIRE_HELLO) {
        on_hello(c, m);
        return;
    }
    if (m->type == WIRE_COMMAND) {
        on_command(c, m);
        return;
    }
    proc_t *p = proc_find(c, m->from);
    if (!p || p->state == PROC_STARTED) {
        /* A start that fails before its hello still says why. */
        if (p && m->type == WIRE_BYE)
            on_bye(c, p, m->frame);
        return;
    }
    uint32_t k = p->kind;
    if (m->type == WIRE_BYE)
        on_bye(c, p, m->frame);
    else if (m->type == WIRE_EPOCH_ACK)
        on_ack(c, p, m->frame);
    else if (m->type == WIRE_RUN_INFO && k == BOARD_SCRIBE)
        on_run_info(c, m);
    else if (m->type == WIRE_LEDGER && k == BOARD_SCRIBE)
        on_replay(c, m->frame);
    else if (m->type == WIRE_CHECKPOINT && k == BOARD_TRAINER && p->index == 0)
        checkpoint_answered(c, m->frame);
    else if (m->type == WIRE_SAVED && k == BOARD_SCRIBE)
        file_answered(c, m->frame);
    else if (m->type == WIRE_READY && k == BOARD_TRAINER)
        on_ready(c, p, m->frame);
    else if (m->type == WIRE_PROGRESS && k == BOARD_TRAINER)
        on_progress(c, p, m->frame);
    else if (m->type == WIRE_EPOCH_END && k == BOARD_TRAINER && p->index == 0)
        on_epoch_end(c, m->frame);
    else if (m->type == WIRE_SNAPSHOT && k == BOARD_TRAINER)
        on_snapshot(c, p, m);
    else if (m->type == WIRE_BAD_SAMPLE && k == BOARD_LOADER)
        samples_bad(c, p, m->frame);
    else if (m->type == WIRE_WARNED && k == BOARD_LOADER)
        samples_warned(c, p, m->frame);
    else if (m->type == WIRE_FOUND && k == BOARD_TRAINER)
        results_found(c, p, m);
    else if (m->type == WIRE_MEASURED && k == BOARD_TRAINER && p->index == 0)
        results_measured(c, m);
    else if (m->type == WIRE_EVENT) {
        size_t bytes;
        const char *text = wire_text(m->frame, &bytes);
        record_text(c, WIRE_EVENT, text, bytes, 0);
    } else
        log_line(LOG_WARN, "%s sent a %s message, which is not its to send", p->name,
                 wire_type_name(m->type));
}

void message_drain(coordinator_t *c)
{
    bus_message_t m;
    int rc = 1;
    /* A peer that sends without end must not hold up the loop. ZMQ_FD tells of new messages only:
     * what is left here waits for the next tick at most. */
    for (int n = 0; n < DRAIN_MESSAGES && (rc = bus_receive(c->bus, 0, &m)) == 1; n++)
        message_handle(c, &m);
    if (rc < 0)
        run_fail(c, rc, "%s", err_text());
}
