/* Which devices there are, and which batch fits them: asked of children, for the coordinator touches no
 * GPU. A child answers into a memory file; it has a deadline, because a driver may hang. */
#include "control/coordinator_state.h"

#include "control/programs.h"
#include "control/yamldoc.h"
#include "shm/err.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* gpu: about GPUs, which is for the trainer that has CUDA. */
static int ask(coordinator_t *c, const char *name, int gpu, gpus_question_t *q, uint32_t seconds)
{
    char program[PATH_MAX];
    const char *env[] = {"OPENBLAS_NUM_THREADS=1", supervise_blas(), NULL};
    proc_t *p = proc_ask(c);
    if (c->answer_fd >= 0)
        close(c->answer_fd);
    p->incarnation = ++c->incarnations;
    snprintf(p->name, sizeof p->name, "%s", name);
    snprintf(p->identity, sizeof p->identity, "%s-0.%u", name, p->incarnation);
    programs_trainer(c->config->bin_dir, gpu, program, sizeof program);
    q->program = program;
    q->env = env;
    int rc = gpus_ask(q, &p->child, &c->answer_fd);
    if (rc < 0)
        return err_add(rc, "%s", name);
    proc_began(p, seconds);
    return 0;
}

/* Devices are ranks by now. */
static int devices_known(coordinator_t *c)
{
    int rc;
    c->ranks = (uint32_t)c->options.n_devices;
    /* A rank's threads share the quota; loaders come on top, for they mostly wait at small sizes. */
    c->threads = c->cpus / c->ranks > 0 ? c->cpus / c->ranks : 1;
    c->workers = c->options.workers > 0 ? (uint32_t)c->options.workers
                 : c->cpus > c->ranks   ? c->cpus - c->ranks
                                        : 1;
    CHECK_GOTO(options_dump_yaml(&c->options, c->yaml, sizeof c->yaml), rc, fail);
    return proc_start(c, proc_scan(c));
fail:
    return rc;
}

/* Digests depend on how many ranks there are and not on what they are. */
static int digest_devices(options_t *o)
{
    if (o->batch == 0)
        return err_set(ERR_CONFIG, "batch=auto: digests follow from the batch: give its number");
    if (o->devices[0] == DEVICE_ALL)
        return err_set(ERR_CONFIG, "device=all: digest looks at no device: name them, as in "
                                   "device=0,1");
    for (int i = 0; i < o->n_devices; i++)
        o->devices[i] = DEVICE_CPU;
    return options_resolve_devices(o, 0, -1, "");
}

static uint32_t deadline(const coordinator_t *c)
{
    return c->config->devices_s ? c->config->devices_s : GPUS_DEADLINE_S;
}

int devices_begin(coordinator_t *c)
{
    static const char *const words[] = {"--devices", NULL};
    options_t *o = &c->options;
    int rc = 0;
    c->cpus = (uint32_t)arena_cpus("");
    if (!c->config->digest_only && o->devices[0] != DEVICE_CPU)
        return ask(c, "devices", 1, &(gpus_question_t){.words = words}, deadline(c));
    rc = c->config->digest_only ? digest_devices(o) : options_resolve_devices(o, 0, -1, "");
    return rc < 0 ? rc : devices_known(c);
}

static int new_list(coordinator_t *c)
{
    free(c->gpus);
    c->gpus = calloc(1, sizeof *c->gpus);
    return c->gpus ? 0 : err_set(ERR_ENV, "no memory for a list of GPUs");
}

