#include "loader/cell.h"

#include "control/log.h"
#include "loader/boxes.h"
#include "loader/clones.h"
#include "loader/decode.h"
#include "loader/hash64.h"
#include "loader/hsv.h"
#include "loader/order.h"
#include "loader/resize.h"
#include "loader/warp.h"
#include "shm/err.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)CELL_SOURCES < (int)DECODE_SLOTS,
               "a slot for each source of a cell, and one that is shared");
_Static_assert((int)PICTURE_SLACK >= (int)WARP_SLACK, "a picture can be warped from directly");

/* A picture at loaded size: the decoder's own, or resized into the maker's buffer. */
typedef struct {
    const uint8_t *pixels;
    size_t stride;
} cell_loaded_t;

typedef struct {
    uint8_t *data; /* owned */
    size_t capacity;
} cell_buffer_t;

struct cell_maker {
    cell_config_t config;
    picture_limits_t limits;
    decode_t *decode;
    resize_t resize;
    cell_buffer_t resized[CELL_SOURCES];
    cell_buffer_t rows[GEOMETRY_VIEWS];
    box_list_t boxes;
    int cap_logged;
    int holds; /* prediction: the decoder still has the picture of `held`, for its next tile */
    uint32_t held;
    picture_t picture; /* its pixels are the decoder's */
};

int cell_maker_new(const cell_config_t *config, cell_maker_t **maker)
{
    int rc = 0;
    cell_maker_t *m = calloc(1, sizeof *m);
    *maker = NULL;
    if (!m)
        return err_set(ERR_ENV, "no memory for the cell maker");
    m->config = *config;
    m->limits = decode_limits(config->options);
    resize_init(&m->resize);
    boxes_init(&m->boxes);
    CHECK_GOTO(decode_new(&m->decode), rc, fail);
    *maker = m;
    return 0;
fail:
    cell_maker_free(&m);
    return rc;
}

void cell_maker_free(cell_maker_t **maker)
{
    cell_maker_t *m = *maker;
    *maker = NULL;
    if (!m)
        return;
    decode_free(&m->decode);
    resize_fini(&m->resize);
    boxes_fini(&m->boxes);
    for (int i = 0; i < CELL_SOURCES; i++)
        free(m->resized[i].data);
    for (int i = 0; i < GEOMETRY_VIEWS; i++)
        free(m->rows[i].data);
    free(m);
}

uint64_t cell_maker_memory(const cell_maker_t *maker)
{
    uint64_t bytes = decode_memory(maker->decode);
    for (int i = 0; i < CELL_SOURCES; i++)
        bytes += maker->resized[i].capacity;
    return bytes;
}

static int cell_reserve(cell_buffer_t *b, size_t bytes)
{
    if (bytes <= b->capacity)
        return 0;
    free(b->data);
    b->data = malloc(bytes);
    b->capacity = b->data ? bytes : 0;
    return b->data ? 0 : err_set(ERR_ENV, "no memory for a picture of %zu bytes", bytes);
}

static void cell_progress(const cell_maker_t *m, board_cell_phase_t phase, uint32_t source)
{
    if (m->config.progress)
        m->config.progress(m->config.user, phase, source);
}

/* Cells are parts of images without labels, which nothing may stand in for. */
static int predicts(const cell_maker_t *m)
{
    return m->config.options->mode == OPT_MODE_PREDICT;
}

/* ---- planning ---- */

/* geometry_size_fn. */
static void cell_size(void *user, uint32_t sample, uint32_t *width, uint32_t *height)
{
    const cell_maker_t *m = user;
    const catalog_sample_t *s = catalog_sample(m->config.catalog, CATALOG_TRAIN, sample);
    *width = s->width;
    *height = s->height;
}

static uint32_t cell_resolve(const cell_maker_t *m, const cell_plan_t *p, uint32_t sample)
{
    return substitutes_resolve(m->config.ledger, p->split, sample, p->batch.epoch, p->position);
}

static int cell_visible(const geometry_tile_t *t)
{
    return t->need[0] < t->need[2] && t->need[1] < t->need[3];
}

/* Index of a sample at a loaded size among the plan's sources, added if it is not there. */
static uint32_t cell_source(cell_plan_t *p, uint32_t sample, uint32_t width, uint32_t height)
{
    uint32_t i = 0;
    while (i < p->n_sources &&
           (p->sources[i] != sample || p->loaded[i][0] != width || p->loaded[i][1] != height))
        i++;
    if (i == p->n_sources) {
        p->sources[i] = sample;
        p->loaded[i][0] = width;
        p->loaded[i][1] = height;
        p->n_sources++;
    }
    return i;
}

/* The ledger comes behind the geometry, and only where pixels are needed: a cell that does not show
 * a bad sample must not depend on whether the entry was known when the cell was planned. A
 * substitute is brought to the size of what it stands in for. */
