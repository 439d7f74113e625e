/* data.yaml and the listing of images (facts/yolo.md 7.1 to 7.3), in scratch folders.
 */
#include "loader/dataset.h"
#include "loader/listing.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[SCRATCH_PATH];

static int set_up(void **state)
{
    (void)state;
    scratch_begin(root);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_end(root);
    return 0;
}

static dataset_t *open_ok(const char *yaml)
{
    dataset_t *d = NULL;
    int rc = dataset_open(scratch_text(root, "data.yaml", yaml), &d);
    if (rc < 0)
        print_error("%s\n", err_text());
    assert_int_equal(rc, 0);
    return d;
}

static void refuses(const char *yaml, const char *word)
{
    dataset_t *d = NULL;
    int rc = dataset_open(scratch_text(root, "data.yaml", yaml), &d);
    if (rc == 0 || !strstr(err_text(), word))
        print_error("'%s' is not in: %s\n", word, rc ? err_text() : "(taken)");
    assert_int_equal(rc, ERR_DATA);
    assert_non_null(strstr(err_text(), word));
    assert_null(d);
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void test_names(void **state)
{
    (void)state;
    scratch_folder(root, "t");
    dataset_t *d = open_ok("train: t\nval: t\nnames: [a, 'b c', \"\xC3\xA4\"]\n");
    assert_int_equal(d->names.count, 3);
    assert_string_equal(d->names.items[1], "b c");
    assert_string_equal(d->names.items[2], "\xC3\xA4");
    dataset_free(&d);
    d = open_ok("train: t\nvalidation: t\nnc: 2.0\nnames: {1: one, 0: null_}\n");
    assert_string_equal(d->names.items[1], "one");
    dataset_free(&d);
    d = open_ok("train: t\nval: t\nnc: 3\n");
    assert_string_equal(d->names.items[2], "class_2");
    dataset_free(&d);
    refuses("train: t\nval: t\n", "neither 'names' nor 'nc'");
    refuses("train: t\nval: t\nnc: 3\nnames: [a]\n", "data.yaml:3: nc is 3, but 1 names");
    refuses("train: t\nval: t\nnames: {0: a, 2: b}\n", "class index 2");
    refuses("train: t\nval: t\nnames: {0: a, x: b}\n", "'x' is not a whole number");
    refuses("train: t\nval: t\nnc: two\n", "'two' is not a whole number");
    refuses("train: t\nval: t\nnc: 0\n", "must be 1");
    refuses("train: t\nval: t\nnames: a\n", "names must be");
    refuses("train: t\nval: t\nnc: 1\nchannels: 1\n", "channels is 1");
}

static void test_paths(void **state)
{
    (void)state;
    scratch_folder(root, "sub dir/images/tr'ain");
    scratch_folder(root, "val");
    dataset_t *d = open_ok("path: 'sub dir'\ntrain: \"images/tr'ain\"\nval: ../val\nnc: 1\n");
    assert_true(d->entries[CATALOG_TRAIN].items[0][0] == '/');
    assert_true(ends_with(d->entries[CATALOG_TRAIN].items[0], "/sub dir/images/tr'ain"));
    assert_true(ends_with(d->entries[CATALOG_VAL].items[0], "/val"));
    dataset_free(&d);
    /* a leading ../ that leads nowhere is retried without it */
    d = open_ok("train: ../val\nval: [val, ../val]\nnc: 1\n");
    assert_true(ends_with(d->entries[CATALOG_TRAIN].items[0], "/val"));
    assert_int_equal(d->entries[CATALOG_VAL].count, 2);
    dataset_free(&d);
    refuses("train: nowhere\nval: val\nnc: 1\n", "nowhere' does not exist");
    refuses("val: val\nnc: 1\n", "'train' is missing");
    refuses("train: val\nnc: 1\n", "'val' is missing");
    refuses("train: []\nval: val\nnc: 1\n", "empty list");
    refuses("train: {a: b}\nval: val\nnc: 1\n", "must be a folder");
    refuses("path: missing\ntrain: val\nval: val\nnc: 1\n", "is not a folder");
    refuses("just a text\n", "needs the keys");
    refuses("train: [unclosed\n", "data.yaml");
    assert_int_equal(dataset_open("/nowhere/data.yaml", &d), ERR_CONFIG);
    assert_int_equal(dataset_open(root, &d), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "folder"));
}

/* path: "." is the YAML's folder, from wherever the command runs; a path that is only right from
 * the current directory works too. */
