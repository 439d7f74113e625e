/* The scan in this process over scratch data sets: what the catalogue then holds, and each reason.
 */
#include "loader/scan.h"

#include "shm/err.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static char root[SCRATCH_PATH];
static options_t options;

static int set_up(void **state)
{
    (void)state;
    scratch_begin(root);
    options_default(&options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_end(root);
    return 0;
}

static void write_yaml(const char *text)
{
    snprintf(options.data, sizeof options.data, "%s", scratch_text(root, "data.yaml", text));
}

/* Scans and opens the catalogue; NULL and err_text when the scan refuses the data set. */
static catalog_t *scan(int threads, int want)
{
    catalog_builder_t *builder = NULL;
    catalog_t *catalog = NULL;
    assert_int_equal(catalog_builder_new(&builder), 0);
    int rc = scan_build(&options, threads, builder, NULL, NULL);
    if (rc != want)
        print_error("%s\n", rc ? err_text() : "(taken)");
    assert_int_equal(rc, want);
    if (rc == 0) {
        int fd = memfd_create("catalog", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(catalog_builder_write(builder, fd), 0);
        assert_int_equal(catalog_open(fd, &catalog), 0);
        close(fd);
    }
    catalog_builder_free(&builder);
    return catalog;
}

static const char *path_of(const catalog_t *c, catalog_split_t split, uint32_t i)
{
    return catalog_path(c, catalog_sample(c, split, i)) + strlen(root);
}

/* The reason recorded for a path that ends so, or NULL. */
static const char *issue_of(const catalog_t *c, catalog_issue_kind_t kind, const char *end)
{
    for (uint32_t i = 0; i < catalog_issues(c); i++) {
        const catalog_issue_t *issue = catalog_issue(c, i);
        const char *path = catalog_string(c, issue->path);
        size_t n = strlen(path), m = strlen(end);
        if (issue->kind == kind && n >= m && strcmp(path + n - m, end) == 0)
            return catalog_string(c, issue->reason);
    }
    return NULL;
}

static void expect_issue(const catalog_t *c, catalog_issue_kind_t kind, const char *end,
                         const char *word)
{
    const char *reason = issue_of(c, kind, end);
    if (!reason || !strstr(reason, word))
        print_error("%s: '%s' is not in '%s'\n", end, word, reason ? reason : "(no issue)");
    assert_non_null(reason);
    assert_non_null(strstr(reason, word));
}

static const char plain[] = "train: images/train\nval: images/val\nnames: [a, b]\n";
static const char box[] = "1 0.5 0.5 0.25 0.25\n";

static void write_plain(void)
{
    scratch_write_jpeg(root, "images/train/b.jpg", 64, 48);
    scratch_text(root, "labels/train/b.txt", box);
    scratch_write_jpeg(root, "images/train/a.jpg", 32, 32);
    scratch_write_jpeg(root, "images/val/wide.jpg", 90, 30);
    scratch_write_jpeg(root, "images/val/tall.jpg", 30, 90);
    scratch_write_jpeg(root, "images/val/square2.jpg", 40, 40);
    scratch_write_jpeg(root, "images/val/square1.jpg", 80, 80);
    scratch_text(root, "labels/val/tall.txt", "0 0.5 0.5 0.25 0.25\n1 0.2 0.2 0.1 0.1\n");
    write_yaml(plain);
}

static void test_plain(void **state)
{
    (void)state;
    write_plain();
    catalog_t *c = scan(1, 0);
    assert_int_equal(catalog_classes(c), 2);
    assert_string_equal(catalog_class_name(c, 1), "b");
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), 2);
    assert_int_equal(catalog_backgrounds(c, CATALOG_TRAIN), 1);
    assert_string_equal(path_of(c, CATALOG_TRAIN, 0), "/images/train/a.jpg");
    const catalog_sample_t *s = catalog_sample(c, CATALOG_TRAIN, 1);
    assert_true(s->width == 64 && s->height == 48 && s->orientation == 1 && !s->warned);
    assert_true(s->format == CATALOG_JPEG && s->n_labels == 1);
    assert_true(catalog_labels(c, s)->cls == 1 && catalog_labels(c, s)->w == 0.25f);
    /* val: by height over width, then by path */
    assert_string_equal(path_of(c, CATALOG_VAL, 0), "/images/val/wide.jpg");
    assert_string_equal(path_of(c, CATALOG_VAL, 1), "/images/val/square1.jpg");
    assert_string_equal(path_of(c, CATALOG_VAL, 2), "/images/val/square2.jpg");
    assert_string_equal(path_of(c, CATALOG_VAL, 3), "/images/val/tall.jpg");
    assert_int_equal(catalog_max_labels(c), 2);
    assert_int_equal(catalog_issues(c), 0);
    catalog_close(&c);
}

