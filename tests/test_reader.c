/* Both engines of the reader: what is read, what is refused and why, many at once, reuse of
 * buffers, and what is not the file's fault. The threads' calls are interposed here (pread below),
 * so that they can be made to fail. */
#include "loader/reader.h"
#include "loader/reader_engine.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tests/scratch.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { DEPTH = 8, DEADLINE_MS = 60000 };

/* What the next calls of pread are to meet: an errno each, or -1 for a read that comes short. */
static struct {
    int list[16];
    _Atomic int at, count;
} faults;

/* Stands before libc's for the whole program. */
ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    static ssize_t (*real)(int, void *, size_t, off_t);
    if (!real)
        real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    int i = faults.at;
    if (i < faults.count) {
        faults.at = i + 1;
        if (faults.list[i] > 0) {
            errno = faults.list[i];
            return -1;
        }
        bytes = bytes > 3 ? 3 : bytes;
    }
    return real(fd, to, bytes, at);
}

static void set_faults(const int *list, int count)
{
    memcpy(faults.list, list, (size_t)count * sizeof *list);
    faults.at = 0;
    faults.count = count;
}

typedef struct {
    reader_t *reader;
    char folder[SCRATCH_PATH];
} fixture_t;

static int begin(void **state, opt_io_t io)
{
    fixture_t *f = calloc(1, sizeof *f);
    if (reader_new(io, DEPTH, &f->reader) < 0) {
        print_message("no %s here: %s\n", io == OPT_IO_URING ? "io_uring" : "threads", err_text());
        free(f);
        f = NULL;
    } else {
        scratch_begin(f->folder);
    }
    *state = f;
    return 0;
}

static int begin_uring(void **state)
{
    return begin(state, OPT_IO_URING);
}

static int begin_threads(void **state)
{
    return begin(state, OPT_IO_THREADS);
}

static int end(void **state)
{
    fixture_t *f = *state;
    if (f) {
        assert_int_equal(reader_free(&f->reader), 0);
        scratch_end(f->folder);
        free(f);
    }
    return 0;
}

static fixture_t *fixture(void **state)
{
    if (!*state)
        skip();
    return *state;
}

static void wait_done(fixture_t *f, reader_file_t *files, int n)
{
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    for (int i = 0; i < n;) {
        assert_true(clock_ns() < deadline);
        assert_int_equal(reader_poll(f->reader, 20), 0);
        while (i < n && reader_state(&files[i]) == READER_DONE)
            i++;
    }
    /* A thread counts a file a moment after it says DONE. */
    while (reader_in_flight(f->reader) > 0) {
        assert_true(clock_ns() < deadline);
        assert_int_equal(reader_poll(f->reader, 20), 0);
    }
}

/* Bytes that tell the file and the place. */
static void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 31 + i / 251 + seed * 17);
}

static const char *make_file(fixture_t *f, const char *name, size_t bytes, unsigned seed)
{
    uint8_t *data = malloc(bytes + 1);
    fill(data, bytes, seed);
    char *path = strdup(scratch_write(f->folder, name, data, bytes));
    free(data);
    return path;
}

static void check_content(const reader_file_t *file, size_t bytes, unsigned seed)
{
    uint8_t *want = malloc(bytes + 1);
    fill(want, bytes, seed);
    assert_int_equal(reader_verdict(file), 0);
    assert_int_equal(file->bytes, bytes);
    assert_memory_equal(file->data, want, bytes);
    free(want);
}

static void test_one(void **state)
{
    fixture_t *f = fixture(state);
    reader_file_t file = {0};
    const char *path = make_file(f, "a b 'ü.bin", 300001, 1);
    for (int again = 0; again < 3; again++) {
        assert_int_equal(reader_submit(f->reader, &file, path, 300001), 0);
        wait_done(f, &file, 1);
        check_content(&file, 300001, 1);
        reader_forget(&file);
    }
    assert_true(reader_state(&file) == READER_IDLE);
    reader_file_fini(&file);
    free((char *)path);
}

