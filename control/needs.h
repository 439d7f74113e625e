/* What a run will need of the machine, added up before anything is reserved (design 3): above a
 * memory limit a reservation is an OOM kill, not an error; without descriptors or tasks a run with
 * many loaders would start and not get on.
 *
 * needs_compute and needs_check are pure. The trainers' needs are known when they have planned:
 * each compares them itself, less what hub->memory_reserved keeps for the others.
 */
#ifndef SLUICE_CONTROL_NEEDS_H
#define SLUICE_CONTROL_NEEDS_H

#include "control/catalog.h"
#include "control/options.h"
#include "shm/arena.h"
#include "shm/ring.h"

enum { NEEDS_LOADER = 6 << 20 /* bytes of a loader without images; 2 to 3 MiB were measured */ };

/* What it follows from. */
typedef struct {
    ring_config_t ring;
    uint32_t ranks, workers, threads; /* threads: of a trainer */
    uint32_t inflight;                /* cells of a loader whose files are read */
    uint32_t sources;                 /* files that a cell may need */
    uint32_t imgsz;
    uint32_t reader_threads; /* of a loader: 0 where io_uring reads */
    uint64_t file_bytes;     /* of the largest file of the data set */
    uint64_t pixels;         /* of its largest image */
} needs_from_t;

typedef struct {
    needs_from_t from;
    uint64_t ring, rings;        /* bytes of one, of all */
    uint64_t loader, loaders;    /* private bytes of one, of all */
    uint64_t rest;               /* coordinator, scribe, the kernel for all of them */
    uint64_t descriptors, tasks; /* of the coordinator; of the run beyond the coordinator */
} needs_t;

/* What there is. */
typedef struct {
    arena_budget_t memory, tasks;
    uint64_t descriptors, user_tasks;
} needs_limits_t;

void needs_from(const options_t *o, const catalog_t *catalog, needs_from_t *from);
void needs_compute(const needs_from_t *from, needs_t *needs);
/* The live machine's. */
int needs_limits(needs_limits_t *limits);
/* 0, or ERR_ENV with what is needed, what there is, and what to change. */
int needs_check(const needs_t *needs, const needs_limits_t *limits);
#endif
