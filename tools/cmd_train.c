/* sluice train: a run from the command line to its end. */
#include "tools/commands.h"

#include "control/coordinator.h"
#include "control/log.h"
#include "shm/err.h"
#include "tools/progress.h"
#include "tools/run_options.h"

#include <limits.h>
#include <stdlib.h>

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
    if (!config->options.resume[0])
        CHECK_GOTO(run_options_check(&config->options), rc, fail);
    CHECK_GOTO(run_bin_dir(bin_dir, sizeof bin_dir), rc, fail);
    config->words = words;
    config->bin_dir = bin_dir;
    progress_init(&progress);
    config->view = progress_view(&progress);
    rc = coordinator_run(config);
fail:
    free(words);
    free(config);
    return rc;
}
