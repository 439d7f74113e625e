/* Cells: the same bytes whoever fills them and in what order, labels that follow the pixels, and
 * what happens to a file that cannot be used. */
#include "loader/cell.h"
#include "loader/order.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { TRAIN = 11, VAL = 5, SIDE = 96, CAP = 64 };

/* A data set of BMPs in memory: black, with one white rectangle, which is the label. */
typedef struct {
    catalog_t *catalog;
    int fd;
    uint8_t *files[CATALOG_SPLITS][TRAIN];
    size_t bytes[CATALOG_SPLITS][TRAIN];
    options_t options;
    plan_t plan;
    substitutes_t ledger;
} set_t;

typedef struct {
    uint8_t *image;
    ring_label_t labels[CAP];
    ring_cell_meta_t meta;
} filled_t;

static void put32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

/* 24-bit, bottom-up, with a white rectangle x1..x2, y1..y2 (exclusive). */
static uint8_t *bmp(uint32_t w, uint32_t h, const uint32_t box[4], size_t *bytes)
{
    size_t stride = (3 * (size_t)w + 3) & ~(size_t)3;
    *bytes = 54 + stride * h;
    uint8_t *f = calloc(*bytes, 1);
    f[0] = 'B';
    f[1] = 'M';
    put32(f + 2, (uint32_t)*bytes);
    put32(f + 10, 54);
    put32(f + 14, 40);
    put32(f + 18, w);
    put32(f + 22, h);
    f[26] = 1;
    f[28] = 24;
    put32(f + 34, (uint32_t)(stride * h));
    for (uint32_t y = box[1]; y < box[3]; y++)
        memset(f + 54 + (h - 1 - y) * stride + 3 * (size_t)box[0], 255,
               3 * (size_t)(box[2] - box[0]));
    return f;
}

static void add_sample(set_t *s, catalog_builder_t *b, catalog_split_t split, uint32_t i)
{
    static const uint32_t sizes[4][2] = {{96, 96}, {160, 120}, {60, 96}, {48, 30}};
    const uint32_t *z = sizes[split == CATALOG_VAL ? 1 : i % 4];
    const uint32_t box[4] = {z[0] / 4 + i, z[1] / 4, z[0] * 3 / 4, z[1] * 2 / 3 - i};
    s->files[split][i] = bmp(z[0], z[1], box, &s->bytes[split][i]);
    const catalog_sample_t facts = {.file_bytes = s->bytes[split][i],
                                    .width = z[0],
                                    .height = z[1],
                                    .format = CATALOG_BMP,
                                    .orientation = 1};
    const catalog_label_t label = {
        .cls = (float)(i % 2),
        .cx = (float)((box[0] + box[2]) / 2.0 / z[0]),
        .cy = (float)((box[1] + box[3]) / 2.0 / z[1]),
        .w = (float)((double)(box[2] - box[0]) / z[0]),
        .h = (float)((double)(box[3] - box[1]) / z[1]),
    };
    char path[64];
    snprintf(path, sizeof path, "/made/up/%d-%02u.bmp", split, i);
    assert_int_equal(catalog_builder_sample(b, split, path, &facts, &label, 1, NULL, 0), 0);
}

static int begin(void **state)
{
    set_t *s = calloc(1, sizeof *s);
    catalog_builder_t *b;
    s->fd = memfd_create("test-cell", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "a"), 0);
    assert_int_equal(catalog_builder_class(b, "b"), 0);
    for (uint32_t i = 0; i < TRAIN; i++)
        add_sample(s, b, CATALOG_TRAIN, i);
    for (uint32_t i = 0; i < VAL; i++)
        add_sample(s, b, CATALOG_VAL, i);
    if (catalog_builder_write(b, s->fd) < 0 || catalog_open(s->fd, &s->catalog) < 0)
        fail_msg("%s", err_text());
    catalog_builder_free(&b);
    options_default(&s->options);
    s->plan = (plan_t){.seed = 5,
                       .n_train = TRAIN,
                       .n_val = VAL,
                       .ranks = 1,
                       .batch = 4,
                       .val_batch = 8,
                       .imgsz = SIDE,
                       .epochs = 4,
                       .val_every_epoch = 1,
                       .close_mosaic = 1};
    substitutes_init(&s->ledger);
    *state = s;
    return 0;
}

