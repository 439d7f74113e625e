/* data.yaml: class names and paths, which are looked for but lead nowhere. */
#include "tests/fuzz/fuzz.h"

#include "loader/dataset.h"
#include "shm/err.h"

#include <string.h>

static void touch_list(const paths_t *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        fuzz_touch(list->items[i], strlen(list->items[i]) + 1);
}

void fuzz_dataset(const uint8_t *data, size_t bytes)
{
    dataset_t *d = NULL;
    int rc = dataset_open(fuzz_file(data, bytes), &d);
    if (rc < 0) {
        fuzz_require(rc == ERR_DATA || rc == ERR_CONFIG,
                     "bytes of a file failed as something else");
        return;
    }
    fuzz_require(d->names.count >= 1, "a data set without classes");
    touch_list(&d->names);
    for (int s = 0; s < CATALOG_SPLITS; s++) {
        fuzz_require(d->entries[s].count >= 1, "a split without an entry");
        touch_list(&d->entries[s]);
    }
    dataset_free(&d);
}
