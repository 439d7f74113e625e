/* The list of a run that goes on, against a data set that has changed: what keeps its place, what
 * stays out, and what is refused by name. */
#include "loader/scan.h"

#include "control/catalog_block.h"
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

enum { TRAIN = 30, VAL = 12 };

static char root[SCRATCH_PATH];
static options_t options;
static catalog_t *list; /* of the run's beginning */

static const char plain[] = "train: images/train\nval: images/val\nnames: [a, b]\n";

static const char *in(const char *name)
{
    static char path[SCRATCH_PATH + 80];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static const char *image(const char *split, int i)
{
    static char name[80];
    snprintf(name, sizeof name, "images/%s/%02d.jpg", split, i);
    return name;
}

static void write_label(const char *split, int i, const char *text)
{
    char name[80];
    snprintf(name, sizeof name, "labels/%s/%02d.txt", split, i);
    scratch_text(root, name, text);
}

static void write_yaml(const char *text)
{
    snprintf(options.data, sizeof options.data, "%s", scratch_text(root, "data.yaml", text));
}

static int set_up(void **state)
{
    (void)state;
    scratch_begin(root);
    options_default(&options);
    for (int i = 0; i < TRAIN; i++) {
        scratch_write_jpeg(root, image("train", i), 40 + i, 48);
        if (i % 4)
            write_label("train", i, "1 0.5 0.5 0.25 0.25\n0 0.2 0.2 0.1 0.1\n");
    }
    for (int i = 0; i < VAL; i++) {
        scratch_write_jpeg(root, image("val", i), 40 + i * 7 % 5, 48);
        write_label("val", i, "0 0.5 0.5 0.25 0.25\n");
    }
    write_yaml(plain);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    catalog_close(&list);
    scratch_end(root);
    return 0;
}

static catalog_t *scan(const catalog_t *of, int want)
{
    catalog_builder_t *builder = NULL;
    catalog_t *catalog = NULL;
    assert_int_equal(catalog_builder_new(&builder), 0);
    int rc = scan_again(&options, 2, of, builder, NULL, NULL);
    if (rc != want)
        print_error("%s\n", rc ? err_text() : "(taken)");
    assert_int_equal(rc, want);
    if (rc == 0) {
        int fd = memfd_create("catalog", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(catalog_builder_write(builder, fd), 0);
        assert_int_equal(catalog_open(fd, &catalog), 0);
        assert_int_equal(catalog_check_saved(catalog), 0);
        close(fd);
    }
    catalog_builder_free(&builder);
    return catalog;
}

/* Findings of a kind about a path that ends so. */
static int issues(const catalog_t *c, catalog_issue_kind_t kind, const char *end, const char *word)
{
    int n = 0;
    for (uint32_t i = 0; i < catalog_issues(c); i++) {
        const catalog_issue_t *issue = catalog_issue(c, i);
        const char *path = catalog_string(c, issue->path);
        size_t have = strlen(path), want = strlen(end);
        n += issue->kind == kind && have >= want && strcmp(path + have - want, end) == 0 &&
             strstr(catalog_string(c, issue->reason), word);
    }
    return n;
}

/* The scan of a resume gives the list as it was, to the byte of what is drawn from. */
static catalog_t *the_same_list(void)
{
    catalog_t *c = scan(list, 0);
    assert_true(catalog_digest(c) == catalog_digest(list));
    for (int split = 0; split < CATALOG_SPLITS; split++)
        assert_int_equal(catalog_backgrounds(c, (catalog_split_t)split),
                         catalog_backgrounds(list, (catalog_split_t)split));
    return c;
}

static void refused(int code, const char *word, const char *more)
{
    assert_null(scan(list, code));
    if (!strstr(err_text(), word) || !strstr(err_text(), more))
        print_error("'%s', '%s' not in: %s\n", word, more, err_text());
    assert_non_null(strstr(err_text(), word));
    assert_non_null(strstr(err_text(), more));
}

static void what_is_as_it_was_is_taken(void **state)
{
    (void)state;
    list = scan(NULL, 0);
    assert_int_equal(catalog_count(list, CATALOG_TRAIN), TRAIN);
    catalog_t *c = the_same_list();
    assert_int_equal(catalog_issues(c), 0);
    catalog_close(&c);
}

/* In either split, and by whichever way; a second resume has only the first one's list. */
static void what_cannot_be_used_keeps_its_place(void **state)
{
    (void)state;
    list = scan(NULL, 0);
    for (int way = 0; way < SCRATCH_WAYS; way++) {
        scratch_spoil(in(image("train", 3 * way)), way);
        scratch_spoil(in(image("val", way)), way);
    }
    catalog_t *c = the_same_list();
    assert_int_equal(catalog_issues(c), 2 * SCRATCH_WAYS);
    for (int way = 0; way < SCRATCH_WAYS; way++) {
        assert_int_equal(issues(c, CATALOG_KEPT, image("train", 3 * way), ""), 1);
        assert_int_equal(issues(c, CATALOG_KEPT, image("val", way), ""), 1);
    }
    assert_int_equal(issues(c, CATALOG_KEPT, "train/00.jpg", "No such file"), 1);
    assert_int_equal(issues(c, CATALOG_KEPT, "train/06.jpg", "when the run began"), 1);
    catalog_close(&list);
    list = c;
    c = the_same_list();
    assert_int_equal(issues(c, CATALOG_KEPT, "", ""), 2 * SCRATCH_WAYS);
    catalog_close(&c);
}

static void what_lists_name_keeps_its_place(void **state)
{
    (void)state;
    scratch_text(root, "list.txt",
                 "./images/train/03.jpg\n./images/train/01.jpg\n./images/train/03.jpg\n"
                 "./images/train/02.jpg\n");
    write_yaml("train: list.txt\nval: images/val\nnames: [a, b]\n");
    list = scan(NULL, 0);
    assert_int_equal(catalog_count(list, CATALOG_TRAIN), 4); /* one of them twice */
    unlink(in("images/train/03.jpg"));
    catalog_t *c = the_same_list();
    assert_int_equal(issues(c, CATALOG_KEPT, "/03.jpg", "No such file"), 2);
    assert_int_equal(issues(c, CATALOG_DROPPED, "", ""), 0);
    catalog_close(&c);
    /* Also when the line goes with the file; but not when the file is there. */
    scratch_text(root, "list.txt", "./images/train/01.jpg\n./images/train/02.jpg\n");
    c = the_same_list();
    catalog_close(&c);
    scratch_text(root, "list.txt", "./images/train/01.jpg\n");
    refused(ERR_CONFIG, "/02.jpg: it is there, and the data set no longer names it", "1 image is");
}

static void differences_are_refused_by_name(void **state)
{
    (void)state;
    list = scan(NULL, 0);
    write_label("train", 5, "1 0.5 0.5 0.25 0.26\n0 0.2 0.2 0.1 0.1\n");
    refused(ERR_CONFIG, "train/05.jpg: its labels have changed: the same number", "1 image is");
    write_label("train", 5, "1 0.5 0.5 0.25 0.25\n");
    refused(ERR_CONFIG, "05.jpg: its labels have changed: 1 object, and 2 before", "put that back");
    write_label("train", 5, "7 0.5 0.5 0.25 0.25\n");
    refused(ERR_CONFIG, "05.jpg: its labels have changed: ", "05.txt:1: class 7");
    unlink(in("labels/train/05.txt"));
    refused(ERR_CONFIG, "05.jpg: its labels have changed: 0 objects, and 2 before", "new run");
    write_label("train", 5, "1 0.5 0.5 0.25 0.25\n0 0.2 0.2 0.1 0.1\n");
    scratch_write_jpeg(root, "images/val/03.jpg", 90, 48);
    scratch_write_jpeg(root, "images/val/99.jpg", 40, 48);
    refused(ERR_CONFIG, "2 images are", "val/03.jpg: another image: 90 x 48 in ");
    unlink(in("images/val/03.jpg")); /* as the sentence says */
    refused(ERR_CONFIG, "1 image is", "val/99.jpg: it was not there when the run began");
    unlink(in("images/val/99.jpg"));
    write_yaml("train: images/train\nval: images/val\nnames: [a, c]\n");
    refused(ERR_CONFIG, "class 1 of the data set is 'c', and 'b'", "new run");
    write_yaml("train: images/train\nval: images/val\nnames: [a, b, c]\n");
    refused(ERR_CONFIG, "3 classes, and 2 when the run began", "new run");
    write_yaml(plain);
    catalog_t *c = the_same_list();
    assert_int_equal(catalog_issues(c), 1); /* val/03 keeps its place */
    catalog_close(&c);
}

static void what_was_left_out_stays_out(void **state)
{
    (void)state;
    scratch_text(root, "images/train/bad.jpg", "no image");
    scratch_text(root, "images/train/worse.jpg", "no image");
    scratch_write_jpeg(root, "images/val/label.jpg", 40, 40);
    scratch_text(root, "labels/val/label.txt", "9 0.5 0.5 0.1 0.1\n");
    list = scan(NULL, 0);
    assert_int_equal(issues(list, CATALOG_DROPPED, "", ""), 3);
    scratch_write_jpeg(root, "images/train/bad.jpg", 40, 40);
    scratch_text(root, "labels/val/label.txt", "0 0.5 0.5 0.1 0.1\n");
    scratch_text(root, "images/val/new.jpg", "unusable, so that it changes nothing");
    for (int resume = 0; resume < 2; resume++) {
        catalog_t *c = the_same_list();
        assert_int_equal(issues(c, CATALOG_DROPPED, "", ""), 4);
        assert_int_equal(issues(c, CATALOG_DROPPED, "/bad.jpg", "stays out of this run's list"), 1);
        assert_int_equal(issues(c, CATALOG_DROPPED, "/bad.jpg", "neither a JPEG nor"), 1);
        assert_int_equal(issues(c, CATALOG_DROPPED, "/label.jpg", "stays out"), 1);
        assert_int_equal(issues(c, CATALOG_DROPPED, "/worse.jpg", "stays out"), 0);
        assert_int_equal(issues(c, CATALOG_DROPPED, "/new.jpg", "neither a JPEG nor"), 1);
        catalog_close(&c);
    }
}

static void a_storage_that_is_gone_is_named(void **state)
{
    (void)state;
    list = scan(NULL, 0);
    for (int i = 0; i < 9; i++)
        unlink(in(image("train", i)));
    catalog_t *c = the_same_list();
    catalog_close(&c);
    unlink(in(image("train", 20)));
    refused(ERR_DATA,
            "10 of the run's 30 training images cannot be read now, the first: ", "storage");
    for (int i = 0; i < VAL; i++)
        unlink(in(image("val", i)));
    for (int i = 0; i < 9; i++)
        scratch_write_jpeg(root, image("train", i), 40 + i, 48);
    refused(ERR_DATA, "12 of the run's 12 validation images", "resume again");
    char moved[SCRATCH_PATH + 80];
    snprintf(moved, sizeof moved, "%s", in("images/moved"));
    assert_int_equal(rename(in("images/train"), moved), 0);
    refused(ERR_DATA, "the run's list has 42 images; are they", "does not exist");
}

/* The cut stays where it was, whatever is missing before it and whatever comes behind it. */
static void a_fraction_stays(void **state)
{
    (void)state;
    options.fraction = 0.5;
    list = scan(NULL, 0);
    assert_int_equal(catalog_count(list, CATALOG_TRAIN), TRAIN / 2);
    unlink(in(image("train", 4)));
    unlink(in(image("train", TRAIN - 1)));
    scratch_write_jpeg(root, "images/train/zz.jpg", 40, 40);
    catalog_t *c = the_same_list();
    assert_int_equal(catalog_issues(c), 1);
    catalog_close(&c);
    scratch_write_jpeg(root, "images/train/00b.jpg", 40, 40);
    refused(ERR_CONFIG, "/00b.jpg: it was not there", "1 image is");
}

static void polygons_are_compared_as_they_are_used(void **state)
{
    (void)state;
    for (int i = 0; i < TRAIN; i++)
        write_label("train", i, i ? "0 0.1 0.1 0.5 0.1 0.5 0.5\n" : "0 0.5 0.5 0.1 0.1\n");
    for (int i = 0; i < VAL; i++)
        write_label("val", i, "1 0.1 0.1 0.5 0.1 0.5 0.5 0.2 0.4\n0 0.3 0.3 0.4 0.4 0.5 0.3\n");
    list = scan(NULL, 0);
    assert_false(catalog_split_polygons(list, CATALOG_TRAIN)); /* mixed: all are boxes */
    assert_true(catalog_split_polygons(list, CATALOG_VAL));
    unlink(in(image("train", 0))); /* the only box */
    unlink(in(image("val", 2)));
    catalog_t *c = the_same_list();
    catalog_close(&c);
    write_label("val", 3, "1 0.1 0.1 0.5 0.1 0.5 0.5 0.2 0.3\n0 0.3 0.3 0.4 0.4 0.5 0.3\n");
    refused(ERR_CONFIG, "val/03.jpg: its labels have changed", "1 image is");
}

/* Every byte of a list that comes from a file; and lists that are well-formed and yet none that was
 * built. */
static void a_damaged_list_is_noticed(void **state)
{
    (void)state;
    scratch_text(root, "images/train/bad.jpg", "no image");
    list = scan(NULL, 0);
    catalog_builder_t *builder = NULL;
    assert_int_equal(catalog_builder_new(&builder), 0);
    assert_int_equal(scan_again(&options, 2, list, builder, NULL, NULL), 0);
    int fd = memfd_create("catalog", MFD_CLOEXEC);
    assert_int_equal(catalog_builder_write(builder, fd), 0);
    catalog_builder_free(&builder);
    off_t bytes = lseek(fd, 0, SEEK_END);
    unsigned char *block = malloc((size_t)bytes);
    assert_non_null(block);
    assert_int_equal(pread(fd, block, (size_t)bytes, 0), bytes);
    close(fd);
    catalog_t *c = NULL;
    for (off_t i = 0; i < bytes; i++) {
        block[i] ^= 1;
        int rc = catalog_open_memory(block, (uint64_t)bytes, &c);
        assert_true(rc < 0 || catalog_check_saved(c) == ERR_FAILED);
        catalog_close(&c);
        block[i] ^= 1;
    }
    /* Two samples with the labels of one, under sums that match. */
    catalog_head_t *head = (catalog_head_t *)(void *)block;
    catalog_sample_t *s = (catalog_sample_t *)(void *)(block + head->samples[CATALOG_TRAIN].at);
    assert_true(s[0].n_labels == 0 && s[1].n_labels == 2);
    s[0].n_labels = 2;
    head->digest = catalog_block_digest(head);
    head->sum = catalog_block_sum(head);
    assert_int_equal(catalog_open_memory(block, (uint64_t)bytes, &c), 0);
    assert_int_equal(catalog_check_saved(c), ERR_FAILED);
    assert_non_null(strstr(err_text(), "several images"));
    catalog_close(&c);
    free(block);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(what_is_as_it_was_is_taken),
        CASE(what_cannot_be_used_keeps_its_place),
        CASE(what_lists_name_keeps_its_place),
        CASE(differences_are_refused_by_name),
        CASE(what_was_left_out_stays_out),
        CASE(a_storage_that_is_gone_is_named),
        CASE(a_fraction_stays),
        CASE(polygons_are_compared_as_they_are_used),
        CASE(a_damaged_list_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
