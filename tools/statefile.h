/* The little that the scribe must know of weights/last.state.safetensors: where a resume starts.
 *
 * Reads the length, the JSON header and its "__metadata__" strings, checked strictly; tensors stay
 * unread (the trainer loads them). One thread.
 */
#ifndef SLUICE_TOOLS_STATEFILE_H
#define SLUICE_TOOLS_STATEFILE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t next_epoch; /* metadata "epoch": first epoch that is not done */
    int finished;        /* metadata "finished": nothing is left to do */
} statefile_t;

/* From an open file; name is for messages. ERR_CONFIG says what is wrong with it. */
int statefile_read(int fd, const char *name, statefile_t *state);
/* From the JSON header itself. */
int statefile_parse(const char *json, size_t bytes, const char *name, statefile_t *state);

#endif
