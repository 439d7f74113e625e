#include "tests/soak/run.h"

#include "tests/soak/clock.h"
#include "tests/soak/process.h"
#include "tests/soak/say.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void run_init(run_t *r, const soak_t *soak, const config_t *config, const char *name)
{
    memset(r, 0, sizeof *r);
    r->soak = soak;
    r->config = config;
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->dir, sizeof r->dir, "%s/runs/%s", soak->work, name);
}

static int has_state(const run_t *r)
{
    char path[RUN_PATH + 64];
    snprintf(path, sizeof path, "%s/weights/last.state.safetensors", r->dir);
    return access(path, F_OK) == 0;
}

typedef struct {
    int n;
    char text[24][RUN_PATH + 64];
    const char *argv[26];
} words_t;

__attribute__((format(printf, 2, 3))) static void word(words_t *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->text[w->n], sizeof w->text[0], fmt, ap);
    va_end(ap);
    w->argv[w->n] = w->text[w->n];
    w->argv[++w->n] = NULL;
}

/* The options that make the configuration. Two batches to an optimiser step, so that a kill may
 * fall between them; mosaic to the end, so that a cell needs several files. */
static void words_of(const run_t *r, words_t *w)
{
    const config_t *c = r->config;
    int large = c->kind == RUN_DIGEST;
    word(w, c->kind == RUN_TRAIN ? "train" : "digest");
    word(w, "data=%s", large ? r->soak->large : r->soak->small);
    word(w, "imgsz=%d", large ? 640 : 64);
    word(w, "batch=%d", large ? 8 : 4);
    if (c->kind == RUN_TRAIN) {
        word(w, "digest=True");
        word(w, "model=yolo11n");
        word(w, "nbs=8");
        word(w, "stop_deadline=%d", RUN_STOP_S);
        word(w, "save_minutes=0.05");
        word(w, "optimizer=AdamW");
        word(w, "lr0=0.002");
        word(w, "patience=0");
        word(w, "project=%s/runs", r->soak->work);
        word(w, "name=%s", r->name);
    }
    word(w, "epochs=%d", c->epochs);
    word(w, "close_mosaic=0");
    word(w, "seed=7");
    word(w, "workers=2");
    word(w, "device=%s", c->ranks == 2 ? "cpu,cpu" : "cpu");
}

/* A run that has nothing to go on from leaves its folder to the next. */
static int clear_folder(const run_t *r)
{
    const char *const rm[] = {"/bin/rm", "-rf", r->dir, NULL};
    char text[256];
    return process_ask(rm, WAIT_ASK, text, sizeof text) == 0
               ? 0
               : say_violation("rm -rf %s: %s", r->dir, text);
}

int run_start(run_t *r)
{
    static words_t w;
    int resume = r->config->kind == RUN_TRAIN && has_state(r);
    memset(&w, 0, sizeof w);
    word(&w, "%s/sluice", r->soak->bin);
    if (r->config->vanish)
        snprintf(w.text[0], sizeof w.text[0], "%s/vanish/bin/sluice", r->soak->work);
    if (resume) {
        word(&w, "train");
        word(&w, "resume=%s", r->dir);
    } else {
        if (r->config->kind == RUN_TRAIN && clear_folder(r) < 0)
            return -1;
        words_of(r, &w);
    }
    r->starts++;
    r->resumes += resume;
    snprintf(r->output, sizeof r->output, "%s/%s.%d.out", r->soak->work, r->name, r->starts);
    r->socket[0] = '\0';
    r->status = 0;
    r->pid = process_start(w.argv, r->name, r->output);
    if (r->pid > 0)
        return 0;
    r->pid = 0;
    return say_violation("%s cannot be started: %s", w.argv[0], strerror(errno));
}

int run_ended(run_t *r, double seconds)
{
    if (r->pid && process_wait(r->pid, seconds, &r->status))
        r->pid = 0;
    return r->pid == 0;
}