static void test_current_directory(void **state)
{
    (void)state;
    char here[SCRATCH_PATH], yaml[SCRATCH_PATH];
    assert_non_null(getcwd(here, sizeof here));
    scratch_folder(root, "set/images");
    scratch_folder(root, "cwd/elsewhere/images");
    snprintf(yaml, sizeof yaml, "%s",
             scratch_text(root, "set/data.yaml", "path: .\ntrain: images\nval: images\nnc: 1\n"));
    dataset_t *d = NULL;
    char cwd[SCRATCH_PATH];
    snprintf(cwd, sizeof cwd, "%.4000s/cwd", root);
    assert_int_equal(chdir(cwd), 0);
    assert_int_equal(dataset_open(yaml, &d), 0);
    assert_true(ends_with(d->entries[0].items[0], "/set/images"));
    dataset_free(&d);
    assert_int_equal(dataset_open("../set/data.yaml", &d), 0);
    assert_true(d->file[0] == '/');
    assert_true(ends_with(d->entries[0].items[0], "/set/images"));
    dataset_free(&d);
    scratch_text(root, "set/data.yaml", "path: elsewhere\ntrain: images\nval: images\nnc: 1\n");
    assert_int_equal(dataset_open(yaml, &d), 0);
    assert_true(ends_with(d->entries[0].items[0], "/cwd/elsewhere/images"));
    dataset_free(&d);
    assert_int_equal(chdir(here), 0);
}

static void expect_files(const listing_t *l, const char *const *ends, uint32_t n)
{
    for (uint32_t i = 0; i < l->files.count; i++)
        if (i >= n || !ends_with(l->files.items[i], ends[i]))
            print_error("file %u is %s\n", i, l->files.items[i]);
    assert_int_equal(l->files.count, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(l->files.items[i][0] == '/');
        assert_true(ends_with(l->files.items[i], ends[i]));
    }
}

static void test_folders(void **state)
{
    (void)state;
    scratch_text(root, "t/images/b.JPG", "x");
    scratch_text(root, "t/images/deep/er/a 'q' \".png", "x");
    scratch_text(root, "t/images/\xC3\xA9t\xC3\xA9.bmp", "x");
    scratch_text(root, "t/images/Z.jpeg", "x");
    scratch_text(root, "t/images/old.TIF", "x");
    scratch_text(root, "t/images/new.webp", "x");
    scratch_text(root, "t/images/notes.txt", "x");
    scratch_text(root, "t/images/noextension", "x");
    scratch_text(root, "t/images/.hidden.jpg", "x");
    scratch_text(root, "t/images/.cache/c.jpg", "x");
    scratch_folder(root, "t/images/folder.jpg");
    char link[SCRATCH_PATH];
    snprintf(link, sizeof link, "%.4000s/t/images/loop", root);
    assert_int_equal(symlink(".", link), 0);
    snprintf(link, sizeof link, "%.4000s/t/images/dangling.jpg", root);
    assert_int_equal(symlink("nowhere", link), 0);
    dataset_t *d = open_ok("train: t\nval: t/images/deep\nnc: 1\n");
    listing_t l;
    assert_int_equal(listing_make(d, CATALOG_TRAIN, NULL, NULL, &l), 0);
    const char *const ends[] = {"/Z.jpeg", "/b.JPG", "/deep/er/a 'q' \".png",
                                "/\xC3\xA9t\xC3\xA9.bmp"};
    expect_files(&l, ends, 4);
    assert_int_equal(l.refused.count, 4);
    assert_true(ends_with(l.refused.items[0], "/dangling.jpg"));
    assert_true(ends_with(l.refused.items[1], "/loop"));
    assert_true(ends_with(l.refused.items[2], "/new.webp"));
    assert_non_null(strstr(l.reasons.items[2], "format not supported: .webp"));
    assert_non_null(strstr(l.reasons.items[3], "format not supported: .TIF"));
    listing_fini(&l);
    assert_int_equal(listing_make(d, CATALOG_VAL, NULL, NULL, &l), 0);
    assert_int_equal(l.files.count, 1);
    listing_fini(&l);
    dataset_free(&d);
}

static void test_lists(void **state)
{
    (void)state;
    char text[3 * SCRATCH_PATH];
    scratch_text(root, "l/a b.jpg", "x");
    scratch_text(root, "l/sub/c.jpg", "x");
    scratch_text(root, "r.png", "x");
    scratch_text(root, "more/d.jpg", "x");
    snprintf(text, sizeof text,
             "\xEF\xBB\xBF./a b.jpg\r\nsub/c.jpg\n\n  \nr.png\n%.4000s/l/a "
             "b.jpg\n./gone.jpg\nsub/x.tiff\n"
             "readme.md",
             root);
    scratch_text(root, "l/sub/x.tiff", "x");
    scratch_text(root, "l/list.txt", text);
    dataset_t *d = open_ok("train: [l/list.txt, more]\nval: l/list.txt\nnc: 1\n");
    listing_t l;
    assert_int_equal(listing_make(d, CATALOG_TRAIN, NULL, NULL, &l), 0);
    const char *const ends[] = {"/l/a b.jpg", "/l/a b.jpg", "/l/sub/c.jpg", "/more/d.jpg",
                                "/r.png"};
    expect_files(&l, ends, 5);
    assert_int_equal(l.refused.count, 3);
    assert_true(ends_with(l.refused.items[0], "/l/gone.jpg"));
    assert_non_null(strstr(l.reasons.items[0], "no such file"));
    assert_true(ends_with(l.refused.items[1], "/l/readme.md"));
    assert_non_null(strstr(l.reasons.items[1], "not an image's"));
    assert_non_null(strstr(l.reasons.items[2], ".tiff"));
    listing_fini(&l);
    dataset_free(&d);
    scratch_write(root, "l/list.txt", "a\0b\n", 4);
    d = open_ok("train: l/list.txt\nval: r.png\nnc: 1\n");
    assert_int_equal(listing_make(d, CATALOG_TRAIN, NULL, NULL, &l), ERR_DATA);
    assert_non_null(strstr(err_text(), "not a text file"));
    assert_int_equal(listing_make(d, CATALOG_VAL, NULL, NULL, &l), ERR_DATA);
    assert_non_null(strstr(err_text(), "neither a folder nor a .txt list"));
    dataset_free(&d);
}

