/* The image files of a split, found in its folders and lists (facts/yolo.md 7.2), and their label
 * files (7.3).
 *
 * Folders are searched recursively, links followed; names that begin with a dot are passed over, as
 * glob does, and so are names without an image's extension. In a .txt list each line is a path: a
 * leading "./" is the list's folder; other relative ones are looked for from the list's folder,
 * then from the data set's root, then from the current directory. A file listed twice is there
 * twice. Formats that are known as images but not read here are reported, as are listed files that
 * do not exist. One thread.
 */
#ifndef SLUICE_LOADER_LISTING_H
#define SLUICE_LOADER_LISTING_H

#include "loader/dataset.h"
#include "loader/paths.h"

typedef struct {
    paths_t files; /* absolute, sorted */
    /* What was passed over and why: paths and reasons side by side, sorted by path. */
    paths_t refused, reasons;
    uint64_t looked_at; /* names, so far */
} listing_t;

/* Told now and then how many names have been looked at, since a large set on slow storage takes
 * minutes to list; a negative return ends the listing with that code. */
typedef int (*listing_seen_fn)(void *user, uint64_t seen);

/* ERR_DATA when a folder or list cannot be read; an empty listing is no error here. seen may be NULL. */
int listing_make(const dataset_t *dataset, catalog_split_t split, listing_seen_fn seen, void *user,
                 listing_t *listing);
void listing_fini(listing_t *listing);
/* The label file of an image: the last /images/ component becomes /labels/, the extension .txt;
 * beside the image if there is no such component. Freed by the caller; NULL without memory. */
char *listing_label_path(const char *image);

#endif
