#include "control/registry.h"

#include "shm/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REGISTRY_PATH = 4096 + 64, REGISTRY_TEXT = 8192 };
enum { REGISTRY_LOOK_MS = 1000 };
enum { REGISTRY_TMP_S = 60 }; /* a start has long given its file the right name by then */
static const char registry_suffix[] = ".run", registry_temporary[] = ".run.tmp";

struct registry {
    int fd; /* locked */
    char path[REGISTRY_PATH];
    registry_entry_t entry;
};

static void plain_folder(char *path, size_t bytes)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime && runtime[0] == '/' && access(runtime, W_OK) == 0)
        snprintf(path, bytes, "%s/sluice", runtime);
    else
        snprintf(path, bytes, "/tmp/sluice-%u", (unsigned)geteuid());
}

/* The folder must be ours alone: in /tmp anybody could have made one of that name. */
int registry_folder(char *path, size_t bytes)
{
    struct stat st;
    plain_folder(path, bytes);
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return err_sys(ERR_ENV, "cannot make %s, where runs are listed", path);
    if (lstat(path, &st) != 0)
        return err_sys(ERR_ENV, "%s", path);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return err_set(ERR_ENV,
                       "%s is not a folder of mode 0700 that belongs to you: remove it, or set "
                       "XDG_RUNTIME_DIR to a folder of yours",
                       path);
    return 0;
}

static int read_entry(int fd, registry_entry_t *e)
{
    char text[REGISTRY_TEXT];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0 || text[n - 1] != '\n') /* while it is written */
        return -1;
    text[n] = '\0';
    memset(e, 0, sizeof *e);
    int fields = 0;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        char *value = strchr(line, '=');
        if (!value)
            continue;
        *value++ = '\0';
        fields++;
        if (strcmp(line, "pid") == 0)
            e->pid = (pid_t)strtol(value, NULL, 10);
        else if (strcmp(line, "since") == 0)
            e->since = strtoll(value, NULL, 10);
        else if (strcmp(line, "endpoint") == 0)
            snprintf(e->endpoint, sizeof e->endpoint, "%s", value);
        else if (strcmp(line, "watch") == 0)
            snprintf(e->watch, sizeof e->watch, "%s", value);
        else if (strcmp(line, "token") == 0)
            snprintf(e->token, sizeof e->token, "%s", value);
        else if (strcmp(line, "run_dir") == 0)
            snprintf(e->run_dir, sizeof e->run_dir, "%s", value);
        else
            fields--;
    }
    return fields == 6 && e->pid > 0 && e->endpoint[0] && e->token[0] ? 0 : -1;
}

static int ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

/* A start that was killed before its file had its name. */
static void remove_old_temporary(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && time(NULL) - st.st_mtime > REGISTRY_TMP_S)
        unlink(path);
}

/* Whether the name still stands for the file that is open: a new run may have been given the pid,
 * and so the file name, of a dead one. */
