/* The ring: layout, claim words, readiness, fencing, and a run of real processes that are killed.
 */
#include "shm/arena.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/ring.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { DEPTH = 4, CELLS = 3, IMAGE = 64 };

static ring_t *make_ring(int *fd, _Atomic uint32_t *bell)
{
    ring_config_t c = {
        .depth = DEPTH, .cells = CELLS, .label_cap = 8, .image_bytes = CELLS * IMAGE};
    uint32_t cells[DEPTH] = {CELLS, CELLS, CELLS, CELLS};
    ring_t *ring = NULL;
    assert_int_equal(ring_create(&c, "test-ring", &ring, fd), 0);
    ring_set_bell(ring, bell);
    ring_arm(ring, cells);
    return ring;
}

static void test_nothing_before_arm(void **state)
{
    (void)state;
    ring_config_t c = {.depth = 2, .cells = 1, .label_cap = 1, .image_bytes = 1};
    ring_t *ring;
    int fd;
    uint64_t seq = 0;
    uint32_t cell = 0;
    assert_int_equal(ring_create(&c, "test-ring", &ring, &fd), 0);
    assert_int_equal(ring_claim(ring, 0, 0, 1), 0);
    assert_int_equal(ring_find_empty(ring, &seq, &cell), -1);
    assert_int_equal(ring_ready(ring, 0), 0);
    ring_close(&ring);
    assert_null(ring);
    close(fd);
}

static void test_life_of_a_batch(void **state)
{
    (void)state;
    _Atomic uint32_t bell = 0;
    int fd;
    ring_t *ring = make_ring(&fd, &bell);
    for (uint32_t i = 0; i < CELLS; i++) {
        assert_int_equal(ring_ready(ring, 0), 0);
        assert_int_equal(ring_claim(ring, 0, i, 7), 1);
        assert_int_equal(ring_claim(ring, 0, i, 8), 0); /* taken */
        uint32_t owner = 0;
        assert_int_equal(ring_peek(ring, 0, i, &owner), RING_CLAIMED);
        assert_int_equal(owner, 7);
        memset(ring_image(ring, 0, i, IMAGE), (int)i + 1, IMAGE);
        assert_int_equal(ring_commit(ring, 0, i, 8), -1); /* not the owner */
        assert_int_equal(ring_commit(ring, 0, i, 7), 0);
        assert_int_equal(ring_commit(ring, 0, i, 7), -1); /* only once */
    }
    assert_int_equal(ring_ready(ring, 0), 1);
    assert_int_equal(ring_wait_batch(ring, 0, 0), 1);
    assert_int_equal(ring_fill(ring), 1);
    assert_int_equal(ring_image(ring, 0, 2, IMAGE)[IMAGE - 1], 3);
    uint32_t before = bell;
    ring_release(ring, 0, 1); /* batch DEPTH will have one cell */
    assert_int_not_equal(bell, before);
    assert_int_equal(ring_tail(ring), 1);
    assert_int_equal(ring_cells(ring, 0), -1);
    assert_int_equal(ring_cells(ring, DEPTH), 1);
    assert_int_equal(ring_claim(ring, 0, 0, 7), 0);     /* an old view fails */
    assert_int_equal(ring_claim(ring, DEPTH, 1, 7), 0); /* beyond a short batch */
    assert_int_equal(ring_claim(ring, DEPTH, 0, 7), 1);
    assert_int_equal(ring_commit(ring, DEPTH, 0, 7), 0);
    assert_int_equal(ring_ready(ring, DEPTH), 1);
    ring_release(ring, 3, 1); /* not the tail: refused */
    assert_int_equal(ring_tail(ring), 1);
    ring_close(&ring);
    close(fd);
}

static void test_empty_batch_is_ready(void **state)
{
    (void)state;
    int fd;
    ring_t *ring = make_ring(&fd, NULL);
    for (uint32_t i = 0; i < CELLS; i++) {
        assert_int_equal(ring_claim(ring, 0, i, 1), 1);
        assert_int_equal(ring_commit(ring, 0, i, 1), 0);
    }
    ring_release(ring, 0, 0);
    assert_int_equal(ring_ready(ring, DEPTH), 1);
    ring_close(&ring);
    close(fd);
}

