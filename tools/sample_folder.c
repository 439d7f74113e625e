#include "tools/sample_folder.h"

#include "shm/err.h"
#include "tools/mkpath.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char mark[] = ".sluice-sample";
static const char *const folders[] = {"images/train", "images/val", "labels/train", "labels/val"};
enum { FOLDERS = 4 };

void sample_name(char name[SAMPLE_NAME_BYTES], const char *what, int val, int index,
                 const char *extension)
{
    snprintf(name, SAMPLE_NAME_BYTES, "%s/%s/plate_%05d.%s", what, val ? "val" : "train", index,
             extension);
}

/* plate_00012.jpg or .txt */
static int is_ours(const char *name)
{
    int index, end = 0;
    return sscanf(name, "plate_%5d.%n", &index, &end) == 1 && end == 12 &&
           (strcmp(name + end, "jpg") == 0 || strcmp(name + end, "txt") == 0);
}

static int is_dot(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Goes over a folder's entries; NULL when it does not exist. */
static DIR *open_entries(int fd, const char *name)
{
    int folder = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = folder < 0 ? NULL : fdopendir(folder);
    if (!dir && folder >= 0)
        close(folder);
    return dir;
}

static int is_empty(int fd)
{
    DIR *dir = open_entries(fd, ".");
    int empty = 1;
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e && empty; e = readdir(dir))
        empty = is_dot(e->d_name);
    if (dir)
        closedir(dir);
    return empty;
}

/* Looks at (remove 0) or removes (1) the files of one folder. */
static int sweep(int fd, const char *folder, int remove)
{
    DIR *dir = open_entries(fd, folder);
    int rc = 0;
    for (const struct dirent *e = dir ? readdir(dir) : NULL; e && rc == 0; e = readdir(dir)) {
        if (is_dot(e->d_name))
            continue;
        if (!is_ours(e->d_name))
            rc = err_set(ERR_CONFIG,
                         "%s/%s was not written by sluice sample; choose another folder or move it",
                         folder, e->d_name);
        else if (remove && unlinkat(dirfd(dir), e->d_name, 0) != 0)
            rc = err_sys(ERR_ENV, "cannot remove %s/%s", folder, e->d_name);
    }
    if (dir)
        closedir(dir);
    return rc;
}

static int empty_ours(int fd)
{
    for (int remove = 0; remove < 2; remove++) {
        if (remove && unlinkat(fd, "data.yaml", 0) != 0 && errno != ENOENT)
            return err_sys(ERR_ENV, "cannot remove data.yaml");
        for (int i = 0; i < FOLDERS; i++) {
            int rc = sweep(fd, folders[i], remove);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static int make_folders(int fd)
{
    static const char *const all[] = {"images",     "labels",       "images/train",
                                      "images/val", "labels/train", "labels/val"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (mkdirat(fd, all[i], 0777) != 0 && errno != EEXIST)
            return err_sys(ERR_ENV, "cannot make the folder %s", all[i]);
    return 0;
}

static int make_path(const char *path)
{
    char part[MKPATH_BYTES];
    if (mkpath(path, part) == 0)
        return 0;
    return err_sys(errno == ENAMETOOLONG ? ERR_CONFIG : ERR_ENV, "cannot make the folder %s", part);
}

int sample_folder_open(const char *path, int *out)
{
    int rc = make_path(path), fd = -1;
    if (rc < 0)
        return rc;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(ERR_ENV, "cannot open this folder");
    if (faccessat(fd, mark, F_OK, 0) == 0) {
        CHECK_GOTO(empty_ours(fd), rc, fail);
    } else if (!is_empty(fd)) {
        rc = err_set(ERR_CONFIG,
                     "this folder is not empty and was not made by sluice sample; choose "
                     "another one");
        goto fail;
    }
    CHECK_GOTO(sample_put(fd, mark, "", 0), rc, fail);
    CHECK_GOTO(make_folders(fd), rc, fail);
    *out = fd;
    return 0;
fail:
    close(fd);
    return rc;
}

void sample_folder_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

int sample_put(int fd, const char *name, const void *data, size_t bytes)
{
    int file = openat(fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return err_sys(ERR_ENV, "cannot write %s", name);
    int rc = 0;
    for (const char *at = data; rc == 0 && bytes > 0;) {
        ssize_t n = write(file, at, bytes);
        if (n < 0 && errno != EINTR)
            rc = err_sys(ERR_ENV, "cannot write %s", name);
        else if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    if (close(file) != 0 && rc == 0)
        rc = err_sys(ERR_ENV, "cannot write %s", name);
    return rc;
}
