/* control/catalog: round trip, shapes of validation batches, and blocks that lie. */
#include "control/catalog.h"
#include "control/catalog_block.h"
#include "shm/err.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static int new_fd(void)
{
    int fd = memfd_create("catalog-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    return fd;
}

static void add(catalog_builder_t *b, catalog_split_t split, const char *path, uint32_t w,
                uint32_t h, uint32_t boxes, uint32_t corners)
{
    catalog_label_t labels[4];
    float points[64];
    memset(labels, 0, sizeof labels);
    for (uint32_t i = 0; i < boxes; i++) {
        labels[i] = (catalog_label_t){(float)(i % 2), 0.5f,        0.25f,  0.1f * (float)(i + 1),
                                      0.2f,           i * corners, corners};
        for (uint32_t k = 0; k < 2 * corners; k++)
            points[2 * i * corners + k] = (float)(i + k) / 16;
    }
    catalog_sample_t facts = {.file_bytes = 1000 + w,
                              .width = w,
                              .height = h,
                              .format = CATALOG_PNG,
                              .orientation = 6,
                              .warned = 1};
    assert_int_equal(
        catalog_builder_sample(b, split, path, &facts, labels, boxes, points, boxes * corners), 0);
}

/* A block with something of everything; small enough to damage every byte of it. */
static catalog_builder_t *example(void)
{
    catalog_builder_t *b = NULL;
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "scratch"), 0);
    assert_int_equal(catalog_builder_class(b, "K\xC3\xA4se"), 0);
    add(b, CATALOG_TRAIN, "/a b/one.png", 640, 480, 2, 3);
    add(b, CATALOG_TRAIN, "/a b/\"two\".png", 100, 100, 0, 0);
    add(b, CATALOG_VAL, "/v.png", 300, 600, 1, 0);
    assert_int_equal(
        catalog_builder_issue(b, CATALOG_DROPPED, CATALOG_VAL, "/bad.jpg", "not a JPEG"), 0);
    return b;
}

static catalog_t *finish(catalog_builder_t **b)
{
    catalog_t *c = NULL;
    int fd = new_fd();
    if (catalog_builder_write(*b, fd) < 0 || catalog_open(fd, &c) < 0)
        fail_msg("%s", err_text());
    close(fd);
    catalog_builder_free(b);
    return c;
}

static void comes_back_as_it_was_built(void **state)
{
    (void)state;
    catalog_builder_t *b = example();
    catalog_t *c = finish(&b);
    assert_null(b);
    assert_int_equal(catalog_classes(c), 2);
    assert_string_equal(catalog_class_name(c, 1), "K\xC3\xA4se");
    assert_string_equal(catalog_class_name(c, 2), "");
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), 2);
    assert_int_equal(catalog_count(c, CATALOG_VAL), 1);
    assert_int_equal(catalog_backgrounds(c, CATALOG_TRAIN), 1);
    assert_int_equal(catalog_backgrounds(c, CATALOG_VAL), 0);
    assert_int_equal(catalog_max_labels(c), 2);
    assert_true(catalog_has_polygons(c));
    const catalog_sample_t *s = catalog_sample(c, CATALOG_TRAIN, 0);
    assert_string_equal(catalog_path(c, s), "/a b/one.png");
    assert_true(s->width == 640 && s->height == 480 && s->file_bytes == 1640);
    assert_true(s->format == CATALOG_PNG && s->orientation == 6 && s->warned == 1 &&
                s->n_labels == 2);
    const catalog_label_t *l = catalog_labels(c, s);
    assert_true(l[1].cls == 1 && l[1].w == 0.2f && l[1].n_points == 3);
    for (int k = 0; k < 6; k++) {
        assert_true(catalog_points(c, &l[0])[k] == (float)k / 16);
        assert_true(catalog_points(c, &l[1])[k] == (float)(1 + k) / 16);
    }
    assert_string_equal(catalog_path(c, catalog_sample(c, CATALOG_TRAIN, 1)), "/a b/\"two\".png");
    s = catalog_sample(c, CATALOG_VAL, 0);
    assert_string_equal(catalog_path(c, s), "/v.png");
    assert_int_equal(s->n_labels, 1);
    assert_null(catalog_sample(c, CATALOG_VAL, 1));
    assert_int_equal(catalog_issues(c), 1);
    const catalog_issue_t *issue = catalog_issue(c, 0);
    assert_true(issue->kind == CATALOG_DROPPED && issue->split == CATALOG_VAL);
    assert_string_equal(catalog_string(c, issue->path), "/bad.jpg");
    assert_string_equal(catalog_string(c, issue->reason), "not a JPEG");
    assert_null(catalog_issue(c, 1));
    assert_string_equal(catalog_string(c, UINT64_MAX), "");
    assert_string_equal(catalog_string(c, 0), "");
    catalog_close(&c);
    assert_null(c);
}