static int end(void **state)
{
    set_t *s = *state;
    for (int split = 0; split < CATALOG_SPLITS; split++)
        for (int i = 0; i < TRAIN; i++)
            free(s->files[split][i]);
    substitutes_fini(&s->ledger);
    catalog_close(&s->catalog);
    close(s->fd);
    free(s);
    return 0;
}

static cell_maker_t *maker_new(const set_t *s)
{
    const cell_config_t config = {s->catalog, &s->plan, &s->options, &s->ledger,
                                  NULL,       NULL,     NULL,        NULL};
    cell_maker_t *m;
    assert_int_equal(cell_maker_new(&config, &m), 0);
    return m;
}

static int fill(const set_t *s, cell_maker_t *m, uint64_t seq, uint32_t rank, uint32_t cell,
                filled_t *out, cell_plan_t *plan, uint32_t *bad)
{
    plan_batch_t batch = plan_locate(&s->plan, seq);
    cell_file_t files[CELL_SOURCES];
    cell_plan(m, &batch, rank, cell, plan);
    for (uint32_t i = 0; i < plan->n_sources; i++)
        files[i] = (cell_file_t){s->files[plan->split][plan->sources[i]],
                                 s->bytes[plan->split][plan->sources[i]]};
    out->image = malloc(3 * (size_t)plan->width * plan->height);
    /* What was there before must not show. */
    memset(out->image, (int)(seq * 7 + cell), 3 * (size_t)plan->width * plan->height);
    const cell_target_t target = {out->image, out->labels, CAP, &out->meta, 1};
    return cell_fill(m, plan, files, &target, bad);
}

static filled_t must_fill(const set_t *s, cell_maker_t *m, uint64_t seq, uint32_t rank,
                          uint32_t cell, cell_plan_t *plan)
{
    filled_t f;
    uint32_t bad;
    if (fill(s, m, seq, rank, cell, &f, plan, &bad) < 0)
        fail_msg("%s", err_text());
    return f;
}

static void check_equal(const filled_t *a, const filled_t *b)
{
    assert_memory_equal(&a->meta, &b->meta, sizeof a->meta);
    assert_memory_equal(a->image, b->image, 3 * (size_t)a->meta.width * a->meta.height);
    assert_memory_equal(a->labels, b->labels, a->meta.n_labels * sizeof *a->labels);
}

static void everything_on(options_t *o)
{
    o->mosaic = 0.8;
    o->mixup = 0.4;
    o->degrees = 20;
    o->shear = 5;
    o->flipud = 0.5;
    o->fliplr = 0.5;
    o->bgr = 0.3;
}

/* All cells of four epochs: by one maker forwards, by another backwards, and each twice. */
static void test_pure(void **state)
{
    set_t *s = *state;
    everything_on(&s->options);
    uint64_t batches = plan_batches(&s->plan);
    cell_maker_t *m = maker_new(s), *other = maker_new(s);
    filled_t first[64][8];
    uint32_t cells[64];
    cell_plan_t plan;
    assert_true(batches <= 64);
    for (uint64_t seq = 0; seq < batches; seq++) {
        plan_batch_t b = plan_locate(&s->plan, seq);
        cells[seq] = plan_cells(&s->plan, &b, 0);
        assert_true(cells[seq] <= 8);
        for (uint32_t c = 0; c < cells[seq]; c++)
            first[seq][c] = must_fill(s, m, seq, 0, c, &plan);
    }
    for (uint64_t seq = batches; seq-- > 0;)
        for (uint32_t c = cells[seq]; c-- > 0;) {
            for (int twice = 0; twice < 2; twice++) {
                filled_t again = must_fill(s, twice ? m : other, seq, 0, c, &plan);
                check_equal(&first[seq][c], &again);
                free(again.image);
            }
            /* And no two cells are the same. */
            for (uint64_t q = 0; q < seq; q++)
                for (uint32_t d = 0; d < cells[q]; d++)
                    if (first[q][d].meta.phase == PLAN_TRAIN)
                        assert_true(first[q][d].meta.digest != first[seq][c].meta.digest);
        }
    for (uint64_t seq = 0; seq < batches; seq++)
        for (uint32_t c = 0; c < cells[seq]; c++)
            free(first[seq][c].image);
    cell_maker_free(&m);
    cell_maker_free(&other);
}

