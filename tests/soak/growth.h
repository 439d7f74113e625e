/* What must not grow while a run works: memory, descriptors, memfds, sockets and threads of each of
 * its processes (private to tests/soak). One thread.
 *
 * Looked at when the run is settled: with the number of loaders it began with, all of them joined,
 * nothing stopped. A process's first settled look when it has warmed up is what later looks are
 * compared with. Counts may not rise at all. Memory is the process's own (Pss_Anon: what it shares
 * is counted with the rings, whose size is fixed). */
#ifndef SLUICE_TESTS_SOAK_GROWTH_H
#define SLUICE_TESTS_SOAK_GROWTH_H

#include <stdint.h>
#include <sys/types.h>

enum {
    GROWTH_PROCESSES = 256,
    GROWTH_WARM_S = 8, /* first epochs: buffers get the size that they need */
    /* A loader's largest block is a decoded image (640 px: 1.2 MiB). A coordinator levels off 0.7
     * MiB above its first look, after some 50 loaders have come and gone (measured). */
    GROWTH_MEMORY_KB = 2048,
};

typedef struct {
    uint64_t memory_kb, descriptors, memfds, sockets, threads;
} usage_t;

typedef struct {
    pid_t pid;
    char name[24];
    double first_s, base_s, last_s; /* seen first; compared since; last looked at */
    int looks;                      /* from base on */
    usage_t base, last;
} growth_process_t;

typedef struct {
    int first, most; /* processes of the run, settled: at the first look, and the most later */
    int n;
    growth_process_t process[GROWTH_PROCESSES];
} growth_t;

/* What a table shows at the end: the longest life, and the largest growth, of each program. */
typedef struct {
    char name[24];
    double life_s;
    int64_t memory_kb;
    uint64_t most_kb;
    int processes;
} growth_row_t;

/* A settled run's processes, by the mark. */
void growth_look(growth_t *g, const char *mark);
/* Compares. 0, or a violation. rows: one a program, added to. */
int growth_judge(const growth_t *g, growth_row_t *rows, int n_rows);

#endif
