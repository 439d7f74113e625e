/* Plan and rings of a training with a given batch: what the coordinator makes, and what is tried when
 * the batch is chosen (batch=auto). Pure; any thread.
 */
#ifndef SLUICE_CONTROL_SIZING_H
#define SLUICE_CONTROL_SIZING_H

#include "control/catalog.h"
#include "control/options.h"
#include "control/parts.h"
#include "control/plan.h"
#include "shm/ring.h"

/* From the first epoch's beginning. batch: images over all ranks, a multiple of ranks. */
void sizing_plan(const options_t *o, const catalog_t *catalog, uint32_t ranks, uint32_t batch,
                 plan_t *p);
/* The largest batch that any slot must hold: validation batches have shapes of their own
 * (facts/yolo.md 6.1). parts: NULL of a training. digest: cells have digests in any case. */
void sizing_ring(const options_t *o, const catalog_t *catalog, const parts_t *parts,
                 const plan_t *p, int digest, ring_config_t *r);

#endif
