/* Inside of the graph: values, operations, units, rows, and what blocks build with. Private to
 * trainer/graph*.c, trainer/blocks/ and the tests of the graph.
 *
 * Value: a feature map, known by its number. A value with a parent is a range of the parent's
 * channels: a slice of what one operation wrote (split), or a part that several operations fill
 * (concat). Only values without a parent (roots) get memory. Unit: a convolution with its
 * parameters, and the batch normalisation behind it unless it is plain. Operation: one call of the
 * device's table forward and its counterpart backward.
 *
 * A block (trainer/blocks/, one file each) declares its units in the order of the state dict and
 * emits operations in the order of execution. Builders pass failure on: a value or unit below zero
 * goes in, a value below zero comes out, and the error text stays that of the first failure. So a
 * block is written without checks, and its last value tells.
 */
#ifndef SLUICE_TRAINER_GRAPH_INTERNAL_H
#define SLUICE_TRAINER_GRAPH_INTERNAL_H

#include "trainer/graph.h"

enum {
    GRAPH_MAX_ROWS = 256,
    GRAPH_MAX_FROM = 8,
    GRAPH_MAX_ARGS = 8,
    GRAPH_MAX_CHANNELS = 1 << 15,
    GRAPH_SHRINK_MAX =
        32,          /* input pixels per pixel of the coarsest map; sizes are multiples of it */
    GRAPH_NAME = 96, /* bytes of a state-dict name */
};

#define GRAPH_BN_EPS 1e-3f /* facts/yolo.md 1.2 */

typedef struct {
    int32_t c;
    int32_t shrink; /* input pixels per pixel, one way */
    int32_t parent; /* -1: a root */
    int32_t offset; /* first channel within the parent */
    int32_t raw_of; /* convolution output before batch normalisation: the value behind it; else -1.
                     * In inference the two share their place, in backward their gradient's. */
} graph_value_t;

typedef struct {
    int32_t k, s, c1, c2;
    int depthwise;
    int32_t weight, bias;           /* parameter numbers, -1 if none */
    int32_t gamma, beta, mean, var; /* -1 for a plain convolution */
} graph_unit_t;

typedef enum {
    GRAPH_CONV = 0,
    GRAPH_DWCONV,
    GRAPH_BN, /* with activation, and addition of a residual */
    GRAPH_MAXPOOL,
    GRAPH_UPSAMPLE,
    GRAPH_COPY,
    GRAPH_ATTENTION,
    GRAPH_KINDS
} graph_kind_t;

typedef struct {
    graph_kind_t kind;
    int32_t row;
    int32_t x, y;          /* values read and written */
    int32_t extra;         /* BN: residual, or -1; ATTENTION: the packed copy of v, written too */
    int32_t unit;          /* CONV, DWCONV, BN */
    int32_t k;             /* MAXPOOL */
    k_act_t act;           /* BN */
    int32_t heads, kd, hd; /* ATTENTION */
} graph_op_t;

/* A scalar among a row's arguments. */
typedef struct {
    enum { GRAPH_ARG_NULL = 0, GRAPH_ARG_NUMBER, GRAPH_ARG_BOOL, GRAPH_ARG_WORD } kind;
    double number; /* also 0 or 1 for a bool */
    char word[24];
} graph_arg_t;

struct graph_module;
typedef struct {
    int32_t from[GRAPH_MAX_FROM], n_from; /* as written: negative counts back from the row */
    int32_t repeats;                      /* scaled */
    char module[24];
    graph_arg_t args[GRAPH_MAX_ARGS];
    int32_t n_args;
    int line;
    const struct graph_module *builder;
    int32_t out;      /* value */
    char summary[64]; /* arguments after scaling, for printing */
} graph_line_t;

/* What graph_plan.c works out for one mode (graph_plan.h is private to graph_plan.c and
 * graph_run.c). */
struct graph_schedule;

struct graph {
    char name[64];
    char origin[4096]; /* of the table, for messages */
    int32_t nc;
    double depth, width;
    int32_t max_channels;
    char scale;      /* n s m l x, or another key's first letter */
    int legacy_head; /* Detect's class branch of YOLOv8 (facts/yolo.md 1.1, "legacy") */

