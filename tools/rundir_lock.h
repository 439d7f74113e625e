/* The lock on a run directory: one run at a time writes in it (design 6).
 *
 * An flock on the directory's own descriptor: nothing lies in the folder, and a dead run's lock is
 * free at once. File systems that other machines may mount too (NFS, SMB, FUSE, Lustre, Ceph, ...)
 * keep a directory's lock to this machine or refuse it: there a file .sluice.lock in it is locked as
 * well, and is left behind by a scribe that is killed together with all others; the next start
 * takes it over. One thread.
 */
#ifndef SLUICE_TOOLS_RUNDIR_LOCK_H
#define SLUICE_TOOLS_RUNDIR_LOCK_H

#include "tools/rundir.h"

/* dir->fd and dir->path are set. ERR_ENV names the run that has it: pid, since when. */
int rundir_lock(rundir_t *dir);
/* Removes the file, if there is one. dir->fd is the caller's to close, which unlocks it. */
void rundir_unlock(rundir_t *dir);
/* Whether the file system of an open directory may be mounted by other machines too. */
int rundir_shared(int fd);

#endif
