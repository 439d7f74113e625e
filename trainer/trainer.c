#include "trainer/trainer.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <stdlib.h>

int32_t trainer_classes(const trainer_t *t)
{
    return t->n_classes > 0 ? t->n_classes : graph_classes(t->graph);
}

int trainer_host_alloc(trainer_t *t)
{
    size_t cells = (size_t)t->mem.cells, classes = (size_t)trainer_classes(t);
    t->batch.gts = malloc(t->mem.gt_bytes);
    t->batch.counts = calloc(cells, sizeof *t->batch.counts);
    t->batch.samples = calloc(cells, sizeof *t->batch.samples);
    t->batch.places = calloc(cells, sizeof *t->batch.places);
    t->val.sums = calloc(classes + 5, sizeof *t->val.sums);
    t->val.dets = malloc(cells * (size_t)t->mem.max_det * sizeof *t->val.dets);
    t->val.counts = calloc(cells, sizeof *t->val.counts);
    if (!t->batch.gts || !t->batch.counts || !t->batch.samples || !t->batch.places ||
        !t->val.sums || !t->val.dets || !t->val.counts)
        return err_set(ERR_ENV, "rank %u: out of memory for the labels of %zu images", t->rank,
                       cells);
    return 0;
}

void trainer_host_free(trainer_t *t)
{
    free(t->batch.gts);
    free(t->batch.counts);
    free(t->batch.samples);
    free(t->batch.places);
    free(t->val.sums);
    free(t->val.dets);
    free(t->val.counts);
    free(t->val.rows);
    t->batch = (batch_t){0};
    t->val = (trainer_val_t){0};
}

int trainer_check(const trainer_t *t, int rc, const char *what)
{
    if (rc >= 0)
        return 0;
    return err_set(ERR_FAILED, "rank %u: %s: %s", t->rank, what, t->ops->error(t->dev));
}

int trainer_drain(trainer_t *t, k_stream_t s)
{
    int rc;
    while ((rc = t->ops->wait(t->dev, s, FUTEX_RECHECK_MS)) == 1) {
        rc = t->poll(t);
        if (rc < 0)
            return rc;
    }
    return trainer_check(t, rc, "waiting for the device");
}

int trainer_upload(trainer_t *t, k_at dst, const void *host, uint64_t bytes)
{
    int rc = trainer_check(t, t->ops->upload(t->dev, K_STREAM_MAIN, dst, host, bytes), "upload");
    return rc < 0 ? rc : trainer_drain(t, K_STREAM_MAIN);
}

int trainer_download(trainer_t *t, void *host, k_at src, uint64_t bytes)
{
    int rc =
        trainer_check(t, t->ops->download(t->dev, K_STREAM_MAIN, host, src, bytes), "download");
    return rc < 0 ? rc : trainer_drain(t, K_STREAM_MAIN);
}

int trainer_wants_stop(const trainer_t *t)
{
    return t->w->stop && (t->w->stop_message.why == WIRE_STOP_USER ||
                          t->w->stop_message.why == WIRE_STOP_NO_DATA);
}
