#include "trainer/validate.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/batch.h"
#include "trainer/head.h"
#include "trainer/pass.h"
#include "trainer/report.h"
#include "trainer/step.h"

#include <stdlib.h>
#include <string.h>

/* Places in trainer_val_t.sums behind the ground truths of each class. */
enum { SUM_BOX = 0, SUM_BATCHES = 3, SUM_IMAGES = 4, SUMS = 5 };

static double *sums_behind(trainer_t *t)
{
    return t->val.sums + graph_classes(t->graph);
}

int validate_begin(trainer_t *t)
{
    board_set_phase(t->w->page, BOARD_VALIDATE);
    if (t->start_ns == 0) /* a resume that begins with a validation */
        t->start_ns = clock_ns();
    t->val.n_rows = 0;
    memset(t->val.sums, 0, ((size_t)graph_classes(t->graph) + SUMS) * sizeof *t->val.sums);
    int rc = step_settle(t);
    /* The convolutions' copy is the moving average's until validate_end. */
    if (rc == 0)
        rc = pass_cast(t, t->mem.ema.weights);
    if (rc < 0 || t->ranks == 1)
        return rc;
    uint64_t bytes = t->mem.buffer_bytes;
    void *host = malloc(bytes);
    if (!host)
        return err_set(ERR_ENV, "rank %u: out of memory for BN statistics", t->rank);
    rc = t->rank == 0 ? trainer_download(t, host, t->mem.ema.buffers, bytes) : 0;
    if (rc == 0)
        rc = collective_broadcast(t->coll, host, bytes, 0);
    if (rc == 0 && t->rank != 0)
        rc = trainer_upload(t, t->mem.ema.buffers, host, bytes);
    free(host);
    return rc;
}

/* Shapes change from batch to batch; a plan is made only when one does. */
static int plan_for(trainer_t *t)
{
    trainer_val_t *v = &t->val;
    const batch_t *b = &t->batch;
    if (v->n == b->n && v->h == b->h && v->w == b->w)
        return 0;
    int rc = graph_plan(t->graph, t->dev, GRAPH_INFER, t->mem.format, b->n, b->h, b->w,
                        t->mem.activation, &v->plan);
    if (rc == 0 && v->plan.activation_bytes > t->mem.activation_bytes)
        rc = err_set(ERR_FAILED, "%d images of %dx%d need more memory than was planned", b->n, b->w,
                     b->h);
    v->n = rc == 0 ? b->n : 0;
    v->h = b->h;
    v->w = b->w;
    return rc;
}

static int suppress(trainer_t *t, float *items)
{
    const k_ops_t *ops = t->ops;
    trainer_val_t *v = &t->val;
    k_detect_loss_t loss;
    k_nms_t nms;
    int rc = 0;
    head_loss(&v->plan, t->o, graph_classes(t->graph), t->batch.max_gt,
              &t->mem.batch[trainer_turn(t)], &t->mem, &loss);
    head_nms(&v->plan, t->o, graph_classes(t->graph), &t->mem, &nms);
    for (int i = 0; i < K_LEVELS; i++)
        loss.dbox[i].at = loss.dcls[i].at = K_NONE;
    if (items)
        rc = trainer_check(t, ops->detect_loss(t->dev, &loss), "validation loss");
    if (rc == 0)
        rc = trainer_check(t, ops->nms(t->dev, &nms), "suppression");
    return rc;
}

int validate_infer(trainer_t *t, float items[4], uint64_t times[2])
{
    const k_ops_t *ops = t->ops;
    trainer_val_t *v = &t->val;
    uint64_t began = clock_ns(), through;
    int rc = plan_for(t);
    if (rc == 0)
        rc = trainer_check(t, ops->image(t->dev, t->mem.batch[trainer_turn(t)].u8, &v->plan.input),
                           "image");
    if (rc == 0)
        rc = graph_forward(t->graph, t->dev, GRAPH_INFER, &t->mem.ema, NULL);
    if (rc == 0 && times)
        rc = trainer_drain(t, K_STREAM_MAIN);
    through = clock_ns();
    if (rc == 0)
        rc = suppress(t, items);
    if (rc == 0)
        rc = batch_used(t);
    if (rc < 0)
        return rc;
    size_t n = (size_t)t->batch.n, dets = n * (size_t)t->mem.max_det;
    if (items)
        rc = trainer_download(t, items, t->mem.items, 4 * sizeof(float));
    if (rc == 0)
        rc = trainer_download(t, v->counts, t->mem.det_count, n * sizeof *v->counts);
    if (rc == 0)
        rc = trainer_download(t, v->dets, t->mem.dets, dets * sizeof *v->dets);
    if (times) {
        times[0] += through - began;
        times[1] += clock_ns() - through;
    }
    return rc;
}

static int rows_reserve(trainer_val_t *v, uint64_t more)
{
    if (v->n_rows + more <= v->room)
        return 0;
    uint64_t room = 2 * v->room > v->n_rows + more ? 2 * v->room : v->n_rows + more + 4096;
    ap_row_t *grown = realloc(v->rows, room * sizeof *grown);
    if (!grown)
        return err_set(ERR_ENV, "validation: out of memory for %llu detections",
                       (unsigned long long)room);
    v->rows = grown;
    v->room = room;
    return 0;
}

