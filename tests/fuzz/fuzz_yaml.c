/* YAML text: the tree that all configuration is read with. */
#include "tests/fuzz/fuzz.h"

#include "control/yamldoc.h"
#include "shm/err.h"

#include <string.h>

static void walk(const yamldoc_t *doc, const yamldoc_node_t *n, int depth)
{
    long long whole;
    double real;
    int truth;
    fuzz_require(depth <= 64, "a document is deeper than its limit");
    fuzz_require(n->line >= 1, "a node has no line");
    if (n->kind == YAMLDOC_SCALAR) {
        fuzz_touch(n->text, strlen(n->text) + 1);
        yamldoc_is_null(n);
    }
    yamldoc_int(doc, n, &whole);
    yamldoc_double(doc, n, &real);
    yamldoc_bool(doc, n, &truth);
    for (int i = 0; i < n->count; i++) {
        if (n->kind == YAMLDOC_MAP) {
            fuzz_require(n->keys[i]->kind == YAMLDOC_SCALAR, "a key is no scalar");
            fuzz_require(yamldoc_get(n, n->keys[i]->text) != NULL, "a key is not found again");
        }
        walk(doc, n->values[i], depth + 1);
    }
}

void fuzz_yaml(const uint8_t *data, size_t bytes)
{
    yamldoc_t *doc;
    int rc = yamldoc_load_text((const char *)data, bytes, "fuzz.yaml", &doc);
    fuzz_require((rc == 0) == (doc != NULL), "a document and an error");
    if (rc < 0)
        fuzz_require(err_text()[0] != '\0', "an error without a sentence");
    else
        walk(doc, yamldoc_root(doc), 0);
    yamldoc_free(&doc);
}