/* The same positions with one, two and four ranks at the same global batch. */
static void test_ranks(void **state)
{
    set_t *s = *state;
    uint64_t digests[16] = {0};
    for (uint32_t ranks = 1; ranks <= 4; ranks *= 2) {
        s->plan.ranks = ranks;
        cell_maker_t *m = maker_new(s);
        for (uint64_t seq = 0; seq < plan_train_steps(&s->plan); seq++)
            for (uint32_t r = 0; r < ranks; r++)
                for (uint32_t c = 0; c < 4 / ranks; c++) {
                    cell_plan_t plan;
                    filled_t f = must_fill(s, m, seq, r, c, &plan);
                    assert_true(plan.position < 16);
                    if (ranks == 1)
                        digests[plan.position] = f.meta.digest;
                    assert_true(digests[plan.position] == f.meta.digest && f.meta.digest != 0);
                    free(f.image);
                }
        cell_maker_free(&m);
    }
    /* The wrap: position 11 shows sample 0 of the order again, differently augmented. */
    assert_true(digests[11] != digests[0]);
}

/* Bounding box of pixels brighter than 185 (the border is 114). */
static int bright(const filled_t *f, double box[4])
{
    int n = 0;
    box[0] = box[1] = 1e9;
    box[2] = box[3] = -1;
    for (uint32_t y = 0; y < f->meta.height; y++)
        for (uint32_t x = 0; x < f->meta.width; x++)
            if (f->image[3 * ((size_t)y * f->meta.width + x)] > 185) {
                box[0] = fmin(box[0], x);
                box[1] = fmin(box[1], y);
                box[2] = fmax(box[2], x + 1.0);
                box[3] = fmax(box[3], y + 1.0);
                n++;
            }
    return n;
}

/* The label's corners are where the white rectangle's are, for one picture a cell. */
static void check_label_on_pixels(const filled_t *f, double tolerance)
{
    double seen[4];
    if (f->meta.n_labels == 0)
        return;
    assert_int_equal(f->meta.n_labels, 1);
    assert_true(bright(f, seen) > 0);
    const ring_label_t *l = &f->labels[0];
    const double box[4] = {(l->cx - l->w / 2) * f->meta.width, (l->cy - l->h / 2) * f->meta.height,
                           (l->cx + l->w / 2) * f->meta.width, (l->cy + l->h / 2) * f->meta.height};
    for (int i = 0; i < 4; i++)
        if (fabs(box[i] - seen[i]) > tolerance)
            fail_msg("position %llu side %d: label at %.2f, pixels at %.2f",
                     (unsigned long long)f->meta.position, i, box[i], seen[i]);
}

static void run_labels(set_t *s, double tolerance, uint32_t at_least)
{
    cell_maker_t *m = maker_new(s);
    uint32_t labels = 0;
    for (uint64_t seq = 0; seq < 4; seq += 2) /* a training and a validation batch an epoch */
        for (uint32_t c = 0; c < s->plan.batch; c++) {
            cell_plan_t plan;
            filled_t f = must_fill(s, m, seq, 0, c, &plan);
            check_label_on_pixels(&f, tolerance);
            labels += f.meta.n_labels;
            free(f.image);
        }
    assert_true(labels >= at_least);
    cell_maker_free(&m);
}

static void test_labels_follow_pixels(void **state)
{
    set_t *s = *state;
    s->plan.batch = 60;
    s->options.mosaic = 0;
    s->options.hsv_h = s->options.hsv_s = s->options.hsv_v = 0;
    run_labels(s, 2.1, 100); /* translation, scale, flip: within the interpolated edge */
    s->options.flipud = 0.5;
    s->options.degrees = 30;
    s->options.shear = 8;
    run_labels(s, 3.5, 100); /* a turned corner is a point, which the threshold blunts */
    s->options.perspective = 0.0005;
    run_labels(s, 3.5, 100);
}

