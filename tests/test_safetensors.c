/* The safetensors reader and writer: round trips, and files made to hurt. */
#include "shm/err.h"
#include "trainer/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* A file image from header text and `data` bytes behind it. */
static unsigned char *image(const char *header, size_t data, uint64_t *bytes)
{
    size_t n = strlen(header);
    unsigned char *p = calloc(1, 8 + n + data + 1);
    assert_non_null(p);
    for (int i = 0; i < 8; i++)
        p[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(p + 8, header, n);
    for (size_t i = 0; i < data; i++)
        p[8 + n + i] = (unsigned char)i;
    *bytes = 8 + n + data;
    return p;
}

static int load(const char *header, size_t data)
{
    uint64_t bytes;
    safetensors_t *f;
    unsigned char *p = image(header, data, &bytes);
    int rc = safetensors_load_memory(p, bytes, "test", &f);
    assert_true((rc == 0) == (f != NULL));
    safetensors_free(&f);
    free(p);
    return rc;
}

/* Refused, with this in the sentence. */
static void refuse(const char *header, size_t data, const char *why)
{
    assert_int_equal(load(header, data), ERR_CONFIG);
    if (!strstr(err_text(), why))
        fail_msg("'%s' lacks '%s' for %s", err_text(), why, header);
}

static safetensors_writer_t *sample(void)
{
    static const float f[6] = {1, -2, 3.5f, 0, 1e30f, -1e-30f};
    static const uint8_t u[3] = {7, 8, 9};
    const int64_t counter = 41;
    safetensors_writer_t *w;
    assert_int_equal(safetensors_writer_new(&w), 0);
    assert_int_equal(safetensors_writer_add(w, "bytes", "U8", (int64_t[]){3}, 1, u, 3), 0);
    assert_int_equal(
        safetensors_writer_add(w, "a.b\"\\\n\xC3\xA4", "F32", (int64_t[]){2, 3}, 2, f, 24), 0);
    assert_int_equal(safetensors_writer_add(w, "n", "I64", NULL, 0, &counter, 8), 0);
    assert_int_equal(safetensors_writer_add(w, "none", "F32", (int64_t[]){4, 0}, 2, NULL, 0), 0);
    assert_int_equal(safetensors_writer_metadata(w, "names", "{\"0\": \"a\tb\"}"), 0);
    assert_int_equal(safetensors_writer_metadata(w, "stride", "32"), 0);
    return w;
}

static void check_sample(const safetensors_t *f)
{
    float value;
    int64_t counter;
    assert_int_equal(safetensors_count(f), 4);
    assert_string_equal(safetensors_at(f, 0)->name, "bytes");
    assert_null(safetensors_at(f, 4));
    const safetensors_entry_t *e = safetensors_find(f, "a.b\"\\\n\xC3\xA4");
    assert_non_null(e);
    assert_string_equal(e->dtype, "F32");
    assert_int_equal(e->ndim, 2);
    assert_int_equal(e->shape[0], 2);
    assert_int_equal(e->shape[1], 3);
    memcpy(&value, (const char *)e->data + 4 * 4, 4);
    assert_true(value == 1e30f);
    e = safetensors_find(f, "n");
    assert_int_equal(e->ndim, 0);
    memcpy(&counter, e->data, 8);
    assert_int_equal(counter, 41);
    assert_memory_equal(safetensors_find(f, "bytes")->data, "\7\10\11", 3);
    assert_int_equal(safetensors_find(f, "none")->bytes, 0);
    assert_null(safetensors_find(f, "absent"));
    assert_string_equal(safetensors_metadata(f, "names"), "{\"0\": \"a\tb\"}");
    assert_string_equal(safetensors_metadata(f, "stride"), "32");
    assert_null(safetensors_metadata(f, "other"));
}

static void test_round_trip(void **state)
{
    (void)state;
    safetensors_t *f;
    safetensors_writer_t *w = sample();
    uint64_t bytes = safetensors_writer_bytes(w);
    unsigned char *p = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, p, bytes - 1), ERR_FAILED);
    assert_int_equal(safetensors_writer_image(w, p, bytes), 0);
    safetensors_writer_free(&w);
    assert_int_equal(safetensors_load_memory(p, bytes, "memory", &f), 0);
    check_sample(f);
    /* Wide elements first, so all are aligned. */
    assert_int_equal((uintptr_t)((const char *)safetensors_find(f, "n")->data - (char *)p) % 8, 0);
    assert_int_equal((uintptr_t)((const char *)safetensors_at(f, 1)->data - (char *)p) % 4, 0);
    safetensors_free(&f);

    char path[] = "/tmp/sluice-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, p, bytes), (ssize_t)bytes);
    close(fd);
    assert_int_equal(safetensors_load_file(path, &f), 0);
    check_sample(f);
    safetensors_free(&f);
    unlink(path);
    assert_int_equal(safetensors_load_file(path, &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), path));
    assert_int_equal(safetensors_load_file("/tmp", &f), ERR_CONFIG);
    /* A pipe that nobody writes to does not hold us. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(safetensors_load_file(path, &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "not a regular file"));
    unlink(path);
    free(p);
}

/* Every shorter file is refused, and so is every longer one. */
static void test_truncated(void **state)
{
    (void)state;
    safetensors_t *f;
    safetensors_writer_t *w = sample();
    uint64_t bytes = safetensors_writer_bytes(w);
    unsigned char *p = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, p, bytes), 0);
    for (uint64_t n = 0; n < bytes; n++) {
        unsigned char *shorter = malloc(n ? n : 1); /* its own block: a sanitizer sees an overrun */
        memcpy(shorter, p, n);
        assert_int_equal(safetensors_load_memory(shorter, n, "cut", &f), ERR_CONFIG);
        assert_null(f);
        free(shorter);
    }
    safetensors_writer_free(&w);
    free(p);
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, "bytes follow");
}

