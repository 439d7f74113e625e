#include "trainer/bench.h"

#include "control/gpus.h"
#include "control/json.h"
#include "control/log.h"
#include "kernels/devices.h"
#include "shm/arena.h"
#include "shm/err.h"
#include "trainer/bench_step.h"
#include "trainer/devices.h"
#include "trainer/record.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_TEXT = 1 << 16, BENCH_DEAREST = 10, BENCH_NAMES = 64 };

/* Warm-up of a device that records: one step of its own, two that are recorded, one that is replayed. */
enum { BENCH_WARMUP = 4 };

typedef struct {
    bench_t b;
    bench_ops_t ops;
    char device[96];
    double phases[BENCH_END];
    double copy_rate;          /* bytes a second */
    double rate, given_tflops; /* floating-point operations a second */
    uint64_t overhead;
} measured_t;

/* Calls of one operation of the table. */
typedef struct {
    const char *name;
    int calls;
    double ms, floor_ms, flops;
    uint64_t bytes;
} kind_t;

/* ---- the device ---- */

static int list_gpus(gpus_t *g)
{
    if (!k_cuda_devices) {
        snprintf(g->why, sizeof g->why, "%s", devices_no_cuda);
        return 0;
    }
    k_device_t *list = calloc(K_DEVICES, sizeof *list);
    if (!list)
        return err_set(ERR_ENV, "no memory for a list of devices");
    g->n = k_cuda_devices(list, K_DEVICES, g->why, sizeof g->why);
    for (int i = 0; i < g->n; i++) {
        gpu_t *gpu = &g->at[i];
        gpu->ordinal = list[i].ordinal;
        gpu->capability = list[i].capability;
        gpu->total = list[i].total;
        gpu->free = list[i].free;
        snprintf(gpu->name, sizeof gpu->name, "%s", list[i].name);
        snprintf(gpu->bus, sizeof gpu->bus, "%s", list[i].bus);
        for (int k = 0; k < list[i].n_holders && k < GPUS_HOLDERS; k++) {
            gpu_holder_t *h = &gpu->holders[gpu->n_holders++];
            h->pid = list[i].holders[k].pid;
            h->bytes = list[i].holders[k].bytes;
            snprintf(h->name, sizeof h->name, "%s", list[i].holders[k].name);
        }
    }
    free(list);
    return 0;
}

/* Which device and format the options come to, in the welcome's place. */
static int choose_device(measured_t *m)
{
    char notes[2048];
    options_t *o = &m->b.w.options;
    gpus_t *g = calloc(1, sizeof *g);
    int rc = g ? 0 : err_set(ERR_ENV, "no memory for a list of GPUs");
    if (rc == 0 && o->devices[0] != DEVICE_CPU)
        rc = list_gpus(g);
    if (rc == 0)
        rc = gpus_resolve(o, g, notes, sizeof notes);
    if (rc == 0 && o->n_devices != 1)
        rc = err_set(ERR_CONFIG, "bench: %d devices: a step is measured on one", o->n_devices);
    if (rc == 0) {
        const gpu_t *gpu = gpus_find(g, o->devices[0]);
        m->b.w.welcome.device = gpu ? gpu->ordinal : DEVICE_CPU;
        m->b.w.welcome.format = gpus_format(o, g);
        m->b.w.welcome.threads = (uint32_t)arena_cpus("");
        m->b.w.welcome.workers = 1;
        snprintf(m->device, sizeof m->device, "%s", gpu ? gpu->name : "cpu");
        for (char *save = NULL, *line = strtok_r(notes, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save))
            log_line(LOG_INFO, "%s", line);
    }
    free(g);
    return rc;
}

/* ---- the command line ---- */

static int number_of(int argc, char **argv, const char *word, int otherwise, int most, int32_t *n)
{
    long value = devices_number(argc, argv, word, otherwise);
    if (value < 1 || value > most)
        return err_set(ERR_CONFIG, "bench: %s is %ld: 1 to %d are possible", word + 2, value, most);
    *n = (int32_t)value;
    return 0;
}