/* Every label of a mosaic has white under its centre; nothing white is without a label but slivers.
 */
static void test_mosaic_labels(void **state)
{
    set_t *s = *state;
    s->options.mosaic = 1;
    s->options.hsv_h = s->options.hsv_s = s->options.hsv_v = 0;
    cell_maker_t *m = maker_new(s);
    uint32_t labels = 0, white = 0, covered = 0;
    for (uint64_t seq = 0; seq < 3; seq++)
        for (uint32_t c = 0; c < 4; c++) {
            cell_plan_t plan;
            filled_t f = must_fill(s, m, seq, 0, c, &plan);
            for (uint32_t i = 0; i < f.meta.n_labels; i++) {
                const ring_label_t *l = &f.labels[i];
                uint32_t x = (uint32_t)(l->cx * SIDE), y = (uint32_t)(l->cy * SIDE);
                assert_true(f.image[3 * (y * SIDE + x)] > 185);
            }
            labels += f.meta.n_labels;
            for (uint32_t k = 0; k < SIDE * SIDE; k++) {
                if (f.image[3 * k] <= 185)
                    continue;
                white++;
                double x = k % SIDE + 0.5, y = k / SIDE + 0.5;
                uint32_t i = 0;
                for (; i < f.meta.n_labels; i++)
                    if (fabs(x - f.labels[i].cx * SIDE) <= f.labels[i].w * SIDE / 2 + 1 &&
                        fabs(y - f.labels[i].cy * SIDE) <= f.labels[i].h * SIDE / 2 + 1)
                        break;
                covered += i < f.meta.n_labels;
            }
            free(f.image);
        }
    assert_true(labels >= 20 && white > 5000 && covered > 0.97 * white);
    cell_maker_free(&m);
}

/* Validation: letterboxed, the rest 114, labels on the pixels, metadata that leads back to the
 * file. */
static void test_validation(void **state)
{
    set_t *s = *state;
    uint64_t seq = plan_train_steps(&s->plan);
    cell_maker_t *m = maker_new(s);
    plan_batch_t b = plan_locate(&s->plan, seq);
    assert_int_equal(b.phase, PLAN_VAL);
    assert_int_equal(plan_cells(&s->plan, &b, 0), VAL);
    for (uint32_t c = 0; c < VAL; c++) {
        cell_plan_t plan;
        filled_t f = must_fill(s, m, seq, 0, c, &plan);
        assert_int_equal(f.meta.sample, c);
        /* 160 x 120 loads as 96 x 72; ceil(0.75 * 96 / 32 + 0.5) * 32 = 96, ceil(3.5) * 32 = 128.
         */
        assert_int_equal(f.meta.width, 128);
        assert_int_equal(f.meta.height, 96);
        assert_true(f.meta.pad_left == 16 && f.meta.pad_top == 12);
        assert_true(fabs(f.meta.ratio - 0.6) < 1e-6 && f.meta.orig_width == 160 &&
                    f.meta.orig_height == 120);
        for (uint32_t y = 0; y < 96; y++)
            for (uint32_t x = 0; x < 128; x++)
                if (x < 16 || x >= 112 || y < 12 || y >= 84)
                    assert_int_equal(f.image[3 * (y * 128 + x) + 1], 114);
                else
                    assert_true(f.image[3 * (y * 128 + x) + 1] != 114 || f.meta.n_labels);
        check_label_on_pixels(&f, 1.0);
        assert_int_equal(f.meta.n_labels, 1);
        assert_int_equal(f.meta.n_sources, 1);
        free(f.image);
    }
    cell_maker_free(&m);
}