int validate_match(trainer_t *t, int32_t i)
{
    trainer_val_t *v = &t->val;
    const batch_t *b = &t->batch;
    const k_gt_t *gts = b->gts + (size_t)i * (size_t)b->max_gt;
    int32_t n = v->counts[i];
    if (n < 0 || n > t->mem.max_det)
        return err_set(ERR_FAILED, "suppression returned %d detections of at most %d", n,
                       t->mem.max_det);
    int rc = rows_reserve(v, (uint64_t)n);
    if (rc == 0)
        rc = ap_match(v->dets + (size_t)i * (size_t)t->mem.max_det, n, gts, b->counts[i],
                      v->rows + v->n_rows);
    if (rc < 0)
        return rc;
    v->n_rows += (uint64_t)n;
    for (int32_t k = 0; k < b->counts[i]; k++)
        v->sums[(int32_t)gts[k].cls] += 1;
    return 0;
}

static int run_batch(trainer_t *t)
{
    float items[4];
    int rc = validate_infer(t, items, NULL);
    for (int32_t i = 0; rc == 0 && i < t->batch.n; i++)
        rc = validate_match(t, i);
    if (rc < 0)
        return rc;
    double *sums = sums_behind(t);
    for (int i = 0; i < 3; i++)
        sums[SUM_BOX + i] += items[i];
    sums[SUM_BATCHES] += 1;
    sums[SUM_IMAGES] += t->batch.n;
    return 0;
}

int validate_batch(trainer_t *t, const plan_batch_t *b, int *asked)
{
    board_page_t *page = t->w->page;
    double flags[2] = {0};
    int rc = batch_take(t, b);
    board_set_phase(page, BOARD_VALIDATE);
    board_progress(page, b->step, b->steps);
    atomic_store_explicit(&page->epoch, b->epoch, memory_order_relaxed);
    atomic_store_explicit(&page->step, b->step, memory_order_relaxed);
    if (rc == 0 && t->batch.n > 0)
        rc = run_batch(t);
    if (rc < 0)
        return err_add(rc, "validation after epoch %u, batch %u of %u", b->epoch + 1, b->step + 1,
                       b->steps);
    atomic_fetch_add_explicit(&page->images_done, (uint64_t)t->batch.n, memory_order_relaxed);
    board_progress(page, b->step + 1, b->steps);
    report_progress(t, b);
    rc = t->poll(t);
    flags[0] = trainer_wants_stop(t);
    /* Gradients of an accumulation that is not finished are summed for a checkpoint, which may round
     * otherwise. The epoch's end does so in any case, unless save=False: then it waits for the next
     * optimiser step. */
    flags[1] = (t->o->save || t->progress.last_ni == t->progress.last_opt_step) && save_is_due(t);
    if (rc == 0)
        rc = collective_sum(t->coll, flags, 2);
    *asked = (flags[0] > 0 ? TRAINER_STOP : 0) | (flags[1] > 0 ? TRAINER_SAVE : 0);
    return rc;
}

static int compute_on_rank0(trainer_t *t, const void *rows, uint64_t n_rows, ap_result_t *ap)
{
    int32_t nc = graph_classes(t->graph);
    uint64_t *per_class = malloc((size_t)nc * sizeof *per_class), labels = 0;
    if (!per_class)
        return err_set(ERR_ENV, "validation: out of memory for %d classes", nc);
    for (int32_t c = 0; c < nc; c++) {
        per_class[c] = (uint64_t)t->val.sums[c];
        labels += per_class[c];
    }
    int rc = ap_compute(rows, n_rows, per_class, nc, ap);
    ap->labels = labels;
    ap->images = (uint64_t)sums_behind(t)[SUM_IMAGES];
    free(per_class);
    return rc;
}

int validate_end(trainer_t *t, ap_result_t *ap, double val_items[3])
{
    void *all = NULL;
    uint64_t bytes[WIRE_RANKS], total = 0;
    memset(ap, 0, sizeof *ap);
    int rc = collective_sum(t->coll, t->val.sums, (uint32_t)graph_classes(t->graph) + SUMS);
    if (rc == 0)
        rc = collective_gather(t->coll, t->val.rows, t->val.n_rows * sizeof(ap_row_t), &all, bytes);
    if (rc < 0)
        return err_add(rc, "rank %u: gathering the validation", t->rank);
    /* facts/yolo.md 6.2 averages the ranks' sums and divides by a rank's batch count; the mean over
     * all batches is the same number where all ranks have as many, and right where the last have
     * none. */
    const double *sums = sums_behind(t);
    for (int i = 0; i < 3; i++)
        val_items[i] = sums[SUM_BATCHES] > 0 ? sums[SUM_BOX + i] / sums[SUM_BATCHES] : 0;
    if (t->rank == 0) {
        for (uint32_t r = 0; r < t->ranks; r++)
            total += bytes[r];
        rc = compute_on_rank0(t, all, total / sizeof(ap_row_t), ap);
    }
    free(all);
    return rc < 0 ? rc : pass_cast(t, t->mem.train.weights);
}
