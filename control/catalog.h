/* The sample list: what the scan found usable, in one read-only block of memory (design 3 and 4).
 *
 * Built once by `sluice-loader --scan` (catalog_builder_*, loader/scan.c) into a memfd that the
 * coordinator made; then mapped read-only by the coordinator (counts, names, digest, shapes), every
 * loader (paths, labels) and every trainer (names). Offsets are in bytes from the start of the
 * block. The digest covers format version, class names, each sample's path as listed, size, labels
 * and polygons: all processes of a run must report the same one. The scribe keeps the block in the run
 * directory (tools/listfile.h), and a resume's scan begins from it. Any process; read-only after the
 * scan.
 */
#ifndef SLUICE_CONTROL_CATALOG_H
#define SLUICE_CONTROL_CATALOG_H

#include <stdint.h>

typedef enum { CATALOG_TRAIN = 0, CATALOG_VAL = 1, CATALOG_SPLITS = 2 } catalog_split_t;
typedef enum { CATALOG_JPEG = 0, CATALOG_PNG, CATALOG_BMP } catalog_format_t;

/* A label row: class, centre, size, normalised to the upright image; its polygon if the row had
 * one. */
typedef struct {
    float cls, cx, cy, w, h;
    uint32_t first_point,
        n_points; /* into the points table, x and y a point; 0 points: a plain box */
} catalog_label_t;

typedef struct {
    uint64_t path; /* offset of the absolute path, NUL-terminated */
    uint64_t file_bytes;
    uint32_t width, height; /* upright: EXIF orientation applied */
    uint32_t first_label, n_labels;
    uint8_t format;      /* catalog_format_t */
    uint8_t orientation; /* EXIF 1..8 */
    uint8_t warned;      /* decodes with a warning */
    uint8_t pad;
    uint32_t pad2;
} catalog_sample_t;

/* Something the user should know of the data set, found by the scan. */
typedef enum {
    CATALOG_DROPPED = 0, /* image or label unusable: left out */
    CATALOG_WARNED,      /* used, with a remark (duplicate rows) */
    CATALOG_DECODER,     /* used although its decoder warned; the sample's `warned` is 1 */
    CATALOG_KEPT,        /* of a run that goes on: in its list, and cannot be used at present */
} catalog_issue_kind_t;
typedef struct {
    uint64_t path, reason; /* string offsets */
    uint32_t kind, split;
} catalog_issue_t;

typedef struct catalog catalog_t; /* an opened block */

/* Maps and checks an inherited block: magic, version, every offset within bounds. */
int catalog_open(int fd, catalog_t **catalog);
/* The same over memory that the caller keeps (tests, fuzzing). */
int catalog_open_memory(const void *base, uint64_t bytes, catalog_t **catalog);
void catalog_close(catalog_t **catalog);
/* Of an opened block that comes from a file: whether every byte of it is as it was built, the
 * findings too, which the digest does not cover, and whether each label and polygon is one sample's.
 * ERR_FAILED. */
int catalog_check_saved(const catalog_t *catalog);

uint32_t catalog_classes(const catalog_t *c);
const char *catalog_class_name(const catalog_t *c, uint32_t cls);
uint32_t catalog_count(const catalog_t *c, catalog_split_t split);
uint32_t catalog_backgrounds(const catalog_t *c,
                             catalog_split_t split); /* samples without labels */
uint64_t catalog_digest(const catalog_t *c);
const catalog_sample_t *catalog_sample(const catalog_t *c, catalog_split_t split, uint32_t i);
const char *catalog_path(const catalog_t *c, const catalog_sample_t *s);
const catalog_label_t *catalog_labels(const catalog_t *c, const catalog_sample_t *s);
const float *catalog_points(const catalog_t *c, const catalog_label_t *l);
int catalog_has_polygons(const catalog_t *c);
/* Of one split's labels. */
int catalog_split_polygons(const catalog_t *c, catalog_split_t split);
/* Most labels that any one sample has: ring_config_t.label_cap follows from it. */
uint32_t catalog_max_labels(const catalog_t *c);
uint32_t catalog_issues(const catalog_t *c);
const catalog_issue_t *catalog_issue(const catalog_t *c, uint32_t i);
const char *catalog_string(const catalog_t *c, uint64_t offset);

/* The val split is in order of aspect ratio h / w, rising, then of path (facts/yolo.md 6.1). The
 * shape of the batch of samples [first, first + count): ceil([ratio] * imgsz / 32 + 0.5) * 32. */
void catalog_val_shape(const catalog_t *c, uint32_t first, uint32_t count, uint32_t imgsz,
                       uint32_t *height, uint32_t *width);

/* Building, by the scan. Strings are copied. Samples are kept in the order added; the caller sorts.
 */
typedef struct catalog_builder catalog_builder_t;
int catalog_builder_new(catalog_builder_t **b);
void catalog_builder_free(catalog_builder_t **b);
int catalog_builder_class(catalog_builder_t *b, const char *name);
/* labels' first_point is relative to points here; n_points of each label says how many it takes. */
int catalog_builder_sample(catalog_builder_t *b, catalog_split_t split, const char *path,
                           const catalog_sample_t *facts, const catalog_label_t *labels,
                           uint32_t n_labels, const float *points, uint32_t n_points);
int catalog_builder_issue(catalog_builder_t *b, catalog_issue_kind_t kind, catalog_split_t split,
                          const char *path, const char *reason);
/* Writes the finished block into the memfd (sized here). */
int catalog_builder_write(catalog_builder_t *b, int fd);

#endif
