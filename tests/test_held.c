/* control/held: processes that the kernel does not end cannot be made here, so what /proc shows of
 * them is recorded; and what follows from it. */
#include "control/held.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char root[SCRATCH_PATH];

static int make_root(void **state)
{
    (void)state;
    scratch_begin(root);
    scratch_text(root, "proc/self/comm", "sluice\n");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    scratch_end(root);
    return 0;
}

/* A thread of process 40 as `stat` and `wchan` show it. */
static void thread(int tid, const char *name, char state, const char *where)
{
    char path[128], text[512];
    snprintf(path, sizeof path, "proc/40/task/%d/stat", tid);
    snprintf(text, sizeof text,
             "%d (%s) %c 1 40 40 0 -1 4194560 1312 0 0 0 3 1 0 0 20 0 4 0 8812 0 0 "
             "18446744073709551615 0 0 0 0 0 0 256 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 9\n",
             tid, name, state);
    scratch_text(root, path, text);
    snprintf(path, sizeof path, "proc/40/task/%d/wchan", tid);
    scratch_text(root, path, where);
}

/* A loader in a hard NFS mount whose server is gone: its main thread has ended, io_uring's workers
 * wait for pages. */
static void test_dead_mount(void **state)
{
    held_state_t s;
    (void)state;
    thread(40, "sluice-loader", 'Z', "0");
    thread(41, "iou-wrk-40", 'D', "rpc_wait_bit_killable");
    thread(42, "iou-wrk-40", 'D', "folio_wait_bit_common");
    assert_int_equal(held_look(root, 40, &s), 0);
    assert_int_equal(s.threads, 3);
    assert_int_equal(s.waiting, 2);
    assert_int_equal(s.gone, 1);
    assert_true(strstr(s.where, "wait_bit") != NULL);
    assert_true(held_inert(&s));
}

/* Any thread that may still run makes it live: also one in an interruptible wait, or stopped. */
static void test_live(void **state)
{
    static const char states[] = "RSTtI";
    held_state_t s;
    (void)state;
    thread(40, "sluice-loader", 'D', "0");
    for (int i = 0; states[i]; i++) {
        thread(41, "ZMQbg/IO/0", states[i], "0");
        assert_int_equal(held_look(root, 40, &s), 0);
        assert_int_equal(s.threads, 2);
        assert_string_equal(s.where, "");
        assert_false(held_inert(&s));
    }
}

/* The name of a thread is anybody's to choose. */
static void test_names(void **state)
{
    held_state_t s;
    (void)state;
    thread(40, "a) R (b", 'D', "fuse_wait\n");
    thread(41, ") ", 'Z', "");
    assert_int_equal(held_look(root, 40, &s), 0);
    assert_string_equal(s.where, "fuse_wait");
    assert_true(held_inert(&s));
    /* A file that says nothing proves nothing. */
    scratch_text(root, "proc/40/task/42/stat", "");
    assert_int_equal(held_look(root, 40, &s), 0);
    assert_false(held_inert(&s));
}

static void test_nothing_to_see(void **state)
{
    held_state_t s;
    (void)state;
    assert_int_equal(held_look(root, 77, &s), 1);
    assert_false(held_inert(&s));
    assert_int_equal(held_look("/nonexistent", 40, &s), -1);
    /* The live system: this process runs. */
    assert_int_equal(held_look("", getpid(), &s), 0);
    assert_true(s.threads >= 1);
    assert_false(held_inert(&s));
}

/* The life of a held process, look by look. */
static void test_decisions(void **state)
{
    (void)state;
    static const struct {
        held_case_t in;
        held_action_t out;
    } cases[] = {
        /* loader, leaving, told, inert, held */
        {{1, 0, 0, 0, 0}, HELD_SAY},
        {{1, 0, 1, 0, 0}, HELD_WAIT},
        {{1, 0, 0, 1, 0}, HELD_SAY}, /* one look is not enough */
        {{1, 0, 1, 1, 0}, HELD_WAIT},
        {{1, 0, 1, 2, 0}, HELD_RETURN},
        {{1, 0, 0, 2, HELD_MOST - 1}, HELD_RETURN},
        {{1, 0, 1, 2, HELD_MOST}, HELD_FAIL},
        {{0, 0, 1, 9, 0}, HELD_WAIT}, /* a scribe or rank has no cells to return */
        {{0, 0, 0, 9, HELD_MOST}, HELD_SAY},
        {{1, 1, 0, 0, 0}, HELD_LEAVE},
        {{1, 1, 1, 2, HELD_MOST}, HELD_LEAVE},
        {{0, 1, 0, 0, 0}, HELD_LEAVE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(held_decide(&cases[i].in), cases[i].out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_dead_mount, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_live, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_names, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_nothing_to_see, make_root, remove_root),
        cmocka_unit_test(test_decisions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
