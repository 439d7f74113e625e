/* Inside of the pickle machine: pickle.c runs opcodes, pickle_stack.c holds nodes, stack and memo,
 * pickle_object.c makes classes, objects and calls. Private to trainer/pickle*.c. Functions return 0
 * or a code with the error text set.
 */
#ifndef SLUICE_TRAINER_PICKLE_INTERNAL_H
#define SLUICE_TRAINER_PICKLE_INTERNAL_H

#include "trainer/pickle.h"

enum {
    PICKLE_BYTES_MAX = 16 << 20, /* a whole yolo11x with its optimiser's state: under 2 MB */
    PICKLE_NODES_MAX = 1 << 20,
    PICKLE_MEMO_MAX = 1 << 20,
    PICKLE_CHUNK = 4096, /* nodes allocated at once */
    PICKLE_NAME_BYTES = 256,
};

typedef struct {
    pickle_node_t **at;
    uint32_t count, room;
} pickle_list_t;

typedef struct {
    uint32_t *at;
    uint32_t count, room;
} pickle_marks_t;

struct pickle {
    char *origin;
    const unsigned char *bytes;
    uint64_t total, at;
    uint64_t op_at; /* of the present opcode, for sentences */
    pickle_node_t **chunks;
    uint32_t n_chunks, n_nodes;
    pickle_list_t stack, memo; /* memo entries may be NULL */
    pickle_marks_t marks;
    uint32_t memoized; /* entries set: MEMOIZE's next number */
    pickle_node_t *root;
};

int pickle_refuse(const pickle_t *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int pickle_new_node(pickle_t *p, pickle_kind_t kind, pickle_node_t **node);
int pickle_push(pickle_t *p, pickle_node_t *n);
int pickle_push_new(pickle_t *p, pickle_kind_t kind, pickle_node_t **node);
/* How many nodes lie above the last mark: what an opcode may take. */
uint32_t pickle_above(const pickle_t *p);
/* Fails unless there are n of them. pop and top are for those that need has seen. */
int pickle_need(const pickle_t *p, uint32_t n);
pickle_node_t *pickle_pop(pickle_t *p);
pickle_node_t *pickle_top(const pickle_t *p);
int pickle_mark(pickle_t *p);
/* Removes the last mark: the nodes above it are the *n at *first. They stay in place until the next
 * push. */
int pickle_pop_mark(pickle_t *p, pickle_node_t ***first, uint32_t *n);
int pickle_add_items(pickle_t *p, pickle_node_t *to, pickle_node_t *const *items, uint32_t n);
int pickle_memo_put(pickle_t *p, uint32_t number);
int pickle_memo_get(pickle_t *p, uint32_t number);

/* An opcode's argument: n bytes, a little-endian number of n <= 8 bytes, a line. */
int pickle_take(pickle_t *p, uint64_t n, const unsigned char **bytes);
int pickle_take_uint(pickle_t *p, int n, uint64_t *value);
int pickle_take_line(pickle_t *p, const char **text, uint64_t *bytes);
int pickle_push_int(pickle_t *p, pickle_kind_t kind, int64_t value);
/* Two's complement, little-endian, any length; beyond 64 bits only that it was there. */
int pickle_push_long(pickle_t *p, uint64_t length);
/* Big-endian, unlike everything else. */
int pickle_push_float(pickle_t *p);
/* A length of `width` bytes, and so many bytes. */
int pickle_push_text(pickle_t *p, pickle_kind_t kind, int width);

int pickle_push_global(pickle_t *p);
int pickle_stack_global(pickle_t *p);
int pickle_reduce(pickle_t *p);
int pickle_new_object(pickle_t *p, int keywords);
int pickle_build(pickle_t *p);
int pickle_persistent(pickle_t *p);

#endif
