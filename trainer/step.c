#include "trainer/step.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/batch.h"
#include "trainer/head.h"
#include "trainer/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int step_init(trainer_t *t)
{
    const k_ops_t *ops = t->ops;
    uint64_t bytes = t->mem.weight_bytes;
    int rc = ops->zero(t->dev, t->mem.train.grads, bytes + MEMORY_EXTRA * sizeof(float));
    if (rc == 0)
        rc = ops->zero(t->dev, t->mem.m, bytes);
    if (rc == 0 && t->mem.v != K_NONE)
        rc = ops->zero(t->dev, t->mem.v, bytes);
    if ((rc = trainer_check(t, rc, "zeroing gradients")) < 0)
        return rc;
    memset(&t->hyper, 0, sizeof t->hyper);
    t->hyper.weight_decay[0] = (float)t->schedule.weight_decay; /* groups 1 and 2: none */
    t->hyper.beta2 = 0.999f;                                    /* facts/yolo.md 4.1 */
    t->hyper.eps = 1e-8f;
    t->hyper.max_norm = 10.0f; /* facts/yolo.md 4.5 */
    t->hyper.grad_scale = 1.0f;
    t->progress.last_opt_step = t->progress.last_ni = -1;
    t->progress.point.accumulate = 1;
    return 0;
}

int step_compute(trainer_t *t)
{
    const k_ops_t *ops = t->ops;
    board_set_phase(t->w->page, BOARD_FORWARD);
    int rc = trainer_check(t, ops->image(t->dev, t->mem.u8, &t->train_plan.input), "image");
    if (rc == 0)
        rc = graph_forward(t->graph, t->dev, GRAPH_TRAIN, &t->mem.train);
    if (rc < 0)
        return err_add(rc, "rank %u: forward", t->rank);
    k_detect_loss_t loss;
    head_loss(&t->train_plan, t->o, graph_classes(t->graph), t->batch.max_gt, &t->mem, &loss);
    if ((rc = trainer_check(t, ops->detect_loss(t->dev, &loss), "loss")) < 0)
        return rc;
    board_set_phase(t->w->page, BOARD_BACKWARD);
    rc = graph_backward(t->graph, t->dev, &t->mem.train);
    if (rc < 0)
        return err_add(rc, "rank %u: backward", t->rank);
    t->progress.batches++;
    return 0;
}

int step_items(trainer_t *t, float items[4])
{
    return trainer_download(t, items, t->mem.items, 4 * sizeof(float));
}

/* The hyper-parameters of this update, in device memory. */
static int upload_hyper(trainer_t *t)
{
    const schedule_point_t *p = &t->progress.point;
    k_hyper_t *h = &t->hyper;
    int adamw = t->schedule.optimizer == OPT_OPTIM_ADAMW;
    double step = (double)(t->progress.opt_steps + 1);
    for (int i = 0; i < 3; i++)
        h->lr[i] = (float)p->lr[i];
    /* Warm-up drives SGD's momentum; AdamW has none of that name, beta1 stays (facts/yolo.md 4.1).
     */
    double beta1 = adamw ? t->schedule.momentum : p->momentum;
    h->momentum = (float)beta1;
    h->bias1 = (float)(1.0 - pow(beta1, step));
    h->bias2 = (float)(1.0 - pow(0.999, step));
    h->first_step = t->progress.opt_steps == 0;
    h->ema_decay = (float)schedule_ema(t->progress.updates + 1);
    return trainer_upload(t, t->mem.hyper, h, sizeof *h);
}

static int update_groups(trainer_t *t)
{
    const k_ops_t *ops = t->ops;
    const memory_map_t *m = &t->mem;
    int rc = ops->grad_norm(t->dev, m->train.grads, t->sizes->weights, m->hyper, m->norm);
    for (int g = 0; rc == 0 && g < GRAPH_GROUPS; g++) {
        uint64_t count = t->sizes->group_count[g], at = t->sizes->group_first[g] * sizeof(float);
        k_at w = m->train.weights + at, dw = m->train.grads + at;
        rc = m->v == K_NONE
                 ? ops->sgd(t->dev, w, dw, m->m + at, count, g, m->hyper, m->norm)
                 : ops->adamw(t->dev, w, dw, m->m + at, m->v + at, count, g, m->hyper, m->norm);
    }
    if (rc == 0)
        rc = ops->ema(t->dev, m->train.weights, m->ema.weights, t->sizes->weights, m->hyper);
    if (rc == 0)
        rc = ops->ema(t->dev, m->train.buffers, m->ema.buffers, t->sizes->buffers, m->hyper);
    return trainer_check(t, rc, "optimiser");
}

