/* Who calls the ring when, which is the protocol of design 3, and what must hold in every state that
 * can be reached: for tests/test_ring_model.c alone, which includes it once and last.
 *
 * What must hold in every state that can be reached:
 *   - a loader writes payload only while the cell's word says CLAIMED by it
 *   - a commit finds both halves of the payload written for this batch and generation
 *   - the trainer, once ring_ready has said yes, finds every cell DONE with the right payload
 *   - every change of a word is a row of ring_transitions, and every row happens
 *   - a claim or commit whose batch, generation or owner differs from the word's fails
 *   - a CLAIMED word of the present generation has a holder, alive or about to be fenced
 *   - ring_find_empty gives the lowest EMPTY cell, when nothing is under way
 *   - from here the trainer can still receive all batches (no deadlock, nothing lost)
 * The trainer asks for batch after batch, so that one delivered twice or out of turn would have the
 * wrong payload.
 */
#ifndef SLUICE_TESTS_RING_MODEL_H
#define SLUICE_TESTS_RING_MODEL_H

#include "tests/ring_steps.h"
#include "tests/state_space.h"

#include <stdio.h>
#include <stdlib.h>

/* Between calls. A loader: FREE, FOUND a cell (honest views), HELD a claim, wrote HALF, WRITTEN,
 * DEAD and not fenced, FENCED. */
enum { FREE = 0, FOUND, HELD, HALF, WRITTEN, DEAD, FENCED };
/* The trainer: WAIT for its batch, READ it (cell by cell), RELEASE it, ENDED is dead, OVER has all. */
enum { WAIT = 0, READ, RELEASE, ENDED, OVER };

typedef enum {
    DO_CALL = 0,
    DO_CALL_STALE,
    DO_WRITE,
    DO_READ,
    DO_DIE,
    DO_RESPAWN,
} action_t;

typedef struct {
    state_space_t *space;
    const config_t *config;
    state_t *queue; /* states met and not yet expanded */
    uint32_t *ids;
    size_t head, tail, cap;
    uint32_t bad; /* the state in which a property failed */
    const char *violation;
} model_t;

static uint8_t stamp_of(uint32_t seq, uint32_t generation)
{
    return (uint8_t)(1 + seq + 16 * generation);
}

static int place_of_cell(const model_t *m, uint32_t seq, uint32_t cell)
{
    return (int)(seq % DEPTH) * m->config->cells + (int)cell;
}

static uint16_t word_of(uint32_t seq, uint32_t generation, uint32_t owner, uint32_t state)
{
    return pack_word(ring_word(seq, generation, owner, state));
}

static uint32_t cells_of(const model_t *m, uint32_t seq)
{
    return seq < (uint32_t)m->config->seqs ? (uint32_t)m->config->cells_of[seq] : 0;
}

static int loader_alive(const process_t *p)
{
    return p->pc != DEAD && p->pc != FENCED;
}

static int loader_holds(const process_t *p)
{
    return p->pc == HELD || p->pc == HALF || p->pc == WRITTEN || p->pc == DEAD;
}

/* ---- properties of a state ---- */

/* Any other view of the cell than the word's own must fail, whoever might still have it. */
static void check_compare(const model_t *m, const state_t *s, int place)
{
    uint16_t word = s->now[VAR_WORD + place];
    const uint32_t seq = word >> 12, generation = word >> 8 & 15, owner = word >> 4 & 15;
    const struct {
        uint32_t seq, generation, owner;
    } views[] = {
        {seq + DEPTH, generation, owner},
        {seq >= DEPTH ? seq - DEPTH : seq + 2 * DEPTH, generation, owner},
        {seq, generation + 1, owner},
        {seq, generation + 15, owner},
        {seq, generation, owner + 1},
    };
    int claimed = (word & 15) == RING_CLAIMED;
    if ((word & 15) == RING_DONE)
        return;
    for (size_t i = 0; i < sizeof views / sizeof views[0] - !claimed; i++) {
        state_t copy = *s;
        process_t p = {.seq = (uint8_t)views[i].seq,
                       .cell = (uint8_t)(place % m->config->cells),
                       .owner = (uint8_t)(claimed ? views[i].owner : 1),
                       .generation = (uint8_t)(views[i].generation % 16)};
        int won =
            claimed ? call_now(&copy, OP_COMMIT, &p) == 0 : call_now(&copy, OP_CLAIM, &p) == 1;
        if (won)
            run.violation =
                claimed ? "a stale commit would succeed" : "a stale claim would succeed";
    }
}

