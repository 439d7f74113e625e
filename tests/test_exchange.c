/* exchange.h without a GPU: where the gradients are cut, who is named when ranks differ, sums of CPU
 * ranks; and with devices that only claim to be some (exchange_rig.h): the order of what is enqueued,
 * the counters, a start in stages that does not come to its end, waits for a rank that does not come,
 * a communicator that does not close. */
#include "tests/exchange_rig.h"

#include "shm/err.h"
#include "shm/futex.h"
#include "trainer/exchange_internal.h"
#include "trainer/graph_internal.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the cut ---- */

/* The operation of a backward pass that writes a parameter's gradient last, from the operations
 * themselves; numbers descend in backward. */
static int32_t last_writer(const graph_t *g, int32_t param)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const graph_op_t *op = &g->ops[i];
        const graph_unit_t *u = op->unit < 0 ? NULL : &g->units[op->unit];
        if (u && (op->kind == GRAPH_CONV || op->kind == GRAPH_DWCONV) &&
            (u->weight == param || u->bias == param))
            return i;
        if (u && op->kind == GRAPH_BN && (u->gamma == param || u->beta == param))
            return i;
    }
    return -1;
}

static void check_cut(const char *model, uint64_t floats)
{
    graph_t *g;
    exchange_bucket_t b[EXCHANGE_BUCKETS];
    assert_int_equal(graph_build(model, 80, &g), 0);
    const graph_sizes_t *sizes = graph_sizes(g);
    const uint64_t all = sizes->weights + MEMORY_EXTRA;
    const int32_t n = exchange_cut(g, MEMORY_EXTRA, floats, b);
    assert_in_range(n, 2, EXCHANGE_BUCKETS);
    uint8_t *times = calloc(all, 1);
    assert_non_null(times);
    for (int32_t i = 0; i < n; i++) {
        assert_true(b[i].count > 0 && b[i].first + b[i].count <= all);
        assert_int_equal(b[i].first % 64, 0);
        for (uint64_t k = b[i].first; k < b[i].first + b[i].count; k++)
            times[k]++;
        if (i > 0)
            assert_true(b[i].ready <= b[i - 1].ready);
    }
    for (uint64_t k = 0; k < all; k++)
        assert_int_equal(times[k], 1);
    free(times);
    /* The last one holds norms, biases and what lies behind them. */
    assert_int_equal(b[n - 1].first, sizes->group_first[GRAPH_NORM]);
    assert_int_equal(b[n - 1].first + b[n - 1].count, all);
    assert_int_equal(b[n - 1].ready, -1);
    /* Each waits for exactly its own parameters and the buckets before it. */
    int32_t ready = INT32_MAX;
    for (int32_t i = 0; i < n - 1; i++) {
        for (int32_t p = 0; p < graph_params(g); p++) {
            const graph_param_t *param = graph_param(g, p);
            int32_t writer = last_writer(g, p);
            if (param->place != GRAPH_WEIGHT || param->first < b[i].first ||
                param->first >= b[i].first + b[i].count)
                continue;
            assert_true(writer >= 0);
            assert_true(param->first + param->count <= b[i].first + b[i].count);
            ready = writer < ready ? writer : ready;
        }
        assert_int_equal(b[i].ready, ready);
        if (i < n - 2)
            assert_true(b[i].count >= floats || n == EXCHANGE_BUCKETS);
    }
    graph_free(&g);
}

static void every_float_is_in_one_bucket(void **state)
{
    (void)state;
    const char *const models[] = {"yolo11n", "yolov8n", "yolo11m"};
    const uint64_t sizes[] = {EXCHANGE_FLOATS, 1 << 18, 1, UINT64_MAX / 8};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++)
            check_cut(models[m], sizes[k]);
}

/* ---- ranks ---- */

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

static const exchange_spec_t on_cpu = {.model = "yolo11n", .device = DEVICE_CPU};

