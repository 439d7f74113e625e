#include "control/options.h"

#include "control/options_table.h"
#include "control/text.h"
#include "control/yamldoc.h"
#include "shm/err.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int refuse(const option_spec_t *row, const char *text)
{
    char legal[256];
    options_legal_text(row, legal, sizeof legal);
    return err_set(ERR_CONFIG, "%s=%.200s: %s is needed", row->key, text, legal);
}

static void *field(options_t *o, const option_spec_t *row)
{
    return (char *)o + row->offset;
}

static int parse_text(options_t *o, const option_spec_t *row, const char *text)
{
    size_t length = strlen(text);
    if (length >= row->size)
        return err_set(ERR_CONFIG, "%s=%.60s...: %zu bytes long; at most %zu are taken", row->key,
                       text, length, row->size - 1);
    for (const char *s = text; *s;) {
        uint32_t c;
        size_t n = text_utf8(s, &c);
        if (n == 0 || c < 0x20 || c == 0x7F)
            return err_set(ERR_CONFIG, "%s=%.200s: byte %zu is %s", row->key, text,
                           (size_t)(s - text) + 1, n == 0 ? "not UTF-8" : "a control character");
        s += n;
    }
    memset(field(o, row), 0, row->size);
    memcpy(field(o, row), text, length);
    return 0;
}

static int parse_int(options_t *o, const option_spec_t *row, const char *text)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (isspace((unsigned char)*text) || end == text || *end || errno || (double)v < row->min ||
        (double)v > row->max)
        return refuse(row, text);
    *(int *)field(o, row) = (int)v;
    return 0;
}

/* 1 and the value when text is a plain decimal number: no infinities, no NaN, no hexadecimal. */
static int plain_number(const char *text, double *value)
{
    char *end;
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return 0;
    *value = strtod(text, &end);
    return *end == '\0' && isfinite(*value);
}

static int parse_real(options_t *o, const option_spec_t *row, const char *text)
{
    double v;
    if (!plain_number(text, &v) || v < row->min || v > row->max ||
        ((row->flags & OPT_OPEN_LOW) && v <= row->min))
        return refuse(row, text);
    *(double *)field(o, row) = v;
    return 0;
}

static int parse_bool(options_t *o, const option_spec_t *row, const char *text)
{
    static const char *const words[2][5] = {{"False", "no", "off", "n", "0"},
                                            {"True", "yes", "on", "y", "1"}};
    for (int truth = 0; truth < 2; truth++)
        for (int i = 0; i < 5; i++)
            if (strcasecmp(text, words[truth][i]) == 0) {
                *(int *)field(o, row) = truth;
                return 0;
            }
    return refuse(row, text);
}

/* Enums are ints of one size here (asserted), so that one table can write them all. */
_Static_assert(sizeof(opt_amp_t) == sizeof(int) && sizeof(opt_io_t) == sizeof(int) &&
                   sizeof(opt_cache_t) == sizeof(int) && sizeof(opt_warning_t) == sizeof(int) &&
                   sizeof(opt_optimizer_t) == sizeof(int),
               "options_table writes enums as int");

static int parse_word(options_t *o, const option_spec_t *row, const char *text)
{
    for (const option_word_t *w = row->words; w->word; w++)
        if (strcasecmp(text, w->word) == 0) {
            memcpy(field(o, row), &w->value, sizeof w->value);
            return 0;
        }
    return refuse(row, text);
}

/* One item of a device list: "cpu", "cuda", "cuda:3" or "3". */
static int device_item(const char *item, int *device)
{
    if (strcasecmp(item, "cpu") == 0) {
        *device = DEVICE_CPU;
        return 1;
    }
    if (strcasecmp(item, "cuda") == 0)
        item = "0";
    else if (strncasecmp(item, "cuda:", 5) == 0)
        item += 5;
    size_t digits = strspn(item, "0123456789");
    if (digits == 0 || digits > 4 || item[digits])
        return 0;
    *device = atoi(item);
    return 1;
}

