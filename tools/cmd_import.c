/* `sluice import X.pt [out=Y.safetensors]`: another program's weights as a file of ours. */
#include "control/text.h"
#include "shm/err.h"
#include "tools/commands.h"
#include "trainer/import.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- writing, whole or not at all ---- */

static int write_all(int fd, const char *data, uint64_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        data += n;
        bytes -= (uint64_t)n;
    }
    return 0;
}

/* Gives the finished file its name, which must still be free. */
static int name_it(const char *temporary, const char *path)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    /* A file system that does not know the flag (NFS): looked at first, then named. */
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    if (access(path, F_OK) == 0) {
        errno = EEXIST;
        return -1;
    }
    return rename(temporary, path);
}

/* The folder's entry reaches the disk too; where that cannot be asked for, the file itself has. */
static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 2,
             slash ? path : "./");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

static int write_file(const char *path, const void *data, uint64_t bytes)
{
    char temporary[PATH_MAX + 32];
    const char *slash = strrchr(path, '/');
    const int folder = slash ? (int)(slash - path + 1) : 0;
    snprintf(temporary, sizeof temporary, "%.*s.%.200s.%d.tmp", folder, path, path + folder,
             (int)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_sys(ERR_ENV, "cannot write beside %s", path);
    int failed = write_all(fd, data, bytes) != 0 || fsync(fd) != 0;
    if (close(fd) != 0 || failed || name_it(temporary, path) != 0) {
        int rc = err_sys(ERR_ENV, "cannot write %s (%llu bytes)", path, (unsigned long long)bytes);
        unlink(temporary);
        return rc;
    }
    sync_folder(path);
    return 0;
}

/* ---- the command ---- */

static int parse(int argc, char **argv, const char **in, char *out, size_t room)
{
    const char *named = NULL;
    *in = NULL;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "out=", 4) == 0) {
            named = argv[i] + 4;
        } else if (*in) {
            return err_set(ERR_CONFIG, "%s: one file at a time; %s was named before", argv[i], *in);
        } else {
            *in = argv[i];
        }
    }
    if (!*in)
        return err_set(ERR_CONFIG, "usage: sluice import X.pt [out=Y.safetensors]");
    const char *slash = strrchr(*in, '/'), *dot = strrchr(*in, '.');
    const int stem = dot && dot > (slash ? slash : *in) ? (int)(dot - *in) : (int)strlen(*in);
    const int n = named ? snprintf(out, room, "%s", named)
                        : snprintf(out, room, "%.*s.safetensors", stem, *in);
    if (n < 0 || (size_t)n >= room)
        return err_set(ERR_CONFIG, "out=: the path is too long");
    if (n <= 12 || strcmp(out + n - 12, ".safetensors") != 0)
        return err_set(ERR_CONFIG, "out=%s: a name that ends with .safetensors is needed", out);
    /* Before minutes of reading; asked again when the file gets its name. */
    if (access(out, F_OK) == 0)
        return err_set(ERR_CONFIG, "%s is there already: give another name with out=", out);
    return 0;
}

static void print_line(const char *name, char *text)
{
    text_printable(text);
    printf("  %-13s %s\n", name, text);
}

/* "80: person, bicycle, car, ..." */
static void class_text(const modelfile_t *f, char *text, size_t room)
{
    int32_t n;
    const char *const *names = modelfile_classes(f, &n);
    size_t at = (size_t)snprintf(text, room, "%d%s", modelfile_info(f)->nc,
                                 names ? ": " : ", without names");
    for (int32_t i = 0; i < n && at < room; i++) {
        if (at > 90) {
            snprintf(text + at, room - at, ", ...");
            return;
        }
        at += (size_t)snprintf(text + at, room - at, "%s%.40s", i ? ", " : "", names[i]);
    }
}

static void print_found(const modelfile_t *f)
{
    const modelfile_info_t *i = modelfile_info(f);
    char text[1024], who[128] = "";
    if (i->version[0] || i->date[0])
        snprintf(who, sizeof who, " (by version %s%s%s)", i->version[0] ? i->version : "?",
                 i->date[0] ? " of " : "", i->date);
    snprintf(text, sizeof text, "%s%s", modelfile_origin(f), who);
    text_printable(text);
    puts(text);
    snprintf(text, sizeof text, "%s%s%s%s%s", i->averaged ? "averaged weights (EMA)" : "weights",
             i->part[0] ? " under " : "", i->part, i->class_name[0] ? " of a whole " : "",
             i->class_name);
    print_line("what", text);
    snprintf(text, sizeof text, "%s%s%s%s%s%s",
             i->model[0] ? i->model : "not one of yolo11 and yolov8, n to x",
             i->model[0] ? ", as its tensors are" : "", i->table[0] ? "; it says " : "", i->table,
             i->prefix[0] ? "; names began with " : "", i->prefix);
    print_line("architecture", text);
    class_text(f, text, sizeof text);
    print_line("classes", text);
    snprintf(text, sizeof text, "%d, %.2f M numbers, %s", modelfile_count(f),
             (double)i->elements / 1e6, i->dtype);
    if (i->extra)
        snprintf(text + strlen(text), sizeof text - strlen(text),
                 "; %d of them have no place in the model, as %s", i->extra, i->first_extra);
    print_line("tensors", text);
}

int cmd_import(int argc, char **argv)
{
    char out[PATH_MAX], text[PATH_MAX + 512];
    const char *in;
    modelfile_t *file = NULL;
    safetensors_writer_t *writer = NULL;
    void *image = NULL;
    import_t what;
    int rc;
    CHECK_GOTO(parse(argc, argv, &in, out, sizeof out), rc, done);
    CHECK_GOTO(modelfile_open(in, &file), rc, done);
    print_found(file);
    CHECK_GOTO(safetensors_writer_new(&writer), rc, done);
    CHECK_GOTO(import_image(file, writer, &what), rc, done);
    const uint64_t bytes = safetensors_writer_bytes(writer);
    image = malloc(bytes);
    if (!image) {
        rc = err_set(ERR_ENV, "out of memory for a file of %llu bytes", (unsigned long long)bytes);
        goto done;
    }
    CHECK_GOTO(safetensors_writer_image(writer, image, bytes), rc, done);
    CHECK_GOTO(write_file(out, image, bytes), rc, done);
    weights_say(&what.report, in, text, sizeof text);
    text_printable(text);
    printf("%s\n%s: %d tensors, %.2f M parameters, F32, %.1f MB\n", text, out, what.tensors,
           (double)what.parameters / 1e6, (double)bytes / 1e6);
done:
    free(image);
    safetensors_writer_free(&writer);
    modelfile_free(&file);
    return rc;
}
