/* Claimed cells through to committed ones, with real rings and files: order of claims,
 * backpressure, two loaders at once, one that leaves, and a file that goes bad. The control plane's
 * end is played here.
 */
#include "loader/job.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tests/readme_table.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    TRAIN = 9,
    VAL = 3,
    SIDE = 64,
    RANKS = 2,
    DEPTH = 2,
    CAP = 32,
    LOADERS = 2,
    DEADLINE_MS = 60000
};

typedef struct {
    char folder[SCRATCH_PATH];
    catalog_t *catalog;
    int catalog_fd, ring_fd[RANKS];
    ring_t *rings[RANKS];
    board_hub_t hub;
    board_page_t pages[LOADERS];
    worker_t workers[LOADERS];
    jobs_t jobs[LOADERS];
    bus_t *coordinator;
    plan_t plan;
    options_t options;
    uint64_t digests[256]; /* by batch and position */
    uint32_t batches_seen;
} run_t;

static void add_sample(run_t *r, catalog_builder_t *b, catalog_split_t split, int i)
{
    char name[32], path[2 * SCRATCH_PATH];
    int width = i % 3 == 0 ? SIDE : 100 + i, height = i % 3 == 1 ? SIDE : 70;
    snprintf(name, sizeof name, "%d-%d.jpg", split, i);
    scratch_write_jpeg(r->folder, name, width, height);
    snprintf(path, sizeof path, "%s/%s", r->folder, name);
    size_t bytes;
    free(scratch_read(path, &bytes));
    const catalog_sample_t facts = {.file_bytes = bytes,
                                    .width = (uint32_t)width,
                                    .height = (uint32_t)height,
                                    .format = CATALOG_JPEG,
                                    .orientation = 1};
    const catalog_label_t label = {.cx = 0.5f, .cy = 0.5f, .w = 0.3f + 0.02f * (float)i, .h = 0.4f};
    assert_int_equal(catalog_builder_sample(b, split, path, &facts, &label, 1, NULL, 0), 0);
}

static void make_catalog(run_t *r)
{
    catalog_builder_t *b;
    r->catalog_fd = memfd_create("test-job", MFD_ALLOW_SEALING);
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "thing"), 0);
    for (int i = 0; i < TRAIN; i++)
        add_sample(r, b, CATALOG_TRAIN, i);
    for (int i = 0; i < VAL; i++)
        add_sample(r, b, CATALOG_VAL, i);
    if (catalog_builder_write(b, r->catalog_fd) < 0 || catalog_open(r->catalog_fd, &r->catalog) < 0)
        fail_msg("%s", err_text());
    catalog_builder_free(&b);
}

static void make_rings(run_t *r)
{
    const ring_config_t config = {.depth = DEPTH,
                                  .cells = 4,
                                  .label_cap = CAP,
                                  .digest = 1,
                                  .image_bytes = 4 * 3 * 2 * SIDE * 2 * SIDE};
    for (uint32_t k = 0; k < RANKS; k++) {
        uint32_t cells[DEPTH];
        for (uint32_t seq = 0; seq < DEPTH; seq++) {
            plan_batch_t b = plan_locate(&r->plan, seq);
            cells[seq] = plan_cells(&r->plan, &b, k);
        }
        if (ring_create(&config, "test-job", &r->rings[k], &r->ring_fd[k]) < 0)
            fail_msg("%s", err_text());
        ring_set_bell(r->rings[k], &r->hub.work_bell);
        ring_arm(r->rings[k], cells);
    }
}

static void open_loader(run_t *r, uint32_t i, const char *endpoint)
{
    worker_t *w = &r->workers[i];
    char identity[32];
    w->kind = BOARD_LOADER;
    w->index = i;
    w->incarnation = 7 + i;
    w->page = &r->pages[i];
    w->hub = &r->hub;
    w->catalog = r->catalog;
    w->options = r->options;
    w->plan = r->plan;
    memcpy(w->rings, r->rings, sizeof r->rings);
    snprintf(identity, sizeof identity, "loader-%u.%u", i, 7 + i);
    if (bus_connect(endpoint, identity, &w->bus) < 0 || jobs_open(&r->jobs[i], w) < 0)
        fail_msg("%s", err_text());
}

