/* DESIGN
 * The machine of Python's own `pickle`: a stack of nodes, marks into it, and a memo. One opcode makes
 * at most one node, so the number of nodes is bounded by the bytes. Opcodes of the text protocols 0
 * and 1, of the extension registry and of out-of-band buffers are refused: torch.save writes none.
 */
#include "trainer/pickle_internal.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

/* ---- containers ---- */

static int push_tuple(pickle_t *p, uint32_t n)
{
    pickle_node_t *tuple = NULL;
    int rc = pickle_need(p, n);
    if (rc == 0)
        rc = pickle_new_node(p, PICKLE_TUPLE, &tuple);
    if (rc == 0)
        rc = pickle_add_items(p, tuple, p->stack.at + p->stack.count - n, n);
    if (rc < 0)
        return rc;
    p->stack.count -= n;
    return pickle_push(p, tuple);
}

static int push_marked(pickle_t *p, pickle_kind_t kind)
{
    pickle_node_t **items = NULL, *node = NULL;
    uint32_t n = 0;
    int rc = pickle_pop_mark(p, &items, &n);
    if (rc == 0 && kind == PICKLE_DICT && n % 2)
        rc = pickle_refuse(p, "a key without a value: the file is damaged");
    if (rc == 0)
        rc = pickle_new_node(p, kind, &node);
    if (rc == 0)
        rc = pickle_add_items(p, node, items, n);
    return rc < 0 ? rc : pickle_push(p, node);
}

/* n nodes from the top of the stack (marked: those above the last mark) go into the one below. */
static int fill(pickle_t *p, pickle_kind_t kind, int marked, uint32_t n)
{
    pickle_node_t **items = NULL;
    int rc = marked ? pickle_pop_mark(p, &items, &n) : pickle_need(p, n);
    if (rc < 0)
        return rc;
    if (!marked) {
        p->stack.count -= n;
        items = p->stack.at + p->stack.count;
    }
    if ((rc = pickle_need(p, 1)) < 0)
        return rc;
    pickle_node_t *to = pickle_top(p);
    if (kind == PICKLE_DICT && n % 2)
        return pickle_refuse(p, "a key without a value: the file is damaged");
    /* Subclasses of dict and list are objects into which things are put. */
    if (to->kind != kind && to->kind != PICKLE_OBJECT && to->kind != PICKLE_CALL)
        return pickle_refuse(p, "something is put into what is no container: the file is damaged");
    return pickle_add_items(p, to, items, n);
}

/* ---- the machine ---- */

enum { NOT_MINE = 1 }; /* from one group of opcodes to the next */

/* Opcodes whose argument is a number; NOT_MINE if it is none of them. */
static int run_number(pickle_t *p, unsigned char op)
{
    static const struct {
        unsigned char op, bytes;
    } table[] = {{'K', 1}, {'M', 2}, {'J', 4},  {'q', 1},  {'r', 4},
                 {'h', 1}, {'j', 4}, {0x8A, 1}, {0x8B, 4}, {0x95, 8}};
    size_t i = 0;
    uint64_t v;
    int rc;
    while (i < sizeof table / sizeof *table && table[i].op != op)
        i++;
    if (i == sizeof table / sizeof *table)
        return NOT_MINE;
    if ((rc = pickle_take_uint(p, table[i].bytes, &v)) < 0)
        return rc;
    switch (op) {
    case 'K': /* BININT1 */
    case 'M': /* BININT2 */ return pickle_push_int(p, PICKLE_INT, (int64_t)v);
    case 'J': /* BININT */ return pickle_push_int(p, PICKLE_INT, (int32_t)(uint32_t)v);
    case 'q': /* BINPUT */
    case 'r': /* LONG_BINPUT */ return pickle_memo_put(p, (uint32_t)v);
    case 'h': /* BINGET */
    case 'j': /* LONG_BINGET */ return pickle_memo_get(p, (uint32_t)v);
    case 0x95: /* FRAME: a hint for readers of streams */
        return v > p->total - p->at ? pickle_refuse(p, "it ends too early: cut short?") : 0;
    default: /* LONG1, LONG4; a negative length is a huge one */ return pickle_push_long(p, v);
    }
}

