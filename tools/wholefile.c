#include "tools/wholefile.h"

#include "shm/err.h"
#include "tools/writeall.h"

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

static int write_parts(int fd, const struct iovec *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (writeall(fd, parts[i].iov_base, parts[i].iov_len) != 0)
            return -1;
    return fsync(fd);
}

/* Through a file that has no name before it is whole: a command that is killed leaves nothing.
 * 0 done, -1 failed, 1 where the file system or a missing /proc does not allow it. */
static int write_nameless(const char *folder, const char *path, const struct iovec *parts, size_t n)
{
    char self[64];
    int fd = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (fd < 0)
        return 1;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    int rc = access(self, F_OK) != 0 ? 1 : write_parts(fd, parts, n);
    if (rc == 0)
        rc = linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
    int reason = errno;
    close(fd);
    errno = reason;
    return rc;
}

static int write_named(const char *temporary, const char *path, const struct iovec *parts, size_t n)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return -1;
    int rc = write_parts(fd, parts, n);
    if (close(fd) == 0 && rc == 0 && name_it(temporary, path) == 0)
        return 0;
    int reason = errno;
    unlink(temporary);
    errno = reason;
    return -1;
}

int wholefile_write(const char *path, const struct iovec *parts, size_t n)
{
    char folder[PATH_MAX], temporary[PATH_MAX + 32];
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path + 1) : 0;
    unsigned long long total = 0;
    for (size_t i = 0; i < n; i++)
        total += parts[i].iov_len;
    snprintf(folder, sizeof folder, "%.*s", length ? length : 2, length ? path : "./");
    snprintf(temporary, sizeof temporary, "%.*s.%.200s.%d.tmp", length, path, path + length,
             (int)getpid());
    int rc = write_nameless(folder, path, parts, n);
    if (rc > 0)
        rc = write_named(temporary, path, parts, n);
    if (rc < 0)
        return err_sys(ERR_ENV, "cannot write %s (%llu bytes)", path, total);
    sync_folder(path);
    return 0;
}
