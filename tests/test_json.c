/* control/json: what is written, what is refused, and that the buffer is never overrun. */
#include "control/json.h"
#include "control/text.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void writes_nested_values(void **state)
{
    (void)state;
    char text[512];
    json_t j;
    json_begin(&j, text, sizeof text);
    json_object_begin(&j);
    json_key_string(&j, "kind", "epoch");
    json_key_int(&j, "low", INT64_MIN);
    json_key_uint(&j, "high", UINT64_MAX);
    json_key_bool(&j, "yes", 7);
    json_key_bool(&j, "no", 0);
    json_key_string(&j, "none", NULL);
    json_key(&j, "list");
    json_array_begin(&j);
    json_int(&j, 1);
    json_object_begin(&j);
    json_object_end(&j);
    json_array_begin(&j);
    json_array_end(&j);
    json_number(&j, 0.5);
    json_array_end(&j);
    json_key_number(&j, "last", 1e300);
    json_object_end(&j);
    const char *want =
        "{\"kind\":\"epoch\",\"low\":-9223372036854775808,\"high\":18446744073709551615,"
        "\"yes\":true,\"no\":false,\"none\":null,\"list\":[1,{},[],0.5],\"last\":1e+300}";
    assert_int_equal(json_finish(&j), (int)strlen(want));
    assert_string_equal(text, want);
}

static void escapes_strings(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", "\"\""},
        {"a \"b\" \\c/", "\"a \\\"b\\\" \\\\c/\""},
        {"\n\t\x01\x7f", "\"\\u000a\\u0009\\u0001\\u007f\""},
        {"K\xC3\xA4se \xE2\x82\xAC \xF0\x9F\x90\x9F",
         "\"K\xC3\xA4se \xE2\x82\xAC \xF0\x9F\x90\x9F\""},
        {"\xFF"
         "a\xC3",
         "\"\xEF\xBF\xBD"
         "a\xEF\xBF\xBD\""},                                          /* stray and cut-off bytes */
        {"\xC0\xAF", "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},                 /* overlong */
        {"\xED\xA0\x80", "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""}, /* surrogate */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128];
        json_t j;
        json_begin(&j, text, sizeof text);
        json_string(&j, cases[i].in);
        assert_true(json_finish(&j) > 0);
        assert_string_equal(text, cases[i].out);
    }
}

static void numbers_read_back(void **state)
{
    (void)state;
    static const double values[] = {0,   -0.0,    1,       30,      1e6,    123456789,
                                    0.1, 1.0 / 3, DBL_MAX, DBL_MIN, -5e-324};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[64];
        json_t j;
        json_begin(&j, text, sizeof text);
        json_number(&j, values[i]);
        assert_true(json_finish(&j) > 0);
        double back = strtod(text, NULL);
        assert_memory_equal(&back, &values[i], sizeof back);
    }
    char text[TEXT_DOUBLE_BYTES];
    text_double(text, 30);
    assert_string_equal(text, "30");
    text_double(text, 0.937);
    assert_string_equal(text, "0.937");
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        json_t j;
        json_begin(&j, text, sizeof text);
        json_number(&j, odd[i]);
        assert_int_equal(json_finish(&j), 4);
        assert_string_equal(text, "null");
    }
}

/* Every room from 1 byte up: terminated within it, and success exactly when the text fits. */
static void stays_in_its_room(void **state)
{
    (void)state;
    const char *want = "{\"a\":[1,\"x\\\"\"]}";
    for (size_t room = 1; room <= strlen(want) + 4; room++) {
        char *text = malloc(room + 1);
        assert_non_null(text);
        text[room] = 'Z';
        json_t j;
        json_begin(&j, text, room);
        json_object_begin(&j);
        json_key(&j, "a");
        json_array_begin(&j);
        json_int(&j, 1);
        json_string(&j, "x\"");
        json_array_end(&j);
        json_object_end(&j);
        int n = json_finish(&j);
        assert_int_equal(text[room], 'Z');
        assert_true(strlen(text) < room);
        if (room > strlen(want))
            assert_string_equal(text, want);
        else
            assert_int_equal(n, ERR_FAILED);
        free(text);
    }
}

static void refuses_what_is_not_json(void **state)
{
    (void)state;
    char text[256];
    for (int wrong = 0; wrong < 8; wrong++) {
        json_t j;
        json_begin(&j, text, sizeof text);
        switch (wrong) {
        case 0: break; /* nothing at all */
        case 1:
            json_int(&j, 1);
            json_int(&j, 2); /* two top values */
            break;
        case 2: json_object_begin(&j); break; /* left open */
        case 3:
            json_object_begin(&j);
            json_int(&j, 1); /* no key */
            json_object_end(&j);
            break;
        case 4:
            json_object_begin(&j);
            json_key(&j, "a"); /* no value */
            json_object_end(&j);
            break;
        case 5:
            json_array_begin(&j);
            json_key(&j, "a"); /* a key in an array */
            json_array_end(&j);
            break;
        case 6:
            json_array_begin(&j);
            json_object_end(&j); /* the wrong end */
            break;
        case 7:
            for (int i = 0; i <= JSON_DEPTH; i++)
                json_array_begin(&j); /* too deep */
            break;
        }
        assert_int_equal(json_finish(&j), ERR_FAILED);
    }
}

static void text_from_outside_drives_no_terminal(void **state)
{
    (void)state;
    char line[] = "a\tb\x1b[31m\x7f \xC3\xA4\n";
    text_printable(line);
    assert_string_equal(line, "a b [31m  \xC3\xA4 ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_from_outside_drives_no_terminal),
        cmocka_unit_test(writes_nested_values),
        cmocka_unit_test(escapes_strings),
        cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(stays_in_its_room),
        cmocka_unit_test(refuses_what_is_not_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
