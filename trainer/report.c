#include "trainer/report.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <string.h>
#include <time.h>

enum { REPORT_EVERY_NS = 250000000, REPORT_SEND_S = 10 };

double report_seconds(const trainer_t *t)
{
    double now = t->start_ns ? (double)(clock_ns() - t->start_ns) / 1e9 : 0;
    return t->progress.seconds + now;
}

static uint64_t load(_Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

void report_progress(trainer_t *t, const plan_batch_t *b)
{
    uint64_t now = clock_ns(), span = now - t->report.since_ns;
    if (!t->w->bus || span < REPORT_EVERY_NS)
        return;
    wire_progress_t m;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_PROGRESS, sizeof m);
    m.rank = t->rank;
    m.phase = (uint32_t)b->phase;
    m.epoch = b->epoch;
    m.step = b->step;
    m.steps = b->steps;
    m.instances = t->batch.labels;
    for (int i = 0; i < 3; i++) {
        m.items[i] = (float)t->items.mean[i];
        m.lr[i] = (float)t->progress.point.lr[i];
    }
    uint64_t images = load(&t->w->page->images_done), waited = load(&t->w->page->wait_data_ns);
    m.images_per_s = (double)(images - t->report.images) * 1e9 / (double)span;
    m.wait_share = (double)(waited - t->report.wait_ns) / (double)span;
    m.memory_bytes = t->mem.total;
    worker_send(t->w, &m, sizeof m);
    t->report = (trainer_report_t){.since_ns = now, .wait_ns = waited, .images = images};
}

void report_shares(const trainer_t *t)
{
    board_page_t *page = t->w->page;
    const uint64_t steps = load(&page->steps_done);
    if (steps == 0)
        return;
    const double span = (double)(clock_ns() - t->start_ns) / 1e9;
    const double step = (double)load(&page->step_ns) / 1e9;
    const double data = (double)load(&page->wait_data_ns) / 1e9;
    const double copy = (double)load(&page->wait_copy_ns) / 1e9;
    log_line(LOG_INFO,
             "%llu steps and their validations in %.1f s: %.2f ms a step, %.1f images/s in steps; "
             "waited for data %.2f s (%.1f %%), for copies %.3f s (%.2f %% of the steps' time)",
             (unsigned long long)steps, span, 1e3 * step / (double)steps,
             step > 0 ? (double)steps * t->plan->batch / t->plan->ranks / step : 0, data,
             span > 0 ? 100 * data / span : 0, copy, step > 0 ? 100 * copy / step : 0);
}

int report_send(trainer_t *t, const void *frame, size_t bytes)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    uint64_t since = clock_ns();
    if (!t->w->bus)
        return err_set(ERR_GONE, "there is no coordinator to tell");
    for (;;) {
        int rc = worker_send(t->w, frame, bytes);
        if (rc != ERR_TIMEOUT || (clock_ns() - since) / 1000000000ull >= REPORT_SEND_S)
            return rc;
        if ((rc = t->poll(t)) < 0)
            return rc;
        nanosleep(&pause, NULL);
    }
}

int report_epoch_end(trainer_t *t, const report_epoch_t *e)
{
    if (!t->w->bus)
        return 0;
    wire_epoch_end_t m;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_EPOCH_END, sizeof m);
    m.epoch = e->epoch;
    m.validated = (uint32_t)e->validated;
    for (int i = 0; i < 3; i++) {
        m.train_items[i] = (float)t->items.mean[i];
        m.val_items[i] = (float)e->val_items[i];
        m.lr[i] = (float)t->progress.point.lr[i];
    }
    m.precision = (float)e->ap.precision;
    m.recall = (float)e->ap.recall;
    m.map50 = (float)e->ap.map50;
    m.map = (float)e->ap.map;
    m.seconds = report_seconds(t);
    m.fitness = (float)e->ap.fitness;
    m.best_fitness = (float)t->progress.best_fitness;
    m.is_best = (uint32_t)e->is_best;
    m.early_stop = (uint32_t)e->early_stop;
    m.images = (uint32_t)e->ap.images;
    m.instances = (uint32_t)e->ap.labels;
    m.stream = t->progress.stream;
    int rc = report_send(t, &m, sizeof m);
    if (rc != ERR_TIMEOUT)
        return rc;
    log_line(LOG_WARN,
             "the coordinator has taken no message for %d s: epoch %u has no row in results.csv "
             "(mAP50 %.5f, mAP50-95 %.5f)",
             REPORT_SEND_S, e->epoch + 1, e->ap.map50, e->ap.map);
    return 0;
}
