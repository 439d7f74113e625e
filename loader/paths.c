#include "loader/paths.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void paths_fini(paths_t *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    memset(list, 0, sizeof *list);
}

int paths_add(paths_t *list, const char *path)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 64;
        char **grown = realloc(list->items, capacity * sizeof *grown);
        if (!grown)
            return err_set(ERR_ENV, "no memory for a list of %u paths", capacity);
        list->items = grown;
        list->capacity = capacity;
    }
    char *copy = strdup(path);
    if (!copy)
        return err_set(ERR_ENV, "no memory for a path");
    list->items[list->count++] = copy;
    return 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void paths_sort(paths_t *list)
{
    if (list->count > 1)
        qsort(list->items, list->count, sizeof *list->items, compare);
}

char *path_join(const char *base, const char *name)
{
    char *path = NULL;
    if (name[0] == '/')
        return strdup(name);
    const char *slash = base[0] && base[strlen(base) - 1] == '/' ? "" : "/";
    return asprintf(&path, "%s%s%s", base, slash, name) < 0 ? NULL : path;
}

char *path_absolute(const char *path)
{
    char *real = realpath(path, NULL);
    if (real || path[0] == '/')
        return real ? real : strdup(path);
    char *here = getcwd(NULL, 0);
    char *joined = here ? path_join(here, path) : NULL;
    free(here);
    return joined;
}

char *path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

int path_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

int path_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

const char *path_extension(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    return dot && dot != name ? dot + 1 : "";
}
