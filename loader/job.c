#include "loader/job.h"

#include "control/log.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cells read and waiting to be decoded beyond which none is claimed: with fast storage the cells in
 * the windows are better left to loaders that could begin at once. */
enum { JOBS_AHEAD = 2, JOBS_DRAIN_MS = 100 };
/* Nor is one claimed while the files of those under way have more bytes than this: their buffers are
 * this process's memory. */
enum { JOBS_BYTES = READER_KEEP };

#define BOARD_PUT(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)
#define BOARD_ADD(field, value) atomic_fetch_add_explicit(&(field), (value), memory_order_relaxed)

/* The one place where a job's state changes: along a row of the table, or it is a bug. */
static void job_enter(job_t *job, job_state_t to)
{
    int allowed = 0;
    for (int i = 0; i < JOB_TRANSITION_COUNT; i++)
        allowed |= job_transitions[i].from == job->state && job_transitions[i].to == to;
    assert(allowed);
    (void)allowed;
    job->state = to;
}

/* ---- the status board ---- */

static void job_phase(job_t *job, board_cell_phase_t phase, uint32_t sample)
{
    board_cell_t *b = job->page;
    BOARD_PUT(b->since_ns, clock_ns());
    BOARD_PUT(b->seq, job->seq);
    BOARD_PUT(b->rank, job->rank);
    BOARD_PUT(b->cell, job->cell);
    BOARD_PUT(b->sample, sample);
    BOARD_PUT(b->split, (uint32_t)job->plan.split);
    BOARD_PUT(b->phase, (uint32_t)phase);
}

/* The first file that is not read yet stands for the job. */
static void job_show_reading(job_t *job)
{
    for (uint32_t i = 0; i < job->plan.n_sources; i++) {
        reader_state_t state = reader_state(&job->files[i]);
        if (state == READER_DONE)
            continue;
        uint32_t phase = state == READER_READING ? CELL_READ : CELL_OPEN;
        if (atomic_load_explicit(&job->page->phase, memory_order_relaxed) != phase ||
            atomic_load_explicit(&job->page->sample, memory_order_relaxed) != job->plan.sources[i])
            job_phase(job, (board_cell_phase_t)phase, job->plan.sources[i]);
        return;
    }
}

/* Adds the time since the last mark to the sum of the phase that was running. */
static void jobs_account(jobs_t *j, board_cell_phase_t next)
{
    uint64_t now = clock_ns();
    board_page_t *page = j->worker->page;
    if (j->mark_phase == CELL_DECODE)
        BOARD_ADD(page->decode_ns, now - j->mark_ns);
    else if (j->mark_phase == CELL_AUGMENT)
        BOARD_ADD(page->augment_ns, now - j->mark_ns);
    j->mark_phase = next;
    j->mark_ns = now;
}

/* cell_progress_fn. Between files is also where completed reads are moved on, so that a decode does
 * not hold up the reads behind it. */
static void job_progress(void *user, board_cell_phase_t phase, uint32_t source)
{
    jobs_t *j = user;
    if (phase == CELL_AUGMENT)
        KILL_POINT(JOB_AUGMENT);
    jobs_account(j, phase);
    job_phase(j->current, phase, source);
    BOARD_PUT(j->worker->page->beat_ns, clock_ns());
    if (reader_poll(j->reader, 0) < 0)
        log_line(LOG_WARN, "%s", err_text()); /* the loop's own poll meets it again and ends */
}

/* cell_warned_fn. Told before the cell is committed; what a full pipe does not take is told when the
 * file is decoded again. */
static void job_warned(void *user, catalog_split_t split, uint32_t sample, uint32_t warnings,
                       const char *text)
{
    jobs_t *j = user;
    wire_warned_t m;
    /* The scan's are known: they are in the list. */
    if (j->told[split][sample] || catalog_sample(j->worker->catalog, split, sample)->warned)
        return;
    memset(&m, 0, sizeof m);
    wire_begin(&m, WIRE_WARNED, sizeof m);
    m.split = (uint32_t)split;
    m.sample = sample;
    m.warnings = warnings;
    snprintf(m.text, sizeof m.text, "%s", text);
    j->told[split][sample] = worker_send(j->worker, &m, sizeof m) == 0;
}

