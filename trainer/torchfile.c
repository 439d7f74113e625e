#include "trainer/torchfile_internal.h"

#include "shm/err.h"

#include <stdlib.h>
#include <string.h>

static int ends_with(const zipfile_member_t *m, const char *end)
{
    const size_t n = strlen(end);
    return m->name_bytes >= n && memcmp(m->name + m->name_bytes - n, end, n) == 0;
}

/* The pickle is ROOT/data.pkl; torch.save names ROOT after the file. */
static int find_root(torchfile_t *f, const zipfile_member_t **pickle)
{
    *pickle = NULL;
    for (uint32_t i = 0; i < zipfile_count(f->zip); i++) {
        const zipfile_member_t *m = zipfile_at(f->zip, i);
        const size_t before = m->name_bytes - 8;
        if (ends_with(m, "/constants.pkl"))
            return err_set(ERR_CONFIG,
                           "%s: a TorchScript archive, which holds a program: save the model's "
                           "state_dict() with torch.save instead",
                           f->origin);
        if (!ends_with(m, "data.pkl") || (before > 0 && m->name[before - 1] != '/'))
            continue;
        if (*pickle)
            return err_set(ERR_CONFIG, "%s: more than one data.pkl in the archive", f->origin);
        if (before >= sizeof f->root || memchr(m->name, '\0', before))
            return err_set(ERR_CONFIG, "%s: the folder of its data.pkl has no usable name",
                           f->origin);
        memcpy(f->root, m->name, before);
        f->root[before] = '\0';
        *pickle = m;
    }
    return *pickle
               ? 0
               : err_set(ERR_CONFIG, "%s: an archive without a data.pkl: not written by torch.save",
                         f->origin);
}

static int check_byteorder(const torchfile_t *f)
{
    char name[TORCHFILE_NAME + 16];
    const void *data;
    const size_t n = strlen(f->root);
    memcpy(name, f->root, n);
    memcpy(name + n, "byteorder", 9);
    const zipfile_member_t *m = zipfile_find(f->zip, name, n + 9);
    if (!m)
        return 0; /* before PyTorch 2.1: of the machine, and those are little-endian */
    int rc = zipfile_read(f->zip, m, &data);
    if (rc == 0 && (m->bytes != 6 || memcmp(data, "little", 6) != 0))
        rc = err_set(ERR_CONFIG, "%s: written in another byte order than little-endian", f->origin);
    return rc;
}

/* What a file is that is not an archive, as far as its first bytes tell. */
static int refuse(const void *bytes, uint64_t total, const char *origin)
{
    /* The pickled magic number that torch.save began with before 1.6. */
    static const unsigned char old[] = {0x8A, 0x0A, 0x6C, 0xFC, 0x9C, 0x46, 0xF9};
    static const char lfs[] = "version https://git-lfs";
    const char *what = "not a file of torch.save";
    if (total >= 2 + sizeof old && memcmp((const char *)bytes + 2, old, sizeof old) == 0)
        what = "in the format from before PyTorch 1.6: load it in PyTorch and torch.save it again";
    else if (total >= sizeof lfs - 1 && memcmp(bytes, lfs, sizeof lfs - 1) == 0)
        what = "a pointer of Git LFS instead of the file: run `git lfs pull` where it came from";
    else if (total == 0)
        what = "an empty file";
    return err_set(ERR_CONFIG, "%s: %s", origin, what);
}

static int read_all(torchfile_t *f, const void *bytes, uint64_t total)
{
    const zipfile_member_t *m = NULL;
    const void *data = NULL;
    int rc = zipfile_open(bytes, total, f->origin, &f->zip);
    if (rc == 0)
        rc = find_root(f, &m);
    if (rc == 0)
        rc = check_byteorder(f);
    if (rc == 0)
        rc = zipfile_read(f->zip, m, &data);
    if (rc == 0)
        rc = pickle_load(data, m->bytes, f->origin, &f->pickle);
    if (rc < 0)
        return rc;
    f->storages = calloc(zipfile_count(f->zip), sizeof *f->storages);
    if (!f->storages)
        return err_set(ERR_ENV, "%s: out of memory", f->origin);
    return torchfile_walk(f);
}

int torchfile_open(const void *bytes, uint64_t total, const char *origin, torchfile_t **file)
{
    int rc;
    *file = NULL;
    if (!zipfile_is(bytes, total))
        return refuse(bytes, total, origin);
    torchfile_t *f = calloc(1, sizeof *f);
    if (!f || !(f->origin = strdup(origin))) {
        free(f);
        return err_set(ERR_ENV, "%s: out of memory", origin);
    }
    CHECK_GOTO(read_all(f, bytes, total), rc, fail);
    *file = f;
    return 0;
fail:
    torchfile_free(&f);
    return rc;
}

void torchfile_free(torchfile_t **file)
{
    torchfile_t *f = *file;
    if (!f)
        return;
    for (int32_t i = 0; i < f->count; i++)
        free((char *)f->tensors[i].name);
    for (int32_t i = 0; i < f->n_classes; i++)
        free(f->classes[i]);
    free(f->tensors);
    free(f->classes);
    free(f->storages);
    pickle_free(&f->pickle);
    zipfile_free(&f->zip);
    free(f->origin);
    free(f);
    *file = NULL;
}

const torchfile_info_t *torchfile_info(const torchfile_t *file)
{
    return &file->info;
}

int32_t torchfile_count(const torchfile_t *file)
{
    return file->count;
}

const tensorview_t *torchfile_at(const torchfile_t *file, int32_t i)
{
    return i >= 0 && i < file->count ? &file->tensors[i] : NULL;
}

int32_t torchfile_classes(const torchfile_t *file)
{
    return file->n_classes;
}

const char *torchfile_class(const torchfile_t *file, int32_t i)
{
    return i >= 0 && i < file->n_classes ? file->classes[i] : NULL;
}
