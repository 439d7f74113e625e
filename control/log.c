#include "control/log.h"

#include "control/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_LINE_BYTES = 4096 };

/* Set once at the start of a process, before it has threads. */
static char log_who[48] = "sluice";
static void (*log_taker)(void *user, log_level_t level, const char *text);
static void *log_taker_user;

void log_sink(void (*sink)(void *user, log_level_t level, const char *text), void *user)
{
    log_taker = sink;
    log_taker_user = user;
}

void log_identity(const char *who, int index)
{
    if (index < 0)
        snprintf(log_who, sizeof log_who, "%s", who);
    else
        snprintf(log_who, sizeof log_who, "%s %d", who, index);
}

/* "2026-11-30T12:00:00.123Z loader 3 [pid] warn: ". Returns its length. */
static size_t log_prefix(char *line, size_t room, log_level_t level)
{
    static const char *const words[] = {
        [LOG_INFO] = "", [LOG_WARN] = "warn: ", [LOG_ERROR] = "error: "};
    struct timespec now;
    struct tm utc;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    int n = snprintf(line, room, "%s.%03dZ %s [%d] %s", stamp, (int)(now.tv_nsec / 1000000),
                     log_who, (int)getpid(), words[level]);
    return n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

void log_line(log_level_t level, const char *fmt, ...)
{
    char line[LOG_LINE_BYTES];
    int saved = errno;
    size_t prefix = log_prefix(line, sizeof line, level), used = prefix;
    va_list ap;
    va_start(ap, fmt);
    /* vsnprintf keeps one byte for its NUL: the newline takes that place. */
    int n = vsnprintf(line + used, sizeof line - used, fmt, ap);
    va_end(ap);
    if (n > 0)
        used += (size_t)n < sizeof line - used ? (size_t)n : sizeof line - used - 1;
    text_printable(line);
    if (log_taker) {
        log_taker(log_taker_user, level, line + prefix);
        errno = saved;
        return;
    }
    line[used++] = '\n';
    /* One write a line, so that lines of several processes do not mix. A log that cannot be written
     * is no reason to stop a run. */
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line, used);
    } while (written < 0 && errno == EINTR);
    errno = saved;
}
