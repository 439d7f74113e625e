/* The states that an exhaustive check has met: which are new, what leads from where to where, and
 * from which the goal can no longer be reached.
 *
 * A state is known by a 128-bit hash of its bytes; the states themselves are the caller's. One
 * thread.
 */
#ifndef SLUICE_TESTS_STATE_SPACE_H
#define SLUICE_TESTS_STATE_SPACE_H

#include <stddef.h>
#include <stdint.h>

typedef struct state_space state_space_t;

/* Ends the test program where memory is short. */
state_space_t *space_new(void);
void space_free(state_space_t **space);
/* The number of the state with these bytes; *fresh says whether it is new. A new one is remembered
 * as reached from `from` (UINT32_MAX: a beginning) by an action that the caller has numbered. */
uint32_t space_state(state_space_t *space, const void *bytes, size_t n, uint32_t from,
                     uint32_t action, int *fresh);
void space_edge(state_space_t *space, uint32_t from, uint32_t to);
void space_goal(state_space_t *space, uint32_t state);
uint32_t space_states(const state_space_t *space);
uint64_t space_edges(const state_space_t *space);
/* States from which no goal can be reached, and the first of them met. */
uint32_t space_stuck(const state_space_t *space, uint32_t *first);
/* The actions from a beginning to the state, in order; returns how many there are, writes at most
 * `most`. */
uint32_t space_path(const state_space_t *space, uint32_t state, uint32_t *actions, uint32_t most);

#endif
