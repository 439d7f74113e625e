/* What the soak prints: a line for each thing that happens, with its time; and the first thing that
 * was not as it must be, which ends the soak (private to tests/soak). One thread. */
#ifndef SLUICE_TESTS_SOAK_SAY_H
#define SLUICE_TESTS_SOAK_SAY_H

#include <stddef.h>

/* Lines go to standard output and to the file; what = "round 3 train-1" stands before the text. */
int say_open(const char *path);
void say_where(const char *what);
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Notes a violation; the first one is kept. Always -1, to be returned. */
int say_violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The first violation with where it happened, or NULL. */
const char *say_first(void);
/* A whole file's end, a line each, at most so many. */
void say_tail(const char *path, int lines);

#endif
