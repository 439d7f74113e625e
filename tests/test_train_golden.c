/* Twenty steps of whole trainings against PyTorch (tests/reference/train_golden.py): the same drawn
 * weights, the same batches, SGD and AdamW with the warm-up of the schedule, accumulation, clip,
 * moving average.
 *
 * The batches are the loaders': made from a synthetic data set by the code of loader/ in this
 * process, and held against what the loader processes of `sluice digest` make of the same files.
 * Their digests are in the golden file, the pixels are not. The steps are the trainer's step_train,
 * from a ring.
 *
 * With SLUICE_BATCH_DUMP=FILE the test writes the batches for train_golden.py instead.
 */
#include "loader/cell.h"
#include "loader/scan.h"
#include "shm/err.h"
#include "tests/draws.h"
#include "tests/golden.h"
#include "tests/scratch.h"
#include "tests/trainer_rig.h"
#include "tools/sample.h"
#include "trainer/graph_internal.h"
#include "trainer/step.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

enum { IMAGES = 50, TRAIN = 40, SIDE = 96, BATCH = 8, EPOCHS = 4, STEPS = 20, CAP = 128 };
enum { CLOSE_MOSAIC = 1, PIXELS = SIDE * SIDE * 3 };

typedef struct {
    uint8_t image[BATCH][PIXELS];
    ring_label_t labels[BATCH][CAP];
    ring_cell_meta_t meta[BATCH];
    uint64_t digest; /* as `sluice digest` prints it */
} step_batch_t;

typedef struct {
    char folder[SCRATCH_PATH], yaml[SCRATCH_PATH + 32];
    catalog_t *catalog;
    int fd;
    options_t options;
    plan_t plan;
    step_batch_t *steps; /* [STEPS] */
} set_t;

static void need(int rc, const char *what)
{
    if (rc < 0)
        fail_msg("%s: %s", what, err_text());
}

static void open_catalog(set_t *s)
{
    catalog_builder_t *b;
    char word[sizeof s->yaml + 8];
    options_default(&s->options);
    snprintf(word, sizeof word, "data=%s", s->yaml);
    need(options_set(&s->options, word), "data");
    s->options.imgsz = SIDE;
    s->options.batch = BATCH;
    s->options.epochs = EPOCHS;
    s->options.close_mosaic = CLOSE_MOSAIC;
    need(catalog_builder_new(&b), "builder");
    need(scan_build(&s->options, 1, b, NULL, NULL), "scan");
    s->fd = memfd_create("test-train-golden", MFD_ALLOW_SEALING);
    assert_true(s->fd >= 0);
    need(catalog_builder_write(b, s->fd), "catalogue");
    need(catalog_open(s->fd, &s->catalog), "catalogue");
    catalog_builder_free(&b);
    assert_int_equal(catalog_count(s->catalog, CATALOG_TRAIN), TRAIN);
    s->plan = (plan_t){.n_train = TRAIN,
                       .ranks = 1,
                       .batch = BATCH,
                       .val_batch = 2 * BATCH,
                       .imgsz = SIDE,
                       .epochs = EPOCHS,
                       .close_mosaic = CLOSE_MOSAIC};
}

static void fill_cell(const set_t *s, cell_maker_t *m, const plan_batch_t *b, uint32_t cell,
                      step_batch_t *out)
{
    cell_plan_t plan;
    cell_file_t files[CELL_SOURCES];
    uint32_t bad;
    const cell_target_t target = {.image = out->image[cell],
                                  .labels = out->labels[cell],
                                  .label_cap = CAP,
                                  .meta = &out->meta[cell],
                                  .digest = 1};
    cell_plan(m, b, 0, cell, &plan);
    for (uint32_t i = 0; i < plan.n_sources; i++) {
        const catalog_sample_t *c = catalog_sample(s->catalog, CATALOG_TRAIN, plan.sources[i]);
        files[i].data = scratch_read(catalog_path(s->catalog, c), &files[i].bytes);
        assert_non_null(files[i].data);
    }
    need(cell_fill(m, &plan, files, &target, &bad), "cell");
    for (uint32_t i = 0; i < plan.n_sources; i++)
        free((void *)(uintptr_t)files[i].data);
    out->digest = wire_mix(out->digest, out->meta[cell].digest);
}

static void fill_all(set_t *s)
{
    cell_maker_t *m;
    substitutes_t none;
    substitutes_init(&none);
    const cell_config_t config = {
        .catalog = s->catalog, .plan = &s->plan, .options = &s->options, .ledger = &none};
    need(cell_maker_new(&config, &m), "cell maker");
    s->steps = calloc(STEPS, sizeof *s->steps);
    assert_non_null(s->steps);
    for (uint32_t k = 0; k < STEPS; k++) {
        const plan_batch_t b = plan_locate(&s->plan, k);
        assert_int_equal(b.phase, PLAN_TRAIN);
        for (uint32_t cell = 0; cell < BATCH; cell++)
            fill_cell(s, m, &b, cell, &s->steps[k]);
    }
    cell_maker_free(&m);
    substitutes_fini(&none);
}

