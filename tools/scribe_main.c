/* sluice-scribe: writes what a run leaves on disk, so that a slow disk holds up nobody else.
 *
 * `sluice-scribe --sweep RUN_DIR [--discard]` removes what a scribe that was killed has left there,
 * and goes. The coordinator starts it and ends it when the storage does not answer. */
#include "control/guard.h"
#include "control/log.h"
#include "control/worker.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "shm/killpoint.h"
#include "tools/listfile.h"
#include "tools/scribe.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

typedef struct {
    worker_t worker;
    scribe_t scribe;
    uint32_t last_number; /* of the last image's snapshot */
} program_t;

enum { SCRIBE_LEDGER_S = 60 };

/* More entries than the pipe has room for wait for the coordinator to take some. */
static int send_ledger(program_t *p, uint32_t count)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    uint64_t since = clock_ns();
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        while ((rc = worker_send(&p->worker, &p->scribe.ledger[i], sizeof *p->scribe.ledger)) ==
                   ERR_TIMEOUT &&
               clock_ns() - since < SCRIBE_LEDGER_S * 1000000000ull)
            nanosleep(&pause, NULL);
    }
    return rc;
}

/* The list of a run to resume, for the scan that follows. */
static int give_list(program_t *p, const wire_run_info_t *info)
{
    p->scribe.list_fd = p->worker.welcome.catalog_fd;
    if (!info->resumed || info->finished)
        return 0;
    int rc = listfile_load(&p->scribe.dir, p->scribe.list_fd);
    p->scribe.has_list = rc == 1;
    return rc < 0 ? rc : 0;
}

static int send_run_info(program_t *p)
{
    wire_run_info_t info;
    char *yaml;
    size_t bytes;
    int rc = scribe_open(&p->scribe, &p->worker.options, &info, &yaml, &bytes);
    if (rc < 0)
        return rc;
    guard_farewell(rundir_farewell, &p->scribe.dir);
    p->scribe.page = p->worker.page;
    p->scribe.snapshot_fd = p->worker.welcome.snapshot_fd;
    rc = give_list(p, &info);
    if (rc == 0 && (rc = send_ledger(p, info.ledger)) < 0)
        err_add(rc, "telling the substitutions of the run");
    char *frame = rc == 0 ? malloc(sizeof info + bytes) : NULL;
    if (frame) {
        wire_begin(&info, WIRE_RUN_INFO, sizeof info + bytes);
        memcpy(frame, &info, sizeof info);
        if (bytes)
            memcpy(frame + sizeof info, yaml, bytes);
        rc = worker_send(&p->worker, frame, sizeof info + bytes);
    } else if (rc == 0) {
        rc = err_set(ERR_ENV, "no memory for the run's arguments");
    }
    free(frame);
    free(yaml);
    return rc;
}

static int on_message(void *user, const bus_message_t *m)
{
    program_t *p = user;
    size_t bytes;
    const char *text = wire_text(m->frame, &bytes);
    int rc = 0;
    board_set_phase(p->worker.page, BOARD_WRITING);
    if (m->type == WIRE_EVENT)
        rc = scribe_event(&p->scribe, text, bytes);
    else if (m->type == WIRE_CSV)
        rc = scribe_csv(&p->scribe, text, bytes);
    else if (m->type == WIRE_ARGS) {
        rc = scribe_args(&p->scribe, text, bytes);
        if (rc == 0)
            scribe_list(&p->scribe);
    } else if (m->type == WIRE_LOG) {
        wire_log_t log;
        memcpy(&log, m->frame, sizeof log);
        log.process[sizeof log.process - 1] = '\0';
        rc = scribe_log(&p->scribe, log.process, text, bytes);
    } else if (m->type == WIRE_PART) {
        wire_part_t part;
        memcpy(&part, m->frame, sizeof part);
        rc = partfiles_take(&p->scribe.parts, &p->scribe.dir, &part, text, bytes);
    } else if (m->type == WIRE_SNAPSHOT) {
        wire_snapshot_t image;
        wire_saved_t saved;
        memcpy(&image, m->frame, sizeof image);
        if (p->last_number == image.number)
            KILL_POINT(CHECKPOINT_BETWEEN);
        p->last_number = image.number;
        scribe_snapshot(&p->scribe, &image, &saved);
        rc = worker_send(&p->worker, &saved, sizeof saved);
        board_set_phase(p->worker.page, BOARD_IDLE);
        return rc;
    }
    board_set_phase(p->worker.page, BOARD_IDLE);
    /* args.yaml is what a resume needs: without it the run must not start. Results are what a validation
     * or prediction is for. Lines that a full disk
     * refuses have been reported; training goes on. */
    if (rc < 0 && m->type != WIRE_ARGS && m->type != WIRE_PART) {
        log_line(LOG_INFO, "%s: %s", wire_type_name(m->type), err_text());
        rc = 0;
    }
    return rc;
}

/* Without a bus and a board: argv[2] is the run directory. */
static int sweep(int argc, char **argv)
{
    int discard = argc > 3 && strcmp(argv[3], "--discard") == 0;
    log_identity("sweep", -1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rc = argc > 2 ? rundir_sweep(argv[2], discard)
                      : err_set(ERR_CONFIG, "--sweep needs a run directory");
    if (rc < 0)
        log_line(LOG_WARN, "%s", err_text());
    return err_exit_status(rc);
}

int main(int argc, char **argv)
{
    static program_t p;
    if (argc > 1 && strcmp(argv[1], "--sweep") == 0)
        return sweep(argc, argv);
    int rc = worker_start(argc, argv, BOARD_SCRIBE, &p.worker);
    if (rc < 0)
        return err_exit_status(rc);
    rc = send_run_info(&p);
    if (rc == 0)
        board_set_phase(p.worker.page, BOARD_IDLE);
    while (rc == 0 && !p.worker.stop) {
        rc = worker_poll(&p.worker, 1000, on_message, &p);
        board_progress(p.worker.page, 0, 0);
    }
    if (rc < 0)
        log_line(LOG_ERROR, "%s", err_text());
    worker_finish(&p.worker, rc, rc < 0 ? err_text() : "");
    scribe_close(&p.scribe);
    return err_exit_status(rc);
}
