/* checkpoint.h and snapshot.h: everything a resume needs goes through a file image and back; what
 * does not fit is refused with a sentence; slots are never overwritten before the scribe has
 * answered. */
#include "tests/trainer_rig.h"

#include "shm/arena.h"
#include "shm/err.h"
#include "trainer/checkpoint.h"
#include "trainer/step.h"
#include "trainer/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a state with every field different ---- */

typedef struct {
    graph_t *g;
    float *data; /* 5 regions of weights, then ema.buffers and 2 ranks' buffers */
    checkpoint_state_t s;
    checkpoint_expect_t expect;
    safetensors_writer_t *writer;
    void *image;
    uint64_t bytes;
    safetensors_t *file;
} fixture_t;

static const int64_t ledger_rows[2][CHECKPOINT_LEDGER] = {{0, 7, 8, 6, 0, 30}, {0, 7, 8, 5, 1, 9}};

static void fixture_open(fixture_t *f)
{
    memset(f, 0, sizeof *f);
    assert_int_equal(graph_build("yolo11n", RIG_CLASSES, &f->g), 0);
    uint64_t w = graph_sizes(f->g)->weights, b = graph_sizes(f->g)->buffers, n = 5 * w + 3 * b;
    f->data = malloc(n * sizeof *f->data);
    assert_non_null(f->data);
    for (uint64_t i = 0; i < n; i++)
        f->data[i] = (float)i * 0.5f - 3;
    f->s = (checkpoint_state_t){
        .weights = f->data,
        .m = f->data + w,
        .v = f->data + 2 * w,
        .grads = f->data + 3 * w,
        .ema_weights = f->data + 4 * w,
        .ema_buffers = f->data + 5 * w,
        .rank_buffers = f->data + 5 * w + b,
        .ranks = 2,
        .batch = 48,
        .epoch = 7,
        .position = 96,
        .pending = 3,
        .threads = 5,
        .ledger = ledger_rows,
        .ledger_count = 2,
        .items = {.mean = {0.1, 1.0 / 7, 3.5}, .steps = 2},
        .seed = 0xfedcba9876543210ull,
        .list_digest = 0x8123456789abcdefull,
        .progress = {.updates = 1001,
                     .opt_steps = 1002,
                     .batches = 1003,
                     .point = {.lr = {0.1, 0.01 / 3, 0.001}, .momentum = 0.9, .accumulate = 4},
                     .stream = {.sum = 0xfffffffffffffff0ull, .count = 96},
                     .early = {.best = 0.1 + 0.2, .best_epoch = 5, .patience = 30},
                     .best_fitness = 1.0 / 3,
                     .best_epoch = 6,
                     .seconds = 1234.5678901234},
    };
    f->expect = (checkpoint_expect_t){.seed = f->s.seed,
                                      .list_digest = f->s.list_digest,
                                      .epochs = 20,
                                      .first_epoch = 7,
                                      .first_position = 96,
                                      .patience = 30};
}

static void fixture_write(fixture_t *f)
{
    assert_int_equal(safetensors_writer_new(&f->writer), 0);
    assert_int_equal(checkpoint_state_image(f->g, &f->s, f->writer), 0);
    f->bytes = safetensors_writer_bytes(f->writer);
    f->image = malloc(f->bytes);
    assert_int_equal(safetensors_writer_image(f->writer, f->image, f->bytes), 0);
    assert_int_equal(safetensors_load_memory(f->image, f->bytes, "state", &f->file), 0);
}

static void fixture_close(fixture_t *f)
{
    safetensors_free(&f->file);
    safetensors_writer_free(&f->writer);
    free(f->image);
    free(f->data);
    graph_free(&f->g);
}

