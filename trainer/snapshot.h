/* File images in snapshot memory, for the scribe to write (design 8, "Snapshots").
 *
 * One memfd, made empty by the coordinator and sized here by rank 0: two slots, so that training
 * goes on while the scribe still writes the last snapshot. A snapshot is a set of files of one
 * moment (weights, what a resume needs); a slot is free again when the scribe has answered for
 * every file, and never overwritten before. Sequence number and checksums are in the slot: the
 * memory outlives a trainer. Owner: rank 0's one thread. The scribe reads what WIRE_SNAPSHOT names.
 */
#ifndef SLUICE_TRAINER_SNAPSHOT_H
#define SLUICE_TRAINER_SNAPSHOT_H

#include "control/wire.h"
#include "trainer/safetensors.h"

#include <stdint.h>

enum { SNAPSHOT_SLOTS = 2, SNAPSHOT_FILES = 4 };

typedef struct snapshot snapshot_t;

/* Bytes of the memory for slots of slot_bytes: for the budget. */
uint64_t snapshot_bytes(uint64_t slot_bytes);
int snapshot_open(int fd, uint64_t slot_bytes, snapshot_t **s);
void snapshot_close(snapshot_t **s);

/* 1 when a slot is free. */
int snapshot_has_room(const snapshot_t *s);
/* Takes a free slot for the files of this epoch; snapshot_has_room must have said so. */
int snapshot_begin(snapshot_t *s, uint32_t epoch);
/* Lays a file into the slot. copy_to: another name for the same bytes, or NULL. */
int snapshot_add(snapshot_t *s, const safetensors_writer_t *file, const char *path,
                 const char *copy_to);
/* The bytes of the last file under one more name. */
int snapshot_again(snapshot_t *s, const char *path);
/* Makes the slot valid and hands each file's message to send. A file whose message cannot be sent
 * counts as not written. */
int snapshot_commit(snapshot_t *s, int (*send)(void *user, const wire_snapshot_t *m), void *user);
/* The bytes of `path` in the newest whole slot; they stay until the slot's next snapshot_begin.
 * ERR_FAILED when no slot has it. */
int snapshot_find(const snapshot_t *s, const char *path, const void **data, uint64_t *bytes);
/* The scribe's answer. */
void snapshot_saved(snapshot_t *s, const wire_saved_t *m);
/* Files that the scribe has not answered for. */
uint32_t snapshot_pending(const snapshot_t *s);
/* Why a file of the newest snapshot was not written; NULL when nothing is known against it. */
const char *snapshot_failure(const snapshot_t *s);

#endif
