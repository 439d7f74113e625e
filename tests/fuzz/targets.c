/* The table of targets, and what they share. */
#include "tests/fuzz/fuzz.h"

#include "control/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const fuzz_target_t fuzz_targets[] = {
    {"yaml", fuzz_yaml, NULL, 4096, NULL},
    {"dataset", fuzz_dataset, NULL, 4096, NULL},
    {"listing", fuzz_listing, NULL, 2048, NULL},
    {"labels", fuzz_labels, NULL, 4096, NULL},
    {"inspect", fuzz_inspect, fuzz_bmp_seeds, 8192, "odd"},
    {"jpeg", fuzz_jpeg, NULL, 8192, "odd"},
    {"png", fuzz_png, fuzz_png_seeds, 4096, NULL},
    {"bmp", fuzz_bmp, fuzz_bmp_seeds, 4096, NULL},
    {"exif", fuzz_exif, fuzz_exif_seeds, 512, NULL},
    {"wire", fuzz_wire, fuzz_wire_seeds, 16384, NULL},
    {"follow", fuzz_follow, fuzz_follow_seeds, 4096, NULL},
    {"safetensors", fuzz_safetensors, fuzz_safetensors_seeds, 8192, NULL},
    {"modelfile", fuzz_modelfile, fuzz_safetensors_seeds, 8192, NULL},
    {"pickle", fuzz_pickle, NULL, 4096, NULL},
    {"state", fuzz_state, fuzz_state_seeds, 8192, NULL},
    {"args", fuzz_args, fuzz_args_seeds, 8192, NULL},
    {"options", fuzz_options, NULL, 1024, NULL},
    {"jsonline", fuzz_jsonline, NULL, 4096, NULL},
    {"catalog", fuzz_catalog, fuzz_catalog_seeds, 4096, NULL},
    {"torchfile", fuzz_torchfile, NULL, 16384, NULL},
    {"model", fuzz_model, NULL, 4096, NULL},
};
const int fuzz_targets_count = (int)(sizeof fuzz_targets / sizeof fuzz_targets[0]);

const fuzz_target_t *fuzz_find(const char *name)
{
    for (int i = 0; i < fuzz_targets_count; i++)
        if (strcmp(fuzz_targets[i].name, name) == 0)
            return &fuzz_targets[i];
    return NULL;
}

void fuzz_require(int truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

const char *fuzz_file(const void *data, size_t bytes)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        fuzz_require(fd >= 0, "no memfd");
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    fuzz_require(ftruncate(fd, 0) == 0, "the memfd cannot be emptied");
    fuzz_require(pwrite(fd, data, bytes, 0) == (ssize_t)bytes, "the memfd cannot be written");
    return path;
}

static char link_folder[64], link_path[96];

static void remove_link(void)
{
    unlink(link_path);
    rmdir(link_folder);
}

const char *fuzz_named_file(const void *data, size_t bytes, const char *name, const char **folder)
{
    const char *file = fuzz_file(data, bytes), *at = getenv("TMPDIR");
    if (!link_path[0]) {
        int n = snprintf(link_folder, sizeof link_folder, "%s/sluice-fuzz-XXXXXX",
                         at && strlen(at) < 40 ? at : "/tmp");
        fuzz_require(n > 0 && mkdtemp(link_folder) != NULL, "no folder for the file");
        snprintf(link_path, sizeof link_path, "%s/%s", link_folder, name);
        fuzz_require(symlink(file, link_path) == 0, "no link for the file");
        atexit(remove_link);
    }
    if (folder)
        *folder = link_folder;
    return link_path;
}

static void swallow(void *user, log_level_t level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

void fuzz_silence(void)
{
    log_sink(swallow, NULL);
}

void fuzz_touch(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint8_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = (uint8_t)(sum + p[i]);
    /* The compiler must not know that the sum is not wanted. */
    static volatile uint8_t kept;
    kept = sum;
    (void)kept;
}