static void cell_substitute(const cell_maker_t *m, cell_plan_t *p, geometry_view_t *v)
{
    for (uint32_t t = 0; t < v->n_tiles; t++) {
        geometry_tile_t *tile = &v->tiles[t];
        if (!cell_visible(tile))
            continue;
        tile->sample = cell_resolve(m, p, tile->sample);
        cell_source(p, tile->sample, tile->width, tile->height);
    }
}

static void cell_plan_train(const cell_maker_t *m, cell_plan_t *p)
{
    const plan_t *plan = m->config.plan;
    geometry_input_t in = {
        .seed = plan->seed,
        .position = p->position,
        .epoch = p->batch.epoch,
        .n = plan->n_train,
        .window = plan->mosaic_window,
        .imgsz = plan->imgsz,
        .mosaic = plan_mosaic(plan, p->batch.epoch),
        .options = m->config.options,
        .size = cell_size,
        .user = (void *)(uintptr_t)m,
    };
    p->width = p->height = plan->imgsz;
    geometry_draw(&in, &p->geometry);
    for (uint32_t v = 0; v < p->geometry.n_views; v++)
        cell_substitute(m, p, &p->geometry.views[v]);
    p->sample = p->geometry.views[0].tiles[0].sample;
}

static void cell_plan_val(const cell_maker_t *m, uint32_t rank, cell_plan_t *p)
{
    const plan_t *plan = m->config.plan;
    const part_t part = parts_at(m->config.parts, m->config.catalog, (uint32_t)p->position);
    p->part = part;
    /* Shape and letterbox are the list's, whatever the ledger put in a sample's place. */
    parts_shape(m->config.parts, m->config.catalog,
                (uint32_t)plan_position(plan, &p->batch, rank, 0),
                plan_cells(plan, &p->batch, rank), plan->imgsz, &p->height, &p->width);
    if (predicts(m))
        geometry_fit(part.width, part.height, plan->imgsz, p->width, p->height, &p->letterbox);
    else
        geometry_letterbox(part.width, part.height, plan->imgsz, p->width, p->height,
                           &p->letterbox);
    p->sample = predicts(m) ? part.sample : cell_resolve(m, p, part.sample);
    cell_source(p, p->sample, p->letterbox.loaded_width, p->letterbox.loaded_height);
}

void cell_plan(const cell_maker_t *maker, const plan_batch_t *batch, uint32_t rank, uint32_t cell,
               cell_plan_t *out)
{
    memset(out, 0, sizeof *out);
    out->batch = *batch;
    out->position = plan_position(maker->config.plan, batch, rank, cell);
    out->split = batch->phase == PLAN_TRAIN ? CATALOG_TRAIN : CATALOG_VAL;
    if (batch->phase == PLAN_TRAIN)
        cell_plan_train(maker, out);
    else
        cell_plan_val(maker, rank, out);
}

/* ---- loading ---- */

static int cell_warning(const cell_maker_t *m, const cell_plan_t *p, uint32_t sample,
                        const picture_t *picture)
{
    if (picture->warnings == 0)
        return 0;
    if (m->config.options->on_warning == OPT_WARN_SKIP)
        return err_set(ERR_DATA, "decodes with a warning (on_warning=skip): %s", picture->warning);
    if (m->config.warned)
        m->config.warned(m->config.user, p->split, sample, picture->warnings, picture->warning);
    return 0;
}

/* The picture of a file, as it must be; a prediction's next tile finds it where it lies. */
static int cell_decode(cell_maker_t *m, const cell_plan_t *p, const cell_file_t *file,
                       uint32_t sample, unsigned slot, const picture_t **picture)
{
    const catalog_sample_t *s = catalog_sample(m->config.catalog, p->split, sample);
    m->holds = 0;
    int rc = decode_image(m->decode, slot, file->data, file->bytes, &m->limits, picture);
    if (rc < 0)
        return rc;
    if ((*picture)->width != s->width || (*picture)->height != s->height)
        return err_set(ERR_DATA, "is now %u x %u, not %u x %u as when the data set was scanned",
                       (*picture)->width, (*picture)->height, s->width, s->height);
    rc = cell_warning(m, p, sample, *picture);
    if (rc < 0)
        return rc;
    m->picture = **picture;
    m->holds = predicts(m);
    m->held = sample;
    return 0;
}

/* Decodes source i and brings it to loaded size. What needs no resize stays in a slot of its own;
 * the others, which may be far larger, share the last. */
