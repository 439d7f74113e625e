#include "tools/wholefile.h"

#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int wholefile_is_free(const char *path)
{
    if (access(path, F_OK) == 0)
        return err_set(ERR_CONFIG, "%s is there already: give another name with out=", path);
    return 0;
}

static int write_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Gives the finished file its name, which must still be free. */
static int name_it(const char *temporary, const char *path)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    /* A file system that does not know the flag (NFS): looked at first, then named. */
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (access(path, F_OK) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(temporary, path);
}

/* The folder's entry reaches the disk too; where that cannot be asked for, the file itself has. */
static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 2,
             slash ? path : "./");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

int wholefile_write(const char *path, const struct iovec *parts, size_t n)
{
    char temporary[PATH_MAX + 32];
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path + 1) : 0;
    unsigned long long total = 0;
    snprintf(temporary, sizeof temporary, "%.*s.%.200s.%d.tmp", folder, path, path + folder,
             (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(ERR_ENV, "cannot write beside %s", path);
    int failed = 0;
    for (size_t i = 0; i < n; i++) {
        failed = failed || write_all(fd, parts[i].iov_base, parts[i].iov_len) != 0;
        total += parts[i].iov_len;
    }
    failed = failed || fsync(fd) != 0;
    if (close(fd) != 0 || failed || name_it(temporary, path) != 0) {
        int rc = err_sys(ERR_ENV, "cannot write %s (%llu bytes)", path, total);
        unlink(temporary);
        return rc;
    }
    sync_folder(path);
    return 0;
}
