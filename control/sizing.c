#include "control/sizing.h"

#include <string.h>

enum { SIZING_LABELS = 4 /* images of a mosaic; twice with mixup */ };

void sizing_plan(const options_t *o, const catalog_t *catalog, uint32_t ranks, uint32_t batch,
                 plan_t *p)
{
    memset(p, 0, sizeof *p);
    p->seed = (uint64_t)o->seed;
    p->n_train = catalog_count(catalog, CATALOG_TRAIN);
    p->n_val = catalog_count(catalog, CATALOG_VAL);
    p->ranks = ranks;
    p->batch = batch;
    p->val_batch = 2 * p->batch / p->ranks; /* facts/yolo.md 4.2 */
    p->imgsz = (uint32_t)o->imgsz;
    p->epochs = (uint32_t)o->epochs;
    p->val_every_epoch = (uint32_t)o->val;
    p->close_mosaic = (uint32_t)o->close_mosaic;
    p->mosaic_window = (uint32_t)o->mosaic_window;
}

void sizing_ring(const options_t *o, const catalog_t *catalog, const parts_t *parts,
                 const plan_t *p, int digest, ring_config_t *r)
{
    uint32_t cells = p->batch / p->ranks;
    memset(r, 0, sizeof *r);
    r->depth = (uint32_t)o->ring_depth;
    r->digest = digest || o->digest;
    r->cells = cells;
    r->image_bytes = (uint64_t)cells * p->imgsz * p->imgsz * 3;
    for (uint32_t first = 0; first < p->n_val; first += p->val_batch) {
        uint32_t h, w, n = p->n_val - first < p->val_batch ? p->n_val - first : p->val_batch;
        parts_shape(parts, catalog, first, n, p->imgsz, &h, &w);
        uint64_t bytes = (uint64_t)n * h * w * 3;
        if (bytes > r->image_bytes)
            r->image_bytes = bytes;
        if (n > r->cells)
            r->cells = n;
    }
    uint32_t images = o->mixup > 0 ? 2 * SIZING_LABELS : SIZING_LABELS;
    uint64_t cap = (uint64_t)catalog_max_labels(catalog) * images;
    r->label_cap = cap < 1 ? 1 : (uint32_t)cap;
}
