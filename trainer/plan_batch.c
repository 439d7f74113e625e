#include "trainer/plan_batch.h"

#include "control/gpus.h"
#include "control/json.h"
#include "control/log.h"
#include "control/needs.h"
#include "control/sizing.h"
#include "shm/err.h"
#include "trainer/devices.h"
#include "trainer/memory.h"
#include "trainer/setup.h"
#include "trainer/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)GPU_FP32 == (int)K_F32 && (int)GPU_BF16 == (int)K_BF16 &&
                   (int)GPU_FP16 == (int)K_F16,
               "a welcome's format is a k_dtype_t");

typedef struct {
    worker_t w;
    trainer_t t;
    uint64_t host; /* bytes of host memory that may be used */
    uint64_t left; /* GPU: bytes that are free for a rank */
} chooser_t;

/* What a batch comes to. */
typedef struct {
    uint32_t batch;
    uint64_t need, of; /* on the device, or all of the run on a CPU */
    int fits;
    int host_short; /* it is the host that it does not fit into */
} trial_t;

static int on_gpu(const chooser_t *c)
{
    return c->w.welcome.device >= 0;
}

int plan_batch_ladder(uint32_t most, uint32_t rungs[PLAN_BATCH_RUNGS])
{
    int n = 0;
    for (uint32_t b = 1; b <= most && n < PLAN_BATCH_RUNGS;) {
        rungs[n++] = b;
        if (b <= 2)
            b *= 2;
        else if ((b & (b - 1)) == 0)
            b += b / 2;
        else
            b += b / 3;
    }
    return n;
}

/* All that the run's other processes take of the host, as the coordinator will count it. */
static uint64_t host_of_others(const chooser_t *c, const plan_t *plan, ring_config_t *ring)
{
    const options_t *o = &c->w.options;
    needs_t needs;
    sizing_ring(o, c->w.catalog, NULL, plan, 0, ring);
    needs_from_t from = {.ring = *ring,
                         .ranks = plan->ranks,
                         .workers = c->w.welcome.workers,
                         .threads = c->w.welcome.threads};
    needs_from(o, c->w.catalog, &from);
    needs_compute(&from, &needs);
    return needs.rings + needs.loaders + needs.rest;
}

static int try_batch(chooser_t *c, uint32_t each, trial_t *trial)
{
    const options_t *o = &c->w.options;
    trainer_t *t = &c->t;
    ring_config_t ring;
    memory_map_t map;
    c->w.options.batch = (int)(each * t->ranks); /* the schedule's, for optimizer=auto */
    sizing_plan(o, c->w.catalog, t->ranks, (uint32_t)o->batch, &c->w.plan);
    t->plan = &c->w.plan;
    schedule_init(&t->schedule, o, t->plan->n_train, plan_train_steps(t->plan),
                  (uint32_t)graph_classes(t->graph));
    uint64_t others = host_of_others(c, t->plan, &ring), slot = setup_slot(t);
    memory_request_t request;
    setup_request(t, ring.label_cap, &request);
    int rc = memory_plan(t->graph, t->dev, &request, &map);
    if (rc < 0)
        return rc;
    uint64_t ranks = t->ranks, host = others + ranks * memory_host(&map, t->dev, &request) +
                                      snapshot_bytes(slot) + 2 * slot;
    memset(trial, 0, sizeof *trial);
    trial->batch = (uint32_t)o->batch;
    trial->need = on_gpu(c) ? map.total + MEMORY_DEVICE + (ranks > 1 ? PLAN_BATCH_COMM : 0) : host;
    trial->of = on_gpu(c) ? c->left : c->host;
    trial->host_short = on_gpu(c) && host > c->host;
    trial->fits = (double)trial->need <= o->batch_share * (double)trial->of && !trial->host_short;
    return 0;
}

/* The largest rung that fits: more images never need less. */
static int choose(chooser_t *c, trial_t *best, trial_t *next)
{
    uint32_t rungs[PLAN_BATCH_RUNGS], most = on_gpu(c) ? PLAN_BATCH_MOST : PLAN_BATCH_CPU;
    uint32_t images = catalog_count(c->w.catalog, CATALOG_TRAIN);
    most = (images < most ? images : most) / c->t.ranks;
    int n = plan_batch_ladder(most < 1 ? 1 : most, rungs), low = 0, high = n;
    memset(best, 0, sizeof *best);
    memset(next, 0, sizeof *next);
    while (low < high) {
        int middle = (low + high) / 2;
        trial_t trial;
        int rc = try_batch(c, rungs[middle], &trial);
        if (rc < 0)
            return rc;
        if (trial.fits) {
            *best = trial;
            low = middle + 1;
        } else {
            *next = trial;
            high = middle;
        }
    }
    return 0;
}

