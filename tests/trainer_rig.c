#include "tests/trainer_rig.h"

#include "control/catalog.h"
#include "control/philox.h"
#include "shm/err.h"
#include "tests/draws.h"
#include "trainer/exchange.h"
#include "trainer/graph_internal.h"
#include "trainer/pass.h"
#include "trainer/step.h"
#include "trainer/tune.h"
#include "trainer/weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const k_ops_t *rig_gpu(k_dtype_t format)
{
    if (!k_cuda_ops)
        return NULL;
    char why[512];
    k_dev_t *dev = NULL;
    const k_open_t args = {.ordinal = 0, .threads = 1, .compute = format};
    if (k_cuda_ops()->open(&args, &dev, why, sizeof why) < 0)
        return NULL;
    k_cuda_ops()->close(&dev);
    return k_cuda_ops();
}

int rig_share(uint32_t ranks, rig_shared_t *s)
{
    s->collective_fd = memfd_create("test-collective", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->collective_fd < 0)
        return err_sys(ERR_ENV, "memfd_create");
    return board_create(ranks, &s->board, &s->board_fd);
}

void rig_unshare(rig_shared_t *s)
{
    board_close(&s->board);
    close(s->board_fd);
    close(s->collective_fd);
}

void rig_worker(const rig_shared_t *s, uint32_t rank, worker_t *w)
{
    memset(w, 0, sizeof *w);
    w->kind = BOARD_TRAINER;
    w->index = rank;
    w->board = s->board;
    w->hub = board_hub(s->board);
    w->page = board_page(s->board, rank);
    w->lifeline = -1;
    board_open_page(w->page, BOARD_TRAINER, rank, 1);
}

static int no_messages(trainer_t *t)
{
    (void)t;
    return 0;
}

