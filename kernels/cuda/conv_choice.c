#include "kernels/cuda/conv_choice.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(conv_shape_t) == 15 * sizeof(int32_t), "keys are compared as bytes");

static const char *const direction_name[CONV_DIRECTIONS] = {"forward", "dx", "dw"};
static const char *const dtype_name[] = {"f32", "bf16", "f16"};
static const char *const form_name[CONV_FORMS] = {"direct", "packed", "plain"};
enum { DTYPES = 3, LINE_BYTES = 2048 };

void conv_choices_init(conv_choices_t *t)
{
    *t = (conv_choices_t){0};
    for (int i = 0; i < CONV_BUCKETS; i++)
        t->bucket[i] = -1;
}

void conv_choices_fini(conv_choices_t *t)
{
    for (int32_t i = 0; i < t->count; i++) {
        conv_plan_free(&t->all[i]->plan);
        free(t->all[i]);
    }
    free(t->all);
    free(t->next);
    conv_choices_init(t);
}

/* FNV-1a over the key's bytes. */
static uint32_t bucket_of(const conv_shape_t *shape)
{
    const unsigned char *b = (const unsigned char *)shape;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *shape; i++)
        h = (h ^ b[i]) * 16777619u;
    return (h ^ h >> 16) % CONV_BUCKETS;
}

conv_choice_t *conv_choices_find(const conv_choices_t *t, const conv_shape_t *shape)
{
    for (int32_t i = t->bucket[bucket_of(shape)]; i >= 0; i = t->next[i])
        if (memcmp(&t->all[i]->shape, shape, sizeof *shape) == 0)
            return t->all[i];
    return NULL;
}

static int grow(conv_choices_t *t)
{
    if (t->count < t->room)
        return 0;
    int32_t room = t->room ? 2 * t->room : 256;
    conv_choice_t **all = realloc(t->all, (size_t)room * sizeof *all);
    if (all)
        t->all = all;
    int32_t *next = realloc(t->next, (size_t)room * sizeof *next);
    if (next)
        t->next = next;
    if (!all || !next)
        return -1;
    t->room = room;
    return 0;
}

conv_choice_t *conv_choices_put(conv_choices_t *t, const conv_choice_t *c)
{
    conv_choice_t *have = conv_choices_find(t, &c->shape), *own;
    if (have) {
        conv_plan_t *plan = c->plan;
        if (have->plan)
            conv_plan_free(&plan);
        else
            *have = *c;
        return have;
    }
    if (grow(t) < 0 || !(own = malloc(sizeof *own)))
        return NULL;
    *own = *c;
    const uint32_t bucket = bucket_of(&c->shape);
    t->all[t->count] = own;
    t->next[t->count] = t->bucket[bucket];
    t->bucket[bucket] = t->count++;
    return own;
}

/* n to walign: what stands behind direction and format. */
enum { FIELDS = 13 };
static int32_t *fields(conv_shape_t *s)
{
    return (int32_t *)(void *)s + 2;
}