/* A list that is a pipe does not hold the scan; a folder whose path is too long is named, not left
 * out in silence. */
static void test_what_is_no_file(void **state)
{
    (void)state;
    listing_t l;
    char path[SCRATCH_PATH + 32], part[201];
    scratch_folder(root, "deep/images");
    scratch_write_jpeg(root, "deep/images/a.jpg", 16, 16);
    snprintf(path, sizeof path, "%s/deep/pipe.txt", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    dataset_t *d = open_ok("path: deep\ntrain: pipe.txt\nval: images\nnames: [a]\n");
    assert_int_equal(listing_make(d, CATALOG_TRAIN, NULL, NULL, &l), ERR_DATA);
    assert_non_null(strstr(err_text(), "pipe.txt: not a file"));
    dataset_free(&d);

    memset(part, 'y', sizeof part - 1);
    part[sizeof part - 1] = '\0';
    int here = open(".", O_RDONLY | O_DIRECTORY), depth = 0;
    snprintf(path, sizeof path, "%s/deep/images", root);
    assert_int_equal(chdir(path), 0);
    for (size_t n = strlen(path); n <= PATH_MAX; n += sizeof part, depth++)
        assert_true(mkdir(part, 0700) == 0 && chdir(part) == 0);
    assert_int_equal(fchdir(here), 0);
    d = open_ok("path: deep\ntrain: images\nval: images\nnames: [a]\n");
    assert_int_equal(listing_make(d, CATALOG_TRAIN, NULL, NULL, &l), 0);
    assert_int_equal(l.files.count, 1);
    assert_int_equal(l.refused.count, 1);
    assert_non_null(strstr(l.reasons.items[0], "File name too long"));
    listing_fini(&l);
    dataset_free(&d);
    /* Too long for the scratch folder's removal too: from the inside out. */
    assert_int_equal(chdir(path), 0);
    for (int i = 0; i < depth; i++)
        assert_int_equal(chdir(part), 0);
    for (int i = 0; i < depth; i++)
        assert_true(chdir("..") == 0 && rmdir(part) == 0);
    assert_int_equal(fchdir(here), 0);
    close(here);
}

static int seen_then_stop(void *user, uint64_t seen)
{
    uint64_t *last = user;
    assert_true(seen > *last);
    *last = seen;
    return seen >= 512 ? err_set(ERR_GONE, "enough") : 0;
}

/* A listing tells how far it is, and whoever is told can end it. */
static void test_listing_tells(void **state)
{
    (void)state;
    char name[64], line[96], list[64 * 1024] = "";
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof name, "many/%03d.jpg", i);
        scratch_text(root, name, "x");
        snprintf(line, sizeof line, "./%s\n", name);
        strcat(list, line);
    }
    scratch_text(root, "many.txt", list);
    dataset_t *d = open_ok("train: many\nval: many.txt\nnc: 1\n");
    for (int split = 0; split < CATALOG_SPLITS; split++) {
        listing_t l;
        uint64_t seen = 0;
        assert_int_equal(listing_make(d, (catalog_split_t)split, seen_then_stop, &seen, &l),
                         ERR_GONE);
        assert_int_equal(seen, 512);
        assert_int_equal(listing_make(d, (catalog_split_t)split, NULL, NULL, &l), 0);
        assert_int_equal(l.files.count, 600);
        listing_fini(&l);
    }
    dataset_free(&d);
}

static void label_is(const char *image, const char *label)
{
    char *got = listing_label_path(image);
    assert_string_equal(got, label);
    free(got);
}

static void test_label_paths(void **state)
{
    (void)state;
    label_is("/d/images/train/a.jpg", "/d/labels/train/a.txt");
    label_is("/images/x/images/a.b.jpg", "/images/x/labels/a.b.txt");
    label_is("/d/images/images/a.jpg", "/d/images/labels/a.txt");
    label_is("/d/myimages/a.jpg", "/d/myimages/a.txt");
    label_is("/d/images.old/a.PNG", "/d/images.old/a.txt");
    label_is("/d/images/s p 'q'/\xC3\xA9.jpg", "/d/labels/s p 'q'/\xC3\xA9.txt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_names, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_paths, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_current_directory, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folders, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_lists, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_listing_tells, set_up, tear_down),
        cmocka_unit_test(test_what_is_no_file),
        cmocka_unit_test(test_label_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