static int open_cpu(const exchange_shared_t *s, uint32_t rank, uint32_t ranks, exchange_rig_t *r)
{
    exchange_spec_t spec = on_cpu;
    spec.ops = k_cpu_ops();
    return exchange_rig_open(&s->s, rank, ranks, &spec, r);
}

static int stats_rank(exchange_rig_t *r, uint32_t rank, uint32_t ranks)
{
    trainer_t *t = &r->t;
    double v[64];
    for (int i = 0; i < 64; i++)
        v[i] = rank + 0.25 * i;
    NEED(trainer_upload(t, r->stats, v, sizeof v) == 0);
    NEED(exchange_stats(t, r->stats, 64) == 0);
    NEED(trainer_download(t, v, r->stats, sizeof v) == 0);
    for (int i = 0; i < 64; i++)
        NEED(v[i] == ranks * (ranks - 1) / 2.0 + ranks * 0.25 * i);
    return 0;
}

static int cpu_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_cpu(s, rank, ranks, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    for (uint32_t step = 0; step < 2; step++) {
        NEED(exchange_rig_fill(&r, step) == 0);
        NEED(exchange_rig_enqueue(&r) == 0);
        NEED(exchange_rig_check(&r, step) == 0);
        NEED(stats_rank(&r, rank, ranks) == 0);
        NEED(exchange_check(&r.t) == 0);
    }
    exchange_rig_close(&r);
    NEED(r.t.exchange == NULL);
    return 0;
}

static void cpu_ranks_add_up(void **state)
{
    (void)state;
    exchange_run_ranks(1, cpu_rank);
    exchange_run_ranks(2, cpu_rank);
}

/* Rank 1 has another image size and another batch; rank 2 none of it. All end, all name rank 1. */
static int differing_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_cpu(s, rank, ranks, &r) == 0);
    if (rank == 1) {
        r.w.plan.imgsz = 96;
        r.w.plan.batch = 6;
        r.w.options.sync_bn = 1;
    }
    NEED(exchange_open(&r.t) == ERR_FAILED);
    NEED(HAS("rank 1 differs from rank 0 in batch") && HAS("imgsz") && HAS("sync_bn"));
    NEED(!HAS("model") && !HAS("amp"));
    NEED(rank != 1 || (HAS("imgsz (96, there 64)") && HAS("batch (6, there 12)")));
    exchange_rig_close(&r);
    return 0;
}

static void who_differs_is_named(void **state)
{
    (void)state;
    exchange_run_ranks(3, differing_rank);
}

/* ---- devices that claim to be some ---- */

static int open_fake_as(const exchange_shared_t *s, uint32_t rank, uint32_t ranks, int32_t device,
                        exchange_rig_t *r)
{
    const exchange_spec_t spec = {"yolo11n", fake_gpus(), device};
    fake.rank = rank;
    int rc = exchange_rig_open(&s->s, rank, ranks, &spec, r);
    return rc < 0 ? rc
                  : collective_open(&r->w, s->second_fd, rank, ranks,
                                    r->t.sizes->weights + MEMORY_EXTRA, &fake.coll);
}

static int open_fake(const exchange_shared_t *s, uint32_t rank, uint32_t ranks, exchange_rig_t *r)
{
    return open_fake_as(s, rank, ranks, (int32_t)rank, r);
}

static int env_is(const char *name, const char *value)
{
    const char *now = getenv(name);
    return value ? now && strcmp(now, value) == 0 : !now;
}

/* NCCL finds its environment as a test mode needs it, where devices repeat and only there; its own
 * account lies with the run's logs. */
