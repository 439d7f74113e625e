/* ZeroMQ sockets of the control plane (design 6): the coordinator's ROUTER and a worker's DEALER,
 * the coordinator's PUB and a watcher's SUB.
 *
 * LINGER 0, sends never block (a full pipe is reported, not waited for), identities carry the
 * process's incarnation ("loader-3.17"), so a late frame of a dead process is never taken for its
 * successor's. A bus belongs to the thread that opened it.
 */
#ifndef SLUICE_CONTROL_BUS_H
#define SLUICE_CONTROL_BUS_H

#include "control/wire.h"

#include <stddef.h>

typedef struct bus bus_t;
enum { BUS_IDENTITY = 64 };

/* One received frame; valid until the next bus_receive on this bus. A NUL lies behind its last
 * byte. */
typedef struct {
    char from[BUS_IDENTITY]; /* ROUTER only */
    uint32_t type;
    size_t bytes;
    const void *frame;
} bus_message_t;

/* Whether ZeroMQ can work here, tried at a place beside the endpoint by a child process: libzmq ends
 * the process that it cannot work in. ERR_ENV names what is refused. */
int bus_trial(const char *endpoint);
int bus_listen(const char *endpoint, bus_t **bus); /* ROUTER: ipc://@sluice-<random> */
int bus_connect(const char *endpoint, const char *identity, bus_t **bus); /* DEALER */
int bus_publisher(const char *endpoint, bus_t **bus);                     /* PUB */
/* SUB to all that is published; receives only. A connection that is lost is not made again: the
 * name could be another's by then. */
int bus_subscriber(const char *endpoint, bus_t **bus);
void bus_close(bus_t **bus);
/* The one exception to LINGER 0: closes after what was sent has left, or after linger_ms. */
void bus_close_flushed(bus_t **bus, int linger_ms);
/* Readable when there may be a message; edge-triggered as ZMQ_FD is: drain with bus_receive. */
int bus_descriptor(const bus_t *bus);
/* to is NULL for a DEALER. 0, ERR_TIMEOUT when the pipe is full, ERR_GONE for an unknown
 * peer. */
int bus_send(bus_t *bus, const char *to, const void *frame, size_t bytes);
/* Numbers the frame and sends it to all who subscribe. A subscriber that reads too slowly misses
 * frames, as their numbers tell it; nobody waits. */
int bus_publish(bus_t *bus, const void *frame, size_t bytes);
/* 1 a checked message, 0 none within timeout_ms (0: just look), negative on error. Refused frames
 * are logged, counted and skipped. */
int bus_receive(bus_t *bus, int timeout_ms, bus_message_t *message);
/* A message that passed the check and is refused for what it says: counted with the others. The
 * first is logged, then at powers of two. from may be "". */
void bus_refuse(bus_t *bus, const char *from, const char *why);
uint64_t bus_refused(const bus_t *bus);

#endif
