/* The table of kill points: what the scripts that walk it rely on. With --list it prints the table
 * for them: name and who passes it, a line each.
 */
#include "shm/killpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_table(void **state)
{
    (void)state;
    static const char *const known[] = {
        "loader", "leaving", "bad", "trainer", "coordinator", "fence", "rewind", "checkpoint",
    };
    for (kill_point_t p = 0; p < KILL_POINT_COUNT; p++) {
        const char *name = kill_point_name(p), *who = kill_point_process(p);
        int found = 0;
        assert_int_equal(strcspn(name, ": \n"), strlen(name)); /* as the environment names it */
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            found |= strcmp(who, known[i]) == 0;
        if (!found)
            fail_msg("%s is passed by '%s', which no test looks for", name, who);
        for (kill_point_t q = 0; q < p; q++)
            assert_string_not_equal(name, kill_point_name(q));
    }
    assert_null(kill_point_name(KILL_POINT_COUNT));
    assert_null(kill_point_process(KILL_POINT_COUNT));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
    };
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (kill_point_t p = 0; p < KILL_POINT_COUNT; p++)
            printf("%s %s\n", kill_point_name(p), kill_point_process(p));
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
