/* What is told: notes to the person, events, rows and logs to the scribe, and what watchers see. */
#include "control/coordinator_state.h"

#include "control/text.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STDERR_READS = 16 };

/* A line for logs/PROCESS.log; the first to be left out when the scribe is slow. */
static void record_log(coordinator_t *c, const char *process, const char *line)
{
    char frame[sizeof(wire_log_t) + 4096];
    size_t n = strnlen(line, sizeof frame - sizeof(wire_log_t));
    wire_log_t head;
    if (c->config->digest_only || !c->outbox)
        return;
    memset(&head, 0, sizeof head);
    wire_begin(&head, WIRE_LOG, sizeof head + n);
    snprintf(head.process, sizeof head.process, "%s", process);
    memcpy(frame, &head, sizeof head);
    memcpy(frame + sizeof head, line, n);
    outbox_push(c->outbox, frame, sizeof head + n, 1);
}

void run_note(coordinator_t *c, log_level_t level, const char *fmt, ...)
{
    char text[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_printable(text);
    if (c->view->note)
        c->view->note(c->view->user, level, text);
    else
        log_line(level, "%s", text);
    record_log(c, "coordinator", text);
}

void record_publish(coordinator_t *c, const void *frame, size_t bytes)
{
    if (c->watchers && bus_publish(c->watchers, frame, bytes) < 0)
        log_line(LOG_INFO, "watchers miss a message: %s", err_text());
}

void record_text(coordinator_t *c, wire_type_t type, const char *text, size_t bytes, int droppable)
{
    int shown = type == WIRE_EVENT && c->watchers;
    if (c->config->digest_only && !shown)
        return;
    size_t all = sizeof(wire_plain_t) + bytes;
    char *frame = all <= WIRE_MAX_BYTES ? malloc(all) : NULL;
    if (!frame) {
        run_note(c, LOG_WARN, "a message of %zu bytes for the scribe could not be made", bytes);
        return;
    }
    wire_begin(frame, type, all);
    memcpy(frame + sizeof(wire_plain_t), text, bytes);
    if (shown)
        record_publish(c, frame, all);
    if (!c->config->digest_only && outbox_push(c->outbox, frame, all, droppable) < 0 && !droppable)
        run_note(c, LOG_WARN, "the scribe does not write: %s; a line for the run's files is lost",
                 err_text());
    free(frame);
}

void event_begin(event_t *e, const char *name)
{
    struct timespec now;
    struct tm utc;
    char stamp[64];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp + n, sizeof stamp - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
    json_begin(&e->json, e->text, sizeof e->text);
    json_object_begin(&e->json);
    json_key_string(&e->json, "time", stamp);
    json_key_string(&e->json, "event", name);
}

void event_end(coordinator_t *c, event_t *e)
{
    json_object_end(&e->json);
    int n = json_finish(&e->json);
    if (n < 0)
        run_note(c, LOG_WARN, "an event was left out: %s", err_text());
    else
        record_text(c, WIRE_EVENT, e->text, (size_t)n, 0);
}

/* The columns of facts/yolo.md 6.7: losses and metrics rounded to 5 decimals, then %.6g. */
static size_t csv_value(char *row, size_t room, size_t used, double v, int known)
{
    int n = known ? snprintf(row + used, room - used, ",%.6g", round(v * 1e5) / 1e5)
                  : snprintf(row + used, room - used, ",");
    return used + (size_t)n;
}

void record_csv(coordinator_t *c, const wire_epoch_end_t *e)
{
    char row[512];
    int val = e->validated != 0;
    size_t n = (size_t)snprintf(row, sizeof row, "%u,%.6g", e->epoch + 1, e->seconds);
    for (int i = 0; i < 3; i++)
        n = csv_value(row, sizeof row, n, (double)e->train_items[i], 1);
    double metrics[4] = {(double)e->precision, (double)e->recall, (double)e->map50, (double)e->map};
    for (int i = 0; i < 4; i++)
        n = csv_value(row, sizeof row, n, metrics[i], val);
    for (int i = 0; i < 3; i++)
        n = csv_value(row, sizeof row, n, (double)e->val_items[i], val);
    for (int i = 0; i < 3; i++)
        n += (size_t)snprintf(row + n, sizeof row - n, ",%.6g", (double)e->lr[i]);
    record_text(c, WIRE_CSV, row, n, 0);
}

/* "2026-...Z loader 3 [77] warn: text": where the text begins, if the line is of the level. */
static const char *line_of_level(const char *line, const char *word)
{
    const char *close = strstr(line, "] ");
    if (!close || line[0] < '0' || line[0] > '9')
        return NULL;
    size_t n = strlen(word);
    return strncmp(close + 2, word, n) == 0 ? close + 2 + n : NULL;
}

/* FNV-1a. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    while (*text)
        hash = (hash ^ (unsigned char)*text++) * 0x100000001b3ull;
    return hash;
}

/* What many processes find the same way (io_uring denied) is told once; the logs have it of each.
 */
static int told_before(coordinator_t *c, const char *text)
{
    uint64_t hash = hash_text(text);
    for (uint32_t i = 0; i < c->n_told; i++)
        if (c->told[i] == hash)
            return 1;
    if (c->n_told < RUN_TOLD)
        c->told[c->n_told++] = hash;
    return 0;
}

static void stderr_line(coordinator_t *c, proc_t *p, const char *line)
{
    if (!line[0])
        return;
    const char *warn = line_of_level(line, "warn: "), *error = line_of_level(line, "error: ");
    /* What it said of its work is no reason for its end; what is not of our own log may be. */
    if (error || (!p->last_is_error && !line_of_level(line, ""))) {
        snprintf(p->last_words, sizeof p->last_words, "%s", error ? error : line);
        p->last_is_error = error != NULL;
    }
    /* Errors are told with the process's end. */
    if (warn && !(c->state == RUN_LEAVING && c->code < 0) && !told_before(c, warn))
        run_note(c, LOG_WARN, "%s: %s", p->name, warn);
    record_log(c, p->name, line);
}

void record_stderr(coordinator_t *c, proc_t *p, int final)
{
    /* A process that writes without end must not hold up the loop: the rest comes in the next
     * round. */
    for (int reads = 0; p->child.errors >= 0 && (final || reads < STDERR_READS); reads++) {
        ssize_t n =
            read(p->child.errors, p->line + p->line_used, sizeof p->line - 1 - p->line_used);
        if (n <= 0)
            break;
        p->line_used += (size_t)n;
        p->line[p->line_used] = '\0';
        char *start = p->line, *end;
        while ((end = strchr(start, '\n')) != NULL) {
            *end = '\0';
            stderr_line(c, p, start);
            start = end + 1;
        }
        p->line_used = strlen(start);
        memmove(p->line, start, p->line_used + 1);
        if (p->line_used == sizeof p->line - 1) {
            stderr_line(c, p, p->line);
            p->line_used = 0;
        }
    }
    if (final && p->line_used) {
        stderr_line(c, p, p->line);
        p->line_used = 0;
    }
}

void record_flush(coordinator_t *c)
{
    proc_t *scribe = proc_scribe(c);
    if (c->config->digest_only || scribe->state != PROC_JOINED)
        return;
    outbox_flush(c->outbox, c->bus, scribe->identity);
    results_tick(c);
    uint64_t dropped = outbox_dropped(c->outbox);
    if (dropped > c->dropped_told && outbox_waiting(c->outbox) == 0) {
        run_note(c, LOG_WARN, "the run's storage was slow: %llu lines were left out of its logs",
                 (unsigned long long)(dropped - c->dropped_told));
        c->dropped_told = dropped;
    }
}

void record_end(coordinator_t *c)
{
    wire_end_t end;
    memset(&end, 0, sizeof end);
    wire_begin(&end, WIRE_END, sizeof end);
    end.exit = (uint32_t)err_exit_status(c->code);
    end.epochs_done = c->epochs_done;
    if (c->code < 0)
        snprintf(end.text, sizeof end.text, "%.*s", WIRE_TEXT - 1, c->text);
    record_publish(c, &end, sizeof end);
}
