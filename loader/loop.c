#include "loader/loop.h"

#include "control/log.h"
#include "loader/decode.h"
#include "loader/job.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"

#include <string.h>

/* While reads or the coordinator's answer are awaited, messages are looked at this often. */
enum { LOOP_LOOK_MS = 10 };

static int on_message(void *user, const bus_message_t *m)
{
    if (m->type != WIRE_LEDGER)
        return 0;
    wire_ledger_t entry;
    memcpy(&entry, m->frame, sizeof entry);
    return jobs_ledger(user, &entry);
}

static void loop_phase(worker_t *w, board_phase_t phase)
{
    if (atomic_load_explicit(&w->page->phase, memory_order_relaxed) != (uint32_t)phase)
        board_set_phase(w->page, phase);
}

/* Nothing to decode: waits for a read, an answer of the coordinator or an empty cell, whichever is
 * owed. */
static int loop_wait(worker_t *w, jobs_t *j, uint32_t bell)
{
    uint64_t before = clock_ns();
    if (reader_in_flight(j->reader) > 0) {
        int rc = reader_poll(j->reader, LOOP_LOOK_MS);
        atomic_fetch_add_explicit(&w->page->read_ns, clock_ns() - before, memory_order_relaxed);
        return rc;
    }
    if (jobs_count(j, JOB_BLOCKED) > 0)
        return worker_poll(w, LOOP_LOOK_MS, on_message, j);
    /* No cell is ours. The bell was read before the windows were searched: a cell that became empty
     * since has changed it, and the wait returns at once. */
    loop_phase(w, BOARD_WAIT_SLOT);
    KILL_POINT(LOOP_WAIT);
    futex_wait(&w->hub->work_bell, bell, FUTEX_RECHECK_MS);
    atomic_fetch_add_explicit(&w->page->wait_slot_ns, clock_ns() - before, memory_order_relaxed);
    return 0;
}

static int loop_turn(worker_t *w, jobs_t *j)
{
    int rc;
    /* Acquire: partner is the ring of the bell in ring_release; what opened the window is seen with
     * it. */
    uint32_t bell = atomic_load_explicit(&w->hub->work_bell, memory_order_acquire);
    do {
        /* What the page cache holds is read by this look, so that the next claim knows of it. */
        rc = reader_poll(j->reader, 0);
        if (rc < 0)
            return rc;
        rc = jobs_claim(j);
        if (rc == 1)
            loop_phase(w, BOARD_LOADING);
    } while (rc == 1);
    if (rc < 0)
        return rc;
    rc = jobs_report(j);
    if (rc < 0)
        return rc;
    job_t *job = jobs_ready(j);
    return job ? jobs_finish(j, job) : loop_wait(w, j, bell);
}

static int loop_main(worker_t *w)
{
    static jobs_t jobs; /* too large for the stack; one loop a process */
    int rc = jobs_open(&jobs, w);
    if (rc < 0)
        return rc;
    log_line(LOG_INFO, "reading with %s, %d cells in flight", reader_engine(jobs.reader),
             w->options.inflight);
    while (rc == 0 && !w->stop) {
        atomic_store_explicit(&w->page->beat_ns, clock_ns(), memory_order_relaxed);
        rc = worker_poll(w, 0, on_message, &jobs);
        if (rc == 0 && !w->stop)
            rc = loop_turn(w, &jobs);
    }
    jobs_close(&jobs);
    return rc;
}

int loader_run(int argc, char **argv)
{
    static worker_t w; /* the welcome alone is kilobytes */
    decode_pin_heap();
    int rc = worker_start(argc, argv, BOARD_LOADER, &w);
    if (rc < 0)
        return err_exit_status(rc);
    rc = loop_main(&w);
    if (rc < 0)
        log_line(rc == ERR_GONE ? LOG_WARN : LOG_ERROR, "%s", err_text());
    worker_finish(&w, rc, rc < 0 ? err_text() : NULL);
    return err_exit_status(rc);
}
