#include "tools/mkpath.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int mkpath(const char *path, char part[MKPATH_BYTES])
{
    size_t n = strlen(path);
    if (n >= MKPATH_BYTES) {
        snprintf(part, MKPATH_BYTES, "%.60s...", path);
        errno = ENAMETOOLONG;
        return -1;
    }
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return -1;
    }
    return 0;
}
