#include "tools/draw_step.h"

#include "control/options.h"
#include "control/spool.h"
#include "control/supervise.h"
#include "shm/arena.h"
#include "shm/err.h"
#include "shm/futex.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { DRAWERS_MOST = 16, DRAW_TICK_MS = 100, DRAW_STUCK_S = 600, DRAW_KILLED_S = 3 };

typedef struct {
    supervise_child_t child;
    char line[8192];
    size_t used;
    int ended;
} drawer_t;

typedef struct {
    const draw_step_t *step;
    drawer_t drawers[DRAWERS_MOST];
    int n;
    unsigned long drawn, bad;
    char failed[512];         /* the first reason of a drawer */
    int spools[DRAWERS_MOST]; /* the file of what is to be drawn, opened for each; it has no name */
    uint64_t moved_ns;
} drawing_t;

static int start(drawing_t *d, int i, int of)
{
    char program[OPTIONS_PATH_BYTES + 32], first[16], step[16], spool[16];
    snprintf(program, sizeof program, "%s/sluice-loader", d->step->bin_dir);
    snprintf(first, sizeof first, "%d", i);
    snprintf(step, sizeof step, "%d", of);
    snprintf(spool, sizeof spool, "%d", d->spools[i]);
    const char *args[] = {"--draw", d->step->run_dir, first, step, "--spool", spool, NULL};
    const char *env[] = {NULL};
    const supervise_spec_t spec = {
        .program = program, .args = args, .env = env, .fds = &d->spools[i], .n_fds = 1};
    int rc = supervise_spawn(&spec, &d->drawers[i].child);
    if (rc == 0)
        d->n++;
    return rc;
}

static void take_line(drawing_t *d, const char *line)
{
    d->moved_ns = clock_ns();
    if (strncmp(line, "done ", 5) == 0) {
        d->drawn++;
    } else if (strncmp(line, "bad ", 4) == 0) {
        char text[8192 + 32];
        d->bad++;
        snprintf(text, sizeof text, "warning: not drawn: %s", line + 4);
        d->step->say(d->step->user, text);
    } else if (!d->failed[0]) {
        snprintf(d->failed, sizeof d->failed, "%s",
                 strncmp(line, "failed ", 7) == 0 ? line + 7 : line);
    }
}

static void read_lines(drawing_t *d, drawer_t *w)
{
    for (;;) {
        ssize_t n = read(w->child.errors, w->line + w->used, sizeof w->line - 1 - w->used);
        if (n <= 0)
            return;
        w->used += (size_t)n;
        w->line[w->used] = '\0';
        char *from = w->line, *end;
        while ((end = strchr(from, '\n')) != NULL) {
            *end = '\0';
            take_line(d, from);
            from = end + 1;
        }
        w->used = strlen(from);
        memmove(w->line, from, w->used + 1);
        if (w->used == sizeof w->line - 1)
            w->used = 0;
    }
}

/* 1: somebody wants an end. */
static int signalled(void)
{
    const struct timespec now = {0};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    return sigtimedwait(&set, NULL, &now) > 0;
}

/* 1 when all have ended. */
static int look(drawing_t *d)
{
    int left = 0;
    for (int i = 0; i < d->n; i++) {
        drawer_t *w = &d->drawers[i];
        if (w->ended)
            continue;
        int ended = supervise_ended(&w->child);
        read_lines(d, w);
        w->ended = ended;
        left += !ended;
    }
    return left == 0;
}

static void kill_all(drawing_t *d)
{
    uint64_t until = clock_ns() + DRAW_KILLED_S * 1000000000ull;
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; i < d->n; i++)
        if (!d->drawers[i].ended)
            supervise_kill(&d->drawers[i].child);
    while (!look(d) && clock_ns() < until)
        nanosleep(&pause, NULL);
}

static int wait_all(drawing_t *d)
{
    struct pollfd fds[DRAWERS_MOST];
    d->moved_ns = clock_ns();
    while (!look(d)) {
        int n = 0;
        for (int i = 0; i < d->n; i++)
            if (!d->drawers[i].ended)
                fds[n++] = (struct pollfd){.fd = d->drawers[i].child.errors, .events = POLLIN};
        poll(fds, (nfds_t)n, DRAW_TICK_MS);
        if (signalled()) {
            kill_all(d);
            return err_set(ERR_FAILED,
                           "stopped while drawing, %lu images are done; what was found is "
                           "in %s",
                           d->drawn, d->step->run_dir);
        }
        if (clock_ns() - d->moved_ns > DRAW_STUCK_S * 1000000000ull) {
            kill_all(d);
            return err_set(ERR_FAILED, "no image was drawn for %d s: does the storage answer?",
                           DRAW_STUCK_S);
        }
    }
    return 0;
}

static int judge(const drawing_t *d)
{
    for (int i = 0; i < d->n; i++) {
        char how[256];
        int status = d->drawers[i].child.status;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            continue;
        supervise_describe(&d->drawers[i].child, how, sizeof how);
        return err_set(WIFEXITED(status) && WEXITSTATUS(status) == 4 ? ERR_ENV : ERR_FAILED,
                       "drawing failed after %lu images: %s", d->drawn,
                       d->failed[0] ? d->failed : how);
    }
    return 0;
}

/* Opened as often as there are drawers, who each have a place in it, and without its name from here on:
 * whatever is killed now, nothing of it stays. */
static int take_spool(drawing_t *d, const char *path, int of)
{
    int rc = 0;
    for (int i = 0; i < of; i++) {
        d->spools[i] = rc == 0 ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
        if (d->spools[i] < 0 && rc == 0)
            rc = err_sys(ERR_ENV, "cannot open %s", path);
    }
    unlink(path);
    return rc;
}

int draw_step(const draw_step_t *step)
{
    char spool[OPTIONS_PATH_BYTES + 32];
    int of = step->workers > 0 ? step->workers : arena_cpus("");
    of = of < 1 ? 1 : of > DRAWERS_MOST ? DRAWERS_MOST : of;
    snprintf(spool, sizeof spool, "%s/%s", step->run_dir, SPOOL_NAME);
    if (access(spool, F_OK) != 0)
        return 0;
    drawing_t *d = calloc(1, sizeof *d);
    if (!d) {
        unlink(spool);
        return err_set(ERR_ENV, "no memory to draw with");
    }
    d->step = step;
    int rc = take_spool(d, spool, of);
    for (int i = 0; rc == 0 && i < of; i++)
        rc = start(d, i, of);
    if (rc < 0)
        kill_all(d);
    else
        rc = wait_all(d);
    if (rc == 0)
        rc = judge(d);
    for (int i = 0; i < d->n; i++)
        supervise_close(&d->drawers[i].child);
    for (int i = 0; i < of; i++)
        if (d->spools[i] >= 0)
            close(d->spools[i]);
    if (d->bad > 0) {
        char text[96];
        snprintf(text, sizeof text, "%lu images were not drawn", d->bad);
        step->say(step->user, text);
    }
    free(d);
    return rc;
}
