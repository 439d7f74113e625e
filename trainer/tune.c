#include "trainer/tune.h"

#include "control/log.h"
#include "control/philox.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/cachefile.h"
#include "trainer/head.h"
#include "trainer/pass.h"
#include "trainer/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TUNE_CHUNK = 1 << 20, TUNE_STREAM = 9, TUNE_SHAPES = 2 };

/* ---- one pass over made-up contents ---- */

static int fill_floats(trainer_t *t, k_at at, uint64_t count, float least, float most)
{
    float *values = malloc(count * sizeof *values + 1);
    if (!values)
        return err_set(ERR_ENV, "rank %u: out of memory for made-up weights", t->rank);
    philox_t draw = philox_stream(TUNE_STREAM, 0, 0, PHILOX_SAMPLE);
    for (uint64_t i = 0; i < count; i++)
        values[i] = least + (most - least) * (float)philox_below(&draw, 65536) / 65536.0f;
    int rc = trainer_upload(t, at, values, count * sizeof *values);
    free(values);
    return rc;
}

/* The same bytes over and over. */
static int fill_pixels(trainer_t *t, k_at at, uint64_t bytes)
{
    uint8_t *values = malloc(TUNE_CHUNK);
    if (!values)
        return err_set(ERR_ENV, "rank %u: out of memory for made-up pixels", t->rank);
    philox_t draw = philox_stream(TUNE_STREAM, 1, 0, PHILOX_SAMPLE);
    for (int i = 0; i < TUNE_CHUNK; i++)
        values[i] = (uint8_t)philox_below(&draw, 256);
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < bytes; done += TUNE_CHUNK)
        rc = trainer_upload(t, at + done, values,
                            bytes - done < TUNE_CHUNK ? bytes - done : TUNE_CHUNK);
    free(values);
    return rc;
}

static int make_up(trainer_t *t)
{
    const memory_map_t *m = &t->mem;
    const memory_batch_t *batch = &m->batch[0];
    const k_tensor_t *input = &t->train_plan.input;
    const k_scaling_t scaling = {.scale = 1};
    int rc = fill_floats(t, m->train.weights, t->sizes->weights, -0.1f, 0.1f);
    if (rc == 0)
        rc = fill_floats(t, m->train.buffers, t->sizes->buffers, 0.5f, 1.5f);
    if (rc == 0)
        rc = pass_cast(t, m->train.weights);
    if (rc == 0)
        rc = fill_pixels(t, batch->u8,
                         (uint64_t)input->n * (uint64_t)input->h * (uint64_t)input->w * 3);
    if (rc == 0)
        rc = trainer_upload(t, m->norm, &scaling, sizeof scaling);
    if (rc == 0)
        rc = trainer_check(t, t->ops->zero(t->dev, batch->gt, m->gt_bytes), "made-up labels");
    if (rc == 0)
        rc = trainer_check(
            t, t->ops->zero(t->dev, batch->gt_count, (uint64_t)m->cells * sizeof(int32_t)),
            "made-up labels");
    if (rc == 0)
        rc = trainer_check(t, t->ops->zero(t->dev, m->train.grads, m->weight_bytes), "gradients");
    return rc;
}

/* Sums of one rank are those of all here; it only shows the others that measuring goes on. */
static int on_stats(void *user, k_at at, uint64_t doubles)
{
    trainer_t *t = user;
    (void)at, (void)doubles;
    board_progress(t->w->page, ++t->tuned, 0);
    return t->poll(t);
}

static int on_ready(void *user, int32_t op)
{
    (void)op;
    return on_stats(user, K_NONE, 0);
}

static int run_pass(trainer_t *t)
{
    const k_ops_t *ops = t->ops;
    const memory_map_t *m = &t->mem;
    const graph_hooks_t hooks = {.stats = on_stats, .ready = on_ready, .user = t, .ranks = 1};
    k_detect_loss_t loss;
    int rc = trainer_check(t, ops->image(t->dev, m->batch[0].u8, &t->train_plan.input), "image");
    if (rc == 0)
        rc = graph_forward(t->graph, t->dev, GRAPH_TRAIN, &m->train, &hooks);
    if (rc < 0)
        return rc;
    head_loss(&t->train_plan, t->o, graph_classes(t->graph), m->max_gt, &m->batch[0], m, &loss);
    if ((rc = trainer_check(t, ops->detect_loss(t->dev, &loss), "loss")) < 0)
        return rc;
    rc = graph_backward(t->graph, t->dev, &m->train, &hooks);
    return rc < 0 ? rc : trainer_drain(t, K_STREAM_MAIN);
}

/* ---- shapes of validation ---- */

