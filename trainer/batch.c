#include "trainer/batch.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/events.h"
#include "trainer/report.h"

#include <stdatomic.h>
#include <string.h>

enum { BATCH_SAY_MS = 10000 }; /* a wait longer than this is said, once a wait */

static const char *phase_word(uint32_t phase)
{
    return phase == PLAN_TRAIN ? "training" : phase == PLAN_VAL ? "validation" : "no phase";
}

/* Half of the stop's deadline has passed without data, or none comes any more: the step will not be
 * finished in time. */
static int stop_is_due(const trainer_t *t, uint64_t *asked_ns)
{
    if (!trainer_wants_stop(t))
        return 0;
    if (t->w->stop_message.why == WIRE_STOP_NO_DATA)
        return 1;
    if (*asked_ns == 0)
        *asked_ns = clock_ns();
    return (clock_ns() - *asked_ns) / 1000000 >= t->w->stop_message.deadline_ms / 2;
}

/* Whether the device still computes what it was given before: it is not waiting for the batch. */
static int device_busy(const trainer_t *t)
{
    const trainer_pending_t *last = &t->pending[(t->seq + 1) % TRAINER_TURNS];
    return t->ops->async && last->live &&
           t->ops->event(t->dev, EVENT_ENDS + (int32_t)((t->seq + 1) % TRAINER_TURNS), 0) == 1;
}

static int wait_ready(trainer_t *t, const plan_batch_t *b)
{
    ring_t *ring = t->w->rings[t->rank];
    board_page_t *page = t->w->page;
    atomic_store_explicit(&page->seq_waited, t->seq, memory_order_relaxed);
    if (ring_ready(ring, t->seq))
        return 0;
    board_set_phase(page, BOARD_WAIT_DATA);
    uint64_t since = clock_ns(), mark = since, asked = 0;
    int ready = 0, said = 0, rc = 0;
    while (rc == 0 && !ready) {
        ready = ring_wait_batch(ring, t->seq, trainer_nap_ms(t));
        uint64_t now = clock_ns();
        if (!device_busy(t))
            atomic_fetch_add_explicit(&page->wait_data_ns, now - mark, memory_order_relaxed);
        mark = now;
        if (ready)
            break;
        if (!said && (now - since) / 1000000 > BATCH_SAY_MS) {
            log_line(LOG_WARN, "waiting for data: batch %llu (%s, epoch %u, step %u of %u)",
                     (unsigned long long)t->seq, phase_word(b->phase), b->epoch + 1, b->step + 1,
                     b->steps);
            said = 1;
        }
        report_progress(t, b);
        rc = trainer_look(t);
        if (rc == 0 && stop_is_due(t, &asked))
            rc =
                err_set(ERR_STOPPED,
                        "rank %u stopped while it waited for batch %llu of epoch %u, which did not "
                        "come",
                        t->rank, (unsigned long long)t->seq, b->epoch + 1);
    }
    return rc;
}

/* The height and width that the plan gives every cell of the batch. */
static void expected_size(const trainer_t *t, const plan_batch_t *b, uint32_t n, uint32_t *h,
                          uint32_t *w)
{
    *h = *w = t->plan->imgsz;
    if (b->phase == PLAN_VAL)
        parts_shape(t->parts, t->w->catalog, (uint32_t)plan_position(t->plan, b, t->rank, 0), n,
                    t->plan->imgsz, h, w);
}

static int check_cell(const trainer_t *t, const plan_batch_t *b, uint32_t cell,
                      const ring_cell_meta_t *m, uint32_t h, uint32_t w)
{
    uint64_t position = plan_position(t->plan, b, t->rank, cell);
    if (m->phase != (uint32_t)b->phase || m->epoch != b->epoch || m->step != b->step ||
        m->position != position || m->height != h || m->width != w)
        return err_set(
            ERR_FAILED,
            "rank %u, batch %llu, cell %u: the loader wrote %s epoch %u step %u position "
            "%llu size %ux%u, the plan says %s epoch %u step %u position %llu size %ux%u: "
            "loaders and trainer disagree; use binaries of one build",
            t->rank, (unsigned long long)t->seq, cell, phase_word(m->phase), m->epoch + 1, m->step,
            (unsigned long long)m->position, m->width, m->height, phase_word(b->phase),
            b->epoch + 1, b->step, (unsigned long long)position, w, h);
    if (m->n_labels > (uint32_t)t->mem.max_gt)
        return err_set(ERR_FAILED, "rank %u, batch %llu, cell %u: %u labels, room for %d", t->rank,
                       (unsigned long long)t->seq, cell, m->n_labels, t->mem.max_gt);
    return 0;
}

