/* Is it this file, or the storage? When a file cannot be read, some others of its split are tried at
 * random: a storage that has gone away must not be taken for thousands of bad samples.
 *
 * The trial goes through the reader like any other file, so that nothing waits for it; a verdict
 * serves every file that fails within PROBE_FRESH_MS of it. One thread.
 */
#ifndef SLUICE_LOADER_PROBE_H
#define SLUICE_LOADER_PROBE_H

#include "control/catalog.h"
#include "loader/reader.h"

enum {
    PROBE_FILES = 48,   /* tried, the same one twice perhaps */
    PROBE_LEAST = 24,   /* of a split that is tried */
    PROBE_BYTES = 4096, /* that are read of each */
    PROBE_FRESH_MS = 2000,
    PROBE_PATIENCE_MS = 5000, /* then what has not answered counts as unread */
};

typedef struct {
    reader_file_t files[PROBE_FILES];
    uint32_t n;     /* submitted, of the last trial */
    int under_way;  /* 1: its verdict is awaited */
    uint64_t at_ns; /* its beginning; after the verdict the verdict's time; 0: never */
    uint32_t draws; /* random draws so far */
    catalog_split_t split;
    uint16_t probed, unread;
} probe_t;

/* 1: p->probed and p->unread are a verdict on `split` that is fresh. 0: it is awaited, begun here
 * where it was not; ask again after the next reader_poll. Negative: ERR_ENV. A split of fewer
 * samples than PROBE_LEAST is not tried: 1 and 0 of 0. */
int probe_ask(probe_t *p, reader_t *reader, const catalog_t *catalog, catalog_split_t split);
/* Once no file is under way any more. */
void probe_fini(probe_t *p);

#endif
