/* Memory that processes of a run share: memfds made before anything starts (design 3, "Arena").
 *
 * Each arena is made by the coordinator, inherited by descriptor, and never has a name, so nothing
 * is left behind after a SIGKILL and a small /dev/shm does not matter. Any process may map one.
 */
#ifndef SLUICE_SHM_ARENA_H
#define SLUICE_SHM_ARENA_H

#include <stdint.h>

/* Where the bound on memory comes from, for the error sentence. */
typedef struct {
    uint64_t available; /* bytes that may still be used */
    uint64_t limit;     /* the bound itself (cgroup limit or MemTotal) */
    char source[256];   /* "cgroup /a/b memory.max" or "MemAvailable" */
} arena_budget_t;

/* The least of limit - usage over all ancestor cgroups (v1 and v2) and MemAvailable; where /proc is
 * missing, of what is free. Page cache that can go counts as free. root is "" for the live system;
 * tests pass a folder with recorded files. */
int arena_budget(const char *root, arena_budget_t *budget);
/* CPUs that may be used: the least of the affinity mask and the cgroups' sets and quotas, rounded
 * up, >= 1. */
int arena_cpus(const char *root);
/* Processes and threads that may still be made: the least of pids.max - pids.current over all
 * ancestor cgroups and what the kernel has left; UINT64_MAX where nothing bounds them. The limit of
 * a user (ulimit -u) is not among these. */
void arena_tasks(const char *root, arena_budget_t *budget);

/* A memfd of exactly `bytes`, reserved by fallocate and sealed against resizing, mapped shared.
 * Compares with arena_budget first: ERR_ENV with need and available instead of an OOM kill. */
int arena_create(const char *name, uint64_t bytes, void **base, int *fd);
/* Maps an existing memfd; *bytes is its size. writable = 0 maps read-only. */
int arena_map(int fd, int writable, void **base, uint64_t *bytes);
void arena_unmap(void *base, uint64_t bytes);

#endif
