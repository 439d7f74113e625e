#include "tests/draws.h"

#include "trainer/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* FNV-1a. */
uint32_t draws_key(const char *name)
{
    uint32_t key = 0x811C9DC5u;
    for (; *name; name++)
        key = (key ^ (unsigned char)*name) * 0x01000193u;
    return key;
}

/* The last mixing of MurmurHash3. */
static uint32_t hash_at(uint32_t key, uint64_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u + key;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

float draws_at(uint32_t key, uint64_t i)
{
    return (float)(hash_at(key, i) >> 8) / 8388608.0f - 1.0f; /* exact */
}

void draws_fill(const char *name, double scale, double shift, float *out, uint64_t count)
{
    const uint32_t key = draws_key(name);
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)(shift + scale * (double)draws_at(key, i));
}

void draws_octets(const char *name, uint8_t *out, uint64_t count)
{
    const uint32_t key = draws_key(name);
    for (uint64_t i = 0; i < count; i++)
        out[i] = (uint8_t)(hash_at(key, i) >> 24);
}

/* As draws.py: blocks are flat squares, shades are two waves and a sixteenth of the noise. */
static uint8_t pixel(draws_kind_t kind, uint32_t noise, int32_t x, int32_t y, int32_t c)
{
    if (kind == DRAWS_NOISE)
        return (uint8_t)noise;
    if (kind == DRAWS_BLOCKS)
        return (uint8_t)(x / 9 * 67 + y / 7 * 151 + (x / 9) * (y / 7) * 29 + c * 83);
    return (uint8_t)(abs((x * (3 + c) + y * (2 + 2 * c)) % 200 - 100) +
                     abs((x * 2 + y * (5 - c)) % 240 - 120) + (int32_t)noise / 16);
}

void draws_pixels(const char *name, draws_kind_t kind, uint32_t width, uint32_t height,
                  uint8_t *out)
{
    const uint32_t key = draws_key(name);
    uint64_t at = 0;
    for (uint32_t y = 0; y < height; y++)
        for (uint32_t x = 0; x < width; x++)
            for (int32_t c = 0; c < 3; c++, at++)
                out[at] = pixel(kind, hash_at(key, at) >> 24, (int32_t)x, (int32_t)y, c);
}

static int ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

void draws_state(const graph_t *g, const char *name, uint64_t skip, float *weights, float *buffers)
{
    char label[256];
    memset(weights, 0, graph_sizes(g)->weights * sizeof *weights);
    memset(buffers, 0, graph_sizes(g)->buffers * sizeof *buffers);
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        float *out = (p->place == GRAPH_BUFFER ? buffers : weights) + p->first;
        double scale = 0.25, shift = 0;
        if (p->place == GRAPH_COUNTER || p->place == GRAPH_CONSTANT)
            continue;
        if (p->ndim == 4)
            scale = 1 / sqrt((double)(p->shape[1] * p->shape[2] * p->shape[3]));
        else if (p->place == GRAPH_NORM || ends_with(p->name, "bn.bias"))
            shift = 1;
        else if (ends_with(p->name, "running_var"))
            scale = 0.5, shift = 1;
        snprintf(label, sizeof label, "%s/%s", name, p->name + skip);
        const uint32_t key = draws_key(label);
        for (uint64_t k = 0; k < p->count; k++)
            out[weights_place(p, k)] = (float)(shift + scale * (double)draws_at(key, k));
    }
}
