/* The list of a run that goes on, held against the data set as it is now (design 4).
 *
 * The list stays what it was when the run began, for everything that is drawn follows from it. So an
 * image of it that is missing or unusable now keeps its place, with the size and labels that it had:
 * training meets it as it meets a file that goes bad while it is on, and the ledger says what is read
 * instead. What was left out stays out. Anything else that is not as it was is a difference, and with
 * one the run does not go on. One thread.
 */
#ifndef SLUICE_LOADER_REFERENCE_H
#define SLUICE_LOADER_REFERENCE_H

#include "loader/dataset.h"
#include "loader/inspect.h"

enum { REFERENCE_NONE = 0xffffffff };

/* A place of the list, or a file that the data set has beyond it. Texts are the catalogue's and the
 * listing's. */
typedef struct {
    const char *path;
    const char *left_out; /* why it was left out when the run began; NULL: it was not there */
    uint32_t sample;      /* its place in the split, or REFERENCE_NONE */
    int listed;           /* the data set has it now */
} reference_item_t;

typedef struct {
    const catalog_t *list;
    reference_item_t *items[CATALOG_SPLITS]; /* by path */
    uint32_t count[CATALOG_SPLITS];
    uint32_t kept[CATALOG_SPLITS], added;
    uint32_t differences;
    char first_added[300], first_difference[300];
    char first_kept[CATALOG_SPLITS][300];
} reference_t;

/* list: as catalog_check_saved found it good; it stays open for as long as this is used. */
void reference_init(reference_t *r, const catalog_t *list);
void reference_fini(reference_t *r);
/* Makes the items of a split from the files that are there, sorted by path. fraction below 1: files
 * behind the list's last are those that it left out. ERR_ENV. */
int reference_match(reference_t *r, catalog_split_t split, const paths_t *files, double fraction);
/* Whether the list has a place for the path. */
int reference_has(const reference_t *r, catalog_split_t split, const char *path);
/* What the items' findings come to: kept, staying out, or different. ERR_ENV. */
int reference_judge(reference_t *r, catalog_split_t split, finding_t *findings);
/* After all are judged: 0, ERR_DATA when so much is gone that it is the storage, ERR_CONFIG for
 * differences. `names`: the classes now. */
int reference_verdict(const reference_t *r, const paths_t *names, int single_cls);
/* The split's samples in the list's order, with its facts and labels. */
int reference_samples(const reference_t *r, catalog_split_t split, const finding_t *findings,
                      catalog_builder_t *builder);

#endif