/* Checks all cells; sets the batch's sizes. */
static int check_cells(trainer_t *t, const plan_batch_t *b, uint32_t n)
{
    ring_t *ring = t->w->rings[t->rank];
    batch_t *batch = &t->batch;
    uint32_t h, w;
    expected_size(t, b, n, &h, &w);
    batch->n = (int32_t)n;
    batch->h = (int32_t)h;
    batch->w = (int32_t)w;
    batch->max_gt = 1;
    batch->labels = 0;
    for (uint32_t i = 0; i < n; i++) {
        const ring_cell_meta_t *m = ring_meta(ring, t->seq, i);
        int rc = check_cell(t, b, i, m, h, w);
        if (rc < 0)
            return rc;
        batch->samples[i] = m->sample;
        batch->places[i] =
            (batch_place_t){(uint32_t)m->position, m->ratio, m->pad_left, m->pad_top};
        if (m->ledger > t->ledger_used)
            t->ledger_used = m->ledger;
        if (b->phase == PLAN_TRAIN && ring_get_config(ring)->digest)
            stream_fold(&t->progress.stream, m->position, t->plan->n_train, m->digest);
        batch->counts[i] = (int32_t)m->n_labels;
        batch->labels += m->n_labels;
        if (batch->counts[i] > batch->max_gt)
            batch->max_gt = batch->counts[i];
    }
    if (t->ops->async) /* a recorded step has one shape */
        batch->max_gt = t->mem.max_gt;
    return 0;
}

/* Normalised centre and size -> corners in network pixels (facts/yolo.md 3.1). */
static int convert_labels(trainer_t *t, uint32_t cell)
{
    batch_t *batch = &t->batch;
    const ring_label_t *l = ring_labels(t->w->rings[t->rank], t->seq, cell);
    k_gt_t *gt = batch->gts + (size_t)cell * (size_t)batch->max_gt;
    float w = (float)batch->w, h = (float)batch->h, nc = (float)trainer_classes(t);
    for (int32_t i = 0; i < batch->counts[cell]; i++) {
        if (!(l[i].cls >= 0 && l[i].cls < nc))
            return err_set(
                ERR_FAILED, "rank %u, batch %llu: sample %u has a label of class %g of %g", t->rank,
                (unsigned long long)t->seq, batch->samples[cell], (double)l[i].cls, (double)nc);
        gt[i].cls = l[i].cls;
        gt[i].x1 = (l[i].cx - l[i].w / 2) * w;
        gt[i].y1 = (l[i].cy - l[i].h / 2) * h;
        gt[i].x2 = (l[i].cx + l[i].w / 2) * w;
        gt[i].y2 = (l[i].cy + l[i].h / 2) * h;
    }
    memset(gt + batch->counts[cell], 0, (size_t)(batch->max_gt - batch->counts[cell]) * sizeof *gt);
    return 0;
}

/* Gives the copies to the device; the slot's bytes must stay until they are done. */
static int enqueue_copies(trainer_t *t)
{
    const batch_t *batch = &t->batch;
    const k_ops_t *ops = t->ops;
    const int turn = trainer_turn(t);
    const memory_batch_t *to = &t->mem.batch[turn];
    size_t stride = (size_t)batch->h * (size_t)batch->w * 3, n = (size_t)batch->n;
    const uint8_t *image = ring_image(t->w->rings[t->rank], t->seq, 0, stride);
    /* The last cell's place says whether the slot is large enough for all. */
    if (!ring_image(t->w->rings[t->rank], t->seq, (uint32_t)batch->n - 1, stride) ||
        n * stride > t->mem.u8_bytes)
        return err_set(ERR_FAILED, "rank %u, batch %llu: %d images of %dx%d do not fit a ring slot",
                       t->rank, (unsigned long long)t->seq, batch->n, batch->w, batch->h);
    int rc = ops->after(t->dev, K_STREAM_COPY, EVENT_FREE + turn);
    if (rc == 0)
        rc = ops->upload(t->dev, K_STREAM_COPY, to->u8, image, n * stride);
    if (rc == 0)
        rc = ops->upload(t->dev, K_STREAM_COPY, to->gt, batch->gts,
                         n * (size_t)batch->max_gt * sizeof *batch->gts);
    if (rc == 0)
        rc = ops->upload(t->dev, K_STREAM_COPY, to->gt_count, batch->counts,
                         n * sizeof *batch->counts);
    if (rc == 0)
        rc = ops->record(t->dev, EVENT_COPIED + turn, K_STREAM_COPY);
    t->copying[turn] = rc == 0;
    return trainer_check(t, rc, "upload of a batch");
}