/* close_mosaic: the last epoch's cells have one source. */
static void test_close_mosaic(void **state)
{
    set_t *s = *state;
    s->options.mosaic = 1;
    cell_maker_t *m = maker_new(s);
    uint64_t per_epoch = plan_train_steps(&s->plan) + plan_val_steps(&s->plan);
    cell_plan_t plan;
    plan_batch_t b = plan_locate(&s->plan, 3 * per_epoch);
    assert_true(b.phase == PLAN_TRAIN && b.epoch == 3);
    for (uint32_t c = 0; c < 4; c++) {
        cell_plan(m, &b, 0, c, &plan);
        assert_int_equal(plan.geometry.views[0].n_tiles, 1);
        assert_int_equal(plan.n_sources, 1);
        assert_int_equal(plan.sources[0], order_sample(5, 3, c, TRAIN));
    }
    b = plan_locate(&s->plan, 2 * per_epoch);
    cell_plan(m, &b, 0, 0, &plan);
    assert_int_equal(plan.geometry.views[0].n_tiles, 4);
    cell_maker_free(&m);
}

/* A file cut short and one of another size name the sample; the maker goes on afterwards. */
static void test_bad_files(void **state)
{
    set_t *s = *state;
    s->options.mosaic = 1;
    cell_maker_t *m = maker_new(s);
    cell_plan_t plan;
    filled_t good = must_fill(s, m, 0, 0, 0, &plan), f;
    assert_true(plan.n_sources > 0);
    uint32_t victim = plan.sources[plan.n_sources - 1], bad = UINT32_MAX;
    size_t whole = s->bytes[0][victim];
    s->bytes[0][victim] = 100;
    assert_int_equal(fill(s, m, 0, 0, 0, &f, &plan, &bad), ERR_DATA);
    assert_int_equal(bad, victim);
    free(f.image);
    s->bytes[0][victim] = whole;
    uint8_t *kept = s->files[0][victim];
    const uint32_t none[4] = {0, 0, 1, 1};
    s->files[0][victim] = bmp(33, 44, none, &s->bytes[0][victim]);
    bad = UINT32_MAX;
    assert_int_equal(fill(s, m, 0, 0, 0, &f, &plan, &bad), ERR_DATA);
    assert_int_equal(bad, victim);
    assert_non_null(strstr(err_text(), "33 x 44"));
    free(f.image);
    free(s->files[0][victim]);
    s->files[0][victim] = kept;
    s->bytes[0][victim] = whole;
    f = must_fill(s, m, 0, 0, 0, &plan);
    check_equal(&good, &f);
    free(f.image);
    free(good.image);
    cell_maker_free(&m);
}

static wire_ledger_t entry(uint32_t sample, uint32_t substitute, uint32_t epoch, uint64_t position)
{
    return (wire_ledger_t){.split = CATALOG_TRAIN,
                           .sample = sample,
                           .substitute = substitute,
                           .number = 1,
                           .from_epoch = epoch,
                           .from_position = position};
}

/* An entry holds from its position on or in one cell alone, is followed to its end, and leaves
 * other cells alone. */
static void test_ledger(void **state)
{
    set_t *s = *state;
    s->options.mosaic = 0;
    cell_maker_t *m = maker_new(s);
    uint32_t own = order_sample(5, 0, 6, TRAIN), next = (own + 1) % TRAIN, last = (own + 2) % TRAIN;
    cell_plan_t before, after;
    plan_batch_t b = plan_locate(&s->plan, 1); /* positions 4 to 7 */
    cell_plan(m, &b, 0, 2, &before);
    assert_int_equal(before.sample, own);
    wire_ledger_t e = entry(own, next, 0, 8);
    assert_int_equal(substitutes_add(&s->ledger, &e), 0);
    cell_plan(m, &b, 0, 2, &after);
    assert_memory_equal(&after, &before, sizeof after);
    e.only = 1;
    e.from_position = 6;
    for (int twice = 0; twice < 2; twice++)
        assert_int_equal(substitutes_add(&s->ledger, &e), 0);
    assert_int_equal(s->ledger.count, 2);
    for (uint64_t position = 5; position < 10; position++)
        assert_int_equal(substitutes_resolve(&s->ledger, CATALOG_TRAIN, own, 0, position),
                         position == 6 || position >= 8 ? next : own);
    assert_int_equal(substitutes_resolve(&s->ledger, CATALOG_TRAIN, own, 1, 0), next);
    cell_plan(m, &b, 0, 2, &after);
    assert_int_equal(after.sample, next);
    assert_int_equal(after.sources[0], next);
    e = entry(next, last, 0, 0);
    assert_int_equal(substitutes_add(&s->ledger, &e), 0);
    cell_plan(m, &b, 0, 2, &after);
    assert_int_equal(after.sample, last);
    /* A ring of entries ends somewhere. */
    e = entry(last, own, 0, 0);
    assert_int_equal(substitutes_add(&s->ledger, &e), 0);
    assert_true(substitutes_resolve(&s->ledger, CATALOG_TRAIN, own, 9, 0) < TRAIN);
    assert_int_equal(substitutes_resolve(&s->ledger, CATALOG_VAL, own, 9, 0), own);
    cell_maker_free(&m);
}