static void check_holders(const model_t *m, const state_t *s)
{
    for (int i = 0; i < DEPTH * m->config->cells; i++) {
        uint16_t word = s->now[VAR_WORD + i];
        int held = 0;
        check_compare(m, s, i);
        if ((word & 15) != RING_CLAIMED || (word >> 8 & 15) != s->now[VAR_GENERATION])
            continue;
        for (int k = 0; k < m->config->loaders; k++) {
            const process_t *p = &s->p[k];
            held |= loader_holds(p) && p->owner == (word >> 4 & 15);
        }
        if (!held)
            violated("a cell is CLAIMED by nobody: it would never be filled");
    }
}

/* With no call of trainer and coordinator under way, the search must see what is there. */
static void check_find(const model_t *m, const state_t *s)
{
    uint32_t tail = s->now[VAR_TAIL], lowest = UINT32_MAX;
    const process_t p = {.generation = (uint8_t)s->now[VAR_GENERATION]};
    if (s->p[COORDINATOR].op != OP_NONE || s->raised || s->p[TRAINER].op != OP_NONE ||
        s->p[TRAINER].pc == ENDED)
        return;
    for (uint32_t seq = tail; seq < tail + DEPTH && lowest == UINT32_MAX; seq++)
        for (uint32_t c = 0; c < cells_of(m, seq) && lowest == UINT32_MAX; c++)
            if ((s->now[VAR_WORD + place_of_cell(m, seq, c)] & 15) == RING_EMPTY)
                lowest = seq * 16 + c;
    state_t copy = *s;
    int rc = call_now(&copy, OP_FIND, &p);
    if (rc < 0 ? lowest != UINT32_MAX : run.found_seq * 16 + run.found_cell != lowest)
        violated("ring_find_empty does not give the lowest EMPTY cell");
}

static void check_state(const model_t *m, const state_t *s)
{
    check_holders(m, s);
    check_find(m, s);
}

/* ---- what follows ---- */

/* Of the states that differ only in what nobody will ever look at, or in the numbers of loaders
 * that do the same, one. Owners get the numbers 1.. anew: a fenced loader's has left all words. */
static void canonical(const model_t *m, state_t *s)
{
    int n = m->config->loaders;
    uint16_t owner_of[16] = {0};
    for (int i = 0; i < n; i++) {
        process_t *p = &s->p[i];
        if (!loader_alive(p))
            p->seq = p->cell = p->generation = 0;
        for (int k = i; k > 0; k--) {
            process_t a = s->p[k - 1], b = s->p[k], swap = a;
            a.owner = b.owner = 0;
            if (memcmp(&a, &b, sizeof a) <= 0)
                break;
            s->p[k - 1] = s->p[k];
            s->p[k] = swap;
        }
    }
    for (int i = 0; i < n; i++) {
        owner_of[s->p[i].owner] = (uint16_t)(i + 1);
        s->p[i].owner = (uint8_t)(i + 1);
    }
    s->p[COORDINATOR].owner = (uint8_t)owner_of[s->p[COORDINATOR].owner];
    for (int i = 0; i < DEPTH * m->config->cells; i++) {
        uint16_t *word = &s->now[VAR_WORD + i];
        uint16_t owner = (*word & 15) == RING_CLAIMED ? owner_of[*word >> 4 & 15] : 0;
        *word = (uint16_t)((*word & 0xff0f) | owner << 4);
        if ((*word & 15) == RING_EMPTY)
            s->stamp[i][0] = s->stamp[i][1] = 0; /* both halves will be written again */
    }
}

static void reached(model_t *m, state_t *s, uint32_t from, int who, action_t action)
{
    int fresh;
    if (m->violation)
        return;
    canonical(m, s);
    uint32_t id = space_state(m->space, s, sizeof *s, from, (uint32_t)who << 8 | action, &fresh);
    if (from != UINT32_MAX)
        space_edge(m->space, from, id);
    if (fresh) {
        if (m->tail == m->cap) {
            m->cap = m->cap ? 2 * m->cap : 1024;
            m->queue = realloc(m->queue, m->cap * sizeof *m->queue);
            m->ids = realloc(m->ids, m->cap * sizeof *m->ids);
            assert_non_null(m->queue);
            assert_non_null(m->ids);
        }
        m->queue[m->tail] = *s;
        m->ids[m->tail++] = id;
        if (!run.violation && !m->config->steps_alone)
            check_state(m, s);
        if (s->p[TRAINER].pc == OVER)
            space_goal(m->space, id);
    }
    if (run.violation) {
        m->violation = run.violation;
        m->bad = id;
    }
}

