/* The CUDA device itself: copies, order between streams and the host, pinned memory, the counter
 * that others watch, recorded steps, refusals. A stream is held up by a host function that waits for
 * the test, so that "not yet" is certain and not a matter of time. */
#include "tests/twin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef SLUICE_CUDA

#include "kernels/cuda/cuda.h"

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { ARENA = 8 << 20, LONG_MS = 20000, SHORT_MS = 20 };

/* ---- help ---- */

static void ok(twin_t *t, int rc)
{
    twin_ok(t, rc, 0);
}

/* Holds a stream up until gate_open; LONG_MS at most, so that a failing test ends. */
static sem_t gate;

static void hold(void *unused)
{
    (void)unused;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LONG_MS / 1000;
    sem_timedwait(&gate, &until);
}

static void gate_close(twin_t *t, k_stream_t s)
{
    assert_int_equal(sem_init(&gate, 0, 0), 0);
    assert_int_equal(cudaLaunchHostFunc(cuda_dev(t->gpu)->stream[s], hold, NULL), cudaSuccess);
}

static void gate_open(void)
{
    sem_post(&gate);
}

static void drained(twin_t *t, k_stream_t s)
{
    int rc = t->gpu->ops->wait(t->gpu, s, LONG_MS);
    assert_int_not_equal(rc, 1);
    ok(t, rc);
}

static uint8_t *some_bytes(twin_t *t, size_t count)
{
    uint8_t *p = malloc(count);
    assert_non_null(p);
    for (size_t i = 0; i < count; i++)
        p[i] = (uint8_t)twin_random(t, 0, 255.99);
    return p;
}

static void assert_place(twin_t *t, k_at at, const void *want, uint64_t bytes)
{
    void *got = twin_bytes_gpu(t, at, bytes);
    assert_memory_equal(got, want, bytes);
    free(got);
}

/* Partner of the GPU's tick: a counter that is only looked at. */
static uint64_t seen(uint64_t *word)
{
    return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_relaxed);
}

