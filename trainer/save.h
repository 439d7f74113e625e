/* When a checkpoint is due in the middle of an epoch: every save_minutes, and when somebody asks
 * (`sluice checkpoint`).
 *
 * Rank 0 decides and raises a flag that travels with the gradients, so that all ranks take it after
 * the same step. It asks for one behind an optimiser step only: no gradients are pending there, so
 * taking it changes no number of the run, whatever the clock says. What is due while the scribe
 * still writes the last one is left out, and said. Owner: rank 0's one thread; the other ranks want
 * nothing.
 */
#ifndef SLUICE_TRAINER_SAVE_H
#define SLUICE_TRAINER_SAVE_H

#include "control/wire.h"

#include <stdint.h>

struct trainer;

typedef struct {
    uint64_t due_ns; /* of the next by save_minutes; 0: none */
    uint64_t asked_ns;
    uint32_t wanted;   /* newest request */
    uint32_t taken;    /* newest request that the last checkpoint is for */
    uint32_t answered; /* newest request that has been answered */
    char what[160];    /* the last checkpoint's place in the run */
} trainer_save_t;

/* Starts the clock of save_minutes. */
void save_begin(struct trainer *t);
/* 1 when a checkpoint should be taken after this optimiser step or validation batch. */
int save_is_due(struct trainer *t);
/* A request of the coordinator's. */
void save_request(struct trainer *t, const wire_checkpoint_t *m);
/* A checkpoint has been handed to the scribe: of epoch, with `position` of its samples consumed (0:
 * at the beginning of the epoch). */
void save_taken(struct trainer *t, uint32_t epoch, uint64_t position);
/* One that was due could not be handed over: the clock begins anew, and who asked hears why. */
void save_left_out(struct trainer *t, const char *why);
/* Answers requests whose checkpoint the scribe has answered for. */
void save_settle(struct trainer *t);

#endif
