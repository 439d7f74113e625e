/* What model the tensors of a file belong to (facts/yolo.md 1 and 8.3). */
#include "trainer/modelfile_internal.h"

#include "shm/err.h"
#include "trainer/graph.h"
#include "trainer/models.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 256, CLASSES_MAX = 10000 }; /* as the graph has them */

/* ---- prefix ---- */

static int ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static int has_row(const modelfile_t *f, const char *prefix, size_t n, int row)
{
    char name[512];
    if ((size_t)snprintf(name, sizeof name, "%.*s%d.conv.weight", (int)n, prefix, row) >=
        sizeof name)
        return 0;
    return modelfile_find(f, name) != NULL;
}

/* Both families begin with convolutions in rows 0, 1 and 3, which no block inside of them has. The
 * averaged one of two models in a file, else the one with the shortest prefix. */
static const char *find_prefix(const modelfile_t *f, size_t *bytes)
{
    static const char first[] = "0.conv.weight";
    const char *best = NULL;
    int best_averaged = 0;
    for (int32_t i = 0; i < f->count; i++) {
        const char *name = f->tensors[i].name;
        if (!ends_with(name, first))
            continue;
        const size_t n = strlen(name) - (sizeof first - 1);
        const int averaged = strncmp(name, "ema", 3) == 0;
        if ((n > 0 && name[n - 1] != '.') || !has_row(f, name, n, 1) || !has_row(f, name, n, 3))
            continue;
        if (best && (averaged < best_averaged || (averaged == best_averaged && n >= *bytes)))
            continue;
        best = name;
        best_averaged = averaged;
        *bytes = n;
    }
    return best;
}

int modelfile_rename(modelfile_t *f)
{
    size_t n = 0;
    const char *prefix = find_prefix(f, &n);
    if (!prefix || (n == 6 && strncmp(prefix, "model.", 6) == 0))
        return 0;
    char was[512];
    snprintf(was, sizeof was, "%.*s", (int)n, prefix);
    n = strlen(was);
    f->names = calloc((size_t)f->count, sizeof *f->names);
    if (!f->names)
        return err_set(ERR_ENV, "%s: out of memory for its tensors", f->origin);
    int32_t kept = 0;
    for (int32_t i = 0; i < f->count; i++) {
        tensorview_t *v = &f->tensors[i];
        if (strncmp(v->name, was, n) != 0)
            continue;
        char *name = NULL;
        if (asprintf(&name, "model.%s", v->name + n) < 0)
            return err_set(ERR_ENV, "%s: out of memory for its tensors", f->origin);
        f->names[f->n_names++] = name;
        f->tensors[kept] = *v;
        f->tensors[kept++].name = name;
    }
    f->count = kept;
    /* "ema.model." is the model's own name under another. */
    snprintf(f->info.prefix, sizeof f->info.prefix, "%s", was);
    f->info.averaged |= strncmp(was, "ema", 3) == 0;
    return 0;
}

/* ---- architecture ---- */

typedef struct {
    char name[64];
    int32_t have, of; /* tensors of the model that the file has */
    int32_t extra;    /* tensors of the file that the model has not */
    char first_extra[96];
    char first[256]; /* what is wrong with the first that it has not */
} match_t;

static int same_shape(const graph_param_t *p, const tensorview_t *v, int first)
{
    if (v->ndim != p->ndim)
        return 0;
    for (int32_t i = 0; i < p->ndim; i++) {
        /* Another number of channels of the images is for the loading to deal with. */
        if (v->shape[i] != p->shape[i] && !(first && i == 1 && p->ndim == 4 && v->shape[i] > 0))
            return 0;
    }
    return 1;
}

static void shape_text(char *text, size_t room, const int64_t *shape, int32_t ndim)
{
    size_t n = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < ndim && n < room; i++)
        n += (size_t)snprintf(text + n, room - n, "%s%" PRId64, i ? "x" : "", shape[i]);
}

static void say_difference(match_t *m, const graph_param_t *p, const tensorview_t *v)
{
    char want[96], have[96];
    shape_text(want, sizeof want, p->shape, p->ndim);
    if (!v) {
        snprintf(m->first, sizeof m->first, "%.90s (%.60s) is not there", p->name, want);
        return;
    }
    shape_text(have, sizeof have, v->shape, v->ndim);
    snprintf(m->first, sizeof m->first, "%.90s is %.60s instead of %.60s", p->name, have, want);
}

