#include "control/needs.h"

#include "control/machine.h"
#include "shm/board.h"
#include "shm/err.h"

#include <string.h>

enum {
    NEEDS_OUTBOX = 64 << 20,    /* of the coordinator, when storage does not take what is sent */
    NEEDS_PROCESSES = 32 << 20, /* coordinator and scribe; 10 MiB were measured */
    NEEDS_PROCESS_KERNEL = 1 << 19, /* stacks, pipes, sockets, page tables of one process */
    NEEDS_KEPT = 64 << 20,          /* of files read ahead, ordinarily (loader/reader.h) */
    NEEDS_SLACK = 64,               /* bytes behind a file or a picture */
    NEEDS_TABLE = 512,              /* bytes of memory that a byte of page tables maps */
    NEEDS_FILES = 33,        /* descriptors of the coordinator with nothing started, commands */
    NEEDS_PROCESS_FILES = 5, /* of each process: pidfd, lifeline, two pipes, a connection */
    NEEDS_PROCESS_TASKS = 4, /* of each process: itself, its guard, libzmq's two */
};

void needs_from(const options_t *o, const catalog_t *catalog, needs_from_t *from)
{
    from->inflight = (uint32_t)(o->inflight < 1 ? 1 : o->inflight);
    from->sources = (o->mosaic > 0 ? 4 : 1) * (o->mixup > 0 ? 2 : 1);
    from->imgsz = (uint32_t)o->imgsz;
    from->reader_threads = o->io == OPT_IO_THREADS ? 16 : 0;
    from->file_bytes = from->pixels = 0;
    for (int split = 0; split < CATALOG_SPLITS; split++)
        for (uint32_t i = 0; i < catalog_count(catalog, (catalog_split_t)split); i++) {
            const catalog_sample_t *s = catalog_sample(catalog, (catalog_split_t)split, i);
            uint64_t pixels = (uint64_t)s->width * s->height;
            from->pixels = pixels > from->pixels ? pixels : from->pixels;
            from->file_bytes = s->file_bytes > from->file_bytes ? s->file_bytes : from->file_bytes;
        }
}

/* A loader's private memory at its fullest (loader/job, cell, decode): files of all cells under
 * way, one picture as decoded and its coefficients if it is a progressive JPEG (2 bytes each, 1.5 a
 * pixel), all of a cell's sources at loaded size. A quarter more for holes in the heap. */
static uint64_t loader_bytes(const needs_from_t *f, uint64_t rings)
{
    uint64_t cells = f->inflight + 1 < BOARD_INFLIGHT ? f->inflight + 1 : BOARD_INFLIGHT;
    uint64_t files = cells * f->sources * (f->file_bytes + f->file_bytes / 4 + NEEDS_SLACK);
    uint64_t one = f->sources * f->file_bytes;
    if (files > NEEDS_KEPT)
        files = one > NEEDS_KEPT ? one : NEEDS_KEPT;
    uint64_t loaded = (uint64_t)f->imgsz * f->imgsz;
    loaded = f->pixels < loaded ? f->pixels : loaded;
    uint64_t pictures = 2 * 3 * f->pixels + f->sources * (3 * loaded + NEEDS_SLACK);
    return NEEDS_LOADER + (files + pictures) / 4 * 5 + rings / NEEDS_TABLE +
           f->reader_threads * (uint64_t)(64 << 10);
}

void needs_compute(const needs_from_t *from, needs_t *n)
{
    uint64_t processes = 1 + (uint64_t)from->ranks + from->workers;
    memset(n, 0, sizeof *n);
    n->from = *from;
    n->ring = ring_bytes(&from->ring);
    n->rings = n->ring * from->ranks;
    n->loader = loader_bytes(from, n->rings);
    n->loaders = n->loader * from->workers;
    n->rest = NEEDS_OUTBOX + NEEDS_PROCESSES + processes * NEEDS_PROCESS_KERNEL;
    n->descriptors = NEEDS_FILES + from->ranks + processes * NEEDS_PROCESS_FILES;
    n->tasks = processes * NEEDS_PROCESS_TASKS + (uint64_t)from->ranks * from->threads +
               (uint64_t)from->workers * from->reader_threads;
}

int needs_limits(needs_limits_t *limits)
{
    arena_tasks("", &limits->tasks);
    limits->descriptors = machine_descriptors();
    limits->user_tasks = machine_user_tasks();
    return arena_budget("", &limits->memory);
}

static unsigned long long mib(uint64_t bytes)
{
    return (unsigned long long)((bytes + (1 << 20) - 1) >> 20);
}

static int check_descriptors(uint64_t need, uint64_t have, uint32_t workers)
{
    if (need <= have)
        return 0;
    return err_set(ERR_ENV,
                   "a run with %u loaders has %llu files open at once, and %llu may be (ulimit "
                   "-n): lower workers, or raise that limit",
                   workers, (unsigned long long)need, (unsigned long long)have);
}

static int check_tasks(uint64_t need, const needs_limits_t *l, uint32_t workers)
{
    int user = l->user_tasks < l->tasks.available;
    uint64_t have = user ? l->user_tasks : l->tasks.available;
    if (need <= have)
        return 0;
    return err_set(ERR_ENV,
                   "a run with %u loaders starts %llu processes and threads, and %llu more may be "
                   "started (%s): lower workers, or raise that limit",
                   workers, (unsigned long long)need, (unsigned long long)have,
                   user ? "ulimit -u" : l->tasks.source);
}

int needs_check(const needs_t *n, const needs_limits_t *l)
{
    const needs_from_t *f = &n->from;
    uint64_t need = n->rings + n->loaders + n->rest;
    if (need > l->memory.available)
        return err_set(
            ERR_ENV,
            "the batch rings need %llu MiB (%u of %llu MiB), the loaders %llu MiB (%u of %llu "
            "MiB), the other processes %llu MiB beside the trainers, and %llu MiB are available "
            "(%s): lower ring_depth (%u), batch, imgsz (%u) or workers (%u)",
            mib(n->rings), f->ranks, mib(n->ring), mib(n->loaders), f->workers, mib(n->loader),
            mib(n->rest), mib(l->memory.available), l->memory.source, f->ring.depth, f->imgsz,
            f->workers);
    int rc = check_descriptors(n->descriptors, l->descriptors, f->workers);
    return rc < 0 ? rc : check_tasks(n->tasks, l, f->workers);
}
