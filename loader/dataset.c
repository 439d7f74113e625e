#include "loader/dataset.h"

#include "control/yamldoc.h"
#include "shm/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES_MAX = 65536 };

typedef struct {
    dataset_t *d;
    yamldoc_t *doc;
    const yamldoc_node_t *root;
} reader_t;

const char *dataset_split_name(catalog_split_t split)
{
    return split == CATALOG_TRAIN ? "train" : "val";
}

static int no_memory(void)
{
    return err_set(ERR_ENV, "no memory for the data set's description");
}

/* NULL for an absent key and for an explicit null. */
static const yamldoc_node_t *value_of(const reader_t *r, const char *key)
{
    const yamldoc_node_t *n = yamldoc_get(r->root, key);
    return n && n->kind == YAMLDOC_SCALAR && yamldoc_is_null(n) ? NULL : n;
}

static int whole_number(const reader_t *r, const yamldoc_node_t *n, long long *value)
{
    double real;
    if (yamldoc_int(r->doc, n, value) == 0)
        return 0;
    /* nc: 3.0 is integer-like (facts/yolo.md 7.1) */
    if (yamldoc_double(r->doc, n, &real) == 0 && real >= 0 && real <= CLASSES_MAX &&
        real == (double)(long long)real) {
        *value = (long long)real;
        return 0;
    }
    return err_set(ERR_DATA, "%s:%d: '%.80s' is not a whole number", r->d->file, n->line,
                   n->kind == YAMLDOC_SCALAR ? n->text : "a list or map");
}

/* ---- class names ---- */

static int name_text(const reader_t *r, const yamldoc_node_t *n)
{
    if (n->kind != YAMLDOC_SCALAR || !n->text[0])
        return err_set(ERR_DATA, "%s:%d: a class name must be a text", r->d->file, n->line);
    return paths_add(&r->d->names, n->text);
}

