#include "trainer/readfile.h"

#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int read_fd(int fd, const char *path, uint64_t size, void **bytes, uint64_t *total)
{
    uint64_t got = 0;
    if (size > READFILE_MOST)
        return err_set(ERR_CONFIG, "%s: %llu bytes: more than %llu are not read", path,
                       (unsigned long long)size, (unsigned long long)READFILE_MOST);
    char *p = malloc(size + 1);
    if (!p)
        return err_set(ERR_ENV, "%s: no memory for its %llu bytes", path, (unsigned long long)size);
    while (got < size) {
        ssize_t n = read(fd, p + got, size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int rc = err_sys(ERR_ENV, "%s: cannot be read", path);
            free(p);
            return rc;
        }
        if (n == 0)
            break;
        got += (uint64_t)n;
    }
    *bytes = p;
    *total = got;
    return 0;
}

int readfile_all(const char *path, void **bytes, uint64_t *total)
{
    struct stat st;
    /* O_NONBLOCK: a FIFO in the file's place must not hold us. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    *bytes = NULL;
    *total = 0;
    if (fd < 0)
        return err_sys(errno == ENOENT ? ERR_CONFIG : ERR_ENV, "%s: cannot be opened", path);
    int rc = fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)
                 ? err_set(ERR_CONFIG, "%s: not a regular file", path)
                 : read_fd(fd, path, (uint64_t)st.st_size, bytes, total);
    close(fd);
    return rc;
}
