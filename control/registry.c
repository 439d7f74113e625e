#include "control/registry.h"

#include "shm/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REGISTRY_PATH = 4096 + 64, REGISTRY_TEXT = 8192 };
enum { REGISTRY_TMP_S = 60 }; /* a start has long given its file the right name by then */
static const char registry_suffix[] = ".run", registry_temporary[] = ".run.tmp";

struct registry {
    int fd; /* locked */
    char path[REGISTRY_PATH];
    registry_entry_t entry;
};

/* The folder must be ours alone: in /tmp anybody could have made one of that name. */
int registry_folder(char *path, size_t bytes)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    path[0] = '\0';
    if (runtime && runtime[0] == '/' && access(runtime, W_OK) == 0)
        snprintf(path, bytes, "%s/sluice", runtime);
    else
        snprintf(path, bytes, "/tmp/sluice-%u", (unsigned)geteuid());
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
    return fields == 5 && e->pid > 0 && e->endpoint[0] && e->token[0] ? 0 : -1;
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

/* Calls visit for each live run; removes the files of dead ones. */
static int registry_walk(int (*visit)(void *user, const registry_entry_t *e), void *user)
{
    char folder[REGISTRY_PATH], path[REGISTRY_PATH + 256];
    int rc = registry_folder(folder, sizeof folder);
    if (rc < 0)
        return rc;
    DIR *dir = opendir(folder);
    if (!dir)
        return err_sys(ERR_ENV, "%s", folder);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        if (ends_with(d->d_name, registry_temporary))
            remove_old_temporary(path);
        if (!ends_with(d->d_name, registry_suffix))
            continue;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        registry_entry_t e;
        /* Shared, so that two who look at a dead run's file do not take each other for its owner.
         */
        if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
            if (still_named(fd, path))
                unlink(path);
        } else if (visit && read_entry(fd, &e) == 0)
            rc = visit(user, &e);
        close(fd);
        if (rc != 0)
            break;
    }
    closedir(dir);
    return rc;
}

static int write_entry(int fd, const registry_entry_t *e)
{
    char text[REGISTRY_TEXT];
    int n = snprintf(text, sizeof text, "pid=%d\nendpoint=%s\nwatch=%s\ntoken=%s\nrun_dir=%s\n",
                     (int)e->pid, e->endpoint, e->watch, e->token, e->run_dir);
    return pwrite(fd, text, (size_t)n, 0) == n ? 0 : -1;
}

int registry_add(const registry_entry_t *e, registry_t **registry)
{
    char folder[REGISTRY_PATH], temporary[REGISTRY_PATH + 16];
    registry_t *r = NULL;
    int rc;
    *registry = NULL;
    CHECK_GOTO(registry_walk(NULL, NULL), rc, fail);
    CHECK_GOTO(registry_folder(folder, sizeof folder - 32), rc, fail);
    r = calloc(1, sizeof *r);
    if (!r)
        return err_set(ERR_ENV, "no memory for the registry");
    snprintf(r->path, sizeof r->path, "%.*s/%d%s", (int)sizeof r->path - 32, folder, (int)e->pid,
             registry_suffix);
    /* Locked before it gets the name that others look for: a start that runs beside us must not
     * take it for a dead run's. */
    snprintf(temporary, sizeof temporary, "%s.tmp", r->path);
    r->fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    r->entry = *e;
    if (r->fd < 0 || flock(r->fd, LOCK_EX | LOCK_NB) != 0 || write_entry(r->fd, e) != 0 ||
        rename(temporary, r->path) != 0) {
        rc = err_sys(ERR_ENV, "cannot write %s", r->path);
        unlink(temporary);
        goto fail;
    }
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

static int search_visit(void *user, const registry_entry_t *e)
{
    search_t *s = user;
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

int registry_find(const char *which, registry_entry_t *entry)
{
    search_t s = {.which = which, .found = entry};
    char folder[REGISTRY_PATH];
    if (which)
        plain_absolute(which, s.absolute, sizeof s.absolute);
    int rc = registry_walk(search_visit, &s);
    /* Only now is the path looked at, for links in it: it may be on storage that does not answer,
     * which is when a run is asked how it does. */
    if (rc == 0 && s.live > 0 && s.matches == 0 && which && strchr(which, '/') &&
        realpath(which, s.absolute)) {
        s.live = 0;
        s.names[0] = '\0';
        rc = registry_walk(search_visit, &s);
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
static int same_run(void *user, const registry_entry_t *e)
{
    return strcmp(((const registry_entry_t *)user)->token, e->token) == 0;
}

int registry_listed(const registry_entry_t *entry)
{
    return registry_walk(same_run, (void *)entry);
}
