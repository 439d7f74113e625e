/* From a model's name to the rows of its table: the file or the built-in text, the scale, the class
 * count, and every row's module and arguments (facts/yolo.md 1.1). */
#include "trainer/graph_internal.h"

#include "control/log.h"
#include "control/yamldoc.h"
#include "shm/err.h"
#include "trainer/models.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The name without folders and .yaml: "yolo11s". */
static int stem_of(const char *name, char *stem, size_t room)
{
    const char *slash = strrchr(name, '/');
    const char *first = slash ? slash + 1 : name;
    size_t n = strlen(first);
    const char *dot = strrchr(first, '.');
    if (dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        n = (size_t)(dot - first);
    if (n == 0 || n >= room)
        return -1;
    memcpy(stem, first, n);
    stem[n] = 0;
    return 0;
}

/* "yolo11s" -> 's', and the stem without it; 0 if the stem names no scale (facts/yolo.md 1.1). */
static char scale_of(const char *stem, char *family)
{
    size_t n = strlen(stem);
    memcpy(family, stem, n + 1);
    if (n < 2 || !strchr("nslmx", stem[n - 1]) || !isdigit((unsigned char)stem[n - 2]))
        return 0;
    family[n - 1] = 0;
    return stem[n - 1];
}

static int unknown_model(const char *name)
{
    char known[128] = "";
    for (int i = 0; models_name(i); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 models_name(i));
    return err_set(
        ERR_CONFIG,
        "model %s is not known: use %s with n, s, m, l or x behind it (yolo11n), or the path "
        "of a model table (.yaml)",
        name, known);
}

/* The user's file when there is one, at its name or without the scale's letter; else the built-in
 * table. */
static int open_table(const char *name, char *scale, graph_t *g, yamldoc_t **doc)
{
    char family[sizeof g->name], path[4096];
    size_t bytes;
    if (stem_of(name, g->name, sizeof g->name))
        return unknown_model(name);
    *scale = scale_of(g->name, family);
    size_t n = strlen(name);
    int is_path = strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".yaml") == 0) ||
                  (n > 4 && strcmp(name + n - 4, ".yml") == 0);
    if (is_path && n < sizeof path) {
        snprintf(g->origin, sizeof g->origin, "%s", name);
        if (access(name, F_OK) == 0)
            return yamldoc_load_file(name, doc);
        const char *slash = strrchr(name, '/');
        snprintf(path, sizeof path, "%.*s%s.yaml", slash ? (int)(slash + 1 - name) : 0, name,
                 family);
        if (*scale && access(path, F_OK) == 0) {
            snprintf(g->origin, sizeof g->origin, "%s", path);
            return yamldoc_load_file(path, doc);
        }
        if (slash)
            return err_set(ERR_CONFIG, "model %s: there is no such file", name);
    }
    const char *text = models_text(family, &bytes);
    if (!text)
        return unknown_model(name);
    snprintf(g->origin, sizeof g->origin, "%s.yaml", family);
    return yamldoc_load_text(text, bytes, g->origin, doc);
}

static int read_scale(const yamldoc_t *doc, const yamldoc_node_t *root, char scale, graph_t *g)
{
    const yamldoc_node_t *scales = yamldoc_get(root, "scales"), *row = NULL;
    char key[2] = {scale, 0};
    long long most;
    g->depth = g->width = 1;
    g->max_channels = GRAPH_MAX_CHANNELS;
    g->scale = 'n';
    if (!scales)
        return 0;
    if (scales->kind != YAMLDOC_MAP || scales->count == 0)
        return graph_fail(g, "scales is not a map of [depth, width, most channels]");
    if (!scale) {
        snprintf(key, sizeof key, "%.1s", scales->keys[0]->text);
        log_line(LOG_WARN, "model %s names no scale: %s is taken, the first of %s", g->name, key,
                 g->origin);
        row = scales->values[0];
        if (strlen(g->name) + 1 < sizeof g->name)
            strcat(g->name, key);
    } else {
        row = yamldoc_get(scales, key);
    }
    if (!row || row->kind != YAMLDOC_LIST || row->count != 3)
        return graph_fail(g, "scales has no row %s: [depth, width, most channels]", key);
    if (yamldoc_double(doc, row->values[0], &g->depth) ||
        yamldoc_double(doc, row->values[1], &g->width) || yamldoc_int(doc, row->values[2], &most))
        return -1;
    if (!(g->depth > 0 && g->depth <= 16 && g->width > 0 && g->width <= 64) || most < 8 ||
        most > GRAPH_MAX_CHANNELS)
        return graph_fail(g, "the scale %s is out of range", key);
    g->max_channels = (int32_t)most;
    g->scale = key[0];
    return 0;
}

