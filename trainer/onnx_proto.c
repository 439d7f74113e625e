#include "trainer/onnx_proto.h"

#include <stdlib.h>
#include <string.h>

enum { WIRE_VARINT = 0, WIRE_LENGTH = 2, VARINT_BYTES = 10 };

void proto_fini(proto_t *p)
{
    free(p->bytes);
    free(p->pieces);
    memset(p, 0, sizeof *p);
}

/* Room for more bytes; 0 when there is none, and for good. */
static int reserve(proto_t *p, size_t more)
{
    if (p->failed)
        return 0;
    if (p->room - p->used >= more)
        return 1;
    const size_t room = p->used + more < 2048 ? 4096 : 2 * (p->used + more);
    void *bytes = realloc(p->bytes, room);
    p->failed = bytes == NULL;
    if (p->failed)
        return 0;
    p->bytes = bytes;
    p->room = room;
    return 1;
}

static void put(proto_t *p, const void *data, size_t bytes)
{
    if (bytes == 0 || !reserve(p, bytes))
        return;
    memcpy(p->bytes + p->used, data, bytes);
    p->used += bytes;
}

static size_t varint(uint8_t out[VARINT_BYTES], uint64_t value)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        out[n++] = (uint8_t)(value | 0x80);
    out[n++] = (uint8_t)value;
    return n;
}

static void put_varint(proto_t *p, uint64_t value)
{
    uint8_t text[VARINT_BYTES];
    put(p, text, varint(text, value));
}

static void put_key(proto_t *p, uint32_t field, uint32_t wire)
{
    put_varint(p, (uint64_t)field << 3 | wire);
}

void proto_int(proto_t *p, uint32_t field, int64_t value)
{
    put_key(p, field, WIRE_VARINT);
    put_varint(p, (uint64_t)value);
}

void proto_bytes(proto_t *p, uint32_t field, const void *data, size_t bytes)
{
    put_key(p, field, WIRE_LENGTH);
    put_varint(p, bytes);
    put(p, data, bytes);
}

void proto_string(proto_t *p, uint32_t field, const char *text)
{
    proto_bytes(p, field, text, strlen(text));
}

/* Notes bytes that come before byte `at` of the buffer's own. */
static void add_piece(proto_t *p, size_t at, const void *data, size_t bytes)
{
    if (p->failed || bytes == 0)
        return;
    if (p->n_pieces == p->room_pieces) {
        const size_t room = p->room_pieces ? 2 * p->room_pieces : 64;
        void *pieces = realloc(p->pieces, room * sizeof *p->pieces);
        p->failed = pieces == NULL;
        if (p->failed)
            return;
        p->pieces = pieces;
        p->room_pieces = room;
    }
    p->pieces[p->n_pieces++] = (proto_piece_t){.at = at, .data = data, .bytes = bytes};
    p->borrowed += bytes;
}

void proto_borrow(proto_t *p, uint32_t field, const void *data, size_t bytes)
{
    put_key(p, field, WIRE_LENGTH);
    put_varint(p, bytes);
    add_piece(p, p->used, data, bytes);
}

proto_mark_t proto_begin(proto_t *p, uint32_t field)
{
    put_key(p, field, WIRE_LENGTH);
    return (proto_mark_t){.used = p->used, .borrowed = p->borrowed};
}

void proto_end(proto_t *p, proto_mark_t mark)
{
    uint8_t text[VARINT_BYTES];
    if (p->failed)
        return;
    const uint64_t length = p->used - mark.used + (p->borrowed - mark.borrowed);
    const size_t n = varint(text, length);
    if (!reserve(p, n))
        return;
    memmove(p->bytes + mark.used + n, p->bytes + mark.used, p->used - mark.used);
    memcpy(p->bytes + mark.used, text, n);
    p->used += n;
    /* Pieces of this message lie behind its length; a piece of before it may end where it begins, but
     * then the message's key stands between them. */
    for (size_t i = p->n_pieces; i > 0 && p->pieces[i - 1].at >= mark.used; i--)
        p->pieces[i - 1].at += n;
}

void proto_append(proto_t *p, const proto_t *other)
{
    const size_t base = p->used;
    p->failed |= other->failed;
    put(p, other->bytes, other->used);
    for (size_t i = 0; i < other->n_pieces; i++)
        add_piece(p, base + other->pieces[i].at, other->pieces[i].data, other->pieces[i].bytes);
}

uint64_t proto_total(const proto_t *p)
{
    return p->used + p->borrowed;
}

int proto_failed(const proto_t *p)
{
    return p->failed;
}

size_t proto_stretches(const proto_t *p, struct iovec *out)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i <= p->n_pieces; i++) {
        const size_t end = i < p->n_pieces ? p->pieces[i].at : p->used;
        if (end > at)
            out[n++] = (struct iovec){.iov_base = p->bytes + at, .iov_len = end - at};
        at = end;
        if (i < p->n_pieces)
            out[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)p->pieces[i].data,
                                      .iov_len = p->pieces[i].bytes};
    }
    return n;
}
