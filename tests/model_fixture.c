#include "tests/model_fixture.h"

#include "control/philox.h"
#include "shm/err.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

void model_check(int rc, const char *what)
{
    if (rc < 0)
        fail_msg("%s: %s", what, err_text());
}

static void check_device(const model_t *m, int rc, const char *what)
{
    if (rc < 0)
        fail_msg("%s: %s", what, m->dev->ops->error(m->dev));
}

enum { WAIT_MS = 20000 };

static const k_ops_t *device;

void model_on(const k_ops_t *ops)
{
    device = ops;
}

const char *model_where(void)
{
    return device && device->async ? "GPU, " : "";
}

void model_adopt(model_t *m, graph_t *g, int threads)
{
    char why[512];
    memset(m, 0, sizeof *m);
    m->g = g;
    const k_open_t args = {.ordinal = 0, .threads = threads, .deterministic = 1};
    const k_ops_t *ops = device ? device : k_cpu_ops();
    if (ops->open(&args, &m->dev, why, sizeof why) < 0)
        fail_msg("no device: %s", why);
    m->memory.compute = K_NONE;
    const graph_sizes_t *s = graph_sizes(m->g);
    m->memory.weights = 0;
    m->memory.grads = m->memory.weights + s->weights * sizeof(float);
    m->memory.buffers = m->memory.grads + s->weights * sizeof(float);
    m->base = m->memory.buffers + s->buffers * sizeof(float);
}

void model_open(model_t *m, const char *name, int32_t nc, int threads)
{
    graph_t *g;
    model_check(graph_build(name, nc, &g), name);
    model_adopt(m, g, threads);
}

void model_plan(model_t *m, graph_mode_t mode, int32_t n, int32_t h, int32_t w, graph_plan_t *plan)
{
    model_check(graph_plan(m->g, m->dev, mode, K_F32, n, h, w, m->base, plan), "plan");
    if (plan->activation_bytes > m->room)
        m->room = plan->activation_bytes;
}

void model_write(model_t *m, k_at at, const void *data, uint64_t bytes)
{
    check_device(m, m->dev->ops->upload(m->dev, K_STREAM_MAIN, at, data, bytes), "upload");
    assert_int_equal(m->dev->ops->wait(m->dev, K_STREAM_MAIN, WAIT_MS), 0);
}

static void poison(model_t *m, k_at at, uint64_t bytes)
{
    void *nan = malloc(bytes);
    assert_non_null(nan);
    memset(nan, 0xFF, bytes);
    model_write(m, at, nan, bytes);
    free(nan);
}

void model_poison(model_t *m)
{
    poison(m, m->base, m->room);
}

void model_ready_with(model_t *m, const float *weights, const float *buffers)
{
    const graph_sizes_t *s = graph_sizes(m->g);
    m->extra = m->base + m->room;
    const uint64_t bytes = m->extra + m->extra_bytes;
    check_device(m, m->dev->ops->reserve(m->dev, bytes), "reserve");
    poison(m, 0, bytes);
    model_write(m, m->memory.weights, weights, s->weights * sizeof *weights);
    model_write(m, m->memory.buffers, buffers, s->buffers * sizeof *buffers);
    check_device(m, m->dev->ops->zero(m->dev, m->memory.grads, s->weights * sizeof(float)), "zero");
}

void model_ready(model_t *m, uint64_t seed)
{
    const graph_sizes_t *s = graph_sizes(m->g);
    float *weights = malloc(s->weights * sizeof *weights);
    float *buffers = malloc(s->buffers * sizeof *buffers);
    assert_non_null(weights);
    assert_non_null(buffers);
    weights_init(m->g, seed, weights, buffers);
    model_ready_with(m, weights, buffers);
    free(weights);
    free(buffers);
}

void model_close(model_t *m)
{
    graph_free(&m->g);
    m->dev->ops->close(&m->dev);
}

uint64_t model_count(const k_tensor_t *t)
{
    return (uint64_t)t->n * (uint64_t)t->h * (uint64_t)t->w * (uint64_t)t->c;
}

void model_input(model_t *m, const graph_plan_t *p, uint32_t number)
{
    uint64_t count = model_count(&p->input);
    float *pixels = malloc(count * sizeof *pixels);
    assert_non_null(pixels);
    philox_t draw = philox_stream(7, number, 0, PHILOX_SAMPLE);
    for (uint64_t i = 0; i < count; i++)
        pixels[i] = (float)philox_below(&draw, 256) / 255.0f;
    assert_int_equal(p->input.ld, 3);
    model_write(m, p->input.at, pixels, count * sizeof *pixels);
    free(pixels);
}

void model_fill(model_t *m, const k_tensor_t *t, uint32_t number, float *host)
{
    uint64_t count = model_count(t);
    float *values = malloc(count * sizeof *values);
    assert_non_null(values);
    philox_t draw = philox_stream(8, number, 0, PHILOX_SAMPLE);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)philox_normal(&draw);
    assert_int_equal(t->ld, t->c);
    model_write(m, t->at, values, count * sizeof *values);
    if (host)
        memcpy(host, values, count * sizeof *values);
    free(values);
}

float *model_region(model_t *m, k_at at, uint64_t floats)
{
    float *values = malloc(floats * sizeof *values);
    assert_non_null(values);
    check_device(m,
                 m->dev->ops->download(m->dev, K_STREAM_MAIN, values, at, floats * sizeof *values),
                 "download");
    assert_int_equal(m->dev->ops->wait(m->dev, K_STREAM_MAIN, WAIT_MS), 0);
    return values;
}

float *model_read(model_t *m, const k_tensor_t *t)
{
    assert_int_equal(t->ld, t->c);
    return model_region(m, t->at, model_count(t));
}