static int read_from(const yamldoc_t *doc, const yamldoc_node_t *n, graph_t *g, graph_line_t *row)
{
    int list = n->kind == YAMLDOC_LIST;
    int count = list ? n->count : 1;
    if (n->kind == YAMLDOC_MAP || count < 1 || count > GRAPH_MAX_FROM)
        return graph_fail(g, "'from' names no row, or more than %d", GRAPH_MAX_FROM);
    for (int i = 0; i < count; i++) {
        long long v;
        if (yamldoc_int(doc, list ? n->values[i] : n, &v))
            return -1;
        if (v < 0 ? v < -(long long)g->row - (g->row == 0) : v >= g->row)
            return graph_fail(g, "'from' names row %lld, which is not before it", v);
        row->from[i] = (int32_t)v;
    }
    row->n_from = count;
    return 0;
}

/* The kind of a scalar follows from how it reads: 'nc' stands for the class count. */
static int read_arg(const yamldoc_t *doc, const yamldoc_node_t *n, graph_t *g, graph_arg_t *a)
{
    int truth;
    if (n->kind != YAMLDOC_SCALAR || strlen(n->text) >= sizeof a->word)
        return graph_fail(g, "an argument is not a plain word or number");
    snprintf(a->word, sizeof a->word, "%s", n->text);
    char *end;
    double number = strtod(n->text, &end);
    if (n->quoted) {
        a->kind = GRAPH_ARG_WORD;
    } else if (yamldoc_is_null(n)) {
        a->kind = GRAPH_ARG_NULL;
    } else if (strcmp(n->text, "nc") == 0) {
        a->kind = GRAPH_ARG_NUMBER;
        a->number = g->nc;
    } else if (*end == 0 && isfinite(number)) {
        a->kind = GRAPH_ARG_NUMBER;
        a->number = number;
    } else if (yamldoc_bool(doc, n, &truth) == 0) {
        a->kind = GRAPH_ARG_BOOL;
        a->number = truth;
    } else {
        a->kind = GRAPH_ARG_WORD;
    }
    return 0;
}

static int read_row(const yamldoc_t *doc, const yamldoc_node_t *n, graph_t *g)
{
    graph_line_t *row = &g->rows[g->n_rows];
    long long repeats;
    memset(row, 0, sizeof *row);
    row->line = n->line;
    snprintf(row->module, sizeof row->module, "?");
    g->row = g->n_rows++;
    if (n->kind != YAMLDOC_LIST || n->count != 4 || n->values[2]->kind != YAMLDOC_SCALAR ||
        n->values[3]->kind != YAMLDOC_LIST)
        return graph_fail(g, "not [from, repeats, module, [arguments]]");
    snprintf(row->module, sizeof row->module, "%s", n->values[2]->text);
    row->builder = graph_find_module(n->values[2]->text);
    if (!row->builder) {
        char known[256] = "";
        for (int i = 0; graph_module_name(i); i++)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                     graph_module_name(i));
        return graph_fail(g, "this module is not known; known: %s", known);
    }
    row->n_args = n->values[3]->count;
    if (row->n_args < row->builder->min_args || row->n_args > row->builder->max_args)
        return graph_fail(g, "%d arguments: %d to %d are known", row->n_args,
                          row->builder->min_args, row->builder->max_args);
    for (int i = 0; i < row->n_args; i++) {
        if (read_arg(doc, n->values[3]->values[i], g, &row->args[i]))
            return -1;
    }
    if (read_from(doc, n->values[0], g, row) || yamldoc_int(doc, n->values[1], &repeats))
        return -1;
    if (repeats < 1 || repeats > 64 || (repeats > 1 && !row->builder->repeats_inside))
        return graph_fail(g, "%lld repeats", repeats);
    /* Half to even, as Python rounds: the default rounding mode of rint. */
    row->repeats = repeats == 1 ? 1 : (int32_t)fmax(rint((double)repeats * g->depth), 1);
    if (strcmp(row->module, "C3k2") == 0)
        g->legacy_head = 0;
    return 0;
}

static int read_rows(const yamldoc_t *doc, const yamldoc_node_t *root, graph_t *g)
{
    static const char *const sections[] = {"backbone", "head"};
    g->rows = calloc(GRAPH_MAX_ROWS, sizeof *g->rows);
    if (!g->rows)
        return graph_fail(g, "out of memory");
    for (int s = 0; s < 2; s++) {
        const yamldoc_node_t *list = yamldoc_get(root, sections[s]);
        g->row = -1;
        if (!list || list->kind != YAMLDOC_LIST)
            return graph_fail(g, "there is no list '%s'", sections[s]);
        for (int i = 0; i < list->count; i++) {
            if (g->n_rows == GRAPH_MAX_ROWS)
                return graph_fail(g, "more than %d rows", GRAPH_MAX_ROWS);
            if (read_row(doc, list->values[i], g))
                return -1;
        }
    }
    g->row = -1;
    return 0;
}

