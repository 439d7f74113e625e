/* Questions to the nodes of a pickle. */
#include "trainer/pickle.h"

#include "control/text.h"

#include <stdio.h>
#include <string.h>

static int equal(const char *a, uint64_t bytes, const char *b)
{
    return strlen(b) == bytes && memcmp(a, b, bytes) == 0;
}

int pickle_is_text(const pickle_node_t *n, const char *text)
{
    return n && n->kind == PICKLE_TEXT && equal(n->text, n->bytes, text);
}

int pickle_is_global(const pickle_node_t *n, const char *module, const char *name)
{
    return n && n->kind == PICKLE_GLOBAL && equal(n->module, n->module_bytes, module) &&
           equal(n->text, n->bytes, name);
}

const pickle_node_t *pickle_get(const pickle_node_t *n, const char *key)
{
    if (!n || (n->kind != PICKLE_DICT && n->kind != PICKLE_OBJECT && n->kind != PICKLE_CALL))
        return NULL;
    for (uint32_t i = n->count / 2; i-- > 0;) {
        if (pickle_is_text(n->items[2 * i], key))
            return n->items[2 * i + 1];
    }
    return NULL;
}

const pickle_node_t *pickle_attribute(const pickle_node_t *n, const char *key)
{
    const pickle_node_t *state = n ? n->state : NULL, *value;
    if (!state || state->kind != PICKLE_TUPLE)
        return pickle_get(state, key);
    for (uint32_t i = 0; i < state->count; i++) {
        if ((value = pickle_get(state->items[i], key)))
            return value;
    }
    return NULL;
}

void pickle_copy_text(const pickle_node_t *n, char *out, size_t room)
{
    const int some = n && n->kind == PICKLE_TEXT;
    const size_t bytes = !some ? 0 : n->bytes < room ? n->bytes : room - 1;
    if (bytes > 0)
        memcpy(out, n->text, bytes);
    out[bytes] = '\0';
    text_printable(out);
}

void pickle_copy_name(const pickle_node_t *n, char *out, size_t room)
{
    out[0] = '\0';
    if (!n || n->kind != PICKLE_GLOBAL)
        return;
    /* Half of the room for each, so that a long module does not hide the name. */
    const size_t half = room / 2 - 1;
    const int module = (int)(n->module_bytes < half ? n->module_bytes : half);
    const int name = (int)(n->bytes < half ? n->bytes : half);
    snprintf(out, room, "%.*s.%.*s", module, n->module, name, n->text);
    text_printable(out);
}
