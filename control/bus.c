#include "control/bus.h"

#include "control/log.h"
#include "shm/err.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum {
    BUS_PIPE_FRAMES = 4096, /* a peer's pipe holds on each side before a send is refused */
    BUS_WATCH_FRAMES = 512, /* a watcher's pipe, before it misses some: bounds the run's memory */
    BUS_RECONNECT_MS = 86400000, /* a day: no watcher waits for that */
};

struct bus {
    void *context, *socket;
    int descriptor;
    int router;      /* frames come with, and need, an identity */
    char *buffer;    /* the last received frame and a NUL */
    size_t capacity; /* of buffer */
    uint64_t refused;
    uint32_t published;
};

static int bus_fail(const char *what, const char *endpoint)
{
    return err_set(ERR_ENV, "%s %s: %s", what, endpoint, zmq_strerror(zmq_errno()));
}

static int bus_set_int(bus_t *bus, int option, int value)
{
    return zmq_setsockopt(bus->socket, option, &value, sizeof value) == 0 ? 0 : ERR_ENV;
}

static void *thread_nothing(void *unused)
{
    return unused;
}

/* libzmq starts two threads and aborts the process where it cannot: tried before, so that a limit
 * on processes or memory is an error with a sentence. */
static int threads_allowed(void)
{
    enum { THREADS = 2 };
    pthread_t threads[THREADS];
    int made = 0, rc = 0;
    while (made < THREADS && rc == 0) {
        rc = pthread_create(&threads[made], NULL, thread_nothing, NULL);
        made += rc == 0;
    }
    for (int i = 0; i < made; i++)
        pthread_join(threads[i], NULL);
    if (rc == 0)
        return 0;
    return err_set(ERR_ENV,
                   "no thread can be started (%s): raise the limit on processes (ulimit -u, "
                   "pids.max) or memory",
                   strerror(rc));
}

/* Options that every socket has: LINGER 0, bounded pipes, bounded frames. */
static int bus_new(int type, bus_t **out)
{
    int64_t most = WIRE_MAX_BYTES;
    int rc = threads_allowed();
    if (rc < 0)
        return rc;
    bus_t *bus = calloc(1, sizeof *bus);
    if (!bus)
        return err_set(ERR_ENV, "no memory for a socket");
    bus->router = type == ZMQ_ROUTER;
    bus->context = zmq_ctx_new();
    if (bus->context)
        bus->socket = zmq_socket(bus->context, type);
    if (!bus->socket || bus_set_int(bus, ZMQ_LINGER, 0) < 0 ||
        bus_set_int(bus, ZMQ_SNDHWM, BUS_PIPE_FRAMES) < 0 ||
        bus_set_int(bus, ZMQ_RCVHWM, BUS_PIPE_FRAMES) < 0 ||
        zmq_setsockopt(bus->socket, ZMQ_MAXMSGSIZE, &most, sizeof most) != 0) {
        bus_fail("cannot make a socket for", "the control plane");
        bus_close(&bus);
        return ERR_ENV;
    }
    *out = bus;
    return 0;
}

static int bus_ready(bus_t *bus)
{
    size_t size = sizeof bus->descriptor;
    return zmq_getsockopt(bus->socket, ZMQ_FD, &bus->descriptor, &size) == 0 ? 0 : ERR_ENV;
}

/* Only processes of the same user may connect: an abstract socket has no file whose mode could say
 * so. */
static int bus_bind(int type, int option, int value, const char *endpoint, bus_t **out)
{
    bus_t *bus = NULL;
    uid_t uid = geteuid();
    int rc;
    CHECK_GOTO(bus_new(type, &bus), rc, fail);
    CHECK_GOTO(bus_set_int(bus, option, value), rc, fail);
    if (strncmp(endpoint, "ipc://", 6) == 0 &&
        zmq_setsockopt(bus->socket, ZMQ_IPC_FILTER_UID, &uid, sizeof uid) != 0)
        log_line(LOG_INFO, "peers are not checked by user: this libzmq cannot; the token is");
    if (zmq_bind(bus->socket, endpoint) != 0 || bus_ready(bus) < 0) {
        rc = bus_fail("cannot listen on", endpoint);
        goto fail;
    }
    *out = bus;
    return 0;
fail:
    bus_close(&bus);
    return rc;
}