static int parse_device(options_t *o, const option_spec_t *row, const char *text)
{
    char list[1024];
    size_t used = 0;
    for (const char *s = text; *s; s++) { /* "[0, 1]" and "(0, 1)" are "0,1" */
        if (strchr("[]() ", *s))
            continue;
        if (used + 1 >= sizeof list)
            return refuse(row, text);
        list[used++] = *s;
    }
    list[used] = '\0';
    int devices[OPTIONS_DEVICES], n = 0;
    /* -1: what others call the GPU that is least in use. */
    if (strcasecmp(list, "auto") == 0 || strcmp(list, "-1") == 0) {
        devices[n++] = DEVICE_AUTO;
    } else if (strcasecmp(list, "all") == 0) {
        devices[n++] = DEVICE_ALL;
    } else {
        char *rest = list, *item;
        while ((item = strsep(&rest, ","))) {
            if (n == OPTIONS_DEVICES)
                return err_set(ERR_CONFIG, "device=%.200s: at most %d devices are taken", text,
                               OPTIONS_DEVICES);
            if (!device_item(item, &devices[n++]))
                return refuse(row, text);
        }
    }
    for (int i = 1; i < n; i++)
        if ((devices[i] == DEVICE_CPU) != (devices[0] == DEVICE_CPU))
            return err_set(ERR_CONFIG, "device=%.200s: GPUs and CPU cannot be mixed in one run",
                           text);
    memset(o->devices, 0, sizeof o->devices);
    memcpy(o->devices, devices, (size_t)n * sizeof *devices);
    o->n_devices = n;
    return 0;
}

/* A number of images, or a share of memory (auto, -1: OPTIONS_BATCH_SHARE of it). */
static int parse_batch(options_t *o, const option_spec_t *row, const char *text)
{
    double v;
    if (strcasecmp(text, "auto") == 0 || strcmp(text, "-1") == 0) {
        o->batch = 0;
        o->batch_share = OPTIONS_BATCH_SHARE;
        return 0;
    }
    if (!plain_number(text, &v))
        return refuse(row, text);
    if (v > 0 && v < 1) {
        o->batch = 0;
        o->batch_share = v;
        return 0;
    }
    if (v < row->min || v > row->max || v != floor(v))
        return refuse(row, text);
    o->batch = (int)v;
    o->batch_share = 0;
    return 0;
}

static int same_value(const char *a, const char *b)
{
    double x, y;
    return strcasecmp(a, b) == 0 || (plain_number(a, &x) && plain_number(b, &y) && x == y);
}

/* A key that this version does not act on takes only the words that mean "off": nothing that a
 * person asked for is ignored in silence. */
static int parse_absent(const option_spec_t *row, const char *text)
{
    char words[128], *rest = words, *word;
    const char *first = words;
    snprintf(words, sizeof words, "%s", row->initial);
    while ((word = strsep(&rest, " ")))
        if (same_value(word, text))
            return 0;
    return err_set(ERR_CONFIG, "%s=%.200s: this version has no %s; leave %s out or set %s=%s",
                   row->key, text, row->help, row->key, row->key, first);
}

int options_parse(options_t *o, const option_spec_t *row, const char *text)
{
    if ((row->flags & OPT_NONE_OK) &&
        (*text == '\0' || strcasecmp(text, "none") == 0 || strcasecmp(text, "null") == 0))
        text = row->initial;
    else if (*text == '\0' && row->type != OPT_TYPE_ABSENT)
        return refuse(row, text);
    switch (row->type) {
    case OPT_TYPE_TEXT: return parse_text(o, row, text);
    case OPT_TYPE_INT: return parse_int(o, row, text);
    case OPT_TYPE_REAL: return parse_real(o, row, text);
    case OPT_TYPE_BOOL: return parse_bool(o, row, text);
    case OPT_TYPE_WORD: return parse_word(o, row, text);
    case OPT_TYPE_DEVICE: return parse_device(o, row, text);
    case OPT_TYPE_BATCH: return parse_batch(o, row, text);
    case OPT_TYPE_ABSENT: return parse_absent(row, text);
    }
    return refuse(row, text);
}

void options_default(options_t *o)
{
    memset(o, 0, sizeof *o);
    for (int i = 0; i < options_table_rows; i++) {
        const option_spec_t *row = &options_table[i];
        if (row->key && row->type == OPT_TYPE_TEXT)
            memcpy(field(o, row), row->initial, strlen(row->initial));
        else if (row->key && row->type != OPT_TYPE_ABSENT)
            (void)options_parse(o, row, row->initial); /* a test parses every default */
    }
}

/* The known key with the fewest edits; a key that begins like the word, or the word like the key,
 * is nearer than its edits say: batchsize means batch. */
static const char *nearest_key(const char *word)
{
    const char *best = "";
    unsigned least = UINT_MAX;
    word += strspn(word, "-");
    for (int i = 0; i < options_table_rows; i++) {
        const char *key = options_table[i].key;
        if (!key || options_table[i].type == OPT_TYPE_ABSENT)
            continue;
        unsigned edits = 2 * text_distance(word, key);
        size_t nk = strlen(key), nw = strlen(word), shorter = nk < nw ? nk : nw;
        if (shorter >= 3 && strncasecmp(word, key, shorter) == 0)
            edits = edits / 2;
        if (edits < least) {
            least = edits;
            best = key;
        }
    }
    return best;
}

