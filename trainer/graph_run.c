/* Forward and backward of the operations, through the device's table. Nothing here allocates or
 * reads back. */
#include "trainer/graph_plan.h"

#include "shm/err.h"

typedef struct {
    const graph_t *g;
    k_dev_t *dev;
    const graph_schedule_t *s;
    const graph_memory_t *memory;
    const graph_hooks_t *hooks;
    int *hook_rc; /* of a hook that failed: its error is set already */
} run_t;

/* facts/yolo.md 1.2 */
static const float bn_momentum = 0.03f;

static k_at in_region(const graph_t *g, k_at region, int32_t param)
{
    return param < 0 || region == K_NONE ? K_NONE : region + g->params[param].first * sizeof(float);
}

static k_at weight_at(const run_t *r, int32_t param)
{
    return in_region(r->g, r->memory->weights, param);
}

/* Where a convolution reads its weights: the copy in the plan's format begins with their group. */
static k_at conv_weight_at(const run_t *r, int32_t param)
{
    if (r->s->format == K_F32)
        return weight_at(r, param);
    if (param < 0 || r->memory->compute == K_NONE)
        return K_NONE;
    uint64_t first = r->g->params[param].first - r->g->sizes.group_first[GRAPH_WEIGHT];
    return r->memory->compute + first * graph_size(r->s->format);
}

static k_at grad_at(const run_t *r, int32_t param)
{
    return in_region(r->g, r->memory->grads, param);
}

static k_conv_t conv_of(const graph_unit_t *u)
{
    return (k_conv_t){.k = u->k, .s = u->s, .c1 = u->c1, .c2 = u->c2};
}

static k_bn_t bn_of(const run_t *r, const graph_op_t *op, const graph_slot_t *slot)
{
    const graph_unit_t *u = &r->g->units[op->unit];
    const uint64_t c = (uint64_t)u->c2;
    return (k_bn_t){
        .gamma = weight_at(r, u->gamma),
        .beta = weight_at(r, u->beta),
        .running_mean = in_region(r->g, r->memory->buffers, u->mean),
        .running_var = in_region(r->g, r->memory->buffers, u->var),
        .mean = slot->kept,
        .invstd = slot->kept == K_NONE ? K_NONE : slot->kept + c * sizeof(float),
        .stats = slot->stats,
        .bwd_stats = slot->bwd_stats,
        .dgamma = grad_at(r, u->gamma),
        .dbeta = grad_at(r, u->beta),
        .eps = GRAPH_BN_EPS,
        .momentum = bn_momentum,
    };
}

static uint64_t pixel_count(const k_tensor_t *t)
{
    return (uint64_t)t->n * (uint64_t)t->h * (uint64_t)t->w;
}

/* Ranks that share statistics add theirs up; *count of one rank becomes that of all. */
static int share_stats(const run_t *r, k_at at, int32_t c, uint64_t *count)
{
    if (!r->hooks || !r->hooks->stats)
        return 0;
    *count *= (uint64_t)r->hooks->ranks;
    *r->hook_rc = r->hooks->stats(r->hooks->user, at, 2 * (uint64_t)c);
    return *r->hook_rc < 0 ? -1 : 0;
}

static int bn_statistics(const run_t *r, const k_bn_t *p, const k_tensor_t *x)
{
    const k_ops_t *k = r->dev->ops;
    uint64_t count = pixel_count(x);
    if (k->bn_stats(r->dev, p, x) < 0 || share_stats(r, p->stats, x->c, &count) < 0)
        return -1;
    return k->bn_finish(r->dev, p, x->c, count);
}

static int forward_bn(const run_t *r, const graph_op_t *op, const graph_slot_t *slot)
{
    const k_ops_t *k = r->dev->ops;
    const k_tensor_t *x = &r->s->value[op->x];
    const k_tensor_t *residual = op->extra < 0 ? NULL : &r->s->value[op->extra];
    const k_bn_t p = bn_of(r, op, slot);
    if (r->s->mode == GRAPH_TRAIN && bn_statistics(r, &p, x) < 0)
        return -1;
    return k->bn_apply(r->dev, &p, x, residual, &r->s->value[op->y], op->act,
                       r->s->mode == GRAPH_INFER);
}

static int forward_op(const run_t *r, int32_t i)
{
    const k_ops_t *k = r->dev->ops;
    const graph_op_t *op = &r->g->ops[i];
    const graph_slot_t *slot = &r->s->slot[i];
    const graph_unit_t *u = op->unit < 0 ? NULL : &r->g->units[op->unit];
    const k_tensor_t *x = &r->s->value[op->x], *y = &r->s->value[op->y];
    switch (op->kind) {
    case GRAPH_CONV: {
        const k_conv_t p = conv_of(u);
        return k->conv(r->dev, &p, x, conv_weight_at(r, u->weight), weight_at(r, u->bias), y,
                       slot->work);
    }
    case GRAPH_DWCONV: return k->dwconv(r->dev, x, conv_weight_at(r, u->weight), y);
    case GRAPH_BN: return forward_bn(r, op, slot);
    case GRAPH_MAXPOOL: return k->maxpool(r->dev, op->k, x, y, slot->kept);
    case GRAPH_UPSAMPLE: return k->upsample(r->dev, x, y);
    case GRAPH_COPY: return k->copy(r->dev, x, y, 0);
    case GRAPH_ATTENTION:
        return k->attention(r->dev, op->heads, op->kd, op->hd, x, y, &r->s->value[op->extra],
                            slot->kept, slot->work);
    case GRAPH_KINDS: break;
    }
    return -1;
}

