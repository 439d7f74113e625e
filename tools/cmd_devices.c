/* sluice devices [--json]: the GPUs of this machine, and who holds their memory. A child looks, for a
 * driver may hang. */
#include "tools/commands.h"

#include "control/gpus.h"
#include "control/programs.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/run_options.h"

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICES_LOOK_MS = 50, DEVICES_END_MS = 1000 /* for a child that was killed */ };

/* 1 when it has ended within the time. */
static int ends_within(supervise_child_t *child, uint64_t ms)
{
    uint64_t until = clock_ns() + ms * 1000000;
    while (!supervise_ended(child)) {
        struct pollfd p = {.fd = child->pidfd, .events = POLLIN};
        if (clock_ns() >= until)
            return 0;
        poll(&p, child->pidfd >= 0, DEVICES_LOOK_MS);
    }
    return 1;
}

/* What it said on its way out; the rest of a line is enough. */
static int failed(const supervise_child_t *child)
{
    char how[256], words[512];
    supervise_describe(child, how, sizeof how);
    ssize_t n = read(child->errors, words, sizeof words - 1);
    words[n > 0 ? n : 0] = '\0';
    words[strcspn(words, "\n")] = '\0';
    if (programs_unloaded(child))
        return err_set(ERR_ENV, "no GPU: %s", words[0] ? words : how);
    return err_set(ERR_ENV, "sluice-trainer --devices %s%s%s", how, words[0] ? ": " : "", words);
}

static int look(const char *bin_dir, char **text, size_t *bytes)
{
    static const char *const words[] = {"--devices", NULL};
    /* Threads of BLAS are of no use to it, and under a limit of address space they may not start. */
    static const char *const env[] = {"OPENBLAS_NUM_THREADS=1", NULL};
    char program[PATH_MAX + 32];
    supervise_child_t child;
    int fd = -1, rc;
    programs_trainer(bin_dir, 1, program, sizeof program);
    const gpus_question_t question = {.program = program, .words = words, .env = env};
    rc = gpus_ask(&question, &child, &fd);
    if (rc < 0)
        return rc;
    if (!ends_within(&child, GPUS_DEADLINE_S * 1000)) {
        supervise_kill(&child);
        int ended = ends_within(&child, DEVICES_END_MS);
        rc = err_set(ERR_ENV, "the NVIDIA driver does not answer within %d s (pid %d%s)",
                     GPUS_DEADLINE_S, (int)child.pid,
                     ended ? "" : ", which was killed and which the kernel does not let go");
    } else if (!WIFEXITED(child.status) || WEXITSTATUS(child.status) != 0) {
        rc = failed(&child);
    } else {
        rc = gpus_answer(fd, "the answer of sluice-trainer --devices", text, bytes);
    }
    supervise_close(&child);
    close(fd);
    return rc;
}

static int show(const gpus_t *g)
{
    if (g->n == 0)
        return err_set(ERR_ENV, "no GPU: %s", g->why);
    for (int i = 0; i < g->n; i++) {
        const gpu_t *gpu = &g->at[i];
        char holders[1024];
        gpus_holders(gpu, holders, sizeof holders);
        printf("device=%d  %s  %s  %d.%d  %.1f of %.1f GB free%s%s\n", i, gpu->name, gpu->bus,
               gpu->capability / 10, gpu->capability % 10, (double)gpu->free / 1e9,
               (double)gpu->total / 1e9, holders[0] ? "; held by " : "", holders);
        if (gpu->capability < GPUS_CAPABILITY)
            printf("          cannot be used: 7.5 is the least compute capability\n");
    }
    return 0;
}

int cmd_devices(int argc, char **argv)
{
    char bin_dir[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    int json = 0, rc;
    gpus_t *g = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") != 0)
            return err_set(ERR_CONFIG, "devices does not know '%s'", argv[i]);
        json = 1;
    }
    CHECK_GOTO(run_bin_dir(bin_dir, sizeof bin_dir), rc, done);
    CHECK_GOTO(look(bin_dir, &text, &bytes), rc, done);
    g = calloc(1, sizeof *g);
    rc = g ? gpus_parse(text, bytes, g) : err_set(ERR_ENV, "no memory for a list of GPUs");
    if (rc == 0 && json)
        fwrite(text, 1, bytes, stdout);
    else if (rc == 0)
        rc = show(g);
done:
    free(text);
    free(g);
    return rc;
}
