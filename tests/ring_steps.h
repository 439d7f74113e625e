/* The ring's own code, one atomic access at a time: for tests/test_ring_model.c alone, which
 * includes it once and last.
 *
 * shm/ring.c is compiled here with atomic accesses that work on a small state_t instead of shared
 * memory. To take one step of a process, its present call is run again from its beginning: what it
 * has already seen is handed to it from its record, the next access that others could notice is
 * performed, and the call is left (longjmp) before the one after. A call is a function of its
 * arguments and of what it reads, so arguments and record together say where it is, and a state of
 * the whole is a plain value: copied, hashed, compared.
 *
 * Accesses are sequentially consistent, except that a reading loader may be given the value that a
 * word of the window had before the last store (config.stale), or one that lets every view pass
 * (not config.honest): safety has to rest on the compare-and-swap alone.
 */
#ifndef SLUICE_TESTS_RING_STEPS_H
#define SLUICE_TESTS_RING_STEPS_H

#include "shm/arena.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"
#include "shm/ring.h"
#include "shm/ring_word.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <string.h>

enum { DEPTH = 2, CELLS_MAX = 2, LOADERS_MAX = 3, WORDS_MAX = DEPTH * CELLS_MAX, RECORD = 28 };
enum {
    VAR_TAIL = 0,
    VAR_GENERATION,
    VAR_ARMED,
    VAR_SLOT_SEQ,
    VAR_SLOT_CELLS = VAR_SLOT_SEQ + DEPTH,
    VAR_WORD = VAR_SLOT_CELLS + DEPTH,
    VARS = VAR_WORD + WORDS_MAX
};
enum { TRAINER = LOADERS_MAX, COORDINATOR, PROCESSES };

/* What is wrong with the protocol on purpose, for a test of the test. */
typedef enum {
    MUTATION_NONE = 0,
    DROP_SEQ,        /* the compare ignores the batch */
    DROP_GENERATION, /* the compare ignores the generation */
    DROP_OWNER,      /* the compare ignores the owner */
    FENCE_ALIVE,     /* a loader is fenced that has not been seen dead */
    NO_FENCE,        /* a dead loader's cells are not returned */
    NO_ACKNOWLEDGE,  /* the rewind does not wait for the loaders */
    TRAINER_ALIVE,   /* nor for the trainer's end */
    EARLY_DONE,      /* a loader commits before all is written */
    NO_REWIND,       /* a trainer that died is replaced and the slots stay as they are */
} mutation_t;

typedef enum {
    OP_NONE = 0,
    OP_FIND,
    OP_CLAIM,
    OP_COMMIT,
    OP_ABANDON,
    OP_ADOPT,
    OP_READY,
    OP_RELEASE,
    OP_FENCE,
    OP_RAISE,
    OP_REWIND,
    OPS
} op_t;
static const char *const op_functions[OPS] = {
    "ring_arm",   "ring_find_empty", "ring_claim", "ring_commit", "ring_abandon", "ring_adopt",
    "ring_ready", "ring_release",    "ring_fence", "ring_raise",  "ring_rewind",
};

typedef struct {
    int loaders, cells, seqs;
    int cells_of[8]; /* of each batch; behind seqs: 0 */
    int deaths, trainer_deaths;
    int honest; /* accesses to the window are steps, and loaders search it as they do */
    int stale;
    mutation_t mutation;
    int steps_alone; /* without the properties that look at all that could be, not only at steps */
} config_t;

typedef struct {
    uint8_t pc, op, n;                    /* n: accesses in the record */
    uint8_t seq, cell, owner, generation; /* arguments; the mapping's generation */
    uint16_t record[RECORD];              /* values seen by the call under way, packed */
} process_t;

/* Everything that the future depends on; compared as bytes, so without padding. */
typedef struct {
    uint16_t now[VARS], before[VARS]; /* memory, packed; and before each one's last store */
    process_t p[PROCESSES];
    uint8_t stamp[WORDS_MAX][2]; /* payload: which batch and generation each half is of */
    uint8_t deaths, trainer_deaths, raised;
} state_t;

/* ---- values: claim words take 16 bits here, | seq 4 | generation 4 | owner 4 | state 4 | ---- */

static uint16_t pack_word(uint64_t w)
{
    return (uint16_t)(ring_word_seq(w) % 16 << 12 | ring_word_generation(w) % 16 << 8 |
                      ring_word_owner(w) % 16 << 4 | ring_word_state(w));
}

static uint64_t value_of(int var, uint16_t packed)
{
    return var < VAR_WORD
               ? packed
               : ring_word(packed >> 12, packed >> 8 & 15, packed >> 4 & 15, packed & 15);
}