static int begin(void **state)
{
    set_t *s = calloc(1, sizeof *s);
    sample_counts_t counts;
    assert_non_null(s);
    scratch_begin(s->folder);
    snprintf(s->yaml, sizeof s->yaml, "%s/data.yaml", s->folder);
    const sample_config_t sample = {
        .out = s->folder, .images = IMAGES, .imgsz = SAMPLE_SIZE_MIN, .seed = 3, .threads = 1};
    need(sample_write(&sample, NULL, &counts), "sample");
    open_catalog(s);
    fill_all(s);
    *state = s;
    return 0;
}

static int end(void **state)
{
    set_t *s = *state;
    catalog_close(&s->catalog);
    close(s->fd);
    scratch_end(s->folder);
    free(s->steps);
    free(s);
    return 0;
}

/* ---- the batches ---- */

static void test_digests(void **state)
{
    const set_t *s = *state;
    int64_t boxes = 0, covered = 0;
    safetensors_t *f = golden_open("train");
    const safetensors_entry_t *e = golden_entry(f, "digests");
    int64_t want[STEPS];
    assert_int_equal(e->bytes, sizeof want);
    memcpy(want, e->data, sizeof want);
    for (int k = 0; k < STEPS; k++) {
        if ((int64_t)s->steps[k].digest != want[k])
            fail_msg("batch %d has digest %016llx, the reference was trained on %016llx: the "
                     "loaders, or the JPEG library, make other batches than then. If that is "
                     "meant: tests/reference/README.md",
                     k, (unsigned long long)s->steps[k].digest, (unsigned long long)want[k]);
        for (int i = 0; i < BATCH; i++) {
            boxes += s->steps[k].meta[i].n_labels;
            covered += s->steps[k].meta[i].n_labels > 0;
        }
    }
    assert_true(boxes > 100 && covered < STEPS * BATCH); /* and some cells have none */
    safetensors_free(&f);
}

/* Loader processes make the same batches of the same files. */
static void test_loaders(void **state)
{
    const set_t *s = *state;
    char bin[SCRATCH_PATH];
    assert_non_null(realpath(getenv("SLUICE_BIN") ? getenv("SLUICE_BIN") : "build/bin", bin));
    char command[4 * SCRATCH_PATH + 512], line[256];
    int seen = 0;
    snprintf(command, sizeof command,
             "cd '%s' && XDG_RUNTIME_DIR='%s' timeout 60 '%s/sluice' digest data='%s' "
             "model=yolo11n imgsz=%d batch=%d epochs=%d close_mosaic=%d workers=2 device=cpu",
             s->folder, s->folder, bin, s->yaml, SIDE, BATCH, EPOCHS, CLOSE_MOSAIC);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    while (fgets(line, sizeof line, p)) {
        unsigned epoch, step, rank;
        unsigned long long digest;
        if (sscanf(line, "%u %u %u %llx", &epoch, &step, &rank, &digest) != 4)
            continue;
        assert_int_equal(epoch * (STEPS / EPOCHS) + step, seen);
        assert_true(seen < STEPS && digest == s->steps[seen].digest);
        seen++;
    }
    assert_int_equal(pclose(p), 0);
    assert_int_equal(seen, STEPS);
}

/* ---- the training ---- */

typedef struct {
    const char *model, *optimizer;
    const char *words[8];
} train_case_t;

