/* Where in a checkpoint the model is, and the names of its tensors. */
#include "trainer/torchfile_internal.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARTS_DEEP = 6,        /* dictionaries between the top and the model */
    PARTS_MAX = 64,        /* dictionaries looked into on the way */
    MODULES_DEEP = 32,     /* modules in one another; YOLO11 has 7 */
    MODULES_MAX = 1 << 16, /* visited: a module may be in several places, also in itself */
    LOOKS_MAX = 1 << 26,   /* items passed by on the way: a bound on time */
};

/* Keys under which training programs keep a model, averaged weights first. */
static const char *const averaged_keys[] = {
    "ema", "model_ema", "ema_model", "ema_state_dict", "model_ema_state_dict", NULL};
static const char *const model_keys[] = {"model",  "state_dict", "model_state_dict", "net",
                                         "module", "weights",    "params",           NULL};

typedef struct {
    torchfile_t *f;
    char name[TORCHFILE_NAME];
    size_t length;
    int depth, visited;
    uint64_t looks;
} walk_t;

typedef struct {
    torchfile_info_t *info;
    int visited;
} search_t;

static int is_module(const pickle_node_t *n)
{
    return n->kind == PICKLE_OBJECT && pickle_attribute(n, "_modules") &&
           pickle_attribute(n, "_parameters");
}

static int has_tensors(const pickle_node_t *n)
{
    if (n->kind != PICKLE_DICT)
        return 0;
    for (uint32_t i = 0; i + 1 < n->count; i += 2) {
        if (n->items[i]->kind == PICKLE_TEXT && torchfile_is_tensor(n->items[i + 1]))
            return 1;
    }
    return 0;
}

static const pickle_node_t *child(const pickle_node_t *n, const char *key)
{
    return n->kind == PICKLE_OBJECT ? pickle_attribute(n, key) : pickle_get(n, key);
}

static const pickle_node_t *find_part(search_t *s, const pickle_node_t *n, int depth);

/* The model under the first of the keys that has one; its place is put in front of info->part. */
static const pickle_node_t *find_under(search_t *s, const pickle_node_t *n, const char *const *keys,
                                       int depth)
{
    for (; *keys; keys++) {
        const pickle_node_t *value = child(n, *keys), *found;
        if (!value || !(found = find_part(s, value, depth + 1)))
            continue;
        char rest[sizeof s->info->part];
        memcpy(rest, s->info->part, sizeof rest);
        snprintf(s->info->part, sizeof s->info->part, "%s%s%.40s", *keys, rest[0] ? "." : "", rest);
        return found;
    }
    return NULL;
}

static const pickle_node_t *find_part(search_t *s, const pickle_node_t *n, int depth)
{
    const pickle_node_t *found;
    if (is_module(n))
        return n;
    if (depth == PARTS_DEEP || s->visited++ == PARTS_MAX || n->count > 2 * TORCHFILE_TENSORS ||
        (n->kind != PICKLE_DICT && n->kind != PICKLE_OBJECT))
        return NULL;
    if ((found = find_under(s, n, averaged_keys, depth))) {
        s->info->averaged = 1;
        return found;
    }
    if (has_tensors(n))
        return n;
    return find_under(s, n, model_keys, depth);
}

/* ---- tensors ---- */

static int add_tensor(torchfile_t *f, const char *name, const pickle_node_t *n)
{
    if (f->count == TORCHFILE_TENSORS)
        return err_set(ERR_CONFIG, "%s: more than %d tensors", f->origin, TORCHFILE_TENSORS);
    if (f->count == f->room) {
        const int32_t room = f->room ? f->room * 2 : 512;
        tensorview_t *bigger = realloc(f->tensors, (size_t)room * sizeof *bigger);
        if (!bigger)
            return err_set(ERR_ENV, "%s: out of memory for its tensors", f->origin);
        f->tensors = bigger;
        f->room = room;
    }
    tensorview_t *v = &f->tensors[f->count];
    memset(v, 0, sizeof *v);
    v->name = strdup(name);
    if (!v->name)
        return err_set(ERR_ENV, "%s: out of memory for its tensors", f->origin);
    f->count++;
    return torchfile_view(f, n, v);
}

