/* poorly: runs a command on a machine made poor (tests/test_poor.sh).
 *
 *   poorly [--deny=NAME[:ENOSYS],..] [--rlimit=NAME=VALUE].. [--new=mount,pid,net,ipc] [--cpus=N]
 *          [--memory=BYTES] [--quota=PERCENT] [--freezer] [--shm=SIZE|none] [--hide=DIR]..
 *          [--root-ro] [--rw=DIR].. [--hidepid] [--umask=OCTAL] [--user] -- COMMAND [WORDS..]
 *
 * --deny     system calls answer EPERM, or ENOSYS, by a seccomp filter
 * --rlimit   soft and hard: nofile, nproc, as, memlock, stack, fsize
 * --new      namespaces; with pid the command is PID 1 of a /proc of its own
 * --memory, --quota   a cgroup (v1, or v2 with the controllers handed down) around the command
 * --cgroup-at=FILE    writes the folder of the memory cgroup into FILE
 * --shm      /dev/shm of that size, or none that can be written to
 * --hide     an empty folder that cannot be written to lies over DIR
 * --root-ro  everything mounted is read-only, but --rw folders
 * --hidepid  /proc hides the processes of other users
 * --user     an ordinary user (nobody) without capabilities
 *
 * What needs root is done in a user namespace where we are not root. Exit status 77 and one
 * sentence where the machine does not allow what was asked for; else the command's, as a shell
 * tells it. SIGTERM and SIGINT are passed on to the command; it dies with us.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, NOBODY = 65534, MOST = 16 };

typedef struct {
    const char *hide[MOST], *rw[MOST], *shm, *deny[MOST], *cgroup_at;
    int n_hide, n_rw, n_deny;
    int namespaces, root_ro, hidepid, user, mask, cpus;
    uint64_t memory;
    int quota;
    struct {
        int resource;
        rlim_t value;
    } limits[MOST];
    int n_limits;
} poor_t;

static char cgroups[MOST][512]; /* folders made, to be removed */
static int n_cgroups;

static void remove_cgroups(void)
{
    /* The last process may still be leaving. */
    for (int i = n_cgroups - 1; i >= 0; i--)
        for (int tries = 0; rmdir(cgroups[i]) != 0 && errno == EBUSY && tries < 100; tries++)
            usleep(10000);
    n_cgroups = 0;
}

static void skip(const char *fmt, ...)
{
    int e = errno;
    va_list ap;
    va_start(ap, fmt);
    printf("this machine does not allow ");
    vprintf(fmt, ap);
    printf(": %s\n", strerror(e));
    va_end(ap);
    fflush(stdout);
    remove_cgroups();
    _exit(SKIPPED);
}

static void usage(const char *word)
{
    fprintf(stderr, "poorly: what is '%s'?\n", word);
    exit(2);
}

/* ---- system calls ---- */

typedef struct {
    const char *name;
    int numbers[4]; /* 0 ends the list */
} group_t;

static const group_t groups[] = {
    {"io_uring", {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register}},
    {"pidfd", {SYS_pidfd_open, SYS_pidfd_send_signal, SYS_pidfd_getfd}},
    {"eventfd", {SYS_eventfd2, SYS_eventfd}},
    {"epoll", {SYS_epoll_create1, SYS_epoll_create}},
    {"memfd", {SYS_memfd_create}},
    {"signalfd", {SYS_signalfd4, SYS_signalfd}},
    {"close_range", {SYS_close_range}},
    {"fallocate", {SYS_fallocate}},
    {"getrandom", {SYS_getrandom}},
    {"affinity", {SYS_sched_getaffinity, SYS_sched_setaffinity}},
    {"socket", {SYS_socket}},
    {"clone3", {SYS_clone3}},
    {"statx", {SYS_statx}},
    {"sysinfo", {SYS_sysinfo}},
    {"unshare", {SYS_unshare}},
    {"mount", {SYS_mount}},
};

