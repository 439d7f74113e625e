/* sluice ps [--json]: the live runs of this user, from the registry and their own answers; entries of
 * dead ones are named and removed. No run directory is looked at. */
#include "tools/commands.h"

#include "control/json.h"
#include "control/text.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/ask.h"
#include "tools/jsonline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PS_WAIT_MS = 1500 }; /* for all answers together */

typedef struct {
    registry_entry_t entry;
    bus_t *bus;
    int answered;
    char brief[6000]; /* as it came; "" until then */
    char state[64];
    double age_s;
    unsigned long epochs, epochs_done;
} ps_run_t;

typedef struct {
    ps_run_t *runs;
    size_t n, room;
} ps_list_t;

static int collect(void *user, const registry_entry_t *e, int live)
{
    ps_list_t *l = user;
    if (!live) {
        fprintf(stderr, "removed the entry of pid %d%s%s: its coordinator is gone\n", (int)e->pid,
                e->run_dir[0] ? ", " : "", e->run_dir);
        return 0;
    }
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 8;
        ps_run_t *more = realloc(l->runs, room * sizeof *more);
        if (!more)
            return err_set(ERR_ENV, "no memory for a list of %zu runs", room);
        l->runs = more;
        l->room = room;
    }
    ps_run_t *r = &l->runs[l->n++];
    memset(r, 0, sizeof *r);
    r->entry = *e;
    snprintf(r->state, sizeof r->state, "does not answer");
    r->age_s = e->since ? difftime(time(NULL), (time_t)e->since) : 0;
    return 0;
}

/* 0, or negative where the answer is not what this version understands. */
static int read_brief(ps_run_t *r)
{
    jsonline_t m;
    const char *at = NULL;
    int rc;
    while ((rc = jsonline_next(r->brief, &at, &m)) == 1) {
        if (strcmp(m.key, "state") == 0)
            snprintf(r->state, sizeof r->state, "%.63s", m.value);
        else if (strcmp(m.key, "age_s") == 0)
            r->age_s = strtod(m.value, NULL);
        else if (strcmp(m.key, "epochs") == 0)
            r->epochs = strtoul(m.value, NULL, 10);
        else if (strcmp(m.key, "epochs_done") == 0)
            r->epochs_done = strtoul(m.value, NULL, 10);
    }
    return rc;
}

/* All are asked before the first answer is awaited: one that is stopped holds up nobody. */
static void ask_all(ps_list_t *l)
{
    uint64_t until = clock_ns() + PS_WAIT_MS * 1000000ull;
    for (size_t i = 0; i < l->n; i++) {
        ps_run_t *r = &l->runs[i];
        if (ask_connect(&r->entry, &r->bus) == 0)
            ask_send(r->bus, &r->entry, WIRE_CMD_BRIEF, 0);
    }
    for (size_t i = 0; i < l->n; i++) {
        ps_run_t *r = &l->runs[i];
        bus_message_t m;
        uint64_t now = clock_ns();
        int left = now < until ? (int)((until - now) / 1000000) : 0;
        if (r->bus && bus_receive(r->bus, left, &m) == 1 && m.type == WIRE_REPLY) {
            snprintf(r->brief, sizeof r->brief, "%s", wire_text(m.frame, NULL));
            r->answered = read_brief(r) == 0;
        }
        bus_close(&r->bus);
    }
}

static void put_age(char *text, size_t bytes, double seconds)
{
    unsigned long s = seconds > 0 ? (unsigned long)seconds : 0;
    if (s < 60)
        snprintf(text, bytes, "%lus", s);
    else if (s < 3600)
        snprintf(text, bytes, "%lum%02lus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, bytes, "%luh%02lum", s / 3600, s / 60 % 60);
    else
        snprintf(text, bytes, "%lud%02luh", s / 86400, s / 3600 % 24);
}

static void show_line(const ps_run_t *r)
{
    char age[32], epochs[48] = "-", where[4200];
    put_age(age, sizeof age, r->age_s);
    if (r->answered && r->epochs)
        snprintf(epochs, sizeof epochs, "%lu/%lu", r->epochs_done, r->epochs);
    snprintf(where, sizeof where, "%s", r->entry.run_dir[0] ? r->entry.run_dir : "-");
    text_printable(where);
    printf("%7d  %-8s %-10s %-24s %s\n", (int)r->entry.pid, age, epochs, r->state, where);
}

static void show_json(const ps_run_t *r)
{
    char line[6000];
    json_t j;
    if (r->answered) {
        puts(r->brief);
        return;
    }
    json_begin(&j, line, sizeof line);
    json_object_begin(&j);
    json_key_int(&j, "pid", r->entry.pid);
    json_key_string(&j, "run_dir", r->entry.run_dir);
    json_key_string(&j, "state", r->state);
    json_key_number(&j, "age_s", r->age_s);
    json_object_end(&j);
    if (json_finish(&j) >= 0)
        puts(line);
}

int cmd_ps(int argc, char **argv)
{
    ps_list_t l = {NULL, 0, 0};
    int json = 0, rc;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") != 0)
            return err_set(ERR_CONFIG, "ps does not know '%s'", argv[i]);
        json = 1;
    }
    CHECK_GOTO(registry_list(collect, &l), rc, fail);
    ask_all(&l);
    if (!json && l.n)
        printf("%7s  %-8s %-10s %-24s %s\n", "pid", "age", "epochs", "state", "directory");
    for (size_t i = 0; i < l.n; i++) {
        if (json)
            show_json(&l.runs[i]);
        else
            show_line(&l.runs[i]);
    }
    if (!json && !l.n)
        puts("no run is alive");
fail:
    free(l.runs);
    return rc;
}