static int begin(void **state)
{
    run_t *r = calloc(1, sizeof *r);
    char endpoint[64];
    scratch_begin(r->folder);
    make_catalog(r);
    r->plan = (plan_t){.seed = 1,
                       .n_train = TRAIN,
                       .n_val = VAL,
                       .ranks = RANKS,
                       .batch = 4,
                       .val_batch = 4,
                       .imgsz = SIDE,
                       .epochs = 3,
                       .val_every_epoch = 1,
                       .close_mosaic = 1};
    options_default(&r->options);
    r->options.inflight = 3;
    r->options.mixup = 0.3;
    make_rings(r);
    snprintf(endpoint, sizeof endpoint, "ipc://@sluice-test-job-%d", (int)getpid());
    if (bus_listen(endpoint, &r->coordinator) < 0)
        fail_msg("%s", err_text());
    for (uint32_t i = 0; i < LOADERS; i++)
        open_loader(r, i, endpoint);
    *state = r;
    return 0;
}

static int end(void **state)
{
    run_t *r = *state;
    for (int i = 0; i < LOADERS; i++) {
        jobs_close(&r->jobs[i]);
        bus_close(&r->workers[i].bus);
    }
    bus_close(&r->coordinator);
    for (int k = 0; k < RANKS; k++) {
        ring_close(&r->rings[k]);
        close(r->ring_fd[k]);
    }
    catalog_close(&r->catalog);
    close(r->catalog_fd);
    scratch_end(r->folder);
    free(r);
    return 0;
}

static void announce(run_t *r, uint32_t epochs)
{
    for (int i = 0; i < LOADERS; i++)
        r->workers[i].epochs_announced = epochs;
}

/* What loop.c does in a turn, without waiting. */
static void turn(run_t *r, int i)
{
    jobs_t *j = &r->jobs[i];
    int rc;
    do {
        assert_int_equal(reader_poll(j->reader, 0), 0);
        rc = jobs_claim(j);
    } while (rc == 1);
    assert_int_equal(rc, 0);
    assert_int_equal(jobs_report(j), 0);
    job_t *job = jobs_ready(j);
    if (job && jobs_finish(j, job) < 0)
        fail_msg("%s", err_text());
    if (!job && reader_in_flight(j->reader))
        assert_int_equal(reader_poll(j->reader, 10), 0);
}

/* The trainers: takes every batch that is ready, checks it, frees it. */
static void consume(run_t *r)
{
    for (uint32_t k = 0; k < RANKS; k++) {
        uint64_t seq = ring_tail(r->rings[k]);
        plan_batch_t b = plan_locate(&r->plan, seq), next = plan_locate(&r->plan, seq + DEPTH);
        if (b.phase == PLAN_END || !ring_ready(r->rings[k], seq))
            continue;
        for (uint32_t c = 0; c < plan_cells(&r->plan, &b, k); c++) {
            const ring_cell_meta_t *m = ring_meta(r->rings[k], seq, c);
            assert_true(m->phase == b.phase && m->epoch == b.epoch && m->step == b.step &&
                        m->digest != 0);
            assert_int_equal(m->position, plan_position(&r->plan, &b, k, c));
            assert_true(m->position < 12);
            r->digests[seq * 12 + m->position] = m->digest;
        }
        ring_release(r->rings[k], seq, plan_cells(&r->plan, &next, k));
        r->batches_seen++;
    }
}