/* The buffer is kept and only grows. */
static void test_reuse(void **state)
{
    fixture_t *f = fixture(state);
    reader_file_t file = {0};
    const size_t sizes[] = {5000, 100, 4000, 0, 5000};
    uint8_t *data = NULL;
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.bin", i);
        const char *path = make_file(f, name, sizes[i], (unsigned)i);
        assert_int_equal(reader_submit(f->reader, &file, path, sizes[i]), 0);
        wait_done(f, &file, 1);
        check_content(&file, sizes[i], (unsigned)i);
        assert_true(!data || data == file.data);
        data = file.data;
        reader_forget(&file);
        free((char *)path);
    }
    reader_file_fini(&file);
}

static void check_refused(fixture_t *f, const char *path, uint64_t expected, const char *part)
{
    reader_file_t file = {0};
    assert_int_equal(reader_submit(f->reader, &file, path, expected), 0);
    wait_done(f, &file, 1);
    assert_int_equal(reader_verdict(&file), ERR_DATA);
    if (!strstr(err_text(), part))
        fail_msg("'%s' does not say '%s'", err_text(), part);
    reader_forget(&file);
    reader_file_fini(&file);
}

static void test_refused(void **state)
{
    fixture_t *f = fixture(state);
    const char *path = make_file(f, "a.bin", 5000, 1);
    char missing[2 * SCRATCH_PATH];
    snprintf(missing, sizeof missing, "%s/none", f->folder);
    check_refused(f, missing, 10, "No such file");
    check_refused(f, f->folder, 10, "directory");
    check_refused(f, path, 5001, "ends after 5000 of the 5001");
    check_refused(f, path, 4999, "grown");
    check_refused(f, path, 0, "grown");
    snprintf(missing, sizeof missing, "%s/pipe", f->folder);
    assert_int_equal(mkfifo(missing, 0600), 0);
    check_refused(f, missing, 10, "not a file any more");
    int writer = open(missing, O_RDWR); /* nor does one that could be waited for hold a read */
    check_refused(f, missing, 10, "not a file any more");
    close(writer);
    if (geteuid() != 0) {
        assert_int_equal(chmod(path, 0), 0);
        check_refused(f, path, 5000, "denied");
    }
    free((char *)path);
}

/* More files than the depth, good and bad mixed, all at once. */
static void test_many(void **state)
{
    fixture_t *f = fixture(state);
    enum { FILES = 5 * DEPTH };
    reader_file_t files[FILES] = {0};
    const char *paths[FILES];
    for (int i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "%d.bin", i);
        paths[i] = make_file(f, name, 1000 * (size_t)i + 7, (unsigned)i);
        if (i % 5 == 3)
            assert_int_equal(unlink(paths[i]), 0);
    }
    for (int i = 0; i < FILES; i++)
        assert_int_equal(reader_submit(f->reader, &files[i], paths[i], 1000 * (uint64_t)i + 7), 0);
    assert_int_equal(reader_in_flight(f->reader), FILES);
    wait_done(f, files, FILES);
    for (int i = 0; i < FILES; i++) {
        if (i % 5 == 3)
            assert_int_equal(reader_verdict(&files[i]), ERR_DATA);
        else
            check_content(&files[i], 1000 * (size_t)i + 7, (unsigned)i);
        reader_forget(&files[i]);
        reader_file_fini(&files[i]);
        free((char *)paths[i]);
    }
}

/* No descriptor stays open. */
static void test_descriptors(void **state)
{
    fixture_t *f = fixture(state);
    const char *path = make_file(f, "a.bin", 100, 1);
    int before = dup(0), after;
    close(before);
    reader_file_t file = {0};
    for (int i = 0; i < 30; i++) {
        assert_int_equal(reader_submit(f->reader, &file, path, i % 2 ? 100 : 50), 0);
        wait_done(f, &file, 1);
        reader_forget(&file);
    }
    reader_poll(f->reader, 0);
    /* The last close may still be on its way. */
    assert_int_equal(reader_submit(f->reader, &file, "/nonexistent", 1), 0);
    wait_done(f, &file, 1);
    reader_forget(&file);
    after = dup(0);
    close(after);
    assert_true(after <= before + 1);
    reader_file_fini(&file);
    free((char *)path);
}

