/* sluice train: a run from the command line to its end. */
#include "tools/commands.h"

#include "control/coordinator.h"
#include "control/log.h"
#include "shm/err.h"
#include "tools/early.h"
#include "tools/progress.h"
#include "tools/run_options.h"
#include "trainer/graph.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A wrong name is told before the data set is read. Whether a file can be used is the trainer's to
 * find out; a table that lies here goes before a built-in one, and its path is kept. A folder needs a
 * slash to be one: a model's name stays that where a folder is called so. */
static int check_model(options_t *o)
{
    char path[OPTIONS_PATH_BYTES];
    graph_t *graph = NULL;
    const char *dot = strrchr(o->model, '.');
    int is_table = dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
    if (strchr(o->model, '/')) {
        int folder = run_weights(o->model, path, sizeof path);
        if (folder > 0)
            memcpy(o->model, path, sizeof path);
        return folder < 0 ? folder : 0;
    }
    if (dot && !is_table)
        return 0;
    if (is_table && access(o->model, F_OK) == 0) {
        snprintf(path, sizeof path, "./%.*s", OPTIONS_PATH_BYTES - 3, o->model);
        memcpy(o->model, path, sizeof path);
        return 0;
    }
    int rc = graph_build(o->model, 0, &graph);
    graph_free(&graph);
    return rc;
}

int cmd_train(int argc, char **argv)
{
    char bin_dir[PATH_MAX];
    progress_t progress;
    int rc;
    coordinator_config_t *config = calloc(1, sizeof *config);
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    if (!config || !words) {
        rc = err_set(ERR_ENV, "no memory for the options");
        goto fail;
    }
    log_identity("sluice", -1);
    CHECK_GOTO(run_options(argc, argv, &config->options, words, &config->n_words), rc, fail);
    /* A resumed run's options are checked when its args.yaml has been read. */
    if (config->options.resume[0]) {
        CHECK_GOTO(options_check_resume(&config->options), rc, fail);
    } else {
        CHECK_GOTO(run_options_check(&config->options), rc, fail);
        CHECK_GOTO(check_model(&config->options), rc, fail);
    }
    CHECK_GOTO(run_bin_dir(bin_dir, sizeof bin_dir), rc, fail);
    config->words = words;
    config->bin_dir = bin_dir;
    CHECK_GOTO(progress_open(&progress), rc, fail);
    config->view = progress_view(&progress);
    early_hold();
    rc = coordinator_run(config);
    progress_close(&progress);
fail:
    free(words);
    free(config);
    return rc;
}
