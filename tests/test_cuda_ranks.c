/* Several ranks on one GPU (the test mode of device=0,0): sums of gradients and of statistics, recorded
 * and not; what the GPU counts, seen from another process; a rank that never comes, one that is stopped,
 * one that is killed. Each rank is a process of its own, made by exec: CUDA does not survive a fork.
 * Without a GPU all of it is skipped. */
#include "tests/exchange_rig.h"

#include "shm/err.h"
#include "trainer/exchange.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 4, TIME_OUT_S = 90, NO_GPU = 77, REPLAYS = 4, SLOT = 2 };

static const k_ops_t *gpu_ops(void)
{
    return k_cuda_ops ? k_cuda_ops() : NULL;
}

/* ---- in a rank's process ---- */

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
#define HAS(text) (strstr(err_text(), (text)) != NULL)

static int open_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks, exchange_rig_t *r)
{
    const exchange_spec_t spec = {"yolo11n", gpu_ops(), 0};
    return exchange_rig_open(s, rank, ranks, &spec, r);
}

static int stats_right(exchange_rig_t *r, uint32_t rank, uint32_t ranks)
{
    trainer_t *t = &r->t;
    double v[64];
    for (int i = 0; i < 64; i++)
        v[i] = rank + 0.25 * i;
    NEED(trainer_upload(t, r->stats, v, sizeof v) == 0);
    NEED(exchange_stats(t, r->stats, 64) == 0);
    NEED(trainer_drain(t, K_STREAM_MAIN) == 0);
    NEED(trainer_download(t, v, r->stats, sizeof v) == 0);
    for (int i = 0; i < 64; i++)
        NEED(v[i] == ranks * (ranks - 1) / 2.0 + ranks * 0.25 * i);
    return 0;
}

/* A step's sums, recorded in SLOT. */
static int record_step(exchange_rig_t *r, uint32_t rank)
{
    trainer_t *t = &r->t;
    exchange_recording(t, SLOT);
    NEED(t->ops->capture(t->dev, SLOT) == 0);
    NEED(exchange_rig_enqueue(r) == 0);
    NEED(t->ops->captured(t->dev) == 0);
    exchange_recording(t, -1);
    return 0;
}

static int replay_step(exchange_rig_t *r)
{
    trainer_t *t = &r->t;
    int rc = trainer_check(t, t->ops->replay(t->dev, SLOT), "replay");
    return rc < 0 ? rc : exchange_replayed(t, SLOT);
}

static int sum_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_rank(s, rank, ranks, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    for (uint32_t step = 0; step < 2; step++) {
        NEED(exchange_rig_fill(&r, step) == 0);
        NEED(exchange_rig_enqueue(&r) == 0);
        NEED(trainer_drain(&r.t, K_STREAM_MAIN) == 0);
        NEED(exchange_rig_check(&r, step) == 0);
    }
    NEED(stats_right(&r, rank, ranks) == 0);
    const board_gpu_t *gpu = board_gpu(r.w.board, rank);
    uint64_t launched = atomic_load(&r.w.page->sums_launched);
    NEED(atomic_load(&gpu->started) == launched && atomic_load(&gpu->completed) == launched);
    NEED(record_step(&r, rank) == 0);
    NEED(atomic_load(&r.w.page->sums_launched) == launched);
    NEED(atomic_load(&gpu->started) == launched); /* recorded, not run */
    for (uint32_t step = 0; step < REPLAYS; step++) {
        NEED(exchange_rig_fill(&r, 10 + step) == 0);
        NEED(replay_step(&r) == 0);
        NEED(trainer_drain(&r.t, K_STREAM_MAIN) == 0);
        NEED(exchange_rig_check(&r, 10 + step) == 0);
    }
    launched = atomic_load(&r.w.page->sums_launched);
    NEED(atomic_load(&gpu->started) == launched && atomic_load(&gpu->completed) == launched);
    NEED(atomic_load(&gpu->exchanges) == 2 + REPLAYS);
    exchange_rig_close(&r);
    NEED(r.t.dev == NULL);
    return 0;
}

/* Rank 1 opens its device and comes no further. */
static int absent_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_rank(s, rank, ranks, &r) == 0);
    r.w.options.init_timeout = 2;
    if (rank == 1) {
        board_set_stage(r.w.page, BOARD_STAGE_CONTEXT);
        while (!atomic_load(&r.w.hub->abort_word))
            usleep(50000);
        return 0;
    }
    const board_page_t *other = board_page(r.w.board, 1);
    for (int i = 0; i < 600 && atomic_load(&other->stage) != BOARD_STAGE_CONTEXT; i++)
        usleep(50000);
    NEED(exchange_open(&r.t) == ERR_TIMEOUT);
    fprintf(stderr, "# %s\n", err_text());
    NEED(HAS("for rank 1") && HAS("opening its device"));
    atomic_store(&r.w.hub->abort_word, 1);
    exchange_rig_close(&r);
    return 0;
}