static void await_word(uint64_t *word, uint64_t value)
{
    for (int ms = 0; ms < LONG_MS && seen(word) != value; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(seen(word), value);
}

/* ---- copies ---- */

static void test_copies(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    static const struct {
        k_at at;
        uint64_t bytes;
    } cases[] = {{0, 1}, {0, 256}, {3, 5}, {255, 4097}, {4096, 3 << 20}, {ARENA - 1, 1}, {77, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int s = 0; s < K_STREAMS; s++) {
            uint8_t *up = some_bytes(&t, cases[i].bytes + 1), *down = malloc(cases[i].bytes + 1);
            assert_non_null(down);
            down[cases[i].bytes] = 0x5a;
            ok(&t, ops->upload(t.gpu, (k_stream_t)s, cases[i].at, up, cases[i].bytes));
            ok(&t, ops->download(t.gpu, (k_stream_t)s, down, cases[i].at, cases[i].bytes));
            drained(&t, (k_stream_t)s);
            assert_memory_equal(up, down, cases[i].bytes);
            assert_int_equal(down[cases[i].bytes], 0x5a);
            free(up);
            free(down);
        }
    twin_close(&t);
}

static void test_move_and_zero(void **state)
{
    (void)state;
    enum { BYTES = 100003 };
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    uint8_t *from = some_bytes(&t, BYTES), edge[2] = {0xff, 0xff};
    twin_put(&t, 1001, from, BYTES);
    ok(&t, ops->move(t.gpu, 1 << 20, 1001, BYTES));
    assert_place(&t, 1 << 20, from, BYTES);
    assert_place(&t, (1 << 20) + BYTES, edge, 2);
    /* Neighbours do not overlap; one byte less does. */
    ok(&t, ops->move(t.gpu, 1001 + BYTES, 1001, BYTES));
    assert_place(&t, 1001 + BYTES, from, BYTES);
    twin_refused(&t, ops->move(t.gpu, 1000 + BYTES, 1001, BYTES), "overlap");
    ok(&t, ops->zero(t.gpu, (1 << 20) + 1, BYTES - 2));
    memset(from + 1, 0, BYTES - 2);
    assert_place(&t, 1 << 20, from, BYTES);
    free(from);
    twin_close(&t);
}

static void test_refused_places(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    char host[16] = "";
    twin_refused(&t, ops->upload(t.gpu, K_STREAM_MAIN, ARENA - 15, host, 16), "arena");
    twin_refused(&t, ops->upload(t.gpu, K_STREAM_MAIN, K_NONE, host, 16), "arena");
    twin_refused(&t, ops->upload(t.gpu, K_STREAMS, 0, host, 16), "stream");
    twin_refused(&t, ops->download(t.gpu, K_STREAM_COPY, host, ARENA, 1), "arena");
    twin_refused(&t, ops->zero(t.gpu, 1, ARENA), "arena");
    twin_refused(&t, ops->move(t.gpu, 0, 16, UINT64_MAX - 8), "arena");
    twin_refused(&t, ops->reserve(t.gpu, 1024), "once");

    const twin_tensor_t x = twin_tensor(&t, 1, 4, 4, 8, 0, 0);
    k_tensor_t y = x.gpu;
    y.at = ARENA - 256;
    twin_refused(&t, ops->copy(t.gpu, &x.gpu, &y, 0), "arena");
    y = x.gpu;
    y.at += 2;
    twin_refused(&t, ops->copy(t.gpu, &x.gpu, &y, 0), "aligned");
    y = x.gpu;
    y.ld = 7;
    twin_refused(&t, ops->copy(t.gpu, &x.gpu, &y, 0), "shape");
    y = x.gpu;
    y.n = y.h = y.w = y.c = y.ld = INT32_MAX; /* the extent overflows 64 bits */
    twin_refused(&t, ops->copy(t.gpu, &y, &y, 0), "arena");
    y = x.gpu;
    y.dtype = (k_dtype_t)7;
    twin_refused(&t, ops->copy(t.gpu, &y, &y, 0), "format");
    twin_close(&t);
}

/* ---- order ---- */

static void test_waits(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    assert_int_equal(ops->event(t.gpu, 3, 0), 0); /* never recorded */
    gate_close(&t, K_STREAM_MAIN);
    ok(&t, ops->record(t.gpu, 3, K_STREAM_MAIN));
    assert_int_equal(ops->event(t.gpu, 3, 0), 1);
    assert_int_equal(ops->event(t.gpu, 3, SHORT_MS), 1);
    assert_int_equal(ops->wait(t.gpu, K_STREAM_MAIN, 0), 1);
    assert_int_equal(ops->wait(t.gpu, K_STREAM_MAIN, SHORT_MS), 1);
    assert_int_equal(ops->wait(t.gpu, K_STREAM_COPY, LONG_MS), 0); /* only one is held up */
    /* "Not yet" leaves nothing behind that an operation would take for its own failure. */
    ok(&t, ops->zero(t.gpu, 0, 256));
    const twin_tensor_t x = twin_tensor(&t, 1, 2, 2, 4, 0, 0),
                        y = twin_tensor(&t, 1, 2, 2, 4, 0, 0);
    ok(&t, ops->copy(t.gpu, &x.gpu, &y.gpu, 0));
    gate_open();
    assert_int_equal(ops->event(t.gpu, 3, LONG_MS), 0);
    drained(&t, K_STREAM_MAIN);
    twin_refused(&t, ops->record(t.gpu, K_EVENTS, K_STREAM_MAIN), "event");
    twin_refused(&t, ops->record(t.gpu, -1, K_STREAM_MAIN), "event");
    twin_refused(&t, ops->after(t.gpu, K_STREAMS, 3), "stream");
    twin_refused(&t, ops->event(t.gpu, K_EVENTS, 0), "event");
    twin_refused(&t, ops->wait(t.gpu, K_STREAMS, 0), "stream");
    twin_close(&t);
}

/* The main stream waits for the copy stream's event and for nothing else of it. */
static void test_streams_wait(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    uint8_t *host = ops->host_alloc(t.gpu, BYTES), *want = some_bytes(&t, BYTES);
    assert_non_null(host);
    memcpy(host, want, BYTES);
    ok(&t, ops->after(t.gpu, K_STREAM_MAIN, 5)); /* never recorded: nothing to wait for */
    drained(&t, K_STREAM_MAIN);
    gate_close(&t, K_STREAM_COPY);
    ok(&t, ops->upload(t.gpu, K_STREAM_COPY, 0, host, BYTES));
    ok(&t, ops->record(t.gpu, 0, K_STREAM_COPY));
    ok(&t, ops->after(t.gpu, K_STREAM_MAIN, 0));
    ok(&t, ops->move(t.gpu, 2 << 20, 0, BYTES));
    ok(&t, ops->record(t.gpu, 1, K_STREAM_MAIN));
    assert_int_equal(ops->event(t.gpu, 1, SHORT_MS), 1);
    gate_open();
    assert_int_equal(ops->event(t.gpu, 1, LONG_MS), 0);
    assert_place(&t, 2 << 20, want, BYTES);
    ops->host_free(t.gpu, host);
    free(want);
    twin_close(&t);
}

static void test_elapsed(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    assert_true(ops->elapsed(t.gpu, 0, 1) < 0);
    ok(&t, ops->record(t.gpu, 0, K_STREAM_MAIN));
    for (int i = 0; i < 8; i++)
        ok(&t, ops->zero(t.gpu, 0, ARENA));
    ok(&t, ops->record(t.gpu, 1, K_STREAM_MAIN));
    drained(&t, K_STREAM_MAIN);
    assert_true(ops->elapsed(t.gpu, 0, 1) > 0);
    assert_true(ops->elapsed(t.gpu, 0, 2) < 0);
    assert_true(ops->elapsed(t.gpu, 0, K_EVENTS) < 0);
    gate_close(&t, K_STREAM_MAIN);
    ok(&t, ops->record(t.gpu, 1, K_STREAM_MAIN));
    assert_true(ops->elapsed(t.gpu, 0, 1) < 0);
    gate_open();
    drained(&t, K_STREAM_MAIN);
    twin_close(&t);
}

/* ---- host memory ---- */

/* As a ring is: a mapping of a file in memory. */
static uint8_t *map_shared(size_t bytes)
{
    int fd = memfd_create("sluice-test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    close(fd);
    return p;
}

static void test_pinned(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, MAPPED = 64 + BYTES };
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    uint8_t *ring = map_shared(MAPPED), *want = some_bytes(&t, BYTES);
    uint64_t *word = (uint64_t *)(void *)(ring + 8);
    twin_refused(&t, ops->tick(t.gpu, K_STREAM_MAIN, word), "pinned");
    ok(&t, ops->pin(t.gpu, ring, MAPPED));
    twin_refused(&t, ops->pin(t.gpu, ring, MAPPED), "pin");
    memcpy(ring + 64, want, BYTES);
    ok(&t, ops->upload(t.gpu, K_STREAM_COPY, 4096, ring + 64, BYTES));
    drained(&t, K_STREAM_COPY);
    assert_place(&t, 4096, want, BYTES);
    ok(&t, ops->tick(t.gpu, K_STREAM_COMM, word));
    drained(&t, K_STREAM_COMM);
    assert_int_equal(seen(word), 1);
    twin_refused(&t, ops->tick(t.gpu, K_STREAM_MAIN, (uint64_t *)(void *)(ring + 12)), "aligned");
    ok(&t, ops->unpin(t.gpu, ring));
    twin_refused(&t, ops->unpin(t.gpu, ring), "unpin");
    twin_refused(&t, ops->tick(t.gpu, K_STREAM_MAIN, word), "pinned");
    munmap(ring, MAPPED);
    uint8_t *alloc = ops->host_alloc(t.gpu, 4096);
    assert_non_null(alloc);
    for (int i = 0; i < 4096; i++)
        assert_int_equal(alloc[i], 0);
    ops->host_free(t.gpu, alloc);
    ops->host_free(t.gpu, NULL);
    free(want);
    twin_close(&t);
}

/* What the device has begun shows while what it works on has not ended. */
static void test_tick_while_busy(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    uint64_t *words = ops->host_alloc(t.gpu, 4096);
    assert_non_null(words);
    words[0] = 41;
    ok(&t, ops->tick(t.gpu, K_STREAM_MAIN, &words[0]));
    gate_close(&t, K_STREAM_MAIN);
    ok(&t, ops->tick(t.gpu, K_STREAM_MAIN, &words[1]));
    await_word(&words[0], 42);
    assert_int_equal(ops->wait(t.gpu, K_STREAM_MAIN, SHORT_MS), 1);
    assert_int_equal(seen(&words[1]), 0);
    gate_open();
    drained(&t, K_STREAM_MAIN);
    assert_int_equal(seen(&words[1]), 1);
    for (int i = 0; i < 1000; i++)
        ok(&t, ops->tick(t.gpu, K_STREAM_COPY, &words[2]));
    drained(&t, K_STREAM_COPY);
    assert_int_equal(seen(&words[2]), 1000);
    ops->host_free(t.gpu, words);
    twin_close(&t);
}

/* ---- recorded steps ---- */

/* Main: b = a. On the other stream, beside it: c = 0. Then both tick. */
static void enqueue_step(twin_t *t, k_at a, k_at b, k_at c, uint64_t bytes, uint64_t *words)
{
    const k_ops_t *ops = t->gpu->ops;
    ok(t, ops->record(t->gpu, 10, K_STREAM_MAIN));
    ok(t, ops->after(t->gpu, K_STREAM_COMM, 10));
    ok(t, ops->move(t->gpu, b, a, bytes));
    ok(t, ops->tick(t->gpu, K_STREAM_COMM, &words[1]));
    ok(t, ops->record(t->gpu, 11, K_STREAM_COMM));
    ok(t, ops->after(t->gpu, K_STREAM_MAIN, 11));
    ok(t, ops->zero(t->gpu, c, bytes));
    ok(t, ops->tick(t->gpu, K_STREAM_MAIN, &words[0]));
}

static void test_recorded(void **state)
{
    (void)state;
    enum { BYTES = 4096 };
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    const k_at a = twin_place(&t, BYTES), b = twin_place(&t, BYTES), c = twin_place(&t, BYTES);
    uint64_t *words = ops->host_alloc(t.gpu, 4096);
    uint8_t poison[BYTES], zeros[BYTES] = {0};
    memset(poison, 0xff, BYTES);
    assert_non_null(words);
    twin_refused(&t, ops->replay(t.gpu, 2), "nothing was recorded");
    twin_refused(&t, ops->captured(t.gpu), "no step");
    ok(&t, ops->record(t.gpu, 12, K_STREAM_COPY));
    ok(&t, ops->capture(t.gpu, 2));
    twin_refused(&t, ops->capture(t.gpu, 3), "still being recorded");
    twin_refused(&t, ops->replay(t.gpu, 2), "being recorded");
    twin_refused(&t, ops->wait(t.gpu, K_STREAM_MAIN, 0), "being recorded");
    enqueue_step(&t, a, b, c, BYTES, words);
    twin_refused(&t, ops->event(t.gpu, 11, 0), "being recorded");
    twin_refused(&t, ops->wait(t.gpu, K_STREAM_COMM, 0), "being recorded");
    /* A stream that takes no part goes on. */
    ok(&t, ops->record(t.gpu, 12, K_STREAM_COPY));
    assert_int_equal(ops->event(t.gpu, 12, LONG_MS), 0);
    assert_int_equal(ops->wait(t.gpu, K_STREAM_COPY, LONG_MS), 0);
    ok(&t, ops->captured(t.gpu));
    assert_int_equal(ops->event(t.gpu, 11, 0), 0);
    drained(&t, K_STREAM_MAIN);
    assert_int_equal(seen(&words[0]), 0);
    assert_place(&t, b, poison, BYTES);
    for (uint64_t i = 1; i <= 3; i++) {
        uint8_t *value = some_bytes(&t, BYTES);
        twin_put(&t, a, value, BYTES);
        twin_put(&t, c, poison, BYTES);
        ok(&t, ops->replay(t.gpu, 2));
        drained(&t, K_STREAM_MAIN);
        assert_place(&t, b, value, BYTES);
        assert_place(&t, c, zeros, BYTES);
        assert_int_equal(seen(&words[0]), i);
        assert_int_equal(seen(&words[1]), i);
        free(value);
    }
    /* Anew in the same slot, and the events are ordinary ones again. */
    ok(&t, ops->capture(t.gpu, 2));
    ok(&t, ops->tick(t.gpu, K_STREAM_MAIN, &words[2]));
    ok(&t, ops->captured(t.gpu));
    ok(&t, ops->replay(t.gpu, 2));
    ok(&t, ops->record(t.gpu, 11, K_STREAM_MAIN));
    assert_int_equal(ops->event(t.gpu, 11, LONG_MS), 0);
    assert_int_equal(seen(&words[0]), 3);
    assert_int_equal(seen(&words[2]), 1);
    ok(&t, ops->forget(t.gpu, 2));
    ok(&t, ops->forget(t.gpu, 2));
    ok(&t, ops->forget(t.gpu, K_GRAPHS));
    twin_refused(&t, ops->replay(t.gpu, 2), "nothing was recorded");
    twin_refused(&t, ops->capture(t.gpu, K_GRAPHS), "slot");
    twin_refused(&t, ops->replay(t.gpu, -1), "slot");
    ops->host_free(t.gpu, words);
    twin_close(&t);
}

/* A stream that was drawn into a recording and not brought back is refused, and harms nothing. */
static void test_recording_fails(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    uint64_t *words = ops->host_alloc(t.gpu, 4096);
    assert_non_null(words);
    ok(&t, ops->capture(t.gpu, 0));
    ok(&t, ops->record(t.gpu, 0, K_STREAM_MAIN));
    ok(&t, ops->after(t.gpu, K_STREAM_COMM, 0));
    ok(&t, ops->tick(t.gpu, K_STREAM_COMM, &words[0]));
    twin_refused(&t, ops->captured(t.gpu), "cannot be recorded");
    twin_refused(&t, ops->replay(t.gpu, 0), "nothing was recorded");
    /* An event from before the recording would tie it to a moment that is over. */
    ok(&t, ops->record(t.gpu, 1, K_STREAM_COPY));
    ok(&t, ops->capture(t.gpu, 0));
    twin_refused(&t, ops->after(t.gpu, K_STREAM_MAIN, 1), "outside step 0");
    ops->captured(t.gpu); /* whether anything is left of it is the driver's matter */
    ok(&t, ops->tick(t.gpu, K_STREAM_COMM, &words[1]));
    drained(&t, K_STREAM_COMM);
    ok(&t, ops->tick(t.gpu, K_STREAM_MAIN, &words[1]));
    drained(&t, K_STREAM_MAIN);
    assert_int_equal(seen(&words[0]), 0);
    assert_int_equal(seen(&words[1]), 2);
    ops->host_free(t.gpu, words);
    twin_close(&t);
}

/* ---- life ---- */

static void test_open(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    const k_ops_t *ops = t.gpu->ops;
    assert_string_equal(ops->name, "cuda");
    assert_int_equal(ops->async, 1);
    k_dev_t *other = NULL;
    char why[512] = "";
    const k_open_t beyond = {.ordinal = 4096, .compute = K_F32}, same = {.compute = K_F16};
    assert_true(ops->open(&beyond, &other, why, sizeof why) < 0);
    assert_non_null(strstr(why, "4096"));
    assert_null(other);
    assert_int_equal(ops->open(&same, &other, why, sizeof why), 0);
    assert_string_equal(why, "");
    uint64_t left = 0, total = 0;
    assert_int_equal(ops->memory(other, &left, &total), 0);
    assert_true(left > 0 && left < total);
    assert_true(ops->upload(other, K_STREAM_MAIN, 0, why, 1) < 0); /* before reserve */
    assert_true(ops->reserve(other, 0) < 0);
    assert_true(ops->reserve(other, 2 * total) < 0);
    assert_non_null(strstr(ops->error(other), "MiB free"));
    assert_int_equal(ops->reserve(other, 1000), 0); /* a refusal leaves the device usable */
    assert_int_equal(ops->zero(other, 0, 1000), 0);
    assert_true(ops->zero(other, 0, 1001) < 0);
    assert_int_equal(ops->wait(other, K_STREAM_MAIN, LONG_MS), 0);
    ops->close(&other);
    assert_null(other);
    ops->close(&other);
    twin_close(&t);
}

/* What a closed device leaves behind is memory that the next one gets: more than half of what was
 * free at first, three times. */
static void test_reopen(void **state)
{
    (void)state;
    twin_t t;
    uint64_t left = 0, total = 0;
    twin_open(&t, K_F32, ARENA);
    twin_ok(&t, t.gpu->ops->memory(t.gpu, &left, &total), 0);
    ok(&t, t.gpu->ops->capture(t.gpu, 0)); /* closed while it records */
    ok(&t, t.gpu->ops->zero(t.gpu, 0, ARENA));
    twin_close(&t);
    assert_null(t.gpu);
    for (int i = 0; i < 3; i++) {
        k_dev_t *dev = NULL;
        char why[512] = "";
        const k_open_t args = {.compute = K_F32};
        assert_int_equal(k_cuda_ops()->open(&args, &dev, why, sizeof why), 0);
        if (dev->ops->reserve(dev, left / 8 * 5) < 0)
            fail_msg("device %d: %s", i, dev->ops->error(dev));
        dev->ops->close(&dev);
        assert_null(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),         cmocka_unit_test(test_move_and_zero),
        cmocka_unit_test(test_refused_places), cmocka_unit_test(test_waits),
        cmocka_unit_test(test_streams_wait),   cmocka_unit_test(test_elapsed),
        cmocka_unit_test(test_pinned),         cmocka_unit_test(test_tick_while_busy),
        cmocka_unit_test(test_recorded),       cmocka_unit_test(test_recording_fails),
        cmocka_unit_test(test_open),           cmocka_unit_test(test_reopen),
    };
    return cmocka_run_group_tests_name("cuda_device", tests, NULL, NULL);
}

#else

static void test_device(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, 4096); /* skips: built without CUDA */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_device)};
    return cmocka_run_group_tests_name("cuda_device", tests, NULL, NULL);
}

#endif