/* A raw file under a name, cut or padded. */
static void write_cut(const char *name, size_t width, long change)
{
    size_t bytes;
    uint8_t *file = scratch_jpeg((int)width, 48, 80, &bytes);
    if (change > 0) {
        file = realloc(file, bytes + (size_t)change);
        assert_non_null(file);
        memset(file + bytes, 0, (size_t)change);
    }
    scratch_write(root, name, file, (size_t)((long)bytes + change));
    free(file);
}

static void write_odd(void)
{
    write_plain();
    write_cut("images/train/cut.jpg", 64, -200);
    write_cut("images/train/padded.jpg", 64, 5);
    scratch_write(root, "images/train/headonly.jpg", "\xFF\xD8\xFF\xE0\0\020JFIF", 10);
    scratch_text(root, "images/train/empty.jpg", "");
    scratch_text(root, "images/train/text.jpg", "this is no picture at all");
    scratch_text(root, "images/train/x.tif", "II*");
    scratch_write_jpeg(root, "images/train/small.jpg", 9, 40);
    scratch_write_jpeg(root, "images/train/named.png", 20, 20);
    scratch_write_jpeg(root, "images/train/badlabel.jpg", 20, 20);
    scratch_text(root, "labels/train/badlabel.txt", "0 0.5 0.5 0.1 0.1\n7 0.5 0.5 0.1 0.1\n");
    scratch_write_jpeg(root, "images/train/twice.jpg", 20, 20);
    scratch_text(root, "labels/train/twice.txt", "0 0.5 0.5 0.1 0.1\n0 0.5 0.5 0.1 0.1\n");
    scratch_write_jpeg(root, "images/train/it's \"q\" \xC3\xA9.jpg", 20, 20);
    scratch_text(root, "labels/train/it's \"q\" \xC3\xA9.txt", box);
}

static void test_odd_files(void **state)
{
    (void)state;
    write_odd();
    catalog_t *c = scan(3, 0);
    /* a, b, cut, it's, named, padded, twice */
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), 7);
    assert_string_equal(path_of(c, CATALOG_TRAIN, 3), "/images/train/it's \"q\" \xC3\xA9.jpg");
    assert_int_equal(catalog_sample(c, CATALOG_TRAIN, 3)->n_labels, 1);
    assert_int_equal(catalog_sample(c, CATALOG_TRAIN, 2)->warned, 1);
    assert_int_equal(catalog_sample(c, CATALOG_TRAIN, 4)->format, CATALOG_JPEG);
    expect_issue(c, CATALOG_DECODER, "/cut.jpg", "Premature end");
    expect_issue(c, CATALOG_WARNED, "/padded.jpg", "bytes follow");
    expect_issue(c, CATALOG_WARNED, "/twice.jpg", "twice.txt: 1 duplicate row left out");
    expect_issue(c, CATALOG_DROPPED, "/headonly.jpg", "no image");
    expect_issue(c, CATALOG_DROPPED, "/empty.jpg", "empty");
    expect_issue(c, CATALOG_DROPPED, "/text.jpg", "neither a JPEG nor a PNG nor a BMP");
    expect_issue(c, CATALOG_DROPPED, "/x.tif", "format not supported: .tif");
    expect_issue(c, CATALOG_DROPPED, "/small.jpg", "9 x 40 pixels: both sides");
    expect_issue(c, CATALOG_DROPPED, "/badlabel.jpg", "labels/train/badlabel.txt:2: class 7");
    assert_int_equal(catalog_issues(c), 9);
    catalog_close(&c);
}

static void test_warning_skip(void **state)
{
    (void)state;
    write_odd();
    options.on_warning = OPT_WARN_SKIP;
    catalog_t *c = scan(3, 0);
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), 6);
    expect_issue(c, CATALOG_DROPPED, "/cut.jpg", "on_warning=skip");
    catalog_close(&c);
}

static void test_limits(void **state)
{
    (void)state;
    write_plain();
    options.max_pixels = 0.003; /* 64 x 48 is above it */
    catalog_t *c = scan(0, ERR_DATA);
    assert_null(c); /* the only label file was b's */
    scratch_text(root, "labels/train/a.txt", box);
    options.max_pixels = 0.0064;
    c = scan(0, 0);
    assert_int_equal(catalog_count(c, CATALOG_VAL), 4);
    catalog_close(&c);
    options.max_pixels = 0.0063;
    c = scan(0, 0);
    assert_int_equal(catalog_count(c, CATALOG_VAL), 3);
    expect_issue(c, CATALOG_DROPPED, "/square1.jpg", "max_pixels");
    catalog_close(&c);
}

/* A data set beyond the bound is not decoded: damage within a file that looks whole is left to the
 * loaders, a missing end is still found, and so is a BMP that is shorter than its header says. */
