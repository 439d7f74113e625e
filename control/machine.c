#include "control/machine.h"

#include "control/log.h"
#include "shm/err.h"

#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STACK_WANTED = 8 << 20,  /* what systems usually give */
    STACK_LEAST = 256 << 10, /* four times what runs were seen to need */
    STACK_THREAD = 1 << 20,  /* of threads whose makers say nothing: libzmq's */
    FILES_WANTED = 16384,    /* six a process: hundreds of loaders */
    FILES_LEAST = 64,        /* below, libzmq aborts */
    ORPHANS_MOST = 64,       /* reaped in one go: the loop has other things to do */
};

int machine_stack(void)
{
    struct rlimit stack;
    pthread_attr_t attr;
    size_t size;
    if (getrlimit(RLIMIT_STACK, &stack) != 0)
        return 0;
    if (stack.rlim_cur < STACK_WANTED) {
        stack.rlim_cur = stack.rlim_max < STACK_WANTED ? stack.rlim_max : STACK_WANTED;
        setrlimit(RLIMIT_STACK, &stack);
    }
    if (stack.rlim_cur < STACK_LEAST)
        return err_set(ERR_ENV, "a stack may have only %llu KiB here, sluice needs %d: ulimit -s",
                       (unsigned long long)stack.rlim_cur >> 10, STACK_LEAST >> 10);
    /* glibc took the size of threads from the limit as it was. */
    if (pthread_getattr_default_np(&attr) != 0)
        return 0;
    if (pthread_attr_getstacksize(&attr, &size) == 0 && size < STACK_THREAD &&
        stack.rlim_cur >= STACK_THREAD && pthread_attr_setstacksize(&attr, STACK_THREAD) == 0)
        pthread_setattr_default_np(&attr);
    pthread_attr_destroy(&attr);
    return 0;
}

uint64_t machine_descriptors(void)
{
    struct rlimit files;
    return getrlimit(RLIMIT_NOFILE, &files) == 0 ? (uint64_t)files.rlim_cur : UINT64_MAX;
}

/* A run with hundreds of loaders needs more than the usual soft limit. Where the hard limit is too
 * low, needs_check tells. */
static int raise_descriptors(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= FILES_WANTED)
        return 0;
    files.rlim_cur = files.rlim_max < FILES_WANTED ? files.rlim_max : FILES_WANTED;
    if (files.rlim_cur < FILES_LEAST)
        return err_set(ERR_ENV, "only %llu files may be open at once; a run needs %d: ulimit -n",
                       (unsigned long long)files.rlim_cur, FILES_LEAST);
    if (setrlimit(RLIMIT_NOFILE, &files) != 0)
        log_line(LOG_INFO, "the limit on open files stays as it is: %s", strerror(errno));
    return 0;
}

/* Others' rights are the user's to take away; without our own no run directory could be used. */
static void keep_own_rights(void)
{
    mode_t asked = umask(077), used = asked & 077;
    umask(used);
    if (used != asked)
        log_line(LOG_WARN,
                 "umask %04o would shut the run out of its own files: %04o is used instead",
                 (unsigned)asked, (unsigned)used);
}

int machine_prepare(void)
{
    int rc = raise_descriptors();
    if (rc == 0)
        keep_own_rights();
    return rc;
}

/* ---- tasks ---- */

/* The kernel asks for neither limit of those who may exceed it. */
static int exempt(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2] = {{0}};
    const uint32_t either = 1u << CAP_SYS_RESOURCE | 1u << CAP_SYS_ADMIN;
    if (getuid() == 0)
        return 1;
    return syscall(SYS_capget, &head, caps) == 0 && (caps[0].effective & either) != 0;
}

uint64_t machine_user_tasks(void)
{
    struct rlimit limit;
    uint64_t used = 0;
    if (exempt() || getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    DIR *proc = opendir("/proc");
    for (struct dirent *e; proc && (e = readdir(proc));) {
        char path[300];
        struct stat st;
        if (e->d_name[0] < '1' || e->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%.200s/task", e->d_name);
        /* A folder has two links and one more for each folder in it. */
        if (stat(path, &st) == 0 && st.st_uid == getuid() && st.st_nlink > 2)
            used += st.st_nlink - 2;
    }
    if (proc)
        closedir(proc);
    return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

/* ---- process 1 ---- */

void machine_reap_orphans(int (*is_ours)(void *user, int pid), void *user)
{
    siginfo_t info;
    if (getpid() != 1)
        return;
    for (int i = 0; i < ORPHANS_MOST; i++) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        /* Whoever waits for it reaps it first, and this looks again in the next round. */
        if (is_ours(user, info.si_pid) || waitpid(info.si_pid, NULL, WNOHANG) <= 0)
            return;
    }
}