static void an_empty_list_is_a_list(void **state)
{
    (void)state;
    catalog_builder_t *b = NULL;
    assert_int_equal(catalog_builder_new(&b), 0);
    catalog_t *c = finish(&b);
    assert_int_equal(catalog_count(c, CATALOG_TRAIN), 0);
    assert_int_equal(catalog_max_labels(c), 0);
    assert_false(catalog_has_polygons(c));
    catalog_close(&c);
}

static void many_samples(void **state)
{
    (void)state;
    catalog_builder_t *b = NULL;
    char path[64];
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, "a"), 0);
    assert_int_equal(catalog_builder_class(b, "b"), 0);
    for (uint32_t i = 0; i < 5000; i++) {
        snprintf(path, sizeof path, "/images/%u.jpg", i);
        add(b, i % 5 ? CATALOG_TRAIN : CATALOG_VAL, path, 10 + i, 20 + i, i % 4, i % 3);
    }
    catalog_t *c = finish(&b);
    for (uint32_t i = 0, at[2] = {0, 0}; i < 5000; i++) {
        catalog_split_t split = i % 5 ? CATALOG_TRAIN : CATALOG_VAL;
        const catalog_sample_t *s = catalog_sample(c, split, at[split]++);
        snprintf(path, sizeof path, "/images/%u.jpg", i);
        assert_string_equal(catalog_path(c, s), path);
        assert_true(s->width == 10 + i && s->n_labels == i % 4);
        const catalog_label_t *l = catalog_labels(c, s);
        for (uint32_t k = 0; k < s->n_labels; k++) {
            assert_int_equal(l[k].n_points, i % 3);
            if (i % 3)
                assert_true(catalog_points(c, &l[k])[1] == (float)(k + 1) / 16);
        }
    }
    catalog_close(&c);
}

/* The digest changes with everything that it covers and with nothing else. */
static uint64_t digest_of(int change)
{
    catalog_builder_t *b = NULL;
    assert_int_equal(catalog_builder_new(&b), 0);
    assert_int_equal(catalog_builder_class(b, change == 1 ? "scratc" : "scratch"), 0);
    assert_int_equal(catalog_builder_class(b, change == 2 ? "hpit" : "pit"), 0);
    catalog_label_t l = {change == 3 ? 1 : 0, 0.5f, 0.5f, change == 4 ? 0.25f : 0.5f, 0.5f, 0,
                         change == 5 ? 1 : 2};
    float points[4] = {0, 0.5f, change == 6 ? 0.75f : 1, 1};
    catalog_sample_t s = {.file_bytes = change == 7 ? 1 : 2,
                          .width = change == 8 ? 30 : 20,
                          .height = 20,
                          .orientation = change == 9 ? 2 : 1,
                          .warned = change == 20};
    catalog_split_t split = change == 10 ? CATALOG_VAL : CATALOG_TRAIN;
    assert_int_equal(
        catalog_builder_sample(b, split, change == 11 ? "/b" : "/a", &s, &l, 1, points, 2), 0);
    s.width = 77;
    assert_int_equal(catalog_builder_sample(b, CATALOG_TRAIN, "/c", &s, NULL, 0, NULL, 0), 0);
    if (change == 12)
        assert_int_equal(catalog_builder_sample(b, CATALOG_TRAIN, "/c", &s, NULL, 0, NULL, 0), 0);
    if (change == 21)
        assert_int_equal(catalog_builder_issue(b, CATALOG_WARNED, CATALOG_TRAIN, "/c", "x"), 0);
    catalog_t *c = finish(&b);
    uint64_t digest = catalog_digest(c);
    catalog_close(&c);
    return digest;
}

static void the_digest_covers_what_it_should(void **state)
{
    (void)state;
    uint64_t digests[13];
    for (int i = 0; i <= 12; i++) {
        digests[i] = digest_of(i);
        assert_true(digests[i] == digest_of(i));
        for (int k = 0; k < i; k++)
            assert_true(digests[i] != digests[k]);
    }
    assert_true(digest_of(20) == digests[0]); /* a warning */
    assert_true(digest_of(21) == digests[0]); /* a remark of the scan */
}

