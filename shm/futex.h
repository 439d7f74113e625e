/* Waits and wakes on 32-bit words in shared memory (design 3, "Waits").
 *
 * Process-shared (non-private) futexes. Every wait is bounded: a waker can die between its store
 * and its wake, so a caller loops, re-reads the words that matter, and waits again for at most
 * FUTEX_RECHECK_MS. Any process, any thread.
 */
#ifndef SLUICE_SHM_FUTEX_H
#define SLUICE_SHM_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

enum { FUTEX_RECHECK_MS = 100 };

/* Sleeps while *word == expected, for at most timeout_ms (capped at FUTEX_RECHECK_MS). Returns at a
 * wake, a changed value, a signal or the time-out; the caller looks again in every case. */
void futex_wait(const _Atomic uint32_t *word, uint32_t expected, int timeout_ms);
/* Wakes up to count waiters (INT_MAX for all). */
void futex_wake(const _Atomic uint32_t *word, int count);

/* CLOCK_MONOTONIC in nanoseconds: the clock of every deadline and of the status board. */
uint64_t clock_ns(void);

#endif
