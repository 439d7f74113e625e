/* collective.h: sums, broadcasts and gathers of two and three processes over a memfd; disagreement;
 * a rank that dies and a rank that never comes. */
#include "tests/trainer_rig.h"

#include "shm/err.h"
#include "shm/futex.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = (1 << 20) + 12345, MOST_RANKS = 3 }; /* more than one round */

typedef int (*rank_fn)(const rig_shared_t *s, uint32_t rank, uint32_t ranks);

/* Runs fn in one process a rank; its return value is the exit status. */
static void start_ranks(const rig_shared_t *s, uint32_t ranks, rank_fn fn, pid_t *pids)
{
    for (uint32_t r = 0; r < ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            alarm(120); /* a hang ends the rank and with it the test */
            _exit(fn(s, r, ranks));
        }
    }
}

static int status_of(pid_t pid)
{
    int status = 0;
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void run_ranks(uint32_t ranks, rank_fn fn)
{
    rig_shared_t s;
    pid_t pids[MOST_RANKS];
    assert_int_equal(rig_share(ranks, &s), 0);
    start_ranks(&s, ranks, fn, pids);
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(status_of(pids[r]), 0);
    rig_unshare(&s);
}

/* Prints where a rank's process failed. */
static int failed(uint32_t rank, int line, const char *what)
{
    fprintf(stderr, "rank %u, line %d: %s (%s)\n", rank, line, what, err_text());
    return 1;
}
#define NEED(expr)                                                                                 \
    do {                                                                                           \
        if (!(expr))                                                                               \
            return failed(rank, __LINE__, #expr);                                                  \
    } while (0)

static int open_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks, worker_t *w,
                     collective_t **c)
{
    rig_worker(s, rank, w);
    return collective_open(w, s->collective_fd, rank, ranks, COUNT, c);
}

/* ---- all-reduce: fixed order, to the bit ---- */

static float value_at(uint32_t rank, uint32_t i, uint32_t round)
{
    float v = (float)((i * 2654435761u + rank * 40503u + round) % 1000003u);
    return ldexpf(v, (int)(i % 40) - 20);
}

static int check_sums(k_dev_t *dev, uint32_t rank, uint32_t ranks, uint32_t round)
{
    static float got[COUNT];
    NEED(dev->ops->download(dev, K_STREAM_MAIN, got, 256, sizeof got) == 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        float want = value_at(0, i, round);
        for (uint32_t r = 1; r < ranks; r++)
            want += value_at(r, i, round);
        NEED(memcmp(&got[i], &want, sizeof want) == 0);
    }
    return 0;
}

static int allreduce_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    static float own[COUNT];
    worker_t w;
    collective_t *c;
    k_dev_t *dev;
    char why[256];
    const k_open_t args = {.threads = 1};
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    NEED(k_cpu_ops()->open(&args, &dev, why, sizeof why) == 0);
    NEED(dev->ops->reserve(dev, 512 + sizeof own) == 0);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < COUNT; i++)
            own[i] = value_at(rank, i, round);
        NEED(dev->ops->upload(dev, K_STREAM_MAIN, 256, own, sizeof own) == 0);
        if (rank == round % ranks)
            usleep(20000); /* each rank is late once */
        NEED(collective_allreduce(c, dev, 256, COUNT) == 0);
        int rc = check_sums(dev, rank, ranks, round);
        if (rc)
            return rc;
    }
    NEED(atomic_load(&w.page->coll_entered) == 4 && atomic_load(&w.page->coll_started) == 4 &&
         atomic_load(&w.page->coll_completed) == 4);
    NEED(collective_allreduce(c, dev, 256, COUNT + 100) == ERR_FAILED);
    dev->ops->close(&dev);
    collective_close(&c);
    return 0;
}

static void test_allreduce(void **state)
{
    (void)state;
    run_ranks(2, allreduce_rank);
    run_ranks(3, allreduce_rank);
}

/* ---- the small ones ---- */

static int small_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    for (uint32_t round = 0; round < 50; round++) {
        double v[2] = {rank + 1, 0.1 * round};
        NEED(collective_sum(c, v, 2) == 0);
        NEED(v[0] == (double)ranks * (ranks + 1) / 2);
        uint32_t word[3] = {rank, round, 99};
        uint32_t root = round % ranks;
        NEED(collective_broadcast(c, word, sizeof word, root) == 0);
        NEED(word[0] == root && word[1] == round);
        NEED(collective_barrier(c) == 0);
    }
    collective_close(&c);
    return 0;
}