static void test_round_trip(void **state)
{
    (void)state;
    fixture_t f;
    checkpoint_state_t got;
    fixture_open(&f);
    fixture_write(&f);
    assert_int_equal(checkpoint_state_read(f.g, f.file, "state", &f.expect, &got), 0);
    uint64_t w = graph_sizes(f.g)->weights * sizeof(float), b = graph_sizes(f.g)->buffers * 4;
    assert_memory_equal(got.weights, f.s.weights, w);
    assert_memory_equal(got.m, f.s.m, w);
    assert_memory_equal(got.v, f.s.v, w);
    assert_memory_equal(got.grads, f.s.grads, w);
    assert_memory_equal(got.ema_weights, f.s.ema_weights, w);
    assert_memory_equal(got.ema_buffers, f.s.ema_buffers, b);
    assert_memory_equal(got.rank_buffers, f.s.rank_buffers, 2 * b);
    assert_int_equal(got.ranks, 2);
    assert_int_equal(got.batch, 48);
    assert_int_equal(got.epoch, 7);
    assert_int_equal(got.finished, 0);
    assert_int_equal(got.pending, 3);
    assert_true(got.seed == f.s.seed && got.list_digest == f.s.list_digest);
    assert_int_equal(got.progress.updates, 1001);
    assert_int_equal(got.progress.opt_steps, 1002);
    assert_int_equal(got.progress.batches, 1003);
    assert_memory_equal(&got.progress.point, &f.s.progress.point, sizeof got.progress.point);
    assert_memory_equal(&got.progress.stream, &f.s.progress.stream, sizeof got.progress.stream);
    assert_memory_equal(&got.items, &f.s.items, sizeof got.items);
    assert_true(got.position == 96 && got.threads == 5 && got.ledger_count == 2);
    assert_memory_equal(got.ledger, ledger_rows, sizeof ledger_rows);
    assert_true(got.progress.early.best == 0.1 + 0.2); /* to the bit */
    assert_int_equal(got.progress.early.best_epoch, 5);
    assert_int_equal(got.progress.early.patience, 30);
    assert_true(got.progress.best_fitness == 1.0 / 3);
    assert_int_equal(got.progress.best_epoch, 6);
    assert_true(got.progress.seconds == 1234.5678901234);
    assert_true(f.bytes < checkpoint_bytes(f.g, 2, 0, 0, 0));
    fixture_close(&f);
}

/* One wrong bit anywhere in the numbers is noticed, those in the metadata included. */
static void test_flipped_bit(void **state)
{
    (void)state;
    fixture_t f;
    checkpoint_state_t got;
    fixture_open(&f);
    fixture_write(&f);
    for (int32_t i = 0; i < safetensors_count(f.file); i++) {
        const safetensors_entry_t *e = safetensors_at(f.file, i);
        const uint64_t places[] = {0, e->bytes / 2, e->bytes - 1};
        for (int k = 0; k < 3; k++) {
            uint8_t *byte = (uint8_t *)f.image + ((const uint8_t *)e->data - (uint8_t *)f.image);
            byte[places[k]] ^= 0x10;
            assert_int_equal(checkpoint_state_read(f.g, f.file, "state", &f.expect, &got),
                             ERR_CONFIG);
            assert_non_null(strstr(err_text(), "checksum"));
            byte[places[k]] ^= 0x10;
        }
    }
    assert_int_equal(checkpoint_state_read(f.g, f.file, "state", &f.expect, &got), 0);
    safetensors_t *wrong;
    ((char *)memmem(f.image, f.bytes, "\"updates\":\"", 11))[11] ^= 1;
    assert_int_equal(safetensors_load_memory(f.image, f.bytes, "state", &wrong), 0);
    assert_int_equal(checkpoint_state_read(f.g, wrong, "state", &f.expect, &got), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "checksum"));
    safetensors_free(&wrong);
    fixture_close(&f);
}

static void test_sgd_without_pending(void **state)
{
    (void)state;
    fixture_t f;
    checkpoint_state_t got;
    fixture_open(&f);
    f.s.sgd = f.expect.sgd = 1;
    f.s.v = NULL;
    f.s.pending = 0;
    f.s.ledger_count = 0;
    fixture_write(&f);
    assert_null(safetensors_find(f.file, "ledger"));
    assert_null(safetensors_find(f.file, "variance"));
    assert_null(safetensors_find(f.file, "gradients"));
    assert_int_equal(checkpoint_state_read(f.g, f.file, "state", &f.expect, &got), 0);
    assert_null(got.v);
    assert_null(got.grads);
    fixture_close(&f);
}

static void refused(fixture_t *f, const graph_t *g, const checkpoint_expect_t *e, int code,
                    const char *said, const char *advice)
{
    checkpoint_state_t got;
    assert_int_equal(checkpoint_state_read(g, f->file, "runs/x/last.state", e, &got), code);
    assert_non_null(strstr(err_text(), "runs/x/last.state"));
    if (!strstr(err_text(), said) || !strstr(err_text(), advice))
        fail_msg("'%s' does not say '%s' and '%s'", err_text(), said, advice);
}