static int resolve_list(coordinator_t *c)
{
    char notes[4096];
    int rc = gpus_resolve(&c->options, c->gpus, notes, sizeof notes);
    if (rc < 0)
        return rc;
    for (char *save = NULL, *line = strtok_r(notes, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        run_note(c, LOG_INFO, "%s", line);
    return devices_known(c);
}

static int gpus_listed(coordinator_t *c, const char *text, size_t bytes)
{
    int rc = new_list(c);
    if (rc == 0)
        rc = gpus_parse(text, bytes, c->gpus);
    return rc < 0 ? rc : resolve_list(c);
}

int devices_unloaded(coordinator_t *c)
{
    const proc_t *p = proc_ask(c);
    char how[512];
    int rc = new_list(c);
    if (rc < 0)
        return rc;
    supervise_describe(&p->child, how, sizeof how);
    snprintf(c->gpus->why, sizeof c->gpus->why, "%s", p->last_words[0] ? p->last_words : how);
    return resolve_list(c);
}

/* ---- the batch ---- */

static int text_file(const char *text, int *fd)
{
    size_t bytes = strlen(text);
    *fd = memfd_create("sluice-options", MFD_CLOEXEC);
    if (*fd < 0 || pwrite(*fd, text, bytes, 0) != (ssize_t)bytes)
        return err_sys(ERR_ENV, "memory for the options");
    return 0;
}

int devices_plan(coordinator_t *c)
{
    char options[16], list[16], threads[16], workers[16], device[16];
    int fd = -1, rc;
    const gpu_t *gpu = c->gpus ? gpus_tightest(&c->options, c->gpus) : NULL;
    CHECK_GOTO(text_file(c->yaml, &fd), rc, done);
    snprintf(options, sizeof options, "%d", fd);
    snprintf(list, sizeof list, "%d", c->catalog_fd);
    snprintf(threads, sizeof threads, "%u", c->threads);
    snprintf(workers, sizeof workers, "%u", c->workers);
    snprintf(device, sizeof device, "%d", gpu ? gpu->ordinal : DEVICE_CPU);
    char format[16];
    snprintf(format, sizeof format, "%d", gpu ? (int)gpus_format(&c->options, c->gpus) : GPU_FP32);
    const char *words[] = {"--plan", "--options", options, "--catalog-fd", list,   "--threads",
                           threads,  "--workers", workers, "--device",     device, "--format",
                           format,   NULL};
    const int fds[] = {fd, c->catalog_fd};
    rc = ask(c, "plan", gpu != NULL, &(gpus_question_t){.words = words, .fds = fds, .n_fds = 2},
             RUN_PLAN_S);
done:
    if (fd >= 0)
        close(fd);
    return rc;
}

static long long number_of(const yamldoc_t *doc, const char *key)
{
    long long v = 0;
    const yamldoc_node_t *n = yamldoc_get(yamldoc_root(doc), key);
    return n && yamldoc_int(doc, n, &v) == 0 ? v : LLONG_MIN;
}

/* {"batch", "need", "of", "device", "code", "why"}: trainer/plan_batch.c writes it. */
static int batch_chosen(coordinator_t *c, const char *text, size_t bytes)
{
    yamldoc_t *doc = NULL;
    char where[32] = "the CPU";
    int rc = yamldoc_load_text(text, bytes, "the choice of a batch", &doc);
    if (rc < 0)
        return err_add(ERR_ENV, "sluice-trainer --plan");
    const yamldoc_node_t *why = yamldoc_get(yamldoc_root(doc), "why");
    long long batch = number_of(doc, "batch"), need = number_of(doc, "need"),
              of = number_of(doc, "of"), device = number_of(doc, "device"),
              code = number_of(doc, "code");
    if (code < 0 && code >= ERR_GONE && why && why->kind == YAMLDOC_SCALAR) {
        rc = err_set((int)code, "batch=auto: %s", why->text);
    } else if (code != 0 || batch < 1 || batch > 65536 || batch % c->ranks != 0 || need < 0 ||
               of < 0) {
        rc = err_set(ERR_ENV, "sluice-trainer --plan answered with no batch");
    } else {
        if (device >= 0)
            snprintf(where, sizeof where, "GPU %d", (int)device);
        c->options.batch = (int)batch;
        c->options.batch_share = 0;
        run_note(c, LOG_INFO, "batch=auto: %lld (%.1f of %.1f GB on %s%s%s)", batch,
                 (double)need / 1e9, (double)of / 1e9, where,
                 why && why->kind == YAMLDOC_SCALAR && why->text[0] ? "; " : "",
                 why && why->kind == YAMLDOC_SCALAR ? why->text : "");
    }
    yamldoc_free(&doc);
    return rc < 0 ? rc : start_planned(c);
}

int devices_answered(coordinator_t *c)
{
    const proc_t *p = proc_ask(c);
    char *text = NULL;
    size_t bytes = 0;
    int listed = strcmp(p->name, "devices") == 0;
    int rc = gpus_answer(c->answer_fd, "its answer", &text, &bytes);
    if (rc < 0)
        err_add(rc, "sluice-trainer --%s", p->name);
    else
        rc = listed ? gpus_listed(c, text, bytes) : batch_chosen(c, text, bytes);
    free(text);
    return rc;
}

void devices_overdue(coordinator_t *c, const proc_t *p)
{
    if (strcmp(p->name, "devices") == 0)
        run_fail(c, ERR_ENV,
                 "the NVIDIA driver does not answer: sluice-trainer --devices (pid %d) has looked "
                 "for GPUs for %u s; nvidia-smi shows whether it hangs too; device=cpu trains "
                 "without",
                 (int)p->child.pid, deadline(c));
    else
        run_fail(c, ERR_ENV,
                 "batch=auto: no batch was chosen within %d s (sluice-trainer --plan, pid %d): "
                 "give batch=NUMBER",
                 RUN_PLAN_S, (int)p->child.pid);
}
