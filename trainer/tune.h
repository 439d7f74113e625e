/* Which algorithms a device's convolutions use: measured once on the places that a training has, the
 * same on all ranks, kept in the state of the run and in a file between runs (design 4, 8).
 *
 * One pass of forward, loss and backward over made-up weights and pixels; rank 0 measures, the others
 * get its choices, and every rank has then run each convolution of a step once, outside of a
 * recording. What the pass leaves in the arena means nothing: it comes before weights are there and
 * gradients are cleared. Nothing to do on a CPU.
 *
 * The shapes that most validation batches have are measured too, forward. Their choices are kept in files
 * of their own besides, for `sluice val` and `sluice predict`, which do not measure: a few batches are
 * sooner done than that. Any other shape takes the first algorithm that the library proposes.
 */
#ifndef SLUICE_TRAINER_TUNE_H
#define SLUICE_TRAINER_TUNE_H

#include "trainer/trainer.h"

/* When the training is planned and its memory is there; before step_init. known: the choices of the
 * run that is gone on with, or NULL. Sets t->choices. Collective. A cache file that cannot be used or
 * written is said, and no error. */
int tune_run(trainer_t *t, const char *known);
/* `sluice val` and `sluice predict`: what a training on this GPU has measured for the same shapes. */
int tune_infer(trainer_t *t);

#endif
