/* arena_budget and arena_cpus: what the machine and its cgroups leave us (arena.h).
 *
 * A container's limit may sit on any ancestor, and in cgroup v1 memory and cpu are separate
 * hierarchies, so every folder from the process's own up to the mount's root is read. A file that
 * is missing or says "max" bounds nothing.
 */
#include "shm/arena.h"
#include "shm/err.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUDGET_PATH = 1024 };

/* First number of a small file: 0 read, -1 missing or not a number ("max"). */
static int read_number(const char *path, uint64_t *value)
{
    char text[64];
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    char *got = fgets(text, sizeof text, f);
    fclose(f);
    if (!got)
        return -1;
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return end == text || errno ? -1 : 0;
}

/* "key value" in a file of such lines, as in memory.stat. */
static uint64_t read_stat(const char *path, const char *key)
{
    char line[256], name[128];
    uint64_t value, found = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%127s %" SCNu64, name, &value) == 2 && strcmp(name, key) == 0)
            found = value;
    fclose(f);
    return found;
}

/* Calls visit for every folder of the process's cgroup in the given hierarchy, from its own to the
 * root. controller NULL: the unified (v2) hierarchy. */
static void for_each_cgroup(const char *root, const char *controller,
                            void (*visit)(const char *folder, void *user), void *user)
{
    char path[2 * BUDGET_PATH], line[BUDGET_PATH], group[BUDGET_PATH] = "";
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        *where++ = '\0';
        names++;
        int match = controller == NULL && names[0] == '\0';
        for (char *save, *n = strtok_r(names, ",", &save); controller && n;
             n = strtok_r(NULL, ",", &save))
            match |= strcmp(n, controller) == 0;
        if (match)
            snprintf(group, sizeof group, "%s", where);
    }
    fclose(f);
    if (!group[0])
        return;
    for (;;) {
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s%s", root, controller ? "/" : "",
                 controller ? controller : "", strcmp(group, "/") == 0 ? "" : group);
        visit(path, user);
        char *slash = strrchr(group, '/');
        if (!slash || strcmp(group, "/") == 0)
            return;
        if (slash == group)
            strcpy(group, "/");
        else
            *slash = '\0';
    }
}

static void take_limit(arena_budget_t *b, uint64_t limit, uint64_t used, const char *what)
{
    uint64_t left = used < limit ? limit - used : 0;
    if (left < b->available) {
        b->available = left;
        b->limit = limit;
        snprintf(b->source, sizeof b->source, "%s", what);
    }
}

static void visit_memory(const char *folder, const char *limit_file, const char *usage_file,
                         const char *reclaim_key, arena_budget_t *b)
{
    char path[2 * BUDGET_PATH + 64];
    uint64_t limit, used;
    snprintf(path, sizeof path, "%s/%s", folder, limit_file);
    if (read_number(path, &limit) < 0)
        return;
    char what[256];
    snprintf(what, sizeof what, "%.250s", path);
    snprintf(path, sizeof path, "%s/%s", folder, usage_file);
    if (read_number(path, &used) < 0)
        return;
    /* Page cache that the kernel drops on demand is not in the way. */
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t cache = read_stat(path, reclaim_key);
    take_limit(b, limit, used > cache ? used - cache : 0, what);
}

static void visit_memory_v2(const char *folder, void *user)
{
    visit_memory(folder, "memory.max", "memory.current", "inactive_file", user);
}

static void visit_memory_v1(const char *folder, void *user)
{
    visit_memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                 user);
}

int arena_budget(const char *root, arena_budget_t *budget)
{
    char path[BUDGET_PATH], line[256];
    uint64_t kib, available = 0, total = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return err_sys(ERR_ENV, "%s", path);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib * 1024;
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1)
            total = kib * 1024;
    }
    fclose(f);
    if (!available)
        return err_set(ERR_ENV, "%s has no MemAvailable line", path);
    budget->available = available;
    budget->limit = total;
    snprintf(budget->source, sizeof budget->source, "MemAvailable of %.200s", path);
    for_each_cgroup(root, NULL, visit_memory_v2, budget);
    for_each_cgroup(root, "memory", visit_memory_v1, budget);
    return 0;
}

typedef struct {
    double cpus;
} cpu_bound_t;

static void take_quota(cpu_bound_t *b, double quota, double period)
{
    if (quota > 0 && period > 0 && quota / period < b->cpus)
        b->cpus = quota / period;
}

static void visit_cpu_v2(const char *folder, void *user)
{
    char path[2 * BUDGET_PATH + 64];
    double quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fscanf(f, "%lf %lf", &quota, &period) == 2)
        take_quota(user, quota, period);
    fclose(f);
}

static void visit_cpu_v1(const char *folder, void *user)
{
    char path[2 * BUDGET_PATH + 64];
    uint64_t quota, period;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (read_number(path, &quota) < 0 || quota > INT64_MAX) /* -1: no quota */
        return;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (read_number(path, &period) == 0)
        take_quota(user, (double)quota, (double)period);
}

int arena_cpus(const char *root)
{
    cpu_bound_t b = {.cpus = 1};
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (online > 0)
        b.cpus = (double)online;
    /* A mask for more CPUs than a plain cpu_set_t holds, as large servers need. */
    for (int cpus = 1024; cpus <= 1 << 16; cpus *= 4) {
        cpu_set_t *mask = CPU_ALLOC(cpus);
        if (!mask)
            break;
        int got = sched_getaffinity(0, CPU_ALLOC_SIZE(cpus), mask);
        int count = got == 0 ? CPU_COUNT_S(CPU_ALLOC_SIZE(cpus), mask) : 0;
        CPU_FREE(mask);
        if (count > 0) {
            b.cpus = count;
            break;
        }
    }
    for_each_cgroup(root, NULL, visit_cpu_v2, &b);
    for_each_cgroup(root, "cpu", visit_cpu_v1, &b);
    int whole = (int)b.cpus;
    return b.cpus > whole ? whole + 1 : whole < 1 ? 1 : whole;
}
