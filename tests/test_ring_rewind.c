/* The ring after deaths: rewind from any state that a trainer may leave, fences and rewinds while
 * loaders work (threads: this is what runs under TSan), and, in builds with kill points, a process
 * that dies at each of the ring's points in turn.
 */
#include "shm/arena.h"
#include "shm/futex.h"
#include "shm/killpoint.h"
#include "shm/ring.h"
#include "shm/ring_word.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { DEPTH = 3, CELLS = 4, IMAGE = 64 };
/* Byte offsets in the ring's header: where its claim words are. */
enum { AT_WORDS_AT = 48 };
static const uint32_t full[DEPTH] = {CELLS, CELLS, CELLS};

static ring_t *make_ring(int *fd, _Atomic uint32_t *bell)
{
    ring_config_t c = {
        .depth = DEPTH, .cells = CELLS, .label_cap = 2, .image_bytes = CELLS * IMAGE};
    ring_t *ring = NULL;
    assert_int_equal(ring_create(&c, "test-ring", &ring, fd), 0);
    ring_set_bell(ring, bell);
    return ring;
}

static uint8_t cell_value(uint64_t seq, uint32_t cell)
{
    return (uint8_t)(seq * 31 + cell * 7 + 1);
}

static void fill_cell(ring_t *ring, uint64_t seq, uint32_t cell)
{
    memset(ring_image(ring, seq, cell, IMAGE), cell_value(seq, cell), IMAGE);
    ring_meta(ring, seq, cell)->position = seq * CELLS + cell;
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
}

/* From the tail on, two laps of the ring work as if nothing had been. */
static void check_works(ring_t *ring, uint32_t owner)
{
    for (int i = 0; i < 2 * DEPTH; i++) {
        uint64_t tail = ring_tail(ring), seq = tail;
        uint32_t cell = 0;
        while (ring_find_empty(ring, &seq, &cell) == 0 && seq == tail) {
            assert_int_equal(ring_claim(ring, seq, cell, owner), 1);
            fill_cell(ring, seq, cell);
            assert_int_equal(ring_commit(ring, seq, cell, owner), 0);
        }
        check_batch(ring, tail);
        ring_release(ring, tail, CELLS);
        assert_int_equal(ring_tail(ring), tail + 1);
    }
}

static void test_rewind(void **state)
{
    (void)state;
    const uint32_t cells[DEPTH] = {CELLS, 2, 0};
    int fd;
    ring_t *ring = make_ring(&fd, NULL), *loader = NULL;
    ring_arm(ring, full);
    check_works(ring, 1);
    assert_int_equal(ring_attach(fd, NULL, &loader), 0);
    uint64_t tail = ring_tail(ring), seq = 0;
    uint32_t cell = 0;
    assert_int_equal(ring_claim(loader, tail, 1, 7), 1);
    assert_int_equal(ring_claim(loader, tail, 2, 7), 1);
    assert_int_equal(ring_commit(loader, tail, 2, 7), 0);
    assert_int_equal(ring_raise(ring), 1);
    /* Between the two, an old loader may still finish; nothing of it will be seen. */
    assert_int_equal(ring_claim(loader, tail, 3, 7), 1);
    assert_int_equal(ring_peek(ring, tail, 3, NULL), -1);
    ring_rewind(ring, 2, cells);
    assert_int_equal(ring_tail(ring), 2);
    assert_int_equal(ring_cells(ring, 2), CELLS);
    assert_int_equal(ring_cells(ring, 3), 2);
    assert_int_equal(ring_cells(ring, 5), -1);
    assert_int_equal(ring_ready(ring, 4), 1); /* empty */
    /* The old generation's claims, commits and abandons fail, also where batch and owner fit. */
    assert_int_equal(ring_find_empty(loader, &seq, &cell), -1);
    assert_int_equal(ring_claim(loader, 2, 0, 7), 0);
    assert_int_equal(ring_commit(loader, tail, 1, 7), -1);
    assert_int_equal(ring_claim(ring, 2, 1, 7), 1);
    assert_int_equal(ring_commit(loader, 2, 1, 7), -1);
    ring_abandon(loader, 2, 1, 7);
    assert_int_equal(ring_peek(ring, 2, 1, NULL), RING_CLAIMED);
    assert_int_equal(ring_fence(ring, 7), 1);
    /* Once it has adopted the new one it is a loader like any other. */
    assert_int_equal(ring_adopt(loader), 1);
    seq = 0;
    assert_int_equal(ring_find_empty(loader, &seq, &cell), 0);
    assert_int_equal(seq, 2);
    assert_int_equal(ring_claim(loader, 2, 0, 7), 1);
    assert_int_equal(ring_fence(ring, 7), 1);
    ring_raise(ring);
    ring_rewind(ring, 2, full);
    check_works(ring, 9);
    ring_close(&loader);
    ring_close(&ring);
    close(fd);
}

