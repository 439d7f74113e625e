/* Output for a person that its writer never waits for: a terminal may be held (Ctrl-S), an ssh
 * connection may hang, and neither may stop the coordinator (design 6).
 *
 * A thread of its own writes what is queued, in order, to any descriptor. When the queue is full,
 * what comes is left out and counted, and the count is written when there is room again. The thread
 * takes no signals. One console a process; its functions are called on one thread.
 */
#ifndef SLUICE_TOOLS_CONSOLE_H
#define SLUICE_TOOLS_CONSOLE_H

#include <stddef.h>

typedef struct console console_t;

/* room: bytes that may wait. */
int console_open(size_t room, console_t **console);
/* Queues a copy of the text for descriptor fd. Never waits. passing: a line that the next one
 * replaces; when it finds no room it is left out without being counted. */
void console_put(console_t *console, int fd, const char *text, size_t bytes, int passing);
/* Waits for the queue to empty, for at most timeout_ms; what is left then is lost. */
void console_close(console_t **console, int timeout_ms);

#endif
