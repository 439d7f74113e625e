/* A convolution and the batch normalisation behind it as one convolution with a bias. */
#include "trainer/onnx_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes n numbers into the model; -1 when one of them is none in the type that they get. */
static int32_t take(onnx_t *x, const char *name, const int64_t *shape, int n_dims, float *values,
                    uint64_t n)
{
    const int half = onnx_body_type(x) == ONNX_FLOAT16;
    uint16_t *halves = half ? malloc(n * sizeof *halves) : NULL;
    for (uint64_t i = 0; i < n && (halves || !half); i++) {
        const int lost = halves && ((halves[i] = onnx_half(values[i])) & 0x7C00) == 0x7C00;
        if (!lost && isfinite(values[i]))
            continue;
        onnx_fail(x->m, "%s of %s: element %llu is %g%s", name, x->c->origin, (unsigned long long)i,
                  (double)values[i],
                  isfinite(values[i]) ? ", beyond the 65504 of half precision: export without half="
                                      : ": such weights find nothing");
        free(halves);
        free(values);
        return -1;
    }
    x->parameters += n;
    if (!half)
        return onnx_take(x->m, name, ONNX_FLOAT, shape, n_dims, values);
    free(values);
    return onnx_take(x->m, name, ONNX_FLOAT16, shape, n_dims, halves);
}

static const float *values_of(const float *region, const graph_t *g, int32_t param)
{
    return region + g->params[param].first;
}

/* y = gamma * (conv - mean) / sqrt(var + eps) + beta, as factor * conv + shift. */
static void factors(const onnx_t *x, const graph_unit_t *u, int32_t c, double *factor,
                    double *shift)
{
    const graph_t *g = x->g;
    *factor = 1;
    *shift = u->bias >= 0 ? (double)values_of(x->weights, g, u->bias)[c] : 0;
    if (u->gamma < 0)
        return;
    *factor = (double)values_of(x->weights, g, u->gamma)[c] /
              sqrt((double)values_of(x->buffers, g, u->var)[c] + (double)GRAPH_BN_EPS);
    *shift = (double)values_of(x->weights, g, u->beta)[c] -
             *factor * (double)values_of(x->buffers, g, u->mean)[c];
}

/* One output channel from the device's layout to the file's, which is the state dict's, times factor.
 * weights_place has the layouts. */
static void fold_channel(const graph_param_t *p, const float *from, int64_t o, double factor,
                         float *out)
{
    const int64_t in = p->shape[1], area = p->shape[2] * p->shape[3];
    const int by_place = p->layout == GRAPH_LAYOUT_HWC;
    for (int64_t i = 0; i < in; i++) {
        for (int64_t k = 0; k < area; k++) {
            const int64_t at_k = by_place ? k * p->shape[0] + o : (o * area + k) * in + i;
            out[i * area + k] = (float)(factor * (double)from[at_k]);
        }
    }
}

int onnx_fold(onnx_t *x, const graph_unit_t *u, int32_t *weight, int32_t *bias)
{
    const graph_param_t *p = &x->g->params[u->weight];
    const int stem = (int)(strlen(p->name) - strlen(".weight"));
    float *w = malloc(p->count * sizeof *w), *b = malloc((uint64_t)u->c2 * sizeof *b);
    char name[GRAPH_NAME];
    if (!w || !b) {
        free(w);
        free(b);
        return onnx_fail(x->m, "%s: out of memory", p->name);
    }
    for (int32_t c = 0; c < u->c2; c++) {
        double factor, shift;
        factors(x, u, c, &factor, &shift);
        b[c] = (float)shift;
        fold_channel(p, x->weights + p->first, c, factor,
                     w + (uint64_t)c * (p->count / (uint64_t)u->c2));
    }
    snprintf(name, sizeof name, "%.*s.bias", stem, p->name);
    *weight = take(x, p->name, p->shape, 4, w, p->count);
    *bias = take(x, name, (int64_t[]){u->c2}, 1, b, (uint64_t)u->c2);
    return *weight < 0 || *bias < 0 ? -1 : 0;
}