static int cell_load(cell_maker_t *m, const cell_plan_t *p, const cell_file_t *file, uint32_t i,
                     cell_loaded_t *loaded)
{
    const picture_t *picture = &m->picture;
    uint32_t sample = p->sources[i], w = p->loaded[i][0], h = p->loaded[i][1];
    const catalog_sample_t *s = catalog_sample(m->config.catalog, p->split, sample);
    part_t part = {.width = s->width, .height = s->height};
    if (predicts(m))
        part = p->part;
    int kept = w == part.width && h == part.height, rc = 0;
    unsigned slot = kept && !predicts(m) ? i : DECODE_SLOTS - 1;
    cell_progress(m, CELL_DECODE, sample);
    if (!m->holds || m->held != sample)
        rc = cell_decode(m, p, file, sample, slot, &picture);
    if (rc < 0)
        return rc;
    const uint8_t *from = picture->pixels + part.y * picture->stride + 3 * (size_t)part.x;
    *loaded = (cell_loaded_t){from, picture->stride};
    if (kept)
        return 0;
    cell_progress(m, CELL_AUGMENT, sample);
    size_t stride = 3 * (size_t)w;
    rc = cell_reserve(&m->resized[i], stride * h + WARP_SLACK);
    if (rc < 0)
        return rc;
    *loaded = (cell_loaded_t){m->resized[i].data, stride};
    return resize_rgb(&m->resize, from, part.width, part.height, picture->stride,
                      m->resized[i].data, w, h, stride);
}

static int cell_load_all(cell_maker_t *m, const cell_plan_t *p, const cell_file_t *files,
                         cell_loaded_t *loaded, uint32_t *bad)
{
    int rc = 0;
    if (!m->holds || m->held != p->sample) {
        decode_trim(m->decode); /* of the cell before */
        m->holds = 0;
    }
    for (uint32_t i = 0; i < p->n_sources && rc == 0; i++) {
        rc = cell_load(m, p, &files[i], i, &loaded[i]);
        if (rc < 0)
            *bad = p->sources[i];
    }
    return rc;
}

/* ---- training pixels ---- */

static void cell_view(const cell_plan_t *p, const geometry_view_t *v, const cell_loaded_t *loaded,
                      warp_view_t *out)
{
    memset(out, 0, sizeof *out);
    memcpy(out->inverse, v->inverse, sizeof out->inverse);
    out->perspective = v->perspective;
    out->mirror = p->geometry.flip_x;
    for (uint32_t i = 0; i < v->n_tiles; i++) {
        const geometry_tile_t *t = &v->tiles[i];
        if (!cell_visible(t))
            continue;
        uint32_t k = 0;
        while (p->sources[k] != t->sample || p->loaded[k][0] != t->width ||
               p->loaded[k][1] != t->height)
            k++;
        out->tiles[out->n_tiles++] = (warp_tile_t){
            loaded[k].pixels, loaded[k].stride, t->x1, t->y1, t->x2, t->y2, t->off_x, t->off_y,
        };
    }
}

/* uint8(a r + b (1 - r)), in double as the peer's NumPy does it (facts/yolo.md 5.5). */
SLUICE_CLONES
static void cell_mix(uint8_t *restrict a, const uint8_t *restrict b, double r, size_t n)
{
    double s = 1 - r;
    for (size_t i = 0; i < n; i++)
        a[i] = (uint8_t)(int32_t)(a[i] * r + b[i] * s);
}

static void cell_swap_channels(uint8_t *rgb, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, rgb += 3) {
        uint8_t red = rgb[0];
        rgb[0] = rgb[2];
        rgb[2] = red;
    }
}

static int cell_pixels(cell_maker_t *m, const cell_plan_t *p, const cell_loaded_t *loaded,
                       uint8_t *image)
{
    const geometry_t *g = &p->geometry;
    warp_view_t views[GEOMETRY_VIEWS];
    hsv_lut_t lut;
    size_t bytes = 3 * (size_t)p->width;
    for (uint32_t v = 0; v < g->n_views; v++) {
        cell_view(p, &g->views[v], loaded, &views[v]);
        int rc = cell_reserve(&m->rows[v], bytes + WARP_SLACK);
        if (rc < 0)
            return rc;
    }
    hsv_lut(&lut, g->hsv, g->hsv_active);
    for (uint32_t y = 0; y < p->height; y++) {
        uint8_t *row = m->rows[0].data;
        warp_row(&views[0], y, p->width, row);
        if (g->n_views == 2) {
            warp_row(&views[1], y, p->width, m->rows[1].data);
            cell_mix(row, m->rows[1].data, g->mix, bytes);
        }
        hsv_apply(&lut, row, p->width);
        if (g->bgr)
            cell_swap_channels(row, p->width);
        memcpy(image + (g->flip_y ? p->height - 1 - y : y) * bytes, row, bytes);
    }
    return 0;
}

