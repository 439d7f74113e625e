/* What this process asks malloc for, in bytes: for tests that a claim in a file costs nothing.
 *
 * All requests of this program and of the libraries that it links are added up, whether or not they
 * were granted or given back, so the sum is at least the peak. Not for two threads at once. */
#ifndef SLUICE_TESTS_MEMORY_ASKED_H
#define SLUICE_TESTS_MEMORY_ASKED_H

#include <stdint.h>

void memory_asked_reset(void);
uint64_t memory_asked(void);

#endif
