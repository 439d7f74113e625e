/* libFuzzer's way in: one program for all targets. SLUICE_FUZZ names the target; without it the
 * names are printed, with the most bytes and the folder of seeds of each. SLUICE_FUZZ_SEEDS names a
 * folder that the target's made seeds are written to, instead of fuzzing. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const fuzz_target_t *target;

static void write_seed(void *user, const char *name, const void *data, size_t bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", (const char *)user, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        exit(1);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    const char *name = getenv("SLUICE_FUZZ"), *seeds = getenv("SLUICE_FUZZ_SEEDS");
    for (int i = 0; !name && i < fuzz_targets_count; i++)
        printf("%s %zu %s\n", fuzz_targets[i].name, fuzz_targets[i].most,
               fuzz_targets[i].files ? fuzz_targets[i].files : "-");
    if (!name)
        exit(0);
    target = fuzz_find(name);
    if (!target) {
        fprintf(stderr, "SLUICE_FUZZ=%s: there is no such target\n", name);
        exit(2);
    }
    if (seeds) {
        if (target->seeds)
            target->seeds(write_seed, (void *)(uintptr_t)seeds);
        exit(0);
    }
    fuzz_silence();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    target->run(data, bytes);
    return 0;
}
