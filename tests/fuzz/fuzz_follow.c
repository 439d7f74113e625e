/* What a watcher shows of messages that are published: a series of frames, each a type and a length
 * byte and so much body (its text, where the type has one). */
#include "tests/fuzz/fuzz.h"

#include "tools/follow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t types[] = {WIRE_PROGRESS, WIRE_EPOCH_END, WIRE_EVENT, WIRE_END, WIRE_REPLY};

/* What is shown goes nowhere: libFuzzer writes to standard error. */
static void show(const bus_message_t *m)
{
    static FILE *nowhere;
    if (!nowhere)
        nowhere = fopen("/dev/null", "w");
    fuzz_require(nowhere != NULL, "no /dev/null");
    FILE *kept = stdout;
    stdout = nowhere;
    for (int json = 0; json < 2; json++)
        follow_message(m, json);
    stdout = kept;
}

void fuzz_follow(const uint8_t *data, size_t bytes)
{
    for (size_t at = 0; at + 2 <= bytes;) {
        uint32_t type = types[data[at] % sizeof types];
        size_t body = wire_body_bytes(type), n = 4u * data[at + 1];
        n = n < bytes - at - 2 ? n : bytes - at - 2;
        size_t room = (body > sizeof(wire_header_t) + n ? body : sizeof(wire_header_t) + n);
        char *frame = calloc(1, room + 1);
        fuzz_require(frame != NULL, "no memory");
        memcpy(frame + sizeof(wire_header_t), data + at + 2, n);
        size_t whole = type == WIRE_EVENT ? room : body;
        wire_begin(frame, (wire_type_t)type, whole);
        frame[whole] = '\0';
        if (wire_check(frame, whole) == 0) {
            bus_message_t m = {.type = type, .bytes = whole, .frame = frame};
            show(&m);
        }
        free(frame);
        at += 2 + n;
    }
}

void fuzz_follow_seeds(fuzz_seed_fn give, void *user)
{
    static const char event[] =
        "\x02\x14{\"time\":1.5,\"event\":\"death\",\"process\":\"loader-3\","
        "\"why\":\"signal 9 \\u00e4\",\"ok\":true}    ";
    char numbers[2 + 100] = {0, 25};
    give(user, "event", event, sizeof event - 1);
    for (int i = 2; i < (int)sizeof numbers; i++)
        numbers[i] = (char)(i % 4 == 1 ? 0x3F : i);
    give(user, "progress", numbers, sizeof numbers);
    numbers[0] = 1;
    give(user, "epoch-end", numbers, sizeof numbers);
    numbers[0] = 3;
    give(user, "end", numbers, sizeof numbers);
}
