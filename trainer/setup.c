#include "trainer/setup.h"

#include "control/log.h"
#include "shm/err.h"
#include "trainer/checkpoint.h"
#include "trainer/devices.h"
#include "trainer/evaluate.h"
#include "trainer/exchange.h"
#include "trainer/modelfile.h"
#include "trainer/pass.h"
#include "trainer/record.h"
#include "trainer/step.h"
#include "trainer/tune.h"
#include "trainer/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CLOSE_MS = 5000 };

/* Files that the model is made from; NULL where it starts from nothing. */
typedef struct {
    modelfile_t *weights;
    safetensors_t *state;
    char origin[OPTIONS_PATH_BYTES + 64]; /* of the file, for sentences */
} sources_t;

static int open_device(trainer_t *t)
{
    char why[512] = "";
    const k_open_t args = {.ordinal = t->w->welcome.device < 0 ? 0 : t->w->welcome.device,
                           .threads = (int)t->w->welcome.threads,
                           .deterministic = t->o->deterministic,
                           .compute = (k_dtype_t)t->w->welcome.format};
    const k_ops_t *ops = NULL;
    devices_holders(t->w->welcome.device, t->holders, sizeof t->holders);
    if (t->w->welcome.device == DEVICE_CPU)
        ops = k_cpu_ops();
    else if (k_cuda_ops)
        ops = k_cuda_ops();
    if (!ops)
        return err_set(ERR_ENV,
                       "rank %u: device %d is a GPU, but this build has no CUDA: use "
                       "device=cpu, or build where nvcc is installed",
                       t->rank, t->w->welcome.device);
    if (ops->open(&args, &t->dev, why, sizeof why) < 0)
        return err_set(ERR_ENV, "rank %u: %s", t->rank, why);
    if (why[0])
        log_line(LOG_WARN, "%s", why);
    t->ops = ops;
    return 0;
}

static const char *format_name(k_dtype_t format)
{
    return format == K_BF16 ? "bf16" : format == K_F16 ? "fp16" : "float32";
}

static int trains(const trainer_t *t)
{
    return t->o->mode == OPT_MODE_TRAIN;
}

