#include "tools/trim.h"

#include "control/log.h"
#include "shm/err.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRIM_MOST (256ull << 20) /* bytes of a file that is looked through */

/* Keeps the lines that keep() wants, without an incomplete last one. */
static int trim_file(rundir_t *dir, const char *name, uint32_t done,
                     int (*keep)(const char *line, size_t bytes, uint32_t done))
{
    char *text;
    size_t bytes, kept = 0;
    struct stat st;
    if (fstatat(dir->fd, name, &st, 0) != 0)
        return 0;
    if (S_ISREG(st.st_mode) && st.st_size > (off_t)TRIM_MOST) {
        /* A log is no reason to refuse what can be trained on. */
        log_line(
            LOG_WARN,
            "%s has %.0f MB and is left as it is: it may say twice what epochs behind %u come to",
            name, (double)st.st_size / 1e6, done);
        return 0;
    }
    int rc = rundir_read(dir, name, TRIM_MOST, &text, &bytes);
    if (rc < 0)
        return rc;
    for (char *line = text, *end; line < text + bytes; line = end) {
        char *newline = memchr(line, '\n', (size_t)(text + bytes - line));
        end = newline ? newline + 1 : text + bytes;
        if (newline && keep(line, (size_t)(newline - line), done)) {
            memmove(text + kept, line, (size_t)(end - line));
            kept += (size_t)(end - line);
        }
    }
    rc = kept == bytes ? 0 : rundir_write(dir, name, text, kept, NULL, NULL);
    if (rc == 0 && kept < bytes)
        log_line(LOG_INFO, "%s: lines of epochs behind %u removed, they are made again", name,
                 done);
    free(text);
    return rc;
}

/* The first column is the epoch, counted from 1; the header's is no number. */
static int keep_row(const char *line, size_t bytes, uint32_t done)
{
    (void)bytes;
    return strtoul(line, NULL, 10) <= done;
}

static int keep_event(const char *line, size_t bytes, uint32_t done)
{
    static const char event[] = "\"event\":\"epoch\",\"epoch\":";
    const char *at = memmem(line, bytes, event, sizeof event - 1);
    return !at || strtoul(at + sizeof event - 1, NULL, 10) <= done;
}

int trim_csv(rundir_t *dir, uint32_t done)
{
    return trim_file(dir, "results.csv", done, keep_row);
}

int trim_events(rundir_t *dir, uint32_t done)
{
    return trim_file(dir, "events.jsonl", done, keep_event);
}
