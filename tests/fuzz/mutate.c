#include "tests/fuzz/mutate.h"

#include "control/wire.h"

#include <string.h>

enum { CHANGES_MOST = 6 };

typedef struct {
    uint64_t state;
    uint8_t *data;
    size_t bytes, room;
} work_t;

static uint64_t draw(work_t *w, uint64_t below)
{
    w->state = wire_mix(w->state, 1);
    return below ? w->state % below : 0;
}

/* Numbers on the edge of something. */
static uint64_t edge(work_t *w)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     0x7F,
                                     0x80,
                                     0xFF,
                                     0x100,
                                     0x7FFF,
                                     0x8000,
                                     0xFFDC /* 65500 */,
                                     0xFFFF,
                                     0x10000,
                                     0x7FFFFFFF,
                                     0x80000000,
                                     0xFFFFFFFF,
                                     0x100000000,
                                     0x7FFFFFFFFFFFFFFF,
                                     0x8000000000000000,
                                     UINT64_MAX};
    uint64_t v = edges[draw(w, sizeof edges / sizeof edges[0])];
    return draw(w, 4) ? v : v + draw(w, 3) - 1;
}

static void put_number(work_t *w)
{
    size_t width = (size_t)1 << draw(w, 4);
    uint64_t v = edge(w);
    int big = (int)draw(w, 2);
    if (w->bytes < width)
        return;
    uint8_t *at = w->data + draw(w, w->bytes - width + 1);
    for (size_t i = 0; i < width; i++)
        at[i] = (uint8_t)(v >> 8 * (big ? width - 1 - i : i));
}

/* Digits are where texts have their numbers. */
static void change_digit(work_t *w)
{
    size_t first = draw(w, w->bytes);
    for (size_t i = 0; i < w->bytes; i++) {
        uint8_t *c = &w->data[(first + i) % w->bytes];
        if (*c >= '0' && *c <= '9') {
            *c = (uint8_t) "0123456789-.e"[draw(w, 13)];
            return;
        }
    }
}

static void remove_range(work_t *w)
{
    size_t at = draw(w, w->bytes), most = w->bytes - at, n = 1 + draw(w, most < 64 ? most : 64);
    memmove(w->data + at, w->data + at + n, w->bytes - at - n);
    w->bytes -= n;
}

/* Puts a piece of other bytes (or of its own: a repetition) somewhere, making room. */
static void insert(work_t *w, const uint8_t *from, size_t bytes)
{
    uint8_t piece[64];
    size_t first = draw(w, bytes), n = bytes - first;
    n = 1 + draw(w, n < sizeof piece ? n : sizeof piece);
    if (n > w->room - w->bytes || first + n > bytes)
        return;
    memcpy(piece, from + first, n);
    size_t at = draw(w, w->bytes + 1);
    memmove(w->data + at + n, w->data + at, w->bytes - at);
    memcpy(w->data + at, piece, n);
    w->bytes += n;
}

static void change(work_t *w, const uint8_t *b, size_t b_bytes)
{
    uint64_t kind = draw(w, 8);
    if (w->bytes == 0)
        return;
    switch (kind) {
    case 0: w->data[draw(w, w->bytes)] ^= (uint8_t)(1u << draw(w, 8)); break;
    case 1: w->data[draw(w, w->bytes)] = (uint8_t)draw(w, 256); break;
    case 2:
    case 3: put_number(w); break;
    case 4: change_digit(w); break;
    case 5: remove_range(w); break;
    case 6: insert(w, w->data, w->bytes); break;
    default:
        if (b_bytes > 0)
            insert(w, b, b_bytes);
        break;
    }
}

size_t mutate(uint64_t number, const uint8_t *a, size_t a_bytes, const uint8_t *b, size_t b_bytes,
              uint8_t *out, size_t room)
{
    work_t w = {.state = wire_mix(0, number), .data = out, .room = room};
    w.bytes = a_bytes < room ? a_bytes : room;
    memcpy(out, a, w.bytes);
    for (uint64_t n = 1 + draw(&w, CHANGES_MOST); n > 0; n--)
        change(&w, b, b_bytes);
    if (draw(&w, 10) == 0 && w.bytes > 0) /* cut short */
        w.bytes = draw(&w, w.bytes);
    return w.bytes;
}