static int backward_conv(const run_t *r, const graph_op_t *op, const graph_slot_t *slot)
{
    const k_ops_t *k = r->dev->ops;
    const graph_unit_t *u = &r->g->units[op->unit];
    const k_tensor_t *x = &r->s->value[op->x], *dy = &r->s->grad[op->y], *dx = &r->s->grad[op->x];
    const k_at w = conv_weight_at(r, u->weight), dw = grad_at(r, u->weight);
    const k_conv_t p = conv_of(u);
    if (u->depthwise) {
        if (k->dwconv_dw(r->dev, x, dy, dw) < 0)
            return -1;
        return slot->wants_dx ? k->dwconv_dx(r->dev, dy, w, dx, slot->acc_x) : 0;
    }
    if (k->conv_dw(r->dev, &p, x, dy, dw, grad_at(r, u->bias), slot->work_bwd) < 0)
        return -1;
    return slot->wants_dx ? k->conv_dx(r->dev, &p, dy, w, dx, slot->acc_x, slot->work_bwd) : 0;
}

/* The residual's gradient is dy itself; then dx takes dy's place (graph_gradients.c). */
static int backward_bn(const run_t *r, const graph_op_t *op, const graph_slot_t *slot)
{
    const k_ops_t *k = r->dev->ops;
    const k_tensor_t *x = &r->s->value[op->x], *dy = &r->s->grad[op->y];
    const k_bn_t p = bn_of(r, op, slot);
    if (op->extra >= 0 && op->extra != r->g->input &&
        k->copy(r->dev, dy, &r->s->grad[op->extra], slot->acc_extra) < 0)
        return -1;
    uint64_t count = pixel_count(x);
    if (k->bn_bwd_stats(r->dev, &p, x, dy, op->act) < 0 ||
        share_stats(r, p.bwd_stats, x->c, &count) < 0)
        return -1;
    return k->bn_bwd_apply(r->dev, &p, x, dy, dy, op->act, count);
}

static int backward_op(const run_t *r, int32_t i)
{
    const k_ops_t *k = r->dev->ops;
    const graph_op_t *op = &r->g->ops[i];
    const graph_slot_t *slot = &r->s->slot[i];
    const k_tensor_t *dy = &r->s->grad[op->y], *dx = &r->s->grad[op->x];
    for (int32_t z = 0; z < slot->n_zero; z++) {
        const k_tensor_t *t = &r->s->grad[slot->zero[z]];
        if (k->zero(r->dev, t->at, pixel_count(t) * (uint64_t)t->c * graph_size(t->dtype)) < 0)
            return -1;
    }
    switch (op->kind) {
    case GRAPH_CONV:
    case GRAPH_DWCONV: return backward_conv(r, op, slot);
    case GRAPH_BN: return backward_bn(r, op, slot);
    case GRAPH_MAXPOOL: return k->maxpool_dx(r->dev, op->k, dy, slot->kept, dx, slot->acc_x);
    case GRAPH_UPSAMPLE: return k->upsample_dx(r->dev, dy, dx, slot->acc_x);
    case GRAPH_COPY: return k->copy(r->dev, dy, dx, slot->acc_x);
    case GRAPH_ATTENTION:
        return k->attention_dx(r->dev, op->heads, op->kd, op->hd, &r->s->value[op->x],
                               &r->s->value[op->y], slot->kept, dy, &r->s->grad[op->extra], dx,
                               slot->work_bwd);
    case GRAPH_KINDS: break;
    }
    return -1;
}

static int failed(const run_t *r, int32_t i, const char *way)
{
    const graph_op_t *op = &r->g->ops[i];
    if (*r->hook_rc < 0)
        return err_add(*r->hook_rc, "operation %d %s", i, way);
    return err_set(ERR_FAILED, "model %s, row %d (%s), operation %d %s: %s", r->g->name, op->row,
                   r->g->rows[op->row].module, i, way, r->dev->ops->error(r->dev));
}

int graph_forward(graph_t *g, k_dev_t *dev, graph_mode_t mode, const graph_memory_t *memory,
                  const graph_hooks_t *hooks)
{
    int hook_rc = 0;
    const run_t r = {.g = g,
                     .dev = dev,
                     .s = g->schedule[mode],
                     .memory = memory,
                     .hooks = hooks,
                     .hook_rc = &hook_rc};
    if (!r.s)
        return err_set(ERR_FAILED, "model %s: forward without a plan", g->name);
    for (int32_t i = 0; i < g->n_ops; i++) {
        if (forward_op(&r, i) < 0)
            return failed(&r, i, "forward");
    }
    return 0;
}

int graph_backward(graph_t *g, k_dev_t *dev, const graph_memory_t *memory,
                   const graph_hooks_t *hooks)
{
    int hook_rc = 0, rc = 0;
    const run_t r = {.g = g,
                     .dev = dev,
                     .s = g->schedule[GRAPH_TRAIN],
                     .memory = memory,
                     .hooks = hooks,
                     .hook_rc = &hook_rc};
    if (!r.s || memory->grads == K_NONE)
        return err_set(ERR_FAILED, "model %s: backward without a plan or gradients", g->name);
    for (int32_t i = g->n_ops - 1; i >= 0; i--) {
        if (r.s->slot[i].runs && backward_op(&r, i) < 0)
            return failed(&r, i, "backward");
        if (hooks && hooks->ready && (rc = hooks->ready(hooks->user, i)) < 0)
            return rc;
    }
    return 0;
}