static int shows(const cell_plan_t *p, uint32_t sample)
{
    for (uint32_t i = 0; i < p->n_sources; i++)
        if (p->sources[i] == sample)
            return 1;
    return 0;
}

/* Which loader hears of a bad sample when must not matter: a cell that does not need the file is
 * the same to the byte with and without the entry, and in one that does nothing moves. Samples have
 * different sizes here, and tiles that are not seen occur. */
static void test_ledger_changes_what_is_seen(void **state)
{
    set_t *s = *state;
    enum { BAD = 4 };
    everything_on(&s->options);
    s->options.mosaic = 0.9;
    s->options.scale = 0.9;
    s->plan.batch = 40;
    cell_maker_t *m = maker_new(s);
    uint32_t shown = 0, unseen = 0;
    for (uint32_t c = 0; c < s->plan.batch; c++) {
        cell_plan_t plain, plan;
        substitutes_fini(&s->ledger);
        filled_t without = must_fill(s, m, 0, 0, c, &plain);
        const wire_ledger_t e = entry(BAD, BAD + 1, 0, 0);
        assert_int_equal(substitutes_add(&s->ledger, &e), 0);
        filled_t with = must_fill(s, m, 0, 0, c, &plan);
        assert_int_equal(with.meta.ledger, without.meta.ledger + 1);
        with.meta.ledger = without.meta.ledger;
        assert_false(shows(&plan, BAD));
        for (uint32_t v = 0; v < plan.geometry.n_views; v++)
            for (uint32_t t = 0; t < plan.geometry.views[v].n_tiles; t++) {
                geometry_tile_t *a = &plain.geometry.views[v].tiles[t],
                                *b = &plan.geometry.views[v].tiles[t];
                unseen += a->sample == BAD && b->sample == BAD;
                a->sample = b->sample;
            }
        assert_memory_equal(&plain.geometry, &plan.geometry, sizeof plan.geometry);
        if (shows(&plain, BAD))
            shown++;
        else
            check_equal(&without, &with);
        free(without.image);
        free(with.image);
    }
    assert_true(shown > 0 && unseen > 0);
    cell_maker_free(&m);
}

/* The label cap cuts and says so; it never writes behind. */
static void test_label_cap(void **state)
{
    set_t *s = *state;
    uint64_t seq = plan_train_steps(&s->plan);
    cell_maker_t *m = maker_new(s);
    cell_plan_t plan;
    plan_batch_t batch = plan_locate(&s->plan, seq);
    cell_plan(m, &batch, 0, 0, &plan);
    uint8_t *image = malloc(3 * (size_t)plan.width * plan.height);
    ring_label_t labels[1] = {{-7, -7, -7, -7, -7}};
    ring_cell_meta_t meta;
    uint32_t bad;
    const cell_file_t file = {s->files[CATALOG_VAL][plan.sample],
                              s->bytes[CATALOG_VAL][plan.sample]};
    const cell_target_t target = {image, labels, 0, &meta, 0};
    assert_int_equal(cell_fill(m, &plan, &file, &target, &bad), 0);
    assert_int_equal(meta.n_labels, 0);
    assert_true(labels[0].cls == -7 && meta.digest == 0);
    free(image);
    cell_maker_free(&m);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_pure),          CASE(test_ranks),      CASE(test_labels_follow_pixels),
        CASE(test_mosaic_labels), CASE(test_validation), CASE(test_close_mosaic),
        CASE(test_bad_files),     CASE(test_ledger),     CASE(test_ledger_changes_what_is_seen),
        CASE(test_label_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