/* No single changed byte may crash the reader; a sanitizer run makes this test sharp. */
static void test_flipped(void **state)
{
    (void)state;
    safetensors_writer_t *w = sample();
    uint64_t bytes = safetensors_writer_bytes(w);
    unsigned char *p = malloc(bytes);
    assert_int_equal(safetensors_writer_image(w, p, bytes), 0);
    static const unsigned char values[] = {0,   1,   '"', '\\', '{',  '}', '[',
                                           ']', ',', ':', '9',  0x80, 0xFF};
    int accepted = 0, refused = 0;
    for (uint64_t i = 0; i < bytes; i++) {
        unsigned char old = p[i];
        for (size_t v = 0; v < sizeof values; v++) {
            safetensors_t *f;
            p[i] = values[v];
            if (safetensors_load_memory(p, bytes, "flipped", &f) == 0)
                accepted++;
            else
                refused++;
            safetensors_free(&f);
        }
        p[i] = old;
    }
    assert_true(accepted > 0);
    assert_true(refused > accepted);
    safetensors_writer_free(&w);
    free(p);
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_layout(void **state)
{
    (void)state;
    assert_int_equal(load("{}", 0), 0);
    assert_int_equal(load("{ \"__metadata__\" : { } }  ", 0), 0);
    assert_int_equal(load("{" T("b", "U8", "[2]", "[2,4]") "," T("a", "U8", "[2]", "[0,2]") "}", 4),
                     0);
    refuse("{" T("a", "U8", "[3]", "[0,3]") "," T("b", "U8", "[2]", "[2,4]") "}", 4, "overlaps");
    refuse("{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, "overlaps");
    refuse("{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[2]", "[2,4]") "}", 4, "hole");
    refuse("{" T("a", "U8", "[2]", "[2,4]") "}", 4, "hole");
    refuse("{" T("a", "F32", "[2]", "[0,4]") "}", 4, "4 bytes where its shape asks for 8");
    refuse("{" T("a", "U8", "[4]", "[0,8]") "}", 8, "asks for 4");
    refuse("{" T("a", "U8", "[2]", "[2,0]") "}", 4, "outside");
    refuse("{" T("a", "U8", "[9]", "[0,9]") "}", 4, "outside");
    refuse("{" T("a", "U8", "[4294967296,4294967296,2]", "[0,4]") "}", 4, "too large");
    refuse("{" T("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, "too large");
    refuse("{" T("a", "U8", "[9223372036854775808]", "[0,4]") "}", 4, "too large");
    refuse("{" T("a", "F33", "[1]", "[0,4]") "}", 4, "unknown dtype F33");
    refuse("{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "too many");
    refuse("{" T("a", "U8", "[1]", "[0,1,1]") "}", 1, "too many");
    refuse("{" T("a", "U8", "[1]", "[1]") "}", 1, "pair");
    refuse("{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[0]", "[1,1]") "," T("a", "U8", "[1]",
                                                                                   "[1,2]") "}",
           2, "a appears twice");
}

static void test_header(void **state)
{
    (void)state;
    safetensors_t *f;
    unsigned char huge[16] = {0, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'};
    assert_int_equal(safetensors_load_memory(huge, sizeof huge, "huge", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "100 MB"));
    unsigned char beyond[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}', ' ', ' ', ' ', ' ', ' ', ' '};
    assert_int_equal(safetensors_load_memory(beyond, sizeof beyond, "beyond", &f), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "longer than the file"));
    refuse("", 0, "begin with {");
    refuse(" {}", 0, "begin with {");
    refuse("{}x", 0, "text follows");
    refuse("{", 0, "too early");
    refuse("{\"a\"}", 0, "colon");
    refuse("{\"a\":{}}", 0, "string is missing");
    refuse("{\"a\":{\"dtype\":\"U8\"}}", 0, "lacks");
    refuse("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "field appears twice");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"x\":1}}", 0,
           "other than");
    refuse("{\"a\":{\"dtype\":\"LONGDTYPE\"}}", 0, "too long");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[01]}}", 0, "leading zero");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1]}}", 0, "whole number");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1.5]}}", 0, "bracket");
    refuse("{\"a\":{\"dtype\":\"U8\",\"shape\":[1e3]}}", 0, "bracket");
    refuse("{\"__metadata__\":{\"k\":1}}", 0, "string is missing");
    refuse("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice");
}