/* One filter a group: all filters are asked, the strictest answer counts. */
static void deny(const char *word)
{
    char name[32];
    int error = EPERM, found = 0;
    snprintf(name, sizeof name, "%s", word);
    char *colon = strchr(name, ':');
    if (colon) {
        *colon = '\0';
        error = strcmp(colon + 1, "ENOSYS") == 0 ? ENOSYS : EPERM;
    }
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        if (strcmp(groups[g].name, name) != 0)
            continue;
        found = 1;
        for (int i = 0; i < 4 && groups[g].numbers[i]; i++) {
            struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)groups[g].numbers[i], 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            };
            struct sock_fprog program = {sizeof code / sizeof code[0], code};
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
                skip("a seccomp filter");
        }
    }
    if (!found)
        usage(word);
}

/* ---- cgroups ---- */

static int write_file(const char *folder, const char *file, const char *text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    if (fd >= 0)
        close(fd);
    return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* Makes a group below ours in a v1 hierarchy, or below the root of v2. */
static const char *make_cgroup(const char *controller, const char *file, const char *text)
{
    char line[512], own[400] = "", path[600];
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *where = names ? strchr(names + 1, ':') : NULL;
        line[strcspn(line, "\n")] = '\0';
        if (!where)
            continue;
        *where++ = '\0';
        for (char *save, *n = strtok_r(names + 1, ",", &save); n; n = strtok_r(NULL, ",", &save))
            if (strcmp(n, controller) == 0)
                snprintf(own, sizeof own, "%s", where);
    }
    if (f)
        fclose(f);
    snprintf(path, sizeof path, "/sys/fs/cgroup/%s%s", controller, strcmp(own, "/") ? own : "");
    if (!own[0] || access(path, W_OK) != 0)
        snprintf(path, sizeof path, "/sys/fs/cgroup");
    char *made = cgroups[n_cgroups];
    snprintf(made, sizeof cgroups[0], "%.460s/sluice-poor-%d", path, (int)getpid());
    if (mkdir(made, 0755) != 0)
        skip("a cgroup for %s", controller);
    n_cgroups++;
    if (write_file(made, file, text) != 0)
        skip("%s/%s", made, file);
    return made;
}

static void make_cgroups(const poor_t *p)
{
    char text[32];
    int v1;
    if (p->memory) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)p->memory);
        v1 = access("/sys/fs/cgroup/memory", F_OK) == 0;
        const char *at = make_cgroup("memory", v1 ? "memory.limit_in_bytes" : "memory.max", text);
        FILE *f = p->cgroup_at ? fopen(p->cgroup_at, "we") : NULL;
        if (f) {
            fprintf(f, "%s\n", at);
            fclose(f);
        }
    }
    if (p->quota) {
        v1 = access("/sys/fs/cgroup/cpu", F_OK) == 0;
        snprintf(text, sizeof text, v1 ? "%d" : "%d 100000", p->quota * 1000);
        make_cgroup("cpu", v1 ? "cpu.cfs_quota_us" : "cpu.max", text);
    }
}

static void enter_cgroups(void)
{
    for (int i = 0; i < n_cgroups; i++)
        if (write_file(cgroups[i], "cgroup.procs", "0") != 0)
            skip("entering %s", cgroups[i]);
}

/* ---- mounts and namespaces ---- */

static int is_mapped; /* in a user namespace, where user 0 is an ordinary user outside */

static void map_ids(uid_t uid, gid_t gid)
{
    char text[64];
    is_mapped = 1;
    snprintf(text, sizeof text, "0 %u 1", uid);
    if (write_file("/proc/self", "setgroups", "deny") != 0 ||
        write_file("/proc/self", "uid_map", text) != 0)
        skip("a user namespace");
    snprintf(text, sizeof text, "0 %u 1", gid);
    if (write_file("/proc/self", "gid_map", text) != 0)
        skip("a user namespace");
}

