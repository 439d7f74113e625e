/* data.yaml: class names and where the images are (facts/yolo.md 7.1).
 *
 * Every path is made absolute once, here: `path` from the YAML's folder, else from the current
 * directory; train and val from `path`, where a leading "../" is retried without it. Not read:
 * test, minival, download. One thread; read-only afterwards.
 */
#ifndef SLUICE_LOADER_DATASET_H
#define SLUICE_LOADER_DATASET_H

#include "control/catalog.h"
#include "loader/paths.h"

typedef struct {
    char *file;                      /* the YAML, absolute */
    char *root;                      /* what train and val are relative to, absolute */
    paths_t names;                   /* class names, at least one */
    paths_t entries[CATALOG_SPLITS]; /* folders and .txt lists that exist, absolute */
    int images_too;                  /* an entry may be one image: source= of a prediction */
} dataset_t;

/* ERR_CONFIG if there is no such file, ERR_DATA if what it says cannot be used: names file and
 * line. */
int dataset_open(const char *yaml, dataset_t **dataset);
/* The same from split `first` on: with CATALOG_VAL the training split is neither needed nor read. */
int dataset_open_split(const char *yaml, catalog_split_t first, dataset_t **dataset);
void dataset_free(dataset_t **dataset);
const char *dataset_split_name(catalog_split_t split);

#endif
