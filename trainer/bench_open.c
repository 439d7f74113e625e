/* A trainer without a run around it: board, list of images, plan and batch are made up here. */
#include "trainer/bench_step.h"

#include "control/philox.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/pass.h"
#include "trainer/record.h"
#include "trainer/setup.h"
#include "trainer/step.h"
#include "trainer/tune.h"
#include "trainer/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    BENCH_EPOCH = 1000, /* steps: the warm-up of rates is longer than any measurement */
    BENCH_MOSAIC = 4,   /* images whose labels a mosaic may bring together (control/sizing.c) */
    BENCH_STREAM = 11,
    BENCH_CHUNK = 1 << 20,
};

static int look(trainer_t *t)
{
    const bench_t *b = (const bench_t *)t;
    if (clock_ns() < b->until_ns)
        return 0;
    return err_set(
        ERR_TIMEOUT,
        "bench: not measured within %g s: raise seconds=, or lower batch, imgsz or steps",
        b->spec.seconds);
}

/* Names of classes are all that it holds. */
static int make_catalog(bench_t *b)
{
    catalog_builder_t *builder = NULL;
    char name[16];
    int rc = catalog_builder_new(&builder);
    for (int c = 0; rc == 0 && c < b->spec.classes; c++) {
        snprintf(name, sizeof name, "class%d", c);
        rc = catalog_builder_class(builder, name);
    }
    b->catalog_fd = memfd_create("sluice-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (rc == 0 && b->catalog_fd < 0)
        rc = err_sys(ERR_ENV, "memory for a list of classes");
    if (rc == 0)
        rc = catalog_builder_write(builder, b->catalog_fd);
    if (rc == 0)
        rc = catalog_open(b->catalog_fd, &b->w.catalog);
    catalog_builder_free(&builder);
    return rc;
}

static int make_worker(bench_t *b)
{
    worker_t *w = &b->w;
    int rc = board_create(1, &b->board, &b->board_fd);
    if (rc < 0)
        return rc;
    w->kind = BOARD_TRAINER;
    w->board = b->board;
    w->hub = board_hub(b->board);
    w->page = board_page(b->board, 0);
    w->lifeline = -1;
    board_open_page(w->page, BOARD_TRAINER, 0, 1);
    const uint32_t batch = (uint32_t)w->options.batch;
    w->plan = (plan_t){.seed = (uint64_t)w->options.seed,
                       .n_train = batch * BENCH_EPOCH,
                       .ranks = 1,
                       .batch = batch,
                       .val_batch = batch,
                       .imgsz = (uint32_t)w->options.imgsz,
                       .epochs = (uint32_t)w->options.epochs};
    b->t.w = w;
    b->t.plan = &w->plan;
    b->t.poll = look;
    b->t.progress.best_epoch = -1;
    return plan_check(&w->plan);
}

static int make_memory(bench_t *b)
{
    trainer_t *t = &b->t;
    memory_request_t request;
    setup_request(t, (uint32_t)b->spec.boxes * BENCH_MOSAIC, &request);
    const int32_t side = (int32_t)t->plan->imgsz;
    uint64_t total;
    int rc =
        trainer_check(t, t->ops->memory(t->dev, &b->free_before, &total), "memory of the device");
    if (rc == 0)
        rc = memory_plan(t->graph, t->dev, &request, &t->mem);
    if (rc == 0)
        rc = collective_open(t->w, -1, 0, 1, t->sizes->weights + MEMORY_EXTRA, &t->coll);
    if (rc == 0)
        rc = memory_reserve(&t->mem, t->dev, t->coll, &request, graph_name(t->graph));
    if (rc == 0)
        rc = graph_plan(t->graph, t->dev, GRAPH_TRAIN, t->mem.format, (int32_t)t->plan->batch, side,
                        side, t->mem.activation, &t->train_plan);
    return rc == 0 ? trainer_host_alloc(t) : rc;
}

static int make_weights(bench_t *b)
{
    trainer_t *t = &b->t;
    const memory_map_t *m = &t->mem;
    float *weights = calloc(t->sizes->weights, sizeof *weights);
    float *buffers = calloc(t->sizes->buffers, sizeof *buffers);
    int rc = weights && buffers ? 0 : err_set(ERR_ENV, "out of memory for the weights");
    if (rc == 0) {
        weights_init(t->graph, t->plan->seed, weights, buffers);
        rc = trainer_upload(t, m->train.weights, weights, m->weight_bytes);
    }
    if (rc == 0)
        rc = trainer_upload(t, m->train.buffers, buffers, m->buffer_bytes);
    if (rc == 0)
        rc = trainer_upload(t, m->ema.weights, weights, m->weight_bytes);
    if (rc == 0)
        rc = trainer_upload(t, m->ema.buffers, buffers, m->buffer_bytes);
    if (rc == 0)
        rc = pass_cast(t, m->train.weights);
    free(weights);
    free(buffers);
    return rc;
}

/* ---- the batch ---- */

/* Noise: no byte is like the next, whatever the kernels make of that. */
static int fill_pixels(trainer_t *t, k_at at, uint64_t bytes)
{
    uint8_t *values = malloc(BENCH_CHUNK);
    if (!values)
        return err_set(ERR_ENV, "out of memory for made-up pixels");
    philox_t draw = philox_stream(BENCH_STREAM, 0, 0, PHILOX_SAMPLE);
    for (int i = 0; i < BENCH_CHUNK; i++)
        values[i] = (uint8_t)philox_below(&draw, 256);
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < bytes; done += BENCH_CHUNK)
        rc = trainer_upload(t, at + done, values,
                            bytes - done < BENCH_CHUNK ? bytes - done : BENCH_CHUNK);
    free(values);
    return rc;
}

