/* The wire format of Protocol Buffers, written: fields into a growing buffer, messages inside of
 * messages, and large byte strings that stay where they are.
 *
 * A message inside is written between proto_begin and proto_end; its length goes in front of it when
 * it ends, by moving what it holds. That is cheap because weights are never copied: proto_borrow notes
 * the place in the text and the caller's memory, which must stay until the pieces have been written.
 * A buffer that ran out of memory takes no more and says so at the end (proto_failed), so that writers
 * need no checks. Any thread.
 */
#ifndef SLUICE_TRAINER_ONNX_PROTO_H
#define SLUICE_TRAINER_ONNX_PROTO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct {
    size_t at;        /* in the buffer's own bytes: what is borrowed comes before this one */
    const void *data; /* the caller's */
    size_t bytes;
} proto_piece_t;

typedef struct {
    uint8_t *bytes;
    size_t used, room;
    proto_piece_t *pieces;
    size_t n_pieces, room_pieces;
    uint64_t borrowed; /* bytes of all pieces */
    int failed;        /* out of memory */
} proto_t;

/* Zeroed memory is an empty buffer. */
void proto_fini(proto_t *p);

/* One field each: its number, and its value. */
void proto_int(proto_t *p, uint32_t field, int64_t value);
void proto_bytes(proto_t *p, uint32_t field, const void *data, size_t bytes);
void proto_string(proto_t *p, uint32_t field, const char *text);
void proto_borrow(proto_t *p, uint32_t field, const void *data, size_t bytes);

/* A message as a field: what is written until proto_end belongs to it. */
typedef struct {
    size_t used;
    uint64_t borrowed;
} proto_mark_t;
proto_mark_t proto_begin(proto_t *p, uint32_t field);
void proto_end(proto_t *p, proto_mark_t mark);
/* Fields of another buffer behind the present ones; pieces stay borrowed from where they were. */
void proto_append(proto_t *p, const proto_t *other);

uint64_t proto_total(const proto_t *p);
int proto_failed(const proto_t *p);
/* The bytes in order, as at most 2 * n_pieces + 1 stretches of memory; returns how many. */
size_t proto_stretches(const proto_t *p, struct iovec *out);

#endif