/* The value behind "key": in one object's text, which ends at `end`. NULL: no such key. */
static const char *value(const char *from, const char *end, const char *key)
{
    char wanted[64];
    int n = snprintf(wanted, sizeof wanted, "\"%s\":", key);
    const char *at = strstr(from, wanted);
    return at && at < end ? at + n : NULL;
}

static uint64_t whole(const char *from, const char *end, const char *key)
{
    const char *v = value(from, end, key);
    return v ? strtoull(v, NULL, 10) : 0;
}

static void string(const char *from, const char *end, const char *key, char *out, size_t bytes)
{
    const char *v = value(from, end, key);
    out[0] = '\0';
    if (v && *v == '"')
        snprintf(out, bytes, "%.*s", (int)strcspn(v + 1, "\""), v + 1);
}

static void read_status(const char *text, seen_t *s)
{
    const char *end = text + strlen(text), *list = strstr(text, "\"processes\":[");
    memset(s, 0, sizeof *s);
    if (!list)
        return;
    string(text, list, "state", s->state, sizeof s->state);
    s->images = whole(text, list, "cells_done");
    s->loaders = whole(text, list, "loaders");
    s->bad = whole(text, list, "bad_samples");
    for (const char *at = strchr(list, '{'); at && s->n < RUN_SEEN; at = strchr(at + 1, '{')) {
        const char *until = strchr(at, '}');
        seen_process_t *p = &s->process[s->n++];
        until = until ? until : end;
        string(at, until, "name", p->name, sizeof p->name);
        string(at, until, "phase", p->phase, sizeof p->phase);
        p->pid = (pid_t)whole(at, until, "pid");
        p->images = whole(at, until, "cells_done");
        p->steps = whole(at, until, "steps_done");
        s->steps += p->steps;
    }
}

/* The name of the socket, from the run's entry: what must be gone when the run is. */
static void read_entry(run_t *r)
{
    char path[RUN_PATH + 64], line[1024];
    snprintf(path, sizeof path, "%s/sluice/%d.run", r->soak->work, (int)r->pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "endpoint=ipc://", 15) == 0)
            snprintf(r->socket, sizeof r->socket, "%.120s", line + 15);
    }
    if (f)
        fclose(f);
}

int run_look(run_t *r, seen_t *seen)
{
    static char text[RUN_TEXT];
    char sluice[RUN_PATH + 16], pid[16];
    const char *const argv[] = {sluice, "status", pid, "--json", NULL};
    memset(seen, 0, sizeof *seen);
    if (r->pid == 0)
        return 0;
    snprintf(sluice, sizeof sluice, "%s/sluice", r->soak->bin);
    snprintf(pid, sizeof pid, "%d", (int)r->pid);
    int rc = process_ask(argv, WAIT_ASK, text, sizeof text);
    if (rc == 0 && text[0] == '{') {
        read_status(text, seen);
        if (!r->socket[0])
            read_entry(r);
        return 1;
    }
    return rc < 0 || strstr(text, "did not answer") ? -1 : 0;
}

uint64_t run_progress(const run_t *r, const seen_t *seen)
{
    return r->config->kind == RUN_TRAIN ? seen->steps : seen->images;
}

int run_moves(run_t *r, uint64_t from, double seconds, const char *after)
{
    seen_t seen;
    for (double until = clock_s() + seconds; clock_s() < until; clock_sleep(0.05)) {
        if (run_ended(r, 0))
            return 0;
        int rc = run_look(r, &seen);
        if (rc == 1 && run_progress(r, &seen) > from)
            return 1;
    }
    for (int i = 0; i < seen.n; i++)
        say("    %s (pid %d): %s", seen.process[i].name, (int)seen.process[i].pid,
            seen.process[i].phase);
    return say_violation("no progress for %.0f s after %s", seconds, after);
}

int run_command(const run_t *r, const char *name, const char *argument, double seconds, char *text,
                size_t bytes)
{
    char sluice[RUN_PATH + 16], pid[16];
    const char *const argv[] = {sluice, name, pid, argument, NULL};
    snprintf(sluice, sizeof sluice, "%s/sluice", r->soak->bin);
    snprintf(pid, sizeof pid, "%d", (int)r->pid);
    return process_ask(argv, seconds, text, bytes);
}

