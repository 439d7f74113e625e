/* A file system for tests that mirrors a folder, and hangs, fails or is slow when it is told to.
 *
 *   slowfs MOUNTPOINT FOLDER CONTROL [direct]
 *
 * Speaks the kernel's FUSE protocol (linux/fuse.h) over /dev/fuse; needs root. Prints "ready" when it
 * is mounted; runs until it is unmounted or killed, which lets go whoever waits for it. One thread:
 * a request that is to wait is put aside and answered later. CONTROL is a FIFO that it makes; a line
 * is a command, and each is confirmed by "ok COMMAND" on standard output, where also "held OP PATH" is
 * said of each request that a rule makes wait. PATHs and PATTERNs (fnmatch, * passes /) are relative
 * to the mount, the mount itself is ".".
 *
 *   hang OPS PATTERN           requests wait until release
 *   fail OPS PATTERN ERRNO     are answered with ENOSPC, EIO or EROFS
 *   delay OPS PATTERN MS       wait so long
 *   release                    no rule any more; what waited is done now
 *
 * OPS: read, write, fsync, meta (everything else), separated by commas; or all. A request that waits
 * does not mind a signal: its process cannot be ended, as with a dead mount, unless it waits for a
 * page that is read ahead. direct: files are opened for direct I/O. O_TMPFILE, symbolic links and
 * extended attributes are refused.
 */
#include "shm/futex.h"
#include "tests/slowfs_rules.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NODES = 4096, BUFFER = 1 << 20, MAX_WRITE = 128 << 10, PATHS = SLOWFS_PATHS };

/* A node's number is its place here + 1; the root is node 1, path ".". */
static struct {
    char *path; /* NULL: free, or removed while it was known */
    uint64_t lookups;
} nodes[NODES];

typedef struct held {
    struct held *next;
    uint64_t due_ns; /* 0: at release */
    size_t bytes;
    char request[];
} held_t;
static held_t *held_first;

static int root = -1, device = -1;
static uint32_t open_flags; /* FOPEN_DIRECT_IO, or nothing: an open empties the page cache */
static char buffer[BUFFER], out_bytes[BUFFER];

/* ---- nodes ---- */

static const char *path_of(uint64_t node)
{
    return node >= 1 && node <= NODES && nodes[node - 1].path ? nodes[node - 1].path : NULL;
}

static int join(uint64_t parent, const char *name, char path[PATHS])
{
    const char *folder = path_of(parent);
    if (!folder)
        return -ESTALE;
    int n = strcmp(folder, ".") == 0 ? snprintf(path, PATHS, "%s", name)
                                     : snprintf(path, PATHS, "%s/%s", folder, name);
    return n < PATHS ? 0 : -ENAMETOOLONG;
}

static uint64_t node_for(const char *path)
{
    int free_at = -1;
    for (int i = 0; i < NODES; i++) {
        if (nodes[i].path && strcmp(nodes[i].path, path) == 0)
            return (uint64_t)i + 1;
        if (!nodes[i].path && nodes[i].lookups == 0 && free_at < 0)
            free_at = i;
    }
    if (free_at < 0)
        return 0;
    nodes[free_at].path = strdup(path);
    return (uint64_t)free_at + 1;
}

static void forget(uint64_t node, uint64_t n)
{
    if (node < 2 || node > NODES)
        return;
    uint64_t *lookups = &nodes[node - 1].lookups;
    *lookups = *lookups > n ? *lookups - n : 0;
    if (*lookups == 0) {
        free(nodes[node - 1].path);
        nodes[node - 1].path = NULL;
    }
}

/* The name is nobody's any more; who has the file open works through its descriptor. */
static void unname(const char *path)
{
    for (int i = 1; i < NODES; i++)
        if (nodes[i].path && strcmp(nodes[i].path, path) == 0) {
            free(nodes[i].path);
            nodes[i].path = NULL;
        }
}

