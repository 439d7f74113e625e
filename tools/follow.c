#include "tools/follow.h"

#include "control/json.h"
#include "control/text.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/ask.h"
#include "tools/jsonline.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    FOLLOW_TRY_MS = 100,      /* between requests to be heard */
    FOLLOW_SILENCE_MS = 1000, /* then it is looked whether the run still lives */
    FOLLOW_PROGRESS_NS = 1000000000,
    FOLLOW_LINE = 16384,
};

typedef struct {
    int json;
    registry_entry_t run;
    bus_t *watch;
    uint32_t number; /* of the last frame; 0: none yet */
    uint64_t shown_ns;
    double images_per_s[WIRE_RANKS], wait_share[WIRE_RANKS];
} follow_t;

/* ---- lines ---- */

/* One line for a person, with the time of day before it. */
__attribute__((format(printf, 1, 2))) static void say(const char *fmt, ...)
{
    char text[FOLLOW_LINE], stamp[16];
    time_t now = time(NULL);
    struct tm local;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_printable(text);
    strftime(stamp, sizeof stamp, "%H:%M:%S", localtime_r(&now, &local));
    printf("%s  %s\n", stamp, text);
}

static void object_begin(json_t *j, char *line, size_t room, const char *event)
{
    json_begin(j, line, room);
    json_object_begin(j);
    json_key_string(j, "event", event);
}

static void object_end(json_t *j)
{
    json_object_end(j);
    if (json_finish(j) >= 0)
        puts(j->text);
}

static void numbers(json_t *j, const char *key, const float *values, int n)
{
    json_key(j, key);
    json_array_begin(j);
    for (int i = 0; i < n; i++)
        json_number(j, (double)values[i]);
    json_array_end(j);
}

/* ---- what is published ---- */

static void show_progress(follow_t *f, const wire_progress_t *m)
{
    const char *phase = m->phase == PLAN_VAL ? "val" : "train";
    char line[2048];
    json_t j;
    if (f->json) {
        object_begin(&j, line, sizeof line, "progress");
        json_key_uint(&j, "rank", m->rank);
        json_key_string(&j, "phase", phase);
        json_key_uint(&j, "epoch", (uint64_t)m->epoch + 1);
        json_key_uint(&j, "step", (uint64_t)m->step + 1);
        json_key_uint(&j, "steps", m->steps);
        numbers(&j, "losses", m->items, 3);
        numbers(&j, "lr", m->lr, 3);
        json_key_number(&j, "images_per_s", m->images_per_s);
        json_key_number(&j, "wait_share", m->wait_share);
        json_key_uint(&j, "memory_bytes", m->memory_bytes);
        object_end(&j);
        return;
    }
    if (m->rank >= WIRE_RANKS)
        return;
    f->images_per_s[m->rank] = m->images_per_s;
    f->wait_share[m->rank] = m->wait_share;
    uint64_t now = clock_ns();
    if (m->rank != 0 || (f->shown_ns && now - f->shown_ns < FOLLOW_PROGRESS_NS))
        return;
    f->shown_ns = now;
    double rate = 0, wait = 0;
    for (int r = 0; r < WIRE_RANKS; r++) {
        rate += f->images_per_s[r];
        wait = f->wait_share[r] > wait ? f->wait_share[r] : wait;
    }
    say("epoch %u  %s %u/%u  box %.3f cls %.3f dfl %.3f  %.1f images/s  %.0f%% waiting for data",
        m->epoch + 1, phase, m->step + 1, m->steps, (double)m->items[0], (double)m->items[1],
        (double)m->items[2], rate, 100 * wait);
}

