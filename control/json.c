#include "control/json.h"

#include "control/text.h"
#include "shm/err.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void json_begin(json_t *j, char *text, size_t room)
{
    memset(j, 0, sizeof *j);
    j->text = text;
    j->room = room;
    j->text[0] = '\0';
}

static void put(json_t *j, const char *bytes, size_t n)
{
    if (j->full || n >= j->room - j->length) {
        j->full = 1;
        return;
    }
    memcpy(j->text + j->length, bytes, n);
    j->length += n;
    j->text[j->length] = '\0';
}

/* What stands before a value: a comma in an array, nothing after a key or at the top. */
static void before_value(json_t *j)
{
    if (j->depth == 0) {
        j->wrong |= j->done;
        j->done = 1;
        return;
    }
    int top = j->depth - 1;
    if (j->kind[top] == '{') {
        j->wrong |= !j->keyed;
        j->keyed = 0;
        return;
    }
    if (j->some[top])
        put(j, ",", 1);
    j->some[top] = 1;
}

static void level_begin(json_t *j, char kind)
{
    before_value(j);
    if (j->depth == JSON_DEPTH) {
        j->wrong = 1;
        return;
    }
    j->kind[j->depth] = (unsigned char)kind;
    j->some[j->depth] = 0;
    j->depth++;
    put(j, &kind, 1);
}

static void level_end(json_t *j, char kind, const char *close)
{
    if (j->depth == 0 || j->kind[j->depth - 1] != (unsigned char)kind || j->keyed) {
        j->wrong = 1;
        return;
    }
    j->depth--;
    put(j, close, 1);
}

void json_object_begin(json_t *j)
{
    level_begin(j, '{');
}

void json_object_end(json_t *j)
{
    level_end(j, '{', "}");
}

void json_array_begin(json_t *j)
{
    level_begin(j, '[');
}

void json_array_end(json_t *j)
{
    level_end(j, '[', "]");
}

static void put_quoted(json_t *j, const char *value)
{
    put(j, "\"", 1);
    for (const char *s = value; *s;) {
        char escape[8];
        uint32_t c;
        size_t n = text_utf8(s, &c);
        if (n == 0) {
            put(j, "\xEF\xBF\xBD", 3);
            n = 1;
        } else if (c == '"' || c == '\\') {
            escape[0] = '\\';
            escape[1] = *s;
            put(j, escape, 2);
        } else if (c < 0x20 || c == 0x7F) {
            put(j, escape, (size_t)snprintf(escape, sizeof escape, "\\u%04x", c & 0x7Fu));
        } else {
            put(j, s, n);
        }
        s += n;
    }
    put(j, "\"", 1);
}

void json_key(json_t *j, const char *key)
{
    if (j->depth == 0 || j->kind[j->depth - 1] != '{' || j->keyed) {
        j->wrong = 1;
        return;
    }
    if (j->some[j->depth - 1])
        put(j, ",", 1);
    j->some[j->depth - 1] = 1;
    put_quoted(j, key);
    put(j, ":", 1);
    j->keyed = 1;
}

void json_string(json_t *j, const char *value)
{
    if (!value) {
        json_null(j);
        return;
    }
    before_value(j);
    put_quoted(j, value);
}

static void put_plain(json_t *j, const char *text)
{
    before_value(j);
    put(j, text, strlen(text));
}

void json_number(json_t *j, double value)
{
    char text[TEXT_DOUBLE_BYTES];
    if (!isfinite(value)) {
        json_null(j);
        return;
    }
    text_double(text, value);
    put_plain(j, text);
}

void json_int(json_t *j, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    put_plain(j, text);
}

void json_uint(json_t *j, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    put_plain(j, text);
}

void json_bool(json_t *j, int value)
{
    put_plain(j, value ? "true" : "false");
}

void json_null(json_t *j)
{
    put_plain(j, "null");
}

int json_finish(json_t *j)
{
    if (j->full)
        return err_set(ERR_FAILED, "a JSON text does not fit into %zu bytes", j->room);
    if (j->wrong || j->depth != 0 || !j->done)
        return err_set(ERR_FAILED, "a JSON text is not one complete value: %.80s", j->text);
    return (int)j->length;
}

void json_key_string(json_t *j, const char *key, const char *value)
{
    json_key(j, key);
    json_string(j, value);
}

void json_key_number(json_t *j, const char *key, double value)
{
    json_key(j, key);
    json_number(j, value);
}

void json_key_int(json_t *j, const char *key, int64_t value)
{
    json_key(j, key);
    json_int(j, value);
}

void json_key_uint(json_t *j, const char *key, uint64_t value)
{
    json_key(j, key);
    json_uint(j, value);
}

void json_key_bool(json_t *j, const char *key, int value)
{
    json_key(j, key);
    json_bool(j, value);
}