static void rename_nodes(const char *from, const char *to)
{
    size_t n = strlen(from);
    unname(to);
    for (int i = 1; i < NODES; i++) {
        char path[2 * PATHS], *old = nodes[i].path;
        if (!old || strncmp(old, from, n) != 0 || (old[n] != '\0' && old[n] != '/'))
            continue;
        snprintf(path, sizeof path, "%s%s", to, old + n);
        nodes[i].path = strdup(path);
        free(old);
    }
}

/* ---- answers ---- */

static void answer(const struct fuse_in_header *in, int error, const void *data, size_t bytes)
{
    struct fuse_out_header out = {
        .len = (uint32_t)(sizeof out + (error ? 0 : bytes)), .error = error, .unique = in->unique};
    struct iovec parts[2] = {{&out, sizeof out}, {(void *)data, error ? 0 : bytes}};
    ssize_t n = writev(device, parts, error || !bytes ? 1 : 2);
    (void)n; /* the asker may have been let go already */
}

static void fill_attr(struct fuse_attr *a, const struct stat *st)
{
    memset(a, 0, sizeof *a);
    a->ino = st->st_ino;
    a->size = (uint64_t)st->st_size;
    a->blocks = (uint64_t)st->st_blocks;
    a->atime = (uint64_t)st->st_atim.tv_sec;
    a->mtime = (uint64_t)st->st_mtim.tv_sec;
    a->ctime = (uint64_t)st->st_ctim.tv_sec;
    a->atimensec = (uint32_t)st->st_atim.tv_nsec;
    a->mtimensec = (uint32_t)st->st_mtim.tv_nsec;
    a->ctimensec = (uint32_t)st->st_ctim.tv_nsec;
    a->mode = st->st_mode;
    a->nlink = (uint32_t)st->st_nlink;
    a->uid = st->st_uid;
    a->gid = st->st_gid;
    a->blksize = (uint32_t)st->st_blksize;
}