static void show_epoch(follow_t *f, const wire_epoch_end_t *m)
{
    char line[2048] = "";
    json_t j;
    if (f->json) {
        object_begin(&j, line, sizeof line, "epoch");
        json_key_uint(&j, "epoch", (uint64_t)m->epoch + 1);
        json_key_number(&j, "seconds", m->seconds);
        numbers(&j, "losses", m->train_items, 3);
        numbers(&j, "lr", m->lr, 3);
        if (m->validated) {
            numbers(&j, "val_losses", m->val_items, 3);
            json_key_number(&j, "precision", (double)m->precision);
            json_key_number(&j, "recall", (double)m->recall);
            json_key_number(&j, "map50", (double)m->map50);
            json_key_number(&j, "map", (double)m->map);
            json_key_bool(&j, "best", m->is_best != 0);
        }
        json_key_bool(&j, "early_stop", m->early_stop != 0);
        object_end(&j);
        return;
    }
    if (m->validated)
        snprintf(line, sizeof line, "  P %.3f R %.3f mAP50 %.4f mAP50-95 %.4f%s",
                 (double)m->precision, (double)m->recall, (double)m->map50, (double)m->map,
                 m->is_best ? " (best)" : "");
    say("epoch %u done  box %.4f cls %.4f dfl %.4f%s", m->epoch + 1, (double)m->train_items[0],
        (double)m->train_items[1], (double)m->train_items[2], line);
}

static void show_unreadable(const follow_t *f, const char *text)
{
    char line[FOLLOW_LINE];
    json_t j;
    if (!f->json) {
        say("an event that cannot be read: %.1000s", text);
        return;
    }
    object_begin(&j, line, sizeof line, "unreadable");
    json_key_string(&j, "why", err_text());
    object_end(&j);
}

/* Composes "name: key value, key value". 1 done, 0 an event that is shown by a message of its own,
 * negative if it is not an event. */
static int read_event(const char *text, char *line, size_t room)
{
    jsonline_t m;
    const char *at = NULL;
    char name[128] = "", rest[FOLLOW_LINE / 2] = "";
    size_t used = 0;
    int rc;
    while ((rc = jsonline_next(text, &at, &m)) == 1) {
        if (strcmp(m.key, "event") == 0) {
            snprintf(name, sizeof name, "%.127s", m.value);
        } else if (strcmp(m.key, "time") != 0 && used < sizeof rest) {
            int n = snprintf(rest + used, sizeof rest - used, "%s%s %s", used ? ", " : ": ", m.key,
                             m.value);
            used += n > 0 ? (size_t)n : 0;
        }
    }
    if (rc < 0)
        return rc;
    if (!name[0])
        return err_set(ERR_FAILED, "an event without a name");
    snprintf(line, room, "%s%s", name, rest);
    return strcmp(name, "epoch") != 0 && strcmp(name, "end") != 0;
}

static void show_event(const follow_t *f, const bus_message_t *m)
{
    static char line[FOLLOW_LINE], copy[WIRE_MAX_BYTES];
    size_t bytes;
    const char *text = wire_text(m->frame, &bytes);
    if (bytes >= sizeof copy)
        bytes = sizeof copy - 1;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    int rc = strlen(copy) == bytes ? read_event(copy, line, sizeof line)
                                   : err_set(ERR_FAILED, "a text with a NUL in it");
    text_printable(copy); /* space between the values of an object may be a line's end */
    if (rc < 0)
        show_unreadable(f, copy);
    else if (rc == 1 && f->json)
        puts(copy);
    else if (rc == 1)
        say("%s", line);
}

static int show_end(const follow_t *f, const wire_end_t *m)
{
    char line[FOLLOW_LINE];
    json_t j;
    if (f->json) {
        object_begin(&j, line, sizeof line, "end");
        json_key_uint(&j, "exit", m->exit);
        if (m->exit)
            json_key_string(&j, "why", m->text);
        json_key_uint(&j, "epochs_done", m->epochs_done);
        object_end(&j);
    } else {
        char how[40] = "done";
        if (m->exit)
            snprintf(how, sizeof how, "ended with exit status %u", m->exit);
        say("%s after %u epoch%s%s%s", how, m->epochs_done, m->epochs_done == 1 ? "" : "s",
            m->exit ? ": " : "", m->exit ? m->text : "");
    }
    if (m->exit == 0 || m->exit == (uint32_t)err_exit_status(ERR_STOPPED))
        return 0;
    return err_set(ERR_FAILED, "the run ended with exit status %u", m->exit);
}

