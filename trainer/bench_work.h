/* What an operation cannot do without (bench_ops.h): bytes to and from memory, floating-point
 * operations, and its name for people. Pure, but for the layer's name, which is looked up in the
 * trainer's graph by the place of its parameters. Any thread.
 */
#ifndef SLUICE_TRAINER_BENCH_WORK_H
#define SLUICE_TRAINER_BENCH_WORK_H

#include "trainer/bench_ops.h"

/* Bytes of a tensor's elements, without what lies between them. */
uint64_t bench_bytes(const k_tensor_t *t);
/* The same of a result that is added to (acc 1) or overwritten. */
uint64_t bench_bytes_into(const k_tensor_t *t, int acc);
/* Of a convolution's weights, `each` bytes an element. */
uint64_t bench_weights(const k_conv_t *p, uint64_t each);
/* Of a convolution whose output is y, and as many of each of its gradients. */
double bench_conv_flops(const k_conv_t *p, const k_tensor_t *y);
/* "8x512x512x64 -> 8x256x256x128 k3 s2"; y may be NULL, k and s are left out where they are 0. */
void bench_shape(bench_op_t *op, const k_tensor_t *x, const k_tensor_t *y, int k, int s);
/* The parameters at `at`: in the weights, their gradients, or the convolutions' copy. */
void bench_layer(const trainer_t *t, bench_op_t *op, k_at at);

#endif