static int read_words(int argc, char **argv, measured_t *m)
{
    options_t *o = &m->b.w.options;
    bench_spec_t *spec = &m->b.spec;
    int32_t seconds = 0;
    int rc = 0;
    options_default(o);
    o->optimizer = OPT_OPTIM_SGD;
    o->warmup_bias_lr = 0; /* biases that learn at 0.1 from noise would not stay finite */
    for (int i = 1; rc == 0 && i < argc; i++)
        if (strchr(argv[i], '='))
            rc = options_set(o, argv[i]);
    if (rc == 0)
        rc = number_of(argc, argv, "--steps", 30, BENCH_STEPS, &spec->steps);
    if (rc == 0)
        rc = number_of(argc, argv, "--warmup", 10, BENCH_STEPS, &spec->warmup);
    if (rc == 0)
        rc = number_of(argc, argv, "--classes", 80, BENCH_CLASSES, &spec->classes);
    if (rc == 0)
        rc = number_of(argc, argv, "--boxes", 20, BENCH_BOXES, &spec->boxes);
    if (rc == 0)
        rc = number_of(argc, argv, "--seconds", 300, 86400, &seconds);
    if (rc < 0)
        return rc;
    spec->seconds = seconds;
    m->given_tflops = (double)devices_number(argc, argv, "--tflops", 0);
    if (o->batch < 1)
        return err_set(ERR_CONFIG, "bench: batch=auto: give its number");
    if (o->imgsz % 32) {
        o->imgsz += 32 - o->imgsz % 32;
        log_line(LOG_INFO, "imgsz is rounded up to %d, a multiple of 32", o->imgsz);
    }
    return 0;
}

/* ---- measuring ---- */

static int measure(measured_t *m)
{
    bench_t *b = &m->b;
    int rc;
    CHECK_GOTO(choose_device(m), rc, done);
    CHECK_GOTO(bench_open(b), rc, done);
    if (b->t.ops->async && !b->t.unrecorded && b->spec.warmup < BENCH_WARMUP) {
        rc = err_set(ERR_CONFIG, "bench: warmup=%d: steps are recorded within the first %d",
                     b->spec.warmup, BENCH_WARMUP);
        goto done;
    }
    CHECK_GOTO(bench_copy_rate(b, &m->copy_rate), rc, done);
    CHECK_GOTO(bench_steps(b), rc, done);
    CHECK_GOTO(bench_overhead(b, &m->overhead), rc, done);
    double step_ms = bench_median(b->ms, b->spec.steps);
    bench_ops_open(&m->ops, &b->clock);
    CHECK_GOTO(bench_phases(b, &m->ops, step_ms, m->phases), rc, done);
    rc = bench_operations(b, &m->ops, step_ms);
done:
    return rc;
}

static int is_conv(const bench_op_t *op)
{
    return strncmp(op->name, "conv", 4) == 0;
}

static void find_rate(measured_t *m)
{
    m->rate = m->given_tflops * 1e12;
    for (int32_t i = 0; m->given_tflops <= 0 && i < m->ops.n; i++) {
        const bench_op_t *op = &m->ops.ops[i];
        double ms = bench_op_ms(op);
        if (is_conv(op) && ms > 0 && op->flops / ms * 1e3 > m->rate)
            m->rate = op->flops / ms * 1e3;
    }
}

static double floor_of(const measured_t *m, const bench_op_t *op)
{
    double bytes = (double)op->bytes / m->copy_rate * 1e3;
    double flops = m->rate > 0 ? op->flops / m->rate * 1e3 : 0;
    return bytes > flops ? bytes : flops;
}

/* ---- the line ---- */

static int dearer(const void *a, const void *b)
{
    const double x = bench_op_ms(a), y = bench_op_ms(b);
    return (x < y) - (x > y);
}

static int dearer_kind(const void *a, const void *b)
{
    const double x = ((const kind_t *)a)->ms, y = ((const kind_t *)b)->ms;
    return (x < y) - (x > y);
}

static double rounded(double value, int digits)
{
    char text[32];
    snprintf(text, sizeof text, "%.*g", digits, value);
    return strtod(text, NULL);
}

/* Five significant digits are more than a measurement has. */
static void put(json_t *j, const char *key, double value)
{
    json_key_number(j, key, rounded(value, 5));
}

static void put_costs(json_t *j, double ms, double floor_ms, uint64_t bytes, double flops)
{
    put(j, "ms", ms);
    put(j, "floor_ms", floor_ms);
    put(j, "gbytes", (double)bytes / 1e9);
    put(j, "gflop", flops / 1e9);
}

static void put_operations(json_t *j, const measured_t *m)
{
    kind_t kinds[BENCH_NAMES] = {0};
    int n = 0;
    for (int32_t i = 0; i < m->ops.n; i++) {
        const bench_op_t *op = &m->ops.ops[i];
        int k = 0;
        while (k < n && strcmp(kinds[k].name, op->name) != 0)
            k++;
        assert(k < BENCH_NAMES); /* the table has fewer */
        n = k == n ? n + 1 : n;
        kinds[k].name = op->name;
        kinds[k].calls++;
        kinds[k].ms += bench_op_ms(op);
        kinds[k].floor_ms += floor_of(m, op);
        kinds[k].bytes += op->bytes;
        kinds[k].flops += op->flops;
    }
    qsort(kinds, (size_t)n, sizeof *kinds, dearer_kind);
    json_key(j, "operations");
    json_array_begin(j);
    for (int k = 0; k < n; k++) {
        json_object_begin(j);
        json_key_string(j, "name", kinds[k].name);
        json_key_int(j, "calls", kinds[k].calls);
        put_costs(j, kinds[k].ms, kinds[k].floor_ms, kinds[k].bytes, kinds[k].flops);
        json_object_end(j);
    }
    json_array_end(j);
}

