/* DESIGN. libyaml's event stream builds the tree bottom-up with an explicit stack, so that depth is
 * bounded by a table and not by the C stack. All memory hangs off the document in one list of
 * blocks; children arrays grow by doubling, and the outgrown halves stay until the document goes:
 * with the limits below that costs a few megabytes at worst. */
#include "control/yamldoc.h"

#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

enum { YAML_BYTES_MAX = 16 << 20, YAML_DEPTH_MAX = 32, YAML_NODES_MAX = 1 << 18 };

typedef struct block {
    struct block *next;
    max_align_t bytes[];
} block_t;

struct yamldoc {
    block_t *blocks;
    char *origin;
    yamldoc_node_t *root;
    int nodes;
};

static void *doc_alloc(yamldoc_t *doc, size_t bytes)
{
    block_t *b = malloc(sizeof *b + bytes);
    if (!b)
        return NULL;
    memset(b->bytes, 0, bytes);
    b->next = doc->blocks;
    doc->blocks = b;
    return b->bytes;
}

static char *doc_text(yamldoc_t *doc, const char *text, size_t n)
{
    char *copy = doc_alloc(doc, n + 1);
    if (copy)
        memcpy(copy, text, n);
    return copy;
}

static int out_of_memory(const yamldoc_t *doc)
{
    return err_set(ERR_ENV, "%s: out of memory while reading it",
                   doc->origin ? doc->origin : "YAML");
}

/* Puts child behind the last of list; capacities are the powers of two from 4 on. */
static int child_append(yamldoc_t *doc, yamldoc_node_t ***list, int count, yamldoc_node_t *child)
{
    if (count == 0 || (count >= 4 && (count & (count - 1)) == 0)) {
        size_t room = count == 0 ? 4 : (size_t)count * 2;
        yamldoc_node_t **grown = doc_alloc(doc, room * sizeof *grown);
        if (!grown)
            return out_of_memory(doc);
        if (count > 0)
            memcpy(grown, *list, (size_t)count * sizeof *grown);
        *list = grown;
    }
    (*list)[count] = child;
    return 0;
}

/* What is open while the events come: a map holds its key until the value is there. */
typedef struct {
    yamldoc_node_t *open[YAML_DEPTH_MAX];
    yamldoc_node_t *key[YAML_DEPTH_MAX];
    int depth;
} builder_t;

static int map_key(yamldoc_t *doc, yamldoc_node_t *map, yamldoc_node_t *key)
{
    if (key->kind != YAMLDOC_SCALAR)
        return err_set(ERR_CONFIG, "%s:%d: a key must be a plain word, not a list or a map",
                       doc->origin, key->line);
    /* Long maps (class names by number) are checked by their reader: this test is quadratic. */
    if (map->count < 256 && yamldoc_get(map, key->text))
        return err_set(ERR_CONFIG, "%s:%d: key '%.80s' stands there twice", doc->origin, key->line,
                       key->text);
    return 0;
}

/* Gives a finished or just opened node its place in the innermost open one. */
static int builder_place(yamldoc_t *doc, builder_t *b, yamldoc_node_t *node)
{
    int rc;
    if (b->depth == 0) {
        if (doc->root)
            return err_set(ERR_CONFIG, "%s:%d: a second document begins; one is needed",
                           doc->origin, node->line);
        doc->root = node;
        return 0;
    }
    yamldoc_node_t *top = b->open[b->depth - 1];
    if (top->kind == YAMLDOC_MAP) {
        yamldoc_node_t **key = &b->key[b->depth - 1];
        if (!*key) {
            rc = map_key(doc, top, node);
            *key = node;
            return rc;
        }
        rc = child_append(doc, &top->keys, top->count, *key);
        if (rc < 0)
            return rc;
        *key = NULL;
    }
    rc = child_append(doc, &top->values, top->count, node);
    top->count += rc == 0;
    return rc;
}

static yamldoc_node_t *node_new(yamldoc_t *doc, yamldoc_kind_t kind, const yaml_event_t *event)
{
    yamldoc_node_t *n = doc_alloc(doc, sizeof *n);
    if (n) {
        n->kind = kind;
        n->line = (int)event->start_mark.line + 1;
        n->text = "";
        doc->nodes++;
    }
    return n;
}

static int on_scalar(yamldoc_t *doc, builder_t *b, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    int line = (int)event->start_mark.line + 1;
    if (memchr(value, 0, length))
        return err_set(ERR_CONFIG, "%s:%d: a text contains a NUL character", doc->origin, line);
    yamldoc_node_t *n = node_new(doc, YAMLDOC_SCALAR, event);
    if (!n || !(n->text = doc_text(doc, value, length)))
        return out_of_memory(doc);
    const char *tag = (const char *)event->data.scalar.tag;
    n->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE ||
                (tag && strcmp(tag, YAML_STR_TAG) == 0);
    return builder_place(doc, b, n);
}