/* Nothing is remembered by the kernel: each look gets here. */
static int fill_entry(const char *path, struct fuse_entry_out *e)
{
    struct stat st;
    if (fstatat(root, path, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    memset(e, 0, sizeof *e);
    e->nodeid = node_for(path);
    if (!e->nodeid)
        return -ENOMEM;
    nodes[e->nodeid - 1].lookups++;
    fill_attr(&e->attr, &st);
    return 0;
}

static void answer_entry(const struct fuse_in_header *in, int error, const char *path)
{
    struct fuse_entry_out e;
    if (error == 0)
        error = fill_entry(path, &e);
    answer(in, error, &e, sizeof e);
}

/* ---- requests ---- */

static void do_init(const struct fuse_in_header *in, const struct fuse_init_in *want)
{
    struct fuse_init_out out;
    memset(&out, 0, sizeof out);
    out.major = FUSE_KERNEL_VERSION;
    out.minor = FUSE_KERNEL_MINOR_VERSION;
    out.max_readahead = want->max_readahead;
    out.flags = want->flags & (FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_ATOMIC_O_TRUNC |
                               FUSE_BIG_WRITES | FUSE_PARALLEL_DIROPS);
    out.max_background = 64;
    out.congestion_threshold = 48;
    out.max_write = MAX_WRITE;
    out.time_gran = 1;
    answer(in, 0, &out, sizeof out);
}

static void do_attr(const struct fuse_in_header *in, int fh, const char *path)
{
    struct fuse_attr_out out;
    struct stat st;
    memset(&out, 0, sizeof out);
    int rc = fh >= 0 ? fstat(fh, &st) : fstatat(root, path, &st, AT_SYMLINK_NOFOLLOW);
    if (rc == 0)
        fill_attr(&out.attr, &st);
    answer(in, rc ? -errno : 0, &out, sizeof out);
}

static int set_attr(const struct fuse_setattr_in *s, const char *path)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    int fd = s->valid & FATTR_FH ? (int)s->fh : -1, rc = 0;
    if (s->valid & FATTR_SIZE) {
        int open_now = fd < 0 ? openat(root, path, O_WRONLY | O_NOFOLLOW) : fd;
        rc = open_now < 0 ? -1 : ftruncate(open_now, (off_t)s->size);
        if (fd < 0 && open_now >= 0)
            close(open_now);
    }
    if (rc == 0 && s->valid & FATTR_MODE)
        rc = fchmodat(root, path, s->mode & 07777, 0);
    if (rc == 0 && s->valid & (FATTR_UID | FATTR_GID))
        rc = fchownat(root, path, s->valid & FATTR_UID ? s->uid : (uid_t)-1,
                      s->valid & FATTR_GID ? s->gid : (gid_t)-1, AT_SYMLINK_NOFOLLOW);
    if (s->valid & FATTR_ATIME)
        times[0] = (struct timespec){(time_t)s->atime, s->atimensec};
    if (s->valid & FATTR_MTIME)
        times[1] = (struct timespec){(time_t)s->mtime, s->mtimensec};
    if (rc == 0 && s->valid & (FATTR_ATIME | FATTR_MTIME) && path)
        rc = utimensat(root, path, times, AT_SYMLINK_NOFOLLOW);
    return rc == 0 ? 0 : -errno;
}

static void do_open(const struct fuse_in_header *in, uint32_t flags, const char *path)
{
    struct fuse_open_out out = {.open_flags = open_flags};
    /* Appends come with their offset; the mirror must not move them. */
    int fd =
        openat(root, path, (int)(flags & ~(uint32_t)(O_APPEND | O_CREAT | O_EXCL)) | O_CLOEXEC);
    out.fh = (uint64_t)(unsigned)fd;
    answer(in, fd < 0 ? -errno : 0, &out, sizeof out);
}

static void do_create(const struct fuse_in_header *in, const struct fuse_create_in *c,
                      const char *path)
{
    struct {
        struct fuse_entry_out entry;
        struct fuse_open_out open;
    } out;
    memset(&out, 0, sizeof out);
    int fd = openat(root, path, (int)(c->flags & ~(uint32_t)O_APPEND) | O_CREAT | O_CLOEXEC,
                    c->mode & 07777);
    int error = fd < 0 ? -errno : fill_entry(path, &out.entry);
    out.open.fh = (uint64_t)(unsigned)fd;
    out.open.open_flags = open_flags;
    answer(in, error, &out, sizeof out);
}

static void do_opendir(const struct fuse_in_header *in, const char *path)
{
    struct fuse_open_out out = {.fh = 0};
    int fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    out.fh = (uint64_t)(uintptr_t)d;
    answer(in, d ? 0 : -errno, &out, sizeof out);
}

static void do_readdir(const struct fuse_in_header *in, const struct fuse_read_in *r)
{
    DIR *d = (DIR *)(uintptr_t)r->fh;
    size_t used = 0, room = r->size < sizeof out_bytes ? r->size : sizeof out_bytes;
    if (r->offset == 0)
        rewinddir(d);
    else
        seekdir(d, (long)r->offset);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        struct fuse_dirent *entry = (struct fuse_dirent *)(void *)(out_bytes + used);
        size_t name = strlen(e->d_name), all = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + name);
        if (used + all > room)
            break;
        memset(entry, 0, all);
        entry->ino = e->d_ino;
        entry->off = (uint64_t)telldir(d);
        entry->namelen = (uint32_t)name;
        entry->type = e->d_type;
        memcpy(entry->name, e->d_name, name);
        used += all;
    }
    answer(in, 0, out_bytes, used);
}