/* ---- open and close ---- */

int jobs_open(jobs_t *j, worker_t *w)
{
    int rc;
    memset(j, 0, sizeof *j);
    j->worker = w;
    substitutes_init(&j->ledger);
    uint32_t inflight = w->options.inflight < 1 ? 1 : (uint32_t)w->options.inflight;
    /* One more: the cell that is decoded while `inflight` others are read. */
    j->n_jobs = inflight + 1 < BOARD_INFLIGHT ? inflight + 1 : BOARD_INFLIGHT;
    for (uint32_t i = 0; i < j->n_jobs; i++)
        j->jobs[i].page = &w->page->inflight[i];
    rc = parts_open(w->catalog, &w->options, &j->parts);
    if (rc < 0)
        return rc;
    const cell_config_t config = {
        w->catalog, &w->plan, &w->options, &j->ledger, job_progress, job_warned, j, j->parts,
    };
    for (int s = 0; s < CATALOG_SPLITS; s++) {
        j->told[s] = calloc((size_t)catalog_count(w->catalog, (catalog_split_t)s) + 1, 1);
        if (!j->told[s]) {
            rc = err_set(ERR_ENV, "no memory for a byte an image");
            goto fail;
        }
    }
    CHECK_GOTO(cell_maker_new(&config, &j->maker), rc, fail);
    CHECK_GOTO(reader_new(w->options.io, j->n_jobs * CELL_SOURCES + PROBE_FILES, &j->reader), rc,
               fail);
    return 0;
fail:
    jobs_close(j);
    return rc;
}

void jobs_close(jobs_t *j)
{
    for (uint32_t i = 0; i < j->n_jobs; i++) {
        job_t *job = &j->jobs[i];
        if (job->state == JOB_FREE)
            continue;
        ring_abandon(j->worker->rings[job->rank], job->seq, job->cell, j->worker->incarnation);
        job_phase(job, CELL_FREE, 0);
    }
    /* Reads of live storage end in a moment; those of a dead mount never. */
    uint64_t deadline = clock_ns() + JOBS_DRAIN_MS * 1000000ull;
    while (j->reader && reader_in_flight(j->reader) > 0 && clock_ns() < deadline)
        if (reader_poll(j->reader, JOBS_DRAIN_MS / 10) < 0)
            break;
    /* What is still being read belongs to the kernel until this process ends. */
    if (j->reader && reader_in_flight(j->reader) == 0) {
        for (uint32_t i = 0; i < j->n_jobs; i++)
            for (int k = 0; k < CELL_SOURCES; k++) {
                reader_file_t *file = &j->jobs[i].files[k];
                if (reader_state(file) == READER_DONE)
                    reader_forget(file);
                reader_file_fini(file);
            }
        probe_fini(&j->probe);
    }
    uint32_t left = reader_free(&j->reader);
    if (left > 0)
        log_line(LOG_WARN, "leaving with %u files still being read", left);
    for (int s = 0; s < CATALOG_SPLITS; s++) {
        free(j->told[s]);
        j->told[s] = NULL;
    }
    cell_maker_free(&j->maker);
    parts_close(&j->parts);
    substitutes_fini(&j->ledger);
    j->n_jobs = 0;
}

uint32_t jobs_count(const jobs_t *j, job_state_t state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < j->n_jobs; i++)
        n += j->jobs[i].state == state;
    return n;
}

/* ---- claiming ---- */