int bus_listen(const char *endpoint, bus_t **bus)
{
    return bus_bind(ZMQ_ROUTER, ZMQ_ROUTER_MANDATORY, 1, endpoint, bus);
}

int bus_publisher(const char *endpoint, bus_t **bus)
{
    return bus_bind(ZMQ_PUB, ZMQ_SNDHWM, BUS_WATCH_FRAMES, endpoint, bus);
}

int bus_subscriber(const char *endpoint, bus_t **out)
{
    bus_t *bus = NULL;
    int rc;
    CHECK_GOTO(bus_new(ZMQ_SUB, &bus), rc, fail);
    /* -1, no reconnecting, would drop what has arrived and is not read yet when the publisher goes:
     * its last message above all. */
    if (bus_set_int(bus, ZMQ_RECONNECT_IVL, BUS_RECONNECT_MS) < 0 ||
        zmq_setsockopt(bus->socket, ZMQ_SUBSCRIBE, "", 0) != 0 ||
        zmq_connect(bus->socket, endpoint) != 0 || bus_ready(bus) < 0) {
        rc = bus_fail("cannot watch", endpoint);
        goto fail;
    }
    *out = bus;
    return 0;
fail:
    bus_close(&bus);
    return rc;
}

int bus_connect(const char *endpoint, const char *identity, bus_t **out)
{
    bus_t *bus = NULL;
    int rc;
    if (!identity[0] || strlen(identity) >= BUS_IDENTITY)
        return err_set(ERR_CONFIG, "a bus identity has 1 to %d characters", BUS_IDENTITY - 1);
    CHECK_GOTO(bus_new(ZMQ_DEALER, &bus), rc, fail);
    if (zmq_setsockopt(bus->socket, ZMQ_IDENTITY, identity, strlen(identity)) != 0 ||
        zmq_connect(bus->socket, endpoint) != 0 || bus_ready(bus) < 0) {
        rc = bus_fail("cannot connect to", endpoint);
        goto fail;
    }
    *out = bus;
    return 0;
fail:
    bus_close(&bus);
    return rc;
}

void bus_close_flushed(bus_t **bus, int linger_ms)
{
    if (!*bus)
        return;
    if ((*bus)->socket) {
        bus_set_int(*bus, ZMQ_LINGER, linger_ms);
        zmq_close((*bus)->socket);
    }
    if ((*bus)->context)
        zmq_ctx_term((*bus)->context);
    free((*bus)->buffer);
    free(*bus);
    *bus = NULL;
}

void bus_close(bus_t **bus)
{
    bus_close_flushed(bus, 0);
}

int bus_descriptor(const bus_t *bus)
{
    return bus->descriptor;
}

uint64_t bus_refused(const bus_t *bus)
{
    return bus->refused;
}

