#include "tools/statefile.h"

#include "shm/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_HEADER_MOST = 16 << 20, STATE_DEPTH = 8, STATE_TEXT = 64 };
/* As trainer/checkpoint.h writes them; a test holds both together. */
enum { STATE_LEDGER_MOST = 1 << 20, STATE_ENTRY_NUMBERS = 6, STATE_ENTRY_BYTES = 48 };
static const char statefile_kind[] = "sluice state 3";

/* A cursor over JSON text. Every function returns 0, or -1 where the text is not what it must be.
 */
typedef struct {
    const char *p, *end;
} cursor_t;

static void skip_space(cursor_t *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\n' || *c->p == '\t' || *c->p == '\r'))
        c->p++;
}

static int take(cursor_t *c, char wanted)
{
    skip_space(c);
    if (c->p >= c->end || *c->p != wanted)
        return -1;
    c->p++;
    return 0;
}

static int peek(cursor_t *c)
{
    skip_space(c);
    return c->p < c->end ? (unsigned char)*c->p : -1;
}

/* A string; the first bytes of it go to text (escapes stay as they are: no key of ours has any). */
static int take_string(cursor_t *c, char *text, size_t bytes)
{
    size_t n = 0;
    if (take(c, '"') != 0)
        return -1;
    for (; c->p < c->end && *c->p != '"'; c->p++) {
        if ((unsigned char)*c->p < 0x20)
            return -1;
        if (text && n + 1 < bytes)
            text[n++] = *c->p;
        if (*c->p == '\\' && ++c->p >= c->end)
            return -1;
    }
    if (text)
        text[n] = '\0';
    return take(c, '"');
}

static int skip_value(cursor_t *c, int depth);

static int skip_members(cursor_t *c, char close, int keyed, int depth)
{
    c->p++;
    if (peek(c) == close)
        return take(c, close);
    for (;;) {
        if (keyed && (take_string(c, NULL, 0) != 0 || take(c, ':') != 0))
            return -1;
        if (skip_value(c, depth + 1) != 0)
            return -1;
        if (peek(c) == close)
            return take(c, close);
        if (take(c, ',') != 0)
            return -1;
    }
}

static int skip_value(cursor_t *c, int depth)
{
    int first = peek(c);
    if (depth > STATE_DEPTH || first < 0)
        return -1;
    if (first == '"')
        return take_string(c, NULL, 0);
    if (first == '{' || first == '[')
        return skip_members(c, first == '{' ? '}' : ']', first == '{', depth);
    const char *start = c->p;
    while (c->p < c->end && *c->p &&
           (strchr("+-.0123456789eE", *c->p) || (*c->p >= 'a' && *c->p <= 'z')))
        c->p++;
    return c->p > start ? 0 : -1;
}

/* Metadata that must be there, each a whole number, up to its largest value. */
enum { STATE_KIND = 1 /* the one that is no number */, STATE_NUMBERS = 2 /* the first of them */ };

typedef struct {
    const char *key;
    uint64_t most;
    void *value;
    int wide; /* uint64_t, else uint32_t */
} number_t;

static int take_number(statefile_t *state, const char *key, const char *text, int *seen)
{
    const number_t numbers[] = {
        {"epoch", 1u << 30, &state->next_epoch, 0},
        {"position", UINT32_MAX, &state->position, 1},
        {"list_digest", UINT64_MAX, &state->list_digest, 1},
        {"ranks", WIRE_RANKS, &state->ranks, 0},
        {"batch", 1u << 30, &state->batch, 0},
        {"threads", UINT32_MAX, &state->threads, 0},
        {"pending", UINT32_MAX, &state->pending, 0},
        {"ledger_entries", STATE_LEDGER_MOST, &state->ledger, 0},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(key, numbers[i].key) != 0)
            continue;
        if (*seen & STATE_NUMBERS << i) /* twice: the trainer's reader refuses it too */
            return -1;
        char *end;
        errno = 0;
        unsigned long long v = strtoull(text, &end, 10);
        if (text[0] < '0' || text[0] > '9' || *end || errno || v > numbers[i].most ||
            strlen(text) == STATE_TEXT - 1) /* it may have been longer */
            return -1;
        if (numbers[i].wide)
            *(uint64_t *)numbers[i].value = v;
        else
            *(uint32_t *)numbers[i].value = (uint32_t)v;
        *seen |= STATE_NUMBERS << i;
    }
    return 0;
}