/* The shapes that most batches have. A second one of a single batch is the last, short batch. */
static int frequent(trainer_t *t, memory_shape_t most[TUNE_SHAPES], int *n)
{
    memory_request_t request;
    memory_shape_t *all = NULL;
    uint32_t count = 0;
    *n = 0;
    setup_request(t, (uint32_t)t->mem.max_gt, &request);
    int rc = memory_shapes(&request, &all, &count);
    while (rc == 0 && *n < TUNE_SHAPES) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < count; i++)
            if (all[i].batches > all[best].batches)
                best = i;
        if (count == 0 || all[best].batches < (*n == 0 ? 1 : 2))
            break;
        most[(*n)++] = all[best];
        all[best].batches = 0;
    }
    free(all);
    return rc;
}

/* Forward over whatever pixels are there; the trained weights' places hold made-up ones. */
static int run_shape(trainer_t *t, const memory_shape_t *s)
{
    graph_plan_t plan;
    int rc = graph_plan(t->graph, t->dev, GRAPH_INFER, t->mem.format, s->n, s->h, s->w,
                        t->mem.activation, &plan);
    if (rc == 0)
        rc = on_stats(t, K_NONE, 0);
    if (rc == 0)
        rc = trainer_check(t, t->ops->image(t->dev, t->mem.batch[0].u8, &plan.input), "image");
    if (rc == 0)
        rc = graph_forward(t->graph, t->dev, GRAPH_INFER, &t->mem.train, NULL);
    return rc < 0 ? rc : trainer_drain(t, K_STREAM_MAIN);
}

/* ---- choices ---- */

static int read_choices(trainer_t *t, char **text)
{
    int64_t bytes = t->ops->choices(t->dev, NULL, 0);
    *text = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    if (bytes < 0)
        return trainer_check(t, -1, "algorithms of convolutions");
    if (!*text)
        return err_set(ERR_ENV, "rank %u: out of memory for %lld bytes of choices", t->rank,
                       (long long)bytes);
    t->ops->choices(t->dev, *text, (uint64_t)bytes + 1);
    return 0;
}

/* The first line of the text names library and GPU; the plan, whose shapes they are: a training's, or
 * those of validation batches. */
static int cache_path(trainer_t *t, const memory_shape_t *val, char path[CACHEFILE_PATH])
{
    char name[256], shape[64], *text = NULL;
    const k_tensor_t *x = &t->train_plan.input;
    int rc = read_choices(t, &text);
    if (rc < 0)
        return rc;
    if (val)
        snprintf(shape, sizeof shape, "val %dx%dx%d", val->n, val->h, val->w);
    else
        snprintf(shape, sizeof shape, "%dx%dx%d", x->n, x->h, x->w);
    snprintf(name, sizeof name, "%.*s %s nc%d %s format%d.txt", (int)strcspn(text, "\n"), text,
             graph_name(t->graph), graph_classes(t->graph), shape, (int)t->mem.format);
    free(text);
    return cachefile_path(name, path);
}

/* Choices of an earlier run with the same library, GPU and plan; "" where there are none. */
static int choose_cached(trainer_t *t, char path[CACHEFILE_PATH], char **cached)
{
    path[0] = '\0';
    *cached = NULL;
    int rc = cache_path(t, NULL, path);
    if (rc == 0)
        rc = cachefile_read(path, cached);
    if (rc < 0) {
        log_line(LOG_WARN, "algorithms of convolutions are measured: %s", err_text());
        return 0;
    }
    if (!*cached) {
        log_line(LOG_INFO, "algorithms of convolutions are measured, once for this GPU and plan");
        return 0;
    }
    log_line(LOG_INFO, "algorithms of convolutions as measured before (%s)", path);
    return trainer_check(t, t->ops->choose(t->dev, *cached), "algorithms of convolutions");
}

static void keep(trainer_t *t, const char *path, const memory_shape_t *most, int n)
{
    char val[CACHEFILE_PATH];
    int rc = cachefile_write(path, t->choices);
    for (int i = 0; rc == 0 && i < n; i++) {
        rc = cache_path(t, &most[i], val);
        if (rc == 0)
            rc = cachefile_write(val, t->choices);
    }
    if (rc < 0)
        log_line(LOG_WARN, "the next run will measure again: %s", err_text());
}

/* A state of another library or GPU has choices that fit nothing here. */
static int say_foreign(trainer_t *t, const char *known)
{
    char *own = NULL;
    int rc = read_choices(t, &own);
    if (rc == 0 && known[0] && strncmp(known, own, strcspn(own, "\n") + 1) != 0)
        log_line(
            LOG_WARN,
            "the run began with \"%.*s\", this is \"%.*s\": its convolutions are chosen anew, and "
            "its weights will differ from an uninterrupted run's by rounding",
            (int)strcspn(known, "\n"), known, (int)strcspn(own, "\n"), own);
    free(own);
    return rc;
}

