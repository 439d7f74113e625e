/* A loader's cells in flight: claimed cells and the state of each (design 3).
 *
 *   FREE    --jobs_claim-->                      READING
 *   READING --jobs_finish, all files read-->     FREE     committed
 *   READING --jobs_finish, a file is unusable--> BLOCKED  the bad sample is reported
 *   BLOCKED --jobs_ledger, an entry for it-->    READING  planned anew
 *   READING --jobs_ledger, an entry for it-->    STALE    its reads cannot be called back
 *   STALE   --jobs_finish, all files read-->     READING  planned anew
 *
 * One thread.
 */
#ifndef SLUICE_LOADER_JOB_H
#define SLUICE_LOADER_JOB_H

#include "control/worker.h"
#include "loader/cell.h"
#include "loader/reader.h"

typedef enum { JOB_FREE = 0, JOB_READING, JOB_STALE, JOB_BLOCKED } job_state_t;

typedef struct {
    job_state_t state;
    uint32_t rank, cell;
    uint64_t seq;
    cell_plan_t plan;
    reader_file_t files[CELL_SOURCES];
    uint32_t bad; /* BLOCKED: catalogue index */
    int reported; /* the coordinator has the report */
    char reason[WIRE_TEXT];
    board_cell_t *page; /* this job's place on the status board */
} job_t;

typedef struct {
    worker_t *worker;
    cell_maker_t *maker;
    reader_t *reader;
    substitutes_t ledger;
    job_t jobs[BOARD_INFLIGHT];
    uint32_t n_jobs;
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
/* Reports what is blocked and not yet reported. */
int jobs_report(jobs_t *j);
/* Takes a ledger entry: plans every unfinished cell anew that it changes. */
int jobs_ledger(jobs_t *j, const wire_ledger_t *entry);
/* Jobs in a state; JOB_FREE counts the free ones. */
uint32_t jobs_count(const jobs_t *j, job_state_t state);

#endif