static void test_fence(void **state)
{
    (void)state;
    _Atomic uint32_t bell = 0;
    int fd;
    ring_t *ring = make_ring(&fd, &bell);
    assert_int_equal(ring_claim(ring, 0, 0, 5), 1);
    assert_int_equal(ring_claim(ring, 1, 2, 5), 1);
    assert_int_equal(ring_claim(ring, 1, 1, 6), 1);
    assert_int_equal(ring_claim(ring, 0, 1, 5), 1);
    assert_int_equal(ring_commit(ring, 0, 1, 5), 0);
    assert_int_equal(ring_fence(ring, 5), 2);
    assert_int_equal(ring_peek(ring, 0, 0, NULL), RING_EMPTY);
    assert_int_equal(ring_peek(ring, 1, 2, NULL), RING_EMPTY);
    assert_int_equal(ring_peek(ring, 1, 1, NULL), RING_CLAIMED); /* somebody else's */
    assert_int_equal(ring_peek(ring, 0, 1, NULL), RING_DONE);    /* finished work stays */
    assert_int_equal(ring_commit(ring, 0, 0, 5), -1);            /* a zombie's commit fails */
    assert_int_equal(ring_claim(ring, 0, 0, 9), 1);
    ring_abandon(ring, 0, 0, 9);
    assert_int_equal(ring_peek(ring, 0, 0, NULL), RING_EMPTY);
    ring_close(&ring);
    close(fd);
}

static void test_find_lowest(void **state)
{
    (void)state;
    int fd;
    ring_t *ring = make_ring(&fd, NULL);
    uint64_t seq = 0;
    uint32_t cell = 0;
    assert_int_equal(ring_find_empty(ring, &seq, &cell), 0);
    assert_int_equal(seq, 0);
    assert_int_equal(cell, 0);
    for (uint32_t i = 0; i < CELLS; i++)
        assert_int_equal(ring_claim(ring, 0, i, 1), 1);
    assert_int_equal(ring_claim(ring, 1, 0, 1), 1);
    seq = 0;
    cell = 0;
    assert_int_equal(ring_find_empty(ring, &seq, &cell), 0);
    assert_int_equal(seq, 1);
    assert_int_equal(cell, 1);
    seq = DEPTH; /* a hint beyond the window finds nothing */
    cell = 0;
    assert_int_equal(ring_find_empty(ring, &seq, &cell), -1);
    ring_close(&ring);
    close(fd);
}

static void test_attach_checks(void **state)
{
    (void)state;
    int fd;
    ring_t *ring = make_ring(&fd, NULL), *other = NULL;
    assert_int_equal(ring_attach(fd, NULL, &other), 0);
    assert_int_equal(ring_get_config(other)->cells, CELLS);
    ring_close(&other);
    /* Every damaged word of the header that attach relies on is refused. */
    void *base;
    uint64_t bytes;
    assert_int_equal(arena_map(fd, 1, &base, &bytes), 0);
    uint32_t *words = base;
    for (int i = 0; i < 20; i++) {
        uint32_t kept = words[i];
        words[i] ^= 0x10101;
        if (i == 7) { /* config.digest is free to be anything */
            words[i] = kept;
            continue;
        }
        assert_int_not_equal(ring_attach(fd, NULL, &other), 0);
        words[i] = kept;
    }
    assert_int_equal(ring_attach(fd, NULL, &other), 0);
    ring_close(&other);
    arena_unmap(base, bytes);
    ring_close(&ring);
    close(fd);
    int plain = memfd_create("short", MFD_CLOEXEC);
    assert_int_not_equal(ring_attach(plain, NULL, &other), 0);
    assert_int_equal(ftruncate(plain, 100), 0);
    assert_int_not_equal(ring_attach(plain, NULL, &other), 0);
    close(plain);
}

static void test_bad_configurations(void **state)
{
    (void)state;
    ring_config_t bad[] = {
        {.depth = 1, .cells = 1, .label_cap = 1, .image_bytes = 1},
        {.depth = 2, .cells = 0, .label_cap = 1, .image_bytes = 1},
        {.depth = 2, .cells = 1, .label_cap = 0, .image_bytes = 1},
        {.depth = 2, .cells = 1, .label_cap = 1, .image_bytes = 0},
        {.depth = 2, .cells = 1, .label_cap = 1, .image_bytes = 1ull << 60},
        /* More memory than any machine of today: arithmetic, not an OOM kill. */
        {.depth = 1024, .cells = 1, .label_cap = 1, .image_bytes = 1ull << 40},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ring_t *ring;
        int fd;
        assert_true(ring_create(&bad[i], "bad", &ring, &fd) < 0);
        assert_true(strlen(err_text()) > 10);
    }
}

/* ---- several loaders as threads (TSan) or processes that are killed ---- */

enum { BATCHES = 400 };