static void do_statfs(const struct fuse_in_header *in)
{
    struct fuse_statfs_out out;
    struct statvfs v;
    memset(&out, 0, sizeof out);
    int rc = fstatvfs(root, &v);
    if (rc == 0) {
        out.st.blocks = v.f_blocks;
        out.st.bfree = v.f_bfree;
        out.st.bavail = v.f_bavail;
        out.st.files = v.f_files;
        out.st.ffree = v.f_ffree;
        out.st.bsize = (uint32_t)v.f_bsize;
        out.st.namelen = (uint32_t)v.f_namemax;
        out.st.frsize = (uint32_t)v.f_frsize;
    }
    answer(in, rc ? -errno : 0, &out, sizeof out);
}

static void do_rename(const struct fuse_in_header *in, uint64_t to_folder, const char *names)
{
    char from[PATHS], to[PATHS];
    int rc = join(in->nodeid, names, from);
    if (rc == 0)
        rc = join(to_folder, names + strlen(names) + 1, to);
    if (rc == 0 && renameat(root, from, root, to) != 0)
        rc = -errno;
    if (rc == 0)
        rename_nodes(from, to);
    answer(in, rc, NULL, 0);
}

static void do_remove(const struct fuse_in_header *in, const char *name, int flags)
{
    char path[PATHS];
    int rc = join(in->nodeid, name, path);
    if (rc == 0 && unlinkat(root, path, flags) != 0)
        rc = -errno;
    if (rc == 0)
        unname(path);
    answer(in, rc, NULL, 0);
}

static void do_link(const struct fuse_in_header *in, const struct fuse_link_in *l, const char *name)
{
    char path[PATHS];
    const char *old = path_of(l->oldnodeid);
    int rc = join(in->nodeid, name, path);
    if (rc == 0 && (!old || linkat(root, old, root, path, 0) != 0))
        rc = old ? -errno : -ESTALE;
    answer_entry(in, rc, path);
}

static void do_mkdir(const struct fuse_in_header *in, const struct fuse_mkdir_in *m,
                     const char *name)
{
    char path[PATHS];
    int rc = join(in->nodeid, name, path);
    if (rc == 0 && mkdirat(root, path, m->mode & 07777) != 0)
        rc = -errno;
    answer_entry(in, rc, path);
}

/* Requests about a file that is open: its descriptor is enough. */
static int handle_open_file(const struct fuse_in_header *in, const void *body)
{
    if (in->opcode == FUSE_READ) {
        const struct fuse_read_in *r = body;
        size_t room = r->size < sizeof out_bytes ? r->size : sizeof out_bytes;
        ssize_t n = pread((int)r->fh, out_bytes, room, (off_t)r->offset);
        answer(in, n < 0 ? -errno : 0, out_bytes, n < 0 ? 0 : (size_t)n);
    } else if (in->opcode == FUSE_WRITE) {
        const struct fuse_write_in *w = body;
        struct fuse_write_out out = {0, 0};
        ssize_t n = pwrite((int)w->fh, w + 1, w->size, (off_t)w->offset);
        out.size = n < 0 ? 0 : (uint32_t)n;
        answer(in, n < 0 ? -errno : 0, &out, sizeof out);
    } else if (in->opcode == FUSE_FSYNC) {
        answer(in, fsync((int)((const struct fuse_fsync_in *)body)->fh) ? -errno : 0, NULL, 0);
    } else if (in->opcode == FUSE_FSYNCDIR || in->opcode == FUSE_FLUSH) {
        answer(in, 0, NULL, 0);
    } else if (in->opcode == FUSE_RELEASE) {
        close((int)((const struct fuse_release_in *)body)->fh);
        answer(in, 0, NULL, 0);
    } else if (in->opcode == FUSE_READDIR) {
        do_readdir(in, body);
    } else if (in->opcode == FUSE_RELEASEDIR) {
        closedir((DIR *)(uintptr_t)((const struct fuse_release_in *)body)->fh);
        answer(in, 0, NULL, 0);
    } else {
        return 0;
    }
    return 1;
}

