#include "control/plan.h"

#include <string.h>

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

plan_batch_t plan_locate(const plan_t *plan, uint64_t seq)
{
    plan_batch_t b;
    memset(&b, 0, sizeof b);
    uint32_t train = plan_train_steps(plan), val = plan_val_steps(plan);
    uint64_t per_epoch = (uint64_t)train + (plan->val_every_epoch && plan->n_val ? val : 0);
    uint64_t ahead = seq / per_epoch, left = plan->epochs - plan->first_epoch;
    b.phase = PLAN_END;
    b.epoch = plan->epochs;
    if (ahead < left) {
        uint64_t at = seq % per_epoch;
        b.epoch = plan->first_epoch + (uint32_t)ahead;
        b.phase = at < train ? PLAN_TRAIN : PLAN_VAL;
        b.step = (uint32_t)(at < train ? at : at - train);
        b.steps = b.phase == PLAN_TRAIN ? train : val;
    } else if (!plan->val_every_epoch && left > 0 && seq - left * per_epoch < val) {
        /* Validation after the last epoch only. */
        b.epoch = plan->epochs - 1;
        b.phase = PLAN_VAL;
        b.step = (uint32_t)(seq - left * per_epoch);
        b.steps = val;
    }
    return b;
}

uint64_t plan_batches(const plan_t *plan)
{
    uint64_t epochs = plan->epochs - plan->first_epoch;
    uint64_t validated = plan->n_val == 0 ? 0 : plan->val_every_epoch ? epochs : epochs > 0;
    return epochs * plan_train_steps(plan) + validated * plan_val_steps(plan);
}

uint64_t plan_position(const plan_t *plan, const plan_batch_t *batch, uint32_t rank, uint32_t cell)
{
    if (batch->phase == PLAN_TRAIN)
        return (uint64_t)batch->step * plan->batch + (uint64_t)rank * (plan->batch / plan->ranks) +
               cell;
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

int plan_mosaic(const plan_t *plan, uint32_t epoch)
{
    return plan->close_mosaic == 0 || plan->close_mosaic > plan->epochs ||
           epoch < plan->epochs - plan->close_mosaic;
}