/* CASES of train_golden.py. */
static const train_case_t cases[] = {
    {"yolo11n", "SGD", {"optimizer=SGD", "lr0=0.003", "nbs=16", NULL}},
    {"yolo11n", "AdamW", {"optimizer=auto", "nbs=16", NULL}},
    {"yolov8n", "SGD", {"optimizer=SGD", "nbs=16", "cos_lr=True", NULL}},
    {"yolov8n", "AdamW", {"optimizer=AdamW", "lr0=0.001", "warmup_bias_lr=0.01", "nbs=16", NULL}},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static rig_spec_t spec_of(const set_t *s, const train_case_t *c)
{
    return (rig_spec_t){.model = c->model,
                        .classes = catalog_classes(s->catalog),
                        .side = SIDE,
                        .labels = CAP,
                        .images = TRAIN,
                        .batch = BATCH,
                        .epochs = EPOCHS,
                        .close_mosaic = CLOSE_MOSAIC,
                        .digest = 1,
                        .words = c->words};
}

/* Plays the loader: the batch's cells into the ring's slot. */
static void offer(rig_t *r, const step_batch_t *b)
{
    ring_t *ring = r->w.rings[0];
    for (uint32_t i = 0; i < BATCH; i++) {
        assert_true(ring_claim(ring, r->t.seq, i, 1));
        memcpy(ring_image(ring, r->t.seq, i, PIXELS), b->image[i], PIXELS);
        memcpy(ring_labels(ring, r->t.seq, i), b->labels[i],
               b->meta[i].n_labels * sizeof(ring_label_t));
        *ring_meta(ring, r->t.seq, i) = b->meta[i];
        ring_commit(ring, r->t.seq, i, 1);
    }
}

typedef struct {
    golden_worst_t loss, schedule, weights, ema;
} worst_t;

static void key_of(char *key, size_t room, const train_case_t *c, const char *what)
{
    snprintf(key, room, "%s.%s.%s", c->model, c->optimizer, what);
}

static void compare_step(const safetensors_t *f, const train_case_t *c, const rig_t *r, int k,
                         worst_t *w)
{
    char key[64], name[80];
    float items[4];
    const schedule_point_t *p = &r->t.progress.point;
    const double ours[] = {p->lr[0], p->lr[1], p->lr[2], p->momentum, (double)p->accumulate};
    need(step_items((trainer_t *)(uintptr_t)&r->t, items), "items");
    key_of(key, sizeof key, c, "items");
    const double *want = golden_f64(f, key, NULL) + 3 * k;
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s[%d][%d]", key, k, i);
        golden_note(&w->loss, fabs((double)items[i] - want[i]) / want[i], name);
    }
    key_of(key, sizeof key, c, "schedule");
    want = golden_f64(f, key, NULL) + 5 * k;
    for (int i = 0; i < 5; i++) {
        snprintf(name, sizeof name, "%s[%d][%d]", key, k, i);
        golden_note(&w->schedule, fabs(ours[i] - want[i]), name);
    }
}

/* A few tensors after the last step, in the layout of the state dict. Differences beyond one rounding
 * of float32 a step, in parts of how far the reference's training has moved the tensor. */
static void compare_end(const safetensors_t *f, const train_case_t *c, rig_t *r, int ema,
                        golden_worst_t *w)
{
    trainer_t *t = &r->t;
    const graph_memory_t *m = ema ? &t->mem.ema : &t->mem.train;
    float *weights = malloc(t->mem.weight_bytes), *buffers = malloc(t->mem.buffer_bytes);
    int compared = 0;
    assert_non_null(weights);
    assert_non_null(buffers);
    need(trainer_download(t, weights, m->weights, t->mem.weight_bytes), "weights");
    need(trainer_download(t, buffers, m->buffers, t->mem.buffer_bytes), "buffers");
    for (int32_t i = 0; i < graph_params(t->graph); i++) {
        const graph_param_t *p = graph_param(t->graph, i);
        char what[128], key[192];
        snprintf(what, sizeof what, "%s.%s", ema ? "ema" : "last", p->name);
        key_of(key, sizeof key, c, what);
        const safetensors_entry_t *e = safetensors_find(f, key);
        if (!e)
            continue;
        int64_t count;
        const float *want = golden_f32(f, key, &count);
        snprintf(what, sizeof what, "moved.%s.%s", ema ? "ema" : "last", p->name);
        key_of(key, sizeof key, c, what);
        const double moved = *golden_f64(f, key, NULL);
        double most = 0;
        for (int64_t k = 0; k < count; k++)
            most = fmax(most, fabs((double)want[k]));
        const float *region = (p->place == GRAPH_BUFFER ? buffers : weights) + p->first;
        assert_int_equal(count, p->count);
        for (int64_t k = 0; k < count; k++)
            golden_note(
                w, fabs((double)region[weights_place(p, (uint64_t)k)] - (double)want[k]) / moved,
                key);
        compared++;
    }
    assert_true(compared >= 5);
    free(weights);
    free(buffers);
}

