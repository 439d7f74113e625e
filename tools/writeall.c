#include "tools/writeall.h"

#include <errno.h>
#include <unistd.h>

int writeall(int fd, const void *data, uint64_t bytes)
{
    const char *p = data;
    while (bytes > 0) {
        /* The kernel takes less than 2 GiB at a time. */
        ssize_t n = write(fd, p, bytes < (1u << 30) ? bytes : 1u << 30);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        p += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}