/* A run directory stands for the state file in it. */
static void state_path(const char *resume, char *path, size_t bytes)
{
    struct stat st;
    int is_dir = stat(resume, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(path, bytes, "%s%s", resume, is_dir ? "/weights/last.state.safetensors" : "");
}

static int open_sources(const options_t *o, sources_t *s)
{
    memset(s, 0, sizeof *s);
    if (o->resume[0]) {
        state_path(o->resume, s->origin, sizeof s->origin);
        int rc = safetensors_load_file(s->origin, &s->state);
        return rc < 0 ? err_add(rc, "resume") : 0;
    }
    if (!modelfile_is(o->model))
        return 0;
    snprintf(s->origin, sizeof s->origin, "%s", o->model);
    int rc = modelfile_open(o->model, &s->weights);
    if (rc == 0 && !modelfile_info(s->weights)->model[0])
        rc = err_set(ERR_CONFIG, "%s", modelfile_info(s->weights)->why);
    return rc < 0 ? err_add(rc, "model") : 0;
}

static int build_model(trainer_t *t, const sources_t *s)
{
    const char *name = t->o->model;
    int32_t nc = t->o->single_cls ? 1 : (int32_t)catalog_classes(t->w->catalog);
    if (s->weights)
        name = modelfile_info(s->weights)->model;
    else if (s->state && modelfile_is(name)) /* the file need not be there any more */
        name = safetensors_metadata(s->state, "model");
    else if (!trains(t))
        return err_set(ERR_CONFIG,
                       "model=%s: a file with trained weights is needed, as a run's "
                       "weights/best.safetensors or a .pt file",
                       name);
    if (!trains(t) && s->weights)
        nc = modelfile_info(s->weights)->nc;
    if (!name)
        return err_set(ERR_CONFIG,
                       "%s does not say which model it is of (no metadata \"model\"): it is not a "
                       "state file of sluice",
                       s->origin);
    int rc = graph_build(name, nc, &t->graph);
    if (rc < 0)
        return rc;
    t->sizes = graph_sizes(t->graph);
    return 0;
}

/* Rank 0's memory beside the arena: two slots, and the copies that a snapshot is made from. */
uint64_t setup_slot(const trainer_t *t)
{
    size_t names = 0;
    for (uint32_t c = 0; c < catalog_classes(t->w->catalog); c++)
        names += strlen(catalog_class_name(t->w->catalog, c)) + 16;
    return checkpoint_bytes(t->graph, t->ranks, OPTIONS_YAML_BYTES, names,
                            (uint64_t)t->plan->n_train + t->plan->n_val);
}

/* Room in a collective for an evaluation's sums: two doubles a class, and a few. */
static uint64_t infer_floats(const trainer_t *t)
{
    return 8 * ((uint64_t)t->n_classes + 1024);
}

/* For the start table: what is free of a GPU, and what the arena takes of it. */
static void tell_device(const trainer_t *t)
{
    uint64_t left = 0, total;
    if (t->w->welcome.device < 0 || t->ops->memory(t->dev, &left, &total) < 0)
        return;
    atomic_store_explicit(&t->w->page->device_free, left, memory_order_relaxed);
    atomic_store_explicit(&t->w->page->device_bytes, t->mem.total, memory_order_relaxed);
}

void setup_request(const trainer_t *t, uint32_t label_cap, memory_request_t *r)
{
    *r = (memory_request_t){
        .plan = t->plan,
        .options = t->o,
        .catalog = t->w->catalog,
        .rank = t->rank,
        .label_cap = label_cap,
        .format = (k_dtype_t)t->w->welcome.format,
        .sgd = t->schedule.optimizer == OPT_OPTIM_SGD,
        .infer = !trains(t),
        .parts = t->parts,
        .device = t->w->welcome.device,
        .holders = t->holders,
    };
}

static int plan_memory(trainer_t *t)
{
    memory_request_t request;
    setup_request(t, ring_get_config(t->w->rings[t->rank])->label_cap, &request);
    int rc = memory_plan(t->graph, t->dev, &request, &t->mem);
    if (rc < 0)
        return rc;
    uint64_t floats = trains(t) ? t->sizes->weights + MEMORY_EXTRA : infer_floats(t);
    rc = collective_open(t->w, t->w->welcome.collective_fd, t->rank, t->ranks, floats, &t->coll);
    if (rc < 0)
        return rc;
    uint64_t slot = t->rank == 0 && trains(t) ? setup_slot(t) : 0;
    request.host = slot ? snapshot_bytes(slot) + 2 * slot : 0;
    request.reserved = atomic_load_explicit(&t->w->hub->memory_reserved, memory_order_relaxed);
    tell_device(t);
    rc = memory_reserve(&t->mem, t->dev, t->coll, &request, graph_name(t->graph));
    if (rc == 0 && slot && t->w->welcome.snapshot_fd >= 0)
        rc = snapshot_open(t->w->welcome.snapshot_fd, slot, &t->snapshot);
    if (rc < 0)
        return rc;
    atomic_store_explicit(&t->w->page->memory_bytes, memory_host(&t->mem, t->dev, &request),
                          memory_order_relaxed);
    if (!trains(t))
        return trainer_host_alloc(t);
    int32_t size = (int32_t)t->plan->imgsz;
    rc = graph_plan(t->graph, t->dev, GRAPH_TRAIN, t->mem.format,
                    (int32_t)(t->plan->batch / t->plan->ranks), size, size, t->mem.activation,
                    &t->train_plan);
    if (rc == 0)
        rc = trainer_host_alloc(t);
    return rc;
}

/* The file's weights as they are, every one of them: nothing is learnt any more. */
static int infer_weights(trainer_t *t, const sources_t *s)
{
    const memory_map_t *m = &t->mem;
    char text[512];
    weights_report_t report;
    float *weights = calloc(t->sizes->weights, sizeof *weights);
    float *buffers = calloc(t->sizes->buffers, sizeof *buffers);
    int rc = 0;
    if (!weights || !buffers) {
        rc = err_set(ERR_ENV, "rank %u: out of memory for the weights", t->rank);
        goto done;
    }
    CHECK_GOTO(weights_transfer(t->graph, s->weights, NULL, 0, weights, buffers, &report), rc,
               done);
    if (report.moved < report.of) {
        rc = err_set(ERR_CONFIG,
                     "%s has %d of the %d tensors of %s; %s is the first that is missing",
                     s->origin, report.moved, report.of, graph_name(t->graph), report.first_left);
        goto done;
    }
    if (t->rank == 0 && (report.not_finite || report.bare_sppf)) {
        weights_say(&report, s->origin, text, sizeof text);
        log_line(LOG_WARN, "%s", text);
    }
    CHECK_GOTO(trainer_upload(t, m->ema.weights, weights, m->weight_bytes), rc, done);
    CHECK_GOTO(trainer_upload(t, m->ema.buffers, buffers, m->buffer_bytes), rc, done);
    CHECK_GOTO(pass_cast(t, m->ema.weights), rc, done);
    if (t->rank == 0)
        log_line(LOG_INFO, "%s of %s, %d classes, %.2f M parameters, %s; memory %.0f MB",
                 graph_name(t->graph), s->origin, graph_classes(t->graph),
                 (double)t->sizes->parameters / 1e6, format_name(m->format),
                 (double)m->total / 1e6);
done:
    free(weights);
    free(buffers);
    return rc;
}

/* What the file has for this model, and one line that says so. */
static int file_weights(trainer_t *t, const sources_t *s, float *weights, float *buffers)
{
    const uint32_t n = t->o->single_cls ? 0 : catalog_classes(t->w->catalog);
    char text[sizeof t->note - 176], what[160];
    weights_report_t report;
    const char **names = calloc(n + 1, sizeof *names);
    if (!names)
        return err_set(ERR_ENV, "rank %u: out of memory for the class names", t->rank);
    for (uint32_t c = 0; c < n; c++)
        names[c] = catalog_class_name(t->w->catalog, c);
    int rc = weights_transfer(t->graph, s->weights, names, (int32_t)n, weights, buffers, &report);
    free(names);
    if (rc < 0 || t->rank != 0)
        return rc;
    modelfile_describe(s->weights, what, sizeof what);
    weights_say(&report, s->origin, text, sizeof text);
    snprintf(t->note, sizeof t->note, "%s (%s)", text, what);
    log_line(LOG_INFO, "%s", t->note);
    return 0;
}

/* New weights, those of a file over them, and their EMA (facts/yolo.md 1.3, 8.4). */
static int fresh_weights(trainer_t *t, const sources_t *s)
{
    const memory_map_t *m = &t->mem;
    float *weights = calloc(t->sizes->weights, sizeof *weights);
    float *buffers = calloc(t->sizes->buffers, sizeof *buffers);
    int rc = 0;
    if (!weights || !buffers) {
        rc = err_set(ERR_ENV, "rank %u: out of memory for the weights", t->rank);
        goto done;
    }
    weights_init(t->graph, t->plan->seed, weights, buffers);
    if (s->weights && t->o->pretrained)
        CHECK_GOTO(file_weights(t, s, weights, buffers), rc, done);
    CHECK_GOTO(trainer_upload(t, m->train.weights, weights, m->weight_bytes), rc, done);
    CHECK_GOTO(trainer_upload(t, m->train.buffers, buffers, m->buffer_bytes), rc, done);
    CHECK_GOTO(trainer_upload(t, m->ema.weights, weights, m->weight_bytes), rc, done);
    CHECK_GOTO(trainer_upload(t, m->ema.buffers, buffers, m->buffer_bytes), rc, done);
done:
    free(weights);
    free(buffers);
    return rc;
}

static int resumed_weights(trainer_t *t, const sources_t *s)
{
    checkpoint_state_t state;
    const checkpoint_expect_t expect = {
        .seed = t->plan->seed,
        .list_digest = catalog_digest(t->w->catalog),
        .sgd = t->schedule.optimizer == OPT_OPTIM_SGD,
        .epochs = t->plan->epochs,
        .first_epoch = t->plan->first_epoch,
        .first_position = t->plan->first_position,
        .patience = t->o->patience,
    };
    int rc = checkpoint_state_read(t->graph, s->state, s->origin, &expect, &state);
    return rc < 0 ? rc : checkpoint_restore(t, &state);
}

static void say_start(const trainer_t *t)
{
    const memory_map_t *m = &t->mem;
    log_line(LOG_INFO,
             "%s, %d classes, %.2f M parameters, %s, %s lr0=%g weight_decay=%g; memory %.0f MB: "
             "state %.0f, activations %.0f, batch%s %.0f, loss and suppression %.0f",
             graph_name(t->graph), graph_classes(t->graph), (double)t->sizes->parameters / 1e6,
             format_name(m->format), t->schedule.optimizer == OPT_OPTIM_SGD ? "SGD" : "AdamW",
             t->schedule.lr0, t->schedule.weight_decay, (double)m->total / 1e6,
             (double)m->state_bytes / 1e6, (double)m->activation_bytes / 1e6,
             t->ops->async ? "es" : "", (double)m->batch_bytes / 1e6, (double)m->work_bytes / 1e6);
    if (m->format == K_F16 && t->o->amp == OPT_AMP_AUTO)
        log_line(LOG_WARN,
                 "amp=True computes in fp16 with a loss scale: a GPU of this run is older "
                 "than capability 8.0, which has no bf16");
}

int setup_graph(trainer_t *t)
{
    sources_t s;
    int rc;
    t->o = &t->w->options;
    t->ranks = (uint32_t)t->o->n_devices;
    CHECK_GOTO(open_sources(t->o, &s), rc, done);
    CHECK_GOTO(open_device(t), rc, done);
    rc = build_model(t, &s);
done:
    safetensors_free(&s.state);
    modelfile_free(&s.weights);
    return rc;
}

int setup_open(trainer_t *t)
{
    sources_t s;
    int rc;
    t->o = &t->w->options;
    t->plan = &t->w->plan;
    t->rank = t->w->index;
    t->ranks = t->w->plan.ranks;
    board_set_phase(t->w->page, BOARD_BUILD);
    CHECK_GOTO(open_sources(t->o, &s), rc, done);
    /* Before anything looks at messages: entries of a resumed run are among the first. */
    if (t->rank == 0)
        CHECK_GOTO(ledger_new(t->plan->n_train, t->plan->n_val, &t->ledger), rc, done);
    if (t->w->welcome.device >= 0) {
        atomic_store_explicit(&t->w->page->device_one, (uint32_t)t->w->welcome.device + 1,
                              memory_order_relaxed);
        board_set_stage(t->w->page, BOARD_STAGE_CONTEXT);
    }
    CHECK_GOTO(open_device(t), rc, done);
    CHECK_GOTO(build_model(t, &s), rc, done);
    if (!trains(t)) {
        CHECK_GOTO(evaluate_classes(t, s.weights), rc, done);
        CHECK_GOTO(parts_open(t->w->catalog, t->o, &t->parts), rc, done);
        CHECK_GOTO(plan_memory(t), rc, done);
        CHECK_GOTO(tune_infer(t), rc, done);
        rc = infer_weights(t, &s);
        goto done;
    }
    schedule_init(&t->schedule, t->o, t->plan->n_train, plan_train_steps(t->plan),
                  (uint32_t)graph_classes(t->graph));
    CHECK_GOTO(plan_memory(t), rc, done);
    record_init(t);
    CHECK_GOTO(tune_run(t, s.state ? safetensors_metadata(s.state, CHECKPOINT_CHOICES) : NULL), rc,
               done);
    CHECK_GOTO(step_init(t), rc, done);
    CHECK_GOTO(exchange_open(t), rc, done);
    CHECK_GOTO(s.state ? resumed_weights(t, &s) : fresh_weights(t, &s), rc, done);
    CHECK_GOTO(pass_cast(t, t->mem.train.weights), rc, done);
    if (t->rank == 0)
        say_start(t);
done:
    safetensors_free(&s.state);
    modelfile_free(&s.weights);
    return rc;
}

/* Giving memory back waits in the driver for what the device still does, and not for ever. After a
 * failure that may be something that never ends: the device is left to the end of the process. */
static void quiet_device(trainer_t *t)
{
    for (int s = 0; t->dev && t->ops && t->ops->async && s < K_STREAMS; s++) {
        if (t->ops->wait(t->dev, (k_stream_t)s, CLOSE_MS) != 1)
            continue;
        log_line(
            LOG_WARN,
            "rank %u: the device does not end what it was given within %d s: it is left to the "
            "end of the process",
            t->rank, CLOSE_MS / 1000);
        trainer_abandon(t);
    }
}

void setup_close(trainer_t *t)
{
    snapshot_close(&t->snapshot);
    ledger_free(&t->ledger);
    exchange_close(t);
    quiet_device(t);
    trainer_host_free(t);
    parts_close(&t->parts);
    free(t->class_of);
    t->class_of = NULL;
    collective_close(&t->coll);
    graph_free(&t->graph);
    if (t->dev)
        t->ops->close(&t->dev);
}
