#include "trainer/record.h"

#include "control/log.h"
#include "shm/err.h"
#include "trainer/exchange.h"
#include "trainer/pass.h"

#include <stdlib.h>

void record_init(trainer_t *t)
{
    const char *off = getenv("SLUICE_NO_GRAPHS");
    t->unrecorded = off && off[0] && off[0] != '0';
    if (t->unrecorded && t->ops->async && t->rank == 0)
        log_line(LOG_WARN, "SLUICE_NO_GRAPHS: steps are not recorded, and slower");
}

static int run_parts(trainer_t *t, int update)
{
    int rc = pass_compute(t, update);
    return rc == 0 && update ? pass_update(t) : rc;
}

/* The end of a recording is asked for whatever came of it: the stream stays in it otherwise. */
static int record_parts(trainer_t *t, int update, int32_t slot)
{
    exchange_recording(t, slot);
    int rc = trainer_check(t, t->ops->capture(t->dev, slot), "recording a step");
    if (rc == 0) {
        rc = run_parts(t, update);
        int end = t->ops->captured(t->dev);
        if (rc == 0)
            rc = trainer_check(t, end, "recording a step");
    }
    exchange_recording(t, -1);
    return rc;
}

int record_run(trainer_t *t, int update)
{
    const int32_t slot = trainer_turn(t) + (update ? TRAINER_TURNS : 0);
    const uint32_t bit = 1u << slot, kind = 1u << (update ? 1 : 0);
    if (t->unrecorded || !(t->warm & kind)) {
        t->warm |= kind;
        if (t->unrecorded &&
            atomic_load_explicit(&t->w->page->stage, memory_order_relaxed) < BOARD_STAGE_RUNNING)
            board_set_stage(t->w->page, BOARD_STAGE_RUNNING);
        return run_parts(t, update);
    }
    int rc = t->recorded & bit ? 0 : record_parts(t, update, slot);
    if (rc < 0)
        return rc;
    t->recorded |= bit;
    board_set_phase(t->w->page, BOARD_FORWARD);
    rc = trainer_check(t, t->ops->replay(t->dev, slot), "replaying a step");
    return rc < 0 ? rc : exchange_replayed(t, slot);
}
