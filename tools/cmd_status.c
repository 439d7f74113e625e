/* sluice status [RUN] [--follow] [--json], sluice scale [RUN] workers=N: questions to a live run. */
#include "tools/commands.h"

#include "shm/err.h"
#include "tools/ask.h"
#include "tools/follow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The one word that names a run; NULL when there is none. Words that take() takes are skipped. */
static int one_run(int argc, char **argv, int (*take)(void *user, const char *word), void *user,
                   const char **which)
{
    *which = NULL;
    for (int i = 1; i < argc; i++) {
        int rc = take ? take(user, argv[i]) : 0;
        if (rc < 0)
            return rc;
        if (rc == 1)
            continue;
        if (argv[i][0] == '-')
            return err_set(ERR_CONFIG, "%s does not know '%s'", argv[0], argv[i]);
        if (*which)
            return err_set(ERR_CONFIG, "%s takes one run: '%s' is too much", argv[0], argv[i]);
        *which = argv[i];
    }
    return 0;
}

typedef struct {
    int json, follow;
} status_words_t;

static int take_status_word(void *user, const char *word)
{
    status_words_t *w = user;
    int json = strcmp(word, "--json") == 0, follow = strcmp(word, "--follow") == 0;
    w->json |= json;
    w->follow |= follow;
    return json || follow;
}

int cmd_status(int argc, char **argv)
{
    const char *which;
    status_words_t w = {0, 0};
    int rc = one_run(argc, argv, take_status_word, &w, &which);
    if (rc < 0)
        return rc;
    return w.follow ? follow_run(which, w.json) : ask_run(which, WIRE_CMD_STATUS, !w.json);
}

static int take_workers(void *user, const char *word)
{
    char *end;
    if (strncmp(word, "workers=", 8) != 0)
        return 0;
    errno = 0;
    long n = strtol(word + 8, &end, 10);
    if (errno || end == word + 8 || *end || n < 1 || n > 1024)
        return err_set(ERR_CONFIG, "%s: a number of loaders from 1 to 1024 is needed", word);
    *(uint32_t *)user = (uint32_t)n;
    return 1;
}

int cmd_scale(int argc, char **argv)
{
    const char *which;
    uint32_t workers = 0;
    int rc = one_run(argc, argv, take_workers, &workers, &which);
    if (rc < 0)
        return rc;
    if (workers == 0)
        return err_set(ERR_CONFIG, "scale needs workers=N, the new number of loaders");
    return ask_run(which, WIRE_CMD_SCALE, workers);
}
