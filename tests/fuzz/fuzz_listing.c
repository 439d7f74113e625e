/* A .txt list of images. Its name must end so: a link in a folder that the process makes once. */
#include "tests/fuzz/fuzz.h"

#include "loader/listing.h"
#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], list[96];

static void remove_folder(void)
{
    unlink(list);
    rmdir(folder);
}

static void make_folder(const char *file)
{
    const char *at = getenv("TMPDIR");
    int n = snprintf(folder, sizeof folder, "%s/sluice-fuzz-XXXXXX",
                     at && strlen(at) < 40 ? at : "/tmp");
    fuzz_require(n > 0 && mkdtemp(folder) != NULL, "no folder for the list");
    snprintf(list, sizeof list, "%s/list.txt", folder);
    fuzz_require(symlink(file, list) == 0, "no link for the list");
    atexit(remove_folder);
}

void fuzz_listing(const uint8_t *data, size_t bytes)
{
    listing_t l;
    const char *file = fuzz_file(data, bytes);
    if (!list[0])
        make_folder(file);
    char *entry = list;
    dataset_t d = {.file = list, .root = folder};
    d.entries[CATALOG_TRAIN] = (paths_t){.items = &entry, .count = 1, .capacity = 1};
    int rc = listing_make(&d, CATALOG_TRAIN, NULL, NULL, &l);
    if (rc < 0) {
        fuzz_require(rc == ERR_DATA, "bytes of a list failed as something else");
        return;
    }
    fuzz_require(l.refused.count == l.reasons.count, "a refusal without a reason");
    for (uint32_t i = 0; i < l.files.count; i++) {
        char *label = listing_label_path(l.files.items[i]);
        fuzz_require(label && strlen(label) > 4, "an image without a label's path");
        free(label);
    }
    for (uint32_t i = 0; i < l.refused.count; i++) {
        char *label = listing_label_path(l.refused.items[i]);
        fuzz_touch(label, strlen(label) + 1);
        free(label);
    }
    listing_fini(&l);
}
