/* One convolution as an operation graph of cuDNN's backend interface: which engines the library
 * proposes for it, and a plan built from one of them.
 *
 * An engine is known by its global index and its knobs, plain numbers: the same numbers give the
 * same engine, and so the same bits, in another process with the same library and GPU. Plans own
 * their descriptors and belong to the thread of their device. Nothing here touches the GPU but
 * conv_plan_run.
 */
#ifndef SLUICE_KERNELS_CUDA_CONV_GRAPH_H
#define SLUICE_KERNELS_CUDA_CONV_GRAPH_H

#include "kernels/kernels.h"

#include <cudnn.h>

enum { CONV_KNOBS = 48, CONV_WHY_BYTES = 512 };

typedef enum { CONV_FORWARD = 0, CONV_DX, CONV_DW, CONV_DIRECTIONS } conv_direction_t;

/* What a convolution is, to the library: also the key under which its choice is remembered, so
 * without padding between the members. x means dx where direction is CONV_DX, y means dy where it
 * is not CONV_FORWARD. h, w: of x. xld, yld: pitches; xalign, yalign, walign: the largest power of
 * two up to 16 that divides the address in bytes. acc: CONV_DX adds to what is there. */
typedef struct {
    int32_t direction, dtype;
    int32_t n, h, w, c1, c2, k, s, acc;
    int32_t xld, yld, xalign, yalign, walign;
} conv_shape_t;

typedef struct {
    int64_t index; /* global, among the engines of the operation */
    int32_t knobs;
    int32_t type[CONV_KNOBS];
    int64_t value[CONV_KNOBS];
} conv_engine_t;

typedef struct {
    cudnnHandle_t handle;
    int deterministic;        /* only engines that give the same bits each time */
    char why[CONV_WHY_BYTES]; /* the library's words for the last failure */
} conv_graph_t;

typedef struct conv_plan conv_plan_t;

/* Rows and columns of y. */
int32_t conv_out(int32_t in, int32_t k, int32_t s);

/* Up to `most` engines for a shape, the library's favourites first, without those that compute in
 * less than float32 (inputs of K_F32 rounded for the tensor cores, sums in half), or by transforms
 * whose rounding is coarser. quick: those of one heuristic that need no compiler, else all that are
 * found. Their number, 0 if there is none. */
int conv_graph_engines(conv_graph_t *g, const conv_shape_t *s, int quick, conv_engine_t *out,
                       int most);

/* A plan that asks for at most `workspace` bytes; NULL with the reason in why. */
conv_plan_t *conv_plan_new(conv_graph_t *g, const conv_shape_t *s, const conv_engine_t *engine,
                           uint64_t workspace);
void conv_plan_free(conv_plan_t **plan);
uint64_t conv_plan_workspace(const conv_plan_t *plan);
/* Enqueues it on the handle's stream. Device addresses; w is written where the direction is
 * CONV_DW, in the format of x. 0, or -1 with the reason in why. */
int conv_plan_run(conv_graph_t *g, const conv_plan_t *plan, void *x, void *w, void *y,
                  void *workspace);

#endif