static void put_dearest(json_t *j, measured_t *m)
{
    qsort(m->ops.ops, (size_t)m->ops.n, sizeof *m->ops.ops, dearer);
    json_key(j, "dearest");
    json_array_begin(j);
    for (int32_t i = 0; i < m->ops.n && i < BENCH_DEAREST; i++) {
        const bench_op_t *op = &m->ops.ops[i];
        json_object_begin(j);
        json_key_string(j, "name", op->name);
        json_key_string(j, "layer", op->layer);
        json_key_string(j, "shape", op->shape);
        put_costs(j, bench_op_ms(op), floor_of(m, op), op->bytes, op->flops);
        json_object_end(j);
    }
    json_array_end(j);
}

static void put_phases(json_t *j, const measured_t *m)
{
    static const char *const names[BENCH_END] = {"image",    "forward",  "loss",
                                                 "backward", "exchange", "update"};
    json_key(j, "phases");
    json_object_begin(j);
    for (int p = 0; p < BENCH_END; p++)
        put(j, names[p], m->phases[p]);
    json_object_end(j);
}

static void put_step(json_t *j, const measured_t *m)
{
    const bench_t *b = &m->b;
    const double gib = 1 << 30, ms = bench_median(b->ms, b->spec.steps);
    double least = b->ms[0], most = b->ms[0];
    uint64_t arena = b->t.mem.total;
    for (int32_t i = 1; i < b->spec.steps; i++) {
        least = fmin(least, b->ms[i]);
        most = fmax(most, b->ms[i]);
    }
    json_key_int(j, "steps", b->spec.steps);
    json_key_bool(j, "recorded", b->t.recorded != 0);
    put(j, "ms_per_step", ms);
    put(j, "ms_least", least);
    put(j, "ms_most", most);
    put(j, "img_per_s", b->t.plan->batch / ms * 1e3);
    put(j, "peak_gib", (double)(arena + m->overhead) / gib);
    put(j, "arena_gib", (double)arena / gib);
    put(j, "overhead_gib", (double)m->overhead / gib);
    put(j, "planned_gib",
        (double)(arena + (b->t.ops->async ? MEMORY_DEVICE : MEMORY_PROCESS)) / gib);
    json_key(j, "loss");
    json_array_begin(j);
    for (int i = 0; i < 3; i++)
        json_number(j, rounded((double)b->items[i], 7));
    json_array_end(j);
}

static int answer(int fd, measured_t *m)
{
    const bench_t *b = &m->b;
    json_t j;
    char *text = malloc(BENCH_TEXT);
    if (!text)
        return err_set(ERR_ENV, "no memory for an answer");
    find_rate(m);
    json_begin(&j, text, BENCH_TEXT - 1);
    json_object_begin(&j);
    json_key_string(&j, "bench", "step");
    json_key_string(&j, "model", graph_name(b->t.graph));
    json_key_int(&j, "classes", graph_classes(b->t.graph));
    json_key_uint(&j, "batch", b->t.plan->batch);
    json_key_uint(&j, "imgsz", b->t.plan->imgsz);
    json_key_string(&j, "optimizer", b->t.schedule.optimizer == OPT_OPTIM_SGD ? "SGD" : "AdamW");
    json_key_string(&j, "device", m->device);
    json_key_string(&j, "format", gpus_format_name((gpu_format_t)b->w.welcome.format));
    put_step(&j, m);
    put_phases(&j, m);
    put(&j, "copy_gb_s", m->copy_rate / 1e9);
    put(&j, "tflops", m->rate / 1e12);
    json_key_string(&j, "tflops_from", m->given_tflops > 0 ? "given" : "best convolution");
    put_operations(&j, m);
    put_dearest(&j, m);
    json_object_end(&j);
    int rc = json_finish(&j);
    if (rc >= 0) {
        size_t bytes = strlen(text);
        text[bytes++] = '\n';
        rc = devices_put(fd, text, bytes);
    }
    free(text);
    return rc;
}

int bench_main(int argc, char **argv)
{
    measured_t *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(ERR_ENV, "no memory to measure a step");
    m->b.board_fd = m->b.catalog_fd = -1;
    log_identity("bench", -1);
    int rc = read_words(argc, argv, m);
    if (rc == 0) {
        rc = measure(m);
        if (rc == 0)
            rc = answer((int)devices_number(argc, argv, "--to", -1), m);
        bench_ops_close(&m->ops);
        bench_close(&m->b);
    }
    free(m);
    return rc;
}
