#include "tests/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>

static void die(const char *what, const char *path)
{
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    abort();
}

void scratch_begin(char folder[SCRATCH_PATH])
{
    const char *base = getenv("TMPDIR");
    snprintf(folder, SCRATCH_PATH, "%s/sluice-test-XXXXXX", base && base[0] ? base : "/tmp");
    if (!mkdtemp(folder))
        die("mkdtemp", folder);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

void scratch_end(const char *folder)
{
    if (nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        die("remove", folder);
}

static void make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            die("mkdir", path);
        *slash = '/';
    }
}

const char *scratch_folder(const char *folder, const char *name)
{
    static char path[SCRATCH_PATH];
    snprintf(path, sizeof path, "%s/%s/", folder, name);
    make_parents(path);
    path[strlen(path) - 1] = '\0';
    return path;
}

const char *scratch_write(const char *folder, const char *name, const void *data, size_t bytes)
{
    static char path[SCRATCH_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    make_parents(path);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        die("write", path);
    return path;
}

const char *scratch_text(const char *folder, const char *name, const char *text)
{
    return scratch_write(folder, name, text, strlen(text));
}

uint8_t *scratch_read(const char *path, size_t *bytes)
{
    struct stat st;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &st) != 0) {
        if (file)
            fclose(file);
        return NULL;
    }
    uint8_t *data = malloc((size_t)st.st_size + 1);
    *bytes = data ? fread(data, 1, (size_t)st.st_size, file) : 0;
    fclose(file);
    return data;
}

uint8_t *scratch_jpeg(int width, int height, int level, size_t *bytes)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr error;
    unsigned char *out = NULL;
    unsigned long size = 0;
    JSAMPROW row = malloc((size_t)width * 3);
    if (!row)
        die("malloc", "row");
    c.err = jpeg_std_error(&error);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &size);
    c.image_width = (JDIMENSION)width;
    c.image_height = (JDIMENSION)height;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    jpeg_set_defaults(&c);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            row[3 * x] = (JSAMPLE)(x * 200 / width);
            row[3 * x + 1] = (JSAMPLE)(y * 200 / height);
            row[3 * x + 2] = (JSAMPLE)level;
        }
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    free(row);
    *bytes = size;
    return out;
}

void scratch_write_jpeg(const char *folder, const char *name, int width, int height)
{
    size_t bytes;
    uint8_t *data = scratch_jpeg(width, height, 100, &bytes);
    scratch_write(folder, name, data, bytes);
    free(data);
}

const char *scratch_data(const char *name)
{
    static char path[SCRATCH_PATH];
    const char *base = getenv("SLUICE_TEST_DATA");
    snprintf(path, sizeof path, "%s/%s", base && base[0] ? base : "../shared/data", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

static int rewrite(const char *path, const char *mode, const char *text, int times)
{
    FILE *file = fopen(path, mode);
    for (int i = 0; file && i < times; i++)
        fputs(text, file);
    return file ? fclose(file) : -1;
}

void scratch_spoil(const char *path, int way)
{
    char beside[2 * SCRATCH_PATH];
    snprintf(beside, sizeof beside, "%s.link", path);
    int rc = way == 0 || way > 3 ? unlink(path) : 0;
    if (way == 1)
        rc = truncate(path, 50);
    else if (way == 2)
        rc = rewrite(path, "a", "more", 1);
    else if (way == 3)
        rc = rewrite(path, "r+", "no", 300);
    else if (way == 4 && rc == 0)
        rc = mkdir(path, 0700);
    else if (way == 5 && rc == 0)
        rc = mkfifo(path, 0600);
    else if (way == 6 && rc == 0)
        rc = symlink(beside, path) != 0 ? -1 : symlink(path, beside);
    if (rc != 0)
        die("spoil", path);
}

int scratch_descriptors(const char *folder)
{
    char to[SCRATCH_PATH];
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        die("opendir", "/proc/self/fd");
    for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
        ssize_t bytes = readlinkat(dirfd(dir), e->d_name, to, sizeof to);
        n += bytes > 0 && strncmp(to, folder, strlen(folder)) == 0;
    }
    closedir(dir);
    return n;
}