static uint16_t packed_of(int var, uint64_t value)
{
    return var < VAR_WORD ? (uint16_t)value : pack_word(value);
}

/* ---- accesses ---- */

static uint64_t step_load(const void *at);
static void step_store(const void *at, uint64_t value);
static int step_swap(const void *at, uint64_t *expected, uint64_t desired);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_fetch_add_explicit
#define atomic_load_explicit(at, order)         step_load((const void *)(at))
#define atomic_store_explicit(at, value, order) step_store((const void *)(at), (uint64_t)(value))
#define atomic_compare_exchange_strong_explicit(at, expected, desired, success, failure)           \
    step_swap((const void *)(at), expected, desired)
/* Bell and ready word only end sleeps that are bounded anyway: here nobody sleeps. */
#define atomic_fetch_add_explicit(at, n, order) ((void)(at))
#define futex_wake(word, count)                 ((void)(word))

#include "shm/ring.c"

static ring_header_t step_head; /* its configuration is read; the rest gives addresses */
static ring_slot_t step_slots[DEPTH];
static _Atomic uint64_t step_words[WORDS_MAX];

static struct {
    const config_t *config;
    state_t *state;
    process_t *self;
    op_t op;
    int direct; /* no steps: the call runs through, nothing is recorded */
    int at;     /* in the record */
    int budget; /* accesses to come that others notice */
    int stale;  /* the next one of them reads an old value */
    jmp_buf leave;
    uint32_t next_cells, window[DEPTH];
    const char *violation;
    uint64_t seen[RING_TRANSITION_COUNT];
    int result;
    uint64_t found_seq;
    uint32_t found_cell;
} run;

static void violated(const char *what)
{
    if (!run.violation)
        run.violation = what;
}

static int var_of(const void *at)
{
    for (int i = 0; i < WORDS_MAX; i++)
        if (at == &step_words[i])
            return VAR_WORD + i;
    for (int i = 0; i < DEPTH; i++) {
        if (at == &step_slots[i].seq)
            return VAR_SLOT_SEQ + i;
        if (at == &step_slots[i].cells)
            return VAR_SLOT_CELLS + i;
    }
    if (at == &step_head.tail)
        return VAR_TAIL;
    return at == &step_head.generation ? VAR_GENERATION : VAR_ARMED;
}

static int is_loader(void)
{
    return run.self < &run.state->p[TRAINER];
}

/* Whether the access is one that another process could notice or be noticed by. */
static int is_step(int var, int storing)
{
    if (var >= VAR_WORD || var == VAR_GENERATION)
        return 1;
    return run.config->honest && (storing || is_loader());
}

/* Hands out what the record has; else makes room for one more. 1: from the record. */
static int from_record(int var, int storing, uint16_t *value)
{
    if (run.direct)
        return 0;
    if (run.at < run.self->n) {
        *value = run.self->record[run.at++];
        return 1;
    }
    if (is_step(var, storing) && run.budget-- == 0)
        longjmp(run.leave, 1);
    if (run.at == RECORD) {
        violated("the record is too short for this call");
        longjmp(run.leave, 1);
    }
    return 0;
}

static void note(uint16_t value)
{
    if (!run.direct) {
        run.self->record[run.at++] = value;
        run.self->n++;
    }
}

enum { OWN = 15 }; /* in the record: the owner is the one that the fence is for */

/* What the call can tell of a word goes into the record, no more: to a fence all words that are not
 * its owner's are alike, and only a fence looks at the owner. */
static uint16_t as_seen(uint16_t word)
{
    int own = (word >> 4 & 15) == run.self->owner && (word & 15) == RING_CLAIMED;
    if (run.op != OP_FENCE)
        return word & 0xff0f;
    return own ? word | OWN << 4 : RING_EMPTY;
}

static uint16_t owned(uint16_t word)
{
    return (word >> 4 & 15) == OWN ? (uint16_t)((word & 0xff0f) | run.self->owner << 4) : word;
}

static uint64_t step_load(const void *at)
{
    int var = var_of(at);
    uint16_t value;
    if (from_record(var, 0, &value))
        return value_of(var, var < VAR_WORD ? value : owned(value));
    value = run.state->now[var];
    if (run.stale && is_step(var, 0) && var < VAR_WORD)
        value = run.state->before[var];
    if (!run.config->honest && run.op == OP_CLAIM && var != VAR_GENERATION && var < VAR_WORD)
        value = var == VAR_TAIL ? run.self->seq : 1;
    if (var >= VAR_WORD)
        value = as_seen(value);
    note(value);
    return value_of(var, var < VAR_WORD ? value : owned(value));
}

