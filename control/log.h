/* Log lines of a process: to stderr, which the coordinator points at the run's logs/ once there is
 * one.
 *
 * A line is one write: "2026-11-30T12:00:00.123Z loader 3 [pid] warn: text"; control characters in
 * it become spaces, so that a file name cannot forge a line. Any thread.
 */
#ifndef SLUICE_CONTROL_LOG_H
#define SLUICE_CONTROL_LOG_H

typedef enum { LOG_INFO = 0, LOG_WARN, LOG_ERROR } log_level_t;

/* Names the process in its lines: "loader 3", "rank 1"; index < 0 leaves the number out. Before
 * threads. */
void log_identity(const char *who, int index);
void log_line(log_level_t level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Hands the text of each line to a function instead of writing it: for a process whose standard
 * error may be a terminal that is held, and which must not wait (the coordinator). NULL: written
 * again. The function runs on the thread that logs, and must not log. */
void log_sink(void (*sink)(void *user, log_level_t level, const char *text), void *user);

#endif
