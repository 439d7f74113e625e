#include "tools/rundir_lock.h"

#include "control/log.h"
#include "control/registry.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

static const char lock_name[] = ".sluice.lock";
enum { LOCK_TRIES = 100, LOCK_HOLDER = 400 };

/* statfs(2): file systems that are served by, or shared with, another machine. */
int rundir_shared(int fd)
{
    static const unsigned long shared[] = {
        0x6969,     /* NFS */
        0x517B,     /* SMB */
        0xFF534D42, /* CIFS */
        0xFE534D42, /* SMB2 */
        0x65735546, /* FUSE */
        0x0BD00BD0, /* Lustre */
        0x47504653, /* GPFS */
        0x00C36400, /* Ceph */
        0x5346414F, /* AFS */
        0x01021997, /* 9P */
        0x19830326, /* BeeGFS */
        0x7461636F, /* OCFS2 */
        0x01161970, /* GFS2 */
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return 1;
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (((unsigned long)fs.f_type & 0xFFFFFFFFul) == shared[i])
            return 1;
    return 0;
}

static void put_time(char *text, size_t bytes, time_t when)
{
    struct tm local;
    strftime(text, bytes, "%Y-%m-%d %H:%M:%S", localtime_r(&when, &local));
}

typedef struct {
    const char *path;
    char *text;
    int pid;
} holder_t;

static int visit_holder(void *user, const registry_entry_t *e, int live)
{
    holder_t *h = user;
    char since[32];
    if (!live || strcmp(e->run_dir, h->path) != 0)
        return 0;
    put_time(since, sizeof since, (time_t)e->since);
    h->pid = (int)e->pid;
    snprintf(h->text, LOCK_HOLDER, "pid %d, since %s", h->pid, since);
    return 1;
}

/* Another user's run, or one that could not be listed: the kernel's list of locks knows its scribe.
 */
static void holder_from_kernel(const rundir_t *dir, char *text)
{
    char line[256];
    struct stat st;
    FILE *f = fopen("/proc/locks", "re");
    if (!f)
        return;
    while (fstat(dir->fd, &st) == 0 && fgets(line, sizeof line, f)) {
        int pid;
        unsigned major_number, minor_number;
        unsigned long inode;
        if (sscanf(line, "%*[^:]: FLOCK ADVISORY WRITE %d %x:%x:%lu", &pid, &major_number,
                   &minor_number, &inode) == 4 &&
            inode == st.st_ino && major_number == major(st.st_dev) &&
            minor_number == minor(st.st_dev) && pid > 0)
            snprintf(text, LOCK_HOLDER, "its scribe is pid %d", pid);
    }
    fclose(f);
}

/* Another machine's run has said who it is in the file. */
static void holder_from_file(int fd, char *text)
{
    char line[LOCK_HOLDER];
    ssize_t n = fd >= 0 ? pread(fd, line, sizeof line - 1, 0) : 0;
    if (n <= 0)
        return;
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    snprintf(text, LOCK_HOLDER, "%s", line);
}

static int in_use(const rundir_t *dir, int fd)
{
    char who[LOCK_HOLDER] = "";
    holder_t h = {dir->path, who, 0};
    registry_list(visit_holder, &h);
    if (h.pid)
        return err_set(ERR_ENV,
                       "the run directory %s is in use by another run (%s): wait for it, end it "
                       "(sluice stop %d), or give another name=",
                       dir->path, who, h.pid);
    holder_from_file(fd, who);
    if (!who[0])
        holder_from_kernel(dir, who);
    return err_set(ERR_ENV,
                   "the run directory %s is in use by another run%s%s%s: wait for it, stop it, or "
                   "give another name=",
                   dir->path, who[0] ? " (" : "", who, who[0] ? ")" : "");
}

/* 0 locked, 1 somebody has it, -1 this file system has no such locks. */
static int try_lock(int fd)
{
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    return errno == EWOULDBLOCK ? 1 : -1;
}

static void sign(int fd)
{
    char text[LOCK_HOLDER], host[128] = "", since[32];
    gethostname(host, sizeof host - 1);
    put_time(since, sizeof since, time(NULL));
    int n = snprintf(text, sizeof text, "pid %d on %s, since %s\n", (int)getppid(), host, since);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        log_line(LOG_INFO, "%s does not say whose it is: %s", lock_name, strerror(errno));
}

/* The lock is on the file that has the name now: its last holder may have removed the one we
 * opened. */
static int lock_by_file(rundir_t *dir)
{
    for (int tries = 0; tries < LOCK_TRIES; tries++) {
        struct stat opened, named;
        int fd = openat(dir->fd, lock_name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0)
            return err_sys(ERR_ENV, "cannot write to the run directory %s", dir->path);
        int got = try_lock(fd), why = errno;
        if (got == 1) {
            int rc = in_use(dir, fd);
            close(fd);
            return rc;
        }
        if (fstat(fd, &opened) == 0 && fstatat(dir->fd, lock_name, &named, 0) == 0 &&
            opened.st_ino == named.st_ino && opened.st_dev == named.st_dev) {
            if (got < 0)
                log_line(LOG_WARN,
                         "%s is not locked against other machines: its file system cannot (%s)",
                         dir->path, strerror(why));
            else
                log_line(LOG_INFO,
                         "%s may be shared with other machines: it is locked with %s in it",
                         dir->path, lock_name);
            dir->lock = fd;
            sign(fd);
            return 0;
        }
        close(fd);
    }
    return err_set(ERR_ENV, "cannot lock the run directory %s: its lock file keeps changing",
                   dir->path);
}

int rundir_lock(rundir_t *dir)
{
    dir->lock = -1;
    if (faccessat(dir->fd, ".", W_OK, AT_EACCESS) != 0)
        return err_sys(ERR_ENV, "cannot write to the run directory %s", dir->path);
    int got = try_lock(dir->fd), why = errno;
    if (got == 1) {
        int fd = openat(dir->fd, lock_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        int rc = in_use(dir, fd);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (got == 0 && !rundir_shared(dir->fd)) {
        /* Of a run that ended while it was on another file system, or of an older version. */
        unlinkat(dir->fd, lock_name, 0);
        return 0;
    }
    if (got < 0)
        log_line(LOG_INFO, "%s: a directory cannot be locked here (%s)", dir->path, strerror(why));
    return lock_by_file(dir);
}

void rundir_unlock(rundir_t *dir)
{
    if (dir->lock < 0)
        return;
    unlinkat(dir->fd, lock_name, 0);
    close(dir->lock);
    dir->lock = -1;
}
