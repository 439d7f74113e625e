/* Initial weights, and the way between the state dict's layout (OIHW) and the device's (OHWI, HWC).
 */
#include "trainer/weights.h"

#include "control/philox.h"
#include "shm/err.h"
#include "trainer/graph_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t weights_place(const graph_param_t *p, uint64_t i)
{
    if (p->layout == GRAPH_LAYOUT_FLAT)
        return i;
    const uint64_t in = (uint64_t)p->shape[1], kh = (uint64_t)p->shape[2],
                   kw = (uint64_t)p->shape[3];
    const uint64_t x = i % kw, y = i / kw % kh, c = i / (kw * kh) % in, o = i / (kw * kh * in);
    if (p->layout == GRAPH_LAYOUT_HWC)
        return (y * kw + x) * (uint64_t)p->shape[0] + o;
    return ((o * kh + y) * kw + x) * in + c;
}

/* Uniform in (-b, b), b = 1 / sqrt(fan in) (facts/yolo.md 1.3), drawn in state-dict order. */
static void init_uniform(const graph_param_t *p, int32_t number, uint64_t seed, float *out)
{
    const double bound = 1 / sqrt((double)(p->shape[1] * p->shape[2] * p->shape[3]));
    philox_t draw = philox_stream(seed, (uint32_t)number, 0, PHILOX_WEIGHTS);
    for (uint64_t i = 0; i < p->count; i++)
        out[weights_place(p, i)] = (float)philox_range(&draw, -bound, bound);
}

static void fill(float *out, uint64_t count, float value)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = value;
}

void weights_init(const graph_t *g, uint64_t seed, float *weights, float *buffers)
{
    memset(weights, 0, graph_sizes(g)->weights * sizeof *weights);
    memset(buffers, 0, graph_sizes(g)->buffers * sizeof *buffers);
    for (int32_t i = 0; i < g->n_params; i++) {
        const graph_param_t *p = &g->params[i];
        if (p->place == GRAPH_WEIGHT)
            init_uniform(p, i, seed, weights + p->first);
        else if (p->place == GRAPH_NORM)
            fill(weights + p->first, p->count, 1);
    }
    for (int32_t u = 0; u < g->n_units; u++) {
        if (g->units[u].var >= 0)
            fill(buffers + g->params[g->units[u].var].first, (uint64_t)g->units[u].c2, 1);
    }
    /* The only biases outside of normalisation are the head's: bias_init (facts/yolo.md 1.3). */
    for (int l = 0; l < K_LEVELS; l++) {
        const graph_param_t *box = &g->params[g->box_bias[l]], *cls = &g->params[g->cls_bias[l]];
        const double cells = 640.0 / g->values[g->box[l]].shrink;
        fill(weights + box->first, box->count, 2);
        fill(weights + cls->first, cls->count, (float)log(5.0 / g->nc / (cells * cells)));
    }
}

/* One entry's values in state-dict order into scratch (p->count floats). */
static void to_state(const graph_param_t *p, const float *weights, const float *buffers,
                     float *scratch)
{
    const float *in = (p->place == GRAPH_BUFFER ? buffers : weights) + p->first;
    for (uint64_t k = 0; k < p->count; k++)
        scratch[k] = p->place == GRAPH_CONSTANT ? (float)k : in[weights_place(p, k)];
}

int weights_store(const graph_t *g, const float *weights, const float *buffers, int64_t batches,
                  const char *prefix, safetensors_writer_t *out)
{
    char name[2 * GRAPH_NAME];
    int rc = 0;
    uint64_t most = 1;
    for (int32_t i = 0; i < g->n_params; i++)
        most = g->params[i].count > most ? g->params[i].count : most;
    float *scratch = malloc(most * sizeof *scratch);
    if (!scratch)
        return err_set(ERR_ENV, "out of memory while storing weights");
    for (int32_t i = 0; i < g->n_params && rc == 0; i++) {
        const graph_param_t *p = &g->params[i];
        if ((size_t)snprintf(name, sizeof name, "%s%s", prefix, p->name) >= sizeof name) {
            rc = err_set(ERR_CONFIG, "the prefix %s is too long", prefix);
        } else if (p->place == GRAPH_COUNTER) {
            rc = safetensors_writer_add(out, name, "I64", NULL, 0, &batches, sizeof batches);
        } else {
            to_state(p, weights, buffers, scratch);
            rc = safetensors_writer_add(out, name, "F32", p->shape, p->ndim, scratch,
                                        p->count * sizeof *scratch);
        }
    }
    free(scratch);
    return rc;
}
