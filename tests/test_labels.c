/* Label rows (facts/yolo.md 7.4): what is taken, what drops the image and where the message points.
 */
#include "loader/labels.h"
#include "shm/err.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static labels_t labels; /* one for all, as a scan thread uses it */

static int tear_down(void **state)
{
    (void)state;
    labels_fini(&labels);
    return 0;
}

static void takes(const char *text, uint32_t rows)
{
    int rc = labels_parse(text, strlen(text), "L.txt", 3, 0, &labels);
    if (rc < 0)
        print_error("%s\n", err_text());
    assert_int_equal(rc, 0);
    assert_int_equal(labels.n, rows);
}

/* The text is refused, and the message contains the word (usually "L.txt:line: ..."). */
static void refuses(const char *text, const char *word)
{
    assert_int_equal(labels_parse(text, strlen(text), "L.txt", 3, 0, &labels), ERR_DATA);
    if (!strstr(err_text(), word))
        print_error("'%s' is not in: %s\n", word, err_text());
    assert_non_null(strstr(err_text(), word));
    assert_int_equal(labels.n, 0);
}

static void test_boxes(void **state)
{
    (void)state;
    takes("0 0.5 0.25 0.125 1\n2 0.75 0.5 0.1 0.2\n", 2);
    assert_true(labels.rows[0].cls == 0 && labels.rows[0].cx == 0.5f && labels.rows[0].cy == 0.25f);
    assert_true(labels.rows[0].w == 0.125f && labels.rows[0].h == 1 && labels.rows[1].cls == 2);
    assert_int_equal(labels.n_points, 0);
    assert_int_equal(labels.duplicates, 0);
    takes("", 0);
    takes("\n  \n\t\n", 0);
    takes("1 .5 .5 .1 .1", 1);
    takes("\xEF\xBB\xBF"
          "1 0.5 0.5 0.1 0.1\r\n\r\n2\t0.5  0.5 1e-1 0.1 \r\n",
          2);
    takes("1 0.5 0.5 0.1 0.1\r2 0.5 0.5 0.1 0.1\r", 2);
    takes("1.0 0.5 0.5 0.1 0.1", 1);
}

static void test_order_kept(void **state)
{
    (void)state;
    takes("2 0.5 0.5 0.1 0.1\n0 0.5 0.5 0.1 0.1\n", 2);
    assert_true(labels.rows[0].cls == 2 && labels.rows[1].cls == 0);
}

/* Duplicates go, and then the rows are in order, as numpy's unique leaves them. */
static void test_duplicates(void **state)
{
    (void)state;
    takes("2 0.5 0.5 0.1 0.1\n0 0.6 0.5 0.1 0.1\n2 0.50 0.5 0.1 0.1\n0 0.4 0.5 0.1 0.1\n", 3);
    assert_int_equal(labels.duplicates, 1);
    assert_true(labels.rows[0].cls == 0 && labels.rows[0].cx == 0.4f);
    assert_true(labels.rows[1].cls == 0 && labels.rows[1].cx == 0.6f);
    assert_true(labels.rows[2].cls == 2);
}

static void test_tolerance(void **state)
{
    (void)state;
    takes("0 1.01 -0.01 1.005 -0.005", 1);
    refuses("0 0.5 0.5 0.1 0.1\n0 1.0101 0.5 0.1 0.1", "L.txt:2: coordinate 1.0101");
    refuses("0 0.5 -0.0101 0.1 0.1", "L.txt:1: coordinate -0.0101");
    refuses("-1 0.5 0.5 0.1 0.1", "class -1 is negative");
    refuses("3 0.5 0.5 0.1 0.1", "class 3, but the data set has 3 (0 to 2)");
    refuses("0.5 0.5 0.5 0.1 0.1", "not a whole number");
    refuses("0 320 240 64 48", "normalised");
}

static void test_rows_refused(void **state)
{
    (void)state;
    refuses("0 0.5 0.5 0.1", "L.txt:1: 4 fields");
    refuses("\n\n0 0.5 0.5 0.1 0.1 0.9", "L.txt:3: 6 fields");
    refuses("0 0.5 0.5 0.1 x", "'x' is not a number");
    refuses("0 0.5 0.5 0.1 nan", "'nan' is not a number");
    refuses("0 0.5 0.5 0.1 inf", "'inf' is not a number");
    refuses("0 0.5 0.5 0.1 0x1p-3", "not a number");
    refuses("0 0,5 0,5 0,1 0,1", "'0,5' is not a number");
    char blob[100] = "0 0.5 0.5 0.1 ";
    memset(blob + 14, '1', 80);
    refuses(blob, "is not a number");
    assert_int_equal(labels_parse("0 0.5\0 0.5 0.1 0.1", 18, "L.txt", 3, 0, &labels), ERR_DATA);
}

