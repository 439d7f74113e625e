/* A small document tree over libyaml: what data.yaml, pipeline.yaml and the model tables are read
 * with.
 *
 * Nodes keep their line for error messages. Limits on bytes, depth and nodes make hostile files
 * cheap; aliases are refused. The document owns all nodes and strings. Any process; one thread per
 * document.
 */
#ifndef SLUICE_CONTROL_YAMLDOC_H
#define SLUICE_CONTROL_YAMLDOC_H

#include <stddef.h>

typedef enum { YAMLDOC_SCALAR = 0, YAMLDOC_LIST, YAMLDOC_MAP } yamldoc_kind_t;
typedef struct yamldoc_node {
    yamldoc_kind_t kind;
    int line;                     /* 1-based */
    int quoted;                   /* scalar was quoted: stays a string */
    const char *text;             /* scalar; UTF-8, NUL-terminated */
    int count;                    /* list items or map pairs */
    struct yamldoc_node **keys;   /* map only; scalars */
    struct yamldoc_node **values; /* list items or map values */
} yamldoc_node_t;
typedef struct yamldoc yamldoc_t;

int yamldoc_load_file(const char *path, yamldoc_t **doc);
int yamldoc_load_text(const char *text, size_t bytes, const char *origin, yamldoc_t **doc);
void yamldoc_free(yamldoc_t **doc);
const yamldoc_node_t *yamldoc_root(const yamldoc_t *doc);
/* Value for a key of a map; NULL if absent or not a map. */
const yamldoc_node_t *yamldoc_get(const yamldoc_node_t *map, const char *key);
/* Scalars as values: 0, or ERR_CONFIG naming origin, line and text. YAML 1.1 booleans are accepted.
 */
int yamldoc_int(const yamldoc_t *doc, const yamldoc_node_t *n, long long *value);
int yamldoc_double(const yamldoc_t *doc, const yamldoc_node_t *n, double *value);
int yamldoc_bool(const yamldoc_t *doc, const yamldoc_node_t *n, int *value);
/* 1 if the scalar is null, None, ~ or empty and not quoted. */
int yamldoc_is_null(const yamldoc_node_t *n);

#endif
