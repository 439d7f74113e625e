#include "tests/exchange_rig.h"

#include "shm/err.h"
#include "trainer/exchange.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { RIG_DOUBLES = 64, RIG_NC = 80 };

static int no_messages(trainer_t *t)
{
    (void)t;
    return 0;
}

static int give_memory(exchange_rig_t *r)
{
    trainer_t *t = &r->t;
    t->mem.weight_bytes = t->sizes->weights * sizeof(float);
    t->mem.train.grads = 0;
    t->mem.extra = t->mem.weight_bytes;
    r->stats = t->mem.extra + MEMORY_EXTRA * sizeof(float);
    t->mem.activation = r->stats + RIG_DOUBLES * sizeof(double);
    t->mem.activation_bytes = t->mem.weight_bytes;
    t->mem.total = t->mem.activation + t->mem.activation_bytes;
    if (t->ops->reserve(t->dev, t->mem.total) < 0 || t->ops->zero(t->dev, 0, t->mem.total) < 0)
        return err_set(ERR_ENV, "%s", t->ops->error(t->dev));
    return 0;
}

int exchange_rig_open(const rig_shared_t *s, uint32_t rank, uint32_t ranks,
                      const exchange_spec_t *spec, exchange_rig_t *r)
{
    char why[512];
    trainer_t *t = &r->t;
    memset(r, 0, sizeof *r);
    rig_worker(s, rank, &r->w);
    options_default(&r->w.options);
    r->w.welcome.device = spec->device;
    r->w.plan =
        (plan_t){.n_train = 64, .ranks = ranks, .batch = 4 * ranks, .imgsz = 64, .epochs = 1};
    if (spec->device >= 0)
        atomic_store(&r->w.page->device_one, (uint32_t)spec->device + 1);
    t->w = &r->w;
    t->o = &r->w.options;
    t->plan = &r->w.plan;
    t->rank = rank;
    t->ranks = ranks;
    t->poll = no_messages;
    t->ops = spec->ops;
    const k_open_t args = {.ordinal = spec->device < 0 ? 0 : spec->device, .threads = 1};
    if (t->ops->open(&args, &t->dev, why, sizeof why) < 0)
        return err_set(ERR_ENV, "%s", why);
    int rc = graph_build(spec->model, RIG_NC, &t->graph);
    if (rc < 0)
        return rc;
    t->sizes = graph_sizes(t->graph);
    if ((rc = give_memory(r)) < 0)
        return rc;
    return collective_open(&r->w, s->collective_fd, rank, ranks, t->sizes->weights + MEMORY_EXTRA,
                           &t->coll);
}

void exchange_rig_close(exchange_rig_t *r)
{
    trainer_t *t = &r->t;
    exchange_close(t);
    collective_close(&t->coll);
    graph_free(&t->graph);
    if (t->dev)
        t->ops->close(&t->dev);
}

/* Whole numbers: exact sums in any order. */
float exchange_part(uint32_t rank, uint64_t i, uint32_t step)
{
    return (float)((i * 2654435761u + rank * 40503u + step * 977u) % 4093u);
}

int exchange_rig_fill(exchange_rig_t *r, uint32_t step)
{
    trainer_t *t = &r->t;
    const uint64_t count = t->sizes->weights + MEMORY_EXTRA;
    float *host = malloc(count * sizeof *host);
    if (!host)
        return err_set(ERR_ENV, "out of memory");
    for (uint64_t i = 0; i < count; i++)
        host[i] = exchange_part(t->rank, i, step);
    int rc = trainer_upload(t, t->mem.train.grads, host, count * sizeof *host);
    free(host);
    return rc;
}

int exchange_rig_enqueue(exchange_rig_t *r)
{
    /* As many operations as any model here has; a hook may name one that has no weights. */
    enum { OPERATIONS = 2000 };
    trainer_t *t = &r->t;
    int rc = exchange_begin(t);
    for (int32_t op = OPERATIONS; rc == 0 && op >= 0; op--) {
        fake.op = op;
        rc = exchange_ready(t, op);
    }
    fake.op = -1;
    return rc == 0 ? exchange_finish(t) : rc;
}

int exchange_rig_check(exchange_rig_t *r, uint32_t step)
{
    trainer_t *t = &r->t;
    const uint64_t count = t->sizes->weights + MEMORY_EXTRA;
    float *host = malloc(count * sizeof *host);
    int bad = !host || trainer_download(t, host, t->mem.train.grads, count * sizeof *host) < 0;
    for (uint64_t i = 0; !bad && i < count; i++) {
        float want = 0;
        for (uint32_t k = 0; k < t->ranks; k++)
            want += exchange_part(k, i, step);
        bad = host[i] != want;
        if (bad)
            fprintf(stderr, "rank %u: float %llu is %g instead of %g\n", t->rank,
                    (unsigned long long)i, (double)host[i], (double)want);
    }
    free(host);
    return bad;
}

/* ---- ranks ---- */

