/* control/bus and control/outbox: round trips, unknown peers, full pipes, refused frames. */
#include "control/bus.h"
#include "control/outbox.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <zmq.h>

enum { WAIT_MS = 5000 };

static const char *endpoint(void)
{
    static char text[64];
    static int n;
    snprintf(text, sizeof text, "ipc://@sluice-test-%d-%d", (int)getpid(), n++);
    return text;
}

static void send_stop(bus_t *bus, const char *to, uint32_t why)
{
    wire_stop_t stop;
    memset(&stop, 0, sizeof stop);
    wire_begin(&stop, WIRE_STOP, sizeof stop);
    stop.why = why;
    assert_int_equal(bus_send(bus, to, &stop, sizeof stop), 0);
}

static void a_round_trip(void **state)
{
    (void)state;
    bus_t *router, *a, *b;
    bus_message_t m;
    const char *at = endpoint();
    assert_int_equal(bus_listen(at, &router), 0);
    assert_int_equal(bus_connect(at, "loader-3.17", &a), 0);
    assert_int_equal(bus_connect(at, "rank-0.2", &b), 0);
    send_stop(a, NULL, 7);
    assert_int_equal(bus_receive(router, WAIT_MS, &m), 1);
    assert_string_equal(m.from, "loader-3.17");
    assert_int_equal(m.type, WIRE_STOP);
    assert_int_equal(((const wire_stop_t *)m.frame)->why, 7);
    send_stop(b, NULL, 1);
    assert_int_equal(bus_receive(router, WAIT_MS, &m), 1);
    assert_string_equal(m.from, "rank-0.2");
    send_stop(router, "loader-3.17", 9);
    assert_int_equal(bus_receive(a, WAIT_MS, &m), 1);
    assert_int_equal(((const wire_stop_t *)m.frame)->why, 9);
    assert_int_equal(bus_receive(b, 0, &m), 0);
    assert_true(bus_descriptor(router) >= 0);
    bus_close(&a);
    bus_close(&b);
    bus_close(&router);
    assert_null(router);
}

static void text_has_a_nul_behind_it(void **state)
{
    (void)state;
    bus_t *router, *a;
    bus_message_t m;
    const char *at = endpoint();
    unsigned char frame[sizeof(wire_plain_t) + 5];
    assert_int_equal(bus_listen(at, &router), 0);
    assert_int_equal(bus_connect(at, "rank-0.2", &a), 0);
    memcpy(frame + sizeof(wire_plain_t), "hello", 5);
    wire_begin(frame, WIRE_EVENT, sizeof frame);
    assert_int_equal(bus_send(a, NULL, frame, sizeof frame), 0);
    assert_int_equal(bus_receive(router, WAIT_MS, &m), 1);
    assert_string_equal(wire_text(m.frame, NULL), "hello");
    bus_close(&a);
    bus_close(&router);
}

static void an_unknown_peer_is_told(void **state)
{
    (void)state;
    bus_t *router;
    assert_int_equal(bus_listen(endpoint(), &router), 0);
    wire_plain_t ready;
    wire_begin(&ready, WIRE_READY, sizeof ready);
    assert_int_equal(bus_send(router, "loader-9.9", &ready, sizeof ready), ERR_GONE);
    assert_true(bus_connect("ipc://@x", "", &(bus_t *){NULL}) < 0);
    bus_close(&router);
}