    graph_line_t *rows;
    int32_t n_rows;
    graph_value_t *values;
    graph_unit_t *units;
    graph_op_t *ops;
    graph_param_t *params;
    int32_t *param_rows; /* row of each parameter */
    int32_t n_values, n_units, n_ops, n_params;
    int32_t room_values, room_units, room_ops, room_params;
    int32_t *by_name; /* parameter numbers in order of name */
    int32_t row;      /* being built */

    int32_t input;
    int32_t box[K_LEVELS], cls[K_LEVELS];           /* values */
    int32_t box_bias[K_LEVELS], cls_bias[K_LEVELS]; /* parameters, for bias_init */
    int has_head;
    int failed; /* graph_fail has set the error text: later failures only follow from the first */
    graph_sizes_t sizes;
    struct graph_schedule *schedule[2]; /* by graph_mode_t; NULL until planned */
};

/* A module's builder: emits the row's operations, returns its output value or -1 with the error
 * set. x are the row's inputs, name is "model.N". */
typedef int32_t (*graph_build_fn)(graph_t *g, graph_line_t *row, const int32_t *x,
                                  const char *name);
typedef struct graph_module {
    const char *name;
    graph_build_fn build;
    int32_t min_args, max_args;
    int repeats_inside; /* repeats is the block's inner count; otherwise it must be 1 */
} graph_module_t;
/* NULL for an unknown name. */
const graph_module_t *graph_find_module(const char *name);
const char *graph_module_name(int i); /* NULL beyond the last */

/* graph_emit.c: what blocks build with. All return a number, or -1 with the error set. */
int32_t graph_fail(graph_t *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int32_t graph_add_value(graph_t *g, int32_t c, int32_t shrink);
/* Convolution c1 -> c2 with batch normalisation; name is a format: "%s.cv1". */
int32_t graph_unit(graph_t *g, int32_t c1, int32_t c2, int32_t k, int32_t s, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* Depthwise 3x3 with batch normalisation. */
int32_t graph_unit_dw(graph_t *g, int32_t c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 1x1 with a bias and nothing behind. */
int32_t graph_unit_plain(graph_t *g, int32_t c1, int32_t c2, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int32_t graph_add_constant(graph_t *g, const int64_t *shape, int32_t ndim, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* act(bn(conv(x))), and the same + residual. */
int32_t graph_conv(graph_t *g, int32_t unit, int32_t x, k_act_t act);
int32_t graph_conv_add(graph_t *g, int32_t unit, int32_t x, k_act_t act, int32_t residual);
int32_t graph_conv_plain(graph_t *g, int32_t unit, int32_t x);
int32_t graph_maxpool(graph_t *g, int32_t k, int32_t x);
int32_t graph_upsample(graph_t *g, int32_t x);
int32_t graph_copy(graph_t *g, int32_t x);
/* Channels [first, first + c) of x. */
int32_t graph_slice(graph_t *g, int32_t x, int32_t first, int32_t c);
/* Joins channels. A part that already lies in another value is copied; the rest cost nothing. */
int32_t graph_concat(graph_t *g, const int32_t *parts, int32_t n);
/* Attention over qkv; *v receives the packed copy of the values. */
int32_t graph_attention(graph_t *g, int32_t qkv, int32_t heads, int32_t kd, int32_t hd, int32_t *v);
/* The value at the root of v and v's first channel in it. */
int32_t graph_root(const graph_t *g, int32_t v, int32_t *offset);
int32_t graph_channels(const graph_t *g, int32_t v);

/* Row helpers. Output channels scaled by width (facts/yolo.md 1.1), -1 with the error set when not
 * usable. */
int32_t graph_scaled(graph_t *g, const graph_line_t *row, int32_t arg);
/* Argument as a whole number, truth value or number; `other` where the row has no such argument. */
int graph_arg_int(graph_t *g, const graph_line_t *row, int32_t arg, int32_t other, int32_t lo,
                  int32_t hi, int32_t *value);
int graph_arg_bool(graph_t *g, const graph_line_t *row, int32_t arg, int other, int *value);
int graph_arg_double(graph_t *g, const graph_line_t *row, int32_t arg, double other, double *value);

/* Fills the rows from a table (graph_table.c). */
int graph_read_table(graph_t *g, const char *name, int32_t nc);
/* When all rows are built: places the parameters and indexes their names. */
int graph_finish(graph_t *g);
void graph_schedule_free(struct graph_schedule **s);

#endif
