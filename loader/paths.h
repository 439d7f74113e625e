/* Lists of paths, and paths put together. Paths are bytes without NUL; nothing is assumed of
 * spaces, quotes or encodings. Who owns: a paths_t owns its strings. One thread per list.
 */
#ifndef SLUICE_LOADER_PATHS_H
#define SLUICE_LOADER_PATHS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    char **items;
    uint32_t count, capacity;
} paths_t;

void paths_fini(paths_t *list);
/* Adds a copy. ERR_ENV without memory. */
int paths_add(paths_t *list, const char *path);
/* Byte order, which for UTF-8 is the order of code points. */
void paths_sort(paths_t *list);
/* "base/name", or name alone when it is absolute; freed by the caller; NULL without memory. */
char *path_join(const char *base, const char *name);
/* Absolute from the current directory, links resolved if the path exists; NULL without memory. */
char *path_absolute(const char *path);
/* The folder of a path: "." if it names none. */
char *path_folder(const char *path);
int path_exists(const char *path);
int path_is_folder(const char *path);
/* The extension behind the last dot of the last component, "" if there is none. Not a copy. */
const char *path_extension(const char *path);

#endif
