#include "trainer/schedule.h"

#include <math.h>
#include <string.h>

/* Python's round(x): half to even (the default rounding mode of rint). */
static double round_even(double x)
{
    return rint(x);
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* max(round(nbs / batch), 1) (facts/yolo.md 4.2). */
static uint32_t base_accumulate(uint32_t nbs, uint32_t batch)
{
    double a = round_even((double)nbs / batch);
    return a < 1 ? 1 : (uint32_t)a;
}

/* optimizer=auto (facts/yolo.md 4.1, 8.3's rule): a long run gets SGD, a short one AdamW. lr0 and
 * the optimiser's momentum are chosen here; momentum_end stays what the user's momentum says, so
 * that SGD ends its warm-up there and not at 0.9. */
static void choose_auto(schedule_t *s, uint32_t n_train, uint32_t nc)
{
    uint64_t chunk = s->batch > s->nbs ? s->batch : s->nbs;
    uint64_t iterations = (n_train + chunk - 1) / chunk * s->epochs;
    if (iterations > 10000) {
        s->optimizer = OPT_OPTIM_SGD;
        s->lr0 = 0.01;
    } else {
        s->optimizer = OPT_OPTIM_ADAMW;
        s->lr0 = round_even(0.002 * 5 / (4.0 + nc) * 1e6) / 1e6;
    }
    s->momentum = 0.9;
    s->warmup_bias_lr = 0;
}

void schedule_init(schedule_t *s, const options_t *o, uint32_t n_train, uint32_t steps, uint32_t nc)
{
    memset(s, 0, sizeof *s);
    s->optimizer = o->optimizer;
    s->lr0 = o->lr0;
    s->momentum = s->momentum_end = o->momentum;
    s->warmup_momentum = o->warmup_momentum;
    s->warmup_bias_lr = o->warmup_bias_lr;
    s->lrf = o->lrf;
    s->cos_lr = o->cos_lr;
    s->steps = steps > 0 ? steps : 1;
    s->epochs = (uint32_t)o->epochs;
    s->batch = (uint32_t)o->batch;
    s->nbs = (uint32_t)o->nbs;
    if (s->optimizer == OPT_OPTIM_AUTO)
        choose_auto(s, n_train, nc);
    s->weight_decay = o->weight_decay * s->batch * base_accumulate(s->nbs, s->batch) / s->nbs;
    double warm = least(o->warmup_epochs, (double)s->epochs - 1) * s->steps;
    s->warmup_steps = warm > 0 ? (uint32_t)round_even(warm) : 0;
}

double schedule_factor(const schedule_t *s, uint32_t epoch)
{
    double x = (double)epoch / s->epochs;
    if (s->cos_lr)
        return (1 - cos(M_PI * x)) / 2 * (s->lrf - 1) + 1;
    return (x < 1 ? 1 - x : 0) * (1 - s->lrf) + s->lrf;
}

static double warm(double from, double to, double x)
{
    return from + (to - from) * x;
}

/* What a step of the warm-up sets stays until something else sets it (facts/yolo.md 4.3, 4.4):
 * momentum and accumulate for the rest of the run, the learning rates until the next epoch starts.
 * Computed from ni alone, so that a resumed run goes on with the values of an uninterrupted one. */
void schedule_at(const schedule_t *s, uint64_t ni, schedule_point_t *p)
{
    uint64_t epoch = ni / s->steps;
    uint64_t last = s->warmup_steps > 0 ? s->warmup_steps - 1 : 0;
    uint64_t at = ni < last ? ni : last;
    double x = s->warmup_steps > 0 ? (double)at / s->warmup_steps : 1;
    double lr = s->lr0 * schedule_factor(s, (uint32_t)epoch);

    p->lr[0] = p->lr[1] = p->lr[2] = lr;
    p->momentum = s->momentum;
    p->accumulate = base_accumulate(s->nbs, s->batch);
    if (s->warmup_steps == 0)
        return;
    double a = round_even(warm(1, (double)s->nbs / s->batch, x));
    p->accumulate = a < 1 ? 1 : (uint32_t)a;
    if (s->optimizer == OPT_OPTIM_SGD) /* AdamW's beta1 takes no part in the warm-up */
        p->momentum = warm(s->warmup_momentum, s->momentum_end, x);
    if (epoch == at / s->steps) {
        p->lr[0] = p->lr[1] = warm(0, lr, x);
        p->lr[2] = warm(s->warmup_bias_lr, lr, x);
    }
}

double schedule_ema(uint64_t updates)
{
    return 0.9999 * (1 - exp(-(double)updates / 2000));
}

void early_stop_init(early_stop_t *s, int32_t patience)
{
    s->best = 0;
    s->best_epoch = 0;
    s->patience = patience;
}

int early_stop_update(early_stop_t *s, int32_t epoch, double fitness)
{
    if (fitness > s->best || s->best == 0) {
        s->best_epoch = epoch;
        s->best = fitness;
    }
    return s->patience > 0 && epoch - s->best_epoch >= s->patience;
}
