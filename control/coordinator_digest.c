/* sluice digest: the coordinator reads the rings with the trainer's calls and prints what it sees.
 *
 * A batch's digest folds its cells' digests in order of cell. The stream's digest folds, epoch
 * after epoch, the digests of the training cells in order of position, those below n_train only:
 * the last batch wraps around to make itself full, and how far depends on the batch size, which the
 * stream must not.
 */
#include "control/coordinator_state.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdlib.h>

enum { DIGEST_WAIT_MS = 10, DIGEST_SLICE_NS = 50000000 };

int digest_begin(coordinator_t *c)
{
    c->position_digests = calloc(c->plan.n_train, sizeof *c->position_digests);
    if (!c->position_digests)
        return err_set(ERR_ENV, "no memory for the digests of %u images", c->plan.n_train);
    return 0;
}

static void fold_epoch(coordinator_t *c)
{
    for (uint32_t i = 0; i < c->plan.n_train; i++)
        c->stream = wire_mix(c->stream, c->position_digests[i]);
}

/* The cell is the one that the plan asks for; anything else would make the digests worthless. */
static int check_cell(const ring_cell_meta_t *m, const plan_batch_t *b, uint64_t position)
{
    if (m->phase == (uint32_t)b->phase && m->epoch == b->epoch && m->step == b->step &&
        m->position == position)
        return 0;
    return err_set(
        ERR_FAILED,
        "a loader filled epoch %u step %u position %llu (phase %u) where epoch %u step %u "
        "position %llu (phase %u) belongs",
        m->epoch, m->step, (unsigned long long)m->position, m->phase, b->epoch, b->step,
        (unsigned long long)position, (uint32_t)b->phase);
}

static int read_batch(coordinator_t *c, const plan_batch_t *b, uint32_t rank)
{
    ring_t *ring = c->rings[rank];
    uint32_t cells = plan_cells(&c->plan, b, rank);
    uint32_t *samples = calloc(cells ? cells : 1, sizeof *samples);
    if (!samples)
        return err_set(ERR_ENV, "no memory for a batch of %u images", cells);
    coordinator_batch_t out = {.epoch = b->epoch,
                               .step = b->step,
                               .rank = rank,
                               .validation = b->phase == PLAN_VAL,
                               .cells = cells,
                               .samples = samples};
    int rc = 0;
    for (uint32_t i = 0; i < cells && rc == 0; i++) {
        const ring_cell_meta_t *m = ring_meta(ring, c->digest_seq, i);
        uint64_t position = plan_position(&c->plan, b, rank, i);
        rc = check_cell(m, b, position);
        out.digest = wire_mix(out.digest, m->digest);
        samples[i] = m->sample;
        if (b->phase == PLAN_TRAIN && position < c->plan.n_train)
            c->position_digests[position] = m->digest;
    }
    if (rc == 0 && cells && c->view->batch)
        rc = c->view->batch(c->view->user, &out);
    free(samples);
    return rc;
}

/* The next rank's turn; behind the last rank the next batch's. */
static void advance(coordinator_t *c, const plan_batch_t *b)
{
    ring_t *ring = c->rings[c->digest_rank];
    plan_batch_t opened = plan_locate(&c->plan, c->digest_seq + c->ring_config.depth);
    ring_release(ring, c->digest_seq, plan_cells(&c->plan, &opened, c->digest_rank));
    if (++c->digest_rank < c->ranks)
        return;
    c->digest_rank = 0;
    c->digest_seq++;
    if (b->phase == PLAN_TRAIN && b->step + 1 == b->steps)
        fold_epoch(c);
}

void digest_pump(coordinator_t *c)
{
    uint64_t until = clock_ns() + DIGEST_SLICE_NS;
    while (c->state == RUN_TRAINING && clock_ns() < until) {
        plan_batch_t b = plan_locate(&c->plan, c->digest_seq);
        if (b.phase == PLAN_END) {
            c->epochs_done = c->plan.epochs;
            run_enter(c, RUN_LEAVING);
            return;
        }
        if (!ring_wait_batch(c->rings[c->digest_rank], c->digest_seq, DIGEST_WAIT_MS))
            return;
        int rc = read_batch(c, &b, c->digest_rank);
        if (rc < 0) {
            run_fail(c, rc, "%s", err_text());
            return;
        }
        advance(c, &b);
    }
}