enum { STATE_ALL_NUMBERS = (STATE_NUMBERS << 8) - STATE_NUMBERS };

/* {"name": "text", ...}: notes those that are ours. */
static int take_metadata(cursor_t *c, statefile_t *state, char *kind, int *seen)
{
    char name[STATE_TEXT], value[STATE_TEXT];
    if (take(c, '{') != 0)
        return -1;
    if (peek(c) == '}')
        return take(c, '}');
    for (;;) {
        if (take_string(c, name, sizeof name) != 0 || take(c, ':') != 0 ||
            take_string(c, value, sizeof value) != 0 || take_number(state, name, value, seen) != 0)
            return -1;
        if (strcmp(name, "kind") == 0) {
            memcpy(kind, value, STATE_TEXT);
            *seen |= STATE_KIND;
        } else if (strcmp(name, "finished") == 0) {
            state->finished = strcmp(value, "1") == 0 || strcmp(value, "true") == 0;
        }
        if (peek(c) == '}')
            return take(c, '}');
        if (take(c, ',') != 0)
            return -1;
    }
}

static int take_offset(cursor_t *c, uint64_t *value)
{
    skip_space(c);
    if (c->p >= c->end || *c->p < '0' || *c->p > '9')
        return -1;
    for (*value = 0; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++) {
        if (*value > UINT64_MAX / 16)
            return -1;
        *value = 10 * *value + (uint64_t)(*c->p - '0');
    }
    return 0;
}

/* {"dtype": .., "shape": .., "data_offsets": [begin, end]} */
static int take_tensor(cursor_t *c, uint64_t *begin, uint64_t *end)
{
    char key[STATE_TEXT];
    if (take(c, '{') != 0)
        return -1;
    for (;;) {
        if (take_string(c, key, sizeof key) != 0 || take(c, ':') != 0)
            return -1;
        if (strcmp(key, "data_offsets") == 0) {
            if (take(c, '[') != 0 || take_offset(c, begin) != 0 || take(c, ',') != 0 ||
                take_offset(c, end) != 0 || take(c, ']') != 0)
                return -1;
        } else if (skip_value(c, 1) != 0) {
            return -1;
        }
        if (peek(c) == '}')
            return take(c, '}');
        if (take(c, ',') != 0)
            return -1;
    }
}

static int take_value(cursor_t *c, const char *key, statefile_t *state, char *kind, int *seen)
{
    if (strcmp(key, "__metadata__") == 0)
        return take_metadata(c, state, kind, seen);
    if (strcmp(key, "ledger") == 0)
        return take_tensor(c, &state->ledger_begin, &state->ledger_end);
    return skip_value(c, 0);
}

