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
#include <unistd.h>

enum { REGISTRY_PATH = 4096 + 64, REGISTRY_TEXT = 8192 };
static const char registry_suffix[] = ".run";

struct registry {
    int fd; /* locked */
    char path[REGISTRY_PATH];
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
    if (n <= 0)
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
        else if (strcmp(line, "token") == 0)
            snprintf(e->token, sizeof e->token, "%s", value);
        else if (strcmp(line, "run_dir") == 0)
            snprintf(e->run_dir, sizeof e->run_dir, "%s", value);
        else
            fields--;
    }
    return fields == 4 && e->pid > 0 && e->endpoint[0] && e->token[0] ? 0 : -1;
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
        size_t n = strlen(d->d_name);
        if (n <= sizeof registry_suffix - 1 ||
            strcmp(d->d_name + n - (sizeof registry_suffix - 1), registry_suffix) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        registry_entry_t e;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlink(path);
        else if (read_entry(fd, &e) == 0 && visit)
            rc = visit(user, &e);
        close(fd);
        if (rc != 0)
            break;
    }
    closedir(dir);
    return rc;
}

int registry_add(const registry_entry_t *e, registry_t **registry)
{
    char folder[REGISTRY_PATH], temporary[REGISTRY_PATH + 16], text[REGISTRY_TEXT];
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
    int n = snprintf(text, sizeof text, "pid=%d\nendpoint=%s\ntoken=%s\nrun_dir=%s\n", (int)e->pid,
                     e->endpoint, e->token, e->run_dir);
    if (r->fd < 0 || flock(r->fd, LOCK_EX | LOCK_NB) != 0 || write(r->fd, text, (size_t)n) != n ||
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
    char absolute[4096]; /* of which, if it is a path */
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
                strcmp(s->which, pid) == 0 || strcmp(s->absolute, e->run_dir) == 0;
    if (match) {
        *s->found = *e;
        s->matches++;
    }
    return 0;
}

int registry_find(const char *which, registry_entry_t *entry)
{
    search_t s = {.which = which, .found = entry};
    if (which && !realpath(which, s.absolute))
        s.absolute[0] = '\0';
    int rc = registry_walk(search_visit, &s);
    if (rc < 0)
        return rc;
    if (s.matches == 1)
        return 0;
    if (s.live == 0)
        return err_set(ERR_CONFIG, "no run is live on this machine");
    if (s.matches == 0)
        return err_set(ERR_CONFIG, "no live run is called '%s'; live: %s", which, s.names);
    return err_set(ERR_CONFIG, "%d runs are live, name one of them: %s", s.matches, s.names);
}
