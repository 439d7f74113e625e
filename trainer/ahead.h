/* Steps on a device that works by itself: the host prepares one while the device computes the one
 * before (design 8).
 *
 *   host     take 4, give 4 │ settle 3 │ take 5, give 5 │ settle 4 │
 *   copy           ══ 5 ══              ══ 6 ══
 *   main     ── 3 ──┤├────────── 4 ───────────┤├────────── 5 ──
 *
 * A step's items, and what its flags' sums say the ranks have agreed to, are known when the device has
 * ended it: one step after it was given. All ranks take the same decision at the same step all the
 * same, because all of them run one step ahead. Owner: the trainer's one thread. Nothing here is
 * called for a device that is done when it returns.
 */
#ifndef SLUICE_TRAINER_AHEAD_H
#define SLUICE_TRAINER_AHEAD_H

#include "trainer/trainer.h"

/* Gives the device the step of the present batch, which is b, and takes what the one before has
 * brought. *asked as step_train's. */
int ahead_step(trainer_t *t, const plan_batch_t *b, int update, int *asked);
/* Takes what all steps under way bring, in order. */
int ahead_settle(trainer_t *t);

#endif
