/* Classes, objects and calls: what a pickle may name, and what becomes of it. */
#include "trainer/pickle_internal.h"

#include "shm/err.h"

#include <string.h>

/* What REDUCE may name, and what becomes of it. */
typedef enum { MAKE_CALL = 0, MAKE_DICT, MAKE_SET, MAKE_TUPLE } make_t;
static const struct {
    const char *module, *name;
    make_t make;
} allowed[] = {
    {"collections", "OrderedDict", MAKE_DICT},
    {"collections", "defaultdict", MAKE_DICT},
    {"__builtin__", "set", MAKE_SET}, /* what protocol 2 calls builtins */
    {"builtins", "set", MAKE_SET},
    {"__builtin__", "frozenset", MAKE_SET},
    {"builtins", "frozenset", MAKE_SET},
    {"torch", "Size", MAKE_TUPLE},
    {"torch._utils", "_rebuild_tensor_v2", MAKE_CALL},
    {"torch._utils", "_rebuild_parameter", MAKE_CALL},
    {"torch._utils", "_rebuild_parameter_with_state", MAKE_CALL},
    {"torch._tensor", "_rebuild_from_type_v2", MAKE_CALL},
    {"torch", "device", MAKE_CALL},
    /* What checkpoints carry beside their tensors: paths, numbers and settings. */
    {"pathlib", "Path", MAKE_CALL},
    {"pathlib", "PosixPath", MAKE_CALL},
    {"pathlib", "WindowsPath", MAKE_CALL},
    {"pathlib", "PurePosixPath", MAKE_CALL},
    {"pathlib._local", "PosixPath", MAKE_CALL},
    {"pathlib._local", "WindowsPath", MAKE_CALL},
    {"numpy", "dtype", MAKE_CALL},
    {"numpy.core.multiarray", "scalar", MAKE_CALL},
    {"numpy._core.multiarray", "scalar", MAKE_CALL},
    {"numpy.core.multiarray", "_reconstruct", MAKE_CALL},
    {"numpy._core.multiarray", "_reconstruct", MAKE_CALL},
    {"_codecs", "encode", MAKE_CALL}, /* bytes in protocol 2 */
    {"datetime", "datetime", MAKE_CALL},
    {"types", "SimpleNamespace", MAKE_CALL},
    {"ultralytics.utils", "IterableSimpleNamespace", MAKE_CALL},
    {"ultralytics.yolo.utils", "IterableSimpleNamespace", MAKE_CALL},
};

/* ---- classes, objects and calls ---- */

int pickle_push_global(pickle_t *p)
{
    pickle_node_t *n = NULL;
    int rc = pickle_push_new(p, PICKLE_GLOBAL, &n);
    if (rc == 0)
        rc = pickle_take_line(p, &n->module, &n->module_bytes);
    if (rc == 0)
        rc = pickle_take_line(p, &n->text, &n->bytes);
    return rc;
}

int pickle_stack_global(pickle_t *p)
{
    pickle_node_t *n = NULL;
    int rc = pickle_need(p, 2);
    if (rc < 0)
        return rc;
    const pickle_node_t *name = pickle_pop(p), *module = pickle_pop(p);
    if (name->kind != PICKLE_TEXT || module->kind != PICKLE_TEXT)
        return pickle_refuse(p, "a class has no name: the file is damaged");
    if ((rc = pickle_push_new(p, PICKLE_GLOBAL, &n)) < 0)
        return rc;
    n->module = module->text;
    n->module_bytes = module->bytes;
    n->text = name->text;
    n->bytes = name->bytes;
    return 0;
}

static int find_allowed(const pickle_node_t *f)
{
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
        if (pickle_is_global(f, allowed[i].module, allowed[i].name))
            return (int)i;
    }
    return -1;
}

static int is_list(const pickle_node_t *n)
{
    return n->kind == PICKLE_LIST || n->kind == PICKLE_TUPLE;
}