int step_update(trainer_t *t, int *asked)
{
    t->flags[0] = trainer_wants_stop(t) ? 1.0f : 0.0f;
    t->flags[1] = save_is_due(t) ? 1.0f : 0.0f;
    int rc = trainer_upload(t, t->mem.extra, t->flags, sizeof t->flags);
    /* Gradients are summed, not averaged: each rank's loss is times its batch (facts/yolo.md 3.2).
     */
    if (rc == 0)
        rc = collective_allreduce(t->coll, t->dev, t->mem.train.grads,
                                  t->sizes->weights + MEMORY_EXTRA);
    board_set_phase(t->w->page, BOARD_UPDATE);
    if (rc == 0)
        rc = upload_hyper(t);
    if (rc == 0)
        rc = update_groups(t);
    if (rc < 0)
        return rc;
    t->progress.opt_steps++;
    t->progress.updates++;
    float agreed[2] = {0};
    rc = trainer_download(t, agreed, t->mem.extra, sizeof agreed);
    *asked = (agreed[0] > 0 ? TRAINER_STOP : 0) | (agreed[1] > 0 ? TRAINER_SAVE : 0);
    return rc;
}

/* Without an update there is no all-reduce to carry the flag. */
static int agree_on_stop(trainer_t *t, int *asked)
{
    double flag = trainer_wants_stop(t);
    int rc = collective_sum(t->coll, &flag, 1);
    *asked = flag > 0 ? TRAINER_STOP : 0;
    return rc;
}

static int not_finite(const trainer_t *t, const plan_batch_t *b, const float items[4])
{
    char samples[256] = "";
    size_t used = 0;
    for (int32_t i = 0; i < t->batch.n && used + 24 < sizeof samples; i++)
        used += (size_t)snprintf(samples + used, sizeof samples - used, "%s%u", i ? ", " : "",
                                 t->batch.samples[i]);
    return err_set(
        ERR_FAILED,
        "rank %u: the loss is not finite (box %g, cls %g, dfl %g) in epoch %u, step %u of "
        "%u, samples %s of the training list: lower lr0 or raise warmup_epochs, or look at "
        "these images' labels",
        t->rank, (double)items[0], (double)items[1], (double)items[2], b->epoch + 1, b->step + 1,
        b->steps, samples);
}

static int take_items(trainer_t *t, const plan_batch_t *b)
{
    float items[4];
    int rc = step_items(t, items);
    if (rc < 0)
        return rc;
    if (!isfinite(items[0]) || !isfinite(items[1]) || !isfinite(items[2]))
        return not_finite(t, b, items);
    trainer_items_t *mean = &t->items;
    if (plan_position(t->plan, b, 0, 0) == 0) /* an epoch that goes on has a mean already */
        *mean = (trainer_items_t){0};
    mean->steps++;
    for (int i = 0; i < 3; i++)
        mean->mean[i] += (items[i] - mean->mean[i]) / mean->steps;
    return 0;
}

static void count_step(trainer_t *t, const plan_batch_t *b, uint64_t took_ns)
{
    board_page_t *page = t->w->page;
    atomic_store_explicit(&page->epoch, b->epoch, memory_order_relaxed);
    atomic_store_explicit(&page->step, b->step, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->steps_done, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->images_done, (uint64_t)t->batch.n, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->step_ns, took_ns, memory_order_relaxed);
    /* A rank may be ten of the longest steps late before the others give it up (design 7). */
    if (took_ns > t->longest_step_ns) {
        t->longest_step_ns = took_ns;
        double patience = 10.0 * (double)took_ns / 1e9;
        collective_deadline(t->coll, patience > t->o->hang_timeout ? patience : t->o->hang_timeout);
    }
}

int step_train(trainer_t *t, const plan_batch_t *b, int *asked)
{
    *asked = 0;
    int rc = batch_take(t, b);
    if (rc < 0)
        return rc;
    uint64_t begun = clock_ns();
    if (t->start_ns == 0)
        t->start_ns = begun;
    int64_t ni = (int64_t)b->step + (int64_t)t->schedule.steps * b->epoch;
    schedule_at(&t->schedule, (uint64_t)ni, &t->progress.point);
    if ((rc = step_compute(t)) < 0)
        return rc;
    /* facts/yolo.md 4.5 */
    if (ni - t->progress.last_opt_step >= t->progress.point.accumulate) {
        rc = step_update(t, asked);
        t->progress.last_opt_step = ni;
    } else {
        rc = agree_on_stop(t, asked);
    }
    t->progress.last_ni = ni;
    if (rc == 0)
        rc = take_items(t, b);
    if (rc < 0)
        return rc;
    count_step(t, b, clock_ns() - begun);
    report_progress(t, b);
    return t->poll(t);
}

int step_gather_stream(trainer_t *t)
{
    double parts[STREAM_PARTS];
    const ring_t *ring = t->w->rings[t->rank];
    if (t->ranks == 1 || !ring || !ring_get_config(ring)->digest)
        return 0;
    stream_split(&t->progress.stream, parts);
    int rc = collective_sum(t->coll, parts, STREAM_PARTS);
    t->progress.stream = (stream_digest_t){0, 0};
    if (rc == 0 && t->rank == 0)
        t->progress.stream = stream_join(parts);
    return rc;
}
