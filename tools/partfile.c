#include "tools/partfile.h"

#include "shm/err.h"
#include "tools/writeall.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void partfiles_init(partfiles_t *p)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < PARTFILE_OPEN; i++)
        p->files[i].fd = p->files[i].folder = -1;
}

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* rundir_clean knows such names. */
static void temporary_of(const partfile_t *f, char *name, size_t bytes)
{
    snprintf(name, bytes, ".%.200s.sluice-tmp", base_of(f->path));
}

static void drop(partfile_t *f)
{
    char temporary[256];
    temporary_of(f, temporary, sizeof temporary);
    if (f->named && f->folder >= 0)
        unlinkat(f->folder, temporary, 0);
    if (f->fd >= 0)
        close(f->fd);
    if (f->folder >= 0)
        close(f->folder);
    *f = (partfile_t){.fd = -1, .folder = -1};
}

void partfiles_fini(partfiles_t *p)
{
    for (int i = 0; i < PARTFILE_OPEN; i++)
        drop(&p->files[i]);
}

static int failed(const rundir_t *dir, const char *path)
{
    if (errno == ENOSPC || errno == EDQUOT)
        return err_set(ERR_ENV, "cannot write %s/%s: %s, %.1f MB are free; it is not kept",
                       dir->path, path, strerror(errno), (double)rundir_free_bytes(dir) / 1e6);
    return err_sys(ERR_ENV, "cannot write %s/%s; it is not kept", dir->path, path);
}

/* The folder of a path: the run directory or one in it. */
static int open_folder(const rundir_t *dir, const char *path)
{
    char name[256];
    const char *slash = strchr(path, '/');
    if (path[0] == '\0' || path[0] == '/' || strstr(path, "..") ||
        (slash && strchr(slash + 1, '/')) || *base_of(path) == '\0')
        return err_set(ERR_FAILED, "'%.100s' is not a path inside the run directory", path);
    snprintf(name, sizeof name, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash && mkdirat(dir->fd, name, 0777) != 0 && errno != EEXIST)
        return failed(dir, path);
    int fd = openat(dir->fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : failed(dir, path);
}

static int begin(partfile_t *f, const rundir_t *dir, const char *path)
{
    char temporary[256];
    snprintf(f->path, sizeof f->path, "%s", path);
    f->folder = open_folder(dir, path);
    if (f->folder < 0)
        return f->folder;
    if (!dir->plain_names)
        f->fd = openat(f->folder, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        temporary_of(f, temporary, sizeof temporary);
        f->fd =
            openat(f->folder, temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        f->named = f->fd >= 0;
    }
    return f->fd >= 0 ? 0 : failed(dir, path);
}

/* Without /proc a file cannot be given its first name: its bytes go into one that has a name. */
static int copy_named(partfile_t *f, const char *temporary)
{
    char buffer[1 << 16];
    ssize_t n = 0;
    off_t at = 0;
    int fd =
        openat(f->folder, temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return -1;
    f->named = 1;
    while ((n = pread(f->fd, buffer, sizeof buffer, at)) > 0 &&
           writeall(fd, buffer, (size_t)n) == 0)
        at += n;
    close(f->fd);
    f->fd = fd;
    return n == 0 ? 0 : -1;
}

static int finish(partfile_t *f, const rundir_t *dir)
{
    char temporary[256], self[64];
    int waits = strncmp(f->path, "labels/", 7) != 0;
    temporary_of(f, temporary, sizeof temporary);
    snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
    if (!f->named) {
        unlinkat(f->folder, temporary, 0);
        f->named = linkat(AT_FDCWD, self, f->folder, temporary, AT_SYMLINK_FOLLOW) == 0;
    }
    if (!f->named && copy_named(f, temporary) != 0)
        return failed(dir, f->path);
    if ((waits && fsync(f->fd) != 0) ||
        renameat(f->folder, temporary, f->folder, base_of(f->path)) != 0 ||
        (waits && fsync(f->folder) != 0))
        return failed(dir, f->path);
    f->named = 0;
    return 0;
}

static partfile_t *find(partfiles_t *p, const char *path)
{
    for (int i = 0; i < PARTFILE_OPEN; i++)
        if (p->files[i].fd >= 0 && strcmp(p->files[i].path, path) == 0)
            return &p->files[i];
    return NULL;
}

int partfiles_take(partfiles_t *p, const rundir_t *dir, const wire_part_t *part, const char *bytes,
                   size_t n)
{
    partfile_t *f = find(p, part->path);
    int rc = 0;
    if (!f) {
        for (int i = 0; i < PARTFILE_OPEN && !f; i++)
            f = p->files[i].fd < 0 ? &p->files[i] : NULL;
        if (!f)
            return err_set(ERR_FAILED, "%s: %d files grow already", part->path, PARTFILE_OPEN);
        rc = begin(f, dir, part->path);
    }
    if (rc == 0 && writeall(f->fd, bytes, n) != 0)
        rc = failed(dir, part->path);
    if (rc == 0 && part->last)
        rc = finish(f, dir);
    if (rc < 0 || part->last)
        drop(f);
    return rc;
}
