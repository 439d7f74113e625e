#include "tests/soak/say.h"

#include "tests/soak/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *file;
static double began;
static char where[96], first[1024];

int say_open(const char *path)
{
    began = clock_s();
    setvbuf(stdout, NULL, _IOLBF, 0);
    file = fopen(path, "we");
    if (file)
        setvbuf(file, NULL, _IOLBF, 0);
    else
        fprintf(stderr, "soak: %s: %s\n", path, strerror(errno));
    return file ? 0 : -1;
}

void say_where(const char *what)
{
    snprintf(where, sizeof where, "%s", what);
}

static void line(const char *text)
{
    double at = clock_s() - began;
    printf("%8.2f  %-22s  %s\n", at, where, text);
    if (file)
        fprintf(file, "%8.2f  %-22s  %s\n", at, where, text);
}

void say(const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    line(text);
}

int say_violation(const char *fmt, ...)
{
    char text[768], whole[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    snprintf(whole, sizeof whole, "VIOLATION: %s", text);
    line(whole);
    if (!first[0])
        snprintf(first, sizeof first, "%s: %s", where, text);
    return -1;
}

const char *say_first(void)
{
    return first[0] ? first : NULL;
}

void say_tail(const char *path, int lines)
{
    enum { TAIL_BYTES = 8192 };
    char text[TAIL_BYTES + 1];
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    fseek(f, size > TAIL_BYTES ? size - TAIL_BYTES : 0, SEEK_SET);
    size_t n = fread(text, 1, TAIL_BYTES, f);
    fclose(f);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    const char *from = text + n;
    while (from > text && (from[-1] != '\n' || --lines > 0))
        from--;
    say("--- the end of %s", path);
    for (char *save = NULL, *l = strtok_r((char *)from, "\n", &save); l;
         l = strtok_r(NULL, "\n", &save))
        say("    %s", l);
}
