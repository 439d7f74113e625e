/* The run directory: made and locked before anything else, by the scribe alone (design 6 and 9).
 *
 * runs/detect/NAME, then NAME-2, NAME-3, ... unless exist_ok (facts/yolo.md 6.8). Locked as
 * rundir_lock.h says. Also the atomic writing of a file under it: in a file without a name, which a
 * death at any instant takes with it, but for the moment between its first name and its own; where
 * the file system has no such files, under a temporary name from the start. One thread, and
 * rundir_farewell.
 */
#ifndef SLUICE_TOOLS_RUNDIR_H
#define SLUICE_TOOLS_RUNDIR_H

#include "control/options.h"

#include <stdint.h>

typedef struct {
    char path[OPTIONS_PATH_BYTES]; /* absolute */
    int fd;                        /* of the directory */
    int lock;                      /* of the lock file, where one is needed; else -1 */
    int created;                   /* by us, now */
    int plain_names;               /* no files without names here */
} rundir_t;

/* Makes options->project / name (both already resolved: project absolute, "" stands for "train").
 * ERR_CONFIG for a name that is none, ERR_ENV when it cannot be made, written or locked: one
 * sentence each. */
int rundir_make(const options_t *options, rundir_t *dir);
/* Opens and locks the directory of a run to resume: the directory, or a file in its weights/. */
int rundir_resume(const char *path, rundir_t *dir);
/* Unlocks; a lock file goes too. */
void rundir_close(rundir_t *dir);
/* The same for a run that never began: a directory that we made goes, with its events and logs. */
void rundir_discard(rundir_t *dir);

/* Removes what a write cut short has left in it and in weights/. */
void rundir_clean(const rundir_t *dir);
/* The same, and the lock file, for a run whose scribe has died; discard: a folder without args.yaml
 * goes too, as in rundir_discard. ERR_ENV when it is another run's by now. */
int rundir_sweep(const char *path, int discard);
/* Removes the temporary name that is there at this moment, and the lock file: this process is about
 * to end. user is the rundir_t. On any thread, beside whatever the other is doing. */
void rundir_farewell(void *user);
/* Writes a file under the directory whole or not at all: temporary name, fsync, check, rename,
 * fsync of the folder. relative may name sub-folders, which are made; it may not leave the
 * directory. check (may be NULL) is called when the bytes are on disk and before they get their
 * name. */
int rundir_write(rundir_t *dir, const char *relative, const void *data, uint64_t bytes,
                 int (*check)(void *user), void *user);
/* The file `relative` under another name too, without writing its bytes again where links exist. */
int rundir_copy(rundir_t *dir, const char *relative, const char *other, const void *data,
                uint64_t bytes);
/* Opens a growing file for whole-line appends; a last line without its newline is cut off first. */
int rundir_append(const rundir_t *dir, const char *relative, int *fd);
/* Reads a whole small file; *text is the caller's to free, NUL-terminated. */
int rundir_read(const rundir_t *dir, const char *relative, uint64_t most, char **text,
                size_t *bytes);
uint64_t rundir_free_bytes(const rundir_t *dir);

#endif