static void test_refusals(void **state)
{
    (void)state;
    fixture_t f;
    graph_t *other;
    fixture_open(&f);
    fixture_write(&f);
    assert_int_equal(graph_build("yolov8n", RIG_CLASSES, &other), 0);
    refused(&f, other, &f.expect, ERR_CONFIG, "of model yolo11n, this run has model yolov8n",
            "model=yolo11n");
    graph_free(&other);
    assert_int_equal(graph_build("yolo11n", RIG_CLASSES + 1, &other), 0);
    refused(&f, other, &f.expect, ERR_CONFIG, "of 3 classes, the data set has 4", "new run");
    graph_free(&other);
    checkpoint_expect_t e = f.expect;
    e.list_digest ^= 1;
    refused(&f, f.g, &e, ERR_CONFIG, "8123456789abcdef", "images or labels have changed");
    e = f.expect;
    e.seed = 5;
    refused(&f, f.g, &e, ERR_CONFIG, "not 5", "resume with that seed");
    e = f.expect;
    e.sgd = 1;
    refused(&f, f.g, &e, ERR_CONFIG, "optimizer=AdamW", "chose SGD");
    e = f.expect;
    e.epochs = 7;
    refused(&f, f.g, &e, ERR_CONFIG, "finished run (7 epochs done)", "start a new run");
    e = f.expect;
    e.first_epoch = 6;
    refused(&f, f.g, &e, ERR_FAILED, "epoch 8", "epoch 7");
    e = f.expect;
    e.first_position = 0;
    refused(&f, f.g, &e, ERR_FAILED, "at image 96", "at image 0");
    fixture_close(&f);
    fixture_open(&f);
    f.s.finished = 1;
    fixture_write(&f);
    refused(&f, f.g, &f.expect, ERR_CONFIG, "finished run", "start a new run");
    fixture_close(&f);
}

/* A weights file where a state file is wanted, and a state file with a region missing. */
static void test_not_a_state(void **state)
{
    (void)state;
    fixture_t f;
    static const int32_t stride[K_LEVELS] = {8, 16, 32};
    fixture_open(&f);
    uint64_t w = graph_sizes(f.g)->weights;
    assert_int_equal(safetensors_writer_new(&f.writer), 0);
    assert_int_equal(checkpoint_weights_image(f.g, f.data, f.data + w, 11, 4, stride, NULL,
                                              "epochs: 3\n", f.writer),
                     0);
    f.bytes = safetensors_writer_bytes(f.writer);
    f.image = malloc(f.bytes);
    assert_int_equal(safetensors_writer_image(f.writer, f.image, f.bytes), 0);
    assert_int_equal(safetensors_load_memory(f.image, f.bytes, "weights", &f.file), 0);
    refused(&f, f.g, &f.expect, ERR_CONFIG, "has no \"kind\"", "not a state file");

    /* The weights file itself: names, metadata, and the way back. */
    assert_string_equal(safetensors_metadata(f.file, "model"), "yolo11n");
    assert_string_equal(safetensors_metadata(f.file, "nc"), "3");
    assert_string_equal(safetensors_metadata(f.file, "epoch"), "4");
    assert_string_equal(safetensors_metadata(f.file, "strides"), "[8, 16, 32]");
    assert_string_equal(safetensors_metadata(f.file, "args"), "epochs: 3\n");
    assert_non_null(safetensors_metadata(f.file, "names"));
    assert_int_equal(safetensors_count(f.file), 499);
    uint64_t b = graph_sizes(f.g)->buffers;
    float *weights = calloc(w, sizeof *weights), *buffers = calloc(b, sizeof *buffers);
    modelfile_t *model;
    weights_report_t report;
    assert_int_equal(modelfile_open_memory(f.image, f.bytes, "weights", &model), 0);
    assert_string_equal(modelfile_info(model)->model, "yolo11n");
    assert_int_equal(weights_transfer(f.g, model, NULL, 0, weights, buffers, &report), 0);
    assert_int_equal(report.moved, 499);
    modelfile_free(&model);
    for (int32_t i = 0; i < graph_params(f.g); i++) {
        const graph_param_t *p = graph_param(f.g, i);
        if (p->place < GRAPH_GROUPS)
            assert_memory_equal(weights + p->first, f.data + p->first, p->count * sizeof(float));
        else if (p->place == GRAPH_BUFFER)
            assert_memory_equal(buffers + p->first, f.data + w + p->first,
                                p->count * sizeof(float));
    }
    free(weights);
    free(buffers);
    fixture_close(&f);
}

/* ---- snapshot memory ---- */

