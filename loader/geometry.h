/* What the augmentation of one cell will do, drawn before any file is read (design 3 and 4).
 *
 * A geometry_t is a pure function of (catalogue sizes, seed, epoch, position,
 * hyper-parameters), not of the ledger: all draws come from Philox streams keyed by position and
 * purpose. From it follow the files needed, the part of each that reaches the output, the pixels'
 * map and the labels' map. Any thread.
 *
 * Spaces: file (upright pixels as decoded) -> loaded (long side = imgsz, facts/yolo.md 5.2) ->
 * canvas (a mosaic's 2 imgsz square, or the loaded picture itself) -> output (imgsz square) ->
 * flipped.
 */
#ifndef SLUICE_LOADER_GEOMETRY_H
#define SLUICE_LOADER_GEOMETRY_H

#include "control/options.h"

#include <stdint.h>

enum { GEOMETRY_TILES = 4, GEOMETRY_VIEWS = 2 };

/* One picture on the canvas. */
typedef struct {
    uint32_t sample;        /* catalogue index, as the order has it */
    uint32_t width, height; /* loaded */
    int32_t x1, y1, x2, y2; /* canvas rectangle that it covers */
    int32_t off_x, off_y;   /* canvas = loaded + off */
    int32_t need[4]; /* x1 y1 x2 y2 of the loaded picture that can reach the output; empty: none */
} geometry_tile_t;

/* One canvas and its map: what the peer calls mosaic and random perspective. */
typedef struct {
    uint32_t n_tiles;
    geometry_tile_t tiles[GEOMETRY_TILES]; /* 0 is the cell's own sample (or the mixup partner) */
    int32_t canvas_width, canvas_height;
    double forward[9], inverse[9]; /* canvas -> output and back, row-major */
    double scale;                  /* the drawn s, for the label filter (facts/yolo.md 5.4) */
    int perspective;               /* forward[6], [7] may differ from 0 */
} geometry_view_t;

typedef struct {
    uint32_t n_views; /* 2 with mixup */
    geometry_view_t views[GEOMETRY_VIEWS];
    double mix;    /* weight of view 0 */
    double hsv[3]; /* draws times gains */
    int hsv_active;
    int flip_x, flip_y, bgr;
    uint32_t side; /* output is side x side */
} geometry_t;

/* The catalogue, seen from here: a sample's size. */
typedef void (*geometry_size_fn)(void *user, uint32_t sample, uint32_t *width, uint32_t *height);

typedef struct {
    uint64_t seed, position;
    uint32_t epoch, n; /* n training samples */
    uint32_t window;   /* plan_t.mosaic_window, 0 for the default */
    uint32_t imgsz;
    int mosaic; /* plan_mosaic(): mosaic and mixup may be drawn */
    const options_t *options;
    geometry_size_fn size;
    void *user;
} geometry_input_t;

void geometry_draw(const geometry_input_t *in, geometry_t *g);

/* Validation (facts/yolo.md 5.2, 5.10): loaded size, then letterbox into width x height. */
typedef struct {
    uint32_t loaded_width, loaded_height; /* long side = imgsz */
    uint32_t width, height; /* pasted; smaller than loaded only if that does not fit */
    uint32_t left, top;     /* borders */
    float ratio;            /* network pixels per file pixel */
} geometry_letterbox_t;

void geometry_letterbox(uint32_t file_width, uint32_t file_height, uint32_t imgsz, uint32_t width,
                        uint32_t height, geometry_letterbox_t *box);

/* The same for a part of a picture in prediction: resized once, to the size that its long side gives
 * (facts/yolo.md 5.10). */
void geometry_fit(uint32_t part_width, uint32_t part_height, uint32_t imgsz, uint32_t width,
                  uint32_t height, geometry_letterbox_t *box);

/* 3 x 3, row-major: c = a b. Inverse by the adjugate; a singular matrix gives one that maps
 * everything infinitely far away. Exported for tests. */
void geometry_multiply(const double a[9], const double b[9], double c[9]);
void geometry_invert(const double m[9], double inverse[9]);

#endif