static void validation_shapes(void **state)
{
    (void)state;
    static const struct {
        uint32_t w1, h1, w2, h2, imgsz, height, width; /* facts/yolo.md 6.1 */
    } cases[] = {
        {640, 640, 640, 640, 640, 672, 672},   /* square: [1, 1], and the pad of half a stride */
        {1000, 500, 1000, 750, 640, 512, 672}, /* all wide: [0.75, 1] */
        {500, 1000, 750, 1000, 640, 672, 512}, /* all tall: [1, 0.75] */
        {1000, 500, 500, 1000, 640, 672, 672}, /* mixed */
        {640, 640, 1000, 500, 320, 352, 352},  /* 1 is not below 1 */
        {3000, 100, 3000, 100, 64, 32, 96},    /* at least one stride: ceil(0.07 + 0.5) */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        catalog_builder_t *b = NULL;
        uint32_t h = 0, w = 0;
        assert_int_equal(catalog_builder_new(&b), 0);
        add(b, CATALOG_VAL, "/0", 10, 2000, 0, 0); /* outside the batch */
        add(b, CATALOG_VAL, "/1", cases[i].w1, cases[i].h1, 0, 0);
        add(b, CATALOG_VAL, "/2", cases[i].w2, cases[i].h2, 0, 0);
        catalog_t *c = finish(&b);
        catalog_val_shape(c, 1, 2, cases[i].imgsz, &h, &w);
        assert_int_equal(h, cases[i].height);
        assert_int_equal(w, cases[i].width);
        catalog_val_shape(c, 1, 100, cases[i].imgsz, &h, &w); /* a count beyond the end */
        assert_int_equal(w, cases[i].width);
        catalog_val_shape(c, 3, 0, 640, &h, &w);
        assert_true(h == 672 && w == 672);
        catalog_close(&c);
    }
}

/* An 8-aligned copy of the example's block. */
static uint64_t *block_of(catalog_builder_t *b, uint64_t *bytes)
{
    int fd = new_fd();
    struct stat st;
    assert_int_equal(catalog_builder_write(b, fd), 0);
    assert_int_equal(fstat(fd, &st), 0);
    *bytes = (uint64_t)st.st_size;
    uint64_t *block = malloc(*bytes);
    assert_non_null(block);
    assert_int_equal(pread(fd, block, *bytes, 0), st.st_size);
    close(fd);
    return block;
}

static void refuse_block(const void *block, uint64_t bytes)
{
    catalog_t *c = (catalog_t *)1;
    assert_int_equal(catalog_open_memory(block, bytes, &c), ERR_FAILED);
    assert_null(c);
}

static void truncated_blocks_are_refused(void **state)
{
    (void)state;
    catalog_builder_t *b = example();
    uint64_t bytes;
    uint64_t *block = block_of(b, &bytes);
    catalog_t *c = NULL;
    assert_int_equal(catalog_open_memory(block, bytes, &c), 0);
    catalog_close(&c);
    /* Each cut in memory of its own, so that a sanitizer sees a read beyond it; also with a header
     * that claims the shorter size. Behind the texts there is only padding. */
    const catalog_head_t *head = (const catalog_head_t *)(void *)block;
    uint64_t end = head->strings.at + head->strings.count;
    for (uint64_t cut = 0; cut < end; cut++)
        for (int claim = 0; claim < 2; claim++) {
            char *shorter = malloc(cut ? cut : 1);
            assert_non_null(shorter);
            memcpy(shorter, block, cut);
            if (claim && cut >= sizeof(catalog_head_t))
                ((catalog_head_t *)(void *)shorter)->bytes = cut;
            refuse_block(shorter, cut);
            free(shorter);
        }
    free(block);
    catalog_builder_free(&b);
}

/* What opens must be safe to read from end to end. Returns a sum, so that the reads are not left
 * out. */
static uint64_t read_everything(const catalog_t *c)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < catalog_classes(c); i++)
        sum += strlen(catalog_class_name(c, i));
    for (int split = 0; split < CATALOG_SPLITS; split++)
        for (uint32_t i = 0; i < catalog_count(c, (catalog_split_t)split); i++) {
            const catalog_sample_t *s = catalog_sample(c, (catalog_split_t)split, i);
            sum += strlen(catalog_path(c, s));
            const catalog_label_t *l = catalog_labels(c, s);
            for (uint32_t k = 0; k < s->n_labels; k++) {
                assert_true(l[k].cls >= 0 && l[k].cls < (float)catalog_classes(c));
                for (uint32_t p = 0; p < 2 * l[k].n_points; p++)
                    sum += catalog_points(c, &l[k])[p] > 0.5f;
            }
        }
    for (uint32_t i = 0; i < catalog_issues(c); i++)
        sum += strlen(catalog_string(c, catalog_issue(c, i)->reason)) +
               strlen(catalog_string(c, catalog_issue(c, i)->path));
    return sum;
}