/* Between the first and the last of these events the device has nothing to do but wait. */
static int await_copies(trainer_t *t)
{
    const k_ops_t *ops = t->ops;
    const int turn = trainer_turn(t);
    if (!ops->async)
        return trainer_drain(t, K_STREAM_COPY);
    int rc = ops->record(t->dev, EVENT_COMES + turn, K_STREAM_MAIN);
    if (rc == 0)
        rc = ops->after(t->dev, K_STREAM_MAIN, EVENT_COPIED + turn);
    if (rc == 0)
        rc = ops->record(t->dev, EVENT_BEGINS + turn, K_STREAM_MAIN);
    return trainer_check(t, rc, "waiting for a batch");
}

int batch_used(trainer_t *t)
{
    int rc = t->ops->record(t->dev, EVENT_FREE + trainer_turn(t), K_STREAM_MAIN);
    return trainer_check(t, rc, "the end of a batch");
}

int batch_poll(trainer_t *t)
{
    ring_t *ring = t->w->rings[t->rank];
    uint64_t seq;
    while (ring && t->dev && (seq = ring_tail(ring)) < t->taken) {
        const int turn = t->ops->async ? (int)(seq % TRAINER_TURNS) : 0;
        if (t->copying[turn]) {
            int rc = t->ops->event(t->dev, EVENT_COPIED + turn, 0);
            if (rc != 0)
                return rc == 1 ? 0 : trainer_check(t, rc, "upload of a batch");
            t->copying[turn] = 0;
        }
        plan_batch_t next = plan_locate(t->plan, seq + ring_get_config(ring)->depth);
        ring_release(ring, seq, plan_cells(t->plan, &next, t->rank));
    }
    return 0;
}

/* The host's buffers of this turn are the copies' until those are done. */
static int await_turn(trainer_t *t)
{
    const ring_t *ring = t->w->rings[t->rank];
    int rc = batch_poll(t);
    if (rc == 0 && t->copying[trainer_turn(t)])
        rc = trainer_await(t, EVENT_COPIED + trainer_turn(t));
    if (rc == 0)
        rc = batch_poll(t);
    if (rc == 0 && ring_tail(ring) + TRAINER_TURNS <= t->seq)
        rc = err_set(ERR_FAILED, "rank %u: batch %llu before batch %llu has left the ring", t->rank,
                     (unsigned long long)t->seq, (unsigned long long)ring_tail(ring));
    return rc;
}

int batch_take(trainer_t *t, const plan_batch_t *b)
{
    ring_t *ring = t->w->rings[t->rank];
    uint32_t n = plan_cells(t->plan, b, t->rank);
    int rc = await_turn(t);
    if (rc == 0)
        rc = wait_ready(t, b);
    if (rc < 0)
        return rc;
    if (ring_cells(ring, t->seq) != (int)n || n > (uint32_t)t->mem.cells)
        return err_set(ERR_FAILED, "rank %u, batch %llu has %d cells, the plan says %u", t->rank,
                       (unsigned long long)t->seq, ring_cells(ring, t->seq), n);
    t->batch = t->turns[trainer_turn(t)];
    t->batch.n = 0;
    t->batch.labels = 0;
    if (n > 0)
        rc = check_cells(t, b, n);
    for (uint32_t i = 0; rc == 0 && i < n; i++)
        rc = convert_labels(t, i);
    if (rc == 0 && n > 0)
        rc = enqueue_copies(t);
    if (rc == 0 && n > 0)
        rc = await_copies(t);
    if (rc < 0)
        return rc;
    t->taken = t->seq + 1;
    return batch_poll(t);
}
