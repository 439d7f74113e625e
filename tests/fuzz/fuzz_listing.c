/* A .txt list of images. */
#include "tests/fuzz/fuzz.h"

#include "loader/listing.h"
#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fuzz_listing(const uint8_t *data, size_t bytes)
{
    listing_t l;
    const char *folder, *list = fuzz_named_file(data, bytes, "list.txt", &folder);
    char file[128], root[128];
    snprintf(file, sizeof file, "%s", list);
    snprintf(root, sizeof root, "%s", folder);
    char *entry = file;
    dataset_t d = {.file = file, .root = root};
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