static int on_open(yamldoc_t *doc, builder_t *b, yamldoc_kind_t kind, const yaml_event_t *event)
{
    yamldoc_node_t *n = node_new(doc, kind, event);
    if (!n)
        return out_of_memory(doc);
    int rc = builder_place(doc, b, n);
    if (rc < 0)
        return rc;
    if (b->depth == YAML_DEPTH_MAX)
        return err_set(ERR_CONFIG, "%s:%d: nested deeper than %d levels", doc->origin, n->line,
                       YAML_DEPTH_MAX);
    b->open[b->depth] = n;
    b->key[b->depth] = NULL;
    b->depth++;
    return 0;
}

static int on_event(yamldoc_t *doc, builder_t *b, const yaml_event_t *event)
{
    if (doc->nodes >= YAML_NODES_MAX)
        return err_set(ERR_CONFIG, "%s: more than %d values", doc->origin, YAML_NODES_MAX);
    switch (event->type) {
    case YAML_SCALAR_EVENT: return on_scalar(doc, b, event);
    case YAML_SEQUENCE_START_EVENT: return on_open(doc, b, YAMLDOC_LIST, event);
    case YAML_MAPPING_START_EVENT: return on_open(doc, b, YAMLDOC_MAP, event);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: b->depth--; return 0;
    case YAML_ALIAS_EVENT:
        return err_set(ERR_CONFIG, "%s:%d: aliases (*%.40s) are not read; write the value out",
                       doc->origin, (int)event->start_mark.line + 1,
                       (const char *)event->data.alias.anchor);
    default: return 0;
    }
}

