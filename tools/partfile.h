/* Files of the run directory that grow part by part and are there whole or not at all: what `sluice val`
 * and `sluice predict` write (WIRE_PART).
 *
 * A file has no name while it grows (a temporary one where the file system has no others); its last part
 * gives it its own. What a run leaves unfinished is gone with its scribe. Files under labels/ are many
 * and small and are not waited for; the others are on the disk before they have their names. One thread.
 */
#ifndef SLUICE_TOOLS_PARTFILE_H
#define SLUICE_TOOLS_PARTFILE_H

#include "control/wire.h"
#include "tools/rundir.h"

enum { PARTFILE_OPEN = 4 /* that may grow at a time */ };

typedef struct {
    char path[256];
    int fd, folder; /* -1: the place is free */
    int named;
} partfile_t;

typedef struct {
    partfile_t files[PARTFILE_OPEN];
} partfiles_t;

void partfiles_init(partfiles_t *p);
/* Drops what is not finished. */
void partfiles_fini(partfiles_t *p);
/* Takes a part. A failure is final for the file: the run has not left what it promised. */
int partfiles_take(partfiles_t *p, const rundir_t *dir, const wire_part_t *part, const char *bytes,
                   size_t n);

#endif
