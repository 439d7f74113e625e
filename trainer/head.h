/* The arguments of the detection head's two operations, loss and suppression, for one plan of the
 * graph.
 *
 * Pure: places come from the plan and the memory map. Used for sizes before memory exists, and for
 * work.
 */
#ifndef SLUICE_TRAINER_HEAD_H
#define SLUICE_TRAINER_HEAD_H

#include "control/options.h"
#include "kernels/kernels.h"
#include "trainer/graph.h"
#include "trainer/memory.h"

/* Gains and gradient scale of facts/yolo.md 3.2: scale is the batch of this rank. A plan for
 * inference has no gradients: loss only. max_gt: rows of ground truth per image as they lie in
 * `batch`. */
void head_loss(const graph_plan_t *plan, const options_t *o, int32_t nc, int32_t max_gt,
               const memory_batch_t *batch, const memory_map_t *m, k_detect_loss_t *loss);
/* facts/yolo.md 6.3. */
void head_nms(const graph_plan_t *plan, const options_t *o, int32_t nc, const memory_map_t *m,
              k_nms_t *nms);

#endif