/* Both loaders and both trainers until every batch has been taken. */
static void run_all(run_t *r, int loaders)
{
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    while (r->batches_seen < RANKS * plan_batches(&r->plan)) {
        assert_true(clock_ns() < deadline);
        for (int i = 0; i < loaders; i++)
            turn(r, i);
        consume(r);
    }
}

/* What the stream must be: every cell filled directly from the files. */
static void check_stream(const run_t *r, const substitutes_t *ledger)
{
    const cell_config_t config = {r->catalog, &r->plan, &r->options, ledger,
                                  NULL,       NULL,     NULL,        NULL};
    cell_maker_t *m;
    uint8_t *image = malloc(3 * 4 * SIDE * SIDE);
    ring_label_t labels[CAP];
    ring_cell_meta_t meta;
    assert_int_equal(cell_maker_new(&config, &m), 0);
    for (uint64_t seq = 0; seq < plan_batches(&r->plan); seq++)
        for (uint32_t k = 0; k < RANKS; k++) {
            plan_batch_t b = plan_locate(&r->plan, seq);
            for (uint32_t c = 0; c < plan_cells(&r->plan, &b, k); c++) {
                cell_plan_t p;
                cell_file_t files[CELL_SOURCES];
                uint32_t bad;
                cell_plan(m, &b, k, c, &p);
                for (uint32_t i = 0; i < p.n_sources; i++)
                    files[i].data = scratch_read(
                        catalog_path(r->catalog, catalog_sample(r->catalog, p.split, p.sources[i])),
                        &files[i].bytes);
                const cell_target_t target = {image, labels, CAP, &meta, 1};
                if (cell_fill(m, &p, files, &target, &bad) < 0)
                    fail_msg("%s", err_text());
                assert_true(meta.digest == r->digests[seq * 12 + p.position]);
                for (uint32_t i = 0; i < p.n_sources; i++)
                    free((void *)(uintptr_t)files[i].data);
            }
        }
    cell_maker_free(&m);
    free(image);
}

/* Nothing is claimed before its epoch is agreed; then in the order seq, cell, rank; never more than
 * there are jobs. */
static void test_claims(void **state)
{
    run_t *r = *state;
    jobs_t *j = &r->jobs[0];
    assert_int_equal(jobs_claim(j), 0);
    announce(r, 1);
    static const uint32_t order[4][3] = {{0, 0, 0}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(jobs_claim(j), 1);
        const job_t *found = NULL;
        for (uint32_t k = 0; k < j->n_jobs; k++)
            if (j->jobs[k].state == JOB_READING && j->jobs[k].seq == order[i][0] &&
                j->jobs[k].cell == order[i][1] && j->jobs[k].rank == order[i][2])
                found = &j->jobs[k];
        assert_non_null(found);
        assert_int_equal(ring_peek(r->rings[found->rank], found->seq, found->cell, NULL),
                         RING_CLAIMED);
        assert_int_equal(atomic_load(&found->page->phase), CELL_OPEN);
    }
    assert_int_equal(jobs_count(j, JOB_READING), 4); /* inflight + 1 */
    assert_int_equal(jobs_claim(j), 0);
    /* Leaving gives the cells back. */
    while (reader_in_flight(j->reader))
        assert_int_equal(reader_poll(j->reader, 10), 0);
    jobs_close(j);
    for (uint32_t k = 0; k < RANKS; k++)
        for (uint32_t c = 0; c < 2; c++)
            assert_int_equal(ring_peek(r->rings[k], 0, c, NULL), RING_EMPTY);
    assert_int_equal(jobs_open(j, &r->workers[0]), 0);
}

