#include "tools/run_options.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

static const char default_file[] = "pipeline.yaml";

int run_options(int argc, char **argv, options_t *o, const char **words, int *n_words)
{
    const char *file = NULL;
    int resume = 0, rc;
    *n_words = 0;
    options_default(o);
    for (int i = 1; i < argc; i++) {
        resume |= strncmp(argv[i], "resume=", 7) == 0 && argv[i][7] &&
                  strcasecmp(argv[i] + 7, "none") != 0;
        if (strncmp(argv[i], "cfg=", 4) == 0)
            file = argv[i] + 4;
        else
            words[(*n_words)++] = argv[i];
    }
    if (resume && file)
        return err_set(ERR_CONFIG,
                       "cfg= and resume= do not go together: a resumed run has its args.yaml");
    if (!file && !resume && access(default_file, F_OK) == 0)
        file = default_file;
    if (file && (rc = options_load_yaml(o, file)) < 0)
        return rc;
    for (int i = 0; i < *n_words; i++)
        if ((rc = options_set(o, words[i])) < 0)
            return rc;
    return 0;
}

int run_options_check(options_t *o)
{
    char notes[4096];
    int rc = options_check(o, notes, sizeof notes);
    if (rc == 0 && notes[0])
        fprintf(stderr, "%s\n", notes);
    return rc;
}

int run_weights(const char *model, char *path, size_t bytes)
{
    static const char *const names[] = {"best", "last"};
    struct stat st;
    if (stat(model, &st) != 0 || !S_ISDIR(st.st_mode))
        return 0;
    for (int i = 0; i < 2; i++) {
        int n = snprintf(path, bytes, "%s/weights/%s.safetensors", model, names[i]);
        if (n > 0 && (size_t)n < bytes && access(path, F_OK) == 0)
            return 1;
    }
    return err_set(ERR_CONFIG, "model=%s: there is no weights/best.safetensors in this folder",
                   model);
}

int run_bin_dir(char *path, size_t bytes)
{
    ssize_t n = readlink("/proc/self/exe", path, bytes - 1);
    /* Without /proc: the name we were started by, which is a path also when it was looked for. */
    const char *name = (const char *)getauxval(AT_EXECFN);
    char *whole = n < 0 && name ? realpath(name, NULL) : NULL;
    if (whole && strlen(whole) < bytes) {
        n = (ssize_t)strlen(whole);
        memcpy(path, whole, (size_t)n);
    }
    free(whole);
    if (n <= 0)
        return err_sys(ERR_ENV,
                       "where this program lies, and with it sluice-loader and the others, "
                       "cannot be told: /proc/self/exe");
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = '\0';
    return 0;
}
