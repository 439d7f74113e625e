#include "trainer/bench_clock.h"

#include "shm/err.h"
#include "shm/futex.h"

int bench_stamp(bench_clock_t *c, int i)
{
    trainer_t *t = c->t;
    c->ns[i] = clock_ns();
    if (!t->ops->async)
        return 0;
    return trainer_check(t, t->ops->record(t->dev, EVENTS_BENCH + i, K_STREAM_MAIN), "a time");
}

int bench_await(bench_clock_t *c, int i)
{
    trainer_t *t = c->t;
    return t->ops->async ? trainer_await(t, EVENTS_BENCH + i) : trainer_look(t);
}

int bench_between(bench_clock_t *c, int from, int to, double *ms)
{
    trainer_t *t = c->t;
    if (!t->ops->async) {
        *ms = (double)(c->ns[to] - c->ns[from]) / 1e6;
        return 0;
    }
    *ms = (double)t->ops->elapsed(t->dev, EVENTS_BENCH + from, EVENTS_BENCH + to);
    return trainer_check(t, *ms < 0 ? -1 : 0, "a time");
}
