#include "control/plan.h"

#include "shm/err.h"

#include <string.h>

/* Sizes are bounded so that products of two of them stay within 64 bits, sums within 32. */
enum { PLAN_BATCH_MAX = 1 << 20, PLAN_RANKS_MAX = 1 << 10 };

int plan_check(const plan_t *p)
{
    int sizes = p->n_train >= 1 && p->n_train <= INT32_MAX && p->n_val <= INT32_MAX &&
                p->ranks >= 1 && p->ranks <= PLAN_RANKS_MAX && p->batch >= 1 &&
                p->batch <= PLAN_BATCH_MAX && p->batch % p->ranks == 0 && p->val_batch >= 1 &&
                p->val_batch <= PLAN_BATCH_MAX && p->imgsz >= 32 && p->imgsz % 32 == 0 &&
                p->imgsz <= PLAN_BATCH_MAX;
    int epochs = p->epochs >= 1 && p->epochs <= INT32_MAX && p->first_epoch <= p->epochs &&
                 p->first_position <= INT32_MAX && p->val_every_epoch <= 1;
    if (sizes && epochs)
        return 0;
    return err_set(ERR_FAILED,
                   "an impossible order of work: %u and %u images, %u ranks, batches of %u and %u, "
                   "%u pixels, epochs %u to %u",
                   p->n_train, p->n_val, p->ranks, p->batch, p->val_batch, p->imgsz, p->first_epoch,
                   p->epochs);
}

uint32_t plan_train_steps(const plan_t *plan)
{
    return (plan->n_train + plan->batch - 1) / plan->batch;
}

uint32_t plan_val_steps(const plan_t *plan)
{
    uint64_t round = (uint64_t)plan->val_batch * plan->ranks;
    return (uint32_t)((plan->n_val + round - 1) / round);
}

int plan_validates(const plan_t *plan, uint32_t epoch)
{
    return plan->n_val > 0 && (plan->val_every_epoch || epoch + 1 == plan->epochs);
}

/* Whether an epoch goes on in the middle. */
static int plan_goes_on(const plan_t *plan, uint32_t epoch)
{
    return epoch == plan->first_epoch && plan->first_position > 0;
}

uint32_t plan_first_step(const plan_t *plan, uint32_t epoch)
{
    if (!plan_goes_on(plan, epoch))
        return 0;
    /* A damaged position must not overflow a step's number. */
    uint64_t at = plan->first_position < plan->n_train ? plan->first_position : plan->n_train;
    return (uint32_t)(at / plan->batch);
}

uint32_t plan_end_step(const plan_t *plan, uint32_t epoch)
{
    if (!plan_goes_on(plan, epoch))
        return plan_train_steps(plan);
    if (plan->first_position >= plan->n_train)
        return plan_first_step(plan, epoch);
    uint64_t rest = plan->n_train - plan->first_position;
    return plan_first_step(plan, epoch) + (uint32_t)((rest + plan->batch - 1) / plan->batch);
}

/* Training batches that an epoch still has. */
static uint32_t plan_train_left(const plan_t *plan, uint32_t epoch)
{
    return plan_end_step(plan, epoch) - plan_first_step(plan, epoch);
}

static uint32_t plan_val_each(const plan_t *plan)
{
    return plan->val_every_epoch && plan->n_val ? plan_val_steps(plan) : 0;
}

plan_batch_t plan_locate(const plan_t *plan, uint64_t seq)
{
    plan_batch_t b;
    memset(&b, 0, sizeof b);
    b.phase = PLAN_END;
    b.epoch = plan->epochs;
    if (plan->first_epoch >= plan->epochs)
        return b;
    uint32_t val = plan_val_each(plan), epoch = plan->first_epoch;
    uint64_t whole = (uint64_t)plan_train_steps(plan) + val;
    uint64_t first = (uint64_t)plan_train_left(plan, epoch) + val, at = seq, ahead = 0;
    if (seq >= first) {
        ahead = 1 + (seq - first) / whole;
        at = (seq - first) % whole;
    }
    uint64_t left = plan->epochs - plan->first_epoch;
    if (ahead < left) {
        epoch += (uint32_t)ahead;
        uint32_t begin = plan_first_step(plan, epoch), end = plan_end_step(plan, epoch);
        b.epoch = epoch;
        b.phase = at < end - begin ? PLAN_TRAIN : PLAN_VAL;
        b.step = b.phase == PLAN_TRAIN ? begin + (uint32_t)at : (uint32_t)(at - (end - begin));
        b.steps = b.phase == PLAN_TRAIN ? end : val;
        return b;
    }
    /* Validation after the last epoch only. */
    uint64_t behind = seq - first - (left - 1) * whole;
    if (!plan->val_every_epoch && plan->n_val > 0 && behind < plan_val_steps(plan)) {
        b.epoch = plan->epochs - 1;
        b.phase = PLAN_VAL;
        b.step = (uint32_t)behind;
        b.steps = plan_val_steps(plan);
    }
    return b;
}

uint64_t plan_batches(const plan_t *plan)
{
    if (plan->first_epoch >= plan->epochs)
        return 0;
    uint64_t epochs = plan->epochs - plan->first_epoch;
    uint64_t validated = plan->n_val == 0 ? 0 : plan->val_every_epoch ? epochs : 1;
    return plan_train_left(plan, plan->first_epoch) + (epochs - 1) * plan_train_steps(plan) +
           validated * plan_val_steps(plan);
}

uint64_t plan_position(const plan_t *plan, const plan_batch_t *batch, uint32_t rank, uint32_t cell)
{
    if (batch->phase == PLAN_TRAIN) {
        uint64_t own = (uint64_t)rank * (plan->batch / plan->ranks) + cell;
        if (!plan_goes_on(plan, batch->epoch))
            return (uint64_t)batch->step * plan->batch + own;
        uint32_t steps = batch->step - plan_first_step(plan, batch->epoch);
        return plan->first_position + (uint64_t)steps * plan->batch + own;
    }
    return ((uint64_t)batch->step * plan->ranks + rank) * plan->val_batch + cell;
}

uint32_t plan_cells(const plan_t *plan, const plan_batch_t *batch, uint32_t rank)
{
    if (batch->phase == PLAN_END)
        return 0;
    if (batch->phase == PLAN_TRAIN)
        return plan->batch / plan->ranks;
    uint64_t first = plan_position(plan, batch, rank, 0);
    if (first >= plan->n_val)
        return 0;
    uint64_t rest = plan->n_val - first;
    return rest < plan->val_batch ? (uint32_t)rest : plan->val_batch;
}

uint64_t plan_consumed(const plan_t *plan, const plan_batch_t *batch)
{
    if (batch->phase != PLAN_TRAIN)
        return plan->n_train;
    uint64_t end = plan_position(plan, batch, 0, 0) + plan->batch;
    return end < plan->n_train ? end : plan->n_train;
}

int plan_mosaic(const plan_t *plan, uint32_t epoch)
{
    return plan->close_mosaic == 0 || plan->close_mosaic > plan->epochs ||
           epoch < plan->epochs - plan->close_mosaic;
}