int bus_send(bus_t *bus, const char *to, const void *frame, size_t bytes)
{
    if (bytes > WIRE_MAX_BYTES)
        return err_set(ERR_FAILED, "a frame of %zu bytes is too long to send", bytes);
    int sent = 0;
    if (bus->router)
        sent = zmq_send(bus->socket, to, strlen(to), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (sent >= 0)
        sent = zmq_send(bus->socket, frame, bytes, ZMQ_DONTWAIT);
    if (sent >= 0)
        return 0;
    int e = zmq_errno();
    const char *name = to ? to : "the coordinator";
    if (e == EAGAIN)
        return err_set(ERR_TIMEOUT, "%s does not read its messages: the pipe is full", name);
    if (e == EHOSTUNREACH)
        return err_set(ERR_GONE, "no peer named %s is connected", name);
    return err_set(ERR_FAILED, "cannot send to %s: %s", name, zmq_strerror(e));
}

int bus_publish(bus_t *bus, const void *frame, size_t bytes)
{
    wire_header_t head;
    zmq_msg_t msg;
    int events;
    size_t size = sizeof events;
    if (bytes < sizeof head || bytes > WIRE_MAX_BYTES)
        return err_set(ERR_FAILED, "a frame of %zu bytes is not for publishing", bytes);
    if (zmq_msg_init_size(&msg, bytes) != 0)
        return err_set(ERR_ENV, "no memory for a frame of %zu bytes", bytes);
    memcpy(&head, frame, sizeof head);
    head.number = ++bus->published;
    memcpy(zmq_msg_data(&msg), frame, bytes);
    memcpy(zmq_msg_data(&msg), &head, sizeof head);
    /* A send looks only once a millisecond what watchers have taken; this looks now. Without it a
     * burst would be dropped for one that reads well. */
    zmq_getsockopt(bus->socket, ZMQ_EVENTS, &events, &size);
    if (zmq_msg_send(&msg, bus->socket, ZMQ_DONTWAIT) >= 0)
        return 0;
    int e = zmq_errno();
    zmq_msg_close(&msg);
    return err_set(ERR_FAILED, "cannot publish: %s", zmq_strerror(e));
}

/* Copies a message's bytes into the bus's buffer, with a NUL behind them. */
static int bus_keep(bus_t *bus, zmq_msg_t *msg)
{
    size_t n = zmq_msg_size(msg);
    if (n + 1 > bus->capacity) {
        char *grown = realloc(bus->buffer, n + 1);
        if (!grown)
            return err_set(ERR_ENV, "no memory for a frame of %zu bytes", n);
        bus->buffer = grown;
        bus->capacity = n + 1;
    }
    memcpy(bus->buffer, zmq_msg_data(msg), n);
    bus->buffer[n] = '\0';
    return 0;
}

/* An identity of ours is short and printable; anything else is not one of ours. */
static int bus_take_identity(zmq_msg_t *msg, char *name)
{
    const unsigned char *p = zmq_msg_data(msg);
    size_t n = zmq_msg_size(msg);
    if (n == 0 || n >= BUS_IDENTITY)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (p[i] <= ' ' || p[i] > '~')
            return -1;
    memcpy(name, p, n);
    name[n] = '\0';
    return 0;
}

/* Takes one whole multi-part message. 1 a frame is in the buffer (*bytes), 0 none was there, -2 it
 * had the wrong parts, other negatives are errors. */
static int bus_take(bus_t *bus, char *from, size_t *bytes)
{
    int wanted = bus->router ? 2 : 1, part = 0, bad = 0, more = 1;
    *bytes = 0;
    while (more) {
        zmq_msg_t msg;
        zmq_msg_init(&msg);
        if (zmq_msg_recv(&msg, bus->socket, ZMQ_DONTWAIT) < 0) {
            int e = zmq_errno();
            zmq_msg_close(&msg);
            if (e == EAGAIN || e == EINTR)
                return 0;
            return err_set(ERR_FAILED, "cannot receive: %s", zmq_strerror(e));
        }
        int rc = 0;
        if (bus->router && part == 0) {
            bad |= bus_take_identity(&msg, from);
        } else if (part == wanted - 1) {
            *bytes = zmq_msg_size(&msg);
            rc = bus_keep(bus, &msg);
        }
        more = zmq_msg_more(&msg);
        zmq_msg_close(&msg);
        if (rc < 0)
            return rc;
        part++;
    }
    return bad || part != wanted ? -2 : 1;
}

void bus_refuse(bus_t *bus, const char *from, const char *why)
{
    bus->refused++;
    /* A peer that sends rubbish without end must not fill the log: powers of two are told. */
    if ((bus->refused & (bus->refused - 1)) == 0)
        log_line(LOG_WARN, "refused a message%s%s: %s (%llu so far)", from[0] ? " from " : "", from,
                 why, (unsigned long long)bus->refused);
}

int bus_receive(bus_t *bus, int timeout_ms, bus_message_t *message)
{
    for (int waited = 0;;) {
        size_t bytes;
        message->from[0] = '\0';
        int rc = bus_take(bus, message->from, &bytes);
        if (rc == 1) {
            if (wire_check(bus->buffer, bytes) < 0) {
                bus_refuse(bus, message->from, err_text());
                continue;
            }
            wire_header_t head;
            memcpy(&head, bus->buffer, sizeof head);
            message->type = head.type;
            message->bytes = bytes;
            message->frame = bus->buffer;
            return 1;
        }
        if (rc == -2) {
            bus_refuse(bus, message->from,
                       "it has the wrong number of parts or no proper identity");
            continue;
        }
        if (rc < 0 || timeout_ms == 0 || waited)
            return rc;
        zmq_pollitem_t item = {.socket = bus->socket, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, timeout_ms) < 0 && zmq_errno() != EINTR)
            return err_set(ERR_FAILED, "cannot wait for messages: %s", zmq_strerror(zmq_errno()));
        waited = 1;
    }
}
