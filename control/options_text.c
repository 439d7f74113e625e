/* The table and its values as text: args.yaml, pipeline.yaml, --help. */
#include "control/options_table.h"
#include "control/text.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Appending to the caller's buffer; full stays set once something did not fit. */
typedef struct {
    char *text;
    size_t room, used;
    int full;
} sink_t;

__attribute__((format(printf, 2, 3))) static void put(sink_t *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(s->text + s->used, s->room - s->used, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= s->room - s->used) {
        s->full = 1;
        s->text[s->used] = '\0';
        return;
    }
    s->used += (size_t)n;
}

static sink_t sink_over(char *text, size_t bytes)
{
    sink_t s = {text, bytes, 0, bytes == 0};
    if (bytes > 0)
        text[0] = '\0';
    return s;
}

static int sink_finish(const sink_t *s, const char *what)
{
    if (s->full)
        return err_set(ERR_FAILED, "%s does not fit into %zu bytes", what, s->room);
    return (int)s->used;
}

static void put_double(sink_t *s, double value)
{
    char text[TEXT_DOUBLE_BYTES];
    text_double(text, value);
    /* 1 reads as a whole number: 1.0 says that fractions are welcome. */
    put(s, "%s%s", text, text[strspn(text, "-0123456789")] ? "" : ".0");
}

static void put_devices(sink_t *s, const options_t *o)
{
    for (int i = 0; i < o->n_devices; i++) {
        put(s, "%s", i ? "," : "");
        switch (o->devices[i]) {
        case DEVICE_CPU: put(s, "cpu"); break;
        case DEVICE_AUTO: put(s, "auto"); break;
        case DEVICE_ALL: put(s, "all"); break;
        default: put(s, "%d", o->devices[i]); break;
        }
    }
}

static void put_value(sink_t *s, const options_t *o, const option_spec_t *row)
{
    const void *at = (const char *)o + row->offset;
    int v = 0;
    switch (row->type) {
    case OPT_TYPE_TEXT: put(s, "%s", (const char *)at); break;
    case OPT_TYPE_INT: put(s, "%d", *(const int *)at); break;
    case OPT_TYPE_REAL: put_double(s, *(const double *)at); break;
    case OPT_TYPE_BOOL: put(s, "%s", *(const int *)at ? "True" : "False"); break;
    case OPT_TYPE_DEVICE: put_devices(s, o); break;
    case OPT_TYPE_BATCH:
        if (o->batch > 0)
            put(s, "%d", o->batch);
        else if (o->batch_share < OPTIONS_BATCH_SHARE || o->batch_share > OPTIONS_BATCH_SHARE)
            put_double(s, o->batch_share);
        else
            put(s, "auto");
        break;
    case OPT_TYPE_ABSENT: break;
    case OPT_TYPE_WORD:
        memcpy(&v, at, sizeof v);
        for (const option_word_t *w = row->words; w->word; w++)
            if (w->value == v) {
                put(s, "%s", w->word);
                break;
            }
        break;
    }
}

int options_value_text(const options_t *o, const option_spec_t *row, char *text, size_t bytes)
{
    sink_t s = sink_over(text, bytes);
    put_value(&s, o, row);
    return sink_finish(&s, row->key);
}

void options_legal_text(const option_spec_t *row, char *text, size_t bytes)
{
    sink_t s = sink_over(text, bytes);
    switch (row->type) {
    case OPT_TYPE_TEXT: put(&s, "a text"); break;
    case OPT_TYPE_INT: put(&s, "a whole number from %.0f to %.0f", row->min, row->max); break;
    case OPT_TYPE_REAL:
        put(&s, "a number %s %g %s %g", row->flags & OPT_OPEN_LOW ? "above" : "from", row->min,
            row->flags & OPT_OPEN_LOW ? "and up to" : "to", row->max);
        break;
    case OPT_TYPE_BOOL: put(&s, "True or False"); break;
    case OPT_TYPE_BATCH:
        put(&s, "a whole number from %.0f to %.0f, auto, or a share of the free memory as in 0.7",
            row->min, row->max);
        break;
    case OPT_TYPE_DEVICE: put(&s, "auto, all, cpu, or a list such as 0,1,2,3 or cpu,cpu"); break;
    case OPT_TYPE_ABSENT: put(&s, "its off value"); break;
    case OPT_TYPE_WORD:
        /* The first word of each value; the others are only other spellings. */
        for (const option_word_t *w = row->words; w->word; w++) {
            int again = 0, more = 0;
            for (const option_word_t *b = row->words; b != w; b++)
                again |= b->value == w->value;
            for (const option_word_t *b = w + 1; b->word; b++) {
                int seen = 0;
                for (const option_word_t *c = row->words; c != b; c++)
                    seen |= c->value == b->value;
                more |= !seen;
            }
            if (!again)
                put(&s, "%s%s", w == row->words ? "" : more ? ", " : " or ", w->word);
        }
        break;
    }
}