/* ops: the device's; NULL: a CPU. */
static void train(const set_t *s, const safetensors_t *f, const train_case_t *c, const k_ops_t *ops)
{
    const char *where = ops ? "GPU, " : "";
    char what[96];
    rig_shared_t shared;
    rig_t r;
    worst_t w = {0};
    rig_spec_t spec = spec_of(s, c);
    spec.ops = ops;
    assert_int_equal(rig_share(1, &shared), 0);
    need(trainer_rig_open_as(&shared, 0, 1, &spec, &r), "rig");
    need(rig_draw(&r, c->model), "weights");
    for (int k = 0; k < STEPS; k++) {
        int asked;
        const plan_batch_t b = plan_locate(r.t.plan, r.t.seq);
        offer(&r, &s->steps[k]);
        need(step_train(&r.t, &b, &asked), "step");
        compare_step(f, c, &r, k, &w);
        r.t.seq++;
    }
    compare_end(f, c, &r, 0, &w.weights);
    compare_end(f, c, &r, 1, &w.ema);
    trainer_rig_close(&r);
    rig_unshare(&shared);
    snprintf(what, sizeof what, "%s%s, 20 steps of %s, rates and momentum", where, c->model,
             c->optimizer);
    golden_say(what, &w.schedule, 1e-12);
    snprintf(what, sizeof what, "%s%s, 20 steps of %s, losses", where, c->model, c->optimizer);
    golden_say(what, &w.loss, 1e-3);
    snprintf(what, sizeof what, "%s%s, 20 steps of %s, weights at the end", where, c->model,
             c->optimizer);
    golden_say(what, &w.weights, 3e-2); /* PyTorch's own float32: 1e-2 */
    snprintf(what, sizeof what, "%s%s, 20 steps of %s, their average", where, c->model,
             c->optimizer);
    golden_say(what, &w.ema, 3e-2);
}

static void test_trainings(void **state)
{
    const set_t *s = *state;
    safetensors_t *f = golden_open("train");
    for (int i = 0; i < CASES; i++)
        train(s, f, &cases[i], NULL);
    safetensors_free(&f);
}

/* In float32, steps recorded and run ahead. */
static void test_trainings_gpu(void **state)
{
    const set_t *s = *state;
    const k_ops_t *gpu = rig_gpu(K_F32);
    if (!gpu)
        skip();
    safetensors_t *f = golden_open("train");
    for (int i = 0; i < CASES; i++)
        train(s, f, &cases[i], gpu);
    safetensors_free(&f);
}

/* ---- for train_golden.py ---- */

static void add(safetensors_writer_t *w, const char *name, const char *dtype, int64_t cells,
                int64_t rows, const void *data, uint64_t bytes)
{
    const int64_t shape[3] = {STEPS, cells, rows};
    need(safetensors_writer_add(w, name, dtype, shape,
                                cells == 0  ? 1
                                : rows == 0 ? 2
                                            : 3,
                                data, bytes),
         name);
}

static void add_batches(const set_t *s, safetensors_writer_t *w)
{
    uint8_t(*images)[BATCH][PIXELS] = calloc(STEPS, sizeof *images);
    ring_label_t(*labels)[BATCH][CAP] = calloc(STEPS, sizeof *labels);
    int32_t counts[STEPS][BATCH];
    int64_t digests[STEPS];
    assert_non_null(images);
    assert_non_null(labels);
    for (int k = 0; k < STEPS; k++) {
        memcpy(images[k], s->steps[k].image, sizeof images[k]);
        memcpy(labels[k], s->steps[k].labels, sizeof labels[k]);
        digests[k] = (int64_t)s->steps[k].digest;
        for (int i = 0; i < BATCH; i++)
            counts[k][i] = (int32_t)s->steps[k].meta[i].n_labels;
    }
    add(w, "images", "U8", BATCH, PIXELS, images, STEPS * sizeof *images);
    add(w, "labels", "F32", BATCH, 5 * (int64_t)CAP, labels, STEPS * sizeof *labels);
    add(w, "counts", "I32", BATCH, 0, counts, sizeof counts);
    add(w, "digests", "I64", 0, 0, digests, sizeof digests);
    free(images);
    free(labels);
}

static void test_dump(void **state)
{
    const set_t *s = *state;
    safetensors_writer_t *w;
    need(safetensors_writer_new(&w), "writer");
    add_batches(s, w);
    const int32_t classes = (int32_t)catalog_classes(s->catalog);
    need(safetensors_writer_add(w, "classes", "I32", (int64_t[]){1}, 1, &classes, sizeof classes),
         "classes");
    const uint64_t bytes = safetensors_writer_bytes(w);
    void *image = malloc(bytes);
    assert_non_null(image);
    need(safetensors_writer_image(w, image, bytes), "image");
    FILE *out = fopen(getenv("SLUICE_BATCH_DUMP"), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(image, 1, bytes, out), bytes);
    assert_int_equal(fclose(out), 0);
    safetensors_writer_free(&w);
    free(image);
}

int main(void)
{
    const struct CMUnitTest dump[] = {cmocka_unit_test(test_dump)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_loaders),
        cmocka_unit_test(test_trainings),
        cmocka_unit_test(test_trainings_gpu),
    };
    if (getenv("SLUICE_BATCH_DUMP"))
        return cmocka_run_group_tests(dump, begin, end);
    return cmocka_run_group_tests(tests, begin, end);
}
