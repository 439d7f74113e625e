/* tools/jsonline: what control/json writes is read back, and what is no flat object is refused. */
#include "control/json.h"
#include "shm/err.h"
#include "tools/jsonline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static jsonline_t m;

static void an_event_is_read_back(void **state)
{
    (void)state;
    char text[512];
    json_t j;
    json_begin(&j, text, sizeof text);
    json_object_begin(&j);
    json_key_string(&j, "path \"1\"", "a\\b\n\x7F/\xC3\xA4.jpg");
    json_key_number(&j, "seconds", -1.5e-7);
    json_key_bool(&j, "best", 1);
    json_key_string(&j, "none", NULL);
    json_object_end(&j);
    assert_true(json_finish(&j) > 0);
    const char *at = NULL;
    assert_int_equal(jsonline_next(text, &at, &m), 1);
    assert_string_equal(m.key, "path \"1\"");
    assert_string_equal(m.value, "a\\b\n\x7F/\xC3\xA4.jpg");
    assert_int_equal(jsonline_next(text, &at, &m), 1);
    assert_string_equal(m.key, "seconds");
    assert_string_equal(m.value, "-1.5e-07");
    assert_int_equal(jsonline_next(text, &at, &m), 1);
    assert_string_equal(m.value, "true");
    assert_int_equal(jsonline_next(text, &at, &m), 1);
    assert_string_equal(m.value, "null");
    assert_int_equal(jsonline_next(text, &at, &m), 0);
}

/* The result at the line's end. */
static int whole(const char *line)
{
    const char *at = NULL;
    int rc;
    while ((rc = jsonline_next(line, &at, &m)) == 1)
        ;
    return rc;
}

static void other_writers_are_understood(void **state)
{
    (void)state;
    const char *at = NULL;
    assert_int_equal(whole("{}"), 0);
    assert_int_equal(whole(" { \"a\" : 0 ,\t\"b\":-0.25E+3 } \n"), 0);
    const char *line = "{\"s\":\"\\u0041\\u00e4\\u20ac\\ud83d\\u0000\\t\\/\"}";
    assert_int_equal(jsonline_next(line, &at, &m), 1);
    assert_string_equal(m.value, "A\xC3\xA4\xE2\x82\xAC\xEF\xBF\xBD\xEF\xBF\xBD\t/");
}

static void what_is_no_flat_object_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1",
        "{\"a\":1,}",
        "{,\"a\":1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":{}}",
        "{\"a\":[]}",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":1e}",
        "{\"a\":-}",
        "{\"a\":nul}",
        "{a:1}",
        "{\"a\":1}x",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12\"}",
        "{\"a\":\"",
        "{\"a\":\"\\",
        "{\"a\":\"\xFF\"}",
        "{\"a\":1}{",
        "{\"a\":truex}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(whole(bad[i]), ERR_FAILED);
}

static void what_is_too_long_is_refused(void **state)
{
    (void)state;
    static char line[20000];
    memcpy(line, "{\"a\":\"", 6);
    memset(line + 6, 'x', sizeof m.value - 1);
    memcpy(line + 6 + sizeof m.value - 1, "\"}", 3);
    assert_int_equal(whole(line), 0);
    memcpy(line + 6 + sizeof m.value - 1, "x\"}", 4);
    assert_int_equal(whole(line), ERR_FAILED);
    memcpy(line, "{\"", 2);
    memset(line + 2, 'k', sizeof m.key);
    memcpy(line + 2 + sizeof m.key, "\":1}", 5);
    assert_int_equal(whole(line), ERR_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_read_back),
        cmocka_unit_test(other_writers_are_understood),
        cmocka_unit_test(what_is_no_flat_object_is_refused),
        cmocka_unit_test(what_is_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
