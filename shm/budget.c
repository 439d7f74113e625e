/* What the machine and its cgroups leave us: memory, CPUs, tasks (arena.h).
 *
 * A file that is missing or says "max" bounds nothing. Limits of ancestors bind as our own do.
 */
#include "shm/arena.h"

#include "shm/cgroup.h"
#include "shm/err.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { BUDGET_PATH = 4 * CGROUP_PATH };

/* First number of a small file: 0 read, -1 missing or not a number ("max"). */
static int read_number(const char *folder, const char *name, uint64_t *value)
{
    char path[BUDGET_PATH], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
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
    return end == text || text[0] == '-' || errno ? -1 : 0;
}

/* "key value" in a file of such lines, as in memory.stat; 0 where there is none. */
static uint64_t read_stat(const char *folder, const char *name, const char *key)
{
    char path[BUDGET_PATH], line[256], word[128];
    uint64_t value, found = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%127s %" SCNu64, word, &value) == 2 && strcmp(word, key) == 0)
            found = value;
    fclose(f);
    return found;
}

static void take_limit(arena_budget_t *b, uint64_t limit, uint64_t used, const char *folder,
                       const char *name)
{
    uint64_t left = used < limit ? limit - used : 0;
    if (left >= b->available)
        return;
    b->available = left;
    b->limit = limit;
    snprintf(b->source, sizeof b->source, "%.200s/%.40s", folder, name);
}

/* ---- memory ---- */

/* Usage without page cache and slabs that the kernel drops on demand. Shared memory is not among
 * these: it is on the lists of anonymous pages. */
static uint64_t held(uint64_t used, uint64_t reclaimable)
{
    return used > reclaimable ? used - reclaimable : 0;
}

static void visit_memory_v2(const char *folder, void *user)
{
    uint64_t limit, used;
    if (read_number(folder, "memory.current", &used) < 0)
        return;
    used = held(used, read_stat(folder, "memory.stat", "inactive_file") +
                          read_stat(folder, "memory.stat", "active_file") +
                          read_stat(folder, "memory.stat", "slab_reclaimable"));
    if (read_number(folder, "memory.max", &limit) == 0)
        take_limit(user, limit, used, folder, "memory.max");
    /* Above it nobody is killed, but everybody is slowed down until the group is below again. */
    if (read_number(folder, "memory.high", &limit) == 0)
        take_limit(user, limit, used, folder, "memory.high");
}

static void visit_memory_v1(const char *folder, void *user)
{
    uint64_t limit, used;
    if (read_number(folder, "memory.usage_in_bytes", &used) < 0)
        return;
    used = held(used, read_stat(folder, "memory.stat", "total_inactive_file") +
                          read_stat(folder, "memory.stat", "total_active_file"));
    if (read_number(folder, "memory.limit_in_bytes", &limit) == 0)
        take_limit(user, limit, used, folder, "memory.limit_in_bytes");
    /* Ancestors that are not mounted here bind all the same; their usage is at least ours. */
    limit = read_stat(folder, "memory.stat", "hierarchical_memory_limit");
    if (limit)
        take_limit(user, limit, used, folder, "memory.stat hierarchical_memory_limit");
}

/* Without /proc: what is free, page cache not counted, for nothing says how much of it there is. */
static int free_memory(const char *path, arena_budget_t *budget)
{
    struct sysinfo s;
    if (sysinfo(&s) != 0)
        return err_set(ERR_ENV, "how much memory there is cannot be told: %s is missing", path);
    budget->available = (uint64_t)s.freeram * s.mem_unit;
    budget->limit = (uint64_t)s.totalram * s.mem_unit;
    snprintf(budget->source, sizeof budget->source,
             "free memory; %.150s, which would say what else can be had, is missing", path);
    return 0;
}

