/* sluice digest: the batch stream's digests, without a trainer. */
#include "tools/commands.h"

#include "control/coordinator.h"
#include "control/log.h"
#include "shm/err.h"
#include "tools/early.h"
#include "tools/run_options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int samples; /* --samples */
} digest_view_t;

static void on_note(void *user, log_level_t level, const char *text)
{
    (void)user;
    fprintf(stderr, "%s%s\n",
            level == LOG_WARN    ? "warning: "
            : level == LOG_ERROR ? "error: "
                                 : "",
            text);
}

/* "epoch step rank digest" in training, "val epoch step rank digest" in validation; epochs and
 * steps count from 0. With --samples one more column: the catalogue's numbers, in order of cell,
 * between commas. */
static int on_batch(void *user, const coordinator_batch_t *b)
{
    const digest_view_t *view = user;
    errno = 0;
    printf("%s%u %u %u %016llx", b->validation ? "val " : "", b->epoch, b->step, b->rank,
           (unsigned long long)b->digest);
    for (uint32_t i = 0; view->samples && i < b->cells; i++)
        printf("%c%u", i == 0 ? ' ' : ',', b->samples[i]);
    putchar('\n');
    return ferror(stdout) ? err_sys(ERR_ENV, "writing to standard output") : 0;
}

/* Behind the last training batch of an epoch. */
static int on_stream(void *user, uint32_t epoch, uint64_t digest)
{
    (void)user;
    errno = 0;
    printf("epoch %u %016llx\n", epoch, (unsigned long long)digest);
    return ferror(stdout) ? err_sys(ERR_ENV, "writing to standard output") : 0;
}

static void on_end(void *user, const coordinator_summary_t *s)
{
    (void)user;
    if (s->bad + s->warned)
        fprintf(stderr, "%u bad samples, %u images used although their decoder warns\n", s->bad,
                s->warned);
    if (s->code == 0)
        printf("stream %016llx\n", (unsigned long long)s->stream);
}

int cmd_digest(int argc, char **argv)
{
    char bin_dir[PATH_MAX];
    digest_view_t view = {0};
    int rc, n = 1;
    coordinator_config_t *config = calloc(1, sizeof *config);
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    if (!config || !words) {
        rc = err_set(ERR_ENV, "no memory for the options");
        goto fail;
    }
    log_identity("sluice", -1);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--samples") == 0)
            view.samples = 1;
        else
            argv[n++] = argv[i];
    }
    CHECK_GOTO(run_options(n, argv, &config->options, words, &config->n_words), rc, fail);
    if (config->options.resume[0]) {
        rc = err_set(ERR_CONFIG, "resume= has no meaning for digest: it begins with epoch 0");
        goto fail;
    }
    if (!options_was_set(&config->options, "epochs"))
        config->options.epochs = 1;
    config->options.digest = 1;
    CHECK_GOTO(run_options_check(&config->options), rc, fail);
    CHECK_GOTO(run_bin_dir(bin_dir, sizeof bin_dir), rc, fail);
    config->words = words;
    config->bin_dir = bin_dir;
    config->digest_only = 1;
    config->view = (coordinator_view_t){
        .user = &view, .note = on_note, .batch = on_batch, .stream = on_stream, .end = on_end};
    early_hold();
    rc = coordinator_run(config);
fail:
    free(words);
    free(config);
    return rc;
}