/* The next access of a call, in the state that is current and, if asked, from an old view. */
static void step_call(model_t *m, const state_t *s, uint32_t from, int who,
                      void (*over)(const model_t *, state_t *, process_t *, op_t))
{
    for (int stale = 0; stale <= (m->config->stale && who < TRAINER); stale++) {
        state_t next = *s;
        process_t *p = &next.p[who];
        op_t op = p->op;
        run.stale = stale;
        if (step(&next, p))
            over(m, &next, p, op);
        run.stale = 0;
        reached(m, &next, from, who, stale ? DO_CALL_STALE : DO_CALL);
    }
}

/* ---- loaders ---- */

static void loader_over(const model_t *m, state_t *s, process_t *p, op_t op)
{
    (void)s;
    (void)m;
    switch (op) {
    case OP_FIND:
        p->pc = run.result == 0 ? FOUND : FREE;
        p->seq = (uint8_t)(run.result == 0 ? run.found_seq : 0);
        p->cell = (uint8_t)(run.result == 0 ? run.found_cell : 0);
        break;
    case OP_CLAIM: p->pc = run.result == 1 ? HELD : FREE; break;
    default: p->pc = FREE; break; /* committed or not, given back, acknowledged */
    }
    if (p->pc == FREE)
        p->seq = p->cell = 0;
}

static void loader_call(model_t *m, const state_t *s, uint32_t from, int who, op_t op)
{
    state_t next = *s;
    next.p[who].op = (uint8_t)op;
    step_call(m, &next, from, who, loader_over);
}

/* Any cell that ever was or will be: no view that a loader could have is missing. */
static void loader_claims(model_t *m, const state_t *s, uint32_t from, int who)
{
    for (uint32_t seq = 0; seq < (uint32_t)m->config->seqs; seq++)
        for (uint32_t c = 0; c < cells_of(m, seq); c++) {
            state_t next = *s;
            next.p[who].seq = (uint8_t)seq;
            next.p[who].cell = (uint8_t)c;
            loader_call(m, &next, from, who, OP_CLAIM);
        }
}

/* The payload is written in two halves, each a step. */
static void loader_write(model_t *m, const state_t *s, uint32_t from, int who)
{
    state_t next = *s;
    process_t *p = &next.p[who];
    int place = place_of_cell(m, p->seq, p->cell);
    if (s->now[VAR_WORD + place] != word_of(p->seq, p->generation, p->owner, RING_CLAIMED))
        violated("a loader writes into a cell that is not its own");
    next.stamp[place][p->pc == HALF] = stamp_of(p->seq, p->generation);
    p->pc = p->pc == HALF ? WRITTEN : HALF;
    reached(m, &next, from, who, DO_WRITE);
}

static void loader_commit(model_t *m, const state_t *s, uint32_t from, int who)
{
    const process_t *p = &s->p[who];
    const uint8_t *stamp = s->stamp[place_of_cell(m, p->seq, p->cell)];
    uint8_t want = stamp_of(p->seq, p->generation);
    if (stamp[0] != want || stamp[1] != want)
        violated("a commit of a payload that is not whole");
    loader_call(m, s, from, who, OP_COMMIT);
}

static void loader_moves(model_t *m, const state_t *s, uint32_t from, int who)
{
    const process_t *p = &s->p[who];
    if (p->pc == FENCED) {
        state_t next = *s;
        next.p[who].pc = FREE;
        next.p[who].generation = (uint8_t)s->now[VAR_GENERATION]; /* ring_attach adopts */
        next.p[who].seq = next.p[who].cell = 0;
        reached(m, &next, from, who, DO_RESPAWN);
        return;
    }
    if (p->pc == DEAD)
        return;
    if (s->deaths < m->config->deaths) {
        state_t next = *s;
        call_over(&next.p[who]);
        next.p[who].pc = DEAD;
        next.deaths++;
        reached(m, &next, from, who, DO_DIE);
    }
    if (p->op != OP_NONE) {
        step_call(m, s, from, who, loader_over);
        return;
    }
    if (s->raised && p->generation != s->now[VAR_GENERATION]) {
        /* It forgets its cell, so writes to it no more, and adopts. */
        loader_call(m, s, from, who, OP_ADOPT);
    }
    if (p->pc == FREE && m->config->honest)
        loader_call(m, s, from, who, OP_FIND);
    else if (p->pc == FREE)
        loader_claims(m, s, from, who);
    else if (p->pc == FOUND)
        loader_call(m, s, from, who, OP_CLAIM);
    else if (p->pc == WRITTEN || (p->pc == HALF && m->config->mutation == EARLY_DONE))
        loader_commit(m, s, from, who);
    else
        loader_write(m, s, from, who);
    if (p->pc == HELD || p->pc == HALF)
        loader_call(m, s, from, who, OP_ABANDON);
}