static void test_single_class(void **state)
{
    (void)state;
    const char *text = "7 0.5 0.5 0.1 0.1\n";
    assert_int_equal(labels_parse(text, strlen(text), "L.txt", 1, 1, &labels), 0);
    assert_true(labels.n == 1 && labels.rows[0].cls == 0);
}

static void test_polygons(void **state)
{
    (void)state;
    takes("1 0.1 0.2 0.5 0.2 0.5 0.6\n0 0.3 0.3 0.4 0.3 0.4 0.4 0.3 0.45\n", 2);
    assert_int_equal(labels.n_points, 7);
    assert_int_equal(labels.rows[0].first_point, 0);
    assert_int_equal(labels.rows[0].n_points, 3);
    assert_int_equal(labels.rows[1].first_point, 3);
    assert_int_equal(labels.rows[1].n_points, 4);
    assert_true(labels.rows[0].cx == (0.1f + 0.5f) / 2 && labels.rows[0].w == 0.5f - 0.1f);
    assert_true(labels.rows[0].cy == (0.2f + 0.6f) / 2 && labels.rows[0].h == 0.6f - 0.2f);
    assert_true(labels.points[6] == 0.3f && labels.points[13] == 0.45f);
    /* a box row among polygons, an odd number of coordinates, too few points */
    refuses("1 0.1 0.2 0.5 0.2 0.5 0.6\n0 0.5 0.5 0.1 0.1\n",
            "L.txt:2: 5 fields in a file of polygons");
    refuses("1 0.1 0.2 0.5 0.2 0.5 0.6 0.7\n", "8 fields");
    refuses("1 0.1 0.2 0.5 0.2 0.5 0.6\n0 0.5 0.5\n", "L.txt:2: 3 fields");
    refuses("1 0.1 0.2 1.8 0.2 1.8 0.6\n", "is above");
}

static void test_polygon_duplicates(void **state)
{
    (void)state;
    takes("1 0.1 0.2 0.5 0.2 0.5 0.6\n0 0.3 0.3 0.4 0.3 0.4 0.4\n1 0.5 0.6 0.1 0.2 0.5 0.2\n", 2);
    assert_int_equal(labels.duplicates, 1);
    assert_int_equal(labels.n_points, 6);
    assert_true(labels.rows[0].cls == 0 && labels.rows[0].first_point == 0);
    assert_true(labels.points[0] == 0.3f);
    /* of the two with the same box, the first one's points stay */
    assert_true(labels.rows[1].first_point == 3 && labels.points[6] == 0.1f);
}

static void test_files(void **state)
{
    (void)state;
    char folder[SCRATCH_PATH];
    scratch_begin(folder);
    const char *path = scratch_text(folder, "a b'c.txt", "0 0.5 0.5 0.1 0.1\n0 0.5 0.5\n");
    assert_int_equal(labels_read(path, 1, 0, &labels), ERR_DATA);
    assert_non_null(strstr(err_text(), "a b'c.txt:2: 3 fields"));
    path = scratch_text(folder, "ok.txt", "0 0.5 0.5 0.1 0.1\n");
    assert_int_equal(labels_read(path, 1, 0, &labels), 0);
    assert_true(labels.found && labels.n == 1);
    path = scratch_text(folder, "empty.txt", "");
    assert_int_equal(labels_read(path, 1, 0, &labels), 0);
    assert_true(labels.found && labels.n == 0);
    assert_int_equal(labels_read("/nowhere/x.txt", 1, 0, &labels), 0);
    assert_true(!labels.found && labels.n == 0);
    assert_int_equal(labels_read(folder, 1, 0, &labels), ERR_DATA);
    assert_non_null(strstr(err_text(), "not a regular file"));
    scratch_end(folder);
}

/* More labels than a ring's cell can hold for a mosaic of such images are damage, not data. */
static void test_too_many(void **state)
{
    (void)state;
    enum { ROW = 32 };
    char *text = malloc((size_t)(LABELS_MAX + 1) * ROW + 1);
    size_t n = 0;
    assert_non_null(text);
    for (int i = 0; i < LABELS_MAX; i++)
        n += (size_t)sprintf(text + n, "0 %.6f 0.5 0.1 0.1\n", i / (double)LABELS_MAX);
    takes(text, LABELS_MAX);
    sprintf(text + n, "1 0.5 0.5 0.1 0.1\n");
    refuses(text, "131073 labels");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_many),           cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_order_kept),         cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_tolerance),          cmocka_unit_test(test_rows_refused),
        cmocka_unit_test(test_single_class),       cmocka_unit_test(test_polygons),
        cmocka_unit_test(test_polygon_duplicates), cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