static int unknown_key(const char *key)
{
    return err_set(ERR_CONFIG,
                   "unknown key '%.80s'; the nearest known one is '%s' (--help lists all)", key,
                   nearest_key(key));
}

static void mark_set(options_t *o, const option_spec_t *row)
{
    size_t i = (size_t)(row - options_table);
    o->set_mask[i / 64] |= UINT64_C(1) << i % 64;
}

int options_was_set(const options_t *o, const char *key)
{
    const option_spec_t *row = options_find(key);
    if (!row)
        return 0;
    size_t i = (size_t)(row - options_table);
    return (int)(o->set_mask[i / 64] >> i % 64 & 1);
}

int options_set(options_t *o, const char *word)
{
    char key[64];
    const char *equals = strchr(word, '=');
    if (!equals || equals == word)
        return err_set(ERR_CONFIG, "'%.200s': options are written key=value, as in epochs=50",
                       word);
    snprintf(key, sizeof key, "%.*s", (int)(equals - word > 63 ? 63 : equals - word), word);
    const option_spec_t *row = options_find(key);
    if (!row)
        return unknown_key(key);
    int rc = options_parse(o, row, equals + 1);
    if (rc == 0)
        mark_set(o, row);
    return rc;
}

/* A YAML value as a person would type it: a list becomes its items with commas between. */
static int node_text(const yamldoc_node_t *n, char *text, size_t bytes)
{
    if (n->kind == YAMLDOC_SCALAR) {
        size_t length = strlen(n->text);
        if (length >= bytes)
            return err_set(ERR_CONFIG, "a value of %zu bytes; at most %zu are taken", length,
                           bytes - 1);
        memcpy(text, n->text, length + 1);
        return 0;
    }
    if (n->kind == YAMLDOC_MAP)
        return err_set(ERR_CONFIG, "a map where a value is needed");
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n->count; i++) {
        const yamldoc_node_t *item = n->values[i];
        if (item->kind != YAMLDOC_SCALAR || strlen(item->text) + 2 > bytes - used)
            return err_set(ERR_CONFIG, "a list that is nested or too long");
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? "," : "", item->text);
    }
    return 0;
}

static int set_from_node(options_t *o, const option_spec_t *row, const yamldoc_node_t *value)
{
    char typed[OPTIONS_PATH_BYTES * 2], before[OPTIONS_PATH_BYTES], after[OPTIONS_PATH_BYTES];
    int rc = node_text(value, typed, sizeof typed);
    if (rc < 0)
        return err_add(rc, "%s", row->key);
    if (row->type == OPT_TYPE_ABSENT)
        return options_parse(o, row, yamldoc_is_null(value) ? "none" : typed);
    options_value_text(o, row, before, sizeof before);
    if (yamldoc_is_null(value))
        rc = row->type == OPT_TYPE_TEXT ? parse_text(o, row, row->initial)
                                        : options_parse(o, row, row->initial);
    else if (row->type == OPT_TYPE_TEXT && value->quoted)
        rc = parse_text(o, row, typed); /* "none" in quotes is a name, "" is empty */
    else
        rc = options_parse(o, row, typed);
    if (rc < 0)
        return rc;
    options_value_text(o, row, after, sizeof after);
    if (strcmp(before, after) != 0)
        mark_set(o, row);
    return 0;
}

static int load_document(options_t *o, const yamldoc_t *doc, const char *origin)
{
    const yamldoc_node_t *root = yamldoc_root(doc);
    if (yamldoc_is_null(root))
        return 0;
    if (root->kind != YAMLDOC_MAP)
        return err_set(ERR_CONFIG, "%s:%d: lines of `key: value` are needed", origin, root->line);
    for (int i = 0; i < root->count; i++) {
        const option_spec_t *row = options_find(root->keys[i]->text);
        int rc = row ? set_from_node(o, row, root->values[i]) : unknown_key(root->keys[i]->text);
        if (rc < 0)
            return err_add(rc, "%s:%d", origin, root->keys[i]->line);
    }
    return 0;
}

int options_load_yaml(options_t *o, const char *path)
{
    yamldoc_t *doc;
    int rc = yamldoc_load_file(path, &doc);
    if (rc == 0)
        rc = load_document(o, doc, path);
    yamldoc_free(&doc);
    return rc;
}

int options_load_yaml_text(options_t *o, const char *text, size_t bytes, const char *origin)
{
    yamldoc_t *doc;
    int rc = yamldoc_load_text(text, bytes, origin, &doc);
    if (rc == 0)
        rc = load_document(o, doc, origin);
    yamldoc_free(&doc);
    return rc;
}
