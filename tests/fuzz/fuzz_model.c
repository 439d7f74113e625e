/* A table of layers. */
#include "tests/fuzz/fuzz.h"

#include "shm/err.h"
#include "trainer/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], table[96];

static void remove_folder(void)
{
    unlink(table);
    rmdir(folder);
}

/* The name of a table ends with .yaml: a link to where the bytes are. */
static void make_folder(const char *file)
{
    const char *at = getenv("TMPDIR");
    int n = snprintf(folder, sizeof folder, "%s/sluice-fuzz-XXXXXX",
                     at && strlen(at) < 40 ? at : "/tmp");
    fuzz_require(n > 0 && mkdtemp(folder) != NULL, "no folder for the table");
    snprintf(table, sizeof table, "%s/yolo11n.yaml", folder);
    fuzz_require(symlink(file, table) == 0, "no link for the table");
    atexit(remove_folder);
}

void fuzz_model(const uint8_t *data, size_t bytes)
{
    graph_t *g;
    graph_row_t row;
    const char *file = fuzz_file(data, bytes);
    if (!table[0])
        make_folder(file);
    int rc = graph_build(table, 0, &g);
    fuzz_require((rc == 0) == (g != NULL), "a model and an error");
    if (rc < 0) {
        fuzz_require(err_text()[0] != '\0', "an error without a sentence");
        return;
    }
    fuzz_require(graph_classes(g) >= 1, "a model without classes");
    for (int32_t i = 0; i < graph_rows(g); i++)
        graph_row(g, i, 640, &row);
    for (int32_t i = 0; i < graph_params(g); i++) {
        const graph_param_t *p = graph_param(g, i);
        uint64_t room =
            p->place == GRAPH_BUFFER ? graph_sizes(g)->buffers : graph_sizes(g)->weights;
        if (p->place <= GRAPH_BUFFER)
            fuzz_require(p->count <= room && p->first <= room - p->count,
                         "a parameter has no place");
        fuzz_require(graph_find_param(g, p->name) != NULL, "a name is not found again");
    }
    graph_free(&g);
}
