#include "tools/rundir.h"

#include "control/log.h"
#include "shm/err.h"
#include "tools/mkpath.h"
#include "tools/rundir_lock.h"
#include "tools/writeall.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { RUNDIR_MOST = 100000 }; /* names tried before giving up */
static const char rundir_temporary[] = ".sluice-tmp";

static int make_parents(const char *path)
{
    char part[MKPATH_BYTES];
    if (mkpath(path, part) == 0)
        return 0;
    return err_sys(errno == ENAMETOOLONG ? ERR_CONFIG : ERR_ENV,
                   "cannot make the folder %s for the run; give project=FOLDER that you may write "
                   "to",
                   part);
}

static int open_dir(rundir_t *dir)
{
    dir->lock = -1;
    dir->fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0)
        return err_sys(ERR_ENV, "cannot open the run directory %s", dir->path);
    int rc = rundir_lock(dir);
    if (rc < 0) {
        close(dir->fd);
        dir->fd = -1;
        return rc;
    }
    rundir_clean(dir);
    return 0;
}

int rundir_make(const options_t *o, rundir_t *dir)
{
    const char *name = o->name[0] ? o->name : "train";
    memset(dir, 0, sizeof *dir);
    dir->fd = dir->lock = -1;
    if (strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return err_set(ERR_CONFIG, "name=%s is not a name: folders go into project=", name);
    int rc = make_parents(o->project);
    if (rc < 0)
        return rc;
    for (int i = 1; i <= RUNDIR_MOST; i++) {
        int n = i == 1 ? snprintf(dir->path, sizeof dir->path, "%s/%s", o->project, name)
                       : snprintf(dir->path, sizeof dir->path, "%s/%s-%d", o->project, name, i);
        if (n < 0 || (size_t)n >= sizeof dir->path)
            return err_set(ERR_CONFIG, "the run directory's path is too long: shorten project=");
        dir->created = mkdir(dir->path, 0777) == 0;
        if (dir->created || (errno == EEXIST && o->exist_ok))
            return open_dir(dir);
        if (errno != EEXIST)
            return err_sys(ERR_ENV, "cannot make the run directory %s", dir->path);
    }
    return err_set(ERR_ENV,
                   "%s/%s and %d numbered ones exist already: give another name=", o->project, name,
                   RUNDIR_MOST);
}

int rundir_resume(const char *path, rundir_t *dir)
{
    char args[OPTIONS_PATH_BYTES];
    struct stat st;
    memset(dir, 0, sizeof *dir);
    dir->fd = dir->lock = -1;
    if (!realpath(path, dir->path) || stat(dir->path, &st) != 0)
        return err_sys(ERR_CONFIG, "resume=%s: give a run's folder, as in runs/detect/train", path);
    /* RUN/weights/last.state.safetensors stands for RUN. */
    if (S_ISREG(st.st_mode)) {
        *strrchr(dir->path, '/') = '\0';
        char *folder = strrchr(dir->path, '/');
        if (!folder || strcmp(folder, "/weights") != 0)
            return err_set(ERR_CONFIG,
                           "resume=%s: a run's folder, or the last.state.safetensors in its "
                           "weights folder, is needed",
                           path);
        *folder = '\0';
    }
    /* Looked for before anything is written into a folder that may be anybody's. */
    int n = snprintf(args, sizeof args, "%s/args.yaml", dir->path);
    if (n < 0 || (size_t)n >= sizeof args || access(args, F_OK) != 0)
        return err_set(ERR_CONFIG,
                       "resume=%s: there is no args.yaml in %s: it is not a run's folder", path,
                       dir->path);
    int rc = open_dir(dir);
    return rc < 0 ? err_add(rc, "resume=%s", path) : 0;
}

void rundir_close(rundir_t *dir)
{
    rundir_unlock(dir);
    if (dir->fd >= 0)
        close(dir->fd);
    dir->fd = -1;
}

void rundir_discard(rundir_t *dir)
{
    int logs = dir->created ? openat(dir->fd, "logs", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = logs >= 0 ? fdopendir(logs) : NULL;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        unlinkat(logs, e->d_name, 0); /* "." and ".." are refused */
    if (d)
        closedir(d);
    if (dir->created) {
        unlinkat(dir->fd, "logs", AT_REMOVEDIR);
        unlinkat(dir->fd, "events.jsonl", 0);
    }
    rundir_close(dir);
    /* Anything else in it was not ours: then it stays. */
    if (dir->created)
        rmdir(dir->path);
}

static void clean_folder(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name), k = sizeof rundir_temporary - 1;
        if (e->d_name[0] != '.' || n <= k || strcmp(e->d_name + n - k, rundir_temporary) != 0)
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) == 0)
            log_line(LOG_INFO, "removed %s/%s, left by a write that was cut short", name,
                     e->d_name);
    }
    closedir(d);
}