/* Appends ".key" to the name; the length before is the caller's to put back. */
static int enter(walk_t *w, const pickle_node_t *key)
{
    char text[TORCHFILE_NAME];
    if (key->kind != PICKLE_TEXT || key->bytes == 0)
        return err_set(ERR_CONFIG, "%s: a part of %s has no name", w->f->origin,
                       w->length ? w->name : "the model");
    if (w->length + key->bytes + 2 > sizeof w->name)
        return err_set(ERR_CONFIG, "%s: a name under %s is longer than %d bytes", w->f->origin,
                       w->length ? w->name : "the model", TORCHFILE_NAME);
    pickle_copy_text(key, text, sizeof text);
    w->length += (size_t)snprintf(w->name + w->length, sizeof w->name - w->length, "%s%s",
                                  w->length ? "." : "", text);
    return 0;
}

static void leave(walk_t *w, size_t length)
{
    w->length = length;
    w->name[length] = '\0';
}

/* Counts the items of n, which are about to be looked through. */
static int look(walk_t *w, const pickle_node_t *n)
{
    w->looks += n ? n->count : 0;
    return w->looks > LOOKS_MAX
               ? err_set(ERR_CONFIG, "%s: its pickle goes round in circles: refused", w->f->origin)
               : 0;
}

/* Buffers that PyTorch leaves out of a state dict. */
static int is_left_out(walk_t *w, const pickle_node_t *module, const pickle_node_t *key)
{
    char name[TORCHFILE_NAME];
    const pickle_node_t *set = pickle_attribute(module, "_non_persistent_buffers_set");
    int rc = look(w, set);
    if (rc < 0)
        return rc;
    pickle_copy_text(key, name, sizeof name);
    for (uint32_t i = 0; set && i < set->count; i++) {
        if (pickle_is_text(set->items[i], name))
            return 1;
    }
    return 0;
}

/* The tensors of a dict; what is None, or no tensor, is passed over. */
static int walk_dict(walk_t *w, const pickle_node_t *dict, const pickle_node_t *module)
{
    const size_t length = w->length;
    int rc = 0;
    if (!dict || dict->kind != PICKLE_DICT)
        return 0;
    if ((rc = look(w, dict)) < 0)
        return rc;
    for (uint32_t i = 0; i + 1 < dict->count && rc == 0; i += 2) {
        const pickle_node_t *key = dict->items[i], *value = dict->items[i + 1];
        if (!torchfile_is_tensor(value))
            continue;
        rc = module ? is_left_out(w, module, key) : 0;
        if (rc == 1) {
            rc = 0;
            continue;
        }
        if (rc == 0)
            rc = enter(w, key);
        if (rc == 0)
            rc = add_tensor(w->f, w->name, value);
        leave(w, length);
    }
    return rc;
}

/* Versions 8.4.0 to 8.4.118 of a common trainer build SPPF.cv1 without its SiLU (facts/yolo.md 0.1):
 * the same tensors, another function. Only the module itself shows it. */
static int is_bare_sppf(const pickle_node_t *module)
{
    const pickle_node_t *act =
        pickle_attribute(pickle_get(pickle_attribute(module, "_modules"), "cv1"), "_modules");
    char name[96];
    pickle_copy_name(module->of, name, sizeof name);
    const char *last = strrchr(name, '.');
    if (!last || strcmp(last, ".SPPF") != 0)
        return 0;
    act = pickle_get(act, "act");
    return act && act->of && pickle_is_global(act->of, "torch.nn.modules.linear", "Identity");
}

static int walk_module(walk_t *w, const pickle_node_t *module)
{
    const pickle_node_t *children = pickle_attribute(module, "_modules");
    const size_t length = w->length;
    if (w->depth == MODULES_DEEP || w->visited++ == MODULES_MAX)
        return err_set(ERR_CONFIG,
                       "%s: its modules lie in one another more than %d deep, or are more than %d",
                       w->f->origin, MODULES_DEEP, MODULES_MAX);
    w->depth++;
    w->f->info.bare_sppf |= is_bare_sppf(module);
    int rc = look(w, children);
    if (rc == 0)
        rc = walk_dict(w, pickle_attribute(module, "_parameters"), NULL);
    if (rc == 0)
        rc = walk_dict(w, pickle_attribute(module, "_buffers"), module);
    for (uint32_t i = 0; children->kind == PICKLE_DICT && i + 1 < children->count && rc == 0;
         i += 2) {
        if ((rc = look(w, children->items[i + 1]->state)) < 0)
            break;
        if (!is_module(children->items[i + 1]))
            continue;
        rc = enter(w, children->items[i]);
        if (rc == 0)
            rc = walk_module(w, children->items[i + 1]);
        leave(w, length);
    }
    w->depth--;
    return rc;
}

