/* Comparison of what the ranks are about to train, before they add anything up. */
#ifndef SLUICE_TRAINER_EXCHANGE_AGREE_H
#define SLUICE_TRAINER_EXCHANGE_AGREE_H

#include "trainer/exchange_internal.h"

/* Model, layout of parameters and buckets, ranks, batch, imgsz, format, sync_bn, version of NCCL. All
 * ranks call it; where one differs from rank 0, all get ERR_FAILED naming the rank and what. */
int exchange_agree(struct exchange *x);

#endif