static void handle(const struct fuse_in_header *in)
{
    const void *body = in + 1;
    const char *path = path_of(in->nodeid), *text = body;
    char child[PATHS];
    if (handle_open_file(in, body))
        return;
    switch (in->opcode) {
    case FUSE_INIT: do_init(in, body); return;
    case FUSE_STATFS: do_statfs(in); return;
    case FUSE_GETATTR: {
        const struct fuse_getattr_in *g = body;
        int fh = g->getattr_flags & FUSE_GETATTR_FH ? (int)g->fh : -1;
        if (fh < 0 && !path)
            break;
        do_attr(in, fh, path);
        return;
    }
    case FUSE_SETATTR: {
        const struct fuse_setattr_in *s = body;
        int rc = set_attr(s, path);
        if (rc)
            answer(in, rc, NULL, 0);
        else
            do_attr(in, s->valid & FATTR_FH ? (int)s->fh : -1, path);
        return;
    }
    case FUSE_LOOKUP: answer_entry(in, join(in->nodeid, text, child), child); return;
    case FUSE_UNLINK: do_remove(in, text, 0); return;
    case FUSE_RMDIR: do_remove(in, text, AT_REMOVEDIR); return;
    case FUSE_MKDIR: do_mkdir(in, body, text + sizeof(struct fuse_mkdir_in)); return;
    case FUSE_RENAME:
        do_rename(in, ((const struct fuse_rename_in *)body)->newdir,
                  text + sizeof(struct fuse_rename_in));
        return;
    case FUSE_RENAME2:
        do_rename(in, ((const struct fuse_rename2_in *)body)->newdir,
                  text + sizeof(struct fuse_rename2_in));
        return;
    case FUSE_LINK: do_link(in, body, text + sizeof(struct fuse_link_in)); return;
    case FUSE_CREATE: {
        int rc = join(in->nodeid, text + sizeof(struct fuse_create_in), child);
        if (rc)
            answer(in, rc, NULL, 0);
        else
            do_create(in, body, child);
        return;
    }
    case FUSE_OPEN:
    case FUSE_OPENDIR:
        if (!path)
            break;
        if (in->opcode == FUSE_OPEN)
            do_open(in, ((const struct fuse_open_in *)body)->flags, path);
        else
            do_opendir(in, path);
        return;
    default: answer(in, -ENOSYS, NULL, 0); return;
    }
    answer(in, -ESTALE, NULL, 0);
}

/* ---- rules ---- */

static int op_of(uint32_t opcode)
{
    return opcode == FUSE_READ    ? SLOWFS_READ
           : opcode == FUSE_WRITE ? SLOWFS_WRITE
           : opcode == FUSE_FSYNC ? SLOWFS_FSYNC
                                  : SLOWFS_META;
}

/* What the request is about; of a name in a folder, that name. */
static void subject(const struct fuse_in_header *in, char path[PATHS])
{
    const char *known = path_of(in->nodeid), *text = (const char *)(in + 1);
    size_t before = in->opcode == FUSE_LOOKUP || in->opcode == FUSE_UNLINK ? 0
                    : in->opcode == FUSE_CREATE  ? sizeof(struct fuse_create_in)
                    : in->opcode == FUSE_RENAME2 ? sizeof(struct fuse_rename2_in)
                    : in->opcode == FUSE_RENAME  ? sizeof(struct fuse_rename_in)
                    : in->opcode == FUSE_MKDIR   ? sizeof(struct fuse_mkdir_in)
                                                 : (size_t)-1;
    if (before != (size_t)-1 && join(in->nodeid, text + before, path) == 0)
        return;
    snprintf(path, PATHS, "%s", known ? known : "?");
}