/* Holds a lease on the file, as a file server does, so that who opens it waits for us. */
static pid_t hold_lease(const char *path)
{
    int told[2];
    char ok = 0;
    assert_int_equal(pipe(told), 0);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGIO, SIG_IGN);
        int fd = open(path, O_RDWR);
        ok = fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
        if (write(told[1], &ok, 1) == 1 && ok)
            pause();
        _exit(0);
    }
    assert_int_equal(read(told[0], &ok, 1), 1);
    close(told[0]);
    close(told[1]);
    if (!ok) {
        waitpid(pid, NULL, 0);
        skip(); /* this file system has no leases */
    }
    return pid;
}

/* A reader may be freed while a read hangs; when its cause is gone, such a file is read. */
static void test_leaves_hung_reads(void **state)
{
    fixture_t *f = fixture(state);
    /* Not freed: the hung read's for as long as the process lives, as its memory is. */
    const char *path = make_file(f, "leased.bin", 10, 1);
    pid_t holder = hold_lease(path);
    reader_file_t later = {0};
    reader_t *r;
    opt_io_t io = strcmp(reader_engine(f->reader), "threads") == 0 ? OPT_IO_THREADS : OPT_IO_URING;
    assert_int_equal(reader_new(io, DEPTH, &r), 0);
    /* Its memory belongs to the read until the process ends. */
    static reader_file_t hung[2];
    reader_file_t *file = &hung[io == OPT_IO_THREADS];
    assert_int_equal(reader_submit(r, file, path, 10), 0);
    uint64_t before = clock_ns();
    int polls = 0;
    while (clock_ns() - before <
           50000000ull) { /* a signal may end a wait early, but they do wait */
        assert_int_equal(reader_poll(r, 10), 0);
        assert_true(reader_state(file) != READER_DONE && ++polls < 20);
    }
    assert_int_equal(reader_free(&r), 1);
    assert_int_equal(reader_submit(f->reader, &later, path, 10), 0);
    assert_int_equal(reader_poll(f->reader, 10), 0);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    wait_done(f, &later, 1);
    check_content(&later, 10, 1);
    reader_forget(&later);
    reader_file_fini(&later);
}