typedef struct {
    wire_snapshot_t sent[SNAPSHOT_FILES];
    int count, fail;
} outbox_t;

static int collect(void *user, const wire_snapshot_t *m)
{
    outbox_t *o = user;
    if (o->fail)
        return err_set(ERR_GONE, "nobody listens");
    o->sent[o->count++] = *m;
    return 0;
}

static safetensors_writer_t *small_file(float value)
{
    safetensors_writer_t *w;
    int64_t shape[1] = {1};
    assert_int_equal(safetensors_writer_new(&w), 0);
    assert_int_equal(safetensors_writer_add(w, "x", "F32", shape, 1, &value, sizeof value), 0);
    return w;
}

static void put(snapshot_t *s, float value, uint32_t epoch, outbox_t *out)
{
    safetensors_writer_t *w = small_file(value);
    memset(out, 0, sizeof *out);
    assert_int_equal(snapshot_begin(s, epoch), 0);
    assert_int_equal(snapshot_add(s, w, "weights/last.safetensors", "weights/best.safetensors"), 0);
    assert_int_equal(snapshot_again(s, "weights/epoch3.safetensors"), 0);
    assert_int_equal(snapshot_add(s, w, "weights/last.state.safetensors", NULL), 0);
    assert_int_equal(snapshot_commit(s, collect, out), 0);
    assert_int_equal(out->count, 3);
    safetensors_writer_free(&w);
}

static void answer(snapshot_t *s, const wire_snapshot_t *m, int32_t status)
{
    wire_saved_t a = {.epoch = m->epoch, .slot = m->slot, .status = status};
    memcpy(a.path, m->path, sizeof a.path);
    snprintf(a.text, sizeof a.text, "No space left on device");
    snapshot_saved(s, &a);
}

static void test_slots(void **state)
{
    (void)state;
    snapshot_t *s;
    outbox_t one, two, three;
    void *base;
    uint64_t bytes;
    int fd = memfd_create("test-snapshot", MFD_CLOEXEC);
    assert_int_equal(snapshot_open(fd, 2000, &s), 0);
    assert_int_equal(arena_map(fd, 0, &base, &bytes), 0);
    assert_int_equal(bytes, snapshot_bytes(2000));

    put(s, 1, 0, &one);
    put(s, 2, 1, &two);
    assert_true(one.sent[0].slot != two.sent[0].slot);
    assert_int_equal(snapshot_pending(s), 6);
    assert_false(snapshot_has_room(s));
    assert_int_equal(snapshot_begin(s, 2), ERR_FAILED);
    /* What the scribe does: the bytes named by the message have its checksum. */
    for (int i = 0; i < 3; i++) {
        const wire_snapshot_t *m = &one.sent[i];
        assert_true(m->offset + m->length <= bytes);
        assert_true(wire_checksum((char *)base + m->offset, m->length) == m->checksum);
    }
    assert_string_equal(one.sent[0].copy_to, "weights/best.safetensors");
    assert_string_equal(one.sent[1].path, "weights/epoch3.safetensors");
    assert_true(one.sent[1].offset == one.sent[0].offset);
    assert_true(one.sent[2].offset >= one.sent[0].offset + one.sent[0].length);

    /* A slot is free when all its files are answered for, and not before. */
    answer(s, &one.sent[0], 0);
    answer(s, &one.sent[2], 0);
    answer(s, &one.sent[2], 0);
    assert_false(snapshot_has_room(s));
    answer(s, &one.sent[1], 0);
    assert_true(snapshot_has_room(s));
    assert_null(snapshot_failure(s));
    answer(s, &two.sent[1], ERR_ENV);
    assert_non_null(strstr(snapshot_failure(s), "epoch3.safetensors was not written: No space"));
    put(s, 3, 2, &three);
    assert_null(snapshot_failure(s)); /* replaced by a newer one */
    assert_int_equal(three.sent[0].slot, one.sent[0].slot);
    assert_int_equal(snapshot_pending(s), 5);
    arena_unmap(base, bytes);
    snapshot_close(&s);
    close(fd);
}

