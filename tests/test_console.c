/* tools/console: what is queued arrives whole and in order, and a reader that stands still holds up
 * nobody. */
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/console.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { LINES = 2000, ROOM = 64 << 10, READ_MS = 60000 };

static char *text;

/* All that comes until the pipe's other end is closed and, before that, until `end` was seen. */
static size_t read_until(int fd, const char *end)
{
    size_t n = 0, room = 4 << 20;
    free(text);
    text = calloc(1, room + 1);
    while (!end || !strstr(n > 200 ? text + n - 200 : text, end)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, READ_MS) != 1)
            fail_msg("nothing to read, %zu bytes so far", n);
        ssize_t got = read(fd, text + n, room - n);
        if (got <= 0)
            break;
        n += (size_t)got;
        text[n] = '\0';
    }
    return n;
}

static void all_arrives_in_order(void **state)
{
    (void)state;
    console_t *c;
    int out[2];
    assert_int_equal(pipe(out), 0);
    assert_int_equal(console_open(ROOM, &c), 0);
    for (int i = 0; i < LINES; i++) {
        char line[32];
        int n = snprintf(line, sizeof line, "line %04d\n", i);
        console_put(c, out[1], line, (size_t)n, 0);
    }
    read_until(out[0], "line 1999\n");
    console_close(&c, 5000);
    assert_null(c);
    for (int i = 0; i < LINES; i++) {
        char line[32];
        snprintf(line, sizeof line, "line %04d\n", i);
        assert_memory_equal(text + 10 * i, line, 10);
    }
    close(out[0]);
    close(out[1]);
}

static void fill_pipe(int fd)
{
    char block[4096] = {0};
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, block, sizeof block) > 0)
        continue;
    fcntl(fd, F_SETFL, flags);
}

/* A full pipe and a full queue, with nobody reading: every call comes back, what was left out is
 * counted, and what was kept is in order. */
static int newlines(const char *bytes, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += bytes[i] == '\n';
    return count;
}

static void a_reader_that_stands_still(void **state)
{
    (void)state;
    static const char note[] = " pieces of output left out: nobody read them)";
    console_t *c;
    int out[2];
    char line[1000], drained[4096];
    assert_int_equal(pipe(out), 0);
    assert_int_equal(console_open(ROOM, &c), 0);
    fill_pipe(out[1]);
    for (int i = 0; i < 2 * ROOM / 1000; i++) {
        memset(line, 'a' + i % 26, sizeof line);
        line[sizeof line - 1] = '\n';
        console_put(c, out[1], line, sizeof line, 0);
    }
    memset(line, 'P', sizeof line);
    for (int i = 0; i < 10; i++)
        console_put(c, out[1], line, sizeof line, 1);
    /* The pipe's filling, and behind it the first line: then there is room in the queue. */
    int lines = 0;
    do {
        ssize_t n = read(out[0], drained, sizeof drained);
        assert_true(n > 0);
        lines += newlines(drained, (size_t)n);
    } while (!memchr(drained, 'a', sizeof drained));
    console_put(c, out[1], "back\n", 5, 0);
    size_t n = read_until(out[0], "back\n");
    lines += newlines(text, n) - 1;
    /* Each line has come or is counted; more than one note where the writer took a line off meanwhile. */
    unsigned long lost = 0;
    for (const char *at = text; (at = strstr(at, note)); at += sizeof note - 1, lines--) {
        const char *count = at;
        while (count > text && count[-1] != '(')
            count--;
        lost += strtoul(count, NULL, 10);
    }
    assert_true(lost > 0);
    assert_int_equal(lost + (unsigned long)lines, 2 * ROOM / 1000);
    assert_null(strchr(text, 'P')); /* left out, and not counted */
    for (const char *at = strchr(text, '\n') + 1; at + 1000 < strchr(text, '('); at += 1000)
        assert_int_equal(at[999], '\n');
    console_close(&c, 5000);
    close(out[0]);
    close(out[1]);
}

static void closing_does_not_wait_for_ever(void **state)
{
    (void)state;
    console_t *c;
    int out[2];
    char block[8000];
    memset(block, 'y', sizeof block);
    assert_int_equal(pipe(out), 0);
    assert_int_equal(console_open(1 << 20, &c), 0);
    for (int i = 0; i < 40; i++)
        console_put(c, out[1], block, sizeof block, 0);
    console_close(&c, 50);
    assert_null(c);
    /* The writer ends with its reader; the end it writes to stays open as long as it may live. */
    close(out[0]);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_arrives_in_order),
        cmocka_unit_test(a_reader_that_stands_still),
        cmocka_unit_test(closing_does_not_wait_for_ever),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(text);
    return rc;
}