/* Sides from 16 pixels to a quarter of the image, equally likely by ratio; all of it inside. */
static k_gt_t draw_box(const bench_t *b, philox_t *draw)
{
    const double side = b->t.plan->imgsz, most = side / 4 > 17 ? side / 4 : 17;
    const double w = 16 * pow(most / 16, philox_unit(draw));
    const double h = 16 * pow(most / 16, philox_unit(draw));
    const double x = philox_unit(draw) * (side - w), y = philox_unit(draw) * (side - h);
    return (k_gt_t){(float)philox_below(draw, (uint32_t)b->spec.classes), (float)x, (float)y,
                    (float)(x + w), (float)(y + h)};
}

static int fill_turn(bench_t *b, int turn)
{
    trainer_t *t = &b->t;
    const memory_batch_t *to = &t->mem.batch[turn];
    batch_t *batch = &t->turns[turn];
    batch->n = (int32_t)t->plan->batch;
    batch->h = batch->w = (int32_t)t->plan->imgsz;
    batch->max_gt = t->mem.max_gt;
    philox_t draw = philox_stream(BENCH_STREAM, 1, 0, PHILOX_SAMPLE);
    memset(batch->gts, 0, t->mem.gt_bytes);
    for (int32_t i = 0; i < batch->n; i++) {
        batch->counts[i] = b->spec.boxes;
        for (int32_t k = 0; k < b->spec.boxes; k++)
            batch->gts[(size_t)i * (size_t)batch->max_gt + (size_t)k] = draw_box(b, &draw);
    }
    int rc = fill_pixels(t, to->u8, (uint64_t)batch->n * t->plan->imgsz * t->plan->imgsz * 3);
    if (rc == 0)
        rc = trainer_upload(t, to->gt, batch->gts, t->mem.gt_bytes);
    return rc < 0 ? rc
                  : trainer_upload(t, to->gt_count, batch->counts,
                                   (uint64_t)batch->n * sizeof *batch->counts);
}

int bench_open(bench_t *b)
{
    trainer_t *t = &b->t;
    int rc;
    b->clock.t = t;
    b->until_ns = clock_ns() + (uint64_t)(b->spec.seconds * 1e9);
    CHECK_GOTO(make_catalog(b), rc, fail);
    CHECK_GOTO(make_worker(b), rc, fail);
    CHECK_GOTO(setup_graph(t), rc, fail);
    schedule_init(&t->schedule, t->o, t->plan->n_train, plan_train_steps(t->plan),
                  (uint32_t)graph_classes(t->graph));
    CHECK_GOTO(make_memory(b), rc, fail);
    record_init(t);
    if (!t->ops->async)
        t->unrecorded = 1;
    CHECK_GOTO(tune_run(t, NULL), rc, fail);
    CHECK_GOTO(step_init(t), rc, fail);
    CHECK_GOTO(make_weights(b), rc, fail);
    for (int turn = 0; rc == 0 && turn < (t->ops->async ? TRAINER_TURNS : 1); turn++)
        rc = fill_turn(b, turn);
    if (!t->ops->async)
        t->turns[1] = t->turns[0];
fail:
    return rc;
}

void bench_close(bench_t *b)
{
    setup_close(&b->t);
    if (b->w.catalog)
        catalog_close(&b->w.catalog);
    if (b->board)
        board_close(&b->board);
    if (b->board_fd >= 0)
        close(b->board_fd);
    if (b->catalog_fd >= 0)
        close(b->catalog_fd);
}
