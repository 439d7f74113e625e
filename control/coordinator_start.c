/* From the sample list to armed rings: issues told, plan made, memory compared and reserved. */
#include "control/coordinator_state.h"
#include "control/sizing.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    START_FEW = 8, /* images of a rank below which its own statistics are said to be poor */
};

/* Batch normalisation of few images has statistics of little worth (facts/yolo.md 4.10). */
static void warn_of_few(coordinator_t *c)
{
    uint32_t each = c->plan.batch / c->ranks;
    if (c->ranks > 1 && each < START_FEW && !c->options.sync_bn && !c->config->digest_only)
        run_note(c, LOG_WARN,
                 "batch=%u is %u image%s on each of %u ranks, and batch normalisation is by rank: "
                 "sync_bn=True makes it one over all, or raise batch",
                 c->plan.batch, each, each == 1 ? "" : "s", c->ranks);
}

static int make_plan(coordinator_t *c)
{
    const options_t *o = &c->options;
    plan_t *p = &c->plan;
    if (!run_trains(c))
        return results_plan(c);
    sizing_plan(o, c->catalog, c->ranks, (uint32_t)o->batch, p);
    p->first_epoch = c->first_epoch;
    p->first_position = c->resumed ? c->was.position : 0;
    if (p->n_train == 0)
        return err_set(ERR_DATA, "%s has no usable training image", o->data);
    if (p->first_epoch >= p->epochs)
        return err_set(ERR_CONFIG,
                       "the run in %s has done its %u epochs: there is nothing to resume",
                       c->run_dir, p->epochs);
    return 0;
}

/* Before anything is reserved: above a memory limit fallocate is an OOM kill, not an error (design
 * 3). */
static int check_needs(coordinator_t *c)
{
    needs_limits_t limits;
    needs_from_t from = {
        .ring = c->ring_config, .ranks = c->ranks, .workers = c->workers, .threads = c->threads};
    int rc = needs_limits(&limits);
    if (rc < 0)
        return rc;
    c->budget = limits.memory;
    needs_from(&c->options, c->catalog, &from);
    needs_compute(&from, &c->needs);
    /* Trainers, which compare for themselves, leave this to the others. */
    atomic_store_explicit(&c->hub->memory_reserved, c->needs.loaders + c->needs.rest,
                          memory_order_relaxed);
    return needs_check(&c->needs, &limits);
}

static int make_rings(coordinator_t *c)
{
    uint32_t depth = c->ring_config.depth;
    for (uint32_t r = 0; r < c->ranks; r++) {
        char name[32];
        uint32_t cells[64]; /* ring_depth is at most 64: its row in the table of options */
        snprintf(name, sizeof name, "sluice-ring-%u", r);
        int rc = ring_create(&c->ring_config, name, &c->rings[r], &c->ring_fd[r]);
        if (rc < 0)
            return err_add(rc, "rank %u", r);
        ring_set_bell(c->rings[r], &c->hub->work_bell);
        for (uint32_t i = 0; i < depth && i < 64; i++) {
            plan_batch_t b = plan_locate(&c->plan, i);
            cells[i] = plan_cells(&c->plan, &b, r);
        }
        ring_arm(c->rings[r], cells);
    }
    return 0;
}

static void tell_start(coordinator_t *c)
{
    event_t e;
    event_begin(&e, "start");
    json_key_string(&e.json, "run_dir", c->run_dir);
    json_key_string(&e.json, "model", c->options.model);
    json_key_string(&e.json, "data", c->options.data);
    json_key_uint(&e.json, "epochs", c->plan.epochs);
    json_key_uint(&e.json, "first_epoch", c->plan.first_epoch + 1);
    json_key_uint(&e.json, "first_position", c->plan.first_position);
    json_key_uint(&e.json, "ranks", c->ranks);
    json_key_uint(&e.json, "loaders", c->workers);
    json_key_uint(&e.json, "batch", c->plan.batch);
    json_key_uint(&e.json, "imgsz", c->plan.imgsz);
    json_key_uint(&e.json, "seed", c->plan.seed);
    json_key_uint(&e.json, "train_images", c->plan.n_train);
    json_key_uint(&e.json, "val_images", c->plan.n_val);
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)c->list_digest);
    json_key_string(&e.json, "list_digest", digest);
    json_key_bool(&e.json, "resumed", c->resumed);
    event_end(c, &e);
}

int start_from_list(coordinator_t *c)
{
    int rc;
    CHECK_GOTO(catalog_open(c->catalog_fd, &c->catalog), rc, fail);
    c->list_digest = catalog_digest(c->catalog);
    CHECK_GOTO(warned_init(&c->warned, c->catalog), rc, fail);
    samples_issues(c);
    return c->options.batch == 0 ? devices_plan(c) : start_planned(c);
fail:
    return rc;
}

