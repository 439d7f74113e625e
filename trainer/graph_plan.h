/* What planning works out for one mode and input size. Private to graph_plan.c,
 * graph_gradients.c, graph_run.c and tests.
 *
 * Time is counted in positions: 0 the input is filled; 1 + i operation i forward; then one position
 * in which the head's outputs are read (and, in training, their gradients written); then two
 * positions for every operation backward, last operation first: at the first the gradients of its
 * weights, at the second that of its input. A place is held from the first position that touches it
 * to the last.
 */
#ifndef SLUICE_TRAINER_GRAPH_PLAN_H
#define SLUICE_TRAINER_GRAPH_PLAN_H

#include "trainer/graph_internal.h"

enum { GRAPH_ZEROED = 3 }; /* most gradients that one operation touches */

/* What one operation needs beside its values. Places: K_NONE where there is nothing. */
typedef struct {
    k_at work;     /* forward */
    k_at work_bwd; /* backward */
    k_at kept;     /* from forward to backward: MAXPOOL index, ATTENTION lse, BN mean then invstd */
    k_at stats;    /* BN: sums, forward */
    k_at bwd_stats;                     /* BN: sums, backward */
    int runs;                           /* backward has anything to do */
    int wants_dx;                       /* the gradient of x is needed */
    int acc_x, acc_extra;               /* add to the gradient (1) or overwrite it (0) */
    int32_t zero[GRAPH_ZEROED], n_zero; /* roots whose gradients are cleared before the operation */
} graph_slot_t;

typedef struct graph_schedule {
    graph_mode_t mode;
    k_dtype_t format; /* of values and their gradients */
    int32_t n, h, w;
    uint64_t bytes;
    k_tensor_t *value;  /* by value */
    k_tensor_t *grad;   /* by value; at is K_NONE where no gradient ever comes. NULL in inference */
    graph_slot_t *slot; /* by operation */
} graph_schedule_t;

/* Bytes of an element. */
static inline uint64_t graph_size(k_dtype_t format)
{
    return format == K_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Decides what backward runs, overwrites, adds and clears: runs, wants_dx, acc_x, acc_extra, zero.
 */
int graph_plan_gradients(const graph_t *g, graph_schedule_t *s);
/* Positions. */
int32_t graph_at_forward(int32_t op);
int32_t graph_at_loss(const graph_t *g);
int32_t graph_at_backward(const graph_t *g, int32_t op); /* the first of the two */
/* The value whose place (in this mode) v has: a raw convolution output has that of the value behind
 * it in inference. */
int32_t graph_place_of(const graph_t *g, graph_mode_t mode, int32_t v);
/* The value whose gradient v's is. */
int32_t graph_gradient_of(const graph_t *g, int32_t v);

#endif
