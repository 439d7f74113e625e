/* The layout of a catalog's block. Private to control/catalog*.c.
 *
 *   catalog_head_t | names: uint64 offsets | samples train | samples val | labels | points | issues
 * | strings
 *
 * Every table begins at a multiple of 8; strings are NUL-terminated and the region's last byte is
 * NUL, so an offset inside it is always a terminated string.
 */
#ifndef SLUICE_CONTROL_CATALOG_BLOCK_H
#define SLUICE_CONTROL_CATALOG_BLOCK_H

#include "control/catalog.h"

#include <stddef.h>

#define CATALOG_MAGIC UINT64_C(0x31474f4c41544143) /* "CATALOG1" */
enum { CATALOG_VERSION = 1 };

typedef struct {
    uint64_t at;    /* bytes from the start of the block */
    uint64_t count; /* of items: points are floats, two a point; strings are bytes */
} catalog_table_t;

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t sum;   /* of all else; for a list that comes from a file */
    uint64_t bytes; /* of the block */
    uint64_t digest;
    catalog_table_t names, samples[CATALOG_SPLITS], labels, points, issues, strings;
} catalog_head_t;

_Static_assert(sizeof(catalog_head_t) == 144, "layout is shared between processes");
_Static_assert(sizeof(catalog_sample_t) == 40 && offsetof(catalog_sample_t, format) == 32,
               "layout");
_Static_assert(sizeof(catalog_label_t) == 28, "layout");
_Static_assert(sizeof(catalog_issue_t) == 24, "layout");

/* The digest of a block whose offsets have been checked: names, then each split's samples with
 * their paths, sizes, labels and polygons. Issues are not part of it. */
uint64_t catalog_block_digest(const catalog_head_t *head);
uint32_t catalog_block_sum(const catalog_head_t *head);

#endif