/* OrderedDict() and OrderedDict([(key, value), ...]). */
static int fill_dict(pickle_t *p, pickle_node_t *dict, const pickle_node_t *args)
{
    const pickle_node_t *pairs = args->count == 1 ? args->items[0] : NULL;
    int rc = 0;
    if (!pairs || !is_list(pairs))
        return 0; /* no argument, or defaultdict's factory */
    for (uint32_t i = 0; i < pairs->count && rc == 0; i++) {
        const pickle_node_t *pair = pairs->items[i];
        if (!is_list(pair) || pair->count != 2)
            return pickle_refuse(p, "a dict is made from what are no pairs");
        rc = pickle_add_items(p, dict, pair->items, 2);
    }
    return rc;
}

int pickle_reduce(pickle_t *p)
{
    static const pickle_kind_t kinds[] = {
        [MAKE_CALL] = PICKLE_CALL,
        [MAKE_DICT] = PICKLE_DICT,
        [MAKE_SET] = PICKLE_SET,
        [MAKE_TUPLE] = PICKLE_TUPLE,
    };
    char name[PICKLE_NAME_BYTES];
    pickle_node_t *n = NULL;
    int rc = pickle_need(p, 2);
    if (rc < 0)
        return rc;
    pickle_node_t *args = pickle_pop(p), *f = pickle_pop(p);
    const int which = find_allowed(f);
    pickle_copy_name(f, name, sizeof name);
    if (which < 0)
        return pickle_refuse(p, "it asks to call %s, which reading tensors does not need: refused",
                             name[0] ? name : "something that has no name");
    if (args->kind != PICKLE_TUPLE)
        return pickle_refuse(p, "the arguments of %s are no tuple: the file is damaged", name);
    const make_t make = allowed[which].make;
    if ((rc = pickle_push_new(p, kinds[make], &n)) < 0)
        return rc;
    if (make == MAKE_DICT)
        return fill_dict(p, n, args);
    if (make == MAKE_CALL) {
        n->of = f;
        n->args = args;
        return 0;
    }
    if (args->count == 0)
        return 0;
    if (args->count != 1 || !is_list(args->items[0]))
        return pickle_refuse(p, "%s is made from what is no list", name);
    return pickle_add_items(p, n, args->items[0]->items, args->items[0]->count);
}

/* cls, args and, with keywords, a dict: an object that is only described. */
int pickle_new_object(pickle_t *p, int keywords)
{
    pickle_node_t *n = NULL;
    int rc = pickle_need(p, keywords ? 3 : 2);
    if (rc < 0)
        return rc;
    if (keywords)
        pickle_pop(p);
    pickle_node_t *args = pickle_pop(p), *class = pickle_pop(p);
    if (class->kind != PICKLE_GLOBAL || args->kind != PICKLE_TUPLE)
        return pickle_refuse(p, "an object is made from what is no class: the file is damaged");
    if ((rc = pickle_push_new(p, PICKLE_OBJECT, &n)) < 0)
        return rc;
    n->of = class;
    n->args = args;
    return 0;
}

int pickle_build(pickle_t *p)
{
    int rc = pickle_need(p, 2);
    if (rc < 0)
        return rc;
    pickle_node_t *state = pickle_pop(p), *n = pickle_top(p);
    if (n->kind != PICKLE_OBJECT && n->kind != PICKLE_CALL && n->kind != PICKLE_DICT &&
        n->kind != PICKLE_SET)
        return pickle_refuse(p, "a state is given to what is no object: the file is damaged");
    n->state = state;
    return 0;
}

int pickle_persistent(pickle_t *p)
{
    pickle_node_t *n = NULL;
    int rc = pickle_need(p, 1);
    if (rc < 0)
        return rc;
    pickle_node_t *id = pickle_pop(p);
    if ((rc = pickle_push_new(p, PICKLE_PERSISTENT, &n)) == 0)
        n->args = id;
    return rc;
}
