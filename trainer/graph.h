/* The model as a list of operations: built from the YAML table, planned into one arena, run on a
 * device.
 *
 * Three steps: graph_build (rows -> blocks -> operations and parameters, no memory), graph_plan
 * (shapes and places for one input size and mode), graph_forward / graph_backward. A block
 * (trainer/blocks/) is one file that emits operations; forward and backward of an operation are in
 * graph_run.c. Concat and split are views. Gradients: the first operation that writes a gradient
 * overwrites it, later ones add (decided when planning). Owner: the trainer's one thread. `sluice
 * model` builds and prints without a device.
 */
#ifndef SLUICE_TRAINER_GRAPH_H
#define SLUICE_TRAINER_GRAPH_H

#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

typedef struct graph graph_t;

/* Where a state-dict entry lives. Groups 0..2 are optimiser groups (facts/yolo.md 4.1). */
typedef enum {
    GRAPH_WEIGHT = 0, /* conv weights: weight decay */
    GRAPH_NORM = 1,   /* BN weight */
    GRAPH_BIAS = 2,   /* all biases */
    GRAPH_GROUPS = 3,
    GRAPH_BUFFER = 3,   /* BN running_mean, running_var */
    GRAPH_COUNTER = 4,  /* num_batches_tracked: not in memory, int64 in files */
    GRAPH_CONSTANT = 5, /* dfl.conv.weight: 0..15, not in memory */
} graph_place_t;

typedef enum { GRAPH_LAYOUT_FLAT = 0, GRAPH_LAYOUT_OHWI, GRAPH_LAYOUT_HWC } graph_layout_t;

typedef struct {
    char name[96];    /* state-dict name */
    int32_t ndim;     /* 0 for a counter */
    int64_t shape[4]; /* as in the state dict (OIHW) */
    graph_place_t place;
    graph_layout_t layout; /* of the device copy */
    uint64_t
        first; /* index of the first float: in the weights region (groups) or the buffers region */
    uint64_t count; /* floats */
} graph_param_t;

/* Regions of floats: weights (and gradients, momenta) = groups 0, 1, 2 one behind the other;
 * buffers = running means and variances. Every parameter begins at a multiple of 64 floats
 * (K_ALIGN); what lies between is zero and stays zero, and counts in the sizes of groups and
 * regions. */
typedef struct {
    uint64_t weights; /* floats in all groups */
    uint64_t buffers; /* floats */
    uint64_t group_first[GRAPH_GROUPS], group_count[GRAPH_GROUPS];
    uint64_t parameters, gradients; /* as counted in facts/yolo.md 1.1 */
} graph_sizes_t;

typedef enum { GRAPH_INFER = 0, GRAPH_TRAIN } graph_mode_t;

/* name: yolo11n, yolo11n.yaml, yolov8s, ...; a path to a YAML table works too. nc overrides the
 * table's. ERR_CONFIG names what was not understood. */
int graph_build(const char *name, int32_t nc, graph_t **graph);
void graph_free(graph_t **graph);

int32_t graph_classes(const graph_t *g);
const char *graph_name(const graph_t *g); /* "yolo11n" */
const graph_sizes_t *graph_sizes(const graph_t *g);
/* State-dict entries in state-dict order. */
int32_t graph_params(const graph_t *g);
const graph_param_t *graph_param(const graph_t *g, int32_t i);
const graph_param_t *graph_find_param(const graph_t *g, const char *name);

/* What one plan needs. Places are in the arena (base included). The input may be filled any time
 * before graph_forward; box and cls stay until graph_backward, or in inference until the next
 * forward. */
typedef struct {
    uint64_t activation_bytes; /* activations, gradients of activations and workspace, one block */
    k_tensor_t input;          /* [n][h][w][3] */
    k_tensor_t box[K_LEVELS], cls[K_LEVELS]; /* head outputs, raw */
    /* GRAPH_TRAIN: their gradients, which the loss fills between forward and backward. */
    k_tensor_t dbox[K_LEVELS], dcls[K_LEVELS];
    int32_t stride[K_LEVELS];
    int32_t anchors; /* positions over all levels, one image */
} graph_plan_t;

/* Plans n x h x w (sides multiples of 32) for a mode, with values and their gradients in `format`;
 * replaces the last plan of that mode. base is the place of the activation block in the arena, a
 * multiple of K_ALIGN. dev is needed for work sizes; its memory need not be reserved yet. */
int graph_plan(graph_t *g, k_dev_t *dev, graph_mode_t mode, k_dtype_t format, int32_t n, int32_t h,
               int32_t w, k_at base, graph_plan_t *plan);

/* Which copies to compute with. */
typedef struct {
    k_at weights, buffers; /* regions of graph_sizes_t */
    k_at grads;            /* same layout as weights; K_NONE in inference */
    k_at compute; /* group GRAPH_WEIGHT in the plan's format: what convolutions read. Not looked at
                     where that is float32: they read the weights themselves */
} graph_memory_t;

/* What others do in the middle of a pass. Each may be NULL. */
typedef struct {
    /* Adds `doubles` sums at `at` over `ranks` ranks that share their statistics (sync_bn). */
    int (*stats)(void *user, k_at at, uint64_t doubles);
    /* Backward of operation op is enqueued. */
    int (*ready)(void *user, int32_t op);
    void *user;
    int ranks; /* that `stats` adds up; 1 without it */
} graph_hooks_t;

/* Runs the mode's last plan. GRAPH_TRAIN updates running statistics in memory->buffers. The input
 * tensor must be filled (k_ops_t.image). hooks may be NULL. */
int graph_forward(graph_t *g, k_dev_t *dev, graph_mode_t mode, const graph_memory_t *memory,
                  const graph_hooks_t *hooks);
/* The last operation whose backward writes a parameter's gradient (backward goes by descending
 * number): with it the gradient is complete. -1: no operation has the parameter. */
int32_t graph_ready_after(const graph_t *g, int32_t param);
/* After the loss has filled dbox and dcls: adds to memory->grads. */
int graph_backward(graph_t *g, k_dev_t *dev, const graph_memory_t *memory,
                   const graph_hooks_t *hooks);

/* `sluice model`: rows with shapes, parameters, GFLOPs (convolutions, 2 MAC). Detect's shape is
 * channels x 1 x positions over its levels. */
typedef struct {
    int32_t index;
    char from[32], module[24], args[64];
    int32_t c, h, w;
    uint64_t parameters;
    double gflops;
} graph_row_t;
int32_t graph_rows(const graph_t *g);
/* Row i at an input of imgsz x imgsz. */
int graph_row(const graph_t *g, int32_t i, int32_t imgsz, graph_row_t *row);

#endif