/* Frames are numbered: what was dropped because we read too slowly is said. */
static void count(follow_t *f, const bus_message_t *m)
{
    wire_header_t head;
    memcpy(&head, m->frame, sizeof head);
    uint32_t missed = head.number - f->number - 1;
    if (f->number && missed) {
        char line[128];
        json_t j;
        if (f->json) {
            object_begin(&j, line, sizeof line, "missed");
            json_key_uint(&j, "messages", missed);
            object_end(&j);
        } else {
            say("%u messages were missed: they came faster than they were read", missed);
        }
    }
    f->number = head.number;
}

/* 1 more may come, 0 the run has ended in good order, negative it has not. */
static int show(follow_t *f, const bus_message_t *m)
{
    int rc = 1;
    count(f, m);
    if (m->type == WIRE_PROGRESS)
        show_progress(f, m->frame);
    else if (m->type == WIRE_EPOCH_END)
        show_epoch(f, m->frame);
    else if (m->type == WIRE_EVENT)
        show_event(f, m);
    else if (m->type == WIRE_END)
        rc = show_end(f, m->frame);
    /* An empty reply is another watcher's beginning; no other message says anything of the run. */
    if (fflush(stdout) != 0 && rc >= 0)
        return err_sys(ERR_ENV, "writing to standard output");
    return rc;
}

int follow_message(const bus_message_t *m, int json)
{
    follow_t f;
    memset(&f, 0, sizeof f);
    f.json = json;
    return show(&f, m);
}

/* ---- the run ---- */

/* A subscription takes effect some time after it is made: the coordinator is asked for a sign until
 * one arrives. 1 heard, 0 the end was heard, negative: no answer, or a bad end. */
static int be_heard(follow_t *f)
{
    bus_t *bus = NULL;
    bus_message_t m;
    int rc;
    CHECK_GOTO(ask_connect(&f->run, &bus), rc, fail);
    for (int waited = 0; waited < ASK_WAIT_MS; waited += FOLLOW_TRY_MS) {
        CHECK_GOTO(ask_send(bus, &f->run, WIRE_CMD_FOLLOW, 0), rc, fail);
        CHECK_GOTO(bus_receive(f->watch, FOLLOW_TRY_MS, &m), rc, fail);
        if (rc == 1) {
            /* What came before the table is in the table; an end is an end. */
            if (m.type == WIRE_END)
                rc = show(f, &m);
            else
                count(f, &m);
            goto fail;
        }
    }
    rc = ask_unanswered(&f->run);
fail:
    bus_close(&bus);
    return rc;
}

static int watch_to_the_end(follow_t *f)
{
    bus_message_t m;
    int gone = 0;
    for (;;) {
        int rc = bus_receive(f->watch, FOLLOW_SILENCE_MS, &m);
        if (rc == 1)
            rc = show(f, &m);
        else if (rc == 0 && gone)
            return err_set(ERR_FAILED,
                           "the run went without a word: its coordinator (pid %d) was killed",
                           (int)f->run.pid);
        else if (rc == 0 && (rc = registry_listed(&f->run)) >= 0) {
            gone = rc == 0; /* once more: its last message may be on its way */
            rc = 1;
        }
        if (rc <= 0)
            return rc;
    }
}

int follow_run(const char *which, int json)
{
    follow_t f;
    int rc;
    memset(&f, 0, sizeof f);
    f.json = json;
    CHECK_GOTO(ask_find(which, &f.run), rc, fail);
    if (!f.run.watch[0]) {
        rc = err_set(ERR_FAILED, "the run cannot be followed: it could not open a socket for "
                                 "watchers, as its first lines say; sluice status works");
        goto fail;
    }
    CHECK_GOTO(bus_subscriber(f.run.watch, &f.watch), rc, fail);
    CHECK_GOTO(be_heard(&f), rc, fail);
    if (rc == 1) {
        rc = ask_entry(&f.run, WIRE_CMD_STATUS, !json);
        fflush(stdout);
        /* A run that ended in this moment has left its last message with us. */
        if (rc >= 0 || registry_listed(&f.run) == 0)
            rc = watch_to_the_end(&f);
    }
fail:
    bus_close(&f.watch);
    return rc;
}