static int status_of(pid_t pid)
{
    int status = 0;
    if (waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void exchange_run_ranks(uint32_t ranks, exchange_rank_fn fn)
{
    exchange_shared_t s;
    pid_t pids[EXCHANGE_RIG_RANKS];
    assert_int_equal(rig_share(ranks, &s.s), 0);
    s.second_fd = memfd_create("test-second", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(s.second_fd >= 0);
    for (uint32_t r = 0; r < ranks; r++) {
        pids[r] = fork();
        assert_true(pids[r] >= 0);
        if (pids[r] == 0) {
            signal(SIGSEGV, SIG_DFL);       /* not the test program's */
            alarm(EXCHANGE_RIG_TIME_OUT_S); /* a hang ends the rank and with it the test */
            exit(fn(&s, r, ranks));         /* exit: on_exit is part of what is tested */
        }
    }
    for (uint32_t r = 0; r < ranks; r++)
        assert_int_equal(status_of(pids[r]), 0);
    close(s.second_fd);
    rig_unshare(&s.s);
}

/* ---- the fake ---- */

fake_t fake = {.never = {-1, -1}, .other = -1};

static void keep(fake_entry_t e)
{
    e.op = fake.op;
    if (fake.logged < FAKE_LOG)
        fake.log[fake.logged++] = e;
}

static int fake_record(k_dev_t *dev, int32_t e, k_stream_t s)
{
    keep((fake_entry_t){.call = FAKE_RECORD, .event = e, .stream = s});
    return k_cpu_ops()->record(dev, e, s);
}

static int fake_after(k_dev_t *dev, k_stream_t s, int32_t e)
{
    keep((fake_entry_t){.call = FAKE_AFTER, .event = e, .stream = s});
    return k_cpu_ops()->after(dev, s, e);
}

static int fake_tick(k_dev_t *dev, k_stream_t s, uint64_t *word)
{
    keep((fake_entry_t){.call = FAKE_TICK, .stream = s});
    return k_cpu_ops()->tick(dev, s, word);
}

static int fake_comm_id(k_dev_t *dev, uint8_t id[K_COMM_ID])
{
    (void)dev;
    memset(id, 0, K_COMM_ID);
    id[0] = (uint8_t)fake.rank;
    return 0;
}

static int fake_comm_open(k_dev_t *dev, const uint8_t id[K_COMM_ID], int rank, int ranks)
{
    (void)dev;
    fake.members = ranks;
    fake.number = rank;
    fake.other = rank == 1 && ranks == 2 ? id[0] : -1;
    fake.pending = fake.polls;
    fake.large = 0;
    return 0;
}

/* Whether this rank cannot reach one that it needs. Of a pair only the higher knows who the other is:
 * it alone waits, which is enough for the pair to have failed. */
static int unreachable(void)
{
    if (fake.never[0] < 0)
        return 0;
    return fake.members > 2 || (fake.other == fake.never[0] && (int)fake.rank == fake.never[1]);
}

static int fake_comm_poll(k_dev_t *dev)
{
    (void)dev;
    if (fake.broken || (fake.heavy && fake.members > 2))
        return -1;
    if (unreachable() && (!fake.heavy || fake.large))
        return 1;
    if (fake.pending > 0)
        return fake.pending--, 1;
    return 0;
}

/* A pair's sum without a second rank: the probe's own factor is known. */
static int sum_of_two(k_dev_t *dev, k_at at, uint64_t count)
{
    float v[MEMORY_EXTRA];
    if (count > MEMORY_EXTRA) /* of numbers that mean nothing */
        return 0;
    if (dev->ops->download(dev, K_STREAM_COMM, v, at, count * sizeof(float)) < 0)
        return -1;
    for (uint64_t i = 0; i < count; i++)
        v[i] *= 3.0f / (float)(fake.number + 1);
    return dev->ops->upload(dev, K_STREAM_COMM, at, v, count * sizeof(float));
}

static int fake_comm_sum(k_dev_t *dev, k_stream_t s, k_at at, uint64_t count, int doubles)
{
    keep((fake_entry_t){.call = FAKE_SUM, .stream = s, .at = at, .count = count});
    fake.pending = fake.polls;
    fake.large = count > MEMORY_EXTRA;
    if (!fake.coll)
        return sum_of_two(dev, at, count);
    if (!doubles)
        return collective_allreduce(fake.coll, dev, at, count);
    double v[RIG_DOUBLES];
    if (count > RIG_DOUBLES || dev->ops->download(dev, s, v, at, count * sizeof *v) < 0 ||
        collective_sum(fake.coll, v, (uint32_t)count) < 0)
        return -1;
    return dev->ops->upload(dev, s, at, v, count * sizeof *v);
}

static int fake_comm_close(k_dev_t *dev, int abort)
{
    (void)dev, (void)abort;
    fake.closed++;
    while (fake.hangs)
        pause();
    return 0;
}

static const k_ops_t *fake_table(void);

static int fake_open(const k_open_t *args, k_dev_t **dev, char *why, size_t why_bytes)
{
    int rc = k_cpu_ops()->open(args, dev, why, why_bytes);
    if (rc == 0)
        (*dev)->ops = fake_table();
    return rc;
}

static const k_ops_t *fake_table(void)
{
    static k_ops_t table;
    if (!table.open) {
        table = *k_cpu_ops();
        table.name = "fake";
        table.async = 1;
        table.open = fake_open;
        table.record = fake_record;
        table.after = fake_after;
        table.tick = fake_tick;
        table.comm_id = fake_comm_id;
        table.comm_open = fake_comm_open;
        table.comm_poll = fake_comm_poll;
        table.comm_sum = fake_comm_sum;
        table.comm_close = fake_comm_close;
    }
    return &table;
}

const k_ops_t *fake_gpus(void)
{
    return fake_table();
}