int arena_budget(const char *root, arena_budget_t *budget)
{
    char path[BUDGET_PATH], line[256];
    uint64_t kib, available = 0, total = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "re");
    int rc = f ? 0 : free_memory(path, budget);
    if (rc < 0)
        return rc;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = kib * 1024;
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1)
            total = kib * 1024;
    }
    if (f) {
        fclose(f);
        if (!available)
            return err_set(ERR_ENV, "%s has no MemAvailable line", path);
        budget->available = available;
        budget->limit = total;
        snprintf(budget->source, sizeof budget->source, "MemAvailable of %.200s", path);
    }
    cgroup_each(root, NULL, visit_memory_v2, budget);
    cgroup_each(root, "memory", visit_memory_v1, budget);
    return 0;
}

/* ---- tasks ---- */

static void visit_pids(const char *folder, void *user)
{
    uint64_t limit, used;
    if (read_number(folder, "pids.max", &limit) == 0 &&
        read_number(folder, "pids.current", &used) == 0)
        take_limit(user, limit, used, folder, "pids.max");
}

void arena_tasks(const char *root, arena_budget_t *budget)
{
    static const char *const kernel[] = {"pid_max", "threads-max"};
    char folder[BUDGET_PATH], path[BUDGET_PATH + 16];
    unsigned long long alive = 0;
    memset(budget, 0, sizeof *budget);
    budget->available = budget->limit = UINT64_MAX;
    snprintf(path, sizeof path, "%s/proc/loadavg", root);
    FILE *f = fopen(path, "re");
    /* "0.00 0.01 0.05 1/234 5678": 234 tasks are alive. */
    if (f && fscanf(f, "%*f %*f %*f %*u/%llu", &alive) != 1)
        alive = 0;
    if (f)
        fclose(f);
    snprintf(folder, sizeof folder, "%s/proc/sys/kernel", root);
    for (size_t i = 0; i < sizeof kernel / sizeof kernel[0]; i++) {
        uint64_t limit;
        if (read_number(folder, kernel[i], &limit) == 0)
            take_limit(budget, limit, alive, folder, kernel[i]);
    }
    cgroup_each(root, NULL, visit_pids, budget);
    cgroup_each(root, "pids", visit_pids, budget);
}

/* ---- CPUs ---- */

typedef struct {
    double cpus;
} cpu_bound_t;

static void take_cpus(cpu_bound_t *b, double cpus)
{
    if (cpus > 0 && cpus < b->cpus)
        b->cpus = cpus;
}

/* CPUs in a list such as "0-3,8,10-11"; 0 when it is none. */
static double count_list(const char *list)
{
    double n = 0;
    while (*list && *list != '\n') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list)
            return 0;
        if (*end == '-') {
            list = end + 1;
            last = strtoul(list, &end, 10);
            if (end == list || last < first)
                return 0;
        }
        n += (double)(last - first + 1);
        list = *end == ',' ? end + 1 : end;
        if (*end && *end != ',' && *end != '\n')
            return 0;
    }
    return n;
}

static void visit_cpuset(const char *folder, const char *name, cpu_bound_t *b)
{
    char path[BUDGET_PATH], list[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fgets(list, sizeof list, f))
        take_cpus(b, count_list(list));
    fclose(f);
}

static void visit_cpu_v2(const char *folder, void *user)
{
    char path[BUDGET_PATH];
    double quota, period;
    visit_cpuset(folder, "cpuset.cpus.effective", user);
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    if (fscanf(f, "%lf %lf", &quota, &period) == 2 && period > 0)
        take_cpus(user, quota / period);
    fclose(f);
}

static void visit_cpu_v1(const char *folder, void *user)
{
    uint64_t quota, period;
    /* -1, no quota, is not a number here. */
    if (read_number(folder, "cpu.cfs_quota_us", &quota) == 0 &&
        read_number(folder, "cpu.cfs_period_us", &period) == 0 && period > 0)
        take_cpus(user, (double)quota / (double)period);
}

static void visit_cpuset_v1(const char *folder, void *user)
{
    visit_cpuset(folder, "cpuset.effective_cpus", user);
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
    cgroup_each(root, NULL, visit_cpu_v2, &b);
    cgroup_each(root, "cpu", visit_cpu_v1, &b);
    cgroup_each(root, "cpuset", visit_cpuset_v1, &b);
    int whole = (int)b.cpus;
    return b.cpus > whole ? whole + 1 : whole < 1 ? 1 : whole;
}
