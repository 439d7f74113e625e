#include "trainer/bench_work.h"

#include <stdio.h>
#include <string.h>

uint64_t bench_bytes(const k_tensor_t *t)
{
    return (uint64_t)t->n * (uint64_t)t->h * (uint64_t)t->w * (uint64_t)t->c *
           (t->dtype == K_F32 ? sizeof(float) : sizeof(uint16_t));
}

uint64_t bench_bytes_into(const k_tensor_t *t, int acc)
{
    return bench_bytes(t) * (acc ? 2 : 1);
}

uint64_t bench_weights(const k_conv_t *p, uint64_t each)
{
    return (uint64_t)p->k * (uint64_t)p->k * (uint64_t)p->c1 * (uint64_t)p->c2 * each;
}

double bench_conv_flops(const k_conv_t *p, const k_tensor_t *y)
{
    return 2.0 * (double)bench_weights(p, 1) * (double)y->n * (double)y->h * (double)y->w;
}

static size_t put_shape(char *text, size_t room, const k_tensor_t *t)
{
    int n = snprintf(text, room, "%dx%dx%dx%d", t->n, t->h, t->w, t->c);
    return n > 0 && (size_t)n < room ? (size_t)n : 0;
}

void bench_shape(bench_op_t *op, const k_tensor_t *x, const k_tensor_t *y, int k, int s)
{
    size_t room = sizeof op->shape, n = put_shape(op->shape, room, x);
    if (y) {
        n += (size_t)snprintf(op->shape + n, room - n, " -> ");
        n += put_shape(op->shape + n, room - n, y);
    }
    if (k > 0)
        n += (size_t)snprintf(op->shape + n, room - n, " k%d", k);
    if (s > 0)
        snprintf(op->shape + n, room - n, " s%d", s);
}

/* Index of a float of the weights' region whose place in `region` is `at`; -1: not in there. */
static int64_t index_in(k_at at, k_at region, uint64_t bytes, uint64_t each, uint64_t first)
{
    if (region == K_NONE || at < region || at >= region + bytes)
        return -1;
    return (int64_t)((at - region) / each + first);
}

void bench_layer(const trainer_t *t, bench_op_t *op, k_at at)
{
    const memory_map_t *m = &t->mem;
    const uint64_t copied = t->sizes->group_count[GRAPH_WEIGHT] * sizeof(uint16_t);
    int64_t i = index_in(at, m->train.weights, m->weight_bytes, sizeof(float), 0);
    if (i < 0)
        i = index_in(at, m->train.grads, m->weight_bytes, sizeof(float), 0);
    if (i < 0)
        i = index_in(at, m->train.compute, copied, sizeof(uint16_t),
                     t->sizes->group_first[GRAPH_WEIGHT]);
    for (int32_t k = 0; i >= 0 && k < graph_params(t->graph); k++) {
        const graph_param_t *p = graph_param(t->graph, k);
        if (p->place > GRAPH_BIAS || p->first != (uint64_t)i)
            continue;
        const char *end = strrchr(p->name, '.');
        snprintf(op->layer, sizeof op->layer, "%.*s",
                 (int)(end ? (size_t)(end - p->name) : strlen(p->name)), p->name);
        return;
    }
}
