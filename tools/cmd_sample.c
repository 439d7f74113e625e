#include "shm/err.h"
#include "tools/commands.h"
#include "tools/sample.h"
#include "tools/words.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

enum { DEFAULT_IMAGES = 200, DEFAULT_SIZE = 2048 };

static int parse(int argc, char **argv, sample_config_t *config)
{
    long long images = DEFAULT_IMAGES, imgsz = DEFAULT_SIZE, seed = 0;
    word_t words[] = {
        {"out", .text = &config->out},
        {"images", .number = &images, .least = SAMPLE_IMAGES_MIN, .most = SAMPLE_IMAGES_MAX},
        {"imgsz", .number = &imgsz, .least = SAMPLE_SIZE_MIN, .most = SAMPLE_SIZE_MAX},
        {"seed", .number = &seed, .least = 0, .most = LLONG_MAX},
    };
    int rc = words_read("sample", argc, argv, words, sizeof words / sizeof words[0]);
    if (rc < 0)
        return rc;
    if (!config->out)
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