/* Full windows stop the loaders; a freed batch lets them go on. */
static void test_backpressure(void **state)
{
    run_t *r = *state;
    announce(r, 3);
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    while (ring_fill(r->rings[0]) < DEPTH || ring_fill(r->rings[1]) < DEPTH) {
        assert_true(clock_ns() < deadline);
        turn(r, 0);
    }
    assert_int_equal(jobs_claim(&r->jobs[0]), 0);
    assert_int_equal(jobs_count(&r->jobs[0], JOB_FREE), 4);
    assert_int_equal(atomic_load(&r->pages[0].cells_done), RANKS * DEPTH * 2);
    assert_true(atomic_load(&r->pages[0].bytes_read) > 0 &&
                atomic_load(&r->pages[0].decode_ns) > 0);
    consume(r);
    assert_int_equal(jobs_claim(&r->jobs[0]), 1);
}

static void test_two_loaders(void **state)
{
    run_t *r = *state;
    substitutes_t none;
    substitutes_init(&none);
    announce(r, 3);
    run_all(r, LOADERS);
    assert_true(atomic_load(&r->pages[0].cells_done) > 0 &&
                atomic_load(&r->pages[1].cells_done) > 0);
    check_stream(r, &none);
}

static void test_one_leaves(void **state)
{
    run_t *r = *state;
    substitutes_t none;
    substitutes_init(&none);
    announce(r, 3);
    for (int i = 0; i < 4; i++) {
        turn(r, 0);
        turn(r, 1);
        consume(r);
    }
    assert_int_equal(jobs_claim(&r->jobs[1]) < 0, 0);
    jobs_close(&r->jobs[1]); /* with cells under way */
    run_all(r, 1);
    check_stream(r, &none);
    assert_int_equal(jobs_open(&r->jobs[1], &r->workers[1]), 0);
}

/* A file cut short after the scan: reported with its reason, its cells wait, the ledger's entry
 * lets them go on with the substitute, and the stream is what the ledger says. */
static void test_bad_sample(void **state)
{
    run_t *r = *state;
    enum { VICTIM = 4 };
    const char *path = catalog_path(r->catalog, catalog_sample(r->catalog, CATALOG_TRAIN, VICTIM));
    assert_int_equal(truncate(path, 50), 0);
    announce(r, 3);
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    int reports = 0;
    wire_ledger_t entry;
    memset(&entry, 0, sizeof entry);
    wire_begin(&entry, WIRE_LEDGER, sizeof entry);
    entry.split = CATALOG_TRAIN;
    entry.sample = VICTIM;
    entry.substitute = VICTIM + 1;
    entry.number = 1;
    while (r->batches_seen < RANKS * plan_batches(&r->plan)) {
        bus_message_t message;
        assert_true(clock_ns() < deadline);
        for (int i = 0; i < LOADERS; i++)
            turn(r, i);
        consume(r);
        while (bus_receive(r->coordinator, 0, &message) == 1) {
            const wire_bad_sample_t *bad = message.frame;
            assert_int_equal(message.type, WIRE_BAD_SAMPLE);
            assert_true(bad->split == CATALOG_TRAIN && bad->sample == VICTIM);
            assert_non_null(strstr(bad->reason, "ends after 50 of the"));
            /* Held, not given up, until the answer. */
            assert_true(reports > 0 || jobs_count(&r->jobs[bad->loader], JOB_BLOCKED) > 0);
            if (reports++ == 0)
                for (int i = 0; i < LOADERS; i++)
                    assert_int_equal(jobs_ledger(&r->jobs[i], &entry), 0);
        }
    }
    assert_true(reports > 0);
    substitutes_t ledger;
    substitutes_init(&ledger);
    assert_int_equal(substitutes_add(&ledger, &entry), 0);
    check_stream(r, &ledger);
    substitutes_fini(&ledger);
    entry.sample = TRAIN;
    assert_int_equal(jobs_ledger(&r->jobs[0], &entry), ERR_FAILED);
}

/* ---- every way of going bad between the scan and training ---- */

/* What is said of sample i of training, spoiled in way i. */
static const char *const bad_words[] = {
    "No such file",
    "ends after 50 of the",
    "has grown",
    "neither a JPEG nor",
    "Is a directory",
    "not a file any more",
    "Too many levels of symbolic links",
};
enum { BAD_KINDS = SCRATCH_WAYS, GOOD = 8 };