static int environment_of(const exchange_shared_t *s, uint32_t rank, uint32_t ranks, int shared)
{
    exchange_rig_t r;
    char id[32], file[64];
    setenv("NCCL_DEBUG", "INFO", 1);
    unsetenv("NCCL_DEBUG_FILE");
    unsetenv("NCCL_HOSTID");
    unsetenv("NCCL_SOCKET_IFNAME");
    unsetenv("NCCL_IB_DISABLE");
    setenv("NCCL_RAS_ENABLE", "1", 1); /* the user's */
    NEED(open_fake_as(s, rank, ranks, shared ? 0 : (int32_t)rank, &r) == 0);
    snprintf(r.w.welcome.run_dir, sizeof r.w.welcome.run_dir, "/tmp/100%%");
    NEED(exchange_open(&r.t) == 0);
    snprintf(id, sizeof id, "sluice-rank-%u", rank);
    NEED(env_is("NCCL_HOSTID", shared ? id : NULL));
    NEED(env_is("NCCL_SOCKET_IFNAME", shared ? "lo" : NULL));
    NEED(env_is("NCCL_IB_DISABLE", shared ? "1" : NULL));
    NEED(env_is("NCCL_RAS_ENABLE", "1"));
    snprintf(file, sizeof file, "/tmp/100%%%%/logs/nccl-rank-%u.log", rank);
    NEED(env_is("NCCL_DEBUG_FILE", file));
    collective_close(&fake.coll);
    exchange_rig_close(&r);
    return 0;
}

static int sharing_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    return environment_of(s, rank, ranks, 1);
}

static int apart_environment(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    return environment_of(s, rank, ranks, 0);
}

static void ranks_that_share_a_device_are_told_apart(void **state)
{
    (void)state;
    exchange_run_ranks(2, sharing_rank);
    exchange_run_ranks(2, apart_environment);
}

/* Each bucket: an event of the main stream when its last gradient is written, the comm stream behind it,
 * a count, the sum, a count. In the end the main stream waits. */
static int check_log(exchange_rig_t *r, uint32_t rank)
{
    const struct exchange *x = r->t.exchange;
    const fake_entry_t *e = fake.log;
    for (int32_t i = 0; i < x->buckets; i++, e += 5) {
        const exchange_bucket_t *b = &x->bucket[i];
        NEED(e[0].call == FAKE_RECORD && e[0].stream == K_STREAM_MAIN);
        NEED(e[1].call == FAKE_AFTER && e[1].stream == K_STREAM_COMM && e[1].event == e[0].event);
        NEED(e[0].event >= EVENTS_EXCHANGE && e[0].event < EVENTS_EXCHANGE_END);
        NEED(e[2].call == FAKE_TICK && e[2].stream == K_STREAM_COMM);
        NEED(e[3].call == FAKE_SUM && e[3].stream == K_STREAM_COMM);
        NEED(e[3].at == b->first * sizeof(float) && e[3].count == b->count);
        NEED(e[3].op == b->ready);
        NEED(e[4].call == FAKE_TICK && e[4].stream == K_STREAM_COMM);
    }
    NEED(e[0].call == FAKE_TICK && e[1].call == FAKE_RECORD && e[1].stream == K_STREAM_COMM);
    NEED(e[2].call == FAKE_AFTER && e[2].stream == K_STREAM_MAIN && e[2].event == e[1].event);
    NEED(fake.logged == 5 * x->buckets + 3);
    return 0;
}

