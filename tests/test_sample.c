/* The synthetic data set: the same bytes for a seed, boxes that hold the drawn pixels, a folder
 * that is not ours left alone, and a scan that takes what was written.
 */
#include "control/catalog.h"
#include "control/options.h"
#include "loader/scan.h"
#include "shm/err.h"
#include "tests/scratch.h"
#include "tools/commands.h"
#include "tools/sample.h"
#include "tools/sample_defects.h"
#include "tools/sample_folder.h"
#include "tools/sample_surface.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum { SIZE = 256, IMAGES = 12 };

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

static const char *in_root(const char *name)
{
    static char path[2][2 * SCRATCH_PATH];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static sample_counts_t write_set(const char *name, uint64_t seed, int threads)
{
    sample_counts_t counts;
    sample_config_t config = {in_root(name), IMAGES, SIZE, seed, threads};
    int rc = sample_write(&config, NULL, &counts);
    if (rc < 0)
        print_error("%s\n", err_text());
    assert_int_equal(rc, 0);
    return counts;
}

static int same_file(const char *a, const char *b, const char *name)
{
    char path[SCRATCH_PATH];
    size_t na = 0, nb = 0;
    snprintf(path, sizeof path, "%.1000s/%.100s", a, name);
    uint8_t *x = scratch_read(in_root(path), &na);
    snprintf(path, sizeof path, "%.1000s/%.100s", b, name);
    uint8_t *y = scratch_read(in_root(path), &nb);
    assert_non_null(x);
    assert_non_null(y);
    int same = na == nb && memcmp(x, y, na) == 0;
    free(x);
    free(y);
    return same;
}

static int exists(const char *name)
{
    return access(in_root(name), F_OK) == 0;
}

static void test_same_bytes(void **state)
{
    (void)state;
    write_set("a", 7, 1);
    write_set("b", 7, 3);
    write_set("c", 8, 2);
    int images = 0, same_as_c = 0;
    for (int i = 0; i < IMAGES; i++) {
        for (int val = 0; val < 2; val++) {
            char image[SAMPLE_NAME_BYTES], label[SAMPLE_NAME_BYTES], path[SAMPLE_NAME_BYTES + 4];
            sample_name(image, "images", val, i, "jpg");
            sample_name(label, "labels", val, i, "txt");
            snprintf(path, sizeof path, "a/%s", image);
            if (!exists(path))
                continue;
            images++;
            assert_true(same_file("a", "b", image));
            assert_true(same_file("a", "b", label));
            same_as_c += same_file("a", "c", image);
        }
    }
    assert_int_equal(images, IMAGES);
    assert_int_equal(same_as_c, 0);
    assert_true(same_file("a", "b", "data.yaml"));
}

/* The defect-free image of the same plate is painted beside; what differs (before the camera's
 * noise, which comes from a stream of its own and is the same in both) must be what the boxes hold,
 * to the pixel. */
static void test_boxes_exact(void **state)
{
    (void)state;
    canvas_t with, without;
    int seen[DEFECTS] = {0};
    assert_int_equal(canvas_init(&with, SIZE), 0);
    assert_int_equal(canvas_init(&without, SIZE), 0);
    for (uint64_t index = 0; index < 24; index++) {
        sample_label_t labels[SAMPLE_DEFECTS_MAX];
        int n = sample_image(&with, 3, index, labels);
        philox_t random = philox_stream(3, 0, index, PHILOX_SAMPLE);
        philox_t noise = philox_stream(3, 1, index, PHILOX_SAMPLE);
        surface_t surface;
        assert_int_equal(surface_paint(&without, &random, &surface), 0);
        surface_expose(&without, &noise);
        box_t differs[SAMPLE_DEFECTS_MAX] = {{0, 0, 0, 0}};
        for (int y = 0; y < SIZE; y++) {
            for (int x = 0; x < SIZE; x++) {
                size_t at = 3 * ((size_t)y * SIZE + (size_t)x);
                if (memcmp(with.rgb + at, without.rgb + at, 3) == 0)
                    continue;
                box_t pixel = {x, y, x + 1, y + 1};
                int inside = 0;
                for (int k = 0; k < n; k++) {
                    if (!box_overlaps(pixel, labels[k].box))
                        continue;
                    inside++;
                    differs[k] = box_join(differs[k], pixel);
                }
                assert_int_equal(inside, 1); /* in one box, and never outside all */
            }
        }
        assert_int_equal(n == 0, index % SAMPLE_GOOD_EVERY == SAMPLE_GOOD_EVERY - 1);
        for (int k = 0; k < n; k++) {
            const box_t *b = &labels[k].box, *d = &differs[k];
            seen[labels[k].kind]++;
            assert_true(b->x0 >= 0 && b->y0 >= 0 && b->x1 <= SIZE && b->y1 <= SIZE);
            int w = b->x1 - b->x0, h = b->y1 - b->y0, longest = w > h ? w : h;
            assert_true(longest >= SIZE * 3 / 100 - 1 && longest <= SIZE * 21 / 100);
            /* a change of a fraction of a level can be rounded away at the border */
            assert_true(d->x0 - b->x0 <= 2 && d->y0 - b->y0 <= 2 && b->x1 - d->x1 <= 2 &&
                        b->y1 - d->y1 <= 2);
        }
    }
    for (int k = 0; k < DEFECTS; k++)
        assert_true(seen[k] > 0);
    canvas_fini(&with);
    canvas_fini(&without);
}

static void test_loads(void **state)
{
    (void)state;
    sample_counts_t counts = write_set("set with 'quotes'", 0, 2);
    assert_int_equal(counts.train + counts.val, IMAGES);
    assert_int_equal(counts.val, 2);
    options_t options;
    catalog_builder_t *builder = NULL;
    catalog_t *c = NULL;
    options_default(&options);
    snprintf(options.data, sizeof options.data, "%.4000s", in_root("set with 'quotes'/data.yaml"));
    assert_int_equal(catalog_builder_new(&builder), 0);
    assert_int_equal(scan_build(&options, 2, builder, NULL, NULL), 0);
    int fd = memfd_create("catalog", MFD_CLOEXEC);
    assert_int_equal(catalog_builder_write(builder, fd), 0);
    assert_int_equal(catalog_open(fd, &c), 0);
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), counts.train);
    assert_int_equal(catalog_count(c, CATALOG_VAL), counts.val);
    assert_int_equal(catalog_issues(c), 0);
    assert_int_equal(catalog_classes(c), DEFECTS);
    assert_string_equal(catalog_class_name(c, DEFECT_MISSING_HOLE), "missing-hole");
    int labels = 0;
    for (uint32_t s = 0; s < CATALOG_SPLITS; s++)
        for (uint32_t i = 0; i < catalog_count(c, s); i++)
            labels += (int)catalog_sample(c, s, i)->n_labels;
    assert_int_equal(labels, counts.labels);
    assert_int_equal(catalog_backgrounds(c, CATALOG_TRAIN) + catalog_backgrounds(c, CATALOG_VAL),
                     counts.without);
    catalog_close(&c);
    catalog_builder_free(&builder);
    close(fd);
}

