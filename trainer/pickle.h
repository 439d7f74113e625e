/* Python's pickle (protocols 2 to 5) read as data: nothing in it is ever run.
 *
 * The opcodes are interpreted into a graph of nodes. A class or function is only its name. What the
 * pickle wants called (REDUCE) is refused by name unless it is on a short list (pickle.c): an
 * OrderedDict and a set become what they are, the rest a CALL node that says what would have been
 * called with which arguments. Objects of any class (NEWOBJ) become OBJECT nodes: class name,
 * arguments and the state that BUILD hands over; so a whole pickled model can be walked without its
 * classes. Bytes, nodes and the memo are bounded; the interpreter does not recurse, and neither does
 * freeing.
 *
 * The graph may hold cycles and one node in many places: whoever walks it bounds depth and visits.
 * It points into the caller's bytes. Any thread.
 */
#ifndef SLUICE_TRAINER_PICKLE_H
#define SLUICE_TRAINER_PICKLE_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    PICKLE_NONE = 0,
    PICKLE_BOOL,  /* integer */
    PICKLE_INT,   /* integer */
    PICKLE_LONG,  /* an integer beyond 64 bits; its value is not kept */
    PICKLE_FLOAT, /* number */
    PICKLE_TEXT,  /* text */
    PICKLE_BYTES, /* text */
    PICKLE_TUPLE, /* items */
    PICKLE_LIST,
    PICKLE_SET,
    PICKLE_DICT,   /* items: key, value, key, value; a key may come twice, the last one counts */
    PICKLE_GLOBAL, /* text: "module.name" split at `module` bytes */
    PICKLE_CALL,   /* of: what would be called, a GLOBAL; args: a TUPLE */
    PICKLE_OBJECT, /* of: its class, a GLOBAL; args: a TUPLE */
    PICKLE_PERSISTENT, /* args: the id; torch: ('storage', class, key, place, elements) */
} pickle_kind_t;

typedef struct pickle_node {
    pickle_kind_t kind;
    uint32_t count, room; /* of items */
    union {
        int64_t integer;
        double number;
        struct {
            const char *text; /* not terminated, any bytes */
            uint64_t bytes;
        };
    };
    const char *module; /* GLOBAL: text is the name in it */
    uint64_t module_bytes;
    struct pickle_node **items; /* containers; an OBJECT's and a CALL's too: what was put into it */
    struct pickle_node *of, *args;
    struct pickle_node *state; /* of the last BUILD; NULL if none */
} pickle_node_t;

typedef struct pickle pickle_t;
/* origin is named in sentences. ERR_CONFIG for whatever is not understood or not allowed. */
int pickle_load(const void *bytes, uint64_t total, const char *origin, pickle_t **p);
void pickle_free(pickle_t **p);
const pickle_node_t *pickle_root(const pickle_t *p);

/* All of these take NULL and then say no. */
int pickle_is_text(const pickle_node_t *n, const char *text);
int pickle_is_global(const pickle_node_t *n, const char *module, const char *name);
/* The value of a text key in a DICT, or in what was put into an OBJECT; NULL if there is none. */
const pickle_node_t *pickle_get(const pickle_node_t *n, const char *key);
/* An object's attribute: `key` in its state, also in the second half of a (dict, slots) pair. */
const pickle_node_t *pickle_attribute(const pickle_node_t *n, const char *key);
/* Text into a buffer, cut to its size, control characters as spaces; "" for what is no text. */
void pickle_copy_text(const pickle_node_t *n, char *out, size_t room);
/* "module.name" of a GLOBAL, likewise. */
void pickle_copy_name(const pickle_node_t *n, char *out, size_t room);

#endif