/* Why it is no more, or why there is none. Returns the answer's code. */
static int explain(const chooser_t *c, const trial_t *best, const trial_t *next, char *why,
                   size_t bytes)
{
    const options_t *o = &c->w.options;
    why[0] = '\0';
    if (best->batch == 0 && next->host_short) {
        snprintf(why, bytes,
                 "%u image%s do not fit into the host's memory beside loaders and rings: lower "
                 "imgsz, workers or ring_depth",
                 next->batch, next->batch == 1 ? "" : "s");
        return ERR_ENV;
    }
    if (best->batch == 0) {
        snprintf(why, bytes,
                 "a batch of %u, the least on %u rank%s, needs %.1f GB, and %g %% of the %.1f GB "
                 "that are free on %s are less: lower imgsz, or choose a smaller model",
                 next->batch, c->t.ranks, c->t.ranks == 1 ? "" : "s", (double)next->need / 1e9,
                 100 * o->batch_share, (double)next->of / 1e9,
                 on_gpu(c) ? "the device" : "this machine");
        return ERR_ENV;
    }
    if (next->batch == 0)
        snprintf(why, bytes, "more is not tried: %s",
                 best->batch * 2 > catalog_count(c->w.catalog, CATALOG_TRAIN)
                     ? "there are not many more images"
                 : on_gpu(c) ? "it would not train better"
                             : "it would not be faster on a CPU");
    else if (next->host_short)
        snprintf(why, bytes, "%u would not fit into the host's memory", next->batch);
    else
        snprintf(why, bytes, "%u would need %.1f GB", next->batch, (double)next->need / 1e9);
    return 0;
}

static int read_options(int fd, options_t *o)
{
    char *text = NULL;
    size_t bytes = 0;
    options_default(o);
    int rc = gpus_answer(fd, "the text of the run's options", &text, &bytes);
    if (rc == 0)
        rc = options_load_yaml_text(o, text, bytes, "the run's options");
    free(text);
    return rc;
}

/* What it has opened when it fails is close_chooser's too. */
static int open_chooser(int argc, char **argv, chooser_t *c)
{
    worker_t *w = &c->w;
    uint64_t total;
    arena_budget_t budget;
    c->t.w = w;
    int rc = read_options((int)devices_number(argc, argv, "--options", -1), &w->options);
    if (rc == 0)
        rc = catalog_open((int)devices_number(argc, argv, "--catalog-fd", -1), &w->catalog);
    if (rc < 0)
        return rc;
    w->welcome.device = (int32_t)devices_number(argc, argv, "--device", DEVICE_CPU);
    w->welcome.format = (uint32_t)devices_number(argc, argv, "--format", GPU_FP32);
    w->welcome.threads = (uint32_t)devices_number(argc, argv, "--threads", 1);
    w->welcome.workers = (uint32_t)devices_number(argc, argv, "--workers", 1);
    if ((rc = setup_graph(&c->t)) < 0 || (rc = arena_budget("", &budget)) < 0)
        return rc;
    c->host = budget.available;
    if (!on_gpu(c))
        return 0;
    /* With this process's context in place, as it will be with a rank's; each further rank on the
     * device brings its own. */
    if (c->t.ops->memory(c->t.dev, &c->left, &total) < 0)
        return err_set(ERR_ENV, "device memory: %s", c->t.ops->error(c->t.dev));
    uint64_t ranks = (uint64_t)gpus_ranks_on(&w->options, w->welcome.device);
    uint64_t contexts = ranks > 1 ? (ranks - 1) * GPUS_LEAST : 0;
    c->left = c->left > contexts ? (c->left - contexts) / (ranks < 1 ? 1 : ranks) : 0;
    return 0;
}

static void close_chooser(chooser_t *c)
{
    setup_close(&c->t);
    if (c->w.catalog)
        catalog_close(&c->w.catalog);
}

static int answer(int fd, const chooser_t *c, const trial_t *best, int code, const char *why)
{
    char text[2048];
    json_t j;
    json_begin(&j, text, sizeof text - 1);
    json_object_begin(&j);
    json_key_uint(&j, "batch", best->batch);
    json_key_uint(&j, "need", best->need);
    json_key_uint(&j, "of", best->of);
    json_key_int(&j, "device", c->w.welcome.device);
    json_key_int(&j, "code", code);
    json_key_string(&j, "why", why);
    json_object_end(&j);
    int rc = json_finish(&j);
    if (rc < 0)
        return rc;
    size_t bytes = strlen(text);
    text[bytes++] = '\n';
    return devices_put(fd, text, bytes);
}

int plan_batch_main(int argc, char **argv)
{
    char why[1024];
    trial_t best = {0}, next = {0};
    chooser_t *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(ERR_ENV, "no memory to choose a batch");
    log_identity("plan", -1);
    int rc = open_chooser(argc, argv, c);
    if (rc == 0)
        rc = choose(c, &best, &next);
    if (rc < 0)
        snprintf(why, sizeof why, "%.1000s", err_text());
    else
        rc = explain(c, &best, &next, why, sizeof why);
    rc = answer((int)devices_number(argc, argv, "--to", -1), c, &best, rc, why);
    close_chooser(c);
    free(c);
    return rc;
}
