#include "tools/statefile.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STATE_HEADER_MOST = 16 << 20, STATE_DEPTH = 8, STATE_TEXT = 64 };

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
    while (c->p < c->end && (strchr("+-.0123456789eE", *c->p) || (*c->p >= 'a' && *c->p <= 'z')))
        c->p++;
    return c->p > start ? 0 : -1;
}

/* {"name": "text", ...}: notes the two that are ours. *seen gets bit 0 for the epoch. */
static int take_metadata(cursor_t *c, statefile_t *state, int *seen)
{
    char name[STATE_TEXT], value[STATE_TEXT], *end;
    if (take(c, '{') != 0)
        return -1;
    if (peek(c) == '}')
        return take(c, '}');
    for (;;) {
        if (take_string(c, name, sizeof name) != 0 || take(c, ':') != 0 ||
            take_string(c, value, sizeof value) != 0)
            return -1;
        if (strcmp(name, "epoch") == 0) {
            unsigned long v = strtoul(value, &end, 10);
            if (value[0] < '0' || value[0] > '9' || *end || v > 1u << 30)
                return -1;
            state->next_epoch = (uint32_t)v;
            *seen |= 1;
        } else if (strcmp(name, "finished") == 0) {
            state->finished = strcmp(value, "1") == 0 || strcmp(value, "true") == 0;
        }
        if (peek(c) == '}')
            return take(c, '}');
        if (take(c, ',') != 0)
            return -1;
    }
}

int statefile_parse(const char *json, size_t bytes, const char *name, statefile_t *state)
{
    cursor_t c = {.p = json, .end = json + bytes};
    char key[STATE_TEXT];
    int seen = 0, bad = take(&c, '{');
    memset(state, 0, sizeof *state);
    while (!bad && peek(&c) != '}') {
        bad = take_string(&c, key, sizeof key) || take(&c, ':');
        if (!bad)
            bad = strcmp(key, "__metadata__") == 0 ? take_metadata(&c, state, &seen)
                                                   : skip_value(&c, 0);
        if (!bad && peek(&c) != '}')
            bad = take(&c, ',') || peek(&c) == '}';
    }
    if (bad || take(&c, '}') != 0)
        return err_set(ERR_CONFIG, "%s is damaged: its header is not JSON of a checkpoint", name);
    if (!(seen & 1))
        return err_set(ERR_CONFIG,
                       "%s does not say at which epoch it was written: it is not the state "
                       "of a run",
                       name);
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
    char *json = malloc(bytes);
    if (!json)
        return err_set(ERR_ENV, "no memory for the header of %s", name);
    int rc = pread(fd, json, bytes, sizeof head) == (ssize_t)bytes
                 ? statefile_parse(json, bytes, name, state)
                 : err_set(ERR_CONFIG, "%s is cut short", name);
    free(json);
    return rc;
}
