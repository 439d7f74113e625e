#include "trainer/cachefile.h"

#include "shm/err.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int cachefile_path(const char *name, char path[CACHEFILE_PATH])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;
    if (base && base[0] == '/')
        n = snprintf(path, CACHEFILE_PATH, "%s/sluice/", base);
    else if (home && home[0] == '/')
        n = snprintf(path, CACHEFILE_PATH, "%s/.cache/sluice/", home);
    else
        return err_set(ERR_ENV, "no folder to keep things between runs: neither XDG_CACHE_HOME nor "
                                "HOME is an absolute path");
    size_t length = strlen(name);
    if (n < 0 || (size_t)n + length >= CACHEFILE_PATH || length > 200)
        return err_set(ERR_ENV, "the path of the file %s would be too long", name);
    for (size_t i = 0; i <= length; i++) {
        unsigned char c = (unsigned char)name[i];
        path[(size_t)n + i] = (char)(c == 0 || isalnum(c) || c == '.' ? c : '-');
    }
    return 0;
}

static int read_open(int fd, const char *path, char **text)
{
    struct stat st;
    size_t used = 0;
    if (fstat(fd, &st) < 0)
        return err_sys(ERR_ENV, "%s", path);
    if (!S_ISREG(st.st_mode) || st.st_size > CACHEFILE_MOST)
        return err_set(ERR_ENV, "%s is %s", path,
                       S_ISREG(st.st_mode) ? "too long" : "no regular file");
    char *room = malloc((size_t)st.st_size + 1);
    if (!room)
        return err_set(ERR_ENV, "out of memory for %s", path);
    while (used < (size_t)st.st_size) {
        ssize_t n = read(fd, room + used, (size_t)st.st_size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            free(room);
            return err_sys(ERR_ENV, "%s", path);
        }
        if (n == 0)
            break;
        used += (size_t)n;
    }
    room[used] = '\0';
    *text = room;
    return 0;
}

int cachefile_read(const char *path, char **text)
{
    *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (fd < 0)
        return err_sys(ERR_ENV, "%s", path);
    int rc = read_open(fd, path, text);
    close(fd);
    return rc;
}

/* Every folder of the path that is missing; of those only the user's own may be entered. */
static int make_folders(const char *path)
{
    char part[CACHEFILE_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST)
            return err_sys(ERR_ENV, "%s", part);
        *slash = '/';
    }
    return 0;
}

static int write_all(int fd, const char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        ssize_t n = write(fd, text, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        text += n;
        left -= (size_t)n;
    }
    return fsync(fd);
}

int cachefile_write(const char *path, const char *text)
{
    char temporary[CACHEFILE_PATH + 8];
    int rc = make_folders(path);
    if (rc < 0)
        return rc;
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return err_sys(ERR_ENV, "%s", temporary);
    rc = write_all(fd, text) < 0 ? err_sys(ERR_ENV, "%s", temporary) : 0;
    if (close(fd) < 0 && rc == 0)
        rc = err_sys(ERR_ENV, "%s", temporary);
    if (rc == 0 && rename(temporary, path) < 0)
        rc = err_sys(ERR_ENV, "%s", path);
    if (rc < 0)
        unlink(temporary);
    return rc;
}
