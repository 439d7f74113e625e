/* The sample list's block. The digest, which hardly a changed byte would get past, is put right once
 * everything before it was found good. */
#include "tests/fuzz/fuzz.h"

#include "control/catalog.h"
#include "control/catalog_block.h"
#include "shm/err.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void read_sample(const catalog_t *c, const catalog_sample_t *s)
{
    const char *path = catalog_path(c, s);
    fuzz_touch(path, strlen(path) + 1);
    const catalog_label_t *l = catalog_labels(c, s);
    for (uint32_t i = 0; i < s->n_labels; i++) {
        fuzz_require(l[i].cls >= 0 && l[i].cls < (float)catalog_classes(c), "a class that is none");
        if (l[i].n_points)
            fuzz_touch(catalog_points(c, &l[i]), 2 * sizeof(float) * l[i].n_points);
    }
    fuzz_require(s->n_labels <= catalog_max_labels(c), "more labels than the most");
}

static void read_all(const catalog_t *c)
{
    uint32_t h, w;
    for (uint32_t i = 0; i < catalog_classes(c); i++)
        fuzz_touch(catalog_class_name(c, i), strlen(catalog_class_name(c, i)) + 1);
    for (int split = 0; split < CATALOG_SPLITS; split++)
        for (uint32_t i = 0; i < catalog_count(c, (catalog_split_t)split); i++)
            read_sample(c, catalog_sample(c, (catalog_split_t)split, i));
    for (uint32_t i = 0; i < catalog_issues(c); i++) {
        const catalog_issue_t *issue = catalog_issue(c, i);
        fuzz_touch(catalog_string(c, issue->path), strlen(catalog_string(c, issue->path)) + 1);
        fuzz_touch(catalog_string(c, issue->reason), strlen(catalog_string(c, issue->reason)) + 1);
    }
    catalog_val_shape(c, 0, catalog_count(c, CATALOG_VAL), 640, &h, &w);
}

void fuzz_catalog(const uint8_t *data, size_t bytes)
{
    catalog_t *c;
    if (bytes < sizeof(catalog_head_t))
        return;
    /* malloc aligns as a mapping does for what is in it. */
    char *block = malloc(bytes);
    fuzz_require(block != NULL, "no memory");
    memcpy(block, data, bytes);
    catalog_head_t *head = (catalog_head_t *)(void *)block;
    head->magic = CATALOG_MAGIC;
    head->version = CATALOG_VERSION;
    head->bytes = bytes;
    int rc = catalog_open_memory(block, bytes, &c);
    if (rc < 0 && strstr(err_text(), "digest")) {
        head->digest = catalog_block_digest(head);
        rc = catalog_open_memory(block, bytes, &c);
        fuzz_require(rc == 0, "a block with the right digest is refused");
    }
    if (rc == 0) {
        read_all(c);
        (void)catalog_check_saved(c); /* as of a list that comes from a file */
    }
    catalog_close(&c);
    free(block);
}

void fuzz_catalog_seeds(fuzz_seed_fn give, void *user)
{
    catalog_builder_t *b = NULL;
    catalog_label_t labels[2] = {
        {.cls = 0, .cx = 0.5f, .cy = 0.5f, .w = 0.2f, .h = 0.2f, .n_points = 3},
        {.cls = 1, .cx = 0.1f, .cy = 0.2f, .w = 0.1f, .h = 0.1f}};
    const float points[6] = {0.4f, 0.4f, 0.6f, 0.4f, 0.5f, 0.6f};
    catalog_sample_t facts = {
        .file_bytes = 1234, .width = 64, .height = 48, .format = CATALOG_PNG, .orientation = 6};
    struct stat st;
    int fd = memfd_create("seed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fuzz_require(fd >= 0 && catalog_builder_new(&b) == 0, "no builder");
    int rc = catalog_builder_class(b, "scratch") | catalog_builder_class(b, "pit") |
             catalog_builder_sample(b, CATALOG_TRAIN, "/a.png", &facts, labels, 2, points, 3) |
             catalog_builder_sample(b, CATALOG_TRAIN, "/b.png", &facts, NULL, 0, NULL, 0) |
             catalog_builder_sample(b, CATALOG_VAL, "/v.png", &facts, labels + 1, 1, NULL, 0) |
             catalog_builder_issue(b, CATALOG_DROPPED, CATALOG_VAL, "/bad.jpg", "no JPEG") |
             catalog_builder_write(b, fd);
    fuzz_require(rc == 0 && fstat(fd, &st) == 0, "no block");
    void *block = malloc((size_t)st.st_size);
    fuzz_require(block && pread(fd, block, (size_t)st.st_size, 0) == st.st_size,
                 "no block to read");
    give(user, "small", block, (size_t)st.st_size);
    free(block);
    catalog_builder_free(&b);
    close(fd);
}