/* Plans the job's cell and asks for its files. */
static int job_start(jobs_t *j, job_t *job, const plan_batch_t *batch)
{
    const catalog_t *catalog = j->worker->catalog;
    cell_plan(j->maker, batch, job->rank, job->cell, &job->plan);
    job_enter(job, JOB_READING);
    job->reported = 0;
    job_phase(job, CELL_OPEN, job->plan.sample);
    for (uint32_t i = 0; i < job->plan.n_sources; i++) {
        const catalog_sample_t *s = catalog_sample(catalog, job->plan.split, job->plan.sources[i]);
        int rc = reader_submit(j->reader, &job->files[i], catalog_path(catalog, s), s->file_bytes);
        if (rc < 0)
            return rc;
    }
    KILL_POINT(JOB_READ_BEGUN);
    return 0;
}

static void job_forget_files(job_t *job)
{
    for (uint32_t i = 0; i < job->plan.n_sources; i++)
        if (reader_state(&job->files[i]) == READER_DONE)
            reader_forget(&job->files[i]);
}

static uint64_t job_bytes(const jobs_t *j, const job_t *job)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < job->plan.n_sources; i++)
        sum +=
            catalog_sample(j->worker->catalog, job->plan.split, job->plan.sources[i])->file_bytes;
    return sum;
}

static int job_files_done(const job_t *job)
{
    for (uint32_t i = 0; i < job->plan.n_sources; i++)
        if (reader_state(&job->files[i]) != READER_DONE)
            return 0;
    return 1;
}

/* The place of a cell in the order of work: seq, then cell, then rank, so that all ranks' batches
 * fill evenly. */
static int job_before(uint64_t seq_a, uint32_t cell_a, uint32_t rank_a, const job_t *b)
{
    if (seq_a != b->seq)
        return seq_a < b->seq;
    return cell_a != b->cell ? cell_a < b->cell : rank_a < b->rank;
}

/* Lowest claimable cell of all rings. 1 found. */
static int jobs_find(const jobs_t *j, job_t *at, plan_batch_t *batch)
{
    const worker_t *w = j->worker;
    int found = 0;
    for (uint32_t r = 0; r < WIRE_RANKS; r++) {
        uint64_t seq = 0;
        uint32_t cell = 0;
        if (!w->rings[r] || ring_find_empty(w->rings[r], &seq, &cell) < 0)
            continue;
        plan_batch_t b = plan_locate(&w->plan, seq);
        if (b.phase == PLAN_END || b.epoch >= w->epochs_announced)
            continue;
        if (found && !job_before(seq, cell, r, at))
            continue;
        at->seq = seq;
        at->cell = cell;
        at->rank = r;
        *batch = b;
        found = 1;
    }
    return found;
}

int jobs_claim(jobs_t *j)
{
    worker_t *w = j->worker;
    job_t *job = NULL;
    uint32_t ready = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < j->n_jobs; i++) {
        job_t *other = &j->jobs[i];
        if (other->state == JOB_FREE)
            job = other;
        else
            bytes += job_bytes(j, other);
        ready += other->state == JOB_READING && job_files_done(other);
    }
    if (!job || ready >= JOBS_AHEAD || bytes > JOBS_BYTES)
        return 0;
    plan_batch_t batch;
    /* Another loader may be faster at any cell: then look again. Each lost claim is a cell that
     * somebody else advanced, so this ends. */
    while (jobs_find(j, job, &batch)) {
        if (!ring_claim(w->rings[job->rank], job->seq, job->cell, w->incarnation))
            continue;
        BOARD_PUT(w->page->epoch, batch.epoch);
        BOARD_PUT(w->page->step, batch.step);
        int rc = job_start(j, job, &batch);
        return rc < 0 ? rc : 1;
    }
    return 0;
}

/* ---- finishing ---- */

static void job_release(job_t *job)
{
    job_forget_files(job);
    job_enter(job, JOB_FREE);
    job_phase(job, CELL_FREE, 0);
}

/* The reads of a job are over: 1 if it can be filled, 0 if it was started anew. */
static int job_settle(jobs_t *j, job_t *job, int *rc)
{
    *rc = 0;
    if (job->state != JOB_STALE)
        return 1;
    plan_batch_t batch = job->plan.batch;
    job_forget_files(job);
    *rc = job_start(j, job, &batch);
    return 0;
}

