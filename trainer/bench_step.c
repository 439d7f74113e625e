#include "trainer/bench_step.h"

#include "shm/err.h"
#include "trainer/pass.h"
#include "trainer/record.h"
#include "trainer/step_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    BENCH_HIDE_MS = 40, /* of work before a pass, longer than the host takes to give the pass */
    BENCH_HIDE_MOST = 16,
    BENCH_COPIES = 5,
    BENCH_COPY_MOST = 1 << 30,
};

/* ---- steps ---- */

/* A step enqueued, with what a run does before and behind it. */
static int give_step(bench_t *b)
{
    trainer_t *t = &b->t;
    const int turn = trainer_turn(t);
    trainer_words_t *words = &t->words[turn];
    t->batch = t->turns[turn];
    schedule_at(&t->schedule, t->progress.opt_steps, &t->progress.point);
    int rc = t->poll(t);
    if (rc == 0)
        rc = step_tell(t);
    if (rc == 0)
        rc = record_run(t, 1);
    if (rc == 0)
        rc = trainer_check(t,
                           t->ops->download(t->dev, K_STREAM_MAIN, words->items, t->mem.items,
                                            sizeof words->items),
                           "items of a step");
    if (rc < 0)
        return rc;
    step_updated(t);
    t->seq++;
    return 0;
}

static int check_loss(const bench_t *b)
{
    const float *x = b->items;
    if (isfinite(x[0]) && isfinite(x[1]) && isfinite(x[2]))
        return 0;
    return err_set(ERR_FAILED, "bench: the loss is not finite (box %g, cls %g, dfl %g)",
                   (double)x[0], (double)x[1], (double)x[2]);
}

