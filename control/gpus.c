#include "control/gpus.h"

#include "control/text.h"
#include "control/yamldoc.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ASK_WORDS = 24, ASK_FDS = 8, CAPABILITY_MOST = 999 };

int gpus_ask(const gpus_question_t *q, supervise_child_t *child, int *fd)
{
    const char *args[ASK_WORDS] = {NULL};
    int inherited[ASK_FDS], n = 0, rc;
    char to[16];
    *fd = -1;
    while (q->words[n] && n + 3 < ASK_WORDS) {
        args[n] = q->words[n];
        n++;
    }
    if (q->words[n] || q->n_fds + 1 > ASK_FDS)
        return err_set(ERR_FAILED, "too many words for %s", q->program);
    *fd = memfd_create("sluice-answer", MFD_CLOEXEC);
    if (*fd < 0)
        return err_sys(ERR_ENV, "memory for an answer");
    snprintf(to, sizeof to, "%d", *fd);
    args[n] = "--to";
    args[n + 1] = to;
    for (int i = 0; i < q->n_fds; i++)
        inherited[i] = q->fds[i];
    inherited[q->n_fds] = *fd;
    supervise_spec_t spec = {.program = q->program,
                             .args = args,
                             .env = q->env,
                             .fds = inherited,
                             .n_fds = q->n_fds + 1};
    rc = supervise_spawn(&spec, child);
    if (rc < 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

int gpus_answer(int fd, const char *what, char **text, size_t *bytes)
{
    size_t used = 0;
    ssize_t n = 1;
    char *all = malloc(GPUS_ANSWER_BYTES + 1);
    *text = NULL;
    if (!all)
        return err_set(ERR_ENV, "no memory for %s", what);
    while (used < GPUS_ANSWER_BYTES &&
           (n = pread(fd, all + used, GPUS_ANSWER_BYTES - used, (off_t)used)) > 0)
        used += (size_t)n;
    if (n < 0 || used == 0 || used == GPUS_ANSWER_BYTES) {
        free(all);
        return n < 0 ? err_sys(ERR_ENV, "reading %s", what)
                     : err_set(ERR_ENV, "%s %s", what, used ? "has too many bytes" : "is empty");
    }
    all[used] = '\0';
    *text = all;
    *bytes = used;
    return 0;
}

/* ---- the list ---- */

static int refuse(const char *what)
{
    return err_set(ERR_ENV, "the list of GPUs is not one of this version: %s", what);
}

static int take_number(const yamldoc_t *doc, const yamldoc_node_t *map, const char *key,
                       long long most, long long *value)
{
    const yamldoc_node_t *n = yamldoc_get(map, key);
    if (!n || n->kind != YAMLDOC_SCALAR || n->quoted || yamldoc_int(doc, n, value) < 0 ||
        *value < 0 || *value > most)
        return refuse(key);
    return 0;
}

static int take_text(const yamldoc_node_t *map, const char *key, char *text, size_t bytes)
{
    const yamldoc_node_t *n = yamldoc_get(map, key);
    if (!n || n->kind != YAMLDOC_SCALAR || !n->quoted)
        return refuse(key);
    snprintf(text, bytes, "%s", n->text);
    text_printable(text);
    return 0;
}

static int take_holders(const yamldoc_t *doc, const yamldoc_node_t *map, gpu_t *gpu)
{
    const yamldoc_node_t *list = yamldoc_get(map, "processes");
    long long pid, bytes;
    if (!list || list->kind != YAMLDOC_LIST)
        return refuse("processes");
    for (int i = 0; i < list->count && gpu->n_holders < GPUS_HOLDERS; i++) {
        gpu_holder_t *h = &gpu->holders[gpu->n_holders];
        if (take_number(doc, list->values[i], "pid", UINT32_MAX, &pid) < 0 ||
            take_number(doc, list->values[i], "bytes", INT64_MAX, &bytes) < 0 ||
            take_text(list->values[i], "name", h->name, sizeof h->name) < 0)
            return ERR_ENV;
        h->pid = (uint32_t)pid;
        h->bytes = (uint64_t)bytes;
        gpu->n_holders++;
    }
    return 0;
}

static int take_gpu(const yamldoc_t *doc, const yamldoc_node_t *map, gpu_t *gpu, int ordinal)
{
    long long number, capability, total, left;
    if (take_number(doc, map, "ordinal", GPUS_MOST - 1, &number) < 0 ||
        take_number(doc, map, "capability", CAPABILITY_MOST, &capability) < 0 ||
        take_number(doc, map, "total", INT64_MAX, &total) < 0 ||
        take_number(doc, map, "free", INT64_MAX, &left) < 0 ||
        take_text(map, "name", gpu->name, sizeof gpu->name) < 0 ||
        take_text(map, "bus", gpu->bus, sizeof gpu->bus) < 0)
        return ERR_ENV;
    if (number != ordinal)
        return refuse("ordinals out of order");
    if (left > total)
        return refuse("more memory free than there is");
    gpu->ordinal = ordinal;
    gpu->capability = (int)capability;
    gpu->total = (uint64_t)total;
    gpu->free = (uint64_t)left;
    return take_holders(doc, map, gpu);
}

int gpus_parse(const char *text, size_t bytes, gpus_t *g)
{
    yamldoc_t *doc = NULL;
    memset(g, 0, sizeof *g);
    /* JSON is a part of YAML, and yamldoc bounds bytes, depth and values. */
    int rc = yamldoc_load_text(text, bytes, "the list of GPUs", &doc);
    if (rc < 0) {
        rc = err_add(ERR_ENV, "sluice-trainer --devices");
        goto done;
    }
    const yamldoc_node_t *list = yamldoc_get(yamldoc_root(doc), "devices");
    if (!list || list->kind != YAMLDOC_LIST || list->count > GPUS_MOST) {
        rc = refuse("devices");
        goto done;
    }
    CHECK_GOTO(take_text(yamldoc_root(doc), "why", g->why, sizeof g->why), rc, done);
    for (int i = 0; i < list->count; i++)
        CHECK_GOTO(take_gpu(doc, list->values[i], &g->at[i], i), rc, done);
    if (list->count == 0 && !g->why[0]) {
        rc = refuse("no GPU, and no reason");
        goto done;
    }
    g->n = list->count;
done:
    yamldoc_free(&doc);
    if (rc < 0)
        memset(g, 0, sizeof *g);
    return rc;
}

const gpu_t *gpus_find(const gpus_t *g, int ordinal)
{
    return ordinal >= 0 && ordinal < g->n ? &g->at[ordinal] : NULL;
}

int gpus_best(const gpus_t *g)
{
    int best = -1;
    for (int i = 0; i < g->n; i++)
        if (g->at[i].capability >= GPUS_CAPABILITY &&
            (best < 0 || g->at[i].free > g->at[best].free))
            best = i;
    return best;
}

int gpus_ranks_on(const options_t *o, int ordinal)
{
    int n = 0;
    for (int i = 0; i < o->n_devices; i++)
        n += o->devices[i] == ordinal;
    return n;
}

const gpu_t *gpus_tightest(const options_t *o, const gpus_t *g)
{
    const gpu_t *least = NULL;
    uint64_t least_free = 0;
    for (int i = 0; i < o->n_devices; i++) {
        const gpu_t *gpu = gpus_find(g, o->devices[i]);
        uint64_t each = gpu ? gpu->free / (uint64_t)gpus_ranks_on(o, gpu->ordinal) : 0;
        if (gpu && (!least || each < least_free)) {
            least = gpu;
            least_free = each;
        }
    }
    return least;
}

static unsigned long long mb(uint64_t bytes)
{
    return (unsigned long long)(bytes / 1000000);
}

void gpus_holders(const gpu_t *gpu, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < gpu->n_holders && used + 1 < bytes; i++) {
        const gpu_holder_t *h = &gpu->holders[i];
        char name[sizeof h->name + 4] = "", size[32] = "";
        if (h->name[0])
            snprintf(name, sizeof name, " (%s)", h->name);
        if (h->bytes)
            snprintf(size, sizeof size, " %llu MB", mb(h->bytes));
        int n =
            snprintf(text + used, bytes - used, "%spid %u%s%s", i ? ", " : "", h->pid, name, size);
        used += n > 0 ? (size_t)n : 0;
    }
}

/* ---- held against the options ---- */

typedef struct {
    char *text;
    size_t room;
} notes_t;

__attribute__((format(printf, 2, 3))) static void note(notes_t *notes, const char *fmt, ...)
{
    size_t used = strlen(notes->text);
    if (used > 0 && used + 1 < notes->room) {
        notes->text[used++] = '\n';
        notes->text[used] = '\0';
    }
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(notes->text + used, notes->room - used, fmt, ap);
    va_end(ap);
}

gpu_format_t gpus_format(const options_t *o, const gpus_t *g)
{
    if (o->devices[0] < 0 || o->amp == OPT_AMP_OFF)
        return GPU_FP32;
    if (o->amp != OPT_AMP_AUTO)
        return o->amp == OPT_AMP_BF16 ? GPU_BF16 : GPU_FP16;
    for (int i = 0; i < o->n_devices; i++) {
        const gpu_t *gpu = gpus_find(g, o->devices[i]);
        if (gpu && gpu->capability < GPUS_BF16)
            return GPU_FP16;
    }
    return GPU_BF16;
}

const char *gpus_format_name(gpu_format_t format)
{
    return format == GPU_BF16 ? "bf16" : format == GPU_FP16 ? "fp16" : "fp32";
}

static int check_gpu(const options_t *o, const gpu_t *gpu, notes_t *notes)
{
    char holders[512];
    int ranks = gpus_ranks_on(o, gpu->ordinal), major = gpu->capability / 10,
        minor = gpu->capability % 10;
    if (gpu->capability < GPUS_CAPABILITY)
        return err_set(ERR_ENV,
                       "device=%d: %s has compute capability %d.%d, and 7.5 is the least that this "
                       "program is made for: use another one, or device=cpu",
                       gpu->ordinal, gpu->name, major, minor);
    if (o->amp == OPT_AMP_BF16 && gpu->capability < GPUS_BF16)
        return err_set(ERR_CONFIG,
                       "amp=bf16: device %d (%s) has compute capability %d.%d, and bf16 needs 8.0: "
                       "use amp=fp16, or amp=True, which takes what the devices have",
                       gpu->ordinal, gpu->name, major, minor);
    gpus_holders(gpu, holders, sizeof holders);
    if (gpu->free < (uint64_t)ranks * GPUS_LEAST)
        return err_set(
            ERR_ENV,
            "device=%d: %llu of the %llu MB of %s are free, and a rank needs %llu before "
            "its first image; %s%s: wait for that, or use another device",
            gpu->ordinal, mb(gpu->free), mb(gpu->total), gpu->name, mb(GPUS_LEAST),
            holders[0] ? "the rest is held by " : "who holds the rest cannot be seen", holders);
    if (holders[0])
        note(notes, "GPU %d (%s): %llu of %llu MB are free; others hold the rest: %s", gpu->ordinal,
             gpu->name, mb(gpu->free), mb(gpu->total), holders);
    if (o->amp == OPT_AMP_AUTO && gpu->capability < GPUS_BF16)
        note(notes,
             "amp=True: fp16 with loss scaling, for GPU %d (%s) has compute capability %d.%d and "
             "bf16 needs 8.0",
             gpu->ordinal, gpu->name, major, minor);
    if (ranks > 1)
        note(notes,
             "%d ranks share GPU %d: they are computed one beside the other, which shows how "
             "several ranks work and is slower than one",
             ranks, gpu->ordinal);
    return 0;
}

/* What auto has come to. */
static void note_auto(const options_t *o, const gpus_t *g, notes_t *notes)
{
    const gpu_t *gpu = gpus_find(g, o->devices[0]);
    if (gpu && g->n > 1)
        note(notes, "device=auto: GPU %d (%s), the one of %d with the most free memory",
             gpu->ordinal, gpu->name, g->n);
    else if (gpu)
        note(notes, "device=auto: GPU %d (%s)", gpu->ordinal, gpu->name);
    else if (g->n > 0)
        note(notes,
             "device=auto: the CPU, for no GPU here has compute capability 7.5 (GPU 0, %s, has "
             "%d.%d)",
             g->at[0].name, g->at[0].capability / 10, g->at[0].capability % 10);
    else
        note(notes, "device=auto: the CPU, for there is no GPU to use: %s", g->why);
}

int gpus_resolve(options_t *o, const gpus_t *g, char *text, size_t bytes)
{
    notes_t notes = {text, bytes};
    int automatic = o->devices[0] == DEVICE_AUTO;
    text[0] = '\0';
    int rc = options_resolve_devices(o, g->n, gpus_best(g), g->why);
    if (rc == 0 && automatic)
        note_auto(o, g, &notes);
    for (int i = 0; rc == 0 && i < o->n_devices; i++) {
        const gpu_t *gpu = gpus_find(g, o->devices[i]);
        int before = 0;
        for (int k = 0; k < i; k++)
            before |= o->devices[k] == o->devices[i];
        if (gpu && !before)
            rc = check_gpu(o, gpu, &notes);
    }
    return rc;
}
