#include "tests/soak/growth.h"

#include "tests/soak/clock.h"
#include "tests/soak/process.h"
#include "tests/soak/say.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A command that has just been answered may still have its descriptor: the least of a few looks. */
enum { LOOKS = 4 };

static uint64_t field_kb(pid_t pid, const char *file, const char *field)
{
    char path[64], line[256];
    uint64_t kb = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0)
            kb = strtoull(line + strlen(field), NULL, 10);
    if (f)
        fclose(f);
    return kb;
}

static void count_descriptors(pid_t pid, usage_t *u)
{
    char path[64], target[256];
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        ssize_t n = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        if (n < 0)
            continue;
        target[n] = '\0';
        u->descriptors++;
        u->memfds += strncmp(target, "/memfd:", 7) == 0;
        u->sockets += strncmp(target, "socket:", 7) == 0;
    }
    if (d)
        closedir(d);
}

static usage_t usage_of(pid_t pid)
{
    usage_t u = {0};
    count_descriptors(pid, &u);
    u.threads = field_kb(pid, "status", "Threads:");
    u.memory_kb = field_kb(pid, "smaps_rollup", "Pss_Anon:");
    if (u.memory_kb == 0) /* before Linux 5.4 */
        u.memory_kb = field_kb(pid, "status", "RssAnon:");
    return u;
}

static void keep_least(uint64_t *a, uint64_t b)
{
    *a = b < *a ? b : *a;
}

static void least(usage_t *a, const usage_t *b)
{
    keep_least(&a->memory_kb, b->memory_kb);
    keep_least(&a->descriptors, b->descriptors);
    keep_least(&a->memfds, b->memfds);
    keep_least(&a->sockets, b->sockets);
    keep_least(&a->threads, b->threads);
}

static growth_process_t *entry_of(growth_t *g, pid_t pid, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (g->process[i].pid == pid && strcmp(g->process[i].name, name) == 0)
            return &g->process[i];
    if (g->n == GROWTH_PROCESSES)
        return NULL;
    growth_process_t *p = &g->process[g->n++];
    memset(p, 0, sizeof *p);
    p->pid = pid;
    p->first_s = clock_s();
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}

void growth_look(growth_t *g, const char *mark)
{
    pid_t pids[PROCESS_LIST];
    usage_t usage[PROCESS_LIST];
    int n = process_marked(mark, pids);
    g->first = g->first ? g->first : n;
    g->most = n > g->most ? n : g->most;
    for (int look = 0; look < LOOKS; look++) {
        for (int i = 0; i < n; i++) {
            usage_t now = usage_of(pids[i]);
            if (look == 0)
                usage[i] = now;
            else
                least(&usage[i], &now);
        }
        clock_sleep(0.04);
    }
    for (int i = 0; i < n; i++) {
        char name[24];
        process_name(pids[i], name, sizeof name);
        growth_process_t *p = usage[i].threads ? entry_of(g, pids[i], name) : NULL;
        if (!p || clock_s() - p->first_s < GROWTH_WARM_S)
            continue;
        if (p->looks++ == 0) {
            p->base = usage[i];
            p->base_s = clock_s();
        }
        p->last = usage[i];
        p->last_s = clock_s();
    }
}

static int judge(const growth_process_t *p)
{
    const usage_t *a = &p->base, *b = &p->last;
    const struct {
        const char *what;
        uint64_t before, after;
    } counts[] = {{"descriptors", a->descriptors, b->descriptors},
                  {"memfds", a->memfds, b->memfds},
                  {"sockets", a->sockets, b->sockets},
                  {"threads", a->threads, b->threads}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].after > counts[i].before)
            return say_violation("%s (pid %d) has %llu %s, and had %llu %.0f s before", p->name,
                                 (int)p->pid, (unsigned long long)counts[i].after, counts[i].what,
                                 (unsigned long long)counts[i].before, p->last_s - p->base_s);
    if (b->memory_kb > a->memory_kb + GROWTH_MEMORY_KB)
        return say_violation("%s (pid %d) holds %llu KiB of its own, and held %llu %.0f s before",
                             p->name, (int)p->pid, (unsigned long long)b->memory_kb,
                             (unsigned long long)a->memory_kb, p->last_s - p->base_s);
    return 0;
}

int growth_judge(const growth_t *g, growth_row_t *rows, int n_rows)
{
    int rc = 0;
    if (g->most > g->first)
        rc = say_violation("%d processes when settled, and %d at first", g->most, g->first);
    for (int i = 0; i < g->n; i++) {
        const growth_process_t *p = &g->process[i];
        if (p->looks < 2)
            continue;
        rc = judge(p) < 0 ? -1 : rc;
        for (int k = 0; k < n_rows; k++) {
            growth_row_t *row = &rows[k];
            if (row->name[0] && strcmp(row->name, p->name) != 0)
                continue;
            int64_t grown = (int64_t)p->last.memory_kb - (int64_t)p->base.memory_kb;
            double life = p->last_s - p->base_s;
            if (!row->name[0] || grown > row->memory_kb)
                row->memory_kb = grown;
            if (p->last.memory_kb > row->most_kb)
                row->most_kb = p->last.memory_kb;
            row->life_s = life > row->life_s ? life : row->life_s;
            row->processes++;
            snprintf(row->name, sizeof row->name, "%s", p->name);
            break;
        }
    }
    return rc;
}
