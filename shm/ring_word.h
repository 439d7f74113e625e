/* The claim word of a cell, and every transition that it may make (design 3).
 *
 *   | seq low 32 | generation 8 | owner incarnation 22 | state 2 |
 *
 * Pure functions on values: what a word says, never where it lies. ring.c compares and swaps with
 * them. The table of transitions is what shm/README.md prints and what tests/test_ring_model.c
 * holds every change of a word against, in every interleaving: a change that no row allows, a row
 * that never happens, and a row that the README does not have each fail the test.
 */
#ifndef SLUICE_SHM_RING_WORD_H
#define SLUICE_SHM_RING_WORD_H

#include "shm/ring.h"

enum { RING_STATE_BITS = 2, RING_OWNER_BITS = 22, RING_GENERATION_BITS = 8, RING_SEQ_BITS = 32 };
enum {
    RING_GENERATION_AT = RING_STATE_BITS + RING_OWNER_BITS,
    RING_SEQ_AT = RING_GENERATION_AT + RING_GENERATION_BITS,
};
_Static_assert(RING_SEQ_AT + RING_SEQ_BITS == 64, "a claim word has 64 bits");
_Static_assert(RING_OWNER_MAX == (1 << RING_OWNER_BITS) - 1, "an owner fits its bits");

/* Every claim, commit and abandon compares the whole word with one made here, so that a view of
 * another batch, another generation or another owner fails. */
static inline uint64_t ring_word(uint64_t seq, uint32_t generation, uint32_t owner, uint32_t state)
{
    return (uint64_t)(uint32_t)seq << RING_SEQ_AT |
           (uint64_t)(generation & ((1u << RING_GENERATION_BITS) - 1)) << RING_GENERATION_AT |
           (uint64_t)(owner & RING_OWNER_MAX) << RING_STATE_BITS | state;
}

static inline uint32_t ring_word_state(uint64_t word)
{
    return (uint32_t)word & ((1u << RING_STATE_BITS) - 1);
}

static inline uint32_t ring_word_owner(uint64_t word)
{
    return (uint32_t)(word >> RING_STATE_BITS) & RING_OWNER_MAX;
}

static inline uint32_t ring_word_generation(uint64_t word)
{
    return (uint32_t)(word >> RING_GENERATION_AT) & ((1u << RING_GENERATION_BITS) - 1);
}

static inline uint32_t ring_word_seq(uint64_t word)
{
    return (uint32_t)(word >> RING_SEQ_AT);
}

/* Whether it belongs to this batch in this generation, whatever its state and owner. */
static inline int ring_word_is(uint64_t word, uint64_t seq, uint32_t generation)
{
    return word >> RING_GENERATION_AT == ring_word(seq, generation, 0, 0) >> RING_GENERATION_AT;
}

/* The same cell of the same batch, owned by nobody: what a fence leaves. */
static inline uint64_t ring_word_freed(uint64_t word)
{
    return word >> RING_GENERATION_AT << RING_GENERATION_AT | RING_EMPTY;
}

/* ---- the table ---- */

enum {
    RING_FROM_EMPTY = 1 << RING_EMPTY,
    RING_FROM_CLAIMED = 1 << RING_CLAIMED,
    RING_FROM_DONE = 1 << RING_DONE,
    RING_FROM_ANY = RING_FROM_EMPTY | RING_FROM_CLAIMED | RING_FROM_DONE,
};

/* What becomes of the batch number in the word. */
typedef enum { RING_SEQ_SAME = 0, RING_SEQ_NEXT /* + depth */, RING_SEQ_ANY } ring_seq_change_t;

typedef struct {
    const char *function; /* of ring.h */
    const char *who;
    uint32_t from; /* RING_FROM_* */
    uint32_t to;   /* RING_* */
    ring_seq_change_t seq;
    int raised; /* 1: of a new generation; 0: of the same */
} ring_transition_t;

/* Rows to DONE of ring_arm, ring_release and ring_rewind: the places behind a short batch's last
 * cell, which nobody fills. */
#define RING_TRANSITIONS(X)                                                                        \
    X("ring_arm", "coordinator", RING_FROM_EMPTY, RING_EMPTY, RING_SEQ_ANY, 0)                     \
    X("ring_arm", "coordinator", RING_FROM_EMPTY, RING_DONE, RING_SEQ_ANY, 0)                      \
    X("ring_claim", "loader", RING_FROM_EMPTY, RING_CLAIMED, RING_SEQ_SAME, 0)                     \
    X("ring_commit", "its owner", RING_FROM_CLAIMED, RING_DONE, RING_SEQ_SAME, 0)                  \
    X("ring_abandon", "its owner", RING_FROM_CLAIMED, RING_EMPTY, RING_SEQ_SAME, 0)                \
    X("ring_fence", "coordinator", RING_FROM_CLAIMED, RING_EMPTY, RING_SEQ_SAME, 0)                \
    X("ring_release", "trainer", RING_FROM_DONE, RING_EMPTY, RING_SEQ_NEXT, 0)                     \
    X("ring_release", "trainer", RING_FROM_DONE, RING_DONE, RING_SEQ_NEXT, 0)                      \
    X("ring_rewind", "coordinator", RING_FROM_ANY, RING_EMPTY, RING_SEQ_ANY, 1)                    \
    X("ring_rewind", "coordinator", RING_FROM_ANY, RING_DONE, RING_SEQ_ANY, 1)

static const ring_transition_t ring_transitions[] = {
#define RING_TRANSITION_ROW(function, who, from, to, seq, raised)                                  \
    {function, who, from, to, seq, raised},
    RING_TRANSITIONS(RING_TRANSITION_ROW)
#undef RING_TRANSITION_ROW
};
enum { RING_TRANSITION_COUNT = sizeof ring_transitions / sizeof ring_transitions[0] };

#endif
