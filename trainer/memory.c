#include "trainer/memory.h"

#include "shm/arena.h"
#include "shm/err.h"
#include "trainer/head.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    memory_shape_t *at;
    uint32_t count, room;
} shapes_t;

static int shapes_add(shapes_t *s, int32_t n, int32_t h, int32_t w)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->at[i].n == n && s->at[i].h == h && s->at[i].w == w) {
            s->at[i].batches++;
            return 0;
        }
    if (s->count == s->room) {
        uint32_t room = s->room ? 2 * s->room : 64;
        memory_shape_t *grown = realloc(s->at, room * sizeof *grown);
        if (!grown)
            return err_set(ERR_ENV, "out of memory for %u validation shapes", room);
        s->at = grown;
        s->room = room;
    }
    s->at[s->count++] = (memory_shape_t){n, h, w, 1};
    return 0;
}

int memory_shapes(const memory_request_t *r, memory_shape_t **shapes, uint32_t *count)
{
    shapes_t s = {0};
    int rc = 0;
    plan_batch_t b = {.phase = PLAN_VAL, .steps = plan_val_steps(r->plan)};
    for (b.step = 0; rc == 0 && r->catalog && b.step < b.steps; b.step++) {
        uint32_t n = plan_cells(r->plan, &b, r->rank), h, w;
        if (n == 0)
            continue;
        parts_shape(r->parts, r->catalog, (uint32_t)plan_position(r->plan, &b, r->rank, 0), n,
                    r->plan->imgsz, &h, &w);
        rc = shapes_add(&s, (int32_t)n, (int32_t)h, (int32_t)w);
    }
    *shapes = s.at;
    *count = s.count;
    return rc;
}

static void raise_to(uint64_t *most, uint64_t value)
{
    if (value > *most)
        *most = value;
}

/* Raises the map's sizes to what this shape needs in this mode. */
static int include_shape(graph_t *g, k_dev_t *dev, const memory_request_t *r, graph_mode_t mode,
                         const memory_shape_t *s, memory_map_t *m)
{
    graph_plan_t plan;
    int rc = graph_plan(g, dev, mode, r->format, s->n, s->h, s->w, 0, &plan);
    if (rc < 0)
        return err_add(rc, "planning a batch");
    int32_t nc = graph_classes(g);
    k_detect_loss_t loss;
    head_loss(&plan, r->options, nc, m->max_gt, &m->batch[0], m, &loss);
    if (!r->infer)
        raise_to(&m->work_bytes, dev->ops->detect_loss_work(dev, &loss));
    if (mode == GRAPH_INFER) {
        k_nms_t nms;
        head_nms(&plan, r->options, nc, m, &nms);
        raise_to(&m->work_bytes, dev->ops->nms_work(dev, &nms));
    }
    raise_to(&m->activation_bytes, plan.activation_bytes);
    raise_to(&m->u8_bytes, (uint64_t)s->n * (uint64_t)s->h * (uint64_t)s->w * 3);
    if (s->n > m->cells)
        m->cells = s->n;
    return 0;
}

/* The next place for `bytes`. */
static k_at take(memory_map_t *m, uint64_t bytes)
{
    k_at at = m->total;
    m->total += (bytes + K_ALIGN - 1) / K_ALIGN * K_ALIGN;
    return at;
}

/* Gradients, momenta and averages beside the weights; without a training the weights alone. */
static void give_state(const memory_request_t *r, memory_map_t *m)
{
    if (r->infer) {
        m->train.grads = m->extra = m->m = m->v = m->ema.grads = K_NONE;
        m->ema = m->train;
        return;
    }
    /* Extra values lie directly behind the gradients (groups are padded to K_ALIGN): one
     * all-reduce. */
    m->train.grads = take(m, m->weight_bytes + MEMORY_EXTRA * sizeof(float));
    m->extra = m->train.grads + m->weight_bytes;
    m->m = take(m, m->weight_bytes);
    m->v = r->sgd ? K_NONE : take(m, m->weight_bytes);
    m->ema.weights = take(m, m->weight_bytes);
    m->ema.buffers = take(m, m->buffer_bytes);
    m->ema.grads = K_NONE;
}

/* What convolutions read where they do not compute in float32. */
static void give_compute(const graph_sizes_t *sizes, memory_map_t *m)
{
    const uint64_t floats = sizes->group_count[GRAPH_WEIGHT];
    m->train.compute = m->format == K_F32 ? K_NONE : take(m, floats * sizeof(uint16_t));
    m->ema.compute = m->train.compute;
}

/* One batch is copied while another is computed where the device works by itself. */
static void give_batches(const k_dev_t *dev, memory_map_t *m)
{
    const uint64_t begin = m->total;
    for (int i = 0; i < MEMORY_BATCHES; i++) {
        if (i > 0 && !dev->ops->async) {
            m->batch[i] = m->batch[0];
            continue;
        }
        m->batch[i].gt = take(m, m->gt_bytes);
        m->batch[i].gt_count = take(m, (uint64_t)m->cells * sizeof(int32_t));
        m->batch[i].u8 = take(m, m->u8_bytes);
    }
    m->batch_bytes = m->total - begin;
}