static void enter_namespaces(int flags)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    if (unshare(flags) == 0)
        return;
    if (errno != EPERM || unshare(flags | CLONE_NEWUSER) != 0)
        skip("new namespaces");
    map_ids(uid, gid);
}

static void over(const char *folder, const char *options)
{
    if (mount("none", folder, "tmpfs", 0, options) != 0)
        skip("a mount on %s", folder);
}

/* Every mount but ours gets read-only, the deepest first; what a user namespace may not change is
 * only bound again. */
static void all_read_only(const poor_t *p)
{
    static char points[512][256];
    char line[1024];
    int n = 0;
    for (int i = 0; i < p->n_rw; i++)
        if (mount(p->rw[i], p->rw[i], NULL, MS_BIND, NULL) != 0)
            skip("a mount on %s", p->rw[i]);
    FILE *f = fopen("/proc/self/mountinfo", "re");
    while (f && n < 512 && fgets(line, sizeof line, f))
        if (sscanf(line, "%*d %*d %*s %*s %255s", points[n]) == 1)
            n++;
    if (f)
        fclose(f);
    while (n-- > 0) {
        int keep = strncmp(points[n], "/dev", 4) == 0 || strncmp(points[n], "/proc", 5) == 0;
        for (int i = 0; i < p->n_rw; i++)
            keep |= strcmp(points[n], p->rw[i]) == 0;
        if (!keep && mount(NULL, points[n], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0 &&
            strcmp(points[n], "/") == 0)
            skip("a read-only root");
    }
}

static void change_mounts(const poor_t *p)
{
    char options[64];
    if (p->shm) {
        int none = strcmp(p->shm, "none") == 0;
        snprintf(options, sizeof options, none ? "mode=0,size=4k,nr_inodes=1" : "size=%s,mode=1777",
                 p->shm);
        over("/dev/shm", options);
    }
    if (p->root_ro)
        all_read_only(p);
    if (p->namespaces & CLONE_NEWPID &&
        mount("proc", "/proc", "proc", 0, p->hidepid ? "hidepid=2" : NULL) != 0)
        skip("a /proc of its own");
    if (p->hidepid && !(p->namespaces & CLONE_NEWPID) &&
        mount("proc", "/proc", "proc", 0, "hidepid=2") != 0)
        skip("a /proc that hides");
    for (int i = 0; i < p->n_hide; i++)
        over(p->hide[i], "mode=0555,size=4k,nr_inodes=1");
}

/* ---- the command ---- */

static void become_nobody(void)
{
    if (geteuid() != 0 || is_mapped)
        return;
    if (setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 ||
        setresuid(NOBODY, NOBODY, NOBODY) != 0)
        skip("another user");
}

static void set_limits(const poor_t *p)
{
    for (int i = 0; i < p->n_limits; i++) {
        struct rlimit l = {p->limits[i].value, p->limits[i].value};
        if (setrlimit((__rlimit_resource_t)p->limits[i].resource, &l) != 0)
            skip("a limit");
    }
    if (p->cpus) {
        cpu_set_t all, few;
        CPU_ZERO(&few);
        if (sched_getaffinity(0, sizeof all, &all) != 0)
            skip("reading the CPU mask");
        for (int c = 0, n = 0; c < CPU_SETSIZE && n < p->cpus; c++)
            if (CPU_ISSET(c, &all)) {
                CPU_SET(c, &few);
                n++;
            }
        if (sched_setaffinity(0, sizeof few, &few) != 0)
            skip("a CPU mask");
    }
    if (p->mask >= 0)
        umask((mode_t)p->mask);
}

static void run(const poor_t *p, char **command)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    enter_cgroups();
    change_mounts(p);
    if (p->user)
        become_nobody();
    set_limits(p);
    for (int i = 0; i < p->n_deny; i++)
        deny(p->deny[i]);
    execvp(command[0], command);
    fprintf(stderr, "poorly: %s: %s\n", command[0], strerror(errno));
    _exit(127);
}