/* Rank r brings r * 5 MB + 3 bytes of value r + 1: none, and several rounds. */
static int gather_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    for (uint32_t round = 0; round < 2; round++) {
        uint64_t bytes = rank == 0 ? 0 : rank * 5000000ull + 3, sizes[WIRE_RANKS];
        char *own = malloc(bytes + 1);
        void *all = NULL;
        NEED(own);
        memset(own, (int)rank + 1, bytes);
        NEED(collective_gather(c, own, bytes, &all, sizes) == 0);
        free(own);
        NEED((rank == 0) == (all != NULL));
        for (uint64_t r = 0, at = 0; rank == 0 && r < ranks; at += sizes[r++]) {
            NEED(sizes[r] == (r == 0 ? 0 : r * 5000000ull + 3));
            for (uint64_t i = 0; i < sizes[r]; i++)
                NEED(((char *)all)[at + i] == (char)(r + 1));
        }
        free(all);
    }
    collective_close(&c);
    return 0;
}

static void test_small(void **state)
{
    (void)state;
    run_ranks(2, small_rank);
    run_ranks(3, small_rank);
    run_ranks(3, gather_rank);
}

static void test_one_rank(void **state)
{
    (void)state;
    rig_shared_t s;
    worker_t w;
    collective_t *c;
    double v = 3;
    void *all;
    uint64_t sizes[1];
    assert_int_equal(rig_share(1, &s), 0);
    rig_worker(&s, 0, &w);
    assert_int_equal(collective_open(&w, -1, 0, 1, COUNT, &c), 0);
    assert_int_equal(collective_sum(c, &v, 1), 0);
    assert_true(v == 3);
    assert_int_equal(collective_gather(c, "abc", 4, &all, sizes), 0);
    assert_string_equal(all, "abc");
    assert_int_equal(sizes[0], 4);
    free(all);
    collective_close(&c);
    rig_unshare(&s);
}

/* ---- what goes wrong ---- */

/* The ranks come with different counts: both must say so, and name both. */
static int disagree_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    double v[3] = {0};
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    NEED(collective_sum(c, v, 1) == 0);
    NEED(collective_sum(c, v, rank == 0 ? 2 : 3) == ERR_FAILED);
    NEED(strstr(err_text(), "rank 0") && strstr(err_text(), "rank 1"));
    NEED(strstr(err_text(), "2 elements") && strstr(err_text(), "3 elements"));
    collective_close(&c);
    return 0;
}

static void test_disagreement(void **state)
{
    (void)state;
    run_ranks(2, disagree_rank);
}

/* Rank 2 stops after ten sums and is killed; the others wait for it until the abort word. */
static int orphan_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    double v = 1;
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    for (int i = 0; i < 10; i++)
        NEED(collective_sum(c, &v, 1) == 0);
    atomic_fetch_add(&w.page->steps_done, 1);
    while (rank == 2)
        pause();
    NEED(collective_sum(c, &v, 1) == ERR_GONE);
    collective_close(&c);
    return 0;
}

static void test_killed_rank(void **state)
{
    (void)state;
    rig_shared_t s;
    pid_t pids[MOST_RANKS];
    assert_int_equal(rig_share(3, &s), 0);
    start_ranks(&s, 3, orphan_rank, pids);
    const struct timespec pause_ns = {.tv_nsec = 1000000};
    for (int ms = 0; atomic_load(&board_page(s.board, 2)->steps_done) == 0 && ms < 60000; ms++)
        nanosleep(&pause_ns, NULL);
    kill(pids[2], SIGKILL);
    assert_int_equal(status_of(pids[2]), 128 + SIGKILL);
    /* The coordinator's part: it saw the death. */
    atomic_store(&board_hub(s.board)->abort_word, 1);
    assert_int_equal(status_of(pids[0]), 0);
    assert_int_equal(status_of(pids[1]), 0);
    rig_unshare(&s);
}

