/* Sums over the devices of several processes: one rank, two ranks on one GPU (which NCCL takes for
 * two machines; facts/gpu.md, NCCL), a recorded sum, and a rank whose peer has died.
 *
 * The ranks are this program again, as `test_cuda_comm --rank R PART READ WRITE`; rank 0 writes the
 * communicator's id into one pipe, and the pipe's other end tells it when its peer is done. */
#include "tests/twin.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#ifdef SLUICE_CUDA

enum { ARENA = 1 << 20, LONG_MS = 30000, SHORT_MS = 300, TEST_S = 90, COUNT = 10007 };

static void nap(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* ---- a rank ---- */

typedef struct {
    k_dev_t *dev;
    const k_ops_t *ops;
    int rank, read, write;
} rank_t;

#define CHECK(r, condition, ...)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d, line %d: %s", (r)->rank, __LINE__, #condition);              \
            fprintf(stderr, " " __VA_ARGS__);                                                      \
            fprintf(stderr, " (%s)\n", (r)->dev ? (r)->ops->error((r)->dev) : "no device");        \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* 0 when the communicator is ready for the next call, or its error. */
static int settled(rank_t *r)
{
    int rc = 1;
    for (int ms = 0; ms < LONG_MS && (rc = r->ops->comm_poll(r->dev)) == 1; ms++)
        nap(1);
    return rc;
}

static int join_other(rank_t *r)
{
    uint8_t id[K_COMM_ID];
    if (r->rank == 0) {
        CHECK(r, r->ops->comm_id(r->dev, id) == 0);
        CHECK(r, write(r->write, id, sizeof id) == (ssize_t)sizeof id);
    } else {
        CHECK(r, read(r->read, id, sizeof id) == (ssize_t)sizeof id);
    }
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_COMM, 0, 1, 0) < 0, "before there is one");
    CHECK(r, r->ops->comm_open(r->dev, id, r->rank, 2) == 0);
    CHECK(r, settled(r) == 0);
    return 0;
}

/* Whole numbers below 2^24: sums are exact in any order. */
static float part(int rank, int round, int i)
{
    return (float)((rank + 1) * (i % 1000) + round);
}

static int put_floats(rank_t *r, k_at at, int round)
{
    float values[COUNT];
    for (int i = 0; i < COUNT; i++)
        values[i] = part(r->rank, round, i);
    CHECK(r, r->ops->upload(r->dev, K_STREAM_MAIN, at, values, sizeof values) == 0);
    CHECK(r, r->ops->wait(r->dev, K_STREAM_MAIN, LONG_MS) == 0);
    return 0;
}

static int floats_are(rank_t *r, k_at at, int round)
{
    float values[COUNT];
    CHECK(r, r->ops->download(r->dev, K_STREAM_MAIN, values, at, sizeof values) == 0);
    CHECK(r, r->ops->wait(r->dev, K_STREAM_MAIN, LONG_MS) == 0);
    for (int i = 0; i < COUNT; i++) {
        float want = part(0, round, i) + part(1, round, i);
        CHECK(r, values[i] == want, "round %d, value %d is %g, not %g", round, i, (double)values[i],
              (double)want);
    }
    return 0;
}

/* The sum on its own stream, behind what main has been given; main goes on behind it. */
static int sum_aside(rank_t *r, k_at at, uint64_t count, int doubles)
{
    CHECK(r, r->ops->record(r->dev, 0, K_STREAM_MAIN) == 0);
    CHECK(r, r->ops->after(r->dev, K_STREAM_COMM, 0) == 0);
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_COMM, at, count, doubles) == 0);
    CHECK(r, settled(r) == 0);
    CHECK(r, r->ops->record(r->dev, 1, K_STREAM_COMM) == 0);
    CHECK(r, r->ops->after(r->dev, K_STREAM_MAIN, 1) == 0);
    return 0;
}

static int sum_doubles(rank_t *r, k_at at)
{
    double value = 0x1p40 + r->rank, sum = 0;
    CHECK(r, r->ops->upload(r->dev, K_STREAM_MAIN, at, &value, sizeof value) == 0);
    if (sum_aside(r, at, 1, 1) != 0)
        return 1;
    CHECK(r, r->ops->download(r->dev, K_STREAM_MAIN, &sum, at, sizeof sum) == 0);
    CHECK(r, r->ops->wait(r->dev, K_STREAM_MAIN, LONG_MS) == 0);
    CHECK(r, sum == 0x1p41 + 1.0, "the sum of doubles is %.17g", sum);
    return 0;
}