/* 1: put aside, or answered with an error. */
static int by_rule(const struct fuse_in_header *in, size_t bytes)
{
    char path[PATHS];
    int op = op_of(in->opcode);
    /* Nobody waits for these. */
    if (in->opcode == FUSE_INIT || in->opcode == FUSE_RELEASE || in->opcode == FUSE_RELEASEDIR)
        return 0;
    subject(in, path);
    const slowfs_rule_t *r = slowfs_rule(op, path);
    if (!r)
        return 0;
    if (r->error) {
        answer(in, -r->error, NULL, 0);
        return 1;
    }
    held_t *h = malloc(sizeof *h + bytes), **end = &held_first;
    if (!h)
        return 0;
    h->next = NULL;
    h->due_ns = r->ms < 0 ? 0 : clock_ns() + (uint64_t)r->ms * 1000000u;
    h->bytes = bytes;
    memcpy(h->request, in, bytes);
    while (*end)
        end = &(*end)->next;
    *end = h;
    if (r->ms < 0)
        printf("held %s %s\n", slowfs_op_name(op), path);
    return 1;
}

/* Answers what is due; all: everything. Milliseconds to the next, -1: none. */
static int serve_held(int all)
{
    int next_ms = -1;
    for (held_t **at = &held_first; *at;) {
        held_t *h = *at;
        uint64_t now = clock_ns();
        if (!all && (h->due_ns == 0 || h->due_ns > now)) {
            int ms = h->due_ns ? (int)((h->due_ns - now) / 1000000u) + 1 : -1;
            next_ms = ms >= 0 && (next_ms < 0 || ms < next_ms) ? ms : next_ms;
            at = &h->next;
            continue;
        }
        *at = h->next;
        handle((const struct fuse_in_header *)(const void *)h->request);
        free(h);
    }
    return next_ms;
}

/* ---- the loop ---- */

/* 0 when it was unmounted. */
static int read_request(void)
{
    ssize_t n = read(device, buffer, sizeof buffer - 1);
    if (n < 0)
        return errno == ENODEV ? 0 : 1; /* EAGAIN, ENOENT: a request that was withdrawn */
    buffer[n] = '\0';
    const struct fuse_in_header *in = (const struct fuse_in_header *)(const void *)buffer;
    if (in->opcode == FUSE_FORGET) {
        forget(in->nodeid, ((const struct fuse_forget_in *)(const void *)(in + 1))->nlookup);
    } else if (in->opcode == FUSE_BATCH_FORGET) {
        const struct fuse_batch_forget_in *b = (const void *)(in + 1);
        const struct fuse_forget_one *one = (const void *)(b + 1);
        for (uint32_t i = 0; i < b->count; i++)
            forget(one[i].nodeid, one[i].nlookup);
    } else if (in->opcode == FUSE_DESTROY) {
        return 0;
    } else if (in->opcode != FUSE_INTERRUPT && !by_rule(in, (size_t)n + 1)) {
        handle(in);
    }
    return 1;
}

static int mount_at(const char *where)
{
    char options[128];
    /* A request may be withdrawn behind the poll that told of it: the read must not wait for another. */
    device = open("/dev/fuse", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0)
        return -1;
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
             device);
    return mount("slowfs", where, "fuse.slowfs", MS_NOSUID | MS_NODEV, options);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: slowfs MOUNTPOINT FOLDER CONTROL [direct]\n");
        return 2;
    }
    if (argc > 4)
        open_flags = FOPEN_DIRECT_IO;
    setvbuf(stdout, NULL, _IOLBF, 0);
    umask(0);
    root = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    nodes[0].path = strdup(".");
    nodes[0].lookups = 1;
    if (mkfifo(argv[3], 0600) != 0 && errno != EEXIST)
        root = -1;
    int control = open(argv[3], O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (root < 0 || control < 0 || mount_at(argv[1]) != 0) {
        fprintf(stderr, "slowfs: %s\n", strerror(errno));
        return 1;
    }
    puts("ready");
    for (int going = 1; going;) {
        struct pollfd p[2] = {{.fd = device, .events = POLLIN}, {.fd = control, .events = POLLIN}};
        if (poll(p, 2, serve_held(0)) <= 0)
            continue;
        if (p[1].revents && slowfs_commands(control))
            serve_held(1);
        if (p[0].revents)
            going = read_request();
    }
    return 0;
}
