/* One cell: from its place in the order of work to pixels, labels and metadata (design 3 and 4).
 *
 * In two halves, because reading lies between them: cell_plan draws what will be done and names the
 * files needed; cell_fill decodes, resizes, warps and labels. What is written is a pure function of
 * (catalogue, ledger, plan, options, phase, epoch, position): not of who fills it, when, or what
 * was filled before. A cell_maker_t holds the decoders and every buffer, which grow and are kept.
 * One thread per maker.
 */
#ifndef SLUICE_LOADER_CELL_H
#define SLUICE_LOADER_CELL_H

#include "control/catalog.h"
#include "control/options.h"
#include "control/parts.h"
#include "control/plan.h"
#include "loader/geometry.h"
#include "loader/substitutes.h"
#include "shm/board.h"
#include "shm/ring.h"

enum { CELL_SOURCES = GEOMETRY_TILES * GEOMETRY_VIEWS };

typedef struct cell_maker cell_maker_t;

/* What a cell will be. A plain value; comparing `sources` tells whether a ledger entry changed it.
 */
typedef struct {
    plan_batch_t batch;
    uint64_t position;
    catalog_split_t split;
    uint32_t sample;                  /* the cell's own, ledger applied */
    uint32_t width, height;           /* of the cell's image */
    uint32_t n_sources;               /* distinct files that reach the output */
    uint32_t sources[CELL_SOURCES];   /* catalogue indices, in order of first use; the ledger's */
    uint32_t loaded[CELL_SOURCES][2]; /* width and height that each is brought to */
    geometry_t geometry;              /* training */
    part_t part;                      /* validation: what of its sample the cell shows */
    geometry_letterbox_t letterbox;   /* validation */
} cell_plan_t;

/* A source file's bytes, in memory. */
typedef struct {
    const uint8_t *data;
    size_t bytes;
} cell_file_t;

/* Where the cell goes: places of a ring's slot, or anybody's memory. */
typedef struct {
    uint8_t *image; /* height * width * 3 */
    ring_label_t *labels;
    uint32_t label_cap;
    ring_cell_meta_t *meta;
    int digest; /* fill meta->digest */
} cell_target_t;

/* Told before each part of the work; source is the catalogue index of the file worked on. */
typedef void (*cell_progress_fn)(void *user, board_cell_phase_t phase, uint32_t source);

/* Told of each file that is used although its decoder warned (on_warning=use), each time. */
typedef void (*cell_warned_fn)(void *user, catalog_split_t split, uint32_t sample,
                               uint32_t warnings, const char *text);

/* All are borrowed for the maker's life. */
typedef struct {
    const catalog_t *catalog;
    const plan_t *plan;
    const options_t *options;
    const substitutes_t *ledger;
    cell_progress_fn progress; /* may be NULL */
    cell_warned_fn warned;     /* may be NULL */
    void *user;
    const parts_t *parts; /* NULL: validation shows each image once */
} cell_config_t;

int cell_maker_new(const cell_config_t *config, cell_maker_t **maker);
void cell_maker_free(cell_maker_t **maker);
/* Bytes that the maker's buffers hold. */
uint64_t cell_maker_memory(const cell_maker_t *maker);

/* What cell `cell` of `batch` of `rank` will be. */
void cell_plan(const cell_maker_t *maker, const plan_batch_t *batch, uint32_t rank, uint32_t cell,
               cell_plan_t *out);
/* Fills the cell; files[i] is plan->sources[i]. ERR_DATA when a file cannot be used: *bad is then
 * its catalogue index and err_text the reason. The target's content is without meaning after a
 * failure. */
int cell_fill(cell_maker_t *maker, const cell_plan_t *plan, const cell_file_t *files,
              const cell_target_t *target, uint32_t *bad);

/* What stands in for a cell of a prediction whose file cannot be used: a ratio of 0 says so. */
void cell_blank(const cell_maker_t *maker, const cell_plan_t *plan, const cell_target_t *target);

#endif
