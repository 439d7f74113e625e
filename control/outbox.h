/* A bounded queue of frames for one peer that may read slowly: the scribe (design 1, 6).
 *
 * Frames leave in order whenever the peer's pipe has room. Beyond a first bound droppable frames
 * (log lines) are counted and left out; beyond the second nothing more is taken. One thread.
 */
#ifndef SLUICE_CONTROL_OUTBOX_H
#define SLUICE_CONTROL_OUTBOX_H

#include "control/bus.h"

typedef struct outbox outbox_t;

/* soft, hard: bytes waiting above which droppable frames, and all frames, are refused. */
int outbox_new(size_t soft, size_t hard, outbox_t **box);
void outbox_free(outbox_t **box);
/* Takes a copy. ERR_TIMEOUT when it is full. */
int outbox_push(outbox_t *box, const void *frame, size_t bytes, int droppable);
/* Sends what can be sent. 0, or what bus_send failed with for another reason than a full pipe. */
int outbox_flush(outbox_t *box, bus_t *bus, const char *to);
size_t outbox_waiting(const outbox_t *box); /* frames */
size_t outbox_bytes(const outbox_t *box);   /* of them */
uint64_t outbox_dropped(const outbox_t *box);

#endif