static volatile pid_t child;

static void pass_on(int signal)
{
    if (child > 0)
        kill(child, signal);
}

static rlim_t number(const char *text)
{
    char *end;
    unsigned long long v = strtoull(text, &end, 10);
    v <<= *end == 'k' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    return (rlim_t)v;
}

static void take_limit(poor_t *p, char *text)
{
    static const struct {
        const char *name;
        int resource;
    } names[] = {{"nofile", RLIMIT_NOFILE},   {"nproc", RLIMIT_NPROC}, {"as", RLIMIT_AS},
                 {"memlock", RLIMIT_MEMLOCK}, {"stack", RLIMIT_STACK}, {"fsize", RLIMIT_FSIZE}};
    char *eq = strchr(text, '=');
    for (size_t i = 0; eq && i < sizeof names / sizeof names[0]; i++)
        if (strncmp(text, names[i].name, (size_t)(eq - text)) == 0 && p->n_limits < MOST) {
            p->limits[p->n_limits].resource = names[i].resource;
            p->limits[p->n_limits++].value = number(eq + 1);
            return;
        }
    usage(text);
}

static void take_namespaces(poor_t *p, char *text)
{
    for (char *save, *n = strtok_r(text, ",", &save); n; n = strtok_r(NULL, ",", &save))
        p->namespaces |= strcmp(n, "pid") == 0   ? CLONE_NEWPID | CLONE_NEWNS
                         : strcmp(n, "net") == 0 ? CLONE_NEWNET
                         : strcmp(n, "ipc") == 0 ? CLONE_NEWIPC
                                                 : CLONE_NEWNS;
}

static void take_word(poor_t *p, char *word)
{
    char *value = strchr(word, '=');
    size_t n = value ? (size_t)(value - word) : strlen(word);
    value = value ? value + 1 : word + n;
#define IS(name) (strlen(name) == n && strncmp(word, name, n) == 0)
    if (IS("--deny"))
        for (char *save, *d = strtok_r(value, ",", &save); d && p->n_deny < MOST;
             d = strtok_r(NULL, ",", &save))
            p->deny[p->n_deny++] = d;
    else if (IS("--rlimit"))
        take_limit(p, value);
    else if (IS("--new"))
        take_namespaces(p, value);
    else if (IS("--cpus"))
        p->cpus = atoi(value);
    else if (IS("--memory"))
        p->memory = number(value);
    else if (IS("--quota"))
        p->quota = atoi(value);
    else if (IS("--cgroup-at"))
        p->cgroup_at = value;
    else if (IS("--shm"))
        p->shm = value;
    else if (IS("--hide") && p->n_hide < MOST)
        p->hide[p->n_hide++] = value;
    else if (IS("--rw") && p->n_rw < MOST)
        p->rw[p->n_rw++] = value;
    else if (IS("--root-ro"))
        p->root_ro = 1;
    else if (IS("--hidepid"))
        p->hidepid = 1;
    else if (IS("--umask"))
        p->mask = (int)strtol(value, NULL, 8);
    else if (IS("--user"))
        p->user = 1;
    else
        usage(word);
#undef IS
}

int main(int argc, char **argv)
{
    static poor_t p = {.mask = -1};
    int i = 1, status;
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        take_word(&p, argv[i]);
    if (i + 1 >= argc)
        usage("a command behind --");
    if (p.shm || p.root_ro || p.n_hide || p.hidepid)
        p.namespaces |= CLONE_NEWNS;
    make_cgroups(&p);
    if (p.namespaces)
        enter_namespaces(p.namespaces);
    /* Nothing that is mounted here is seen outside. */
    if (p.namespaces & CLONE_NEWNS && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        skip("mounts of its own");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, pass_on);
    signal(SIGINT, pass_on);
    child = fork();
    if (child < 0)
        skip("another process");
    if (child == 0) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        run(&p, argv + i + 1);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    remove_cgroups();
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
