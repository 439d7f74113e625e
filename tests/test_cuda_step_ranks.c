/* Whole steps of several ranks on one GPU (the test mode of device=0,0): their gradients against the
 * parts of the batch in sequence, with sync_bn against one rank that has the whole batch, and a training
 * whose ranks end with the same weights. Each rank is a process of its own, made by exec: CUDA does not
 * survive a fork. Without a GPU all of it is skipped. */
#include "shm/err.h"
#include "tests/trainer_rig.h"
#include "trainer/batch.h"
#include "trainer/exchange.h"
#include "trainer/pass.h"
#include "trainer/step.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST_RANKS = 4, TIME_OUT_S = 120, NO_GPU = 77, EACH = 4, STEPS = 9, PICTURES = 16 };

static const char *const apart[] = {"optimizer=SGD", "lr0=0.005", "warmup_epochs=0", "nbs=4", NULL};
static const char *const together[] = {"optimizer=SGD", "lr0=0.005",    "warmup_epochs=0",
                                       "nbs=4",         "sync_bn=True", NULL};

/* ---- in a rank's process ---- */

/* What all processes of a test see: each rank's floats, one behind the other. */
static float *shared;
static uint64_t floats;

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

static int open_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks, uint32_t batch,
                     const char *const *words, k_dtype_t format, rig_t *r)
{
    const rig_spec_t spec = {.model = "yolo11n",
                             .classes = RIG_CLASSES,
                             .side = RIG_SIZE,
                             .labels = RIG_LABELS,
                             .images = batch,
                             .batch = batch,
                             .epochs = STEPS,
                             .words = words,
                             .ops = rig_gpu(format),
                             .format = format};
    NEED(spec.ops != NULL);
    NEED(trainer_rig_open_as(s, rank, ranks, &spec, r) == 0);
    NEED(rig_draw(r, "yolo11n") == 0);
    NEED(r->t.sizes->weights == floats);
    return 0;
}

/* Takes the batch t.seq, whose pictures start at `first`, and adds its gradients. */
static int add_gradients(rig_t *r, uint32_t first, int share)
{
    plan_batch_t b = plan_locate(r->t.plan, r->t.seq);
    rig_fill(r, &b, first, PICTURES);
    int rc = batch_take(&r->t, &b);
    if (rc == 0)
        rc = pass_compute(&r->t, share);
    if (rc == 0)
        rc = batch_used(&r->t);
    if (rc == 0)
        rc = trainer_drain(&r->t, K_STREAM_MAIN);
    r->t.seq++;
    return rc;
}

/* Rank k of n: its own pictures; the sum over the ranks to its place. */
static int shared_gradients(const rig_shared_t *s, uint32_t rank, uint32_t ranks,
                            const char *const *words)
{
    rig_t r;
    NEED(open_rank(s, rank, ranks, EACH * ranks, words, K_F32, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    NEED(add_gradients(&r, EACH * rank, 1) == 0);
    NEED(exchange_finish(&r.t) == 0);
    NEED(trainer_download(&r.t, shared + rank * floats, r.t.mem.train.grads,
                          r.t.mem.weight_bytes) == 0);
    trainer_rig_close(&r);
    return 0;
}

static int apart_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    return shared_gradients(s, rank, ranks, apart);
}

static int sync_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    return shared_gradients(s, rank, ranks, together);
}

/* One process: the parts of as many ranks as the test has, each with its own gradients, added up in
 * order. */
static int parts_alone(const rig_shared_t *s, uint32_t parts)
{
    const uint32_t rank = 0;
    rig_t r;
    float *own = malloc(floats * sizeof *own);
    NEED(own != NULL);
    NEED(open_rank(s, 0, 1, EACH, apart, K_F32, &r) == 0);
    memset(shared, 0, floats * sizeof *shared);
    for (uint32_t k = 0; k < parts; k++) {
        NEED(r.t.ops->zero(r.t.dev, r.t.mem.train.grads, r.t.mem.weight_bytes) == 0);
        NEED(add_gradients(&r, EACH * k, 0) == 0);
        NEED(trainer_download(&r.t, own, r.t.mem.train.grads, r.t.mem.weight_bytes) == 0);
        for (uint64_t i = 0; i < floats; i++)
            shared[i] += own[i];
    }
    trainer_rig_close(&r);
    free(own);
    return 0;
}

