/* Nodes, stack, marks and memo of the pickle machine, and how an opcode takes its argument. */
#include "trainer/pickle_internal.h"

#include "shm/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) int pickle_refuse(const pickle_t *p, const char *fmt, ...)
{
    char what[2 * PICKLE_NAME_BYTES + 128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(ERR_CONFIG, "%s: byte %llu of its pickle: %s", p->origin,
                   (unsigned long long)p->op_at, what);
}

static int pickle_no_memory(const pickle_t *p)
{
    return err_set(ERR_ENV, "%s: out of memory while reading its pickle", p->origin);
}

/* ---- nodes, stack, memo ---- */

int pickle_new_node(pickle_t *p, pickle_kind_t kind, pickle_node_t **node)
{
    if (p->n_nodes == PICKLE_NODES_MAX)
        return pickle_refuse(p, "more than %d objects", PICKLE_NODES_MAX);
    if (p->n_nodes % PICKLE_CHUNK == 0) {
        pickle_node_t *chunk = calloc(PICKLE_CHUNK, sizeof *chunk);
        if (!chunk)
            return pickle_no_memory(p);
        p->chunks[p->n_chunks++] = chunk;
    }
    *node = &p->chunks[p->n_nodes / PICKLE_CHUNK][p->n_nodes % PICKLE_CHUNK];
    (*node)->kind = kind;
    p->n_nodes++;
    return 0;
}

/* Makes room for `more` elements of `size` bytes behind `count`; every count here is below 2^27. */
static int pickle_grow(pickle_t *p, void **array, uint32_t *room, uint32_t count, uint32_t more,
                       size_t size)
{
    if (more <= *room - count)
        return 0;
    uint32_t want = *room ? *room : 4;
    while (want - count < more)
        want *= 2;
    void *bigger = realloc(*array, (size_t)want * size);
    if (!bigger)
        return pickle_no_memory(p);
    *array = bigger;
    *room = want;
    return 0;
}

int pickle_push(pickle_t *p, pickle_node_t *n)
{
    pickle_list_t *s = &p->stack;
    int rc = pickle_grow(p, (void **)&s->at, &s->room, s->count, 1, sizeof(pickle_node_t *));
    if (rc == 0)
        s->at[s->count++] = n;
    return rc;
}

int pickle_push_new(pickle_t *p, pickle_kind_t kind, pickle_node_t **node)
{
    int rc = pickle_new_node(p, kind, node);
    return rc < 0 ? rc : pickle_push(p, *node);
}

/* How many nodes lie above the last mark: what an opcode may take. */
uint32_t pickle_above(const pickle_t *p)
{
    return p->stack.count - (p->marks.count ? p->marks.at[p->marks.count - 1] : 0);
}

int pickle_need(const pickle_t *p, uint32_t n)
{
    return pickle_above(p) < n
               ? pickle_refuse(p, "an opcode finds too few objects: the file is damaged")
               : 0;
}

pickle_node_t *pickle_pop(pickle_t *p)
{
    return p->stack.at[--p->stack.count];
}

pickle_node_t *pickle_top(const pickle_t *p)
{
    return p->stack.at[p->stack.count - 1];
}

int pickle_mark(pickle_t *p)
{
    pickle_marks_t *m = &p->marks;
    int rc = pickle_grow(p, (void **)&m->at, &m->room, m->count, 1, sizeof *m->at);
    if (rc == 0)
        m->at[m->count++] = p->stack.count;
    return rc;
}

/* Removes the last mark: the nodes above it are the first *n behind *first. They stay in place until
 * the next push. */
int pickle_pop_mark(pickle_t *p, pickle_node_t ***first, uint32_t *n)
{
    if (p->marks.count == 0)
        return pickle_refuse(p, "an opcode finds no mark: the file is damaged");
    const uint32_t at = p->marks.at[--p->marks.count];
    *n = p->stack.count - at;
    *first = p->stack.at ? p->stack.at + at : NULL;
    p->stack.count = at;
    return 0;
}

int pickle_add_items(pickle_t *p, pickle_node_t *to, pickle_node_t *const *items, uint32_t n)
{
    int rc = pickle_grow(p, (void **)&to->items, &to->room, to->count, n, sizeof(pickle_node_t *));
    if (rc < 0 || n == 0)
        return rc;
    memcpy(to->items + to->count, items, n * sizeof(pickle_node_t *));
    to->count += n;
    return 0;
}

int pickle_memo_put(pickle_t *p, uint32_t number)
{
    pickle_list_t *m = &p->memo;
    int rc = pickle_need(p, 1);
    if (rc < 0)
        return rc;
    if (number >= PICKLE_MEMO_MAX)
        return pickle_refuse(p, "memo entry %u: more than %d", number, PICKLE_MEMO_MAX);
    if (number >= m->count) {
        rc = pickle_grow(p, (void **)&m->at, &m->room, m->count, number + 1 - m->count,
                         sizeof(pickle_node_t *));
        if (rc < 0)
            return rc;
        memset(m->at + m->count, 0, (number + 1 - m->count) * sizeof(pickle_node_t *));
        m->count = number + 1;
    }
    p->memoized += m->at[number] == NULL;
    m->at[number] = pickle_top(p);
    return 0;
}

int pickle_memo_get(pickle_t *p, uint32_t number)
{
    if (number >= p->memo.count || !p->memo.at[number])
        return pickle_refuse(p, "memo entry %u is not there: the file is damaged", number);
    return pickle_push(p, p->memo.at[number]);
}

/* ---- arguments of opcodes ---- */

int pickle_take(pickle_t *p, uint64_t n, const unsigned char **bytes)
{
    if (n > p->total - p->at)
        return pickle_refuse(p, "it ends too early: cut short?");
    *bytes = p->bytes + p->at;
    p->at += n;
    return 0;
}

/* A little-endian number of n <= 8 bytes. */
int pickle_take_uint(pickle_t *p, int n, uint64_t *value)
{
    const unsigned char *b = NULL;
    int rc = pickle_take(p, (uint64_t)n, &b);
    *value = 0;
    for (int i = n - 1; rc == 0 && i >= 0; i--)
        *value = *value << 8 | b[i];
    return rc;
}

int pickle_take_line(pickle_t *p, const char **text, uint64_t *bytes)
{
    const unsigned char *from = p->bytes + p->at;
    const unsigned char *end = memchr(from, '\n', p->total - p->at);
    if (!end)
        return pickle_refuse(p, "it ends too early: cut short?");
    *text = (const char *)from;
    *bytes = (uint64_t)(end - from);
    p->at += *bytes + 1;
    return 0;
}

int pickle_push_int(pickle_t *p, pickle_kind_t kind, int64_t value)
{
    pickle_node_t *n = NULL;
    int rc = pickle_push_new(p, kind, &n);
    if (rc == 0)
        n->integer = value;
    return rc;
}

/* Two's complement, little-endian, any length; beyond 64 bits only that it was there. */
int pickle_push_long(pickle_t *p, uint64_t length)
{
    const unsigned char *b = NULL;
    pickle_node_t *n = NULL;
    int rc = pickle_take(p, length, &b);
    if (rc < 0)
        return rc;
    if (length > 8)
        return pickle_push_new(p, PICKLE_LONG, &n);
    uint64_t value = length > 0 && b[length - 1] & 0x80 ? UINT64_MAX : 0;
    for (uint64_t i = length; i-- > 0;)
        value = value << 8 | b[i];
    return pickle_push_int(p, PICKLE_INT, (int64_t)value);
}

/* Big-endian, unlike everything else. */
int pickle_push_float(pickle_t *p)
{
    const unsigned char *b = NULL;
    pickle_node_t *n = NULL;
    uint64_t bits = 0;
    int rc = pickle_take(p, 8, &b);
    if (rc == 0)
        rc = pickle_push_new(p, PICKLE_FLOAT, &n);
    if (rc < 0)
        return rc;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | b[i];
    memcpy(&n->number, &bits, sizeof bits);
    return 0;
}

/* A length of `width` bytes, and so many bytes. */
int pickle_push_text(pickle_t *p, pickle_kind_t kind, int width)
{
    const unsigned char *b = NULL;
    pickle_node_t *n = NULL;
    uint64_t length;
    int rc = pickle_take_uint(p, width, &length);
    if (rc == 0)
        rc = pickle_take(p, length, &b);
    if (rc == 0)
        rc = pickle_push_new(p, kind, &n);
    if (rc < 0)
        return rc;
    n->text = (const char *)b;
    n->bytes = length;
    return 0;
}