static void test_unsent(void **state)
{
    (void)state;
    snapshot_t *s;
    outbox_t out = {.fail = 1};
    safetensors_writer_t *w = small_file(1);
    int fd = memfd_create("test-snapshot", MFD_CLOEXEC);
    assert_int_equal(snapshot_open(fd, 2000, &s), 0);
    assert_int_equal(snapshot_begin(s, 0), 0);
    assert_int_equal(snapshot_add(s, w, "weights/last.safetensors", NULL), 0);
    assert_int_equal(snapshot_commit(s, collect, &out), ERR_GONE);
    assert_int_equal(snapshot_pending(s), 0);
    assert_true(snapshot_has_room(s));
    assert_non_null(strstr(snapshot_failure(s), "nobody listens"));
    /* A file too large for its slot is an error and not an overflow. */
    float big[2000] = {0};
    int64_t shape[1] = {2000};
    assert_int_equal(safetensors_writer_add(w, "big", "F32", shape, 1, big, sizeof big), 0);
    assert_int_equal(snapshot_begin(s, 1), 0);
    assert_int_equal(snapshot_add(s, w, "weights/last.safetensors", NULL), ERR_FAILED);
    assert_non_null(strstr(err_text(), "does not fit"));
    safetensors_writer_free(&w);
    snapshot_close(&s);
    close(fd);
}

/* ---- a run that is resumed is the run that was not interrupted ---- */

static const char *const words[] = {"optimizer=AdamW", "lr0=0.002", "warmup_epochs=2", "nbs=8",
                                    NULL};

static void steps(rig_t *r, uint64_t first, uint64_t last)
{
    int stop;
    for (uint64_t seq = first; seq < last; seq++) {
        plan_batch_t b = plan_locate(r->t.plan, r->t.seq);
        rig_fill(r, &b, (uint32_t)seq * 4, 64);
        if (step_train(&r->t, &b, &stop) < 0)
            fail_msg("step: %s", err_text());
        r->t.seq++;
    }
}

/* Where a checkpoint is taken and a second trainer goes on from it: `done` steps of an epoch of
 * `images` made-up pictures in batches of 4 are behind. */
typedef struct {
    uint32_t images, done, total;
} cut_t;

static void open_rig(const rig_shared_t *s, const cut_t *cut, rig_t *r)
{
    uint32_t per = (cut->images + 3) / 4;
    uint32_t epochs = (cut->total + per - 1) / per;
    assert_int_equal(trainer_rig_open(s, 0, 1, 4, epochs, 0, words, r), 0);
    r->w.plan.n_train = cut->images;
    schedule_init(&r->t.schedule, r->t.o, cut->images, plan_train_steps(&r->w.plan), RIG_CLASSES);
}

/* The state as a file would have it; into memory of its own. */
static safetensors_t *state_of(rig_t *a, uint8_t **image)
{
    const void *at = NULL;
    uint64_t bytes = 0;
    safetensors_t *file = NULL;
    assert_int_equal(snapshot_find(a->t.snapshot, "weights/last.state.safetensors", &at, &bytes),
                     0);
    *image = malloc(bytes);
    memcpy(*image, at, bytes);
    assert_int_equal(safetensors_load_memory(*image, bytes, "state", &file), 0);
    return file;
}

static void need_equal(rig_t *a, rig_t *b)
{
    uint64_t n = a->t.mem.state_bytes;
    char *end[2] = {malloc(n), malloc(n)};
    assert_int_equal(trainer_download(&a->t, end[0], 0, n), 0);
    assert_int_equal(trainer_download(&b->t, end[1], 0, n), 0);
    assert_memory_equal(end[0], end[1], n);
    assert_memory_equal(&a->t.progress, &b->t.progress, sizeof a->t.progress);
    assert_memory_equal(&a->t.items, &b->t.items, sizeof a->t.items);
    free(end[0]);
    free(end[1]);
}