static int two_parts(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    (void)rank, (void)ranks;
    return parts_alone(s, 2);
}

static int four_parts(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    (void)rank, (void)ranks;
    return parts_alone(s, 4);
}

static int whole_batch(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    rig_t r;
    (void)ranks;
    NEED(open_rank(s, 0, 1, 2 * EACH, apart, K_F32, &r) == 0);
    NEED(add_gradients(&r, 0, 0) == 0);
    NEED(trainer_download(&r.t, shared, r.t.mem.train.grads, r.t.mem.weight_bytes) == 0);
    trainer_rig_close(&r);
    return 0;
}

/* Recorded steps that run ahead, in bf16, with shared statistics; an accumulation among them. */
static int training_rank(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    static const char *const words[] = {"optimizer=SGD", "lr0=0.005",    "warmup_epochs=0",
                                        "nbs=16",        "sync_bn=True", NULL};
    rig_t r;
    int asked;
    NEED(open_rank(s, rank, ranks, EACH * ranks, words, K_BF16, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    r.w.plan.n_train = 3 * EACH * ranks; /* three steps an epoch */
    schedule_init(&r.t.schedule, r.t.o, r.w.plan.n_train, 3, RIG_CLASSES);
    for (uint32_t k = 0; k < STEPS; k++, r.t.seq++) {
        plan_batch_t b = plan_locate(r.t.plan, r.t.seq);
        rig_fill(&r, &b, EACH * (k * ranks + rank), PICTURES);
        NEED(step_train(&r.t, &b, &asked) == 0);
        NEED(asked == 0);
    }
    NEED(r.t.recorded != 0);
    NEED(r.t.progress.opt_steps > 2 && r.t.progress.opt_steps < STEPS);
    NEED(atomic_load(&r.w.page->steps_done) == STEPS);
    NEED(atomic_load(&r.w.page->stage) == BOARD_STAGE_RUNNING);
    NEED(trainer_download(&r.t, shared + rank * floats, r.t.mem.train.weights,
                          r.t.mem.weight_bytes) == 0);
    trainer_rig_close(&r);
    return 0;
}

static int probe(const rig_shared_t *s, uint32_t rank, uint32_t ranks)
{
    (void)s, (void)rank, (void)ranks;
    return rig_gpu(K_F32) ? 0 : NO_GPU;
}

static const struct {
    const char *name;
    int (*run)(const rig_shared_t *s, uint32_t rank, uint32_t ranks);
} parts[] = {{"probe", probe},           {"apart", apart_rank},      {"sync", sync_rank},
             {"two-parts", two_parts},   {"four-parts", four_parts}, {"whole", whole_batch},
             {"training", training_rank}};

static uint64_t model_floats(void)
{
    graph_t *g;
    if (graph_build("yolo11n", RIG_CLASSES, &g) < 0)
        return 0;
    uint64_t n = graph_sizes(g)->weights;
    graph_free(&g);
    return n;
}

static int map_shared(int fd)
{
    floats = model_floats();
    shared =
        mmap(NULL, MOST_RANKS * floats * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return shared == MAP_FAILED ? -1 : 0;
}

/* PROGRAM --rank PART RANK RANKS BOARD-FD COLLECTIVE-FD SHARED-FD */
static int rank_main(char **argv)
{
    rig_shared_t s = {.board_fd = atoi(argv[5]), .collective_fd = atoi(argv[6])};
    const uint32_t rank = (uint32_t)atoi(argv[3]);
    alarm(TIME_OUT_S); /* a hang ends the rank and with it the test */
    NEED(board_attach(s.board_fd, &s.board) == 0 && map_shared(atoi(argv[7])) == 0);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strcmp(parts[i].name, argv[2]) == 0)
            return parts[i].run(&s, rank, (uint32_t)atoi(argv[4]));
    return 2;
}

/* ---- in the test program ---- */

static int shared_fd;

static pid_t start(const rig_shared_t *s, const char *part, uint32_t rank, uint32_t ranks)
{
    char text[5][16], which[32], name[] = "test_cuda_step_ranks", word[] = "--rank";
    snprintf(text[0], sizeof text[0], "%u", rank);
    snprintf(text[1], sizeof text[1], "%u", ranks);
    snprintf(text[2], sizeof text[2], "%d", s->board_fd);
    snprintf(text[3], sizeof text[3], "%d", s->collective_fd);
    snprintf(text[4], sizeof text[4], "%d", shared_fd);
    snprintf(which, sizeof which, "%s", part);
    char *argv[] = {name, word, which, text[0], text[1], text[2], text[3], text[4], NULL};
    pid_t pid = fork();
    if (pid == 0) {
        fcntl(s->board_fd, F_SETFD, 0);
        fcntl(s->collective_fd, F_SETFD, 0);
        fcntl(shared_fd, F_SETFD, 0);
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

/* All ranks of a part; their floats are in `shared` afterwards. */
static int run_part(const char *part, uint32_t ranks)
{
    rig_shared_t s;
    pid_t pids[MOST_RANKS];
    int worst = 0;
    if (rig_share(ranks, &s) < 0)
        return -1;
    for (uint32_t r = 0; r < ranks; r++)
        pids[r] = start(&s, part, r, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        int status = status_of(pids[r]);
        worst = status != 0 ? status : worst;
    }
    rig_unshare(&s);
    return worst;
}

/* max |a - b| over max |b| */
static double difference(const float *a, const float *b)
{
    double most = 0, largest = 0;
    for (uint64_t i = 0; i < floats; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        most = isnan(d) ? INFINITY : fmax(most, d);
        largest = fmax(largest, fabs((double)b[i]));
    }
    return largest > 0 ? most / largest : INFINITY;
}

static int have_gpu;

static int begin(void **state)
{
    (void)state;
    shared_fd = memfd_create("test-step-ranks", MFD_CLOEXEC);
    if (shared_fd < 0 || ftruncate(shared_fd, (off_t)(MOST_RANKS * model_floats() * sizeof(float))))
        return -1;
    if (map_shared(shared_fd) < 0)
        return -1;
    have_gpu = run_part("probe", 1) == 0;
    return 0;
}

/* Runs `part` on the ranks, whose floats must be equal, then `alone`; how far the two are apart. */
static double against(const char *part, uint32_t ranks, const char *alone)
{
    float *first = malloc(floats * sizeof *first);
    assert_non_null(first);
    assert_int_equal(run_part(part, ranks), 0);
    for (uint32_t r = 1; r < ranks; r++)
        assert_memory_equal(shared + r * floats, shared, floats * sizeof *shared);
    memcpy(first, shared, floats * sizeof *shared);
    assert_int_equal(run_part(alone, 1), 0);
    double d = difference(first, shared);
    print_message("%u ranks (%s) against %s: %.2g\n", ranks, part, alone, d);
    free(first);
    return d;
}

static void test_two_ranks(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    assert_true(against("apart", 2, "two-parts") == 0); /* a sum of two has one order */
}

static void test_four_ranks(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    assert_true(against("apart", 4, "four-parts") < 1e-5);
}

static void test_sync_bn(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    assert_true(against("sync", 2, "whole") < 1e-4);
    assert_true(against("apart", 2, "whole") > 0.01); /* it does make a difference */
}

/* Twice the same, to the bit. */
static void test_training(void **state)
{
    (void)state;
    if (!have_gpu)
        skip();
    float *first = malloc(floats * sizeof *first);
    assert_non_null(first);
    assert_int_equal(run_part("training", 2), 0);
    assert_memory_equal(shared + floats, shared, floats * sizeof *shared);
    memcpy(first, shared, floats * sizeof *first);
    memset(shared, 0, 2 * floats * sizeof *shared);
    assert_int_equal(run_part("training", 2), 0);
    assert_memory_equal(first, shared, floats * sizeof *first);
    free(first);
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_four_ranks),
        cmocka_unit_test(test_sync_bn),
        cmocka_unit_test(test_training),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
