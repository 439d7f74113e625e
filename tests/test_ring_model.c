/* The ring's state machine in every interleaving: claim, commit, abandon, release, fence and
 * rewind, with a loader or the trainer dying at any step, and loaders with any stale view.
 *
 * The transitions are those of shm/ring.c itself (ring_steps.h runs it an access at a time); what
 * is stated here is who calls what when, which is the protocol of design 3: a fence after a death
 * that was seen, a rewind after all loaders have acknowledged and the trainer is seen dead.
 *
 * ring_model.h says what must hold. Bounds are small; each mutation of the protocol must be found
 * out.
 */
#include "tests/readme_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/ring_model.h"

/* All states, no violation. */
static void holds(const char *what, const config_t *config)
{
    model_t m;
    const char *violation = explore(&m, config);
    print_message("%s: %u states, %llu steps\n", what, space_states(m.space),
                  (unsigned long long)space_edges(m.space));
    if (violation) {
        print_message("violated: %s, after\n", violation);
        print_path(&m);
    }
    finish(&m);
    assert_null(violation);
}

static const config_t small = {
    .loaders = 2,
    .cells = 2,
    .seqs = 3,
    .cells_of = {2, 1, 2},
    .deaths = 1,
    .trainer_deaths = 1,
};

static const config_t honest = {
    .loaders = 2,
    .cells = 1,
    .seqs = 3,
    .cells_of = {1, 1, 1},
    .deaths = 1,
    .honest = 1,
};

static void test_any_view(void **state)
{
    (void)state;
    config_t c = small;
    memset(run.seen, 0, sizeof run.seen);
    c.seqs = 4;
    c.cells_of[3] = 2;
    holds("two loaders with any view, two cells, four batches", &c);
    for (int i = 0; i < RING_TRANSITION_COUNT; i++)
        if (run.seen[i] == 0)
            fail_msg("row %d of the table never happened (%s)", i, ring_transitions[i].function);
    c = small;
    c.loaders = 3;
    holds("three loaders with any view, two cells, three batches", &c);
    c = small;
    c.deaths = 2;
    c.trainer_deaths = 2;
    holds("two deaths of each kind", &c);
}

static void test_honest_views(void **state)
{
    (void)state;
    config_t c = honest;
    holds("two loaders that search the window", &c);
    c.loaders = 1;
    c.stale = 1;
    c.trainer_deaths = 1;
    holds("a loader that may read old values", &c);
}

/* The checker finds what is broken on purpose, and says the right thing of it. */
static void finds_in(const config_t *base, mutation_t mutation, int steps_alone, const char *want)
{
    config_t c = *base;
    model_t m;
    c.mutation = mutation;
    c.steps_alone = steps_alone;
    const char *violation = explore(&m, &c);
    print_message("mutation %d, after %u states: %s\n", (int)mutation, space_states(m.space),
                  violation ? violation : "nothing found");
    finish(&m);
    assert_non_null(violation);
    assert_non_null(strstr(violation, want));
}

static void finds(mutation_t mutation, int steps_alone, const char *want)
{
    finds_in(&small, mutation, steps_alone, want);
}

/* Without the batch in the compare, a loader that was slow between its search and its claim takes
 * the slot's next use. Generation and owner are the second of two locks, behind the acknowledgement
 * of a rewind and the death that is seen before a fence: no step of this model needs them, so what
 * finds them missing is the look at what any stale view could do. */
static void test_dropped_compares(void **state)
{
    (void)state;
    finds_in(&honest, DROP_SEQ, 1, "no row");
    finds(DROP_SEQ, 0, "stale");
    finds(DROP_GENERATION, 0, "stale");
    finds(DROP_OWNER, 0, "stale commit");
}

static void test_broken_fences(void **state)
{
    (void)state;
    finds(FENCE_ALIVE, 1, "not its own");
    finds(NO_FENCE, 1, "received any more");
    finds(NO_FENCE, 0, "CLAIMED by nobody");
}

static void test_broken_rewinds(void **state)
{
    (void)state;
    finds(NO_ACKNOWLEDGE, 1, "not its own");
    finds(TRAINER_ALIVE, 1, "not DONE");
    finds(NO_REWIND, 1, "received any more");
}

static void test_early_done(void **state)
{
    (void)state;
    finds(EARLY_DONE, 1, "not whole");
}

/* ---- the README ---- */

static const char *from_text(uint32_t from)
{
    return from == RING_FROM_ANY       ? "any"
           : from == RING_FROM_EMPTY   ? "EMPTY"
           : from == RING_FROM_CLAIMED ? "CLAIMED"
                                       : "DONE";
}

static void row_of(const ring_transition_t *t, const char *text[6])
{
    static const char *const to[] = {"EMPTY", "CLAIMED", "DONE"};
    static const char *const seq[] = {"the same", "+ depth", "any"};
    text[0] = t->function;
    text[1] = t->who;
    text[2] = from_text(t->from);
    text[3] = to[t->to];
    text[4] = seq[t->seq];
    text[5] = t->raised ? "new" : "the same";
}

static void test_readme(void **state)
{
    (void)state;
    static readme_table_t table;
    if (readme_table("shm/README.md", "## The claim word", &table) < 0) {
        print_message("no shm/README.md: set SLUICE_TESTS\n");
        skip();
    }
    for (int i = 0; i < RING_TRANSITION_COUNT || i < table.rows; i++) {
        const char *text[6];
        if (i >= RING_TRANSITION_COUNT)
            fail_msg("shm/README.md has a row that the code has not: %s", table.cell[i][0]);
        row_of(&ring_transitions[i], text);
        if (i >= table.rows)
            fail_msg("shm/README.md lacks the row of %s to %s", text[0], text[3]);
        for (int c = 0; c < 6; c++)
            if (strcmp(table.cell[i][c], text[c]) != 0)
                fail_msg("shm/README.md, row %d, column %d: '%s', the code says '%s'", i + 1, c + 1,
                         table.cell[i][c], text[c]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_view),         cmocka_unit_test(test_honest_views),
        cmocka_unit_test(test_dropped_compares), cmocka_unit_test(test_broken_fences),
        cmocka_unit_test(test_broken_rewinds),   cmocka_unit_test(test_early_done),
        cmocka_unit_test(test_readme),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