/* The coordinator's part: an entry for each sample that is reported, whichever loader is first. */
static void answer(run_t *r, uint32_t *known, substitutes_t *ledger, uint32_t *reports)
{
    bus_message_t message;
    while (bus_receive(r->coordinator, 0, &message) == 1) {
        wire_bad_sample_t bad;
        memcpy(&bad, message.frame, sizeof bad);
        assert_int_equal(message.type, WIRE_BAD_SAMPLE);
        assert_true(bad.split == CATALOG_TRAIN && bad.sample < BAD_KINDS);
        assert_non_null(strstr(bad.reason, bad_words[bad.sample]));
        ++*reports;
        if (*known & 1u << bad.sample)
            continue;
        *known |= 1u << bad.sample;
        wire_ledger_t entry;
        memset(&entry, 0, sizeof entry);
        wire_begin(&entry, WIRE_LEDGER, sizeof entry);
        entry.split = CATALOG_TRAIN;
        entry.sample = bad.sample;
        entry.substitute = GOOD;
        entry.number = ledger->count + 1;
        assert_int_equal(substitutes_add(ledger, &entry), 0);
        for (int i = 0; i < LOADERS; i++)
            assert_int_equal(jobs_ledger(&r->jobs[i], &entry), 0);
    }
}

static void test_bad_kinds(void **state)
{
    run_t *r = *state;
    uint32_t known = 0, reports = 0;
    substitutes_t ledger;
    substitutes_init(&ledger);
    for (int i = 0; i < BAD_KINDS; i++)
        scratch_spoil(
            catalog_path(r->catalog, catalog_sample(r->catalog, CATALOG_TRAIN, (uint32_t)i)), i);
    announce(r, 3);
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    while (r->batches_seen < RANKS * plan_batches(&r->plan)) {
        assert_true(clock_ns() < deadline);
        for (int i = 0; i < LOADERS; i++)
            turn(r, i);
        consume(r);
        answer(r, &known, &ledger, &reports);
    }
    assert_int_equal(known, (1u << BAD_KINDS) - 1);
    assert_true(reports >= BAD_KINDS);
    check_stream(r, &ledger);
    substitutes_fini(&ledger);
    assert_true(scratch_descriptors(r->folder) <= LOADERS); /* the last close may be on its way */
}

/* ---- decoders' warnings ---- */

/* Damage in the middle of the compressed data: it still decodes, with a warning. */
static void damage(const run_t *r, catalog_split_t split, uint32_t sample)
{
    const catalog_sample_t *s = catalog_sample(r->catalog, split, sample);
    FILE *file = fopen(catalog_path(r->catalog, s), "r+");
    assert_true(file && fseek(file, (long)s->file_bytes - 60, SEEK_SET) == 0);
    assert_true(fwrite("\xFF\xD0\xFF\xD1\xFF\xD2\xFF\xD3", 1, 8, file) == 8 && fclose(file) == 0);
}

/* Each loader tells each file once, however often it decodes it; the pixels are as they are. */
static void test_warned(void **state)
{
    run_t *r = *state;
    uint32_t told[CATALOG_SPLITS][TRAIN] = {{0}}, files = 0;
    substitutes_t none;
    substitutes_init(&none);
    for (uint32_t i = 0; i < TRAIN; i += 2)
        damage(r, CATALOG_TRAIN, i);
    damage(r, CATALOG_VAL, 1);
    announce(r, 3);
    run_all(r, LOADERS);
    check_stream(r, &none);
    bus_message_t message;
    const uint32_t all = (TRAIN + 1) / 2 + 1;
    while (bus_receive(r->coordinator, files < all ? DEADLINE_MS : 50, &message) == 1) {
        wire_warned_t m;
        memcpy(&m, message.frame, sizeof m);
        assert_int_equal(message.type, WIRE_WARNED);
        assert_true(m.split < CATALOG_SPLITS && m.sample < TRAIN && m.warnings > 0);
        assert_true(m.text[0] && (m.split == CATALOG_TRAIN ? m.sample % 2 == 0 : m.sample == 1));
        files += told[m.split][m.sample]++ == 0;
        assert_true(told[m.split][m.sample] <= LOADERS);
    }
    assert_int_equal(files, all);
}