static void test_large(void **state)
{
    (void)state;
    size_t bytes;
    char path[SCRATCH_PATH];
    write_odd();
    uint8_t *file = scratch_jpeg(200, 200, 80, &bytes);
    memcpy(file + bytes - 300, "\xFF\xD9", 2); /* an end before the end: a warning */
    scratch_write(root, "images/train/damaged.jpg", file, bytes);
    free(file);
    catalog_t *c = scan(0, 0);
    expect_issue(c, CATALOG_DECODER, "/damaged.jpg", "decodes with");
    catalog_close(&c);
    /* 7000 x 7000 x 3 bytes of hole in a sparse file */
    uint8_t bmp[54] = {'B',         'M',         [10] = 54,   [14] = 40, [18] = 0x58,
                       [19] = 0x1B, [22] = 0x58, [23] = 0x1B, [26] = 1,  [28] = 24};
    snprintf(path, sizeof path, "%s", scratch_write(root, "images/val/large.bmp", bmp, sizeof bmp));
    assert_int_equal(truncate(path, 54 + 7000L * 7000 * 3), 0);
    c = scan(0, 0);
    assert_null(issue_of(c, CATALOG_DECODER, "/damaged.jpg"));
    assert_null(issue_of(c, CATALOG_DROPPED, "/large.bmp"));
    expect_issue(c, CATALOG_DECODER, "/cut.jpg", "Premature end");
    catalog_close(&c);
    assert_int_equal(truncate(path, 54 + 7000L * 7000 * 3 - 1), 0);
    c = scan(0, 0);
    expect_issue(c, CATALOG_DROPPED, "/large.bmp", "cut short");
    catalog_close(&c);
}

/* Nothing depends on the number of threads. */
static void test_threads(void **state)
{
    (void)state;
    write_odd();
    for (int i = 0; i < 40; i++) {
        char name[64];
        snprintf(name, sizeof name, "images/val/n%02d.jpg", i);
        scratch_write_jpeg(root, name, 20 + i % 5, 20 + i % 3);
    }
    catalog_t *one = scan(1, 0), *many = scan(8, 0);
    assert_true(catalog_digest(one) == catalog_digest(many));
    assert_int_equal(catalog_issues(one), catalog_issues(many));
    for (uint32_t i = 0; i < catalog_issues(one); i++)
        assert_string_equal(catalog_string(one, catalog_issue(one, i)->reason),
                            catalog_string(many, catalog_issue(many, i)->reason));
    catalog_close(&one);
    catalog_close(&many);
}

static void test_fraction_and_single_class(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        char name[64];
        snprintf(name, sizeof name, "images/train/%d.jpg", i);
        scratch_write_jpeg(root, name, 20, 20);
        snprintf(name, sizeof name, "labels/train/%d.txt", i);
        scratch_text(root, name, "7 0.5 0.5 0.5 0.5\n");
    }
    scratch_write_jpeg(root, "images/val/v.jpg", 20, 20);
    write_yaml(plain);
    options.single_cls = 1;
    options.fraction = 0.5; /* round(2.5) is 2 */
    catalog_t *c = scan(0, 0);
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), 2);
    assert_int_equal(catalog_count(c, CATALOG_VAL), 1);
    assert_int_equal(catalog_classes(c), 1);
    assert_string_equal(catalog_class_name(c, 0), "item");
    assert_true(catalog_labels(c, catalog_sample(c, CATALOG_TRAIN, 0))->cls == 0);
    catalog_close(&c);
    options.fraction = 0.05;
    assert_null(scan(0, ERR_DATA));
    assert_non_null(strstr(err_text(), "fraction leaves none of the 5"));
}

static void test_polygons(void **state)
{
    (void)state;
    write_plain();
    scratch_text(root, "labels/train/a.txt", "0 0.1 0.1 0.5 0.1 0.5 0.5\n");
    scratch_text(root, "labels/val/wide.txt", "0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.6\n");
    scratch_text(root, "labels/val/tall.txt", "");
    catalog_t *c = scan(0, 0);
    /* train mixes boxes and polygons: all are boxes; val does not */
    assert_int_equal(catalog_labels(c, catalog_sample(c, CATALOG_TRAIN, 0))->n_points, 0);
    expect_issue(c, CATALOG_WARNED, "/images/train", "1 of 2 labels are polygons");
    const catalog_label_t *l = catalog_labels(c, catalog_sample(c, CATALOG_VAL, 0));
    assert_int_equal(l->n_points, 4);
    assert_true(catalog_points(c, l)[7] == 0.6f);
    catalog_close(&c);
}