int bench_steps(bench_t *b)
{
    trainer_t *t = &b->t;
    const int32_t all = b->spec.warmup + b->spec.steps;
    int rc = bench_stamp(&b->clock, 0);
    /* Step i ends with stamp i + 1; two are under way at most, as in a run. */
    for (int32_t i = 0; rc == 0 && i <= all; i++) {
        const int last = i % BENCH_STAMPS, before = (i + BENCH_STAMPS - 1) % BENCH_STAMPS;
        if (i < all)
            rc = give_step(b);
        if (rc == 0 && i < all)
            rc = bench_stamp(&b->clock, (i + 1) % BENCH_STAMPS);
        if (rc == 0)
            rc = bench_await(&b->clock, last);
        if (rc == 0 && i > b->spec.warmup)
            rc = bench_between(&b->clock, before, last, &b->ms[i - b->spec.warmup - 1]);
    }
    if (rc == 0)
        rc = trainer_drain(t, K_STREAM_MAIN);
    if (rc < 0)
        return rc;
    memcpy(b->items, t->words[t->ops->async ? (t->seq - 1) % TRAINER_TURNS : 0].items,
           sizeof b->items);
    return check_loss(b);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const double *ms, int32_t n)
{
    double sorted[BENCH_STEPS];
    memcpy(sorted, ms, (size_t)n * sizeof *ms);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* ---- passes that are not recorded ---- */

/* Steps that keep the device busy while the host gives it the next pass. */
static int hide(bench_t *b, double step_ms)
{
    trainer_t *t = &b->t;
    int rc = 0, n = (int)(BENCH_HIDE_MS / (step_ms > 0.1 ? step_ms : 0.1)) + 1;
    if (!t->ops->async)
        return 0;
    for (int i = 0; rc == 0 && i < (n < BENCH_HIDE_MOST ? n : BENCH_HIDE_MOST); i++)
        rc = record_run(t, 1);
    return rc;
}

/* A whole step through the table of ops, up to the end of the device's work. */
static int pass(bench_t *b, bench_ops_t *ops, bench_mode_t mode, int32_t first, double step_ms)
{
    trainer_t *t = &b->t;
    int rc = t->poll(t);
    if (rc == 0 && mode != BENCH_LIST)
        rc = hide(b, step_ms);
    bench_ops_begin(ops, mode, first);
    if (rc == 0)
        rc = pass_compute(t, 1);
    if (rc == 0 && mode == BENCH_PHASES)
        rc = bench_stamp(&b->clock, BENCH_EXCHANGE);
    if (rc == 0)
        rc = pass_update(t);
    if (rc == 0 && mode == BENCH_PHASES)
        rc = bench_stamp(&b->clock, BENCH_END);
    if (rc == 0)
        rc = trainer_drain(t, K_STREAM_MAIN);
    return rc == 0 ? bench_ops_end(ops) : rc;
}

int bench_phases(bench_t *b, bench_ops_t *ops, double step_ms, double ms[BENCH_END])
{
    double each[BENCH_END][BENCH_ROUNDS];
    int rc = pass(b, ops, BENCH_LIST, 0, 0);
    for (int round = 0; rc == 0 && round < BENCH_ROUNDS; round++) {
        rc = pass(b, ops, BENCH_PHASES, 0, step_ms);
        for (int p = 0; rc == 0 && p < BENCH_END; p++)
            rc = bench_between(&b->clock, p, p + 1, &each[p][round]);
    }
    for (int p = 0; rc == 0 && p < BENCH_END; p++)
        ms[p] = bench_median(each[p], BENCH_ROUNDS);
    return rc;
}

int bench_operations(bench_t *b, bench_ops_t *ops, double step_ms)
{
    int rc = pass(b, ops, BENCH_LIST, 0, 0);
    for (int round = 0; rc == 0 && round < BENCH_ROUNDS; round++)
        for (int32_t first = 0; rc == 0 && first < ops->n; first += BENCH_WINDOW) {
            rc = pass(b, ops, BENCH_TIMES, first, step_ms);
            if (rc == 0)
                rc = bench_ops_take(ops, round);
        }
    return rc;
}

/* ---- memory ---- */

int bench_copy_rate(bench_t *b, double *rate)
{
    trainer_t *t = &b->t;
    uint64_t bytes = t->mem.activation_bytes / 2 / K_ALIGN * K_ALIGN;
    double least = INFINITY, ms = 0;
    int rc = 0;
    if (bytes > BENCH_COPY_MOST)
        bytes = BENCH_COPY_MOST;
    for (int i = 0; rc == 0 && i < BENCH_COPIES; i++) {
        rc = bench_stamp(&b->clock, 0);
        if (rc == 0)
            rc = trainer_check(
                t, t->ops->move(t->dev, t->mem.activation + bytes, t->mem.activation, bytes),
                "a copy");
        if (rc == 0)
            rc = bench_stamp(&b->clock, 1);
        if (rc == 0)
            rc = bench_await(&b->clock, 1);
        if (rc == 0)
            rc = bench_between(&b->clock, 0, 1, &ms);
        if (ms > 0 && ms < least)
            least = ms;
    }
    if (rc == 0 && !isfinite(least))
        rc = err_set(ERR_FAILED, "bench: a copy of %llu bytes took no time",
                     (unsigned long long)bytes);
    *rate = 2 * (double)bytes / (least / 1e3);
    return rc;
}

int bench_overhead(bench_t *b, uint64_t *bytes)
{
    trainer_t *t = &b->t;
    struct rusage usage;
    uint64_t left = 0, total = 0, held;
    if (t->ops->async) {
        int rc = trainer_check(t, t->ops->memory(t->dev, &left, &total), "device memory");
        if (rc < 0)
            return rc;
        held = b->free_before > left ? b->free_before - left : 0;
    } else {
        if (getrusage(RUSAGE_SELF, &usage) < 0)
            return err_sys(ERR_ENV, "bench: getrusage");
        held = (uint64_t)usage.ru_maxrss * 1024;
    }
    *bytes = held > t->mem.total ? held - t->mem.total : 0;
    return 0;
}
