/* What is left to do when the coordinator has died: the last act of a worker (design 1).
 *
 * A thread waits for the end of the lifeline. When it comes, the worker removes what the dead run
 * has left behind (the coordinator's entry in the registry, and what the process itself has in the
 * making: see guard_farewell), and ends by SIGKILL: in two seconds at the latest, whatever the main
 * thread is held in. The death signal of the main thread becomes SIGCONT: it wakes a process that
 * somebody has stopped, so that its guard can act. Where there is no thread to be had, the death
 * signal stays SIGKILL and the next look at the registry removes the entry.
 * One per process.
 */
#ifndef SLUICE_CONTROL_GUARD_H
#define SLUICE_CONTROL_GUARD_H

#include <sys/types.h>

enum { GUARD_MOST_MS = 2000 }; /* from the coordinator's death to the worker's */

/* Main thread, before there are others. parent: the coordinator. */
void guard_start(int lifeline, pid_t parent);
/* What to do before the end, on the guard's thread, beside a main thread that may be anywhere: it
 * must not wait for it. NULL: nothing. Main thread. */
void guard_farewell(void (*farewell)(void *user), void *user);
/* 1 when there is a guard: who sees the coordinator's end may leave the rest to it. */
int guard_started(void);
/* Waits for the guard to end this process. */
void guard_wait(void) __attribute__((noreturn));

#endif