static int device_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    fake.polls = 3;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    board_gpu_t *gpu = board_gpu(r.w.board, rank);
    gpu->started = 77; /* of the page's last owner */
    NEED(exchange_finish(&r.t) == ERR_FAILED && HAS("before exchange_open"));
    NEED(exchange_open(&r.t) == 0);
    NEED(r.w.page->stage == BOARD_STAGE_FIRST_SUM && gpu->started == 2 && gpu->completed == 2);
    /* Cut finely, for several buckets of this small model. */
    struct exchange *x = r.t.exchange;
    x->buckets = exchange_cut(r.t.graph, MEMORY_EXTRA, 1 << 18, x->bucket);
    NEED(x->buckets > 5);
    const uint64_t each = (uint64_t)x->buckets;
    for (uint32_t step = 0; step < 2; step++) {
        NEED(exchange_rig_fill(&r, step) == 0);
        fake.logged = 0;
        NEED(exchange_rig_enqueue(&r) == 0);
        NEED(check_log(&r, rank) == 0);
        NEED(exchange_rig_check(&r, step) == 0);
    }
    NEED(gpu->started == 2 + 2 * each && gpu->completed == 2 + 2 * each && gpu->exchanges == 2);
    NEED(r.w.page->sums_launched == 2 + 2 * each);
    NEED(stats_rank(&r, rank, ranks) == 0);
    NEED(exchange_finish(&r.t) == ERR_FAILED);
    /* A recorded step's sums count when it is replayed, in each slot its own. */
    const uint64_t before = r.w.page->sums_launched;
    exchange_recording(&r.t, 3);
    NEED(r.w.page->stage == BOARD_STAGE_CAPTURE);
    NEED(exchange_rig_enqueue(&r) == 0 && exchange_stats(&r.t, r.stats, 64) == 0);
    exchange_recording(&r.t, -1);
    exchange_recording(&r.t, 5);
    NEED(exchange_stats(&r.t, r.stats, 64) == 0);
    exchange_recording(&r.t, -1);
    NEED(r.w.page->sums_launched == before);
    NEED(exchange_replayed(&r.t, 3) == 0 && r.w.page->sums_launched == before + each + 1);
    NEED(exchange_replayed(&r.t, 5) == 0 && r.w.page->sums_launched == before + each + 2);
    NEED(r.w.page->stage == BOARD_STAGE_RUNNING);
    NEED(exchange_replayed(&r.t, K_GRAPHS) == ERR_FAILED);
    collective_close(&fake.coll);
    exchange_rig_close(&r);
    NEED(fake.closed == 1);
    return 0;
}

static void devices_add_up_in_order(void **state)
{
    (void)state;
    exchange_run_ranks(2, device_rank);
    exchange_run_ranks(3, device_rank);
}

/* Sums of normalisation during backward come behind the buckets that were given away before. */
static int mixed_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    fake.logged = 0;
    NEED(exchange_begin(&r.t) == 0);
    NEED(exchange_stats(&r.t, r.stats, 64) == 0); /* nothing was given away: no wait */
    NEED(fake.logged == 3 && fake.log[1].call == FAKE_SUM && fake.log[1].stream == K_STREAM_MAIN);
    NEED(exchange_ready(&r.t, 0) == 0);
    NEED(fake.logged == 8);
    NEED(exchange_stats(&r.t, r.stats, 64) == 0);
    NEED(fake.log[8].call == FAKE_RECORD && fake.log[8].stream == K_STREAM_COMM);
    NEED(fake.log[9].call == FAKE_AFTER && fake.log[9].stream == K_STREAM_MAIN);
    NEED(fake.log[11].call == FAKE_SUM && fake.log[11].stream == K_STREAM_MAIN);
    NEED(exchange_finish(&r.t) == 0);
    collective_close(&fake.coll);
    exchange_rig_close(&r);
    return 0;
}

static void stats_wait_for_buckets(void **state)
{
    (void)state;
    exchange_run_ranks(2, mixed_rank);
}

/* ---- starts that fail ---- */

/* Ranks 0 and 2 cannot reach each other. */
static int apart_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    fake.never[0] = 0;
    fake.never[1] = 2;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    collective_close(&fake.coll);
    r.w.options.init_timeout = 2;
    NEED(collective_barrier(r.t.coll) == 0); /* all are up */
    NEED(exchange_open(&r.t) == ERR_TIMEOUT);
    char own[64];
    snprintf(own, sizeof own, "rank %u (GPU %u): connecting to the other devices has taken", rank,
             rank);
    NEED(HAS(own) && HAS("(init_timeout)") && HAS("NCCL_P2P_DISABLE=1"));
    NEED(rank == 1 || HAS("rank 1 (GPU 1): "));
    NEED(HAS(" (connecting to the other devices)")); /* the others', as the board shows them */
    NEED(HAS("do not work: rank 0 (GPU 0) with rank 2 (GPU 2)") && !HAS("with rank 1"));
    NEED(!HAS("rank 1 (GPU 1) with"));
    NEED(fake.closed == 3); /* the whole's and two pairs' */
    exchange_rig_close(&r);
    return 0;
}

