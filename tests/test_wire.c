/* control/wire: every type's length is checked, texts end, agreement and checksum depend on what
 * they must. */
#include "control/wire.h"
#include "shm/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int takes_text(uint32_t type)
{
    return type == WIRE_WELCOME || type == WIRE_EVENT || type == WIRE_REPLY || type == WIRE_CSV ||
           type == WIRE_RUN_INFO || type == WIRE_ARGS || type == WIRE_LOG || type == WIRE_READY ||
           type == WIRE_FOUND || type == WIRE_MEASURED || type == WIRE_PART;
}

static unsigned char *frame_of(uint32_t type, size_t bytes)
{
    unsigned char *f = malloc(bytes + 1);
    memset(f, 'x', bytes);
    f[bytes] = 0;
    wire_begin(f, (wire_type_t)type, bytes);
    if (type == WIRE_WELCOME && bytes >= sizeof(wire_welcome_t)) {
        uint32_t yaml = (uint32_t)(bytes - sizeof(wire_welcome_t));
        memcpy(f + offsetof(wire_welcome_t, yaml_bytes), &yaml, sizeof yaml);
    }
    return f;
}

static int check(uint32_t type, size_t bytes)
{
    unsigned char *f = frame_of(type, bytes);
    int rc = wire_check(f, bytes);
    free(f);
    return rc;
}

static void every_type_has_its_length(void **state)
{
    (void)state;
    for (uint32_t type = 1; type < WIRE_TYPES; type++) {
        size_t body = wire_body_bytes(type);
        assert_true(body >= sizeof(wire_header_t));
        assert_int_equal(check(type, body), 0);
        if (body > sizeof(wire_header_t))
            assert_true(check(type, body - 1) < 0);
        assert_int_equal(check(type, body + 1) < 0, !takes_text(type));
        assert_string_not_equal(wire_type_name(type), "unknown");
    }
    assert_int_equal(wire_body_bytes(0), 0);
    assert_int_equal(wire_body_bytes(WIRE_TYPES), 0);
}

static void a_wrong_header_is_refused(void **state)
{
    (void)state;
    size_t n = sizeof(wire_stop_t);
    for (int i = 0; i < 5; i++) {
        unsigned char *f = frame_of(WIRE_STOP, n);
        wire_header_t h;
        memcpy(&h, f, sizeof h);
        if (i == 0)
            h.magic ^= 1;
        else if (i == 1)
            h.version++;
        else if (i == 2)
            h.type = WIRE_TYPES;
        else if (i == 3)
            h.type = 0;
        else
            h.bytes++;
        memcpy(f, &h, sizeof h);
        assert_true(wire_check(f, n) < 0);
        free(f);
    }
    unsigned char tiny[15] = {0};
    assert_true(wire_check(tiny, sizeof tiny) < 0);
    assert_true(wire_check(tiny, 0) < 0);
    assert_true(check(WIRE_EVENT, (size_t)WIRE_MAX_BYTES + 1) < 0);
}

static void a_welcome_counts_its_yaml(void **state)
{
    (void)state;
    size_t n = sizeof(wire_welcome_t) + 5;
    unsigned char *f = frame_of(WIRE_WELCOME, n);
    uint32_t wrong = 6;
    assert_int_equal(wire_check(f, n), 0);
    memcpy(f + offsetof(wire_welcome_t, yaml_bytes), &wrong, sizeof wrong);
    assert_true(wire_check(f, n) < 0);
    free(f);
}

static void texts_are_terminated(void **state)
{
    (void)state;
    unsigned char *f = frame_of(WIRE_BYE, sizeof(wire_bye_t));
    assert_int_equal(wire_check(f, sizeof(wire_bye_t)), 0);
    assert_int_equal(strlen(((wire_bye_t *)(void *)f)->text), WIRE_TEXT - 1);
    free(f);
    f = frame_of(WIRE_SNAPSHOT, sizeof(wire_snapshot_t));
    assert_int_equal(wire_check(f, sizeof(wire_snapshot_t)), 0);
    assert_int_equal(strlen(((wire_snapshot_t *)(void *)f)->path), 255);
    assert_int_equal(strlen(((wire_snapshot_t *)(void *)f)->copy_to), 255);
    free(f);
    f = frame_of(WIRE_HELLO, sizeof(wire_hello_t));
    assert_int_equal(wire_check(f, sizeof(wire_hello_t)), 0);
    assert_int_equal(strlen(((wire_hello_t *)(void *)f)->token), WIRE_TOKEN - 1);
    free(f);
    size_t bytes;
    f = frame_of(WIRE_EVENT, sizeof(wire_plain_t) + 3);
    assert_string_equal(wire_text(f, &bytes), "xxx");
    assert_int_equal(bytes, 3);
    free(f);
}

static void agreement_covers_each_field(void **state)
{
    (void)state;
    plan_t p = {.seed = 7,
                .n_train = 100,
                .n_val = 10,
                .ranks = 2,
                .batch = 16,
                .val_batch = 16,
                .imgsz = 640,
                .epochs = 20,
                .val_every_epoch = 1,
                .close_mosaic = 5};
    uint64_t base = wire_agreement(&p, 3, 99);
    assert_int_equal(wire_agreement(&p, 3, 99), base);
    assert_int_not_equal(wire_agreement(&p, 4, 99), base);
    assert_int_not_equal(wire_agreement(&p, 3, 98), base);
    plan_t q = p;
    q.seed++;
    assert_int_not_equal(wire_agreement(&q, 3, 99), base);
    q = p;
    q.first_position = 40;
    assert_int_not_equal(wire_agreement(&q, 3, 99), base);
    q = p;
    q.ranks = 4;
    assert_int_not_equal(wire_agreement(&q, 3, 99), base);
    q = p;
    q.batch = 32;
    assert_int_not_equal(wire_agreement(&q, 3, 99), base);
    q = p;
    q.imgsz = 672;
    assert_int_not_equal(wire_agreement(&q, 3, 99), base);
    q = p;
    q.close_mosaic = 20;
    assert_int_not_equal(wire_agreement(&q, 3, 99), base);
}

static void checksum_sees_every_byte(void **state)
{
    (void)state;
    unsigned char data[100];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37);
    for (size_t n = 0; n <= sizeof data; n += 7) {
        uint64_t sum = wire_checksum(data, n);
        for (size_t i = 0; i < n; i++) {
            data[i] ^= 0x40;
            assert_int_not_equal(wire_checksum(data, n), sum);
            data[i] ^= 0x40;
        }
        assert_int_equal(wire_checksum(data, n), sum);
    }
    unsigned char zeros[64] = {0};
    assert_int_not_equal(wire_checksum(zeros, 31), wire_checksum(zeros, 32));
    assert_int_not_equal(wire_checksum(zeros, 32), wire_checksum(zeros, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_its_length),   cmocka_unit_test(a_wrong_header_is_refused),
        cmocka_unit_test(a_welcome_counts_its_yaml),   cmocka_unit_test(texts_are_terminated),
        cmocka_unit_test(agreement_covers_each_field), cmocka_unit_test(checksum_sees_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
