#include "tools/listfile.h"

#include "shm/arena.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LISTFILE_CHUNK = 1 << 20 };

const char listfile_name[] = "samples.catalog";

int listfile_save(rundir_t *dir, int memfd)
{
    void *base;
    uint64_t bytes;
    int rc = arena_map(memfd, 0, &base, &bytes);
    if (rc < 0)
        return err_add(rc, "the sample list");
    rc = rundir_write(dir, listfile_name, base, bytes, NULL, NULL);
    arena_unmap(base, bytes);
    return rc;
}

/* A file that claims more than there is memory for is refused before any of it is read. */
static int check_size(const rundir_t *dir, const struct stat *st)
{
    arena_budget_t budget;
    if (!S_ISREG(st->st_mode) || st->st_size <= 0)
        return err_set(ERR_CONFIG, "%s/%s is %s: it is damaged; remove it and resume again",
                       dir->path, listfile_name, S_ISREG(st->st_mode) ? "empty" : "not a file");
    int rc = arena_budget("", &budget);
    if (rc == 0 && (uint64_t)st->st_size > budget.available)
        rc = err_set(
            ERR_ENV,
            "%s/%s has %.1f MB, and %.1f MB of memory are available (%s): free some, or, if "
            "it cannot be so large, remove it and resume again",
            dir->path, listfile_name, (double)st->st_size / 1e6, (double)budget.available / 1e6,
            budget.source);
    return rc;
}

static int write_at(int fd, const char *data, size_t bytes, off_t at)
{
    while (bytes > 0) {
        ssize_t n = pwrite(fd, data, bytes, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_sys(ERR_ENV, "no memory for the sample list of the run to resume");
        data += n;
        at += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Fewer bytes where somebody makes the file shorter meanwhile: who checks the list sees that. */
static int copy(int from, int to, off_t bytes)
{
    char *chunk = malloc(LISTFILE_CHUNK);
    int rc = chunk ? 0 : err_set(ERR_ENV, "no memory to read a file");
    for (off_t at = 0; rc == 0 && at < bytes;) {
        size_t most = bytes - at < LISTFILE_CHUNK ? (size_t)(bytes - at) : LISTFILE_CHUNK;
        ssize_t n = read(from, chunk, most);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = err_sys(ERR_ENV, "cannot read it");
        if (n <= 0)
            break;
        rc = write_at(to, chunk, (size_t)n, at);
        at += n;
    }
    free(chunk);
    return rc;
}

int listfile_load(const rundir_t *dir, int memfd)
{
    struct stat st;
    int fd = openat(dir->fd, listfile_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 0;
    int rc =
        fd >= 0 && fstat(fd, &st) == 0 ? check_size(dir, &st) : err_sys(ERR_ENV, "cannot open it");
    if (rc == 0)
        rc = copy(fd, memfd, st.st_size);
    if (rc < 0 && rc != ERR_CONFIG)
        err_add(rc, "%s/%s", dir->path, listfile_name);
    if (fd >= 0)
        close(fd);
    return rc < 0 ? rc : 1;
}
