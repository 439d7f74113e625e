/* sluice-scribe: writes what a run leaves on disk, so that a slow disk holds up nobody else. */
#include "control/log.h"
#include "control/worker.h"
#include "shm/err.h"
#include "tools/scribe.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    worker_t worker;
    scribe_t scribe;
} program_t;

static int send_run_info(program_t *p)
{
    wire_run_info_t info;
    char *yaml;
    size_t bytes;
    int rc = scribe_open(&p->scribe, &p->worker.options, &info, &yaml, &bytes);
    if (rc < 0)
        return rc;
    p->scribe.page = p->worker.page;
    p->scribe.snapshot_fd = p->worker.welcome.snapshot_fd;
    char *frame = malloc(sizeof info + bytes);
    if (frame) {
        wire_begin(&info, WIRE_RUN_INFO, sizeof info + bytes);
        memcpy(frame, &info, sizeof info);
        if (bytes)
            memcpy(frame + sizeof info, yaml, bytes);
        rc = worker_send(&p->worker, frame, sizeof info + bytes);
    } else {
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
    if (m->type == WIRE_EVENT)
        rc = scribe_event(&p->scribe, text, bytes);
    else if (m->type == WIRE_CSV)
        rc = scribe_csv(&p->scribe, text, bytes);
    else if (m->type == WIRE_ARGS)
        rc = scribe_args(&p->scribe, text, bytes);
    else if (m->type == WIRE_LOG) {
        wire_log_t log;
        memcpy(&log, m->frame, sizeof log);
        log.process[sizeof log.process - 1] = '\0';
        rc = scribe_log(&p->scribe, log.process, text, bytes);
    } else if (m->type == WIRE_SNAPSHOT) {
        wire_snapshot_t image;
        wire_saved_t saved;
        memcpy(&image, m->frame, sizeof image);
        scribe_snapshot(&p->scribe, &image, &saved);
        return worker_send(&p->worker, &saved, sizeof saved);
    }
    /* args.yaml is what a resume needs: without it the run must not start. Lines that a full disk
     * refuses have been reported; training goes on. */
    if (rc < 0 && m->type != WIRE_ARGS) {
        log_line(LOG_INFO, "%s: %s", wire_type_name(m->type), err_text());
        rc = 0;
    }
    return rc;
}

int main(int argc, char **argv)
{
    static program_t p;
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