/* Without a descriptor for a moment: the file is read when there is one again. */
static void test_descriptors_short(void **state)
{
    fixture_t *f = fixture(state);
    const char *path = make_file(f, "a.bin", 100, 1);
    reader_file_t file = {0};
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(reader_submit(f->reader, &file, path, 100), 0);
    for (uint64_t since = clock_ns(); clock_ns() - since < 50000000ull;)
        assert_int_equal(reader_poll(f->reader, 10), 0);
    assert_true(reader_state(&file) != READER_DONE);
    assert_int_equal(reader_in_flight(f->reader), 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    wait_done(f, &file, 1);
    check_content(&file, 100, 1);
    assert_true(file.tries > 0);
    reader_forget(&file);
    reader_file_fini(&file);
    free((char *)path);
}

/* Interruptions, short reads and what is short for a moment cost nothing but time; an error of the
 * storage is the file's, at once. */
static void test_faults(void **state)
{
    fixture_t *f = fixture(state);
    if (strcmp(reader_engine(f->reader), "threads") != 0)
        skip(); /* io_uring reads without a call of ours */
    const char *path = make_file(f, "a.bin", 100, 1);
    static const int passing[] = {EINTR, -1, EINTR, -1, ENOMEM, -1, EAGAIN, ESTALE, EBUSY, -1};
    reader_file_t file = {0};
    set_faults(passing, 10);
    assert_int_equal(reader_submit(f->reader, &file, path, 100), 0);
    wait_done(f, &file, 1);
    assert_int_equal(faults.at, 10);
    check_content(&file, 100, 1);
    reader_forget(&file);
    static const int errors[] = {EIO, EISDIR, ETIMEDOUT, ENOTCONN};
    for (int i = 0; i < 4; i++) {
        set_faults(&errors[i], 1);
        assert_int_equal(reader_submit(f->reader, &file, path, 100), 0);
        wait_done(f, &file, 1);
        assert_int_equal(reader_verdict(&file), ERR_DATA);
        assert_non_null(strstr(err_text(), strerror(errors[i])));
        reader_forget(&file);
    }
    /* A handle that stays stale is the storage's. */
    static const int stale[] = {ESTALE, ESTALE, ESTALE, ESTALE};
    set_faults(stale, 4);
    assert_int_equal(reader_submit(f->reader, &file, path, 100), 0);
    wait_done(f, &file, 1);
    assert_int_equal(reader_verdict(&file), ERR_DATA);
    reader_forget(&file);
    reader_file_fini(&file);
    free((char *)path);
}

/* How long what is short is waited for, and that it is no file's fault in the end. */
static void test_patience(void **state)
{
    (void)state;
    static const int ours[] = {EMFILE, ENFILE, ENOMEM, ENOBUFS, EAGAIN, EBUSY, EINTR};
    for (int i = 0; i < 7; i++) {
        reader_file_t file = {.path = "/data/a.jpg", .expected = 10};
        int pause, sum = 0, times = 0;
        while ((pause = reader_again(&file, ours[i])) >= 0) {
            sum += pause;
            assert_true(++times < 100);
        }
        assert_true(sum >= 3000 && sum <= 10000);
        file.error = ours[i];
        file.state = READER_DONE;
        assert_int_equal(reader_verdict(&file), ERR_ENV);
        assert_non_null(strstr(err_text(), "/data/a.jpg"));
    }
    reader_file_t file = {.path = "/data/a.jpg", .bytes = 7};
    assert_int_equal(reader_again(&file, EIO), -1);
    assert_int_equal(file.bytes, 7);
    assert_int_equal(reader_again(&file, ESTALE), 0);
    assert_int_equal(file.bytes, 0);
}

/* Buffers are kept for the next files, but not more of them than READER_KEEP. */
static void test_memory(void **state)
{
    fixture_t *f = fixture(state);
    enum { FILES = 6, LARGE = READER_KEEP / 4 };
    reader_file_t files[FILES] = {0};
    char *path = (char *)make_file(f, "large.bin", 10, 1);
    assert_int_equal(truncate(path, LARGE), 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < FILES; i++)
            assert_int_equal(reader_submit(f->reader, &files[i], path, LARGE), 0);
        wait_done(f, files, FILES);
        assert_true(reader_memory(f->reader) >= (uint64_t)FILES * LARGE);
        for (int i = 0; i < FILES; i++) {
            assert_int_equal(reader_verdict(&files[i]), 0);
            reader_forget(&files[i]);
        }
        assert_true(reader_memory(f->reader) > 0 && reader_memory(f->reader) <= READER_KEEP);
    }
    uint64_t held = 0;
    for (int i = 0; i < FILES; i++) {
        held += files[i].capacity;
        reader_file_fini(&files[i]);
    }
    assert_int_equal(held, reader_memory(f->reader));
    free(path);
}

static void test_auto(void **state)
{
    (void)state;
    reader_t *r;
    assert_int_equal(reader_new(OPT_IO_AUTO, 4, &r), 0);
    assert_non_null(reader_engine(r));
    assert_int_equal(reader_poll(r, 1000), 0); /* nothing in flight: no wait */
    assert_int_equal(reader_free(&r), 0);
}

#define BOTH(test)                                                                                 \
    {#test " (io_uring)", test, begin_uring, end, NULL},                                           \
    {                                                                                              \
#test " (threads)", test, begin_threads, end, NULL                                         \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_one),
        BOTH(test_descriptors_short),
        BOTH(test_faults),
        BOTH(test_memory),
        cmocka_unit_test(test_patience),
        BOTH(test_reuse),
        BOTH(test_refused),
        BOTH(test_many),
        BOTH(test_descriptors),
        BOTH(test_leaves_hung_reads),
        cmocka_unit_test(test_auto),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
