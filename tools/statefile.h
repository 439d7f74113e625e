/* The little that the scribe must know of weights/last.state.safetensors: where a resume starts.
 *
 * Reads the length, the JSON header and its "__metadata__" strings, checked strictly, and the
 * substitution ledger, which must be known before any loader starts; the other tensors stay unread
 * (the trainer loads them, and checks their sum). One thread.
 */
#ifndef SLUICE_TOOLS_STATEFILE_H
#define SLUICE_TOOLS_STATEFILE_H

#include "control/wire.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t next_epoch;  /* metadata "epoch": first epoch that is not done */
    int finished;         /* metadata "finished": nothing is left to do */
    uint64_t position;    /* metadata "position": samples of it that are consumed */
    uint64_t list_digest; /* of the sample list */
    uint32_t ranks, batch, threads, pending;
    uint32_t ledger;                   /* metadata "ledger_entries" */
    uint64_t ledger_begin, ledger_end; /* tensor "ledger": bytes behind the header */
    uint64_t header_bytes;             /* the length and the JSON text */
} statefile_t;

/* From an open file; name is for messages. ERR_CONFIG says what is wrong with it. */
int statefile_read(int fd, const char *name, statefile_t *state);
/* The substitutions, as frames in order of number; *entries is the caller's to free, NULL for
 * none. */
int statefile_ledger(int fd, const char *name, const statefile_t *state, wire_ledger_t **entries);
/* From the JSON header itself. */
int statefile_parse(const char *json, size_t bytes, const char *name, statefile_t *state);

#endif