/* Counts what a model and the file have in common. */
static int compare(const modelfile_t *f, const char *name, match_t *m)
{
    graph_t *g = NULL;
    int rc = graph_build(name, f->info.nc, &g);
    if (rc < 0)
        return rc;
    memset(m, 0, sizeof *m);
    snprintf(m->name, sizeof m->name, "%s", name);
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        const tensorview_t *v;
        if (p->place == GRAPH_COUNTER || p->place == GRAPH_CONSTANT)
            continue;
        v = modelfile_find(f, p->name);
        m->of++;
        if (v && same_shape(p, v, i == 0))
            m->have++;
        else if (!m->first[0])
            say_difference(m, p, v);
    }
    for (int32_t i = 0; i < f->count; i++) {
        if (graph_find_param(g, f->tensors[i].name))
            continue;
        if (m->extra++ == 0)
            snprintf(m->first_extra, sizeof m->first_extra, "%.95s", f->tensors[i].name);
    }
    graph_free(&g);
    return 0;
}

static int is_better(const match_t *a, const match_t *b)
{
    const int whole = a->have == a->of, other = b->have == b->of;
    if (whole != other)
        return whole;
    if (whole)
        return a->extra < b->extra;
    /* The share of its tensors that are there: a large model has more of all kinds. */
    return (int64_t)a->have * b->of > (int64_t)b->have * a->of;
}

static int best_match(const modelfile_t *f, match_t *best)
{
    char name[64];
    match_t m;
    memset(best, 0, sizeof *best);
    for (int i = 0; models_name(i); i++) {
        for (const char *scale = "nslmx"; *scale; scale++) {
            snprintf(name, sizeof name, "%.40s%c", models_name(i), *scale);
            int rc = compare(f, name, &m);
            if (rc < 0)
                return rc;
            if (best->of == 0 || is_better(&m, best))
                *best = m;
        }
    }
    return 0;
}

/* Rows of the class branch: its last convolution on the finest map, in whichever row Detect is. */
static int32_t find_classes(const modelfile_t *f)
{
    char name[64];
    for (int row = 0; row < ROWS_MAX; row++) {
        snprintf(name, sizeof name, "model.%d.cv3.0.2.weight", row);
        const tensorview_t *v = modelfile_find(f, name);
        if (v && v->ndim == 4 && v->shape[0] >= 1 && v->shape[0] <= CLASSES_MAX)
            return (int32_t)v->shape[0];
    }
    return 0;
}

/* Our own files name their model, which may be of a table that the user has; a word, never a path. */
static int is_word(const char *text)
{
    const size_t n = strlen(text);
    return n > 0 && n < sizeof((modelfile_info_t *)0)->model &&
           strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == n;
}

static void say_unknown(modelfile_t *f, const match_t *best)
{
    modelfile_info_t *info = &f->info;
    const char *of = info->table[0] ? info->table : info->class_name;
    if (modelfile_find(f, "model.0.conv.bias"))
        snprintf(info->why, sizeof info->why,
                 "%.300s: batch normalisation is folded into its convolutions (fused), and cannot "
                 "be trained on: use the file that was saved before",
                 f->origin);
    else if (best->have == 0)
        snprintf(info->why, sizeof info->why,
                 "%.240s%s%.80s%s: none of its %d tensors belongs to a YOLO11 or YOLOv8 detector",
                 f->origin, of[0] ? " (" : "", of, of[0] ? ")" : "", f->count);
    else
        snprintf(info->why, sizeof info->why,
                 "%.160s%s%.60s%s: its tensors are those of none of yolo11 and yolov8, n to x; "
                 "closest is %s with %d of %d, where %.150s",
                 f->origin, of[0] ? " (" : "", of, of[0] ? ")" : "", best->name, best->have,
                 best->of, best->first);
}

int modelfile_find_model(modelfile_t *f, const char *claimed)
{
    modelfile_info_t *info = &f->info;
    const tensorview_t *v = modelfile_find(f, "model.0.conv.weight");
    match_t best;
    if (v && v->ndim == 4 && v->shape[1] > 0 && v->shape[1] <= INT32_MAX)
        info->channels = (int32_t)v->shape[1];
    info->nc = find_classes(f);
    memset(&best, 0, sizeof best);
    int rc = v ? best_match(f, &best) : 0;
    if (rc < 0)
        return rc;
    if (best.of > 0 && best.have == best.of) {
        snprintf(info->model, sizeof info->model, "%s", best.name);
        info->extra = best.extra;
        memcpy(info->first_extra, best.first_extra, sizeof info->first_extra);
    } else if (claimed && is_word(claimed)) {
        snprintf(info->model, sizeof info->model, "%s", claimed);
    } else {
        say_unknown(f, &best);
    }
    return 0;
}