/* A word has changed: some row of the table must allow it. */
static void check_transition(uint16_t from, uint16_t to)
{
    uint32_t step = (to >> 12) - (from >> 12);
    int same = from >> 8 == to >> 8, raised = (from >> 8 & 15) != (to >> 8 & 15);
    for (int i = 0; i < RING_TRANSITION_COUNT; i++) {
        const ring_transition_t *t = &ring_transitions[i];
        if (strcmp(t->function, op_functions[run.op]) != 0 || !(t->from >> (from & 15) & 1) ||
            t->to != (to & 15u) || t->raised != raised)
            continue;
        if ((t->seq == RING_SEQ_SAME && !same) || (t->seq == RING_SEQ_NEXT && step != DEPTH))
            continue;
        run.seen[i]++;
        if ((to & 15) == RING_EMPTY && (to >> 4 & 15) != 0)
            violated("an EMPTY word names an owner");
        return;
    }
    violated("a claim word changed in a way that no row of the table allows");
}

static void change(int var, uint16_t value)
{
    uint16_t old = run.state->now[var];
    run.state->before[var] = run.config->stale && var < VAR_WORD ? old : 0;
    run.state->now[var] = value;
    if (var >= VAR_WORD)
        check_transition(old, value);
}

static void step_store(const void *at, uint64_t value)
{
    int var = var_of(at);
    uint16_t seen;
    if (from_record(var, 1, &seen))
        return;
    change(var, packed_of(var, value));
    note(0);
}

static uint16_t compared_bits(void)
{
    switch (run.config->mutation) {
    case DROP_SEQ: return 0x0fff;
    case DROP_GENERATION: return 0xf0ff;
    case DROP_OWNER: return 0xff0f;
    default: return 0xffff;
    }
}

static int step_swap(const void *at, uint64_t *expected, uint64_t desired)
{
    int var = var_of(at);
    uint16_t value, bits = compared_bits(), want = pack_word(*expected);
    int recorded = from_record(var, 1, &value);
    if (recorded)
        value = owned(value);
    else
        value = run.state->now[var];
    int equal = (value & bits) == (want & bits);
    if (!equal)
        *expected = value_of(var, value);
    if (recorded)
        return equal;
    if (equal)
        change(var, pack_word(desired));
    note(equal && run.op == OP_FENCE ? value | OWN << 4 : value);
    return equal;
}

/* ---- calls ---- */

static ring_t step_ring(uint32_t generation)
{
    return (ring_t){
        .head = &step_head, .slots = step_slots, .words = step_words, .generation = generation};
}

static void call(ring_t *ring, process_t *p)
{
    run.result = 0;
    switch (run.op) {
    case OP_NONE: ring_arm(ring, run.window); break;
    case OP_FIND:
        run.found_seq = run.found_cell = 0;
        run.result = ring_find_empty(ring, &run.found_seq, &run.found_cell);
        break;
    case OP_CLAIM: run.result = ring_claim(ring, p->seq, p->cell, p->owner); break;
    case OP_COMMIT: run.result = ring_commit(ring, p->seq, p->cell, p->owner); break;
    case OP_ABANDON: ring_abandon(ring, p->seq, p->cell, p->owner); break;
    case OP_ADOPT: ring_adopt(ring); break;
    case OP_READY: run.result = ring_ready(ring, p->seq); break;
    case OP_RELEASE: ring_release(ring, p->seq, run.next_cells); break;
    case OP_FENCE: ring_fence(ring, p->owner); break;
    case OP_RAISE: ring_raise(ring); break;
    case OP_REWIND: ring_rewind(ring, p->seq, run.window); break;
    default: break;
    }
}

static void call_over(process_t *p)
{
    p->op = OP_NONE;
    p->n = 0;
    memset(p->record, 0, sizeof p->record);
}

/* One step of the process's call, which p->op names. 1: the call is over, run.result is its
 * value. */
static int step(state_t *s, process_t *p)
{
    ring_t ring = step_ring(p->generation);
    run.state = s;
    run.self = p;
    run.op = p->op;
    run.direct = run.at = 0;
    run.budget = 1;
    if (setjmp(run.leave) != 0)
        return 0;
    call(&ring, p);
    p->generation = (uint8_t)ring.generation;
    call_over(p);
    return 1;
}

/* A call at one instant, on a copy of the state, as process p: for properties. */
static int call_now(state_t *s, op_t op, const process_t *p)
{
    process_t copy = *p;
    ring_t ring = step_ring(p->generation);
    run.state = s;
    run.self = &copy;
    run.op = op;
    run.direct = 1;
    call(&ring, &copy);
    return run.result;
}

#endif
