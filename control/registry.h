/* Where commands find a live run (design 6): one small file a run in $XDG_RUNTIME_DIR/sluice, else
 * in /tmp/sluice-UID, mode 0700.
 *
 * The coordinator holds a lock on its file as long as it lives, so that a file nobody locks is a
 * dead run's, whatever its pid has become. A killed coordinator's file is removed by its workers
 * (control/guard.h), and where none is left by the next look. The folder is local; a run's own
 * directory, which may be on storage that hangs, is only looked at by a process of its own and for
 * a second, and only when the name given for it is no live run's as it stands.
 */
#ifndef SLUICE_CONTROL_REGISTRY_H
#define SLUICE_CONTROL_REGISTRY_H

#include "control/wire.h"

#include <stdint.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;
    int64_t since;      /* when it was listed: seconds of CLOCK_REALTIME, 0: not known */
    char run_dir[4096]; /* absolute; "" while there is none */
    char endpoint[128];
    char watch[128]; /* what the run publishes; "" where it could not */
    char token[WIRE_TOKEN];
} registry_entry_t;

typedef struct registry registry_t; /* this process's own entry */

/* Removes dead runs' files and writes ours. ERR_ENV when the folder cannot be had or is not ours;
 * *registry is then NULL. */
int registry_add(const registry_entry_t *entry, registry_t **registry);
/* Writes the run directory into our entry, which had none. Nothing is done where registry is NULL.
 */
int registry_set_run_dir(registry_t *registry, const char *run_dir);
/* Removes our file. */
void registry_remove(registry_t **registry);

/* Calls visit for each entry: live 1, or 0 for a dead run's, which has just been removed. visit may
 * end the walk with anything but 0, which is then returned. ERR_ENV as registry_add. */
int registry_list(int (*visit)(void *user, const registry_entry_t *entry, int live), void *user);
/* Removes the entry of a coordinator that has died. 1 while it is listed and locked still, 0 when it
 * is gone. Any thread; waits for nothing and touches no error text. */
int registry_forget(pid_t pid);

/* The live run that `which` names: a run directory, its last component, a pid, or NULL for the only
 * one. ERR_CONFIG says what is running instead. */
int registry_find(const char *which, registry_entry_t *entry);
/* 1 while the run of an entry that was found is listed, 0 when it has ended; negative on error. */
int registry_listed(const registry_entry_t *entry);
/* The folder in use; "" when none can be made. For messages and tests. */
int registry_folder(char *path, size_t bytes);

#endif
