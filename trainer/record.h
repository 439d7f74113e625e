/* Recorded steps: what a step gives a device that works by itself is recorded once for each of its two
 * turns, with and without an update, and replayed from then on (design 8).
 *
 * The first step of each kind is run as it is: what a library makes ready at its first call is made
 * outside of a recording. Hyper-parameters, flags and the batch's copy are given to the device before
 * a step, items are fetched behind it: they are no part of it. SLUICE_NO_GRAPHS=1 in the environment
 * turns it off, to look for an error. Owner: the trainer's one thread.
 */
#ifndef SLUICE_TRAINER_RECORD_H
#define SLUICE_TRAINER_RECORD_H

#include "trainer/trainer.h"

/* Before the first step: looks at the environment. */
void record_init(trainer_t *t);
/* pass_compute and, with `update`, pass_update for the present turn, as the main stream's next work. */
int record_run(trainer_t *t, int update);

#endif