static int sum_group(rank_t *r, k_at a, k_at b)
{
    if (put_floats(r, a, 5) != 0 || put_floats(r, b, 6) != 0)
        return 1;
    CHECK(r, r->ops->comm_end(r->dev) < 0);
    CHECK(r, r->ops->comm_begin(r->dev) == 0);
    CHECK(r, r->ops->comm_begin(r->dev) < 0);
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_MAIN, a, COUNT, 0) == 0);
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_MAIN, b, COUNT, 0) == 0);
    CHECK(r, r->ops->comm_end(r->dev) == 0);
    CHECK(r, settled(r) == 0);
    return floats_are(r, a, 5) || floats_are(r, b, 6);
}

static int sum_recorded(rank_t *r, k_at at)
{
    CHECK(r, r->ops->capture(r->dev, 0) == 0);
    if (sum_aside(r, at, COUNT, 0) != 0)
        return 1;
    CHECK(r, r->ops->captured(r->dev) == 0);
    for (int round = 10; round < 13; round++) {
        if (put_floats(r, at, round) != 0)
            return 1;
        CHECK(r, r->ops->replay(r->dev, 0) == 0);
        CHECK(r, r->ops->wait(r->dev, K_STREAM_MAIN, LONG_MS) == 0);
        if (floats_are(r, at, round) != 0)
            return 1;
    }
    CHECK(r, r->ops->comm_close(r->dev, 1) < 0, "a recorded step is still there");
    CHECK(r, r->ops->forget(r->dev, K_GRAPHS) == 0);
    return 0;
}

static int part_sums(rank_t *r)
{
    const k_at a = 0, b = 65536, d = 131072;
    if (put_floats(r, a, 0) != 0 || sum_aside(r, a, COUNT, 0) != 0 || floats_are(r, a, 0) != 0 ||
        sum_doubles(r, d) != 0 || sum_group(r, a, b) != 0)
        return 1;
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_MAIN, ARENA - 4, 2, 0) < 0);
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_MAIN, 0, UINT64_MAX / 2, 0) < 0);
    CHECK(r, r->ops->comm_sum(r->dev, K_STREAM_MAIN, 4, 1, 1) < 0, "doubles at 4");
    if (sum_recorded(r, a) != 0)
        return 1;
    CHECK(r, r->ops->comm_close(r->dev, 0) == 0);
    CHECK(r, r->ops->comm_poll(r->dev) < 0);
    return 0;
}

/* Rank 1 dies after the first sum; rank 0's next never ends, and it gets away from it. */
static int part_alone(rank_t *r)
{
    uint8_t byte;
    if (put_floats(r, 0, 0) != 0 || sum_aside(r, 0, COUNT, 0) != 0 || floats_are(r, 0, 0) != 0)
        return 1;
    if (r->rank == 1)
        kill(getpid(), SIGKILL);
    while (read(r->read, &byte, 1) > 0) /* its end of the pipe closes with it */
        ;
    int rc = r->ops->comm_sum(r->dev, K_STREAM_COMM, 0, COUNT, 0);
    if (rc == 0 && settled(r) == 0) /* NCCL may have noticed by itself */
        CHECK(r, r->ops->wait(r->dev, K_STREAM_COMM, SHORT_MS) != 0, "a sum with nobody has ended");
    CHECK(r, r->ops->comm_close(r->dev, 1) == 0);
    CHECK(r, r->ops->wait(r->dev, K_STREAM_COMM, LONG_MS) == 0);
    CHECK(r, r->ops->zero(r->dev, 0, ARENA) == 0);
    CHECK(r, r->ops->wait(r->dev, K_STREAM_MAIN, LONG_MS) == 0);
    return 0;
}

/* argv: program, --rank, rank, part, read, write */
static int rank_main(char **argv)
{
    rank_t r = {.ops = k_cuda_ops(), .rank = atoi(argv[2])};
    char why[512] = "";
    const k_open_t args = {.compute = K_F32};
    r.read = atoi(argv[4]);
    r.write = atoi(argv[5]);
    alarm(TEST_S);
    if (r.ops->open(&args, &r.dev, why, sizeof why) < 0) {
        fprintf(stderr, "rank %d: %s\n", r.rank, why);
        return 1;
    }
    CHECK(&r, r.ops->reserve(r.dev, ARENA) == 0);
    if (join_other(&r) != 0)
        return 1;
    int rc = strcmp(argv[3], "sums") == 0 ? part_sums(&r) : part_alone(&r);
    if (rc == 0)
        r.ops->close(&r.dev);
    return rc;
}

/* ---- the tests ---- */

/* Skips where there is no GPU; the device is closed again before the ranks open theirs. */
static void need_gpu(void)
{
    twin_t t;
    twin_open(&t, K_F32, 4096);
    twin_close(&t);
}