/* Every word of the block set to values that lead astray; the digest is made to match again, so
 * that the checks of the structure alone must hold. */
static void lying_blocks_do_no_harm(void **state)
{
    (void)state;
    catalog_builder_t *b = example();
    uint64_t bytes, opened = 0, sum = 0;
    uint64_t *block = block_of(b, &bytes), *copy = malloc(bytes);
    assert_non_null(copy);
    uint64_t values[] = {0,
                         1,
                         7,
                         8,
                         bytes - 8,
                         bytes - 1,
                         bytes,
                         bytes + 8,
                         UINT32_MAX,
                         UINT64_MAX,
                         UINT64_MAX - 7,
                         UINT64_C(1) << 63,
                         UINT64_C(0x7fc000007fc00000) /* NaN */};
    for (uint64_t at = 0; at < bytes / 8; at++)
        for (size_t v = 0; v < 3 * sizeof values / sizeof values[0]; v++) {
            uint64_t value = values[v / 3];
            memcpy(copy, block, bytes);
            switch (v % 3) { /* the whole word, its low half, its high half */
            case 0: copy[at] = value; break;
            case 1: memcpy((char *)&copy[at], &value, 4); break;
            default: memcpy((char *)&copy[at] + 4, &value, 4); break;
            }
            catalog_t *c = NULL;
            if (catalog_open_memory(copy, bytes, &c) < 0 && strstr(err_text(), "digest")) {
                catalog_head_t *head = (catalog_head_t *)(void *)copy;
                head->digest = catalog_block_digest(head);
                (void)catalog_open_memory(copy, bytes, &c);
            }
            if (c) {
                opened++;
                sum += read_everything(c);
            }
            catalog_close(&c);
        }
    assert_true(opened > 0 && sum > 0); /* harmless words exist: sizes, coordinates, paddings */
    free(copy);
    free(block);
    catalog_builder_free(&b);
}

static void a_changed_byte_is_noticed(void **state)
{
    (void)state;
    catalog_builder_t *b = example();
    uint64_t bytes, unnoticed = 0;
    uint64_t *block = block_of(b, &bytes);
    const catalog_head_t *head = (const catalog_head_t *)(void *)block;
    for (uint64_t i = head->samples[0].at; i < head->issues.at; i++) {
        ((char *)block)[i] ^= 0x10;
        catalog_t *c = NULL;
        unnoticed += catalog_open_memory(block, bytes, &c) == 0;
        catalog_close(&c);
        ((char *)block)[i] ^= 0x10;
    }
    /* warned and the paddings of the three samples, and first_point where there are no points. */
    assert_true(unnoticed <= 3 * 6 + 4);
    free(block);
    catalog_builder_free(&b);
}

static void wrong_descriptors_are_refused(void **state)
{
    (void)state;
    catalog_t *c = NULL;
    int fd = new_fd();
    assert_true(catalog_open(fd, &c) < 0); /* empty */
    assert_null(c);
    close(fd);
    assert_true(catalog_open(-1, &c) < 0);
    assert_null(c);
    catalog_builder_t *b = example();
    assert_int_equal(catalog_builder_write(b, -1), ERR_ENV);
    catalog_builder_free(&b);
    catalog_builder_free(&b); /* twice does no harm */
    /* The written block can no longer change its size under a reader. */
    b = example();
    fd = new_fd();
    assert_int_equal(catalog_builder_write(b, fd), 0);
    assert_int_equal(ftruncate(fd, 0), -1);
    close(fd);
    catalog_builder_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_as_it_was_built),
        cmocka_unit_test(an_empty_list_is_a_list),
        cmocka_unit_test(many_samples),
        cmocka_unit_test(the_digest_covers_what_it_should),
        cmocka_unit_test(validation_shapes),
        cmocka_unit_test(truncated_blocks_are_refused),
        cmocka_unit_test(lying_blocks_do_no_harm),
        cmocka_unit_test(a_changed_byte_is_noticed),
        cmocka_unit_test(wrong_descriptors_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