typedef struct {
    ring_t *ring;
    _Atomic uint32_t *bell;
    _Atomic int *stop;
    uint32_t owner;
} filler_t;

static uint8_t cell_value(uint64_t seq, uint32_t cell)
{
    return (uint8_t)(seq * 31 + cell * 7 + 1);
}

static void fill_until_stopped(const filler_t *f)
{
    while (!atomic_load(f->stop)) {
        uint32_t rung = atomic_load_explicit(f->bell, memory_order_acquire);
        uint64_t seq = 0;
        uint32_t cell = 0;
        if (ring_find_empty(f->ring, &seq, &cell) < 0) {
            futex_wait(f->bell, rung, FUTEX_RECHECK_MS);
            continue;
        }
        if (!ring_claim(f->ring, seq, cell, f->owner))
            continue;
        memset(ring_image(f->ring, seq, cell, IMAGE), cell_value(seq, cell), IMAGE);
        ring_meta(f->ring, seq, cell)->position = seq * CELLS + cell;
        ring_commit(f->ring, seq, cell, f->owner);
    }
}

static void *filler_thread(void *arg)
{
    fill_until_stopped(arg);
    return NULL;
}

static void check_batch(ring_t *ring, uint64_t seq)
{
    uint64_t deadline = clock_ns() + 60000000000ull;
    while (!ring_wait_batch(ring, seq, FUTEX_RECHECK_MS))
        assert_true(clock_ns() < deadline);
    for (uint32_t c = 0; c < CELLS; c++) {
        const uint8_t *image = ring_image(ring, seq, c, IMAGE);
        for (int i = 0; i < IMAGE; i++)
            assert_int_equal(image[i], cell_value(seq, c));
        assert_int_equal(ring_meta(ring, seq, c)->position, seq * CELLS + c);
    }
    ring_release(ring, seq, CELLS);
}

static void test_threads(void **state)
{
    (void)state;
    _Atomic uint32_t bell = 0;
    _Atomic int stop = 0;
    int fd;
    ring_t *ring = make_ring(&fd, &bell);
    filler_t f[3];
    pthread_t t[3];
    for (uint32_t i = 0; i < 3; i++) {
        f[i] = (filler_t){ring, &bell, &stop, i + 1};
        assert_int_equal(pthread_create(&t[i], NULL, filler_thread, &f[i]), 0);
    }
    for (uint64_t seq = 0; seq < BATCHES; seq++)
        check_batch(ring, seq);
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    ring_close(&ring);
    close(fd);
}

typedef struct {
    _Atomic uint32_t bell;
    _Atomic int stop;
} shared_words_t;

static pid_t spawn_filler(int fd, shared_words_t *words, uint32_t owner)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    filler_t f = {.bell = &words->bell, .stop = &words->stop, .owner = owner};
    if (ring_attach(fd, &words->bell, &f.ring) < 0)
        _exit(1);
    fill_until_stopped(&f);
    _exit(0);
}

static void test_killed_processes(void **state)
{
    (void)state;
    shared_words_t *words =
        mmap(NULL, sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(words, MAP_FAILED);
    int fd;
    ring_t *ring = make_ring(&fd, &words->bell);
    enum { LOADERS = 3 };
    pid_t pids[LOADERS];
    uint32_t owners[LOADERS], next = 1;
    for (int i = 0; i < LOADERS; i++) {
        owners[i] = next;
        pids[i] = spawn_filler(fd, words, next++);
        assert_true(pids[i] > 0);
    }
    unsigned victim = 0;
    for (uint64_t seq = 0; seq < BATCHES; seq++) {
        if (seq % 5 == 0) {
            /* Dead first, then fenced: the order of design 3. */
            unsigned v = victim++ % LOADERS;
            kill(pids[v], SIGKILL);
            waitpid(pids[v], NULL, 0);
            ring_fence(ring, owners[v]);
            owners[v] = next;
            pids[v] = spawn_filler(fd, words, next++);
        }
        check_batch(ring, seq);
    }
    atomic_store(&words->stop, 1);
    for (int i = 0; i < LOADERS; i++)
        waitpid(pids[i], NULL, 0);
    ring_close(&ring);
    close(fd);
    munmap(words, sizeof *words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_before_arm),   cmocka_unit_test(test_life_of_a_batch),
        cmocka_unit_test(test_empty_batch_is_ready), cmocka_unit_test(test_fence),
        cmocka_unit_test(test_find_lowest),          cmocka_unit_test(test_attach_checks),
        cmocka_unit_test(test_bad_configurations),   cmocka_unit_test(test_threads),
        cmocka_unit_test(test_killed_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
