#include "trainer/pass.h"

#include "shm/err.h"
#include "trainer/exchange.h"
#include "trainer/head.h"

int pass_shares_stats(const trainer_t *t)
{
    return t->o->sync_bn && t->ranks > 1;
}

static int on_stats(void *user, k_at at, uint64_t doubles)
{
    return exchange_stats(user, at, doubles);
}

static int on_ready(void *user, int32_t op)
{
    return exchange_ready(user, op);
}

static graph_hooks_t hooks_of(trainer_t *t)
{
    int shared = pass_shares_stats(t);
    return (graph_hooks_t){.stats = shared ? on_stats : NULL,
                           .ready = on_ready,
                           .user = t,
                           .ranks = shared ? (int)t->ranks : 1};
}

/* With shared statistics the whole batch is one: each rank's terms are divided by the target scores
 * of all, and count for all images. */
static int loss_of_all(trainer_t *t, k_detect_loss_t *loss)
{
    const k_ops_t *ops = t->ops;
    loss->scale = (float)t->plan->batch;
    int rc = trainer_check(t, ops->detect_assign(t->dev, loss), "assigning targets");
    if (rc == 0)
        rc = exchange_stats(t, loss->sum, 1);
    return rc < 0 ? rc : trainer_check(t, ops->detect_terms(t->dev, loss), "loss");
}

int pass_compute(trainer_t *t, int share)
{
    const k_ops_t *ops = t->ops;
    const memory_batch_t *batch = &t->mem.batch[trainer_turn(t)];
    const graph_hooks_t hooks = hooks_of(t);
    k_detect_loss_t loss;
    board_set_phase(t->w->page, BOARD_FORWARD);
    int rc = trainer_check(t, ops->image(t->dev, batch->u8, &t->train_plan.input), "image");
    if (rc == 0)
        rc = graph_forward(t->graph, t->dev, GRAPH_TRAIN, &t->mem.train, &hooks);
    if (rc < 0)
        return err_add(rc, "rank %u: forward", t->rank);
    head_loss(&t->train_plan, t->o, graph_classes(t->graph), t->batch.max_gt, batch, &t->mem,
              &loss);
    rc = pass_shares_stats(t) ? loss_of_all(t, &loss)
                              : trainer_check(t, ops->detect_loss(t->dev, &loss), "loss");
    if (rc < 0)
        return rc;
    board_set_phase(t->w->page, BOARD_BACKWARD);
    if (share)
        rc = exchange_begin(t);
    if (rc == 0)
        rc = graph_backward(t->graph, t->dev, &t->mem.train, &hooks);
    return rc < 0 ? err_add(rc, "rank %u: backward", t->rank) : 0;
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
    if (rc == 0 && m->format == K_F16)
        rc = ops->scale_update(t->dev, m->norm);
    return trainer_check(t, rc, "optimiser");
}

int pass_update(trainer_t *t)
{
    int rc = exchange_finish(t);
    board_set_phase(t->w->page, BOARD_UPDATE);
    if (rc == 0)
        rc = update_groups(t);
    return rc < 0 ? rc : pass_cast(t, t->mem.train.weights);
}

int pass_cast(trainer_t *t, k_at weights)
{
    const memory_map_t *m = &t->mem;
    const uint64_t first = t->sizes->group_first[GRAPH_WEIGHT] * sizeof(float);
    if (m->format == K_F32)
        return 0;
    int rc = t->ops->cast(t->dev, weights + first, m->train.compute, m->format,
                          t->sizes->group_count[GRAPH_WEIGHT]);
    return trainer_check(t, rc, "weights in the format of computation");
}