/* Rank 1 shows no progress: rank 0 gives up after the deadline and names it. While it waits for
 * data it is excused: the deadline of 0.3 s does not end the wait of 0.9 s. */
static int late_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    double v = 1;
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    NEED(collective_barrier(c) == 0);
    if (rank == 1) {
        board_set_phase(w.page, BOARD_WAIT_DATA);
        usleep(900000);
    } else {
        while (atomic_load(&collective_page(c, 1)->phase) != BOARD_WAIT_DATA)
            usleep(1000);
        collective_deadline(c, 0.3);
    }
    NEED(collective_sum(c, &v, 1) == 0);
    if (rank == 1) {
        board_set_phase(w.page, BOARD_FORWARD);
        for (int i = 0; i < 1200 && !atomic_load(&w.hub->abort_word); i++)
            usleep(50000);
    } else {
        NEED(collective_sum(c, &v, 1) == ERR_TIMEOUT);
        NEED(strstr(err_text(), "for rank 1, which is forward"));
        atomic_store(&w.hub->abort_word, 1);
    }
    collective_close(&c);
    return 0;
}

static void test_deadline(void **state)
{
    (void)state;
    run_ranks(2, late_rank);
}

/* Rank 1 leaves, as after a stop that found it without data: the others do not wait for it. */
static int leaving_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    double v = 1;
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    NEED(collective_sum(c, &v, 1) == 0);
    if (rank == 1)
        board_set_phase(w.page, BOARD_STOPPING);
    else
        NEED(collective_sum(c, &v, 1) == ERR_STOPPED && strstr(err_text(), "rank 1 has left"));
    collective_close(&c);
    return 0;
}

static void test_leaving_rank(void **state)
{
    (void)state;
    run_ranks(3, leaving_rank);
}

/* All ranks are stopped together, as a container that is paused, for longer than the deadline:
 * nobody gives up on the other for that. Rank 1 is busy when it happens. */
static int paused_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    worker_t w;
    collective_t *c;
    NEED(open_rank(s, rank, ranks, &w, &c) == 0);
    NEED(collective_barrier(c) == 0);
    collective_deadline(c, 4);
    if (rank == 1)
        usleep(800000);
    else
        atomic_fetch_add(&w.page->steps_done, 1);
    NEED(collective_barrier(c) == 0);
    collective_close(&c);
    return 0;
}

static void test_paused_ranks(void **state)
{
    (void)state;
    rig_shared_t s;
    pid_t pids[MOST_RANKS];
    const struct timespec tick = {.tv_nsec = 1000000}, pause_ns = {.tv_sec = 5};
    assert_int_equal(rig_share(2, &s), 0);
    start_ranks(&s, 2, paused_rank, pids);
    for (int ms = 0; atomic_load(&board_page(s.board, 0)->steps_done) == 0 && ms < 60000; ms++)
        nanosleep(&tick, NULL);
    for (int r = 0; r < 2; r++)
        kill(pids[r], SIGSTOP);
    nanosleep(&pause_ns, NULL);
    /* One goes on before the other, and must not take the pause for the other's silence. */
    for (int r = 0; r < 2; r++) {
        kill(pids[r], SIGCONT);
        usleep(300000);
    }
    assert_int_equal(status_of(pids[0]), 0);
    assert_int_equal(status_of(pids[1]), 0);
    rig_unshare(&s);
}

/* The coordinator's end of the lifeline closes while a rank waits. */
static void test_lifeline(void **state)
{
    (void)state;
    rig_shared_t s;
    worker_t w;
    collective_t *c;
    int ends[2];
    assert_int_equal(rig_share(2, &s), 0);
    assert_int_equal(pipe(ends), 0);
    rig_worker(&s, 0, &w);
    w.lifeline = ends[0];
    assert_int_equal(collective_open(&w, s.collective_fd, 0, 2, 1000, &c), 0);
    close(ends[1]);
    assert_int_equal(collective_barrier(c), ERR_GONE);
    assert_non_null(strstr(err_text(), "coordinator"));
    close(ends[0]);
    collective_close(&c);
    rig_unshare(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allreduce),    cmocka_unit_test(test_small),
        cmocka_unit_test(test_one_rank),     cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_killed_rank),  cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_lifeline),     cmocka_unit_test(test_paused_ranks),
        cmocka_unit_test(test_leaving_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
