/* What tools that run detectors look for beside the graph: texts, lists and dicts as Python writes
 * them, because that is how they are read. */
#include "trainer/onnx_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char *bytes;
    size_t used, room;
    int failed;
} text_t;

static void put(text_t *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || t->failed)
        return;
    if (t->used + (size_t)n >= t->room) {
        const size_t room = 2 * (t->used + (size_t)n) + 256;
        char *bytes = realloc(t->bytes, room);
        t->failed = bytes == NULL;
        if (t->failed)
            return;
        t->bytes = bytes;
        t->room = room;
    }
    va_start(args, fmt);
    vsnprintf(t->bytes + t->used, t->room - t->used, fmt, args);
    va_end(args);
    t->used += (size_t)n;
}

/* A Python string literal. */
static void put_quoted(text_t *t, const char *s)
{
    put(t, "'");
    for (; *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c == '\'' || c == '\\')
            put(t, "\\%c", c);
        else if (c < 0x20 || c == 0x7F)
            put(t, "\\x%02x", c);
        else
            put(t, "%c", c);
    }
    put(t, "'");
}

static void put_names(text_t *t, const onnx_t *x)
{
    char plain[24];
    put(t, "{");
    for (int32_t i = 0; i < x->g->nc; i++) {
        snprintf(plain, sizeof plain, "class%d", i);
        put(t, "%s%d: ", i ? ", " : "", i);
        put_quoted(t, x->c->names ? x->c->names[i] : plain);
    }
    put(t, "}");
}

static const char *truth(int value)
{
    return value ? "True" : "False";
}

static void put_args(text_t *t, const onnx_config_t *c)
{
    put(t, "{'batch': %d, 'half': %s, 'dynamic': %s, 'opset': %d, 'nms': %s", c->batch,
        truth(c->half), truth(c->dynamic), c->opset, truth(c->nms));
    if (c->nms)
        put(t, ", 'conf': %.6g, 'iou': %.6g, 'max_det': %d", (double)c->conf, (double)c->iou,
            c->max_det);
    put(t, "}");
}

static int32_t largest_stride(const graph_t *g)
{
    int32_t most = 0;
    for (int l = 0; l < K_LEVELS; l++)
        most = g->values[g->box[l]].shrink > most ? g->values[g->box[l]].shrink : most;
    return most;
}

int onnx_describe(onnx_t *x)
{
    const onnx_config_t *c = x->c;
    enum { ROWS = 8 };
    static const char *const keys[ROWS] = {"description", "stride", "batch",    "imgsz",
                                           "names",       "args",   "channels", "end2end"};
    text_t t[ROWS] = {{0}};
    int failed = 0;
    put(&t[0], "%s detector of %s", x->g->name, c->origin);
    put(&t[1], "%d", largest_stride(x->g));
    put(&t[2], "%d", c->batch);
    put(&t[3], "[%d, %d]", c->h, c->w);
    put_names(&t[4], x);
    put_args(&t[5], c);
    put(&t[6], "%d", x->g->values[x->g->input].c);
    put(&t[7], "False"); /* heads that need no suppression; `nms` of args says that it is inside */
    onnx_metadata(x->m, "author", "sluice");
    onnx_metadata(x->m, "version", c->version);
    onnx_metadata(x->m, "license", "that of the weights");
    onnx_metadata(x->m, "task", "detect");
    onnx_metadata(x->m, "head", "Detect");
    for (int i = 0; i < ROWS; i++) {
        failed |= t[i].failed;
        if (!t[i].failed)
            onnx_metadata(x->m, keys[i], t[i].bytes);
        free(t[i].bytes);
    }
    return failed ? onnx_fail(x->m, "out of memory for the names of %d classes", x->g->nc) : 0;
}