/* One recorded step on both; before the second, rank 1 does what `how` says to itself. */
static int left_alone(const rig_shared_t *s, uint32_t rank, uint32_t ranks, int how)
{
    exchange_rig_t r;
    NEED(open_rank(s, rank, ranks, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    NEED(record_step(&r, rank) == 0);
    NEED(exchange_rig_fill(&r, 1) == 0);
    NEED(replay_step(&r) == 0);
    NEED(trainer_drain(&r.t, K_STREAM_MAIN) == 0);
    NEED(exchange_rig_check(&r, 1) == 0);
    /* Not before the other has the first sum too: a death may leave it unfinished there. */
    NEED(collective_barrier(r.t.coll) == 0);
    if (rank == 1)
        kill(getpid(), how);
    collective_deadline(r.t.coll, 2);
    NEED(replay_step(&r) == 0);
    int rc = trainer_drain(&r.t, K_STREAM_MAIN);
    fprintf(stderr, "# %s\n", err_text());
    /* A death may show as a failed connection before it shows as a silence. */
    NEED(rc == ERR_TIMEOUT || (how == SIGKILL && rc == ERR_FAILED));
    NEED(rc == ERR_FAILED || HAS("for rank 1 (GPU 0)"));
    const board_gpu_t *gpu = board_gpu(r.w.board, 0);
    NEED(atomic_load(&gpu->started) == atomic_load(&gpu->completed) + 1);
    exchange_rig_close(&r);
    return 0;
}

static int stopped_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    return left_alone(s, rank, ranks, SIGSTOP);
}

static int killed_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    return left_alone(s, rank, ranks, SIGKILL);
}

static int probe(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    char why[512];
    k_dev_t *dev;
    const k_open_t args = {.compute = K_F32};
    (void)s, (void)rank, (void)ranks;
    if (!gpu_ops() || gpu_ops()->open(&args, &dev, why, sizeof why) < 0)
        return NO_GPU;
    gpu_ops()->close(&dev);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(const rig_shared_t *s, uint32_t rank, uint32_t ranks);
} parts[] = {
    {"probe", probe},          {"sum", sum_rank},       {"absent", absent_rank},
    {"stopped", stopped_rank}, {"killed", killed_rank},
};

/* PROGRAM --rank PART RANK RANKS BOARD-FD COLLECTIVE-FD */
static int rank_main(char **argv)
{
    rig_shared_t s = {.board_fd = atoi(argv[5]), .collective_fd = atoi(argv[6])};
    alarm(TIME_OUT_S); /* a hang ends the rank and with it the test */
    if (board_attach(s.board_fd, &s.board) < 0)
        return failed((uint32_t)atoi(argv[3]), __LINE__, "board_attach");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(parts[i].name, argv[2]) == 0)
            return parts[i].run(&s, (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]));
    return 2;
}

/* ---- in the test program ---- */

static pid_t start(const rig_shared_t *s, const char *part, uint32_t rank, uint32_t ranks)
{
    char text[4][16];
    snprintf(text[0], sizeof text[0], "%u", rank);
    snprintf(text[1], sizeof text[1], "%u", ranks);
    snprintf(text[2], sizeof text[2], "%d", s->board_fd);
    snprintf(text[3], sizeof text[3], "%d", s->collective_fd);
    char name[] = "test_cuda_ranks", word[] = "--rank", which[32];
    snprintf(which, sizeof which, "%s", part);
    char *argv[] = {name, word, which, text[0], text[1], text[2], text[3], NULL};
    pid_t pid = fork();
    if (pid == 0) {
        fcntl(s->board_fd, F_SETFD, 0);
        fcntl(s->collective_fd, F_SETFD, 0);
        execv("/proc/self/exe", argv);
        _exit(126);
    }
    return pid;
}

static int status_of(pid_t pid)
{
    int status = 0;
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Runs a part; the last rank may be one that does not end by itself. */
static void run_part(const char *part, uint32_t ranks, int last_stays)
{
    rig_shared_t s;
    pid_t pids[MOST_RANKS];
    int status[MOST_RANKS];
    assert_int_equal(rig_share(ranks, &s), 0);
    for (uint32_t r = 0; r < ranks; r++)
        pids[r] = start(&s, part, r, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        if (last_stays && r == ranks - 1)
            kill(pids[r], SIGKILL);
        status[r] = status_of(pids[r]);
    }
    for (uint32_t r = 0; r < ranks - (last_stays ? 1 : 0); r++)
        assert_int_equal(status[r], 0);
    if (strcmp(part, "sum") == 0)
        for (uint32_t r = 0; r < ranks; r++) {
            /* What the GPU wrote is here too, and is the same for all. */
            const board_gpu_t *g = board_gpu(s.board, r), *first = board_gpu(s.board, 0);
            assert_true(atomic_load(&g->started) > REPLAYS);
            assert_int_equal(atomic_load(&g->started), atomic_load(&first->started));
            assert_int_equal(atomic_load(&g->completed), atomic_load(&first->started));
        }
    rig_unshare(&s);
}

static int have_gpu;

static int find_gpu(void **state)
{
    (void)state;
    rig_shared_t s;
    if (rig_share(1, &s) < 0)
        return -1;
    have_gpu = status_of(start(&s, "probe", 0, 1)) == 0;
    rig_unshare(&s);
    return 0;
}

static void two_ranks_add_up(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    run_part("sum", 2, 0);
}

static void four_ranks_add_up(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    run_part("sum", 4, 0);
}

static void an_absent_rank_is_named(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    run_part("absent", 2, 0);
}

static void a_stopped_rank_is_named(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    run_part("stopped", 2, 1);
}

static void a_killed_rank_ends_the_wait(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    run_part("killed", 2, 1);
}

int main(int argc, char **argv)
{
    if (argc == 7 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_add_up),
        cmocka_unit_test(four_ranks_add_up),
        cmocka_unit_test(an_absent_rank_is_named),
        cmocka_unit_test(a_stopped_rank_is_named),
        cmocka_unit_test(a_killed_rank_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, find_gpu, NULL);
}