static void give_places(const graph_sizes_t *sizes, const k_dev_t *dev, const memory_request_t *r,
                        memory_map_t *m)
{
    uint64_t cells = (uint64_t)m->cells;
    m->format = r->format;
    m->weight_bytes = sizes->weights * sizeof(float);
    m->buffer_bytes = sizes->buffers * sizeof(float);
    m->total = 0;
    m->train.weights = take(m, m->weight_bytes);
    m->train.buffers = take(m, m->buffer_bytes);
    give_state(r, m);
    give_compute(sizes, m);
    m->state_bytes = m->total;
    m->hyper = take(m, sizeof(k_hyper_t));
    m->norm = take(m, sizeof(k_scaling_t));
    m->items = take(m, 4 * sizeof(float));
    m->sum = take(m, sizeof(double));
    m->gt_bytes = cells * (uint64_t)m->max_gt * sizeof(k_gt_t);
    give_batches(dev, m);
    m->dets = take(m, cells * (uint64_t)m->max_det * sizeof(k_det_t));
    m->det_count = take(m, cells * sizeof(int32_t));
    m->work = take(m, m->work_bytes);
    m->activation = take(m, m->activation_bytes);
}

int memory_plan(graph_t *g, k_dev_t *dev, const memory_request_t *r, memory_map_t *m)
{
    memory_shape_t *shapes = NULL;
    uint32_t count = 0;
    memset(m, 0, sizeof *m);
    m->max_gt = (int32_t)r->label_cap;
    m->max_det = r->options->max_det;
    int32_t size = (int32_t)r->plan->imgsz;
    const memory_shape_t train = {(int32_t)(r->plan->batch / r->plan->ranks), size, size, 1};
    int rc = r->infer ? 0 : include_shape(g, dev, r, GRAPH_TRAIN, &train, m);
    if (rc == 0 && r->plan->n_val > 0)
        rc = memory_shapes(r, &shapes, &count);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = include_shape(g, dev, r, GRAPH_INFER, &shapes[i], m);
    free(shapes);
    if (rc < 0)
        return rc;
    give_places(graph_sizes(g), dev, r, m);
    return 0;
}

static double mb(uint64_t bytes)
{
    return (double)bytes / 1e6;
}

static int on_cpu(const k_dev_t *dev)
{
    return strcmp(dev->ops->name, "cpu") == 0;
}

uint64_t memory_host(const memory_map_t *m, const k_dev_t *dev, const memory_request_t *r)
{
    return MEMORY_PROCESS + r->host + (on_cpu(dev) ? m->total : (uint64_t)MEMORY_LIBRARIES);
}

/* The ranks draw on the same memory, and none has taken any yet: they are compared together. */
static int check_host(const memory_map_t *m, k_dev_t *dev, collective_t *c,
                      const memory_request_t *r, const char *model)
{
    arena_budget_t budget;
    double need = (double)memory_host(m, dev, r);
    int rc = collective_sum(c, &need, 1);
    if (rc == 0)
        rc = arena_budget("", &budget);
    if (rc < 0)
        return rc;
    uint64_t left = budget.available > r->reserved ? budget.available - r->reserved : 0;
    if (need <= (double)left)
        return 0;
    return err_set(
        ERR_ENV,
        "rank %u: %s with batch=%u imgsz=%u needs %.0f MB%s (weights and optimiser %.0f, "
        "activations %.0f, checkpoints %.0f); of %.0f MB that may be used (%s) loaders "
        "and the rest of the run take %.0f: lower batch, imgsz, workers or ring_depth, "
        "or choose a smaller model",
        r->rank, model, r->plan->batch, r->plan->imgsz, need / 1e6,
        r->plan->ranks > 1 ? " on all ranks together" : "", on_cpu(dev) ? mb(m->state_bytes) : 0,
        on_cpu(dev) ? mb(m->activation_bytes) : 0, mb(r->host), mb(budget.available), budget.source,
        mb(r->reserved));
}

static int check_device(const memory_map_t *m, k_dev_t *dev, const memory_request_t *r,
                        const char *model)
{
    uint64_t free_bytes, total;
    if (dev->ops->memory(dev, &free_bytes, &total) < 0)
        return err_set(ERR_ENV, "device memory: %s", dev->ops->error(dev));
    /* Ranks that share a device (a test mode) look before any of them has reserved. */
    uint64_t sharing = 0, need = m->total + MEMORY_DEVICE;
    for (int i = 0; i < r->options->n_devices; i++)
        sharing += r->options->devices[i] == r->device;
    if (need * (sharing > 0 ? sharing : 1) <= free_bytes)
        return 0;
    return err_set(ERR_ENV,
                   "rank %u: %s with batch=%u imgsz=%u needs %.0f MB on its device (weights and "
                   "optimiser %.0f, activations %.0f, batches %.0f, kernels and libraries %.0f)%s, "
                   "of which %.0f of %.0f MB are free%s: lower batch or imgsz, or choose a smaller "
                   "model",
                   r->rank, model, r->plan->batch, r->plan->imgsz, mb(need), mb(m->state_bytes),
                   mb(m->activation_bytes), mb(m->batch_bytes), mb((uint64_t)MEMORY_DEVICE),
                   sharing > 1 ? ", as other ranks do there" : "", mb(free_bytes), mb(total),
                   r->holders ? r->holders : "");
}

int memory_reserve(const memory_map_t *m, k_dev_t *dev, collective_t *c, const memory_request_t *r,
                   const char *model)
{
    int rc = check_host(m, dev, c, r, model);
    if (rc == 0 && !on_cpu(dev))
        rc = check_device(m, dev, r, model);
    /* Nobody reserves before all have compared. */
    if (rc == 0)
        rc = collective_barrier(c);
    if (rc < 0)
        return rc;
    if (dev->ops->reserve(dev, m->total) < 0)
        return err_set(ERR_ENV, "rank %u: reserving %.0f MB: %s", r->rank, mb(m->total),
                       dev->ops->error(dev));
    return 0;
}
