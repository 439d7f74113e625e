/* A table of layers. */
#include "tests/fuzz/fuzz.h"

#include "shm/err.h"
#include "trainer/graph.h"

void fuzz_model(const uint8_t *data, size_t bytes)
{
    graph_t *g;
    graph_row_t row;
    int rc = graph_build(fuzz_named_file(data, bytes, "yolo11n.yaml", NULL), 0, &g);
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
