#include "shm/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERR_TEXT_BYTES = 2048 };

static _Thread_local char err_buffer[ERR_TEXT_BYTES];

int err_set(int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err_buffer, sizeof err_buffer, fmt, ap);
    va_end(ap);
    return code;
}

int err_sys(int code, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err_buffer, sizeof err_buffer, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err_buffer)
        snprintf(err_buffer + n, sizeof err_buffer - (size_t)n, ": %s", strerror(saved));
    return code;
}

int err_add(int code, const char *fmt, ...)
{
    char context[ERR_TEXT_BYTES], old[ERR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    memcpy(old, err_buffer, sizeof old);
    /* A message too long for the buffer loses its tail, never its context. */
    int n = snprintf(err_buffer, sizeof err_buffer, "%s: ", context);
    if (n >= 0 && (size_t)n < sizeof err_buffer) {
        size_t room = sizeof err_buffer - (size_t)n - 1, len = strlen(old);
        if (len > room)
            len = room;
        memcpy(err_buffer + n, old, len);
        err_buffer[(size_t)n + len] = '\0';
    }
    return code;
}

const char *err_text(void)
{
    return err_buffer[0] ? err_buffer : "no error text was recorded";
}

int err_exit_status(int code)
{
    if (code >= 0)
        return 0;
    return code >= ERR_STOPPED ? -code : 1;
}