int start_planned(coordinator_t *c)
{
    int rc;
    CHECK_GOTO(make_plan(c), rc, fail);
    warn_of_few(c);
    sizing_ring(&c->options, c->catalog, c->parts, &c->plan, c->config->digest_only,
                &c->ring_config);
    CHECK_GOTO(check_needs(c), rc, fail);
    CHECK_GOTO(options_dump_yaml(&c->options, c->yaml, sizeof c->yaml), rc, fail);
    CHECK_GOTO(make_rings(c), rc, fail);
    CHECK_GOTO(ledger_new(c->plan.n_train, c->plan.n_val, &c->ledger), rc, fail);
    if (c->resumed)
        CHECK_GOTO(resume_check(c), rc, fail);
    tell_start(c);
    c->epochs_announced = c->plan.first_epoch;
    if (c->config->digest_only) {
        run_enter(c, RUN_STARTING);
        run_enter(c, RUN_TRAINING);
    } else {
        run_enter(c, RUN_STARTING);
        for (uint32_t r = 0; r < c->ranks; r++)
            CHECK_GOTO(proc_start(c, proc_trainer(c, r)), rc, fail);
    }
    proc_scale_loaders(c);
    return 0;
fail:
    return rc;
}

static void show_table(coordinator_t *c)
{
    coordinator_resume_row_t rows[COORDINATOR_RESUME_ROWS];
    coordinator_table_t t = {.options = &c->options,
                             .plan = &c->plan,
                             .catalog = c->catalog,
                             .run_dir = c->run_dir,
                             .resumed = c->resumed,
                             .workers = c->workers,
                             .threads = c->threads,
                             .cpus = c->cpus,
                             .needs = c->needs,
                             .ring = c->ring_config,
                             .budget = c->budget,
                             .disk_free = c->disk_free,
                             .gpus = c->gpus,
                             .format = c->gpus ? gpus_format(&c->options, c->gpus) : GPU_FP32,
                             .resume = rows,
                             .n_resume = c->resumed ? resume_tell(c, rows) : 0};
    for (uint32_t r = 0; r < c->ranks; r++) {
        const board_page_t *page = board_page(c->board, proc_trainer(c, r)->page);
        t.memory[r] = atomic_load_explicit(&page->memory_bytes, memory_order_relaxed);
        t.device_memory[r] = atomic_load_explicit(&page->device_bytes, memory_order_relaxed);
        t.device_free[r] = atomic_load_explicit(&page->device_free, memory_order_relaxed);
    }
    if (c->view->start)
        c->view->start(c->view->user, &t);
}

/* The snapshot memory holds two checkpoints, and so does the disk at its fullest: one is written
 * whole before the other goes; the sample list comes with them. What cannot be kept is better known now than after the first epoch.
 */
static int check_disk(coordinator_t *c)
{
    struct stat st, list;
    uint64_t mb = 1000000;
    if (!run_trains(c) || c->disk_free == 0 || fstat(c->snapshot_fd, &st) != 0 ||
        fstat(c->catalog_fd, &list) != 0)
        return 0; /* no checkpoints, or not known */
    /* A resumed run's disk holds one of them already. */
    uint64_t need = c->resumed ? (uint64_t)st.st_size / 2 : (uint64_t)(st.st_size + list.st_size);
    if (need <= c->disk_free)
        return 0;
    return err_set(ERR_ENV,
                   "the checkpoints of this run need %llu MB in %s, where %llu MB are free: free "
                   "some, or give project=FOLDER on another disk",
                   (unsigned long long)(need / mb), c->run_dir,
                   (unsigned long long)(c->disk_free / mb));
}

void start_done(coordinator_t *c)
{
    if (c->state > RUN_STOPPING)
        return;
    if (check_disk(c) < 0) {
        run_fail(c, ERR_ENV, "%s", err_text());
        return;
    }
    /* With its args.yaml the run has begun: a start that fails before leaves no run directory. */
    record_text(c, WIRE_ARGS, c->yaml, strlen(c->yaml), 0);
    if (c->state != RUN_STARTING)
        return;
    show_table(c);
    run_enter(c, RUN_TRAINING);
}

void start_welcome(coordinator_t *c, const proc_t *p, wire_welcome_t *w)
{
    int works = p->kind == BOARD_TRAINER || p->kind == BOARD_LOADER;
    w->plan = c->plan;
    /* The scan is told what the run to resume was trained on. */
    w->list_digest = p->kind == BOARD_SCAN ? c->was.list_digest : c->list_digest;
    w->board_fd = c->board_fd;
    /* The scribe's is still empty; the scan has its own on the command line. */
    w->catalog_fd = works || p->kind == BOARD_SCRIBE ? c->catalog_fd : -1;
    w->collective_fd = p->kind == BOARD_TRAINER ? c->collective_fd : -1;
    w->snapshot_fd = p->kind == BOARD_TRAINER || p->kind == BOARD_SCRIBE ? c->snapshot_fd : -1;
    for (uint32_t r = 0; r < WIRE_RANKS; r++)
        w->ring_fd[r] =
            r < c->ranks && (p->kind == BOARD_LOADER || (p->kind == BOARD_TRAINER && p->index == r))
                ? c->ring_fd[r]
                : -1;
    w->board_page = p->page;
    w->threads = p->kind == BOARD_TRAINER ? c->threads : 1;
    w->workers = c->workers;
    w->devices = c->ranks;
    w->device = p->kind == BOARD_TRAINER ? c->options.devices[p->index] : DEVICE_CPU;
    w->format = w->device < 0 ? GPU_FP32 : gpus_format(&c->options, c->gpus);
    snprintf(w->run_dir, sizeof w->run_dir, "%s", c->run_dir);
}