static int file_says(const char *path, const char *words)
{
    static char text[RUN_TEXT];
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[n] = '\0';
    if (f)
        fclose(f);
    return strstr(text, words) != NULL;
}

int run_said(const run_t *r, const char *words)
{
    char errors[RUN_PATH + 8];
    snprintf(errors, sizeof errors, "%s.err", r->output);
    return file_says(errors, words) || file_says(r->output, words);
}

void run_show(const run_t *r)
{
    char errors[RUN_PATH + 8];
    snprintf(errors, sizeof errors, "%s.err", r->output);
    say_tail(r->output, 10);
    say_tail(errors, 20);
}

int seen_count(const seen_t *seen, const char *prefix)
{
    int n = 0;
    for (int i = 0; i < seen->n; i++)
        n +=
            strncmp(seen->process[i].name, prefix, strlen(prefix)) == 0 && seen->process[i].pid > 0;
    return n;
}

const seen_process_t *seen_find(const seen_t *seen, const char *prefix, uint32_t number)
{
    for (int i = 0; i < seen->n; i++)
        if (strncmp(seen->process[i].name, prefix, strlen(prefix)) == 0 &&
            seen->process[i].pid > 0 && number-- == 0)
            return &seen->process[i];
    return NULL;
}

/* A name in the list of this machine's sockets. */
static int socket_there(const char *name)
{
    char line[1024];
    int found = 0;
    FILE *f = name[0] ? fopen("/proc/net/unix", "re") : NULL;
    while (f && !found && fgets(line, sizeof line, f))
        found = strstr(line, name) != NULL;
    if (f)
        fclose(f);
    return found;
}

/* Files in the folder where runs are listed; after a look at it, which removes a dead run's. */
static int entry_there(const run_t *r, int look)
{
    char sluice[RUN_PATH], text[RUN_PATH], folder[RUN_PATH];
    const char *const ps[] = {sluice, "ps", NULL}, *const ls[] = {"/bin/ls", folder, NULL};
    snprintf(sluice, sizeof sluice, "%s/sluice", r->soak->bin);
    snprintf(folder, sizeof folder, "%s/sluice", r->soak->work);
    if (look && process_ask(ps, WAIT_ASK, text, sizeof text) != 0)
        say("    sluice ps: %s", text);
    /* There is no folder before the first run. */
    if (process_ask(ls, WAIT_ASK, text, sizeof text) != 0 || !text[0])
        return 0;
    say("    %s has %s", folder, text);
    return 1;
}

int run_nothing_left(const run_t *r, int look)
{
    pid_t pids[PROCESS_LIST];
    int n = 1, sockets = 1;
    for (double until = clock_s() + WAIT_NOTHING; n || sockets; clock_sleep(0.02)) {
        process_reap();
        n = process_marked(r->name, pids);
        sockets = n == 0 && socket_there(r->socket);
        if (clock_s() >= until)
            break;
    }
    for (int i = 0; i < n; i++) {
        char name[32];
        process_name(pids[i], name, sizeof name);
        say("    %s (pid %d, state %c) is left", name, (int)pids[i], process_state(pids[i]));
    }
    if (n)
        return say_violation("%d processes are left %d s after the end", n, WAIT_NOTHING);
    if (sockets)
        return say_violation("the socket %s is left", r->socket);
    return entry_there(r, look)
               ? say_violation("the run is still listed in %s/sluice", r->soak->work)
               : 0;
}

void run_destroy(run_t *r)
{
    pid_t pids[PROCESS_LIST];
    int status;
    for (int tries = 0; tries < 50; tries++) {
        int n = process_marked(r->name, pids);
        for (int i = 0; i < n; i++)
            kill(pids[i], SIGKILL);
        if (r->pid && process_wait(r->pid, 0.1, &status))
            r->pid = 0;
        if (n == 0)
            break;
        clock_sleep(0.05);
    }
    process_reap();
}