static int make_options(const rig_spec_t *spec, options_t *o)
{
    options_default(o);
    o->batch = (int)spec->batch;
    o->epochs = (int)spec->epochs;
    o->imgsz = (int)spec->side;
    for (int i = 0; spec->words && spec->words[i]; i++) {
        int rc = options_set(o, spec->words[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int make_memory(rig_t *r)
{
    trainer_t *t = &r->t;
    const memory_request_t request = {.plan = t->plan,
                                      .options = t->o,
                                      .catalog = t->w->catalog,
                                      .rank = t->rank,
                                      .label_cap = r->spec.labels,
                                      .format = r->spec.format,
                                      .device = t->ops->async ? 0 : DEVICE_CPU,
                                      .sgd = t->schedule.optimizer == OPT_OPTIM_SGD};
    const int32_t side = (int32_t)r->spec.side;
    int rc = memory_plan(t->graph, t->dev, &request, &t->mem);
    if (rc == 0)
        rc = collective_open(t->w, r->collective_fd, t->rank, t->ranks,
                             t->sizes->weights + MEMORY_EXTRA, &t->coll);
    if (rc == 0)
        rc = memory_reserve(&t->mem, t->dev, t->coll, &request, r->spec.model);
    if (rc == 0)
        rc = graph_plan(t->graph, t->dev, GRAPH_TRAIN, t->mem.format,
                        (int32_t)(t->plan->batch / t->ranks), side, side, t->mem.activation,
                        &t->train_plan);
    return rc == 0 ? trainer_host_alloc(t) : rc;
}

static int make_weights(trainer_t *t)
{
    float *weights = calloc(t->sizes->weights, sizeof *weights);
    float *buffers = calloc(t->sizes->buffers, sizeof *buffers);
    int rc = weights && buffers ? 0 : err_set(ERR_ENV, "out of memory");
    if (rc == 0) {
        weights_init(t->graph, t->plan->seed, weights, buffers);
        rc = trainer_upload(t, t->mem.train.weights, weights, t->mem.weight_bytes);
    }
    if (rc == 0)
        rc = trainer_upload(t, t->mem.train.buffers, buffers, t->mem.buffer_bytes);
    if (rc == 0)
        rc = trainer_upload(t, t->mem.ema.weights, weights, t->mem.weight_bytes);
    if (rc == 0)
        rc = trainer_upload(t, t->mem.ema.buffers, buffers, t->mem.buffer_bytes);
    if (rc == 0)
        rc = pass_cast(t, t->mem.train.weights);
    free(weights);
    free(buffers);
    return rc;
}

static int make_ring(rig_t *r)
{
    const plan_t *plan = r->t.plan;
    uint32_t train = plan->batch / plan->ranks, each[2];
    uint64_t most = (uint64_t)train * r->spec.side * r->spec.side;
    if (plan->n_val > 0 && (uint64_t)plan->val_batch * RIG_VAL_SIZE * RIG_VAL_SIZE > most)
        most = (uint64_t)plan->val_batch * RIG_VAL_SIZE * RIG_VAL_SIZE;
    const ring_config_t config = {.depth = 2,
                                  .cells = plan->n_val > 0 ? plan->val_batch : train,
                                  .label_cap = r->spec.labels,
                                  .digest = r->spec.digest,
                                  .image_bytes = most * 3};
    for (uint32_t i = 0; i < 2; i++) {
        plan_batch_t b = plan_locate(plan, i);
        each[i] = plan_cells(plan, &b, r->t.rank);
    }
    int rc = ring_create(&config, "test-ring", &r->w.rings[r->t.rank], &r->ring_fd);
    if (rc == 0)
        ring_arm(r->w.rings[r->t.rank], each);
    return rc;
}

/* A list of square validation samples; only their shapes matter here. */
static int make_catalog(rig_t *r, uint32_t n_val)
{
    static const char *const names[RIG_CLASSES] = {"red", "green", "blue"};
    catalog_builder_t *b = NULL;
    const catalog_sample_t sample = {
        .file_bytes = 1, .width = RIG_SIZE, .height = RIG_SIZE, .orientation = 1};
    int rc = catalog_builder_new(&b);
    for (int c = 0; rc == 0 && c < RIG_CLASSES; c++)
        rc = catalog_builder_class(b, names[c]);
    for (uint32_t i = 0; rc == 0 && i < n_val; i++)
        rc = catalog_builder_sample(b, CATALOG_VAL, "/made/up", &sample, NULL, 0, NULL, 0);
    r->catalog_fd = memfd_create("test-catalog", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (rc == 0)
        rc = catalog_builder_write(b, r->catalog_fd);
    if (rc == 0)
        rc = catalog_open(r->catalog_fd, &r->w.catalog);
    catalog_builder_free(&b);
    return rc;
}

int trainer_rig_open(const rig_shared_t *s, uint32_t rank, uint32_t ranks, uint32_t batch,
                     uint32_t epochs, uint32_t n_val, const char *const *words, rig_t *r)
{
    const rig_spec_t spec = {.model = "yolo11n",
                             .classes = RIG_CLASSES,
                             .side = RIG_SIZE,
                             .labels = RIG_LABELS,
                             .images = batch,
                             .batch = batch,
                             .epochs = epochs,
                             .n_val = n_val,
                             .words = words};
    return trainer_rig_open_as(s, rank, ranks, &spec, r);
}

int trainer_rig_open_as(const rig_shared_t *s, uint32_t rank, uint32_t ranks,
                        const rig_spec_t *spec, rig_t *r)
{
    char why[512];
    const k_open_t device = {.threads = 1, .deterministic = 1, .compute = spec->format};
    trainer_t *t = &r->t;
    memset(r, 0, sizeof *r);
    r->spec = *spec;
    r->ring_fd = r->catalog_fd = -1;
    r->collective_fd = s->collective_fd;
    rig_worker(s, rank, &r->w);
    int rc = make_options(spec, &r->w.options);
    if (rc < 0)
        return rc;
    r->w.plan = (plan_t){.seed = spec->seed,
                         .n_train = spec->images,
                         .n_val = spec->n_val,
                         .ranks = ranks,
                         .batch = spec->batch,
                         .val_batch = 2 * spec->batch / ranks,
                         .imgsz = spec->side,
                         .epochs = spec->epochs,
                         .close_mosaic = spec->close_mosaic};
    t->w = &r->w;
    t->o = &r->w.options;
    t->plan = &r->w.plan;
    t->rank = rank;
    t->ranks = ranks;
    t->poll = no_messages;
    t->progress.best_epoch = -1;
    if (spec->n_val > 0 && (rc = make_catalog(r, spec->n_val)) < 0)
        return rc;
    if ((rc = make_ring(r)) < 0)
        return rc;
    t->ops = spec->ops ? spec->ops : k_cpu_ops();
    r->w.welcome.device = t->ops->async ? 0 : DEVICE_CPU;
    r->w.welcome.format = spec->format;
    if (t->ops->open(&device, &t->dev, why, sizeof why) < 0)
        return err_set(ERR_ENV, "%s", why);
    if ((rc = graph_build(spec->model, (int32_t)spec->classes, &t->graph)) < 0)
        return rc;
    t->sizes = graph_sizes(t->graph);
    schedule_init(&t->schedule, t->o, spec->images, plan_train_steps(t->plan), spec->classes);
    if ((rc = make_memory(r)) < 0 || (spec->tune && (rc = tune_run(t, NULL)) < 0) ||
        (rc = step_init(t)) < 0)
        return rc;
    return make_weights(t);
}

void trainer_rig_close(rig_t *r)
{
    trainer_t *t = &r->t;
    exchange_close(t);
    trainer_host_free(t);
    collective_close(&t->coll);
    graph_free(&t->graph);
    if (t->dev)
        t->ops->close(&t->dev);
    if (r->w.rings[t->rank])
        ring_close(&r->w.rings[t->rank]);
    if (r->ring_fd >= 0)
        close(r->ring_fd);
    if (r->w.catalog)
        catalog_close(&r->w.catalog);
    if (r->catalog_fd >= 0)
        close(r->catalog_fd);
}

int rig_draw(rig_t *r, const char *name)
{
    trainer_t *t = &r->t;
    float *weights = calloc(t->sizes->weights, sizeof *weights);
    float *drawn = calloc(t->sizes->weights, sizeof *drawn);
    float *buffers = calloc(t->sizes->buffers, sizeof *buffers);
    float *ignored = calloc(t->sizes->buffers, sizeof *ignored);
    int rc = weights && drawn && buffers && ignored ? 0 : err_set(ERR_ENV, "out of memory");
    if (rc == 0) {
        weights_init(t->graph, 0, weights, buffers);
        draws_state(t->graph, name, 0, drawn, ignored);
        for (int l = 0; l < K_LEVELS; l++) {
            const graph_param_t *box = &t->graph->params[t->graph->box_bias[l]];
            const graph_param_t *cls = &t->graph->params[t->graph->cls_bias[l]];
            for (uint64_t i = 0; i < box->count; i++)
                drawn[box->first + i] = -0.5f * (float)(i % K_REG_MAX);
            memcpy(drawn + cls->first, weights + cls->first, cls->count * sizeof *drawn);
        }
        rc = trainer_upload(t, t->mem.train.weights, drawn, t->mem.weight_bytes);
    }
    if (rc == 0)
        rc = trainer_upload(t, t->mem.ema.weights, drawn, t->mem.weight_bytes);
    if (rc == 0)
        rc = pass_cast(t, t->mem.train.weights);
    free(weights);
    free(drawn);
    free(buffers);
    free(ignored);
    return rc;
}

/* Where a picture lies in its cell: side of the cell, border on each side. */
typedef struct {
    uint32_t size, border;
} place_t;

/* One rectangle: 16 to 40 px a side, the channel of its class bright. */
static ring_label_t draw(uint8_t *image, place_t at, philox_t *p)
{
    uint32_t cls = philox_below(p, RIG_CLASSES), w = 16 + philox_below(p, 25);
    uint32_t h = 16 + philox_below(p, 25);
    uint32_t x0 = at.border + philox_below(p, RIG_SIZE - w + 1);
    uint32_t y0 = at.border + philox_below(p, RIG_SIZE - h + 1);
    for (uint32_t y = y0; y < y0 + h; y++)
        for (uint32_t x = x0; x < x0 + w; x++)
            for (uint32_t c = 0; c < 3; c++)
                image[(y * at.size + x) * 3 + c] = c == cls ? 230 : 40;
    const float s = (float)at.size;
    return (ring_label_t){(float)cls, ((float)x0 + (float)w / 2) / s,
                          ((float)y0 + (float)h / 2) / s, (float)w / s, (float)h / s};
}

static void draw_ground(uint8_t *image, place_t at, philox_t *p)
{
    memset(image, 114, (size_t)at.size * at.size * 3);
    for (uint32_t y = at.border; y < at.border + RIG_SIZE; y++)
        for (uint32_t k = 0; k < RIG_SIZE * 3; k++)
            image[(y * at.size + at.border) * 3 + k] = (uint8_t)(100 + philox_below(p, 30));
}

void rig_fill(rig_t *r, const plan_batch_t *b, uint32_t first, uint32_t images)
{
    trainer_t *t = &r->t;
    ring_t *ring = r->w.rings[t->rank];
    uint32_t n = plan_cells(t->plan, b, t->rank);
    place_t at = {RIG_SIZE, 0};
    if (b->phase == PLAN_VAL)
        at = (place_t){RIG_VAL_SIZE, (RIG_VAL_SIZE - RIG_SIZE) / 2};
    const size_t stride = (size_t)at.size * at.size * 3;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t which = (first + i) % images;
        philox_t p = philox_stream(7, 0, which, PHILOX_SAMPLE);
        if (!ring_claim(ring, t->seq, i, 1))
            continue;
        uint8_t *image = ring_image(ring, t->seq, i, stride);
        draw_ground(image, at, &p);
        ring_label_t *labels = ring_labels(ring, t->seq, i);
        uint32_t count = 1 + which % 2;
        for (uint32_t k = 0; k < count; k++)
            labels[k] = draw(image, at, &p);
        const ring_cell_meta_t meta = {.phase = (uint32_t)b->phase,
                                       .epoch = b->epoch,
                                       .step = b->step,
                                       .n_labels = count,
                                       .position = plan_position(t->plan, b, t->rank, i),
                                       .sample = which,
                                       .height = at.size,
                                       .width = at.size};
        *ring_meta(ring, t->seq, i) = meta;
        ring_commit(ring, t->seq, i, 1);
    }
}
