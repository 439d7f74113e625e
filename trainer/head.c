#include "trainer/head.h"

#include <string.h>

enum { HEAD_MAX_NMS = 30000 }; /* facts/yolo.md 6.3 */

void head_loss(const graph_plan_t *plan, const options_t *o, int32_t nc, int32_t max_gt,
               const memory_batch_t *batch, const memory_map_t *m, k_detect_loss_t *loss)
{
    memset(loss, 0, sizeof *loss);
    memcpy(loss->box, plan->box, sizeof loss->box);
    memcpy(loss->cls, plan->cls, sizeof loss->cls);
    memcpy(loss->dbox, plan->dbox, sizeof loss->dbox);
    memcpy(loss->dcls, plan->dcls, sizeof loss->dcls);
    memcpy(loss->stride, plan->stride, sizeof loss->stride);
    loss->nc = nc;
    loss->max_gt = max_gt;
    loss->gt = batch->gt;
    loss->gt_count = batch->gt_count;
    loss->gain_box = (float)o->box;
    loss->gain_cls = (float)o->cls;
    loss->gain_dfl = (float)o->dfl;
    loss->scale = (float)plan->input.n;
    /* bfloat16 has float32's range: its gradients need no scale. */
    loss->scaling = m->format == K_F16 && plan->dbox[0].at != K_NONE ? m->norm : K_NONE;
    loss->sum = m->sum;
    loss->items = m->items;
    loss->work = m->work;
    loss->work_bytes = m->work_bytes;
}

void head_nms(const graph_plan_t *plan, const options_t *o, int32_t nc, const memory_map_t *m,
              k_nms_t *nms)
{
    memset(nms, 0, sizeof *nms);
    memcpy(nms->box, plan->box, sizeof nms->box);
    memcpy(nms->cls, plan->cls, sizeof nms->cls);
    memcpy(nms->stride, plan->stride, sizeof nms->stride);
    nms->nc = nc;
    nms->max_nms = HEAD_MAX_NMS;
    nms->max_det = o->max_det;
    nms->conf = (float)o->conf;
    nms->iou = (float)o->iou;
    nms->agnostic = o->agnostic_nms || o->single_cls;
    nms->dets = m->dets;
    nms->counts = m->det_count;
    nms->work = m->work;
    nms->work_bytes = m->work_bytes;
}
