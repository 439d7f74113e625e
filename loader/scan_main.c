#include "loader/scan.h"

#include "control/log.h"
#include "control/worker.h"
#include "loader/decode.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static int catalog_descriptor(int argc, char **argv, int *fd)
{
    for (int i = 1; i + 1 < argc; i++) {
        char *end;
        if (strcmp(argv[i], "--catalog-fd") != 0)
            continue;
        errno = 0;
        long value = strtol(argv[i + 1], &end, 10);
        if (errno || *end || end == argv[i + 1] || value < 0 || fcntl((int)value, F_GETFD) < 0)
            return err_set(ERR_CONFIG, "--catalog-fd %s is not an open descriptor", argv[i + 1]);
        *fd = (int)value;
        return 0;
    }
    return err_set(ERR_CONFIG, "--scan needs --catalog-fd: it is started by `sluice train`");
}

/* Signs of life on the board; ends the scan when the coordinator is gone or says stop. */
static int on_progress(void *user, uint64_t done, uint64_t of)
{
    worker_t *w = user;
    board_progress(w->page, done, of);
    int rc = worker_poll(w, 0, NULL, NULL);
    if (rc == 0 && w->stop)
        rc = err_set(ERR_GONE, "the scan was stopped");
    return rc;
}

static int scan_into(worker_t *w, int fd)
{
    catalog_builder_t *builder = NULL;
    int rc;
    decode_pin_heap();
    board_set_phase(w->page, BOARD_SCANNING);
    CHECK_GOTO(catalog_builder_new(&builder), rc, done);
    CHECK_GOTO(scan_build(&w->options, 0, builder, on_progress, w), rc, done);
    CHECK_GOTO(catalog_builder_write(builder, fd), rc, done);
done:
    catalog_builder_free(&builder);
    return rc;
}

int scan_main(int argc, char **argv)
{
    worker_t w;
    int fd = -1;
    int rc = worker_start(argc, argv, BOARD_SCAN, &w);
    if (rc < 0)
        return err_exit_status(rc);
    rc = catalog_descriptor(argc, argv, &fd);
    if (rc == 0)
        rc = scan_into(&w, fd);
    if (rc < 0)
        log_line(LOG_ERROR, "%s", err_text());
    worker_finish(&w, rc, rc < 0 ? err_text() : NULL);
    return err_exit_status(rc);
}