static int cell_train(cell_maker_t *m, const cell_plan_t *p, const cell_loaded_t *loaded,
                      uint8_t *image)
{
    const geometry_t *g = &p->geometry;
    int rc = cell_pixels(m, p, loaded, image);
    if (rc < 0)
        return rc;
    for (uint32_t v = 0; v < g->n_views; v++)
        for (uint32_t t = 0; t < g->views[v].n_tiles; t++) {
            const catalog_sample_t *s =
                catalog_sample(m->config.catalog, p->split, g->views[v].tiles[t].sample);
            rc = boxes_tile(&m->boxes, &g->views[v], t, g->side, m->config.catalog,
                            catalog_labels(m->config.catalog, s), s->n_labels);
            if (rc < 0)
                return rc;
        }
    boxes_flip(&m->boxes, p->width, p->height, g->flip_x, g->flip_y);
    return 0;
}

/* ---- validation pixels ---- */

static int cell_val(cell_maker_t *m, const cell_plan_t *p, const cell_loaded_t *loaded,
                    uint8_t *image)
{
    const geometry_letterbox_t *b = &p->letterbox;
    size_t stride = 3 * (size_t)p->width;
    uint8_t *inner = image + b->top * stride + 3 * (size_t)b->left;
    memset(image, WARP_BORDER, stride * p->height);
    if (b->width == b->loaded_width && b->height == b->loaded_height) {
        for (uint32_t y = 0; y < b->height; y++)
            memcpy(inner + y * stride, loaded->pixels + y * loaded->stride, 3 * (size_t)b->width);
    } else {
        int rc = resize_rgb(&m->resize, loaded->pixels, b->loaded_width, b->loaded_height,
                            loaded->stride, inner, b->width, b->height, stride);
        if (rc < 0)
            return rc;
    }
    const catalog_sample_t *s = catalog_sample(m->config.catalog, p->split, p->sample);
    return boxes_letterbox(&m->boxes, b, catalog_labels(m->config.catalog, s), s->n_labels);
}

/* ---- the whole ---- */

static void cell_meta(const cell_maker_t *m, const cell_plan_t *p, const cell_target_t *t,
                      uint32_t labels)
{
    const catalog_sample_t *s = catalog_sample(m->config.catalog, p->split, p->sample);
    ring_cell_meta_t *meta = t->meta;
    memset(meta, 0, sizeof *meta);
    meta->phase = p->batch.phase;
    meta->epoch = p->batch.epoch;
    meta->step = p->batch.step;
    meta->n_labels = labels;
    meta->position = p->position;
    meta->sample = p->sample;
    meta->ledger = m->config.ledger->count;
    meta->height = p->height;
    meta->width = p->width;
    meta->orig_height = s->height;
    meta->orig_width = s->width;
    if (p->batch.phase == PLAN_VAL) {
        meta->ratio = p->letterbox.ratio;
        meta->pad_left = (float)p->letterbox.left;
        meta->pad_top = (float)p->letterbox.top;
        meta->sources[meta->n_sources++] = p->sample;
    } else {
        for (uint32_t v = 0; v < p->geometry.n_views; v++)
            for (uint32_t i = 0; i < p->geometry.views[v].n_tiles; i++)
                if (cell_visible(&p->geometry.views[v].tiles[i]))
                    meta->sources[meta->n_sources++] = p->geometry.views[v].tiles[i].sample;
    }
    if (t->digest) {
        uint64_t h = hash64(t->image, 3 * (size_t)p->width * p->height, 0);
        meta->digest = hash64(t->labels, labels * sizeof *t->labels, h);
    }
}

int cell_fill(cell_maker_t *maker, const cell_plan_t *plan, const cell_file_t *files,
              const cell_target_t *target, uint32_t *bad)
{
    cell_loaded_t loaded[CELL_SOURCES];
    *bad = plan->sample;
    int rc = cell_load_all(maker, plan, files, loaded, bad);
    if (rc < 0)
        return rc;
    cell_progress(maker, CELL_AUGMENT, plan->sample);
    boxes_clear(&maker->boxes);
    rc = plan->batch.phase == PLAN_TRAIN ? cell_train(maker, plan, loaded, target->image)
                                         : cell_val(maker, plan, loaded, target->image);
    if (rc < 0)
        return rc;
    uint32_t n =
        boxes_store(&maker->boxes, plan->width, plan->height, target->labels, target->label_cap);
    if (n < maker->boxes.count && !maker->cap_logged) {
        log_line(LOG_WARN,
                 "a cell has %u labels and its slot room for %u: the rest is dropped (said once)",
                 maker->boxes.count, n);
        maker->cap_logged = 1;
    }
    cell_meta(maker, plan, target, n);
    return 0;
}

void cell_blank(const cell_maker_t *maker, const cell_plan_t *plan, const cell_target_t *target)
{
    memset(target->image, WARP_BORDER, 3 * (size_t)plan->width * plan->height);
    cell_meta(maker, plan, target, 0);
    target->meta->ratio = 0;
}
