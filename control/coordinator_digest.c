/* sluice digest: the coordinator reads the rings with the trainer's calls and prints what it sees.
 *
 * A batch's digest folds its cells' digests in order of cell. An epoch's is control/stream's, over
 * its training cells; the stream's chains those of the epochs.
 */
#include "control/coordinator_state.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdlib.h>

enum { DIGEST_WAIT_MS = 10, DIGEST_SLICE_NS = 50000000 };

static int end_epoch(coordinator_t *c, uint32_t epoch)
{
    uint64_t digest = stream_value(&c->epoch_digest);
    c->stream = stream_chain(c->stream, &c->epoch_digest);
    c->epoch_digest = (stream_digest_t){0, 0};
    return c->view->stream ? c->view->stream(c->view->user, epoch, digest) : 0;
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
        if (b->phase == PLAN_TRAIN)
            stream_fold(&c->epoch_digest, position, c->plan.n_train, m->digest);
    }
    if (rc == 0 && cells && c->view->batch)
        rc = c->view->batch(c->view->user, &out);
    free(samples);
    return rc;
}

/* The next rank's turn; behind the last rank the next batch's. */
static int advance(coordinator_t *c, const plan_batch_t *b)
{
    ring_t *ring = c->rings[c->digest_rank];
    plan_batch_t opened = plan_locate(&c->plan, c->digest_seq + c->ring_config.depth);
    ring_release(ring, c->digest_seq, plan_cells(&c->plan, &opened, c->digest_rank));
    if (++c->digest_rank < c->ranks)
        return 0;
    c->digest_rank = 0;
    c->digest_seq++;
    return b->phase == PLAN_TRAIN && b->step + 1 == b->steps ? end_epoch(c, b->epoch) : 0;
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
        if (rc == 0)
            rc = advance(c, &b);
        if (rc < 0) {
            run_fail(c, rc, "%s", err_text());
            return;
        }
    }
}