/* Opcodes that make or fill one object; NOT_MINE if it is none of them. */
static int run_object(pickle_t *p, unsigned char op)
{
    pickle_node_t *n;
    switch (op) {
    case 'N': return pickle_push_new(p, PICKLE_NONE, &n);
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */ return pickle_push_int(p, PICKLE_BOOL, op == 0x88);
    case 'G': /* BINFLOAT */ return pickle_push_float(p);
    case 'X': /* BINUNICODE */ return pickle_push_text(p, PICKLE_TEXT, 4);
    case 0x8C: /* SHORT_BINUNICODE */ return pickle_push_text(p, PICKLE_TEXT, 1);
    case 0x8D: /* BINUNICODE8 */ return pickle_push_text(p, PICKLE_TEXT, 8);
    case 'U': /* SHORT_BINSTRING */
    case 'C': /* SHORT_BINBYTES */ return pickle_push_text(p, PICKLE_BYTES, 1);
    case 'T': /* BINSTRING */
    case 'B': /* BINBYTES */ return pickle_push_text(p, PICKLE_BYTES, 4);
    case 0x8E: /* BINBYTES8 */
    case 0x96: /* BYTEARRAY8 */ return pickle_push_text(p, PICKLE_BYTES, 8);
    case ')': /* EMPTY_TUPLE */ return pickle_push_new(p, PICKLE_TUPLE, &n);
    case ']': /* EMPTY_LIST */ return pickle_push_new(p, PICKLE_LIST, &n);
    case '}': /* EMPTY_DICT */ return pickle_push_new(p, PICKLE_DICT, &n);
    case 0x8F: /* EMPTY_SET */ return pickle_push_new(p, PICKLE_SET, &n);
    case 0x85: /* TUPLE1 */
    case 0x86: /* TUPLE2 */
    case 0x87: /* TUPLE3 */ return push_tuple(p, op - 0x84u);
    case 't': /* TUPLE */ return push_marked(p, PICKLE_TUPLE);
    case 'l': /* LIST */ return push_marked(p, PICKLE_LIST);
    case 'd': /* DICT */ return push_marked(p, PICKLE_DICT);
    case 0x91: /* FROZENSET */ return push_marked(p, PICKLE_SET);
    case 'a': /* APPEND */ return fill(p, PICKLE_LIST, 0, 1);
    case 'e': /* APPENDS */ return fill(p, PICKLE_LIST, 1, 0);
    case 's': /* SETITEM */ return fill(p, PICKLE_DICT, 0, 2);
    case 'u': /* SETITEMS */ return fill(p, PICKLE_DICT, 1, 0);
    case 0x90: /* ADDITEMS */ return fill(p, PICKLE_SET, 1, 0);
    default: return NOT_MINE;
    }
}

static int run_rest(pickle_t *p, unsigned char op)
{
    pickle_node_t **items;
    uint32_t n;
    int rc;
    switch (op) {
    case '(': return pickle_mark(p);
    case '0': /* POP takes a mark, too */
        if (pickle_above(p) == 0)
            return pickle_pop_mark(p, &items, &n);
        pickle_pop(p);
        return 0;
    case '1': /* POP_MARK */ return pickle_pop_mark(p, &items, &n);
    case '2': /* DUP */ return (rc = pickle_need(p, 1)) < 0 ? rc : pickle_push(p, pickle_top(p));
    case 0x94: /* MEMOIZE */ return pickle_memo_put(p, p->memoized);
    case 'c': /* GLOBAL */ return pickle_push_global(p);
    case 0x93: /* STACK_GLOBAL */ return pickle_stack_global(p);
    case 'R': /* REDUCE */ return pickle_reduce(p);
    case 0x81: /* NEWOBJ */ return pickle_new_object(p, 0);
    case 0x92: /* NEWOBJ_EX */ return pickle_new_object(p, 1);
    case 'b': /* BUILD */ return pickle_build(p);
    case 'Q': /* BINPERSID */ return pickle_persistent(p);
    default: return pickle_refuse(p, "opcode 0x%02X, which torch.save does not write: refused", op);
    }
}

static int run(pickle_t *p)
{
    const unsigned char *b = NULL;
    int rc = pickle_take(p, 2, &b);
    if (rc < 0)
        return rc;
    if (b[0] != 0x80 || b[1] < 2 || b[1] > 5)
        return pickle_refuse(p, "not a pickle of protocol 2 to 5");
    for (;;) {
        p->op_at = p->at;
        if ((rc = pickle_take(p, 1, &b)) < 0)
            return rc;
        if (*b == '.')
            break;
        rc = run_object(p, *b);
        if (rc == NOT_MINE)
            rc = run_number(p, *b);
        if (rc == NOT_MINE)
            rc = run_rest(p, *b);
        if (rc < 0)
            return rc;
    }
    if (p->stack.count != 1 || p->marks.count != 0)
        return pickle_refuse(p, "it does not end with one object: the file is damaged");
    if (p->at != p->total)
        return pickle_refuse(p, "bytes follow its end");
    p->root = p->stack.at[0];
    return 0;
}

int pickle_load(const void *bytes, uint64_t total, const char *origin, pickle_t **out)
{
    int rc;
    pickle_t *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p || !(p->origin = strdup(origin)) ||
        !(p->chunks = calloc(PICKLE_NODES_MAX / PICKLE_CHUNK, sizeof *p->chunks))) {
        pickle_free(&p);
        return err_set(ERR_ENV, "%s: out of memory", origin);
    }
    if (total > PICKLE_BYTES_MAX) {
        rc = err_set(ERR_CONFIG, "%s: its pickle has %llu bytes: more than %d are not read", origin,
                     (unsigned long long)total, PICKLE_BYTES_MAX);
        goto fail;
    }
    p->bytes = bytes;
    p->total = total;
    CHECK_GOTO(run(p), rc, fail);
    *out = p;
    return 0;
fail:
    pickle_free(&p);
    return rc;
}

void pickle_free(pickle_t **out)
{
    pickle_t *p = *out;
    if (!p)
        return;
    for (uint32_t i = 0; i < p->n_nodes; i++)
        free(p->chunks[i / PICKLE_CHUNK][i % PICKLE_CHUNK].items);
    for (uint32_t i = 0; i < p->n_chunks; i++)
        free(p->chunks[i]);
    free(p->chunks);
    free(p->stack.at);
    free(p->memo.at);
    free(p->marks.at);
    free(p->origin);
    free(p);
    *out = NULL;
}

const pickle_node_t *pickle_root(const pickle_t *p)
{
    return p->root;
}