void rundir_clean(const rundir_t *dir)
{
    clean_folder(dir->fd, ".");
    clean_folder(dir->fd, "weights");
    clean_folder(dir->fd, "labels");
}

/* Why a file cannot be written, from errno: what is free, and what to do. */
static int unusable(const rundir_t *dir, const char *relative, uint64_t bytes)
{
    int why = errno;
    struct stat st;
    struct statvfs fs;
    double mb = (double)bytes / 1e6;
    if (fstat(dir->fd, &st) == 0 && st.st_nlink == 0)
        return err_set(
            ERR_ENV,
            "cannot write %s/%s: the run directory was removed while the run was on, and "
            "nothing can be kept there: stop the run",
            dir->path, relative);
    if (why == ENOSPC && fstatvfs(dir->fd, &fs) == 0 && fs.f_files && fs.f_favail == 0)
        return err_set(ERR_ENV,
                       "cannot write %s: the file system of %s takes no more files (inodes), "
                       "whatever their size: remove some; what had that name before is whole",
                       relative, dir->path);
    if (why == ENOSPC || why == EDQUOT)
        return err_set(ERR_ENV,
                       "cannot write %s (%.1f MB): %s, %.1f MB are free in %s: free some; what had "
                       "that name before is whole",
                       relative, mb, strerror(why), (double)rundir_free_bytes(dir) / 1e6,
                       dir->path);
    errno = why;
    return err_sys(ERR_ENV, "cannot write %s/%s (%.1f MB)", dir->path, relative, mb);
}