/* ---- the trainer ---- */

static void trainer_over(const model_t *m, state_t *s, process_t *p, op_t op)
{
    (void)s;
    if (op == OP_READY) {
        p->pc = run.result ? READ : WAIT;
        p->cell = 0;
        return;
    }
    p->seq++;
    p->pc = p->seq == m->config->seqs ? OVER : WAIT;
}

static void trainer_read(model_t *m, const state_t *s, uint32_t from)
{
    state_t next = *s;
    process_t *p = &next.p[TRAINER];
    int place = place_of_cell(m, p->seq, p->cell);
    uint16_t word = s->now[VAR_WORD + place];
    uint8_t want = stamp_of(p->seq, p->generation);
    if ((word & 0xff0f) != word_of(p->seq, p->generation, 0, RING_DONE))
        violated("a batch was called ready with a cell that is not DONE");
    if (s->stamp[place][0] != want || s->stamp[place][1] != want)
        violated("the trainer reads a payload that is not the cell's");
    if (++p->cell == cells_of(m, p->seq)) {
        p->cell = 0;
        p->pc = RELEASE;
    }
    reached(m, &next, from, TRAINER, DO_READ);
}

static void trainer_moves(model_t *m, const state_t *s, uint32_t from)
{
    const process_t *p = &s->p[TRAINER];
    state_t next = *s;
    if (p->pc == OVER)
        return;
    if (p->pc == ENDED) {
        if (m->config->mutation == NO_REWIND) {
            next.p[TRAINER].pc = WAIT;
            next.p[TRAINER].seq = (uint8_t)s->now[VAR_TAIL];
            reached(m, &next, from, TRAINER, DO_RESPAWN);
        }
        return;
    }
    if (s->trainer_deaths < m->config->trainer_deaths) {
        state_t dead = *s;
        call_over(&dead.p[TRAINER]);
        dead.p[TRAINER].pc = ENDED;
        dead.p[TRAINER].cell = 0;
        dead.trainer_deaths++;
        reached(m, &dead, from, TRAINER, DO_DIE);
    }
    if (p->pc == READ) {
        trainer_read(m, s, from);
        return;
    }
    if (p->op == OP_NONE)
        next.p[TRAINER].op = p->pc == WAIT ? OP_READY : OP_RELEASE;
    run.next_cells = cells_of(m, p->seq + DEPTH);
    step_call(m, &next, from, TRAINER, trainer_over);
}

/* ---- the coordinator ---- */

static void set_window(const model_t *m, uint32_t seq)
{
    for (uint32_t i = 0; i < DEPTH; i++)
        run.window[i] = cells_of(m, seq + i);
}

static void coordinator_over(const model_t *m, state_t *s, process_t *p, op_t op)
{
    if (op == OP_RAISE)
        s->raised = 1;
    for (int i = 0; i < m->config->loaders && op == OP_FENCE; i++)
        if (s->p[i].owner == p->owner && s->p[i].pc == DEAD)
            s->p[i].pc = FENCED;
    if (op == OP_REWIND) {
        /* The new trainer attaches, and so adopts. */
        s->raised = 0;
        s->p[TRAINER].pc = WAIT;
        s->p[TRAINER].seq = p->seq;
        s->p[TRAINER].generation = (uint8_t)s->now[VAR_GENERATION];
    }
    p->seq = p->owner = 0;
}

static void coordinator_call(model_t *m, const state_t *s, uint32_t from, op_t op, uint8_t owner,
                             uint8_t seq)
{
    state_t next = *s;
    next.p[COORDINATOR].op = (uint8_t)op;
    next.p[COORDINATOR].owner = owner;
    next.p[COORDINATOR].seq = seq;
    set_window(m, seq);
    step_call(m, &next, from, COORDINATOR, coordinator_over);
}