/* ---- what else it says ---- */

/* The number that a class name is listed under: i-th of a list, or an int or digits as a key. */
static int64_t class_number(const pickle_node_t *names, uint32_t i)
{
    if (names->kind != PICKLE_DICT)
        return i;
    const pickle_node_t *key = names->items[2 * i];
    if (key->kind == PICKLE_INT)
        return key->integer;
    char digits[24], *end;
    pickle_copy_text(key, digits, sizeof digits);
    const long long n = strtoll(digits, &end, 10);
    return end == digits || *end ? -1 : n;
}

int torchfile_take_classes(torchfile_t *f, const pickle_node_t *names)
{
    const int is_dict = names && names->kind == PICKLE_DICT;
    if (!names || (!is_dict && names->kind != PICKLE_LIST && names->kind != PICKLE_TUPLE))
        return 0;
    const uint32_t n = is_dict ? names->count / 2 : names->count;
    char text[256];
    int rc = 0;
    if (n == 0 || n > TORCHFILE_CLASSES)
        return 0;
    char **classes = calloc(n, sizeof *classes);
    uint32_t taken = 0;
    if (!classes)
        return err_set(ERR_ENV, "%s: out of memory for its class names", f->origin);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        const pickle_node_t *name = names->items[is_dict ? 2 * i + 1 : i];
        const int64_t number = class_number(names, i);
        if (number < 0 || number >= n || classes[number] || name->kind != PICKLE_TEXT)
            break;
        pickle_copy_text(name, text, sizeof text);
        classes[number] = strdup(text);
        taken++;
        if (!classes[number])
            rc = err_set(ERR_ENV, "%s: out of memory for its class names", f->origin);
    }
    if (rc == 0 && taken == n) {
        f->classes = classes;
        f->n_classes = (int32_t)n;
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        free(classes[i]);
    free(classes);
    return rc;
}

/* The training's image size, from its arguments: a dict beside the model, or an object in it. */
static int32_t find_imgsz(const pickle_node_t *root, const pickle_node_t *model)
{
    const pickle_node_t *const places[] = {pickle_get(root, "train_args"),
                                           pickle_attribute(model, "args")};
    for (int i = 0; i < 2; i++) {
        const pickle_node_t *size = pickle_get(places[i], "imgsz");
        if (!size)
            size = pickle_attribute(places[i], "imgsz");
        if (size && size->kind == PICKLE_INT && size->integer >= 32 && size->integer <= 16384)
            return (int32_t)size->integer;
    }
    return 0;
}

static int describe(torchfile_t *f, const pickle_node_t *root, const pickle_node_t *model)
{
    torchfile_info_t *info = &f->info;
    const pickle_node_t *epoch = pickle_get(root, "epoch"), *names, *table;
    info->epoch = epoch && epoch->kind == PICKLE_INT && epoch->integer >= 0 ? epoch->integer : -1;
    info->imgsz = find_imgsz(root, model);
    pickle_copy_text(pickle_get(root, "version"), info->version, sizeof info->version);
    pickle_copy_text(pickle_get(root, "date"), info->date, sizeof info->date);
    table = pickle_attribute(model, "yaml_file");
    if (!table)
        table = pickle_get(pickle_attribute(model, "yaml"), "yaml_file");
    pickle_copy_text(table, info->table, sizeof info->table);
    if (model->kind == PICKLE_OBJECT)
        pickle_copy_name(model->of, info->class_name, sizeof info->class_name);
    names = pickle_attribute(model, "names");
    return torchfile_take_classes(f, names ? names : pickle_get(root, "names"));
}

int torchfile_walk(torchfile_t *f)
{
    const pickle_node_t *root = pickle_root(f->pickle);
    search_t s = {.info = &f->info};
    const pickle_node_t *model = find_part(&s, root, 0);
    walk_t w = {.f = f};
    int rc;
    if (!model)
        return err_set(ERR_CONFIG,
                       "%s: neither a state dict nor a model was found in it (looked under ema, "
                       "model, state_dict and the like)",
                       f->origin);
    rc = model->kind == PICKLE_DICT ? walk_dict(&w, model, NULL) : walk_module(&w, model);
    return rc < 0 ? rc : describe(f, root, model);
}