static int still_named(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

typedef int (*registry_visit_t)(void *user, const registry_entry_t *e, int live);

/* One file of the folder: a dead run's goes. */
static int look_at(const char *path, registry_visit_t visit, void *user)
{
    registry_entry_t e;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return 0;
    int readable = read_entry(fd, &e) == 0;
    /* Shared, so that two who look at a dead run's file do not take each other for its owner. */
    int live = flock(fd, LOCK_SH | LOCK_NB) != 0;
    if (!live && !(still_named(fd, path) && unlink(path) == 0))
        readable = 0; /* somebody else was faster */
    close(fd);
    if (visit && readable)
        rc = visit(user, &e, live);
    return rc;
}

int registry_list(registry_visit_t visit, void *user)
{
    char folder[REGISTRY_PATH], path[REGISTRY_PATH + 256];
    int rc = registry_folder(folder, sizeof folder);
    if (rc < 0)
        return rc;
    DIR *dir = opendir(folder);
    if (!dir)
        return err_sys(ERR_ENV, "%s", folder);
    for (struct dirent *d; rc == 0 && (d = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        if (ends_with(d->d_name, registry_temporary))
            remove_old_temporary(path);
        if (ends_with(d->d_name, registry_suffix))
            rc = look_at(path, visit, user);
    }
    closedir(dir);
    return rc;
}

int registry_forget(pid_t pid)
{
    char folder[REGISTRY_PATH], path[REGISTRY_PATH + 32];
    plain_folder(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/%d%s", folder, (int)pid, registry_suffix);
    look_at(path, NULL, NULL);
    return access(path, F_OK) == 0;
}

static int write_entry(int fd, const registry_entry_t *e)
{
    char text[REGISTRY_TEXT];
    int n = snprintf(text, sizeof text,
                     "pid=%d\nsince=%lld\nendpoint=%s\nwatch=%s\ntoken=%s\nrun_dir=%s\n",
                     (int)e->pid, (long long)e->since, e->endpoint, e->watch, e->token, e->run_dir);
    return pwrite(fd, text, (size_t)n, 0) == n ? 0 : -1;
}

/* Locked before it gets the name that others look for: a start that runs beside us must not take it
 * for a dead run's. Without a name before, where the file system can: then a death at any instant
 * leaves nothing or a dead run's entry. */
static int place_entry(registry_t *r, const char *folder)
{
    char temporary[REGISTRY_PATH + 16], self[64];
    r->fd = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (r->fd >= 0 && flock(r->fd, LOCK_EX | LOCK_NB) == 0 && write_entry(r->fd, &r->entry) == 0) {
        snprintf(self, sizeof self, "/proc/self/fd/%d", r->fd);
        if (linkat(AT_FDCWD, self, AT_FDCWD, r->path, AT_SYMLINK_FOLLOW) == 0)
            return 0;
    }
    if (r->fd >= 0)
        close(r->fd);
    snprintf(temporary, sizeof temporary, "%s.tmp", r->path);
    r->fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (r->fd >= 0 && flock(r->fd, LOCK_EX | LOCK_NB) == 0 && write_entry(r->fd, &r->entry) == 0 &&
        rename(temporary, r->path) == 0)
        return 0;
    int rc = err_sys(ERR_ENV, "cannot write %s", r->path);
    unlink(temporary);
    return rc;
}

int registry_add(const registry_entry_t *e, registry_t **registry)
{
    char folder[REGISTRY_PATH];
    registry_t *r = NULL;
    int rc;
    *registry = NULL;
    CHECK_GOTO(registry_list(NULL, NULL), rc, fail);
    CHECK_GOTO(registry_folder(folder, sizeof folder - 32), rc, fail);
    r = calloc(1, sizeof *r);
    if (!r)
        return err_set(ERR_ENV, "no memory for the registry");
    r->fd = -1;
    r->entry = *e;
    if (!r->entry.since)
        r->entry.since = time(NULL);
    snprintf(r->path, sizeof r->path, "%.*s/%d%s", (int)sizeof r->path - 32, folder, (int)e->pid,
             registry_suffix);
    CHECK_GOTO(place_entry(r, folder), rc, fail);
    *registry = r;
    return 0;
fail:
    if (r && r->fd >= 0)
        close(r->fd);
    free(r);
    return rc;
}

int registry_set_run_dir(registry_t *r, const char *run_dir)
{
    if (!r || !run_dir[0])
        return 0;
    snprintf(r->entry.run_dir, sizeof r->entry.run_dir, "%s", run_dir);
    /* In place, for the lock is on this file: all before the directory stays as it was. */
    if (write_entry(r->fd, &r->entry) != 0)
        return err_sys(ERR_ENV, "cannot write %s", r->path);
    return 0;
}

void registry_remove(registry_t **registry)
{
    if (!*registry)
        return;
    unlink((*registry)->path);
    close((*registry)->fd);
    free(*registry);
    *registry = NULL;
}

typedef struct {
    const char *which;
    char absolute[4096]; /* of which, if it is a path; "" if not known */
    registry_entry_t *found;
    int matches, live;
    char names[1024];
} search_t;

static int search_visit(void *user, const registry_entry_t *e, int live)
{
    search_t *s = user;
    if (!live)
        return 0;
    const char *slash = strrchr(e->run_dir, '/'), *base = slash ? slash + 1 : e->run_dir;
    size_t used = strlen(s->names);
    char pid[16];
    snprintf(pid, sizeof pid, "%d", (int)e->pid);
    snprintf(s->names + used, sizeof s->names - used, "%s%s", used ? ", " : "",
             e->run_dir[0] ? e->run_dir : pid);
    s->live++;
    int match = !s->which || strcmp(s->which, e->run_dir) == 0 || strcmp(s->which, base) == 0 ||
                strcmp(s->which, pid) == 0 ||
                (e->run_dir[0] && strcmp(s->absolute, e->run_dir) == 0);
    if (match) {
        *s->found = *e;
        s->matches++;
    }
    return 0;
}

/* The working folder before a relative path, without looking at the path. "" when that is too long
 * or the folder is gone. */
static void plain_absolute(const char *path, char *out, size_t bytes)
{
    size_t used = 0;
    while (path[0] == '.' && path[1] == '/')
        path += 2;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    out[0] = '\0';
    if (path[0] != '/') {
        if (!getcwd(out, bytes))
            out[0] = '\0';
        used = strlen(out);
        if (used == 0 || used + 1 >= bytes)
            return;
        out[used++] = '/';
    }
    if (used + n < bytes)
        memcpy(out + used, path, n);
    out[used + n < bytes ? used + n : 0] = '\0';
}

/* realpath, by a process of its own that is left alone when it does not answer: the path may be on
 * storage that hangs, which is when a run is asked how it does. 0, or -1. */
static int look_for_links(const char *path, char *out, size_t bytes)
{
    int ends[2];
    ssize_t n = 0, used = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        static char resolved[PATH_MAX];
        /* Whoever waits for the end of our output must not wait for this one's. */
        close(0), close(1), close(2);
        if (realpath(path, resolved))
            n = write(ends[1], resolved, strlen(resolved));
        _exit(n <= 0);
    }
    close(ends[1]);
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    while (pid > 0 && used + 1 < (ssize_t)bytes && poll(&p, 1, REGISTRY_LOOK_MS) > 0 &&
           (n = read(ends[0], out + used, bytes - 1 - (size_t)used)) > 0)
        used += n;
    out[used] = '\0';
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, NULL, WNOHANG);
    return used > 0 ? 0 : -1;
}

int registry_find(const char *which, registry_entry_t *entry)
{
    search_t s = {.which = which, .found = entry};
    char folder[REGISTRY_PATH];
    if (which)
        plain_absolute(which, s.absolute, sizeof s.absolute);
    int rc = registry_list(search_visit, &s);
    if (rc == 0 && s.live > 0 && s.matches == 0 && which && strchr(which, '/') &&
        look_for_links(which, s.absolute, sizeof s.absolute) == 0) {
        s.live = 0;
        s.names[0] = '\0';
        rc = registry_list(search_visit, &s);
    }
    if (rc < 0)
        return rc;
    if (s.matches == 1)
        return 0;
    if (s.live == 0) {
        rc = registry_folder(folder, sizeof folder);
        return rc < 0 ? rc : err_set(ERR_CONFIG, "no live run is listed in %s", folder);
    }
    if (s.matches == 0)
        return err_set(ERR_CONFIG, "no live run is called '%s'; live: %s", which, s.names);
    return err_set(ERR_CONFIG, "%d runs are live, name one of them: %s", s.matches, s.names);
}

/* The token is a run's own, as its pid and directory need not be. 1 ends the walk. */
static int same_run(void *user, const registry_entry_t *e, int live)
{
    return live && strcmp(((const registry_entry_t *)user)->token, e->token) == 0;
}

int registry_listed(const registry_entry_t *entry)
{
    return registry_list(same_run, (void *)entry);
}
