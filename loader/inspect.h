/* One image of the data set looked at by the scan: header, end of file, label file.
 *
 * Cheap where the file looks whole: its beginning and its last bytes are read. A JPEG or PNG whose
 * end is missing, or whose header already made the decoder complain, is decoded at once, so that
 * the verdict is a fact; so is every JPEG and PNG when images that decode with a warning are to be
 * left out. What is wrong in the middle of a file that looks whole shows when a loader decodes it.
 * An inspector belongs to one thread.
 */
#ifndef SLUICE_LOADER_INSPECT_H
#define SLUICE_LOADER_INSPECT_H

#include "loader/decode.h"
#include "loader/labels.h"

enum { INSPECT_REMARKS = 4, INSPECT_SIDE_MIN = 10 /* pixels: facts/yolo.md 7.4 */ };

typedef struct {
    picture_limits_t limits;
    uint32_t classes;
    uint32_t max_labels; /* of an image; one with more is dropped */
    int single_cls;
    int skip_warned; /* on_warning=skip: an image that decodes with a warning is dropped */
    int no_labels;   /* images alone: label files are not looked for */
    int decode_all;  /* decode every image rather than those that look damaged */
} inspect_rules_t;

/* What was found out about an image. Zero it before the first use. */
typedef struct {
    catalog_sample_t facts;
    labels_t labels;
    char *dropped;  /* why it cannot be used; NULL: it can */
    int sound;      /* its pixels: nothing to complain of, as far as was looked */
    int labels_bad; /* its pixels are fine: it is dropped for its labels */
    int kept;       /* dropped, and keeps its place in the list of a run that goes on */
    char *warning;  /* it can, although its decoder said so; or NULL */
    char *remarks[INSPECT_REMARKS]; /* it can, but; NULL behind the last */
} finding_t;

typedef struct inspector inspector_t;

int inspector_new(const inspect_rules_t *rules, inspector_t **inspector);
void inspector_free(inspector_t **inspector);
/* Fills an empty finding. An unusable image is a finding, not an error; ERR_ENV without memory. */
int inspect_image(inspector_t *inspector, const char *path, finding_t *finding);
void finding_fini(finding_t *finding);

#endif
