/* Optimiser choice, learning rate, warm-up, accumulation, early stopping (facts/yolo.md 4). Pure.
 */
#ifndef SLUICE_TRAINER_SCHEDULE_H
#define SLUICE_TRAINER_SCHEDULE_H

#include "control/options.h"
#include "kernels/kernels.h"

#include <stdint.h>

typedef struct {
    opt_optimizer_t optimizer;          /* SGD or ADAMW: auto resolved by 8.3's rule, 4.1 */
    double lr0, momentum, weight_decay; /* weight_decay scaled by batch * accumulate / nbs */
    double warmup_bias_lr;
    uint32_t steps;        /* per epoch (nb) */
    uint32_t warmup_steps; /* nw */
    uint32_t epochs, batch, nbs;
    double lrf, warmup_momentum, momentum_end; /* warm-up drives momentum to momentum_end */
    int cos_lr;
} schedule_t;

void schedule_init(schedule_t *s, const options_t *o, uint32_t n_train, uint32_t steps,
                   uint32_t nc);
/* f(e) of facts/yolo.md 4.3. */
double schedule_factor(const schedule_t *s, uint32_t epoch);
/* State before iteration ni = step + steps * epoch: lr by group (0 weights, 1 norms, 2 biases),
 * momentum, accumulate. Depends on ni alone: what warm-up's last step set (momentum, accumulate)
 * stays after it. */
typedef struct {
    double lr[3], momentum;
    uint32_t accumulate;
} schedule_point_t;
void schedule_at(const schedule_t *s, uint64_t ni, schedule_point_t *p);
/* EMA decay d(u) (facts/yolo.md 4.6). */
double schedule_ema(uint64_t updates);

typedef struct {
    double best;
    int32_t best_epoch, patience; /* patience 0: never */
} early_stop_t;
void early_stop_init(early_stop_t *s, int32_t patience);
/* 1: stop now. Best rises when fitness > best or best == 0 (facts/yolo.md 4.7). */
int early_stop_update(early_stop_t *s, int32_t epoch, double fitness);

#endif