static void test_unusable(void **state)
{
    (void)state;
    scratch_folder(root, "images/train");
    scratch_folder(root, "images/val");
    write_yaml(plain);
    assert_null(scan(0, ERR_DATA));
    assert_non_null(strstr(err_text(), "no train image: looked for .jpg"));
    assert_non_null(strstr(err_text(), "images/train"));
    scratch_text(root, "images/train/x.jpg", "nothing");
    assert_null(scan(0, ERR_DATA));
    assert_non_null(strstr(err_text(), "all 1"));
    assert_non_null(strstr(err_text(), "x.jpg: neither"));
    scratch_write_jpeg(root, "images/train/y.jpg", 20, 20);
    assert_null(scan(0, ERR_DATA));
    assert_non_null(strstr(err_text(), "no label file"));
    assert_non_null(strstr(err_text(), "labels/train/y.txt"));
    scratch_text(root, "labels/train/y.txt", box);
    assert_null(scan(0, ERR_DATA));
    assert_non_null(strstr(err_text(), "no val image"));
    scratch_write_jpeg(root, "images/val/y.jpg", 20, 20);
    /* an empty label file is one: only background, which is said */
    scratch_text(root, "labels/train/y.txt", "");
    catalog_t *c = scan(0, 0);
    expect_issue(c, CATALOG_WARNED, "/images/train", "only background");
    catalog_close(&c);
    snprintf(options.data, sizeof options.data, "/nowhere/data.yaml");
    assert_null(scan(0, ERR_CONFIG));
}

static int give_up(void *user, uint64_t done, uint64_t of)
{
    (void)user;
    assert_true(done <= of);
    return err_set(ERR_GONE, "told to stop");
}

static void test_give_up(void **state)
{
    (void)state;
    write_plain();
    catalog_builder_t *builder = NULL;
    assert_int_equal(catalog_builder_new(&builder), 0);
    assert_int_equal(scan_build(&options, 2, builder, give_up, NULL), ERR_GONE);
    catalog_builder_free(&builder);
}

/* The odd files as a data set: each is used, remarked or named with its reason; none is lost. */
static void test_shared_odd(void **state)
{
    (void)state;
    const char *odd = scratch_data("odd");
    if (!odd)
        skip();
    /* No file of these has labels, which the scan would refuse: one image of ours has. */
    scratch_write_jpeg(root, "images/own.jpg", 20, 20);
    scratch_text(root, "labels/own.txt", "0 0.5 0.5 0.5 0.5\n");
    char *absolute = realpath(odd, NULL), yaml[2 * SCRATCH_PATH];
    snprintf(
        yaml, sizeof yaml,
        "path: %s\ntrain: [broken, warn, unsupported, exif, '%.4000s/images']\nval: good\nnc: 1\n",
        absolute, root);
    free(absolute);
    write_yaml(yaml);
    catalog_t *c = scan(0, 0);
    uint32_t dropped = 0, warned = 0;
    for (uint32_t i = 0; i < catalog_issues(c); i++) {
        const catalog_issue_t *issue = catalog_issue(c, i);
        const char *path = catalog_string(c, issue->path);
        int is_dropped = issue->kind == CATALOG_DROPPED;
        dropped += is_dropped;
        warned += issue->kind == CATALOG_DECODER;
        assert_int_equal(issue->kind == CATALOG_DECODER, !is_dropped && strstr(path, "/warn/"));
        assert_true(is_dropped || !strstr(path, "/broken/"));
        print_message("    %s %s: %s\n", is_dropped ? "dropped" : "warned", path,
                      catalog_string(c, issue->reason));
    }
    assert_int_equal(dropped + catalog_count(c, CATALOG_TRAIN) + catalog_count(c, CATALOG_VAL),
                     32 + 16 + 1 + 8 + 20 + 1);
    /* all of broken and unsupported, and what has fewer than 10 pixels a side in warn and good */
    assert_int_equal(dropped, 32 + 1 + 4 + 4);
    assert_int_equal(warned, 16 - 4);
    expect_issue(c, CATALOG_DROPPED, "/monkey12.jpg", "precision 12");
    expect_issue(c, CATALOG_DROPPED, "/jpg-size-1x1.jpg", "both sides");
    expect_issue(c, CATALOG_DECODER, "/truncated_jpeg.jpg", "Premature end");
    catalog_close(&c);
}

int main(void)
{
#define SCAN_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        SCAN_TEST(test_plain),
        SCAN_TEST(test_odd_files),
        SCAN_TEST(test_warning_skip),
        SCAN_TEST(test_limits),
        SCAN_TEST(test_large),
        SCAN_TEST(test_threads),
        SCAN_TEST(test_fraction_and_single_class),
        SCAN_TEST(test_polygons),
        SCAN_TEST(test_unusable),
        SCAN_TEST(test_give_up),
        SCAN_TEST(test_shared_odd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
