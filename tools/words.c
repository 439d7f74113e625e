#include "tools/words.h"

#include "control/text.h"
#include "shm/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int unknown(const char *command, const char *word, const word_t *words, int n)
{
    const char *nearest = words[0].key;
    for (int i = 1; i < n; i++)
        if (text_distance(word, words[i].key) < text_distance(word, nearest))
            nearest = words[i].key;
    return err_set(ERR_CONFIG, "%s: unknown word '%s'; nearest is %s= (see `sluice help %s`)",
                   command, word, nearest, command);
}

/* As the options of train take them. */
static int read_truth(const char *command, const word_t *w, const char *text)
{
    static const char *const words[2][5] = {{"False", "no", "off", "n", "0"},
                                            {"True", "yes", "on", "y", "1"}};
    for (int truth = 0; truth < 2; truth++) {
        for (int i = 0; i < 5; i++) {
            if (strcasecmp(text, words[truth][i]) != 0)
                continue;
            *w->truth = truth;
            return 0;
        }
    }
    return err_set(ERR_CONFIG, "%s: %s=%s: True or False is needed", command, w->key, text);
}

static int read_word(const char *command, word_t *w, const char *text)
{
    char *end;
    w->given = 1;
    errno = 0;
    if (w->truth)
        return read_truth(command, w, text);
    if (w->text) {
        *w->text = text;
        return *text ? 0 : err_set(ERR_CONFIG, "%s: %s= is empty", command, w->key);
    }
    if (w->share) {
        *w->share = strtod(text, &end);
        if (errno || end == text || *end || !(*w->share >= 0 && *w->share <= 1))
            return err_set(ERR_CONFIG, "%s: %s=%s: a number from 0 to 1 is needed", command, w->key,
                           text);
        return 0;
    }
    *w->number = strtoll(text, &end, 10);
    if (errno || end == text || *end || *w->number < w->least || *w->number > w->most)
        return err_set(ERR_CONFIG, "%s: %s=%s: a whole number from %lld to %lld is needed", command,
                       w->key, text, w->least, w->most);
    return 0;
}

int words_read(const char *command, int argc, char **argv, word_t *words, int n)
{
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        const size_t length = equals ? (size_t)(equals - argv[i]) : 0;
        int k = 0, rc;
        while (k < n && !(equals && strlen(words[k].key) == length &&
                          memcmp(words[k].key, argv[i], length) == 0))
            k++;
        if (k == n)
            return unknown(command, argv[i], words, n);
        if ((rc = read_word(command, &words[k], equals + 1)) < 0)
            return rc;
    }
    return 0;
}
