#include "trainer/step.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/ahead.h"
#include "trainer/batch.h"
#include "trainer/exchange.h"
#include "trainer/pass.h"
#include "trainer/report.h"
#include "trainer/step_parts.h"

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
    /* facts/yolo.md 4.5: where torch's scaler begins. */
    const k_scaling_t scaling = {.scale = t->mem.format == K_F16 ? 65536.0f : 1.0f};
    if ((rc = trainer_upload(t, t->mem.norm, &scaling, sizeof scaling)) < 0)
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
    int rc = pass_compute(t, 0);
    if (rc == 0)
        rc = batch_used(t);
    t->progress.batches += rc == 0;
    return rc;
}

int step_items(trainer_t *t, float items[4])
{
    return trainer_download(t, items, t->mem.items, 4 * sizeof(float));
}

/* The hyper-parameters of this update. */
static void set_hyper(trainer_t *t)
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
    h->step = (float)step;
    h->ema_decay = (float)schedule_ema(t->progress.updates + 1);
}

int step_tell(trainer_t *t)
{
    trainer_words_t *words = &t->words[trainer_turn(t)];
    const k_ops_t *ops = t->ops;
    set_hyper(t);
    words->hyper = t->hyper;
    words->flags[0] = trainer_wants_stop(t) ? 1.0f : 0.0f;
    words->flags[1] = save_is_due(t) ? 1.0f : 0.0f;
    int rc = ops->upload(t->dev, K_STREAM_MAIN, t->mem.extra, words->flags, sizeof words->flags);
    if (rc == 0)
        rc = ops->upload(t->dev, K_STREAM_MAIN, t->mem.hyper, &words->hyper, sizeof words->hyper);
    return trainer_check(t, rc, "hyper-parameters");
}

void step_updated(trainer_t *t)
{
    t->progress.opt_steps++;
    t->progress.updates++;
}

int step_agreed(const float agreed[2])
{
    return (agreed[0] > 0 ? TRAINER_STOP : 0) | (agreed[1] > 0 ? TRAINER_SAVE : 0);
}

int step_update(trainer_t *t, int *asked)
{
    float agreed[2] = {0};
    int rc = step_tell(t);
    if (rc == 0)
        rc = exchange_begin(t);
    if (rc == 0)
        rc = pass_update(t);
    if (rc < 0)
        return rc;
    step_updated(t);
    rc = trainer_download(t, agreed, t->mem.extra, sizeof agreed);
    *asked = step_agreed(agreed);
    return rc;
}

int step_agree_on_stop(trainer_t *t, int *asked)
{
    double flag = trainer_wants_stop(t);
    int rc = collective_sum(t->coll, &flag, 1);
    *asked = flag > 0 ? TRAINER_STOP : 0;
    return rc;
}

static int not_finite(const trainer_t *t, const plan_batch_t *b, const batch_t *batch,
                      const float items[4])
{
    char samples[256] = "";
    size_t used = 0;
    for (int32_t i = 0; i < batch->n && used + 24 < sizeof samples; i++)
        used += (size_t)snprintf(samples + used, sizeof samples - used, "%s%u", i ? ", " : "",
                                 batch->samples[i]);
    return err_set(
        ERR_FAILED,
        "rank %u: the loss is not finite (box %g, cls %g, dfl %g) in epoch %u, step %u of "
        "%u, samples %s of the training list: lower lr0 or raise warmup_epochs, or look at "
        "these images' labels",
        t->rank, (double)items[0], (double)items[1], (double)items[2], b->epoch + 1, b->step + 1,
        b->steps, samples);
}

int step_take_items(trainer_t *t, const plan_batch_t *b, const batch_t *batch, const float items[4])
{
    if (!isfinite(items[0]) || !isfinite(items[1]) || !isfinite(items[2]))
        return not_finite(t, b, batch, items);
    trainer_items_t *mean = &t->items;
    if (plan_position(t->plan, b, 0, 0) == 0) /* an epoch that goes on has a mean already */
        *mean = (trainer_items_t){0};
    mean->steps++;
    /* With shared statistics a rank's items are its part of the whole batch's. */
    const double parts = pass_shares_stats(t) ? t->ranks : 1;
    for (int i = 0; i < 3; i++)
        mean->mean[i] += (items[i] * parts - mean->mean[i]) / mean->steps;
    return 0;
}

void step_count(trainer_t *t, const plan_batch_t *b, const batch_t *batch, uint64_t took_ns)
{
    board_page_t *page = t->w->page;
    atomic_store_explicit(&page->epoch, b->epoch, memory_order_relaxed);
    atomic_store_explicit(&page->step, b->step, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->steps_done, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->images_done, (uint64_t)batch->n, memory_order_relaxed);
    atomic_fetch_add_explicit(&page->step_ns, took_ns, memory_order_relaxed);
    /* A rank may be ten of the longest steps late before the others give it up (design 7). */
    if (took_ns > t->longest_step_ns) {
        t->longest_step_ns = took_ns;
        double patience = 10.0 * (double)took_ns / 1e9;
        collective_deadline(t->coll, patience > t->o->hang_timeout ? patience : t->o->hang_timeout);
    }
}

/* On a device that is done when it returns. */
static int step_now(trainer_t *t, const plan_batch_t *b, int update, int *asked)
{
    uint64_t begun = clock_ns();
    float items[4];
    int rc = step_compute(t);
    if (rc == 0)
        rc = update ? step_update(t, asked) : step_agree_on_stop(t, asked);
    if (rc == 0)
        rc = step_items(t, items);
    if (rc == 0)
        rc = step_take_items(t, b, &t->batch, items);
    if (rc == 0)
        step_count(t, b, &t->batch, clock_ns() - begun);
    return rc;
}

int step_settle(trainer_t *t)
{
    return t->ops->async ? ahead_settle(t) : 0;
}

/* The stop's sentence stays. */
static int stopped_after_all(trainer_t *t)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", err_text());
    int rc = step_settle(t);
    return rc < 0 ? rc : err_set(ERR_STOPPED, "%s", text);
}

int step_train(trainer_t *t, const plan_batch_t *b, int *asked)
{
    *asked = 0;
    int rc = batch_take(t, b);
    if (rc == ERR_STOPPED)
        return stopped_after_all(t);
    if (rc < 0)
        return rc;
    if (t->start_ns == 0)
        t->start_ns = clock_ns();
    int64_t ni = (int64_t)b->step + (int64_t)t->schedule.steps * b->epoch;
    schedule_at(&t->schedule, (uint64_t)ni, &t->progress.point);
    /* facts/yolo.md 4.5 */
    int update = ni - t->progress.last_opt_step >= t->progress.point.accumulate;
    if (update)
        t->progress.last_opt_step = ni;
    t->progress.last_ni = ni;
    rc = t->ops->async ? ahead_step(t, b, update, asked) : step_now(t, b, update, asked);
    if (rc < 0)
        return rc;
    report_progress(t, b);
    return trainer_look(t);
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
