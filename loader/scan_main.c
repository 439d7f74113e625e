#include "loader/scan.h"

#include "control/log.h"
#include "control/worker.h"
#include "loader/decode.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* The list of the run to resume, if its directory has one: NULL otherwise. */
static int open_list(const worker_t *w, int fd, catalog_t **list)
{
    struct stat st;
    char why[256];
    *list = NULL;
    if (fstat(fd, &st) != 0 || st.st_size == 0)
        return 0;
    int rc = catalog_open(fd, list);
    if (rc == 0)
        rc = catalog_check_saved(*list);
    if (rc == 0 && catalog_digest(*list) != w->welcome.list_digest)
        rc = err_set(ERR_FAILED, "it is the list %016llx, and the run was trained on %016llx",
                     (unsigned long long)catalog_digest(*list),
                     (unsigned long long)w->welcome.list_digest);
    if (rc == 0)
        return 0;
    snprintf(why, sizeof why, "%s", err_text());
    return err_set(
        ERR_CONFIG,
        "%.120s/samples.catalog is damaged (%s): remove it and resume again; every image and "
        "label must then be as it was when the run began",
        w->welcome.run_dir, why);
}

static int scan_into(worker_t *w, int fd)
{
    catalog_builder_t *builder = NULL;
    catalog_t *list = NULL;
    int rc;
    decode_pin_heap();
    board_set_phase(w->page, BOARD_SCANNING);
    CHECK_GOTO(catalog_builder_new(&builder), rc, done);
    CHECK_GOTO(open_list(w, fd, &list), rc, done);
    /* It stays mapped after a failure: a thread that hangs has paths of it. */
    CHECK_GOTO(scan_again(&w->options, 0, list, builder, on_progress, w), rc, done);
    catalog_close(&list);
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