job_t *jobs_ready(jobs_t *j)
{
    job_t *first = NULL;
    for (uint32_t i = 0; i < j->n_jobs; i++) {
        job_t *job = &j->jobs[i];
        if (job->state != JOB_READING && job->state != JOB_STALE)
            continue;
        if (!job_files_done(job))
            job_show_reading(job);
        else if (!first || job_before(job->seq, job->cell, job->rank, first))
            first = job;
    }
    return first;
}

static void job_block(jobs_t *j, job_t *job, uint32_t bad)
{
    const catalog_t *catalog = j->worker->catalog;
    job->unread = 0;
    for (uint32_t i = 0; i < job->plan.n_sources; i++)
        job->unread |= job->plan.sources[i] == bad && job->files[i].error != 0;
    KILL_POINT(JOB_BAD_BEFORE);
    job_enter(job, JOB_BLOCKED);
    job->bad = bad;
    job->reported = 0;
    snprintf(job->reason, sizeof job->reason, "%s", err_text());
    job_forget_files(job);
    /* Told to a person once, by the coordinator; here for each cell that meets it. */
    log_line(LOG_INFO, "%s %s",
             catalog_path(catalog, catalog_sample(catalog, job->plan.split, bad)), job->reason);
}

/* Checks every file before any is decoded. */
static int job_files(const job_t *job, cell_file_t *files, uint32_t *bad, uint64_t *bytes)
{
    for (uint32_t i = 0; i < job->plan.n_sources; i++) {
        const reader_file_t *f = &job->files[i];
        *bad = job->plan.sources[i];
        int rc = reader_verdict(f);
        if (rc < 0)
            return rc;
        files[i] = (cell_file_t){f->data, (size_t)f->bytes};
        *bytes += f->bytes;
    }
    return 0;
}

/* Where the job's cell lies in its slot. */
static cell_target_t job_target(const jobs_t *j, const job_t *job)
{
    ring_t *ring = j->worker->rings[job->rank];
    const ring_config_t *config = ring_get_config(ring);
    return (cell_target_t){
        ring_image(ring, job->seq, job->cell, 3 * (size_t)job->plan.width * job->plan.height),
        ring_labels(ring, job->seq, job->cell),
        config->label_cap,
        ring_meta(ring, job->seq, job->cell),
        (int)config->digest,
    };
}

static int job_fill(jobs_t *j, job_t *job, uint32_t *bad)
{
    worker_t *w = j->worker;
    ring_t *ring = w->rings[job->rank];
    const ring_config_t *config = ring_get_config(ring);
    size_t stride = 3 * (size_t)job->plan.width * job->plan.height;
    cell_file_t files[CELL_SOURCES];
    uint64_t bytes = 0;
    int rc = job_files(job, files, bad, &bytes);
    if (rc < 0)
        return rc;
    if (stride * (job->cell + 1) > config->image_bytes) {
        *bad = UINT32_MAX;
        return err_set(ERR_FAILED, "cell %u of %u x %u pixels does not fit a slot of %llu bytes",
                       job->cell, job->plan.width, job->plan.height,
                       (unsigned long long)config->image_bytes);
    }
    const cell_target_t target = job_target(j, job);
    BOARD_ADD(w->page->bytes_read, bytes);
    KILL_POINT(JOB_DECODE_BEFORE);
    return cell_fill(j->maker, &job->plan, files, &target, bad);
}

static void job_commit(jobs_t *j, job_t *job)
{
    worker_t *w = j->worker;
    if (ring_commit(w->rings[job->rank], job->seq, job->cell, w->incarnation) == 0)
        BOARD_ADD(w->page->cells_done, 1);
    else
        log_line(LOG_WARN, "batch %llu cell %u of rank %u was taken back while it was being filled",
                 (unsigned long long)job->seq, job->cell, job->rank);
    job_release(job);
}