/* Those of the run that is gone on with come last, over the cache's. */
static int measure(trainer_t *t, const char *known)
{
    char path[CACHEFILE_PATH], *cached = NULL;
    memory_shape_t most[TUNE_SHAPES];
    int n = 0;
    uint64_t began = clock_ns();
    int rc = choose_cached(t, path, &cached);
    if (rc == 0)
        rc = frequent(t, most, &n);
    if (rc == 0 && known)
        rc = say_foreign(t, known);
    if (rc == 0 && known)
        rc = trainer_check(t, t->ops->choose(t->dev, known), "algorithms of convolutions");
    if (rc == 0)
        rc = trainer_check(t, t->ops->measure(t->dev, 1), "measuring convolutions");
    if (rc == 0) {
        rc = run_pass(t);
        for (int i = 0; rc == 0 && i < n; i++)
            rc = run_shape(t, &most[i]);
        int off = t->ops->measure(t->dev, 0);
        if (rc == 0)
            rc = trainer_check(t, off, "measuring convolutions");
        if (off > 0)
            log_line(LOG_WARN,
                     "%d convolutions were not measured, for the time was up: they take what the "
                     "library prefers%s%s",
                     off, path[0] ? "; to measure them, remove " : "", path);
    }
    if (rc == 0)
        rc = read_choices(t, &t->choices);
    if (rc == 0 && path[0] && !known && (!cached || strcmp(cached, t->choices) != 0)) {
        log_line(LOG_INFO, "measuring took %.1f s", (double)(clock_ns() - began) / 1e9);
        keep(t, path, most, n);
    }
    free(cached);
    return rc;
}

/* Rank 0's text to all. Its failure reaches the others as a length below zero. */
static int share(trainer_t *t, int own)
{
    int64_t bytes = own < 0 ? -1 : (int64_t)(t->rank == 0 ? strlen(t->choices) + 1 : 0);
    char text[1024];
    snprintf(text, sizeof text, "%s", own < 0 ? err_text() : "");
    int rc = collective_broadcast(t->coll, &bytes, sizeof bytes, 0);
    if (own < 0)
        return err_set(own, "%s", text);
    if (rc == 0 && bytes < 0)
        rc = err_set(ERR_FAILED, "rank %u: rank 0 could not measure its convolutions: see its log",
                     t->rank);
    if (rc == 0 && t->rank != 0 && !(t->choices = malloc((size_t)bytes)))
        rc = err_set(ERR_ENV, "rank %u: out of memory for %lld bytes of choices", t->rank,
                     (long long)bytes);
    return rc < 0 ? rc : collective_broadcast(t->coll, t->choices, (uint64_t)bytes, 0);
}

int tune_run(trainer_t *t, const char *known)
{
    if (!t->ops->async)
        return 0;
    int rc = make_up(t);
    if (rc == 0 && t->rank == 0)
        rc = measure(t, known);
    if (t->ranks > 1)
        rc = share(t, rc);
    if (rc < 0 || t->rank == 0)
        return rc < 0 ? err_add(rc, "the step before the first") : 0;
    rc = trainer_check(t, t->ops->choose(t->dev, t->choices), "algorithms of convolutions");
    return rc < 0 ? rc : run_pass(t);
}

/* 1: taken from a file. */
static int choose_shape(trainer_t *t, const memory_shape_t *s)
{
    char path[CACHEFILE_PATH], *text = NULL;
    int rc = cache_path(t, s, path);
    if (rc == 0)
        rc = cachefile_read(path, &text);
    if (rc < 0) {
        log_line(LOG_WARN, "algorithms of convolutions: %s", err_text());
        return 0;
    }
    if (!text)
        return 0;
    rc = trainer_check(t, t->ops->choose(t->dev, text), "algorithms of convolutions");
    free(text);
    return rc < 0 ? rc : 1;
}

int tune_infer(trainer_t *t)
{
    memory_shape_t most[TUNE_SHAPES];
    int n = 0, found = 0;
    if (!t->ops->async)
        return 0;
    int rc = frequent(t, most, &n);
    for (int i = 0; rc == 0 && i < n; i++) {
        int one = choose_shape(t, &most[i]);
        rc = one < 0 ? one : 0;
        found += one > 0;
    }
    if (rc == 0 && t->rank == 0 && n > 0)
        log_line(LOG_INFO, "algorithms of convolutions: %s",
                 found ? "as a training on this GPU measured them"
                       : "the first that the library proposes; a training on this GPU measures");
    return rc;
}
