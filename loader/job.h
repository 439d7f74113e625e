/* A loader's cells in flight: claimed cells and the state of each (design 3).
 *
 * JOB_TRANSITIONS below says how a job's state may change; tests/test_job.c holds README.md to it.
 * One thread.
 */
#ifndef SLUICE_LOADER_JOB_H
#define SLUICE_LOADER_JOB_H

#include "control/worker.h"
#include "loader/cell.h"
#include "loader/probe.h"
#include "loader/reader.h"

/* No cell; its files are asked for or read; they are, but the plan has changed since; it waits for
 * a substitute. In all states but FREE its cell is CLAIMED. */
typedef enum { JOB_FREE = 0, JOB_READING, JOB_STALE, JOB_BLOCKED } job_state_t;

/* From, to, function, when. */
#define JOB_TRANSITIONS(X)                                                                         \
    X(FREE, READING, "jobs_claim", "a claim is won")                                               \
    X(READING, FREE, "jobs_finish", "all files are read and usable: committed")                    \
    X(READING, BLOCKED, "jobs_finish", "a file is unusable: the bad sample is reported")           \
    X(BLOCKED, READING, "jobs_ledger", "an entry changes its plan: begun anew")                    \
    X(READING, STALE, "jobs_ledger", "an entry changes its plan: reads cannot be called back")     \
    X(STALE, READING, "jobs_finish", "the reads are over: begun anew")                             \
    X(BLOCKED, FREE, "jobs_report", "prediction, the report is sent: committed without a picture")

static const struct {
    job_state_t from, to;
    const char *from_name, *to_name, *function, *when;
} job_transitions[] = {
#define JOB_TRANSITION_ROW(from, to, function, when)                                               \
    {JOB_##from, JOB_##to, #from, #to, function, when},
    JOB_TRANSITIONS(JOB_TRANSITION_ROW)
#undef JOB_TRANSITION_ROW
};
enum { JOB_TRANSITION_COUNT = sizeof job_transitions / sizeof job_transitions[0] };

typedef struct {
    job_state_t state;
    uint32_t rank, cell;
    uint64_t seq;
    cell_plan_t plan;
    reader_file_t files[CELL_SOURCES];
    uint32_t bad; /* BLOCKED: catalogue index */
    int unread;   /* it could not be read, rather than not be used */
    int reported; /* the coordinator has the report */
    char reason[WIRE_TEXT];
    board_cell_t *page; /* this job's place on the status board */
} job_t;

typedef struct {
    worker_t *worker;
    parts_t *parts; /* what validation shows */
    cell_maker_t *maker;
    reader_t *reader;
    substitutes_t ledger;
    job_t jobs[BOARD_INFLIGHT];
    uint32_t n_jobs;
    probe_t probe;
    uint8_t *told[CATALOG_SPLITS]; /* a byte a sample: the coordinator has its warning */
    job_t *current;                /* the job that is being decoded, for the maker's progress */
    board_cell_phase_t mark_phase; /* what it has been doing since mark_ns */
    uint64_t mark_ns;
} jobs_t;

/* Opens the reader and the maker for w's run. inflight: from the options. */
int jobs_open(jobs_t *j, worker_t *w);
/* Gives back every cell that is not finished, then all memory that no read still writes to. */
void jobs_close(jobs_t *j);

/* Claims the lowest EMPTY cell that may be worked on, over all rings in the order (seq, cell,
 * rank), and begins its reads. 1 claimed; 0 there is none, no job is free, or enough cells are read
 * already; negative on error. */
int jobs_claim(jobs_t *j);
/* The ready job that comes first in the order of work, or NULL. */
job_t *jobs_ready(jobs_t *j);
/* Decodes and commits a ready job. A file that cannot be used blocks it and is no error. */
int jobs_finish(jobs_t *j, job_t *job);
/* Reports what is blocked and not yet reported; what could not be read, once other files have been
 * tried (probe.h). */
int jobs_report(jobs_t *j);
/* Takes a ledger entry: plans every unfinished cell anew that it changes. */
int jobs_ledger(jobs_t *j, const wire_ledger_t *entry);
/* Jobs in a state; JOB_FREE counts the free ones. */
uint32_t jobs_count(const jobs_t *j, job_state_t state);

#endif