/* Whether a text can stand in YAML without quotes and come back as itself. */
static int is_plain(const char *text)
{
    static const char *const taken[] = {"null", "none", "true", "false", "yes",
                                        "no",   "on",   "off",  "y",     "n"};
    static const char safe[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (strcasecmp(text, taken[i]) == 0)
            return 0;
    /* A letter or a slash in front: never a number, a list item or a document mark. */
    return *text && strspn(text, safe) == strlen(text) && !strchr("0123456789.-_", *text);
}

/* A double-quoted YAML scalar. Escaped is what a YAML reader refuses or folds: controls, line
 * breaks of other scripts, the byte order mark, non-characters. */
static void put_quoted(sink_t *s, const char *text)
{
    put(s, "\"");
    while (*text) {
        uint32_t c;
        size_t n = text_utf8(text, &c);
        if (n == 0) { /* options_set takes no such byte */
            s->full = 1;
            return;
        }
        if (c == '"' || c == '\\')
            put(s, "\\%c", (char)c);
        else if (c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0xFEFF ||
                 c == 0xFFFE || c == 0xFFFF)
            put(s, "\\u%04X", c);
        else
            put(s, "%.*s", (int)n, text);
        text += n;
    }
    put(s, "\"");
}

static void put_yaml_value(sink_t *s, const options_t *o, const option_spec_t *row)
{
    const char *text = (const char *)o + row->offset;
    if (row->type == OPT_TYPE_TEXT && !is_plain(text))
        put_quoted(s, text);
    else
        put_value(s, o, row);
}

int options_dump_yaml(const options_t *o, char *text, size_t bytes)
{
    sink_t s = sink_over(text, bytes);
    for (int i = 0; i < options_table_rows && !s.full; i++) {
        const option_spec_t *row = &options_table[i];
        if (!row->key || row->type == OPT_TYPE_ABSENT)
            continue;
        put(&s, "%s: ", row->key);
        put_yaml_value(&s, o, row);
        put(&s, "\n");
    }
    return sink_finish(&s, "the configuration");
}

/* " [1 to 100000]", " [SGD or AdamW]", or "" where the help says it all. */
static void range_text(const option_spec_t *row, char *text, size_t bytes)
{
    text[0] = '\0';
    if (row->type == OPT_TYPE_INT && row->max >= 2147483647.0)
        snprintf(text, bytes, " [%.0f or more]", row->min);
    else if (row->type == OPT_TYPE_INT || row->type == OPT_TYPE_REAL || row->type == OPT_TYPE_BATCH)
        snprintf(text, bytes, " [%s%.0f to %.0f]", row->flags & OPT_OPEN_LOW ? "above " : "",
                 row->min, row->max);
    else if (row->type == OPT_TYPE_WORD) {
        char legal[128];
        options_legal_text(row, legal, sizeof legal);
        snprintf(text, bytes, " [%s]", legal);
    }
}

static void put_padded(sink_t *s, size_t from, size_t column)
{
    do {
        put(s, " ");
    } while (!s->full && s->used - from < column);
}

/* The keys that are known only to be refused: one comment, broken into lines. */
static void put_absent(sink_t *s, int first)
{
    size_t line = s->used;
    put(s, "#");
    for (int i = first; i < options_table_rows && options_table[i].key; i++) {
        const option_spec_t *row = &options_table[i];
        char off[128];
        snprintf(off, sizeof off, "%s", row->initial);
        off[strcspn(off, " ")] = '\0';
        size_t need = strlen(row->key) + strlen(off) + 3;
        if (s->used - line + need > 98) {
            put(s, "\n");
            line = s->used;
            put(s, "#");
        }
        put(s, " %s=%s", row->key, off);
    }
    put(s, "\n");
}

int options_document_yaml(char *text, size_t bytes)
{
    options_t o;
    options_default(&o);
    sink_t s = sink_over(text, bytes);
    put(&s,
        "# Every option of `sluice train`, `digest`, `val` and `predict` with train's default. A "
        "copy of\n"
        "# this file, or of a part of it, sets them: sluice train cfg=FILE. The command line "
        "wins.\n");
    for (int i = 0; i < options_table_rows; i++) {
        const option_spec_t *row = &options_table[i];
        if (!row->key) {
            put(&s, "\n# %s\n", row->section);
            if (i + 1 < options_table_rows && options_table[i + 1].type == OPT_TYPE_ABSENT)
                put_absent(&s, i + 1);
            continue;
        }
        if (row->type == OPT_TYPE_ABSENT)
            continue;
        char range[160];
        size_t line = s.used;
        put(&s, "%s: ", row->key);
        put_yaml_value(&s, &o, row);
        range_text(row, range, sizeof range);
        put_padded(&s, line, 26);
        put(&s, "# %s%s\n", row->help, range);
    }
    return sink_finish(&s, "the documented configuration");
}

void options_help(void (*line)(void *, const char *), void *user)
{
    options_t o;
    options_default(&o);
    char text[4096];
    for (int i = 0; i < options_table_rows; i++) {
        const option_spec_t *row = &options_table[i];
        sink_t s = sink_over(text, sizeof text);
        if (!row->key) {
            line(user, "");
            line(user, row->section);
            continue;
        }
        put(&s, "  %s=", row->key);
        if (row->type == OPT_TYPE_ABSENT)
            put(&s, "%.*s", (int)strcspn(row->initial, " "), row->initial);
        else
            put_value(&s, &o, row);
        char range[160];
        range_text(row, range, sizeof range);
        put_padded(&s, 0, 26);
        put(&s, "%s%s", row->help, range);
        line(user, text);
    }
}