/* Keys that change the model in ways that this program does not know are errors, not ignored. */
static int check_keys(const yamldoc_t *doc, const yamldoc_node_t *root, graph_t *g)
{
    static const char *const known[] = {"nc",      "scales", "backbone", "head",
                                        "reg_max", "ch",     "channels"};
    long long v;
    if (!root || root->kind != YAMLDOC_MAP)
        return graph_fail(g, "not a map with nc, scales, backbone and head");
    for (int i = 0; i < root->count; i++) {
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(root->keys[i]->text, known[k]) != 0)
            k++;
        if (k == sizeof known / sizeof *known)
            return graph_fail(g, "line %d: the key %s is not known", root->keys[i]->line,
                              root->keys[i]->text);
    }
    static const struct {
        const char *key;
        int value;
    } fixed[] = {{"reg_max", K_REG_MAX}, {"ch", 3}, {"channels", 3}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const yamldoc_node_t *n = yamldoc_get(root, fixed[i].key);
        if (n && yamldoc_int(doc, n, &v))
            return -1;
        if (n && v != fixed[i].value)
            return graph_fail(g, "%s: %lld: only %d is possible", fixed[i].key, v, fixed[i].value);
    }
    return 0;
}

int graph_read_table(graph_t *g, const char *name, int32_t nc)
{
    yamldoc_t *doc = NULL;
    char scale = 0;
    long long table_nc = 80;
    int rc = open_table(name, &scale, g, &doc);
    if (rc < 0)
        return rc;
    const yamldoc_node_t *root = yamldoc_root(doc);
    rc = ERR_CONFIG;
    g->row = -1;
    if (check_keys(doc, root, g))
        goto out;
    if (yamldoc_get(root, "nc") && yamldoc_int(doc, yamldoc_get(root, "nc"), &table_nc))
        goto out;
    g->nc = nc > 0 ? nc : (int32_t)(table_nc < 0 || table_nc > INT32_MAX ? 0 : table_nc);
    if (g->nc < 1 || g->nc > 10000) {
        graph_fail(g, "%d classes: 1 to 10000 are possible", g->nc);
        goto out;
    }
    g->legacy_head = 1;
    if (read_scale(doc, root, scale, g) || read_rows(doc, root, g))
        goto out;
    rc = 0;
out:
    yamldoc_free(&doc);
    return rc;
}

int32_t graph_scaled(graph_t *g, const graph_line_t *row, int32_t arg)
{
    int32_t c;
    if (graph_arg_int(g, row, arg, 0, 1, GRAPH_MAX_CHANNELS, &c))
        return -1;
    return (int32_t)ceil(fmin(c, g->max_channels) * g->width / 8) * 8;
}

int graph_arg_int(graph_t *g, const graph_line_t *row, int32_t arg, int32_t other, int32_t lo,
                  int32_t hi, int32_t *value)
{
    *value = other;
    if (arg >= row->n_args)
        return 0;
    const graph_arg_t *a = &row->args[arg];
    if (a->kind != GRAPH_ARG_NUMBER || a->number != floor(a->number) || a->number < lo ||
        a->number > hi)
        return graph_fail(g, "argument %d is %s: a whole number from %d to %d is needed", arg + 1,
                          a->word, lo, hi);
    *value = (int32_t)a->number;
    return 0;
}

int graph_arg_bool(graph_t *g, const graph_line_t *row, int32_t arg, int other, int *value)
{
    *value = other;
    if (arg >= row->n_args)
        return 0;
    if (row->args[arg].kind != GRAPH_ARG_BOOL)
        return graph_fail(g, "argument %d is %s: True or False is needed", arg + 1,
                          row->args[arg].word);
    *value = row->args[arg].number != 0;
    return 0;
}

int graph_arg_double(graph_t *g, const graph_line_t *row, int32_t arg, double other, double *value)
{
    *value = other;
    if (arg >= row->n_args)
        return 0;
    const graph_arg_t *a = &row->args[arg];
    if (a->kind != GRAPH_ARG_NUMBER || a->number <= 0 || a->number > 8)
        return graph_fail(g, "argument %d is %s: a factor above 0, up to 8, is needed", arg + 1,
                          a->word);
    *value = a->number;
    return 0;
}