static void pairs_are_named(void **state)
{
    (void)state;
    exchange_run_ranks(3, apart_rank);
}

/* The whole fails at once; a large sum of ranks 0 and 2 is never given to the device. A pair has its own
 * few seconds for that, not init_timeout, which would outlast this test. */
static int heavy_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    fake.never[0] = 0;
    fake.never[1] = 2;
    fake.heavy = 1;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    collective_close(&fake.coll);
    r.w.options.init_timeout = 10 * EXCHANGE_RIG_TIME_OUT_S;
    NEED(exchange_open(&r.t) == ERR_FAILED);
    NEED(HAS("communicator") && HAS("do not work: rank 0 (GPU 0) with rank 2 (GPU 2)"));
    NEED(!HAS("rank 1 (GPU 1) with") && !HAS("with rank 1"));
    exchange_rig_close(&r);
    return 0;
}

static void a_pair_has_its_own_deadline(void **state)
{
    (void)state;
    exchange_run_ranks(3, heavy_rank);
}

/* Rank 1's device fails at once: it says why, and the other does not wait for its sums. */
static int broken_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    fake.broken = rank == 1;
    fake.polls = rank == 0 ? 1 << 30 : 0;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    r.w.options.init_timeout = 2;
    NEED(collective_barrier(r.t.coll) == 0); /* both are up */
    int rc = exchange_open(&r.t);
    if (rank == 1)
        NEED(rc == ERR_FAILED && HAS("rank 1 (GPU 1): communicator"));
    else
        NEED(rc == ERR_TIMEOUT && HAS("rank 0 (GPU 0): connecting"));
    exchange_rig_close(&r);
    return 0;
}

static void a_broken_device_is_told(void **state)
{
    (void)state;
    exchange_run_ranks(2, broken_rank);
}

/* Rank 1 does not come at all. */
static int absent_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    r.w.options.init_timeout = 1;
    if (rank == 1) {
        board_set_phase(r.w.page, BOARD_BUILD);
        board_set_stage(r.w.page, BOARD_STAGE_CONTEXT);
        for (int i = 0; i < 1200 && !atomic_load(&r.w.hub->abort_word); i++)
            usleep(50000);
        exchange_rig_close(&r);
        return 0;
    }
    const board_page_t *other = board_page(r.w.board, 1);
    for (int i = 0; i < 1200 && atomic_load(&other->stage) != BOARD_STAGE_CONTEXT; i++)
        usleep(50000);
    NEED(exchange_open(&r.t) == ERR_TIMEOUT);
    NEED(HAS("for rank 1, which is building the model (opening its device)"));
    atomic_store(&r.w.hub->abort_word, 1);
    exchange_rig_close(&r);
    return 0;
}

static void an_absent_rank_is_named(void **state)
{
    (void)state;
    exchange_run_ranks(2, absent_rank);
}

/* ---- waits ---- */

enum { LOOK_S = 20, PATIENCE_S = 150 };

/* One look with the clocks set back: it takes place, and LOOK_S seconds have passed since the one before. */
static int look_again(struct exchange *x)
{
    const uint64_t now = clock_ns(), step = LOOK_S * 1000000000ull;
    x->looked_ns = now - 150 * 1000000ull;
    x->since_ns -= step; /* below zero it wraps, as the difference does */
    return exchange_check(x->t);
}

/* Repeats looks until one fails; 0 when none did within n. */
static int looks(struct exchange *x, int n)
{
    int rc = 0;
    for (int i = 0; i < n && rc == 0; i++)
        rc = look_again(x);
    return rc;
}

static void counters(board_t *b, uint32_t rank, uint64_t started, uint64_t completed)
{
    atomic_store(&board_gpu(b, rank)->started, started);
    atomic_store(&board_gpu(b, rank)->completed, completed);
}