/* Appends to a text of `bytes`, counting beyond its end as snprintf does. */
static void append(char *text, uint64_t bytes, int64_t *length, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void append(char *text, uint64_t bytes, int64_t *length, const char *fmt, ...)
{
    const uint64_t used = (uint64_t)*length < bytes ? (uint64_t)*length : bytes;
    va_list args;
    va_start(args, fmt);
    *length += vsnprintf(text ? text + used : NULL, text ? bytes - used : 0, fmt, args);
    va_end(args);
}

int64_t conv_choices_text(const conv_choices_t *t, const char *header, char *text, uint64_t bytes)
{
    int64_t length = 0;
    int sums[CONV_FORMS] = {0};
    append(text, bytes, &length, "%s\n", header);
    for (int32_t i = 0; i < t->count; i++) {
        conv_choice_t c = *t->all[i];
        sums[c.form]++;
        append(text, bytes, &length, "%s %s", direction_name[c.shape.direction],
               dtype_name[c.shape.dtype]);
        for (int k = 0; k < FIELDS; k++)
            append(text, bytes, &length, " %" PRId32, fields(&c.shape)[k]);
        append(text, bytes, &length, " -> %s %" PRId64 " %" PRIu64 " %.1f", form_name[c.form],
               c.engine.index, c.workspace, c.us);
        for (int k = 0; k < c.engine.knobs; k++)
            append(text, bytes, &length, " %" PRId32 "=%" PRId64, c.engine.type[k],
                   c.engine.value[k]);
        append(text, bytes, &length, "\n");
    }
    append(text, bytes, &length, "sums: direct %d packed %d plain %d\n", sums[CONV_DIRECT],
           sums[CONV_PACKED], sums[CONV_PLAIN]);
    return length;
}

static int name_index(const char *word, const char *const *names, int count)
{
    for (int i = 0; word && i < count; i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    return -1;
}

/* A whole decimal number within [least, most]; 0 or -1. */
static int number(const char *word, int64_t least, int64_t most, int64_t *value)
{
    char *end;
    if (!word || !*word)
        return -1;
    *value = strtoll(word, &end, 10);
    return *end == '\0' && *value >= least && *value <= most ? 0 : -1;
}

/* 2=1 */
static int read_knob(char *word, conv_engine_t *e)
{
    char *equals = strchr(word, '=');
    int64_t type;
    if (!equals || e->knobs == CONV_KNOBS)
        return -1;
    *equals = '\0';
    if (number(word, 0, INT32_MAX, &type) < 0 ||
        number(equals + 1, INT64_MIN, INT64_MAX, &e->value[e->knobs]) < 0)
        return -1;
    e->type[e->knobs++] = (int32_t)type;
    return 0;
}

static int read_shape(char **rest, conv_shape_t *s)
{
    int64_t v;
    s->direction = name_index(strtok_r(NULL, " ", rest), direction_name, CONV_DIRECTIONS);
    s->dtype = name_index(strtok_r(NULL, " ", rest), dtype_name, DTYPES);
    if (s->direction < 0 || s->dtype < 0)
        return -1;
    for (int k = 0; k < FIELDS; k++) {
        if (number(strtok_r(NULL, " ", rest), 0, INT32_MAX, &v) < 0)
            return -1;
        fields(s)[k] = (int32_t)v;
    }
    return 0;
}

/* Cuts the line up; 0 or -1. */
static int read_line(char *line, conv_choice_t *c)
{
    char *rest = line, *word, *end;
    int64_t v;
    *c = (conv_choice_t){0};
    if (read_shape(&rest, &c->shape) < 0)
        return -1;
    word = strtok_r(NULL, " ", &rest);
    if (!word || strcmp(word, "->") != 0)
        return -1;
    int form = name_index(strtok_r(NULL, " ", &rest), form_name, CONV_FORMS);
    if (form < 0 || number(strtok_r(NULL, " ", &rest), 0, INT64_MAX, &c->engine.index) < 0 ||
        number(strtok_r(NULL, " ", &rest), 0, INT64_MAX, &v) < 0)
        return -1;
    c->form = (conv_form_t)form;
    c->workspace = (uint64_t)v;
    word = strtok_r(NULL, " ", &rest);
    if (!word)
        return -1;
    c->us = strtod(word, &end);
    if (*end || !(c->us >= 0.0))
        return -1;
    while ((word = strtok_r(NULL, " ", &rest)))
        if (read_knob(word, &c->engine) < 0)
            return -1;
    return 0;
}

int conv_choices_read(conv_choices_t *t, const char *header, const char *text)
{
    int ours = 0;
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, "\n");
        char line[LINE_BYTES];
        conv_choice_t c;
        if (length < sizeof line) {
            memcpy(line, at, length);
            line[length] = '\0';
            if (strncmp(line, "cudnn ", 6) == 0)
                ours = strcmp(line, header) == 0;
            else if (ours && read_line(line, &c) == 0 && !conv_choices_put(t, &c))
                return -1;
        }
        at += length + (at[length] == '\n');
    }
    return 0;
}

void conv_shape_words(const conv_shape_t *s, char *text, size_t bytes)
{
    static const char *const op[CONV_DIRECTIONS] = {"conv", "conv_dx", "conv_dw"};
    snprintf(text, bytes, "%s %s %d x %d x %d, %d to %d channels, kernel %d, stride %d",
             op[s->direction], dtype_name[s->dtype], s->n, s->h, s->w, s->c1, s->c2, s->k, s->s);
}