/* Every live loader has acknowledged or is fenced. */
static int all_acknowledged(const model_t *m, const state_t *s)
{
    for (int i = 0; i < m->config->loaders; i++)
        if (s->p[i].pc == DEAD ||
            (loader_alive(&s->p[i]) && s->p[i].generation != s->now[VAR_GENERATION]))
            return 0;
    return 1;
}

static void coordinator_moves(model_t *m, const state_t *s, uint32_t from)
{
    const process_t *p = &s->p[COORDINATOR], *trainer = &s->p[TRAINER];
    mutation_t mutation = m->config->mutation;
    if (p->op != OP_NONE) {
        set_window(m, p->seq);
        step_call(m, s, from, COORDINATOR, coordinator_over);
        return;
    }
    for (int i = 0; i < m->config->loaders; i++) {
        const process_t *loader = &s->p[i];
        int may = mutation == FENCE_ALIVE ? loader_holds(loader) : loader->pc == DEAD;
        if (may && mutation == NO_FENCE) {
            state_t next = *s;
            next.p[i].pc = FENCED;
            reached(m, &next, from, COORDINATOR, DO_CALL);
        } else if (may) {
            coordinator_call(m, s, from, OP_FENCE, loader->owner, 0);
        }
    }
    int ended = trainer->pc == ENDED;
    if (mutation == TRAINER_ALIVE)
        ended = trainer->pc != OVER && s->now[VAR_GENERATION] == 0;
    if (ended && !s->raised && mutation != NO_REWIND)
        coordinator_call(m, s, from, OP_RAISE, 0, 0);
    if (!s->raised || !(all_acknowledged(m, s) || mutation == NO_ACKNOWLEDGE))
        return;
    /* To any batch up to the one it died at. */
    for (uint8_t seq = 0; seq <= trainer->seq; seq++)
        coordinator_call(m, s, from, OP_REWIND, 0, seq);
}

/* ---- exploring ---- */

static void begin(model_t *m, const config_t *config, state_t *s)
{
    memset(m, 0, sizeof *m);
    memset(s, 0, sizeof *s);
    m->config = run.config = config;
    m->space = space_new();
    m->bad = UINT32_MAX;
    run.violation = NULL;
    run.stale = 0;
    step_head.config = (ring_config_t){.depth = DEPTH, .cells = (uint32_t)config->cells};
    for (int i = 0; i < config->loaders; i++)
        s->p[i].owner = (uint8_t)(i + 1);
    set_window(m, 0);
    call_now(s, OP_NONE, &s->p[COORDINATOR]); /* ring_arm */
    reached(m, s, UINT32_MAX, 0, DO_CALL);
}

/* A violated property, or NULL. */
static const char *explore(model_t *m, const config_t *config)
{
    state_t s;
    begin(m, config, &s);
    while (m->head < m->tail && !m->violation) {
        s = m->queue[m->head];
        uint32_t id = m->ids[m->head++];
        if (m->head > 4096 && m->head > m->tail / 2) {
            memmove(m->queue, m->queue + m->head, (m->tail - m->head) * sizeof *m->queue);
            memmove(m->ids, m->ids + m->head, (m->tail - m->head) * sizeof *m->ids);
            m->tail -= m->head;
            m->head = 0;
        }
        for (int i = 0; i < config->loaders; i++)
            loader_moves(m, &s, id, i);
        trainer_moves(m, &s, id);
        coordinator_moves(m, &s, id);
    }
    if (!m->violation && space_stuck(m->space, &m->bad) > 0)
        m->violation = "a state from which the batches cannot all be received any more";
    return m->violation;
}

static void finish(model_t *m)
{
    free(m->queue);
    free(m->ids);
    space_free(&m->space);
}

/* Loaders are numbered anew in each state, by what they do. */
static void print_path(const model_t *m)
{
    static const char *const words[] = {
        "call", "call (stale view)", "write", "read", "die", "respawn",
    };
    uint32_t actions[64], n = space_path(m->space, m->bad, actions, 64);
    for (uint32_t i = 0; i < n && i < 64; i++) {
        uint32_t who = actions[i] >> 8;
        if (who < TRAINER)
            print_message("  loader %u: %s\n", who, words[actions[i] & 255]);
        else
            print_message("  %s: %s\n", who == TRAINER ? "trainer" : "coordinator",
                          words[actions[i] & 255]);
    }
}

#endif