/* Rank 0's wait, seen with counters that the test sets; rank 1 is a page of the board. */
static int waiting_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    worker_t other;
    if (rank == 1)
        return 0;
    NEED(ranks == 2 && open_fake(s, 0, 1, &r) == 0);
    struct exchange x = {.t = &r.t, .connected = 1, .slot = -1, .watched = -1};
    r.t.exchange = &x;
    x.device[0] = 4;
    x.device[1] = 5;
    x.gpu = board_gpu(r.w.board, 0);
    r.t.ranks = 2;
    rig_worker(&s->s, 1, &other);
    board_set_phase(other.page, BOARD_FORWARD);
    collective_deadline(r.t.coll, PATIENCE_S);
    NEED(looks(&x, 15) == 0); /* nothing was launched */
    atomic_store(&r.w.page->sums_launched, 9);
    counters(r.w.board, 0, 8, 7);
    counters(r.w.board, 1, 7, 7);
    NEED(looks(&x, 60) == ERR_TIMEOUT);
    NEED(HAS("rank 0 (GPU 4) waited") && HAS("sum 8 over the devices for rank 1 (GPU 5)"));
    NEED(HAS("which is forward, has begun 7"));
    board_set_phase(other.page, BOARD_WAIT_DATA);
    NEED(looks(&x, 15) == 0); /* excused */
    board_set_phase(other.page, BOARD_CHECKPOINT);
    for (uint64_t i = 0; i < 15; i++) {
        board_progress(other.page, i, 0); /* it works on something */
        NEED(looks(&x, 2) == 0);
    }
    counters(r.w.board, 1, 8, 7);
    NEED(looks(&x, 60) == ERR_TIMEOUT && HAS("every GPU has begun sum 8") && HAS("P2P"));
    counters(r.w.board, 0, 7, 7);
    NEED(looks(&x, 60) == ERR_TIMEOUT && HAS("rank 0 (GPU 4): the GPU has not come to sum 8"));
    counters(r.w.board, 0, 8, 7);
    counters(r.w.board, 1, 7, 7);
    board_set_phase(other.page, BOARD_STOPPING);
    NEED(looks(&x, 3) == ERR_STOPPED && HAS("rank 1 has left"));
    fake.broken = 1;
    NEED(look_again(&x) == ERR_FAILED && HAS("another rank or a connection failed"));
    r.t.exchange = NULL;
    exchange_rig_close(&r);
    return 0;
}

static void a_wait_names_whom_it_is_for(void **state)
{
    (void)state;
    exchange_run_ranks(2, waiting_rank);
}

/* A communicator that does not end: the close is bounded, the device is left, and the process ends with
 * its own status although a thread of it never will. */
static int hanging_rank(const exchange_shared_t *s, uint32_t rank, uint32_t ranks)
{
    exchange_rig_t r;
    NEED(open_fake(s, rank, ranks, &r) == 0);
    NEED(exchange_open(&r.t) == 0);
    fake.hangs = 1;
    err_set(ERR_DATA, "the run's last words");
    exchange_close(&r.t);
    NEED(r.t.dev == NULL && r.t.exchange == NULL);
    NEED(strcmp(err_text(), "the run's last words") == 0);
    return 0;
}

static void a_close_is_bounded(void **state)
{
    (void)state;
    exchange_run_ranks(2, hanging_rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_float_is_in_one_bucket),
        cmocka_unit_test(cpu_ranks_add_up),
        cmocka_unit_test(who_differs_is_named),
        cmocka_unit_test(ranks_that_share_a_device_are_told_apart),
        cmocka_unit_test(devices_add_up_in_order),
        cmocka_unit_test(stats_wait_for_buckets),
        cmocka_unit_test(pairs_are_named),
        cmocka_unit_test(a_pair_has_its_own_deadline),
        cmocka_unit_test(a_broken_device_is_told),
        cmocka_unit_test(an_absent_rank_is_named),
        cmocka_unit_test(a_wait_names_whom_it_is_for),
        cmocka_unit_test(a_close_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