int jobs_finish(jobs_t *j, job_t *job)
{
    worker_t *w = j->worker;
    uint32_t bad = UINT32_MAX;
    int rc;
    if (!job_settle(j, job, &rc))
        return rc;
    KILL_POINT(JOB_READ_DONE);
    j->current = job;
    rc = job_fill(j, job, &bad);
    jobs_account(j, CELL_FREE);
    j->current = NULL;
    if (rc == ERR_DATA && bad != UINT32_MAX) {
        job_block(j, job, bad);
        return jobs_report(j);
    }
    if (rc < 0)
        return err_add(rc, "batch %llu cell %u of rank %u", (unsigned long long)job->seq, job->cell,
                       job->rank);
    job_commit(j, job);
    BOARD_PUT(w->page->memory_bytes, cell_maker_memory(j->maker) + reader_memory(j->reader));
    return 0;
}

/* ---- bad samples ---- */

int jobs_report(jobs_t *j)
{
    worker_t *w = j->worker;
    for (uint32_t i = 0; i < j->n_jobs; i++) {
        job_t *job = &j->jobs[i];
        if (job->state != JOB_BLOCKED || job->reported)
            continue;
        int rc = job->unread ? probe_ask(&j->probe, j->reader, w->catalog, job->plan.split) : 1;
        if (rc < 0)
            return rc;
        if (rc == 0)
            continue;
        wire_bad_sample_t m;
        memset(&m, 0, sizeof m);
        wire_begin(&m, WIRE_BAD_SAMPLE, sizeof m);
        m.split = (uint32_t)job->plan.split;
        m.sample = job->bad;
        m.phase = (uint32_t)job->plan.batch.phase;
        m.epoch = job->plan.batch.epoch;
        m.position = job->plan.position;
        m.loader = w->index;
        m.probed = job->unread ? j->probe.probed : 0;
        m.unread = job->unread ? j->probe.unread : 0;
        memcpy(m.reason, job->reason, sizeof m.reason);
        rc = worker_send(w, &m, sizeof m);
        if (rc == ERR_TIMEOUT)
            return 0; /* the pipe is full: the next turn of the loop tries again */
        if (rc < 0)
            return rc;
        job->reported = 1;
        KILL_POINT(JOB_BAD_AFTER);
        /* Nothing stands in for an image that somebody wants a prediction of. */
        if (w->options.mode == OPT_MODE_PREDICT) {
            const cell_target_t target = job_target(j, job);
            cell_blank(j->maker, &job->plan, &target);
            job_commit(j, job);
        }
    }
    return 0;
}

static int job_changed(const job_t *job, const cell_plan_t *now)
{
    return now->sample != job->plan.sample ||
           memcmp(&now->geometry, &job->plan.geometry, sizeof now->geometry) != 0 ||
           memcmp(&now->letterbox, &job->plan.letterbox, sizeof now->letterbox) != 0;
}

int jobs_ledger(jobs_t *j, const wire_ledger_t *entry)
{
    const catalog_t *catalog = j->worker->catalog;
    if (entry->split >= CATALOG_SPLITS ||
        entry->sample >= catalog_count(catalog, (catalog_split_t)entry->split) ||
        entry->substitute >= catalog_count(catalog, (catalog_split_t)entry->split))
        return err_set(ERR_FAILED, "ledger entry %u names a sample that the list does not have",
                       entry->number);
    KILL_POINT(JOB_LEDGER);
    int rc = substitutes_add(&j->ledger, entry);
    for (uint32_t i = 0; i < j->n_jobs && rc == 0; i++) {
        job_t *job = &j->jobs[i];
        if (job->state != JOB_READING && job->state != JOB_BLOCKED)
            continue;
        cell_plan_t now;
        plan_batch_t batch = job->plan.batch;
        cell_plan(j->maker, &batch, job->rank, job->cell, &now);
        if (!job_changed(job, &now))
            continue;
        if (job->state == JOB_BLOCKED)
            rc = job_start(j, job, &batch);
        else
            job_enter(job, JOB_STALE);
    }
    return rc;
}