/* Opens the folder of a relative path, making it; *base is the file's name in it. */
static int open_folder(const rundir_t *dir, const char *relative, const char **base)
{
    char part[512];
    size_t n = strlen(relative);
    if (n == 0 || n >= sizeof part - 64 || relative[0] == '/' || relative[n - 1] == '/' ||
        strstr(relative, ".."))
        return err_set(ERR_FAILED, "'%.100s' is not a path inside the run directory", relative);
    const char *slash = strrchr(relative, '/');
    *base = slash ? slash + 1 : relative;
    memcpy(part, relative, n + 1);
    part[slash ? (size_t)(slash - relative) : 0] = '\0';
    for (char *p = part; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        mkdirat(dir->fd, part, 0777);
        *p = '/';
    }
    if (part[0] && mkdirat(dir->fd, part, 0777) != 0 && errno != EEXIST)
        return unusable(dir, relative, 0);
    int fd = openat(dir->fd, part[0] ? part : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : err_sys(ERR_ENV, "cannot open %s/%s", dir->path, part);
}

static void temporary_name(const char *base, char *name, size_t bytes)
{
    snprintf(name, bytes, ".%.400s%s", base, rundir_temporary);
}

/* The temporary name that lies in a folder now, for the farewell, which another thread says. */
static struct {
    pthread_mutex_t mutex; /* over all; held while a name is made, which storage may draw out */
    int leaving;
    int folder;
    char name[512];
} making = {.mutex = PTHREAD_MUTEX_INITIALIZER, .folder = -1};

/* Makes a name by make(); refused when the process is about to end. */
static int make_named(int folder, const char *name, int (*make)(int folder, const char *, int fd),
                      int fd)
{
    int got = -1;
    pthread_mutex_lock(&making.mutex);
    if (making.leaving) {
        errno = EINTR;
    } else {
        got = make(folder, name, fd);
        if (got >= 0) {
            making.folder = folder;
            snprintf(making.name, sizeof making.name, "%s", name);
        }
    }
    pthread_mutex_unlock(&making.mutex);
    return got;
}

/* The name is gone, or has become the file's own. */
static void made(void)
{
    pthread_mutex_lock(&making.mutex);
    making.folder = -1;
    pthread_mutex_unlock(&making.mutex);
}

static int make_by_open(int folder, const char *name, int unused)
{
    (void)unused;
    return openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
}

/* Through /proc, as linking an open file by its descriptor alone takes a privilege. */
static int make_by_link(int folder, const char *name, int fd)
{
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    unlinkat(folder, name, 0);
    return linkat(AT_FDCWD, self, folder, name, AT_SYMLINK_FOLLOW);
}

/* The bytes, on the disk, in a file that is open. Room first: a disk that is too full says so before
 * hundreds of megabytes have been written. */
static int fill(int fd, const void *data, uint64_t bytes)
{
    if (bytes && fallocate(fd, 0, 0, (off_t)bytes) != 0 && (errno == ENOSPC || errno == EDQUOT))
        return -1;
    return writeall(fd, data, bytes) == 0 && fsync(fd) == 0 ? 0 : -1;
}

int rundir_write(rundir_t *dir, const char *relative, const void *data, uint64_t bytes,
                 int (*check)(void *user), void *user)
{
    char temporary[512];
    const char *base;
    int rc = 0, fd = -1, named = 0, folder = open_folder(dir, relative, &base);
    if (folder < 0)
        return folder;
    temporary_name(base, temporary, sizeof temporary);
    /* A file without a name leaves nothing when we die; not every file system has them. */
    if (!dir->plain_names)
        fd = openat(folder, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (fd < 0 && !dir->plain_names &&
        (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        dir->plain_names = 1;
        log_line(LOG_INFO, "%s has no files without names: a write that is cut short leaves one",
                 dir->path);
    }
    if (dir->plain_names) {
        fd = make_named(folder, temporary, make_by_open, -1);
        named = fd >= 0;
    }
    if (fd < 0 || fill(fd, data, bytes) != 0) {
        rc = unusable(dir, relative, bytes);
        goto fail;
    }
    if (check)
        CHECK_GOTO(check(user), rc, fail);
    if (!named && make_named(folder, temporary, make_by_link, fd) != 0) {
        /* No /proc, or a file system that does not link such a file after all: with a name then. */
        log_line(LOG_INFO, "%s: a file without a name cannot be given one (%s)", dir->path,
                 strerror(errno));
        int again = !dir->plain_names && errno != EINTR;
        dir->plain_names = 1;
        close(fd);
        close(folder);
        return again ? rundir_write(dir, relative, data, bytes, check, user)
                     : err_set(ERR_GONE, "%s/%s: the process is ending", dir->path, relative);
    }
    named = 1;
    if (renameat(folder, temporary, folder, base) != 0 || fsync(folder) != 0) {
        rc = unusable(dir, relative, bytes);
        goto fail;
    }
    made();
    close(fd);
    close(folder);
    return 0;
fail:
    if (named)
        unlinkat(folder, temporary, 0);
    made();
    if (fd >= 0)
        close(fd);
    close(folder);
    return rc;
}

void rundir_farewell(void *user)
{
    rundir_t *dir = user;
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += 1;
    /* Held for longer: the other thread waits for storage, and so would we. */
    if (pthread_mutex_timedlock(&making.mutex, &soon) != 0)
        return;
    making.leaving = 1;
    if (making.folder >= 0)
        unlinkat(making.folder, making.name, 0);
    pthread_mutex_unlock(&making.mutex);
    rundir_unlock(dir);
}

int rundir_sweep(const char *path, int discard)
{
    rundir_t dir;
    memset(&dir, 0, sizeof dir);
    dir.lock = -1;
    int n = snprintf(dir.path, sizeof dir.path, "%s", path);
    dir.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (n < 0 || (size_t)n >= sizeof dir.path || dir.fd < 0)
        return err_sys(ERR_ENV, "cannot open the run directory %s", path);
    int rc = rundir_lock(&dir);
    if (rc < 0) {
        close(dir.fd);
        return rc;
    }
    rundir_clean(&dir);
    dir.created = discard && faccessat(dir.fd, "args.yaml", F_OK, 0) != 0;
    if (dir.created)
        rundir_discard(&dir);
    else
        rundir_close(&dir);
    return 0;
}

int rundir_copy(rundir_t *dir, const char *relative, const char *other, const void *data,
                uint64_t bytes)
{
    char temporary[512];
    const char *base;
    int folder = open_folder(dir, other, &base);
    if (folder < 0)
        return folder;
    temporary_name(base, temporary, sizeof temporary);
    /* Both names are only ever replaced by rename, so a shared inode never changes under a reader.
     */
    int file = openat(dir->fd, relative, O_PATH | O_CLOEXEC | O_NOFOLLOW);
    int linked = file >= 0 && make_named(folder, temporary, make_by_link, file) == 0 &&
                 renameat(folder, temporary, folder, base) == 0;
    /* rename of two links to one inode does nothing and leaves the temporary name. */
    unlinkat(folder, temporary, 0);
    made();
    if (file >= 0)
        close(file);
    if (linked)
        fsync(folder);
    close(folder);
    return linked ? 0 : rundir_write(dir, other, data, bytes, NULL, NULL);
}

/* Bytes up to the last newline, in a file of `bytes`. What a machine's death leaves behind it may be
 * long: file systems fill with zeros what they had promised room for. */
static off_t whole_lines(int fd, off_t bytes)
{
    static char text[1 << 16];
    for (off_t end = bytes; end > 0;) {
        off_t start = end > (off_t)sizeof text ? end - (off_t)sizeof text : 0;
        ssize_t n = pread(fd, text, (size_t)(end - start), start);
        if (n != (ssize_t)(end - start))
            return bytes; /* it cannot be read: it stays */
        const char *newline = memrchr(text, '\n', (size_t)n);
        if (newline)
            return start + (newline - text) + 1;
        end = start;
    }
    return 0;
}

int rundir_append(const rundir_t *dir, const char *relative, int *out)
{
    const char *base;
    int folder = open_folder(dir, relative, &base);
    if (folder < 0)
        return folder;
    int fd = openat(folder, base, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    close(folder);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (end < 0) {
        int rc = err_sys(ERR_ENV, "cannot open %s/%s", dir->path, relative);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    /* Whole lines only: what a death cut short goes. */
    off_t keep = whole_lines(fd, end);
    if (keep < end && ftruncate(fd, keep) == 0)
        log_line(LOG_INFO, "cut off an incomplete last line of %s", relative);
    *out = fd;
    return 0;
}

int rundir_read(const rundir_t *dir, const char *relative, uint64_t most, char **text,
                size_t *bytes)
{
    struct stat st;
    int rc = ERR_ENV, fd = openat(dir->fd, relative, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *text = NULL;
    if (fd < 0 || fstat(fd, &st) != 0)
        goto fail;
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > most) {
        rc = err_set(ERR_CONFIG, "%s/%s is not a file of at most %llu bytes", dir->path, relative,
                     (unsigned long long)most);
        close(fd);
        return rc;
    }
    *text = malloc((size_t)st.st_size + 1);
    if (!*text)
        goto fail;
    for (*bytes = 0; *bytes < (size_t)st.st_size;) {
        ssize_t n = read(fd, *text + *bytes, (size_t)st.st_size - *bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            goto fail;
        if (n == 0)
            break;
        *bytes += (size_t)n;
    }
    (*text)[*bytes] = '\0';
    close(fd);
    return 0;
fail:
    rc = err_sys(rc, "cannot read %s/%s", dir->path, relative);
    if (fd >= 0)
        close(fd);
    free(*text);
    *text = NULL;
    return rc;
}

uint64_t rundir_free_bytes(const rundir_t *dir)
{
    struct statvfs v;
    return fstatvfs(dir->fd, &v) == 0 ? (uint64_t)v.f_bavail * v.f_frsize : 0;
}
