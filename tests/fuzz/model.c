#include "tests/fuzz/model.h"

#include "shm/err.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char table[] = "nc: 2\n"
                            "backbone:\n"
                            "  - [-1, 1, Conv, [8, 3, 2]]\n"
                            "  - [-1, 1, Conv, [8, 3, 2]]\n"
                            "  - [-1, 1, Conv, [8, 3, 2]]\n"
                            "  - [-1, 1, Conv, [8, 3, 2]]\n"
                            "  - [-1, 1, Conv, [8, 3, 2]]\n"
                            "head:\n"
                            "  - [[2, 3, 4], 1, Detect, [nc]]\n";

graph_t *fuzz_small_model(void)
{
    static graph_t *g;
    if (g)
        return g;
    char path[128];
    const char *at = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/sluice-fuzz-XXXXXX.yaml", at && strlen(at) < 80 ? at : "/tmp");
    int fd = mkstemps(path, 5);
    fuzz_require(fd >= 0 && write(fd, table, sizeof table - 1) == (ssize_t)sizeof table - 1,
                 "the model's table cannot be written");
    close(fd);
    int rc = graph_build(path, 0, &g);
    unlink(path);
    if (rc < 0)
        fprintf(stderr, "%s\n", err_text());
    fuzz_require(rc == 0, "the small model cannot be built");
    return g;
}