int statefile_parse(const char *json, size_t bytes, const char *name, statefile_t *state)
{
    cursor_t c = {.p = json, .end = json + bytes};
    char key[STATE_TEXT], kind[STATE_TEXT] = "";
    int seen = 0, bad = take(&c, '{');
    memset(state, 0, sizeof *state);
    while (!bad && peek(&c) != '}') {
        bad = take_string(&c, key, sizeof key) || take(&c, ':');
        if (!bad)
            bad = take_value(&c, key, state, kind, &seen);
        if (!bad && peek(&c) != '}')
            bad = take(&c, ',') || peek(&c) == '}';
    }
    if (bad || take(&c, '}') != 0)
        return err_set(ERR_CONFIG, "%s is damaged: its header is not JSON of a checkpoint", name);
    if ((seen & STATE_KIND) && strcmp(kind, statefile_kind) != 0)
        return err_set(ERR_CONFIG,
                       "%s was written by another version of sluice ('%s', this one reads '%s'): "
                       "resume with that version, or start a new run from weights/last.safetensors",
                       name, kind, statefile_kind);
    if (!(seen & STATE_KIND) || (seen & STATE_ALL_NUMBERS) != STATE_ALL_NUMBERS)
        return err_set(ERR_CONFIG,
                       "%s does not say where in the run it was written: it is not the state of a "
                       "run",
                       name);
    if (state->ranks < 1 || state->batch < 1 ||
        state->ledger_end - state->ledger_begin != state->ledger * STATE_ENTRY_BYTES)
        return err_set(ERR_CONFIG, "%s is damaged: its numbers do not fit each other", name);
    return 0;
}

int statefile_read(int fd, const char *name, statefile_t *state)
{
    unsigned char head[8];
    uint64_t bytes = 0;
    if (pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head)
        return err_set(ERR_CONFIG, "%s is too short for a checkpoint", name);
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | head[i];
    if (bytes < 2 || bytes > STATE_HEADER_MOST)
        return err_set(ERR_CONFIG, "%s is not a safetensors file", name);
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < sizeof head + bytes)
        return err_set(ERR_CONFIG, "%s is cut short", name);
    char *json = malloc(bytes);
    if (!json)
        return err_set(ERR_ENV, "no memory for the header of %s", name);
    int rc = pread(fd, json, bytes, sizeof head) == (ssize_t)bytes
                 ? statefile_parse(json, bytes, name, state)
                 : err_set(ERR_CONFIG, "%s is cut short", name);
    state->header_bytes = sizeof head + bytes;
    free(json);
    return rc;
}

static int64_t number_at(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return (int64_t)v;
}

/* Whether the numbers fit their fields; what they mean is ledger_replay's to judge. */
static int take_entry(const unsigned char *row, uint32_t number, wire_ledger_t *e)
{
    int64_t v[STATE_ENTRY_NUMBERS];
    for (int i = 0; i < STATE_ENTRY_NUMBERS; i++) {
        v[i] = number_at(row + 8 * i);
        if (v[i] < 0 || v[i] > UINT32_MAX)
            return -1;
    }
    memset(e, 0, sizeof *e);
    wire_begin(e, WIRE_LEDGER, sizeof *e);
    e->split = (uint32_t)v[0];
    e->sample = (uint32_t)v[1];
    e->substitute = (uint32_t)v[2];
    e->from_epoch = (uint32_t)v[3];
    e->only = (uint32_t)v[4];
    e->from_position = (uint64_t)v[5];
    e->number = number;
    return 0;
}

int statefile_ledger(int fd, const char *name, const statefile_t *state, wire_ledger_t **entries)
{
    size_t bytes = state->ledger * STATE_ENTRY_BYTES;
    *entries = NULL;
    if (bytes == 0)
        return 0;
    int rc = 0;
    unsigned char *rows = malloc(bytes);
    wire_ledger_t *list = calloc(state->ledger, sizeof *list);
    if (!rows || !list)
        rc = err_set(ERR_ENV, "no memory for the %u substitutions of %s", state->ledger, name);
    else if (state->ledger_begin > INT64_MAX / 2 ||
             pread(fd, rows, bytes, (off_t)(state->header_bytes + state->ledger_begin)) !=
                 (ssize_t)bytes)
        rc = err_set(ERR_CONFIG, "%s is cut short", name);
    for (uint32_t i = 0; rc == 0 && i < state->ledger; i++)
        if (take_entry(rows + i * STATE_ENTRY_BYTES, i + 1, &list[i]) != 0)
            rc = err_set(ERR_CONFIG, "%s is damaged: substitution %u has impossible numbers", name,
                         i + 1);
    free(rows);
    if (rc < 0)
        free(list);
    else
        *entries = list;
    return rc;
}