static void resume_after(const cut_t *cut)
{
    rig_shared_t s;
    rig_t a, b;
    int fd = memfd_create("test-snapshot", MFD_CLOEXEC);
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, cut, &a);
    assert_int_equal(
        snapshot_open(fd, checkpoint_bytes(a.t.graph, 1, OPTIONS_YAML_BYTES, 0, 64), &a.t.snapshot),
        0);
    steps(&a, 0, cut->done);
    plan_batch_t last = plan_locate(a.t.plan, cut->done - 1);
    int whole = last.step + 1 == last.steps;
    checkpoint_point_t point = {.epoch = last.epoch,
                                .next_epoch = last.epoch + (uint32_t)whole,
                                .position = whole ? 0 : plan_consumed(a.t.plan, &last),
                                .whole = whole};
    a.t.progress.best_fitness = 0.25;
    int64_t pending = a.t.progress.last_ni - a.t.progress.last_opt_step;
    /* Without a coordinator the messages have nowhere to go; the image is in the slot all the same.
     */
    assert_int_equal(checkpoint_take(&a.t, &point), ERR_GONE);
    uint8_t *image;
    safetensors_t *file = state_of(&a, &image);
    steps(&a, cut->done, cut->total);

    const checkpoint_expect_t expect = {.epochs = a.w.plan.epochs,
                                        .first_epoch = point.next_epoch,
                                        .first_position = point.position};
    checkpoint_state_t got;
    open_rig(&s, cut, &b);
    b.w.plan.first_epoch = point.next_epoch;
    b.w.plan.first_position = point.position;
    assert_int_equal(checkpoint_state_read(b.t.graph, file, "state", &expect, &got), 0);
    assert_int_equal(got.pending, pending);
    assert_int_equal(checkpoint_restore(&b.t, &got), 0);
    assert_int_equal(b.t.progress.last_ni, cut->done - 1);
    assert_int_equal(b.t.progress.last_opt_step, cut->done - 1 - pending);
    assert_true(b.t.progress.best_fitness == 0.25);
    b.t.progress.seconds = a.t.progress.seconds;
    steps(&b, cut->done, cut->total);
    need_equal(&a, &b);

    free(image);
    safetensors_free(&file);
    snapshot_close(&a.t.snapshot);
    trainer_rig_close(&a);
    trainer_rig_close(&b);
    rig_unshare(&s);
    close(fd);
}

/* Between epochs of one step; nbs = 8 leaves a gradient pending behind every other batch once the
 * warm-up is over. */
static void test_resume(void **state)
{
    (void)state;
    const cut_t cut = {.images = 4, .done = 4, .total = 7};
    resume_after(&cut);
}

/* In the middle of epochs of three steps: in the warm-up, with and without pending gradients. */
static void test_resume_in_mid_epoch(void **state)
{
    (void)state;
    for (uint32_t done = 1; done <= 8; done += done < 4 ? 1 : 2) {
        const cut_t cut = {.images = 10, .done = done, .total = 9};
        resume_after(&cut);
    }
}

/* With another batch: same weights, no gradients of batches of another size, and an iteration's
 * number within the epoch. */
static void test_resume_with_another_batch(void **state)
{
    (void)state;
    rig_shared_t s;
    rig_t a;
    int fd = memfd_create("test-snapshot", MFD_CLOEXEC);
    const cut_t cut = {.images = 40, .done = 5, .total = 30};
    assert_int_equal(rig_share(1, &s), 0);
    open_rig(&s, &cut, &a);
    assert_int_equal(
        snapshot_open(fd, checkpoint_bytes(a.t.graph, 1, OPTIONS_YAML_BYTES, 0, 64), &a.t.snapshot),
        0);
    steps(&a, 0, cut.done);
    a.t.progress.last_opt_step = 2; /* two batches pending */
    const checkpoint_point_t point = {.epoch = 0, .next_epoch = 0, .position = 20};
    assert_int_equal(checkpoint_take(&a.t, &point), ERR_GONE);
    uint8_t *image;
    checkpoint_state_t got;
    const checkpoint_expect_t expect = {.epochs = a.w.plan.epochs, .first_position = 20};
    safetensors_t *file = state_of(&a, &image);
    assert_int_equal(checkpoint_state_read(a.t.graph, file, "state", &expect, &got), 0);
    assert_int_equal(got.pending, 2);
    a.w.plan.batch = 2;
    schedule_init(&a.t.schedule, a.t.o, 40, 20, RIG_CLASSES);
    assert_int_equal(step_init(&a.t), 0);
    assert_int_equal(checkpoint_restore(&a.t, &got), 0);
    assert_int_equal(a.t.progress.last_ni, 9); /* ten steps of two are behind */
    assert_int_equal(a.t.progress.last_opt_step, 9);
    float *grads = malloc(a.t.mem.weight_bytes);
    assert_int_equal(trainer_download(&a.t, grads, a.t.mem.train.grads, a.t.mem.weight_bytes), 0);
    for (uint64_t i = 0; i < a.t.sizes->weights; i++)
        assert_true(grads[i] == 0);
    free(grads);
    free(image);
    safetensors_free(&file);
    snapshot_close(&a.t.snapshot);
    trainer_rig_close(&a);
    rig_unshare(&s);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_flipped_bit),
        cmocka_unit_test(test_sgd_without_pending),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_not_a_state),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_unsent),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_in_mid_epoch),
        cmocka_unit_test(test_resume_with_another_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
