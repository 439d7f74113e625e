#include "control/text.h"
#include "shm/err.h"
#include "tools/commands.h"
#include "tools/sample.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_IMAGES = 200, DEFAULT_SIZE = 2048 };

typedef struct {
    const char *key;
    long long least, most, *value; /* value NULL: a path */
} word_t;

static int unknown(const char *word, const word_t *words, int n)
{
    const char *nearest = words[0].key;
    for (int i = 1; i < n; i++)
        if (text_distance(word, words[i].key) < text_distance(word, nearest))
            nearest = words[i].key;
    return err_set(ERR_CONFIG,
                   "sample: unknown word '%s'; nearest is %s= (see `sluice help sample`)", word,
                   nearest);
}

static int read_number(const word_t *w, const char *text)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < w->least || value > w->most)
        return err_set(ERR_CONFIG, "sample: %s=%s: a whole number from %lld to %lld is needed",
                       w->key, text, w->least, w->most);
    *w->value = value;
    return 0;
}

static int parse(int argc, char **argv, sample_config_t *config)
{
    long long images = DEFAULT_IMAGES, imgsz = DEFAULT_SIZE, seed = 0;
    const word_t words[] = {{"out", 0, 0, NULL},
                            {"images", SAMPLE_IMAGES_MIN, SAMPLE_IMAGES_MAX, &images},
                            {"imgsz", SAMPLE_SIZE_MIN, SAMPLE_SIZE_MAX, &imgsz},
                            {"seed", 0, LLONG_MAX, &seed}};
    enum { WORDS = sizeof words / sizeof words[0] };
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t n = equals ? (size_t)(equals - argv[i]) : 0;
        int k = 0;
        while (k < WORDS &&
               !(equals && strlen(words[k].key) == n && memcmp(words[k].key, argv[i], n) == 0))
            k++;
        if (k == WORDS)
            return unknown(argv[i], words, WORDS);
        if (!words[k].value) {
            config->out = equals + 1;
            continue;
        }
        int rc = read_number(&words[k], equals + 1);
        if (rc < 0)
            return rc;
    }
    if (!config->out || !config->out[0])
        return err_set(ERR_CONFIG, "sample: out=DIR is missing: where to write the data set");
    config->images = (int)images;
    config->imgsz = (int)imgsz;
    config->seed = (uint64_t)seed;
    return 0;
}

static void show_progress(int done, int of)
{
    fprintf(stderr, "\rsample: %d of %d images%s", done, of, done == of ? "\n" : "");
}

int cmd_sample(int argc, char **argv)
{
    sample_config_t config = {0};
    sample_counts_t counts;
    int rc = parse(argc, argv, &config);
    if (rc < 0)
        return rc;
    rc = sample_write(&config, isatty(2) ? show_progress : NULL, &counts);
    if (rc < 0) {
        if (isatty(2))
            fputs("\r\033[K", stderr);
        return err_add(rc, "sample");
    }
    printf("%s/data.yaml: %d images to train on, %d to validate with, %d x %d\n", config.out,
           counts.train, counts.val, config.imgsz, config.imgsz);
    printf("%d defects; %d images have none\n", counts.labels, counts.without);
    return 0;
}
