/* args.yaml of a run that is resumed, with words of a command line: what the options become. The
 * bytes before the first NUL are the file, words follow, each ended by a NUL. */
#include "tests/fuzz/fuzz.h"

#include "control/coordinator_state.h"
#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 4 };

void fuzz_args(const uint8_t *data, size_t bytes)
{
    static coordinator_t c; /* too large for the stack */
    static coordinator_config_t config;
    const char *words[WORDS];
    char *text = malloc(bytes + 1);
    fuzz_require(text != NULL, "no memory");
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    size_t yaml = strlen(text), at = yaml + 1;
    int n = 0;
    for (; at < bytes && n < WORDS; at += strlen(text + at) + 1)
        words[n++] = text + at;
    config.words = words;
    config.n_words = n;
    c.config = &config;
    c.view = &config.view;
    c.state = RUN_OPENING;
    if (!c.outbox)
        fuzz_require(outbox_new(1 << 16, 1 << 18, &c.outbox) == 0, "no memory");
    snprintf(c.run_dir, sizeof c.run_dir, "/runs/train");
    int rc = resume_options(&c, text, yaml);
    if (rc < 0)
        fuzz_require(err_text()[0] != '\0', "an error without a sentence");
    else
        fuzz_require(c.options.data[0] && c.options.batch >= 1 && c.options.imgsz % 32 == 0 &&
                         c.options.epochs >= 1 && c.options.n_devices >= 1,
                     "options that no run can have");
    outbox_free(&c.outbox);
    free(text);
}

void fuzz_args_seeds(fuzz_seed_fn give, void *user)
{
    static char text[OPTIONS_YAML_BYTES];
    static options_t o;
    options_default(&o);
    fuzz_require(options_set(&o, "data=/data/set.yaml") == 0, "a word that is not taken");
    int n = options_dump_yaml(&o, text, sizeof text - 64);
    fuzz_require(n > 0, "no dump");
    give(user, "args.yaml", text, (size_t)n);
    static const char words[] = "\0batch=8\0epochs=7\0device=cpu,cpu";
    memcpy(text + n, words, sizeof words);
    give(user, "args-and-words", text, (size_t)n + sizeof words);
}