static pid_t start_rank(int rank, const char *part_name, int read_end, int write_end, int others)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    char number[16], in[16], out[16], host[32];
    snprintf(number, sizeof number, "%d", rank);
    snprintf(in, sizeof in, "%d", read_end);
    snprintf(out, sizeof out, "%d", write_end);
    snprintf(host, sizeof host, "sluice-test-%d", rank);
    close(others);
    dup2(2, 1); /* standard output is this program's test report */
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    execl("/proc/self/exe", "test_cuda_comm", "--rank", number, part_name, in, out, (char *)NULL);
    _exit(127);
}

/* Exit status of both, -1 for one that a signal or the deadline ended. */
static void run_ranks(const char *part_name, int status[2])
{
    int to_1[2], to_0[2], left = 2;
    assert_int_equal(pipe(to_1), 0);
    assert_int_equal(pipe(to_0), 0);
    pid_t pid[2];
    fflush(NULL);
    /* Rank 0 must not hold the write end whose closing tells it that rank 1 is gone. */
    pid[0] = start_rank(0, part_name, to_0[0], to_1[1], to_0[1]);
    pid[1] = start_rank(1, part_name, to_1[0], to_0[1], to_1[1]);
    for (int i = 0; i < 2; i++) {
        close(to_0[i]);
        close(to_1[i]);
        status[i] = -2;
    }
    for (int ms = 0; left > 0; ms += 10) {
        for (int i = 0; i < 2; i++) {
            int word = 0;
            if (status[i] != -2 || waitpid(pid[i], &word, WNOHANG) != pid[i])
                continue;
            status[i] = WIFEXITED(word) ? WEXITSTATUS(word) : -1;
            left--;
        }
        if (left > 0 && ms == TEST_S * 1000)
            for (int i = 0; i < 2; i++)
                if (status[i] == -2)
                    kill(pid[i], SIGKILL);
        nap(10);
    }
}

static void test_two_ranks(void **state)
{
    (void)state;
    int status[2];
    need_gpu();
    run_ranks("sums", status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], 0);
}

static void test_peer_dies(void **state)
{
    (void)state;
    int status[2];
    need_gpu();
    run_ranks("alone", status);
    assert_int_equal(status[0], 0);
    assert_int_equal(status[1], -1);
}

static void test_one_rank(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, ARENA);
    rank_t r = {.dev = t.gpu, .ops = t.gpu->ops};
    uint8_t id[K_COMM_ID];
    float values[64], back[64];
    for (int i = 0; i < 64; i++)
        values[i] = (float)i;
    twin_refused(&t, r.ops->comm_poll(t.gpu), "no communicator");
    twin_refused(&t, r.ops->comm_begin(t.gpu), "not open");
    twin_ok(&t, r.ops->comm_close(t.gpu, 0), 0);
    twin_ok(&t, r.ops->comm_id(t.gpu, id), 0);
    twin_refused(&t, r.ops->comm_open(t.gpu, id, 1, 1), "rank 1 of 1");
    twin_ok(&t, r.ops->comm_open(t.gpu, id, 0, 1), 0);
    twin_refused(&t, r.ops->comm_open(t.gpu, id, 0, 1), "already");
    twin_ok(&t, settled(&r), 0);
    twin_put(&t, 0, values, sizeof values);
    twin_ok(&t, r.ops->comm_sum(t.gpu, K_STREAM_COMM, 0, 64, 0), 0);
    twin_ok(&t, settled(&r), 0);
    twin_ok(&t, r.ops->download(t.gpu, K_STREAM_COMM, back, 0, sizeof back), 0);
    twin_ok(&t, r.ops->wait(t.gpu, K_STREAM_COMM, LONG_MS), 0);
    assert_memory_equal(values, back, sizeof back);
    twin_ok(&t, r.ops->comm_close(t.gpu, 0), 0);
    /* Left open: closing the device ends it. */
    twin_ok(&t, r.ops->comm_id(t.gpu, id), 0);
    twin_ok(&t, r.ops->comm_open(t.gpu, id, 0, 1), 0);
    twin_close(&t);
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_peer_dies),
        cmocka_unit_test(test_one_rank),
    };
    return cmocka_run_group_tests_name("cuda_comm", tests, NULL, NULL);
}

#else

static void test_comm(void **state)
{
    (void)state;
    twin_t t;
    twin_open(&t, K_F32, 4096); /* skips: built without CUDA */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_comm)};
    return cmocka_run_group_tests_name("cuda_comm", tests, NULL, NULL);
}

#endif
