/* What must hold of this machine before anything is started: stacks, descriptors, the umask, and
 * that ZeroMQ can work.
 *
 * Limits that can be raised are; what is substituted is said once. Children inherit all of it.
 * Main thread, before there are others.
 */
#ifndef SLUICE_CONTROL_MACHINE_H
#define SLUICE_CONTROL_MACHINE_H

#include <stdint.h>

/* Any command, first of all: raises a small limit on stacks. ERR_ENV where it cannot be. */
int machine_stack(void);
/* The coordinator: raises the limit on open files, keeps the umask from locking us out of our own
 * files. ERR_ENV where no run could begin. */
int machine_prepare(void);
/* Descriptors that this process may have open. */
uint64_t machine_descriptors(void);
/* Tasks that this user may still start (ulimit -u), as far as /proc shows what there is;
 * UINT64_MAX where that limit does not bind. */
uint64_t machine_user_tasks(void);
/* As process 1 of a container: reaps those that lost their parents, so that none stays a zombie.
 * is_ours: 1 for a child that somebody else waits for. Elsewhere it does nothing. */
void machine_reap_orphans(int (*is_ours)(void *user, int pid), void *user);

#endif