/* Whatever a trainer that died in ring_release has left, and worse. */
static void test_rewind_from_any_state(void **state)
{
    (void)state;
    int fd;
    ring_t *ring = make_ring(&fd, NULL);
    void *base;
    uint64_t bytes;
    assert_int_equal(arena_map(fd, 1, &base, &bytes), 0);
    uint64_t *words = (uint64_t *)((uint8_t *)base + *(uint64_t *)((uint8_t *)base + AT_WORDS_AT));
    unsigned seed = 7;
    ring_arm(ring, full);
    for (int torn = 0; torn <= CELLS; torn++) {
        check_works(ring, 1);
        uint64_t tail = ring_tail(ring);
        uint32_t generation = ring_adopt(ring);
        for (int i = 0; i < torn; i++)
            words[tail % DEPTH * CELLS + (uint64_t)i] =
                ring_word(tail + DEPTH, generation, 0, RING_EMPTY);
        ring_raise(ring);
        ring_rewind(ring, tail - 1, full);
        assert_int_equal(ring_tail(ring), tail - 1);
        check_works(ring, 1);
    }
    for (int round = 0; round < 300; round++) { /* generations wrap around meanwhile */
        for (int i = 0; i < DEPTH * CELLS; i++)
            words[i] = ring_word(ring_tail(ring) + (unsigned)rand_r(&seed) % 3,
                                 ring_adopt(ring) + (unsigned)rand_r(&seed) % 2,
                                 (unsigned)rand_r(&seed) % 4, (unsigned)rand_r(&seed) % 3);
        ring_raise(ring);
        ring_rewind(ring, (uint64_t)round, full);
        check_works(ring, 1);
    }
    arena_unmap(base, bytes);
    ring_close(&ring);
    close(fd);
}

/* ---- loaders as threads ---- */

enum { THREADS = 3, BATCHES = 300 };

typedef struct {
    int fd;
    _Atomic uint32_t *bell;
    _Atomic int *stop;
    uint32_t owner, claims;
    _Atomic uint32_t *wanted; /* the generation that is to be acknowledged */
    _Atomic uint32_t acknowledged;
    _Atomic int die; /* 1: leave in the middle of a cell */
} loader_t;

/* 1: it has died with a claim. */
static int load_one(loader_t *l, ring_t *ring)
{
    uint32_t rung = atomic_load_explicit(l->bell, memory_order_acquire);
    uint64_t seq = 0;
    uint32_t cell = 0;
    if (ring_find_empty(ring, &seq, &cell) < 0) {
        futex_wait(l->bell, rung, FUTEX_RECHECK_MS / 10);
        return atomic_load(&l->die);
    }
    if (!ring_claim(ring, seq, cell, l->owner))
        return 0;
    if (atomic_load(&l->die)) {
        memset(ring_image(ring, seq, cell, IMAGE), 0xee, IMAGE / 2);
        return 1;
    }
    fill_cell(ring, seq, cell);
    if (++l->claims % 16 == 0)
        ring_abandon(ring, seq, cell, l->owner);
    else
        ring_commit(ring, seq, cell, l->owner);
    return 0;
}

static void *loader_thread(void *arg)
{
    loader_t *l = arg;
    ring_t *ring = NULL;
    if (ring_attach(l->fd, l->bell, &ring) < 0)
        return NULL;
    uint32_t mine = ring_adopt(ring);
    atomic_store(&l->acknowledged, mine);
    while (!atomic_load(l->stop)) {
        if (atomic_load(l->wanted) != mine) {
            mine = ring_adopt(ring);
            atomic_store(&l->acknowledged, mine); /* no cell is ours here */
        }
        if (load_one(l, ring))
            break;
    }
    ring_close(&ring);
    return NULL;
}

static void start_loader(loader_t *l, pthread_t *thread, uint32_t owner)
{
    l->owner = owner;
    atomic_store(&l->die, 0);
    atomic_store(&l->acknowledged, UINT32_MAX); /* until it has attached */
    assert_int_equal(pthread_create(thread, NULL, loader_thread, l), 0);
}

static uint64_t rewind_with(ring_t *ring, loader_t *loaders, _Atomic uint32_t *wanted, uint64_t seq)
{
    uint64_t deadline = clock_ns() + 60000000000ull;
    uint32_t raised = ring_raise(ring);
    atomic_store(wanted, raised);
    for (int i = 0; i < THREADS; i++)
        while (atomic_load(&loaders[i].acknowledged) != raised) {
            assert_true(clock_ns() < deadline);
            usleep(100);
        }
    ring_rewind(ring, seq, full);
    return seq;
}

static void test_threads(void **state)
{
    (void)state;
    _Atomic uint32_t bell = 0, wanted = 0;
    _Atomic int stop = 0;
    int fd;
    uint32_t owner = 0;
    ring_t *ring = make_ring(&fd, &bell);
    loader_t loaders[THREADS];
    pthread_t threads[THREADS];
    memset(loaders, 0, sizeof loaders);
    ring_arm(ring, full);
    for (int i = 0; i < THREADS; i++) {
        loaders[i].fd = fd;
        loaders[i].bell = &bell;
        loaders[i].stop = &stop;
        loaders[i].wanted = &wanted;
        start_loader(&loaders[i], &threads[i], ++owner);
    }
    int rewinds = 0;
    for (uint64_t seq = 0; seq < BATCHES;) {
        check_batch(ring, seq);
        if (seq % 8 == 5) { /* seen dead, then fenced */
            int v = (int)(seq / 8 % THREADS);
            atomic_store(&loaders[v].die, 1);
            pthread_join(threads[v], NULL);
            ring_fence(ring, loaders[v].owner);
            start_loader(&loaders[v], &threads[v], ++owner);
        }
        if (seq % 30 == 29 && rewinds < (int)(seq / 30) + 1) {
            rewinds++;
            seq = rewind_with(ring, loaders, &wanted, seq - (uint64_t)rewinds);
            continue;
        }
        ring_release(ring, seq++, CELLS);
    }
    assert_int_equal(rewinds, BATCHES / 30);
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ring_close(&ring);
    close(fd);
}