/* The other policy: such a file is bad. */
static void test_warned_skip(void **state)
{
    run_t *r = *state;
    bus_message_t message;
    for (int i = 0; i < LOADERS; i++)
        r->workers[i].options.on_warning = OPT_WARN_SKIP;
    for (uint32_t i = 0; i < TRAIN; i++)
        damage(r, CATALOG_TRAIN, i);
    announce(r, 1);
    uint64_t deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    while (bus_receive(r->coordinator, 0, &message) != 1) {
        assert_true(clock_ns() < deadline);
        turn(r, 0);
    }
    const wire_bad_sample_t *bad = message.frame;
    assert_int_equal(message.type, WIRE_BAD_SAMPLE);
    assert_non_null(strstr(bad->reason, "on_warning=skip"));
    assert_true(bad->probed == 0 && jobs_count(&r->jobs[0], JOB_BLOCKED) > 0);
}

/* ---- a long life ---- */

/* Opened and closed with cells under way, again and again, and over many epochs: neither
 * descriptors nor memory grow. */
static void test_nothing_grows(void **state)
{
    run_t *r = *state;
    int before = 0;
    announce(r, 3);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < LOADERS; i++) {
            for (int k = 0; k < 2 + round % 3; k++)
                turn(r, i);
            jobs_close(&r->jobs[i]);
            assert_int_equal(jobs_open(&r->jobs[i], &r->workers[i]), 0);
        }
        consume(r);
        if (round == 4)
            before = scratch_descriptors("");
    }
    assert_true(scratch_descriptors("") <= before + LOADERS);
}

/* A loader alone for three epochs: what it holds after the first serves it to the end. */
static void test_memory_stays(void **state)
{
    run_t *r = *state;
    uint64_t first = 0, last = 0, deadline = clock_ns() + DEADLINE_MS * 1000000ull;
    announce(r, 3);
    while (r->batches_seen < RANKS * plan_batches(&r->plan)) {
        assert_true(clock_ns() < deadline);
        turn(r, 0);
        consume(r);
        last = atomic_load(&r->pages[0].memory_bytes);
        if (ring_tail(r->rings[0]) <= plan_batches(&r->plan) / 3)
            first = last;
    }
    /* Chance decides which buffers have met the largest file and picture by then. */
    assert_true(first > 0 && last >= first && last <= first + first / 2);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, begin, end)

static void test_readme(void **state)
{
    (void)state;
    static readme_table_t table;
    if (readme_table("loader/README.md", "## States of a job", &table) < 0) {
        print_message("no loader/README.md: set SLUICE_TESTS\n");
        skip();
    }
    assert_int_equal(table.rows, JOB_TRANSITION_COUNT);
    for (int i = 0; i < JOB_TRANSITION_COUNT; i++) {
        assert_string_equal(table.cell[i][0], job_transitions[i].from_name);
        assert_string_equal(table.cell[i][1], job_transitions[i].to_name);
        assert_string_equal(table.cell[i][2], job_transitions[i].function);
        assert_string_equal(table.cell[i][3], job_transitions[i].when);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_claims),       CASE(test_backpressure),       CASE(test_two_loaders),
        CASE(test_one_leaves),   CASE(test_bad_sample),         CASE(test_bad_kinds),
        CASE(test_warned),       CASE(test_warned_skip),        CASE(test_nothing_grows),
        CASE(test_memory_stays), cmocka_unit_test(test_readme),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
