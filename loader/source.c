#include "loader/source.h"

#include "shm/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int named_source(const char *source, dataset_t **out)
{
    if (!path_exists(source))
        return err_set(ERR_CONFIG,
                       "source=%s: %s; give an image, a folder, or a .txt list of images", source,
                       errno == ENOENT ? "there is no such file" : strerror(errno));
    dataset_t *d = calloc(1, sizeof *d);
    if (!d)
        return err_set(ERR_ENV, "no memory for the list of images");
    d->images_too = 1;
    d->file = path_absolute(source);
    d->root = d->file ? path_folder(d->file) : NULL;
    int rc = d->root ? 0 : err_set(ERR_ENV, "no memory for the path of source=%s", source);
    if (rc == 0)
        rc = paths_add(&d->names, "object");
    if (rc == 0)
        rc = paths_add(&d->entries[CATALOG_VAL], d->file);
    if (rc < 0)
        dataset_free(&d);
    *out = d;
    return rc;
}

int source_open(const options_t *o, dataset_t **dataset)
{
    *dataset = NULL;
    if (o->mode == OPT_MODE_PREDICT)
        return named_source(o->source, dataset);
    /* A validation needs no training image, not even that their folder is there. */
    return dataset_open_split(o->data, o->mode == OPT_MODE_VAL ? CATALOG_VAL : CATALOG_TRAIN,
                              dataset);
}
