#include "shm/killpoint.h"

#include <stddef.h>

static const struct {
    const char *name, *process;
} points[KILL_POINT_COUNT] = {
#define KILL_POINT_ROW(id, name, process, what) {name, process},
    KILL_POINT_TABLE(KILL_POINT_ROW)
#undef KILL_POINT_ROW
};

const char *kill_point_name(kill_point_t point)
{
    return point < KILL_POINT_COUNT ? points[point].name : NULL;
}

const char *kill_point_process(kill_point_t point)
{
    return point < KILL_POINT_COUNT ? points[point].process : NULL;
}

#ifdef SLUICE_KILL_POINTS

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static kill_point_t armed = KILL_POINT_COUNT;
static unsigned nth = 1;
static int signal_number = SIGKILL;
static const char *mark;
static _Atomic unsigned reached; /* relaxed: a count, nothing is ordered by it */

static void arm(void)
{
    const char *text = getenv("SLUICE_KILL_POINT");
    mark = getenv("SLUICE_KILL_MARK");
    if (!text)
        return;
    size_t n = strcspn(text, ":");
    for (unsigned i = 0; i < KILL_POINT_COUNT; i++)
        if (strlen(points[i].name) == n && memcmp(points[i].name, text, n) == 0)
            armed = (kill_point_t)i;
    if (text[n] != ':')
        return;
    char *end;
    nth = (unsigned)strtoul(text + n + 1, &end, 10);
    if (*end == ':')
        signal_number = (int)strtol(end + 1, NULL, 10);
}

void kill_point(kill_point_t point)
{
    pthread_once(&once, arm);
    if (point != armed || atomic_fetch_add_explicit(&reached, 1, memory_order_relaxed) + 1 != nth)
        return;
    if (mark) {
        int fd = open(mark, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0)
            return;
        char line[96];
        size_t used = 0;
        char digits[16];
        int k = 0;
        for (unsigned pid = (unsigned)getpid(); pid || k == 0; pid /= 10)
            digits[k++] = (char)('0' + pid % 10);
        while (k > 0)
            line[used++] = digits[--k];
        line[used++] = ' ';
        size_t n = strlen(points[point].name);
        memcpy(line + used, points[point].name, n);
        used += n;
        line[used++] = '\n';
        ssize_t written = write(fd, line, used);
        (void)written; /* an empty mark says as much */
        close(fd);
    }
    kill(getpid(), signal_number);
}

#endif