/* Nobody reads: the sends end with ERR_TIMEOUT, and none of them waits. */
static void a_full_pipe_does_not_wait(void **state)
{
    (void)state;
    bus_t *router, *a;
    bus_message_t m;
    const char *at = endpoint();
    assert_int_equal(bus_listen(at, &router), 0);
    assert_int_equal(bus_connect(at, "scribe-0.1", &a), 0);
    send_stop(a, NULL, 0);
    assert_int_equal(bus_receive(router, WAIT_MS, &m), 1);
    wire_plain_t ready;
    wire_begin(&ready, WIRE_READY, sizeof ready);
    int rc = 0, sent = 0;
    while (rc == 0 && sent < 200000) {
        rc = bus_send(router, "scribe-0.1", &ready, sizeof ready);
        sent += rc == 0;
    }
    assert_int_equal(rc, ERR_TIMEOUT);
    /* An outbox keeps what the pipe does not take, and loses nothing of it. */
    outbox_t *box;
    assert_int_equal(outbox_new(1 << 10, 1 << 12, &box), 0);
    assert_int_equal(outbox_push(box, &ready, sizeof ready, 0), 0);
    assert_int_equal(outbox_flush(box, router, "scribe-0.1"), 0);
    assert_int_equal(outbox_waiting(box), 1);
    int got = 0;
    for (; got < sent + 1; got++) {
        outbox_flush(box, router, "scribe-0.1");
        if (bus_receive(a, WAIT_MS, &m) != 1)
            break;
    }
    assert_int_equal(got, sent + 1);
    assert_int_equal(outbox_waiting(box), 0);
    outbox_free(&box);
    bus_close(&a);
    bus_close(&router);
}

static void an_outbox_is_bounded(void **state)
{
    (void)state;
    outbox_t *box;
    unsigned char frame[100] = {0};
    assert_int_equal(outbox_new(250, 350, &box), 0);
    assert_int_equal(outbox_push(box, frame, sizeof frame, 1), 0);
    assert_int_equal(outbox_push(box, frame, sizeof frame, 1), 0);
    assert_int_equal(outbox_push(box, frame, sizeof frame, 1), ERR_TIMEOUT);
    assert_int_equal(outbox_push(box, frame, sizeof frame, 0), 0);
    assert_int_equal(outbox_push(box, frame, sizeof frame, 0), ERR_TIMEOUT);
    assert_int_equal(outbox_waiting(box), 3);
    assert_int_equal(outbox_dropped(box), 2);
    outbox_free(&box);
    assert_null(box);
}

static void send_raw(void *socket, const void *data, size_t bytes, int more)
{
    assert_int_equal(zmq_send(socket, data, bytes, more ? ZMQ_SNDMORE : 0), (int)bytes);
}

/* Frames that are not ours are counted and skipped; the next good one still arrives. */
static void rubbish_is_refused(void **state)
{
    (void)state;
    bus_t *router;
    bus_message_t m;
    const char *at = endpoint();
    assert_int_equal(bus_listen(at, &router), 0);
    void *context = zmq_ctx_new(), *good = zmq_socket(context, ZMQ_DEALER);
    void *odd =
        zmq_socket(context, ZMQ_DEALER); /* no identity of its own: the router's has a NUL */
    zmq_setsockopt(good, ZMQ_IDENTITY, "loader-1.1", 10);
    assert_int_equal(zmq_connect(good, at), 0);
    assert_int_equal(zmq_connect(odd, at), 0);
    wire_plain_t ready, wrong;
    wire_begin(&ready, WIRE_READY, sizeof ready);
    wrong = ready;
    wrong.head.version++;
    send_raw(good, "rubbish", 7, 0);
    send_raw(good, &wrong, sizeof wrong, 0);
    send_raw(good, &ready, sizeof ready - 1, 0);
    send_raw(good, "two", 3, 1);
    send_raw(good, &ready, sizeof ready, 0);
    send_raw(odd, &ready, sizeof ready, 0);
    send_raw(good, &ready, sizeof ready, 0);
    assert_int_equal(bus_receive(router, WAIT_MS, &m), 1);
    assert_string_equal(m.from, "loader-1.1");
    assert_int_equal(m.type, WIRE_READY);
    for (int i = 0; i < 50 && bus_refused(router) < 5; i++)
        assert_int_equal(bus_receive(router, 100, &m), 0);
    assert_int_equal(bus_refused(router), 5);
    zmq_close(good);
    zmq_close(odd);
    zmq_ctx_term(context);
    bus_close(&router);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_round_trip),
        cmocka_unit_test(text_has_a_nul_behind_it),
        cmocka_unit_test(an_unknown_peer_is_told),
        cmocka_unit_test(a_full_pipe_does_not_wait),
        cmocka_unit_test(an_outbox_is_bounded),
        cmocka_unit_test(rubbish_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