static int parse_events(yamldoc_t *doc, yaml_parser_t *parser)
{
    builder_t b = {.depth = 0};
    for (int rc = 0, end = 0; !end;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) {
            if (parser->error == YAML_MEMORY_ERROR)
                return out_of_memory(doc);
            if (parser->error == YAML_READER_ERROR)
                return err_set(ERR_CONFIG, "%s: not YAML: %s, at byte %zu", doc->origin,
                               parser->problem, parser->problem_offset);
            return err_set(ERR_CONFIG, "%s:%zu: not YAML: %s%s%s", doc->origin,
                           parser->problem_mark.line + 1,
                           parser->problem ? parser->problem : "unreadable",
                           parser->context ? ", " : "", parser->context ? parser->context : "");
        }
        end = event.type == YAML_STREAM_END_EVENT;
        rc = on_event(doc, &b, &event);
        yaml_event_delete(&event);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* A file without a value is an empty scalar, as `key:` without one is. */
static int ensure_root(yamldoc_t *doc)
{
    if (!doc->root) {
        yamldoc_node_t *n = doc_alloc(doc, sizeof *n);
        if (!n)
            return out_of_memory(doc);
        n->line = 1;
        n->text = "";
        doc->root = n;
    }
    return 0;
}

int yamldoc_load_text(const char *text, size_t bytes, const char *origin, yamldoc_t **out)
{
    int rc;
    yaml_parser_t parser;
    yamldoc_t *doc = calloc(1, sizeof *doc);
    *out = NULL;
    if (!doc || !yaml_parser_initialize(&parser)) {
        free(doc);
        return err_set(ERR_ENV, "%s: out of memory while reading it", origin);
    }
    if (!(doc->origin = doc_text(doc, origin, strlen(origin)))) {
        rc = out_of_memory(doc);
        goto fail;
    }
    if (bytes > YAML_BYTES_MAX) {
        rc = err_set(ERR_CONFIG, "%s: %zu bytes; at most %d are read", origin, bytes,
                     YAML_BYTES_MAX);
        goto fail;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    CHECK_GOTO(parse_events(doc, &parser), rc, fail);
    CHECK_GOTO(ensure_root(doc), rc, fail);
    yaml_parser_delete(&parser);
    *out = doc;
    return 0;
fail:
    yaml_parser_delete(&parser);
    yamldoc_free(&doc);
    return rc;
}

/* Reads an opened regular file whole. */
static int read_whole(int fd, const char *path, char **text, size_t *bytes)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(ERR_CONFIG, "%s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(ERR_CONFIG, "%s is not a file; a YAML file is needed", path);
    if (st.st_size > YAML_BYTES_MAX)
        return err_set(ERR_CONFIG, "%s: %lld bytes; at most %d are read", path,
                       (long long)st.st_size, YAML_BYTES_MAX);
    char *all = malloc((size_t)st.st_size + 1);
    if (!all)
        return err_set(ERR_ENV, "%s: out of memory while reading it", path);
    size_t used = 0;
    while (used < (size_t)st.st_size) {
        ssize_t n = read(fd, all + used, (size_t)st.st_size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            free(all);
            return err_sys(ERR_CONFIG, "reading %s", path);
        }
        if (n == 0)
            break;
        used += (size_t)n;
    }
    *text = all;
    *bytes = used;
    return 0;
}

int yamldoc_load_file(const char *path, yamldoc_t **doc)
{
    char *text = NULL;
    size_t bytes = 0;
    *doc = NULL;
    /* O_NONBLOCK: a FIFO in the file's place must not hold us. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return err_sys(ERR_CONFIG, "cannot open %s", path);
    int rc = read_whole(fd, path, &text, &bytes);
    close(fd);
    if (rc == 0)
        rc = yamldoc_load_text(text, bytes, path, doc);
    free(text);
    return rc;
}

void yamldoc_free(yamldoc_t **doc)
{
    if (!*doc)
        return;
    for (block_t *b = (*doc)->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(*doc);
    *doc = NULL;
}

const yamldoc_node_t *yamldoc_root(const yamldoc_t *doc)
{
    return doc->root;
}

const yamldoc_node_t *yamldoc_get(const yamldoc_node_t *map, const char *key)
{
    if (!map || map->kind != YAMLDOC_MAP)
        return NULL;
    for (int i = 0; i < map->count; i++)
        if (strcmp(map->keys[i]->text, key) == 0)
            return map->values[i];
    return NULL;
}

static int bad_value(const yamldoc_t *doc, const yamldoc_node_t *n, const char *wanted)
{
    static const char *const kinds[] = {"", "a list", "a map"};
    if (n->kind != YAMLDOC_SCALAR)
        return err_set(ERR_CONFIG, "%s:%d: %s where %s is needed", doc->origin, n->line,
                       kinds[n->kind], wanted);
    return err_set(ERR_CONFIG, "%s:%d: '%.80s' is not %s", doc->origin, n->line, n->text, wanted);
}

int yamldoc_int(const yamldoc_t *doc, const yamldoc_node_t *n, long long *value)
{
    if (n->kind == YAMLDOC_SCALAR && !n->quoted && *n->text) {
        char *end;
        int hex = strncasecmp(n->text, "0x", 2) == 0;
        errno = 0;
        long long v = strtoll(n->text, &end, hex ? 16 : 10);
        if (*end == '\0' && errno == 0) {
            *value = v;
            return 0;
        }
        /* "80.0" is a whole number too (facts/yolo.md 7.1: integer-like). */
        double d;
        if (!hex && yamldoc_double(doc, n, &d) == 0 && d == floor(d) && fabs(d) < 0x1p53) {
            *value = (long long)d;
            return 0;
        }
    }
    return bad_value(doc, n, "a whole number");
}

int yamldoc_double(const yamldoc_t *doc, const yamldoc_node_t *n, double *value)
{
    /* The character set keeps out strtod's words for infinities, NaN and hexadecimal numbers. */
    if (n->kind == YAMLDOC_SCALAR && !n->quoted && *n->text &&
        n->text[strspn(n->text, "0123456789+-.eE")] == '\0') {
        char *end;
        double v = strtod(n->text, &end);
        if (*end == '\0' && isfinite(v)) {
            *value = v;
            return 0;
        }
    }
    return bad_value(doc, n, "a number");
}

int yamldoc_bool(const yamldoc_t *doc, const yamldoc_node_t *n, int *value)
{
    static const char *const words[2][5] = {{"false", "no", "off", "n", "0"},
                                            {"true", "yes", "on", "y", "1"}};
    if (n->kind == YAMLDOC_SCALAR && !n->quoted)
        for (int truth = 0; truth < 2; truth++)
            for (int i = 0; i < 5; i++)
                if (strcasecmp(n->text, words[truth][i]) == 0) {
                    *value = truth;
                    return 0;
                }
    return bad_value(doc, n, "True or False");
}

int yamldoc_is_null(const yamldoc_node_t *n)
{
    return n->kind == YAMLDOC_SCALAR && !n->quoted &&
           (*n->text == '\0' || strcmp(n->text, "~") == 0 || strcasecmp(n->text, "null") == 0 ||
            strcasecmp(n->text, "none") == 0);
}
