/* control/bus and control/outbox: round trips, unknown peers, full pipes, refused frames, watchers. */
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

enum { WAIT_MS = 60000, MARK = 1 << 30 };

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
    outbox_t *box;
    assert_int_equal(outbox_new(1 << 10, 1 << 12, &box), 0);
    int sent = 0, kept = 0;
    while (!kept && sent < 200000) {
        int rc = 0;
        for (; rc == 0 && sent < 200000; sent += rc == 0)
            rc = bus_send(router, "scribe-0.1", &ready, sizeof ready);
        assert_int_equal(rc, ERR_TIMEOUT);
        /* An outbox keeps what the pipe does not take, and loses nothing of it. Whoever carries the pipe away may
         * have made room in it meanwhile: then it is filled again. */
        assert_int_equal(outbox_push(box, &ready, sizeof ready, 0), 0);
        assert_int_equal(outbox_flush(box, router, "scribe-0.1"), 0);
        kept = outbox_waiting(box) == 1;
        sent += !kept;
    }
    assert_true(kept);
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
    for (int i = 0; i < WAIT_MS / 100 && bus_refused(router) < 5; i++)
        assert_int_equal(bus_receive(router, 100, &m), 0);
    assert_int_equal(bus_refused(router), 5);
    zmq_close(good);
    zmq_close(odd);
    zmq_ctx_term(context);
    bus_close(&router);
}

static void publish_step(bus_t *bus, uint32_t step)
{
    wire_progress_t p;
    memset(&p, 0, sizeof p);
    wire_begin(&p, WIRE_PROGRESS, sizeof p);
    p.step = step;
    assert_int_equal(bus_publish(bus, &p, sizeof p), 0);
}

static uint32_t number_of(const bus_message_t *m)
{
    return ((const wire_header_t *)m->frame)->number;
}

static uint32_t step_of(const bus_message_t *m)
{
    return ((const wire_progress_t *)m->frame)->step;
}

/* A subscription takes effect a while after it is made. */
static void until_heard(bus_t *publisher, bus_t *watcher)
{
    bus_message_t m;
    int rc = 0;
    for (int i = 0; i < WAIT_MS / 10 && rc == 0; i++) {
        publish_step(publisher, 0);
        rc = bus_receive(watcher, 10, &m);
    }
    assert_int_equal(rc, 1);
}

/* Reads up to the published step; what was published before has come then. */
static void read_up_to(bus_t *watcher, uint32_t step)
{
    bus_message_t m;
    do
        assert_int_equal(bus_receive(watcher, WAIT_MS, &m), 1);
    while (step_of(&m) != step);
}

/* What is published reaches every watcher, in order and numbered, and what is not ours is refused. */
static void watchers_get_what_is_published(void **state)
{
    (void)state;
    bus_t *publisher, *watchers[2];
    bus_message_t m;
    uint32_t number = 0;
    const char *at = endpoint();
    assert_int_equal(bus_publisher(at, &publisher), 0);
    publish_step(publisher, 0); /* nobody is there: nothing happens */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(bus_subscriber(at, &watchers[i]), 0);
        until_heard(publisher, watchers[i]);
    }
    publish_step(publisher, MARK);
    for (int i = 0; i < 2; i++)
        read_up_to(watchers[i], MARK);
    wire_header_t odd = {.magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = WIRE_TYPES};
    for (uint32_t step = 1; step <= 3; step++)
        publish_step(publisher, step);
    assert_int_equal(bus_publish(publisher, &odd, sizeof odd), 0);
    publish_step(publisher, 4);
    assert_int_equal(bus_publish(publisher, &odd, 3), ERR_FAILED);
    for (int i = 0; i < 2; i++) {
        for (uint32_t step = 1; step <= 4; step++) {
            assert_int_equal(bus_receive(watchers[i], WAIT_MS, &m), 1);
            assert_int_equal(m.type, WIRE_PROGRESS);
            assert_int_equal(step_of(&m), step);
            /* The refused frame had a number too. */
            if (step > 1)
                assert_int_equal(number_of(&m), number + (step == 4 ? 2 : 1));
            number = number_of(&m);
        }
        assert_int_equal(bus_refused(watchers[i]), 1);
        bus_close(&watchers[i]);
    }
    bus_close(&publisher);
    assert_null(publisher);
}

/* One watcher does not read. Far more is published than all pipes hold: no send waits or fails, the
 * other watcher misses nothing, and the first sees by the numbers that it missed some. */
static void a_slow_watcher_holds_nobody_up(void **state)
{
    (void)state;
    enum { BLOCKS = 600, BLOCK = 100 };
    bus_t *publisher, *slow, *quick;
    bus_message_t m;
    const char *at = endpoint();
    assert_int_equal(bus_publisher(at, &publisher), 0);
    assert_int_equal(bus_subscriber(at, &slow), 0);
    assert_int_equal(bus_subscriber(at, &quick), 0);
    until_heard(publisher, slow);
    until_heard(publisher, quick);
    publish_step(publisher, MARK);
    read_up_to(quick, MARK);
    read_up_to(slow, MARK);
    uint32_t last = 0;
    for (uint32_t block = 0; block < BLOCKS; block++) {
        for (uint32_t i = 0; i < BLOCK; i++)
            publish_step(publisher, block * BLOCK + i);
        for (uint32_t i = 0; i < BLOCK; i++) {
            assert_int_equal(bus_receive(quick, WAIT_MS, &m), 1);
            assert_true(last == 0 || number_of(&m) == last + 1);
            last = number_of(&m);
        }
    }
    /* When it reads again it gets what is published then, behind what its pipe held. */
    uint32_t got = 0, missed = 0, before = 0, marks = 0;
    for (int heard = 0; !heard && marks < WAIT_MS / 200;) {
        if (bus_receive(slow, 200, &m) != 1) {
            publish_step(publisher, MARK);
            marks++;
            continue;
        }
        if (before)
            missed += number_of(&m) - before - 1;
        before = number_of(&m);
        heard = step_of(&m) == MARK;
        got += !heard;
    }
    assert_true(got > 0 && got < BLOCKS * BLOCK);
    assert_true(marks > 0 && marks < WAIT_MS / 200);
    assert_true(missed >= BLOCKS * BLOCK - got);
    bus_close(&slow);
    bus_close(&quick);
    bus_close(&publisher);
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
        cmocka_unit_test(watchers_get_what_is_published),
        cmocka_unit_test(a_slow_watcher_holds_nobody_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
