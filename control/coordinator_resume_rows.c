/* What a resume keeps, changes and loses, a row each: pure, so that a test can walk the cases. */
#include "control/coordinator.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static const char kept[] = "kept", changed[] = "changed", lost[] = "lost";

typedef struct {
    coordinator_resume_row_t *rows;
    uint32_t n;
} rows_t;

__attribute__((format(printf, 4, 5))) static void row(rows_t *rows, const char *what,
                                                      const char *verdict, const char *fmt, ...)
{
    coordinator_resume_row_t *r = &rows->rows[rows->n++];
    va_list ap;
    r->what = what;
    r->verdict = verdict;
    va_start(ap, fmt);
    vsnprintf(r->text, sizeof r->text, fmt, ap);
    va_end(ap);
}

/* Batches that make an optimiser step after the warm-up (facts/yolo.md 4.2). */
static unsigned accumulate(int nbs, uint32_t batch)
{
    double a = rint((double)nbs / batch);
    return a < 1 ? 1 : (unsigned)a;
}

static void order_row(rows_t *rows, const plan_t *p)
{
    unsigned long long at = p->first_position;
    if (at == 0)
        row(rows, "order of images", kept, "from the beginning of epoch %u", p->first_epoch + 1);
    else if (at < p->n_train)
        row(rows, "order of images", kept, "from image %llu of %u of epoch %u on", at + 1,
            p->n_train, p->first_epoch + 1);
    else if (plan_validates(p, p->first_epoch))
        row(rows, "order of images", kept, "epoch %u is trained, its validation comes first",
            p->first_epoch + 1);
    else
        row(rows, "order of images", kept, "epoch %u is trained, and ends without a validation",
            p->first_epoch + 1);
}

static void batch_rows(rows_t *rows, const coordinator_resume_t *r)
{
    const plan_t *p = r->plan;
    uint32_t was = r->was->batch, pending = r->was->pending;
    const char *es = pending == 1 ? "" : "es";
    if (was == p->batch)
        row(rows, "batch", kept, "%u images", p->batch);
    else
        row(rows, "batch", changed,
            "%u images, before %u; an optimiser step has %u batches, before %u", p->batch, was,
            accumulate(r->nbs, p->batch), accumulate(r->nbs, was));
    if (pending && was == p->batch)
        row(rows, "gradients", kept, "of %u batch%s since the last optimiser step", pending, es);
    else if (pending)
        row(rows, "gradients", lost,
            "of %u batch%s since the last optimiser step: batches of another size do not add up "
            "to one",
            pending, es);
    uint32_t steps = plan_train_steps(p);
    uint32_t step = p->first_position < p->n_train ? plan_first_step(p, p->first_epoch) + 1 : steps;
    row(rows, "learning rate", was == p->batch ? kept : changed,
        "that of step %u of %u of epoch %u", step, steps, p->first_epoch + 1);
}

static void rank_rows(rows_t *rows, const coordinator_resume_t *r)
{
    uint32_t was = r->was->ranks, now = r->plan->ranks;
    if (was == now) {
        row(rows, "ranks", kept, "%u", now);
        row(rows, "BN statistics", kept, "of every rank");
        return;
    }
    row(rows, "ranks", changed, "%u, before %u", now, was);
    if (now > was)
        row(rows, "BN statistics", changed, "rank %u%s with those of rank 0", was,
            now - was > 1 ? " and those behind it begin" : " begins");
    else
        row(rows, "BN statistics", lost, "those of rank %u%s; the others are kept", now,
            was - now > 1 ? " and those behind it" : "");
}

/* The promise is for one rank: sums over ranks are rounded where a run is cut. */
static void bits_row(rows_t *rows, const coordinator_resume_t *r)
{
    const plan_t *p = r->plan;
    static const char what[] = "same weights";
    if (!r->deterministic)
        row(rows, what, lost, "not to the bit: deterministic=False");
    else if (p->ranks > 1 || r->was->ranks > 1)
        row(rows, what, lost,
            "not to the bit: batches are the same, sums over ranks may round in another place");
    else if (p->batch != r->was->batch)
        row(rows, what, lost, "not to the bit: the batch is another");
    else if (r->changed[0])
        row(rows, what, lost, "not to the bit: %s changed", r->changed);
    else if (r->threads != r->was->threads)
        row(rows, what, lost, "not to the bit: %u thread%s, before %u, split sums in other places",
            r->threads, r->threads == 1 ? "" : "s", r->was->threads);
    else
        row(rows, what, kept, "to the bit, on a processor of the same kind");
}

uint32_t coordinator_resume_rows(const coordinator_resume_t *r,
                                 coordinator_resume_row_t rows[COORDINATOR_RESUME_ROWS])
{
    rows_t t = {rows, 0};
    order_row(&t, r->plan);
    row(&t, "weights", kept,
        "with optimiser, averages (EMA), early stopping and the epoch's losses so far");
    batch_rows(&t, r);
    rank_rows(&t, r);
    if (r->threads == r->was->threads)
        row(&t, "threads", kept, "%u for each rank", r->threads);
    else
        row(&t, "threads", changed, "%u for each rank, before %u", r->threads, r->was->threads);
    if (r->ledger)
        row(&t, "substitutes", kept, "%u entr%s for images that could not be read", r->ledger,
            r->ledger == 1 ? "y" : "ies");
    bits_row(&t, r);
    return t.n;
}