static void test_strings(void **state)
{
    (void)state;
    uint64_t bytes;
    safetensors_t *f;
    unsigned char *p = image(
        "{\"__metadata__\":{\"k\\u0041\":\"\\u00e4\\u20ac\\ud83d\\ude00\\/\\n\"}}", 0, &bytes);
    assert_int_equal(safetensors_load_memory(p, bytes, "text", &f), 0);
    assert_string_equal(safetensors_metadata(f, "kA"), "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80/\n");
    safetensors_free(&f);
    free(p);
    refuse("{\"a\\u0000b\":{}}", 0, "NUL");
    refuse("{\"\\ud83d\":{}}", 0, "surrogate");
    refuse("{\"\\ude00\":{}}", 0, "surrogate");
    refuse("{\"\\ud83d\\u0041\":{}}", 0, "surrogate");
    refuse("{\"\\u12g4\":{}}", 0, "hexadecimal");
    refuse("{\"\\x\":{}}", 0, "escape");
    refuse("{\"a\nb\":{}}", 0, "control");
    refuse("{\"\xC0\x80\":{}}", 0, "UTF-8");
    refuse("{\"\xED\xA0\x80\":{}}", 0, "UTF-8");
    refuse("{\"abc", 0, "no end");
    refuse("{\"abc\\", 0, "no end");
    refuse("{\"abc\\u12", 0, "cut short");
}

static void test_writer_refuses(void **state)
{
    (void)state;
    safetensors_writer_t *w = sample();
    uint64_t before = safetensors_writer_bytes(w);
    assert_int_equal(safetensors_writer_add(w, "x", "F32", (int64_t[]){2}, 1, "1234", 4),
                     ERR_FAILED);
    assert_int_equal(safetensors_writer_add(w, "x", "F9", (int64_t[]){1}, 1, "1234", 4),
                     ERR_FAILED);
    assert_int_equal(safetensors_writer_add(w, "n", "U8", (int64_t[]){4}, 1, "1234", 4),
                     ERR_FAILED);
    assert_int_equal(safetensors_writer_add(w, "x", "U8", (int64_t[]){-4}, 1, "1234", 4),
                     ERR_FAILED);
    assert_int_equal(safetensors_writer_bytes(w), before);
    safetensors_writer_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_flipped),        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_header),         cmocka_unit_test(test_strings),
        cmocka_unit_test(test_writer_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