static void refused(const char *name, const char *word)
{
    sample_counts_t counts;
    sample_config_t config = {in_root(name), IMAGES, SIZE, 0, 1};
    assert_int_equal(sample_write(&config, NULL, &counts), ERR_CONFIG);
    assert_non_null(strstr(err_text(), word));
}

static void test_folders(void **state)
{
    (void)state;
    scratch_text(root, "theirs/notes.txt", "keep me");
    refused("theirs", "is not empty and was not made by sluice sample");
    assert_true(exists("theirs/notes.txt") && !exists("theirs/images"));
    /* ours is written anew, without leftovers of a longer run */
    write_set("ours", 1, 1);
    char name[SAMPLE_NAME_BYTES], path[SAMPLE_NAME_BYTES + 8];
    sample_name(name, "images", 0, 99, "jpg");
    snprintf(path, sizeof path, "ours/%s", name);
    scratch_text(root, path, "old");
    write_set("ours", 2, 1);
    assert_false(exists(path));
    /* a stranger's file among ours stops it before anything is removed */
    scratch_text(root, "ours/images/train/mine.jpg", "x");
    refused("ours", "images/train/mine.jpg was not written by");
    assert_true(exists("ours/data.yaml") && exists("ours/images/train/mine.jpg"));
}

static void command_refuses(const char *a, const char *b, const char *word)
{
    char words[3][SCRATCH_PATH] = {"sample"};
    char *argv[] = {words[0], words[1], words[2], NULL};
    snprintf(words[1], sizeof words[1], "%s", a);
    snprintf(words[2], sizeof words[2], "%s", b);
    assert_int_equal(cmd_sample(b[0] ? 3 : 2, argv), ERR_CONFIG);
    if (!strstr(err_text(), word))
        print_error("%s\n", err_text());
    assert_non_null(strstr(err_text(), word));
}

static void test_command(void **state)
{
    (void)state;
    command_refuses("images=20", "", "out=DIR is missing");
    command_refuses("out=/nowhere", "imags=20", "nearest is images=");
    command_refuses("out=/nowhere", "images=1", "from 2");
    command_refuses("out=/nowhere", "images=2x", "whole number");
    command_refuses("out=/nowhere", "imgsz=99999", "from 128 to 8192");
    command_refuses("out=/nowhere", "seed=-1", "from 0");
    command_refuses("out=/nowhere", "images", "unknown word 'images'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_same_bytes, set_up, tear_down),
        cmocka_unit_test(test_boxes_exact),
        cmocka_unit_test_setup_teardown(test_loads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folders, set_up, tear_down),
        cmocka_unit_test(test_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
