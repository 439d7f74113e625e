/* `sluice model NAME [nc=N] [imgsz=N]`: a model's rows with shapes, parameters and work. */
#include "shm/err.h"
#include "tools/commands.h"
#include "trainer/graph.h"
#include "trainer/modelfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole number behind "key=" in word; 1 if the word is of this key. */
static int number(const char *word, const char *key, long lo, long hi, int32_t *value, int *rc)
{
    size_t n = strlen(key);
    char *end;
    if (strncmp(word, key, n) != 0 || word[n] != '=')
        return 0;
    errno = 0;
    long v = strtol(word + n + 1, &end, 10);
    if (errno || end == word + n + 1 || *end || v < lo || v > hi)
        *rc = err_set(ERR_CONFIG, "%s: a whole number from %ld to %ld is needed", word, lo, hi);
    *value = (int32_t)v;
    return 1;
}

static int parse(int argc, char **argv, const char **name, int32_t *nc, int32_t *imgsz)
{
    int rc = 0;
    for (int i = 1; i < argc && rc == 0; i++) {
        if (number(argv[i], "nc", 1, 10000, nc, &rc) ||
            number(argv[i], "imgsz", 32, 16384, imgsz, &rc))
            continue;
        if (strchr(argv[i], '=') && strncmp(argv[i], "model=", 6) != 0)
            return err_set(ERR_CONFIG, "%s: model knows nc= and imgsz=", argv[i]);
        if (*name)
            return err_set(ERR_CONFIG, "%s: one model at a time; %s was named before", argv[i],
                           *name);
        *name = strncmp(argv[i], "model=", 6) == 0 ? argv[i] + 6 : argv[i];
    }
    if (rc == 0 && *name && modelfile_is(*name))
        return err_set(ERR_CONFIG, "%s holds weights; give the name of its model, as in yolo11m",
                       *name);
    if (rc == 0 && !*name)
        return err_set(ERR_CONFIG, "usage: sluice model NAME [nc=80] [imgsz=640], as in yolo11m");
    return rc;
}

int cmd_model(int argc, char **argv)
{
    const char *name = NULL;
    int32_t nc = 0, imgsz = 640;
    graph_t *g = NULL;
    double gflops = 0;
    int rc = parse(argc, argv, &name, &nc, &imgsz);
    if (rc == 0)
        rc = graph_build(name, nc, &g);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < graph_rows(g); i++) {
        graph_row_t row;
        char shape[40];
        CHECK_GOTO(graph_row(g, i, imgsz, &row), rc, out);
        if (i == 0)
            printf("%3s  %-12s %-12s %-26s %-16s %12s %9s\n", "row", "from", "module", "arguments",
                   "shape (c h w)", "parameters", "GFLOPs");
        snprintf(shape, sizeof shape, "%d %d %d", row.c, row.h, row.w);
        printf("%3d  %-12s %-12s %-26s %-16s %12llu %9.3f\n", row.index, row.from, row.module,
               row.args, shape, (unsigned long long)row.parameters, row.gflops);
        gflops += row.gflops;
    }
    const graph_sizes_t *s = graph_sizes(g);
    printf("%s, %d classes, %d x %d: %llu parameters (%llu with gradients), %d tensors in the "
           "state dict, "
           "%.2f GFLOPs in convolutions\n",
           graph_name(g), graph_classes(g), imgsz, imgsz, (unsigned long long)s->parameters,
           (unsigned long long)s->gradients, graph_params(g), gflops);
out:
    graph_free(&g);
    return rc;
}