/* ---- a process that dies at each point ---- */

#ifdef SLUICE_KILL_POINTS

enum { VICTIM = 5 };

/* The second process: everything that the ring's points lie in. */
static int pass_points(const char *who, int fd)
{
    ring_t *ring = NULL;
    uint64_t seq = 0;
    uint32_t cell = 0;
    if (ring_attach(fd, NULL, &ring) < 0)
        return 2;
    if (strcmp(who, "loader") == 0 || strcmp(who, "leaving") == 0) {
        for (int i = 0; i < 2; i++) {
            if (ring_find_empty(ring, &seq, &cell) < 0 || !ring_claim(ring, seq, cell, VICTIM))
                return 3;
            if (strcmp(who, "loader") == 0)
                fill_cell(ring, seq, cell);
            if (strcmp(who, "loader") == 0)
                ring_commit(ring, seq, cell, VICTIM);
            else
                ring_abandon(ring, seq, cell, VICTIM);
        }
    } else if (strcmp(who, "trainer") == 0) {
        ring_release(ring, ring_tail(ring), CELLS);
    } else if (strcmp(who, "coordinator") == 0) {
        ring_arm(ring, full);
    } else if (strcmp(who, "fence") == 0) {
        ring_fence(ring, VICTIM);
    } else {
        ring_raise(ring);
        ring_rewind(ring, 1, full);
    }
    return 0;
}

static void die_at(int fd, const char *point, const char *who, unsigned nth)
{
    char number[16], armed[64];
    int status;
    snprintf(number, sizeof number, "%d", fd);
    snprintf(armed, sizeof armed, "%s:%u", point, nth);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("SLUICE_KILL_POINT", armed, 1);
        unsetenv("SLUICE_KILL_MARK");
        fcntl(fd, F_SETFD, 0);
        execl("/proc/self/exe", "test_ring_rewind", "--pass", who, number, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("%s, time %u: not reached (status %x)", point, nth, (unsigned)status);
}

static void die_and_recover(const char *point, const char *who, unsigned nth)
{
    int fd;
    ring_t *ring = make_ring(&fd, NULL);
    int arming = strcmp(who, "coordinator") == 0, fencing = strcmp(who, "fence") == 0;
    int loading = strcmp(who, "loader") == 0 || strcmp(who, "leaving") == 0;
    if (!arming) {
        ring_arm(ring, full);
        check_works(ring, 1);
    }
    for (uint32_t c = 0; c < CELLS && fencing; c++)
        assert_int_equal(ring_claim(ring, ring_tail(ring), c, VICTIM), 1);
    for (uint32_t c = 0; c < CELLS && !fencing && !arming && !loading; c++) {
        assert_int_equal(ring_claim(ring, ring_tail(ring), c, 1), 1);
        fill_cell(ring, ring_tail(ring), c);
        assert_int_equal(ring_commit(ring, ring_tail(ring), c, 1), 0);
    }
    die_at(fd, point, who, nth);
    if (fencing || loading) {
        ring_fence(ring, VICTIM);
    } else {
        ring_raise(ring);
        ring_rewind(ring, arming ? 0 : ring_tail(ring), full);
    }
    check_works(ring, 1);
    ring_close(&ring);
    close(fd);
}

static void test_points(void **state)
{
    (void)state;
    unsigned points = 0;
    for (kill_point_t p = 0; p < KILL_POINT_COUNT; p++) {
        const char *name = kill_point_name(p), *who = kill_point_process(p);
        if (strncmp(name, "ring.", 5) != 0 && strcmp(name, "fence.word") != 0)
            continue;
        points++;
        die_and_recover(name, who, 1);
        if (strcmp(name, "fence.word") == 0 || strcmp(name, "ring.slot.word") == 0)
            die_and_recover(name, who, 2);
        if (strcmp(who, "loader") == 0 || strcmp(who, "leaving") == 0)
            die_and_recover(name, who, 2);
    }
    print_message("died at %u points of the ring\n", points);
    assert_true(points > 20);
}

#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_rewind_from_any_state),
        cmocka_unit_test(test_threads),
#ifdef SLUICE_KILL_POINTS
        cmocka_unit_test(test_points),
#endif
    };
#ifdef SLUICE_KILL_POINTS
    if (argc == 4 && strcmp(argv[1], "--pass") == 0)
        return pass_points(argv[2], atoi(argv[3]));
#endif
    (void)argc;
    (void)argv;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