static int names_from_list(const reader_t *r, const yamldoc_node_t *names)
{
    for (int i = 0; i < names->count; i++) {
        int rc = name_text(r, names->values[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* {index: name}, in any order, but each of 0 .. n-1 once. */
static int names_from_map(const reader_t *r, const yamldoc_node_t *names)
{
    int n = names->count, rc = 0;
    const yamldoc_node_t **order = calloc((size_t)n + 1, sizeof *order);
    if (!order)
        return no_memory();
    for (int i = 0; i < n; i++) {
        long long index;
        CHECK_GOTO(whole_number(r, names->keys[i], &index), rc, done);
        if (index < 0 || index >= n || order[index]) {
            rc =
                err_set(ERR_DATA,
                        "%s:%d: class index %lld: the %d names need the indices 0 to %d, each once",
                        r->d->file, names->keys[i]->line, index, n, n - 1);
            goto done;
        }
        order[index] = names->values[i];
    }
    for (int i = 0; i < n; i++)
        CHECK_GOTO(name_text(r, order[i]), rc, done);
done:
    free(order);
    return rc;
}

static int names_from_count(const reader_t *r, long long nc)
{
    for (long long i = 0; i < nc; i++) {
        char name[32];
        snprintf(name, sizeof name, "class_%lld", i);
        int rc = paths_add(&r->d->names, name);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_names(const reader_t *r)
{
    const yamldoc_node_t *names = value_of(r, "names"), *count = value_of(r, "nc");
    long long nc = -1;
    int rc = count ? whole_number(r, count, &nc) : 0;
    if (rc < 0)
        return rc;
    if (count && (nc < 1 || nc > CLASSES_MAX))
        return err_set(ERR_DATA, "%s:%d: nc is %lld; it must be 1 to %d", r->d->file, count->line,
                       nc, CLASSES_MAX);
    if (!names && !count)
        return err_set(ERR_DATA, "%s: neither 'names' nor 'nc' is given: name the classes",
                       r->d->file);
    if (!names)
        return names_from_count(r, nc);
    if (names->kind == YAMLDOC_SCALAR || names->count < 1 || names->count > CLASSES_MAX)
        return err_set(ERR_DATA, "%s:%d: names must be a list or a map of 1 to %d class names",
                       r->d->file, names->line, CLASSES_MAX);
    if (count && nc != names->count)
        return err_set(ERR_DATA, "%s:%d: nc is %lld, but %d names are given", r->d->file,
                       count->line, nc, names->count);
    return names->kind == YAMLDOC_LIST ? names_from_list(r, names) : names_from_map(r, names);
}

/* ---- paths ---- */

/* The root: `path`, from the YAML's folder if it is there, else from the current directory. */
static int read_root(const reader_t *r)
{
    const yamldoc_node_t *path = value_of(r, "path");
    char *folder = path_folder(r->d->file), *joined = NULL;
    int rc = 0;
    if (!folder)
        return no_memory();
    if (!path) {
        r->d->root = folder;
        return 0;
    }
    if (path->kind != YAMLDOC_SCALAR) {
        rc = err_set(ERR_DATA, "%s:%d: path must be a text", r->d->file, path->line);
        goto done;
    }
    joined = path_join(folder, path->text);
    const char *found = joined && path_is_folder(joined) ? joined
                        : path_is_folder(path->text)     ? path->text
                                                         : NULL;
    if (!joined) {
        rc = no_memory();
    } else if (!found) {
        rc = err_set(ERR_DATA, "%s:%d: path: '%s' is not a folder, nor is it one from here",
                     r->d->file, path->line, joined);
    } else {
        r->d->root = path_absolute(found);
        rc = r->d->root ? 0 : no_memory();
    }
done:
    free(folder);
    free(joined);
    return rc;
}

static int add_entry(const reader_t *r, catalog_split_t split, const yamldoc_node_t *n)
{
    if (n->kind != YAMLDOC_SCALAR || yamldoc_is_null(n))
        return err_set(ERR_DATA, "%s:%d: %s must be a folder, a .txt list, or a list of those",
                       r->d->file, n->line, dataset_split_name(split));
    char *asked = path_join(r->d->root, n->text), *found = NULL;
    int rc = asked ? 0 : no_memory(), why = 0;
    if (asked && path_exists(asked)) {
        found = path_absolute(asked);
    } else if (asked && (why = errno) == ENOENT && strncmp(n->text, "../", 3) == 0) {
        char *inner = path_join(r->d->root, n->text + 3);
        if (inner && path_exists(inner))
            found = path_absolute(inner);
        free(inner);
    }
    if (found)
        rc = paths_add(&r->d->entries[split], found);
    else if (rc == 0)
        rc = err_set(ERR_DATA, "%s:%d: %s: '%s' %s", r->d->file, n->line, dataset_split_name(split),
                     asked, why == ENOENT ? "does not exist" : strerror(why));
    free(asked);
    free(found);
    return rc;
}

static int read_entries(const reader_t *r, catalog_split_t split)
{
    const yamldoc_node_t *n = value_of(r, dataset_split_name(split));
    if (!n && split == CATALOG_VAL)
        n = value_of(r, "validation");
    if (!n)
        return err_set(ERR_DATA, "%s: '%s' is missing: name its folder or .txt list of images",
                       r->d->file, dataset_split_name(split));
    if (n->kind != YAMLDOC_LIST)
        return add_entry(r, split, n);
    if (n->count == 0)
        return err_set(ERR_DATA, "%s:%d: %s is an empty list", r->d->file, n->line,
                       dataset_split_name(split));
    for (int i = 0; i < n->count; i++) {
        int rc = add_entry(r, split, n->values[i]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_channels(const reader_t *r)
{
    const yamldoc_node_t *n = value_of(r, "channels");
    long long channels = 3;
    int rc = n ? whole_number(r, n, &channels) : 0;
    if (rc == 0 && channels != 3)
        rc = err_set(ERR_DATA, "%s:%d: channels is %lld; images are read as 3 channels", r->d->file,
                     n->line, channels);
    return rc;
}

static int read_all(reader_t *r, catalog_split_t first)
{
    int rc = yamldoc_load_file(r->d->file, &r->doc);
    if (rc < 0)
        return rc == ERR_ENV ? rc : ERR_DATA;
    r->root = yamldoc_root(r->doc);
    if (!r->root || r->root->kind != YAMLDOC_MAP)
        return err_set(ERR_DATA,
                       "%s: not a data set's description: it needs the keys train, val, names",
                       r->d->file);
    if ((rc = read_names(r)) < 0 || (rc = read_channels(r)) < 0 || (rc = read_root(r)) < 0)
        return rc;
    for (int s = (int)first; s < CATALOG_SPLITS; s++)
        if ((rc = read_entries(r, (catalog_split_t)s)) < 0)
            return rc;
    return 0;
}

int dataset_open(const char *yaml, dataset_t **out)
{
    return dataset_open_split(yaml, CATALOG_TRAIN, out);
}

int dataset_open_split(const char *yaml, catalog_split_t first, dataset_t **out)
{
    if (!path_exists(yaml) || path_is_folder(yaml))
        return err_set(ERR_CONFIG, "data=%s: %s; give the path of the data set's .yaml file", yaml,
                       path_is_folder(yaml) ? "this is a folder"
                       : errno == ENOENT    ? "there is no such file"
                                            : strerror(errno));
    reader_t r = {.d = calloc(1, sizeof *r.d)};
    if (!r.d)
        return no_memory();
    int rc = 0;
    /* Where the YAML stands is where it was named: links to it are not followed. */
    char *here = realpath(".", NULL);
    r.d->file = here ? path_join(here, yaml) : NULL;
    free(here);
    rc = r.d->file ? read_all(&r, first) : no_memory();
    if (r.doc)
        yamldoc_free(&r.doc);
    if (rc < 0) {
        dataset_free(&r.d);
        return rc;
    }
    *out = r.d;
    return 0;
}

void dataset_free(dataset_t **d)
{
    if (!*d)
        return;
    free((*d)->file);
    free((*d)->root);
    paths_fini(&(*d)->names);
    for (int s = 0; s < CATALOG_SPLITS; s++)
        paths_fini(&(*d)->entries[s]);
    free(*d);
    *d = NULL;
}
