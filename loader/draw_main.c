#include "loader/draw_main.h"

#include "control/guard.h"
#include "control/log.h"
#include "control/spool.h"
#include "loader/decode.h"
#include "loader/jpeg_encode.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DRAW_QUALITY = 90, DRAW_FILE_MOST = 1 << 30, DRAW_LABEL = 320 };

typedef struct {
    const char *run_dir;
    int dir, lifeline, spool;
    long first, step, parent;
    picture_limits_t limits;
    decode_t *decode;
    char **classes;
    uint32_t n_classes;
    uint8_t *file; /* the present image's bytes; grows, kept */
    size_t room, bytes;
} drawer_t;

static int number(const char *text, long *value)
{
    char *end;
    errno = 0;
    *value = text ? strtol(text, &end, 10) : -1;
    return text && !errno && !*end && end != text && *value >= 0
               ? 0
               : err_set(ERR_CONFIG, "--draw is started by `sluice predict`");
}

static int parse(int argc, char **argv, drawer_t *d)
{
    d->lifeline = d->spool = -1;
    for (int i = 1; i + 1 < argc; i++) {
        long value;
        int rc = 0;
        if (strcmp(argv[i], "--draw") == 0 && i + 3 < argc) {
            d->run_dir = argv[i + 1];
            rc = number(argv[i + 2], &d->first);
            rc = rc < 0 ? rc : number(argv[i + 3], &d->step);
        } else if (strcmp(argv[i], "--parent") == 0) {
            rc = number(argv[i + 1], &d->parent);
        } else if (strcmp(argv[i], "--lifeline") == 0) {
            rc = number(argv[i + 1], &value);
            d->lifeline = (int)value;
        } else if (strcmp(argv[i], "--spool") == 0) {
            rc = number(argv[i + 1], &value);
            d->spool = (int)value;
        }
        if (rc < 0)
            return rc;
    }
    if (!d->run_dir || d->lifeline < 0 || d->spool < 0 || d->step < 1)
        return err_set(ERR_CONFIG, "--draw is started by `sluice predict`");
    /* The parent's death is ours, as a worker's (control/worker.h). */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        return err_sys(ERR_ENV, "PR_SET_PDEATHSIG");
    if (getppid() != (pid_t)d->parent)
        return err_set(ERR_GONE, "`sluice predict` is gone");
    int flags = fcntl(d->lifeline, F_GETFL);
    if (flags < 0 || fcntl(d->lifeline, F_SETFL, flags | O_NONBLOCK) != 0)
        return err_sys(ERR_ENV, "the lifeline");
    guard_start(d->lifeline, (pid_t)d->parent);
    return 0;
}

static int read_file(drawer_t *d, const char *path)
{
    struct stat st;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = err_sys(ERR_DATA, "cannot open it");
    } else if (!S_ISREG(st.st_mode) || st.st_size == 0 || st.st_size > DRAW_FILE_MOST) {
        rc = err_set(ERR_DATA, "not a file of 1 to %d bytes", DRAW_FILE_MOST);
    } else if ((size_t)st.st_size > d->room) {
        free(d->file);
        d->file = malloc((size_t)st.st_size);
        d->room = d->file ? (size_t)st.st_size : 0;
        if (!d->file)
            rc = err_set(ERR_ENV, "no memory for %lld bytes of it", (long long)st.st_size);
    }
    for (d->bytes = 0; rc == 0 && d->bytes < (size_t)st.st_size;) {
        ssize_t n = read(fd, d->file + d->bytes, (size_t)st.st_size - d->bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            rc = n < 0 ? err_sys(ERR_DATA, "cannot read it")
                       : err_set(ERR_DATA, "it became shorter while it was read");
        else
            d->bytes += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Whole or not at all: no name until all is written, then one that replaces. */
static int write_file(const drawer_t *d, const char *name, const unsigned char *bytes, size_t n)
{
    char base[SPOOL_NAME_BYTES + 8], temporary[SPOOL_NAME_BYTES + 32], self[64];
    snprintf(base, sizeof base, "%s.jpg", name);
    snprintf(temporary, sizeof temporary, ".%s.sluice-tmp", base);
    int fd = openat(d->dir, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666), named = 0;
    if (fd < 0) {
        fd = openat(d->dir, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        named = 1;
    }
    if (fd < 0)
        return err_sys(ERR_ENV, "cannot write %s/%s", d->run_dir, base);
    for (size_t at = 0; at < n;) {
        ssize_t some = write(fd, bytes + at, n - at);
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            goto fail;
        at += (size_t)some;
    }
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (!named) {
        unlinkat(d->dir, temporary, 0);
        if (linkat(AT_FDCWD, self, d->dir, temporary, AT_SYMLINK_FOLLOW) != 0)
            goto fail;
    }
    if (renameat(d->dir, temporary, d->dir, base) != 0)
        goto fail;
    close(fd);
    return 0;
fail:;
    int rc = err_sys(ERR_ENV, "cannot write %s/%s", d->run_dir, base);
    unlinkat(d->dir, temporary, 0);
    close(fd);
    return rc;
}

static void draw_all(const drawer_t *d, const spool_image_t *image, const draw_canvas_t *canvas)
{
    int line = draw_line_width(canvas->width, canvas->height);
    /* The best last, on top. */
    for (uint32_t i = image->n; i-- > 0;) {
        const wire_box_t *b = &image->boxes[i];
        char text[DRAW_LABEL];
        uint8_t rgb[3];
        draw_colour(b->cls, rgb);
        draw_box(canvas, b->x1, b->y1, b->x2, b->y2, line, rgb);
        snprintf(text, sizeof text, "%s %.2f", b->cls < d->n_classes ? d->classes[b->cls] : "?",
                 (double)b->score);
        draw_label(canvas, b->x1, b->y1, text, line, rgb);
    }
}

static int draw_image(drawer_t *d, const spool_image_t *image)
{
    const picture_t *picture;
    unsigned char *bytes = NULL;
    unsigned long size;
    int rc = read_file(d, image->path);
    if (rc == 0)
        rc = decode_image(d->decode, 0, d->file, d->bytes, &d->limits, &picture);
    if (rc < 0)
        return rc;
    if (picture->width != image->width || picture->height != image->height)
        return err_set(ERR_DATA, "is now %u x %u, not %u x %u as when it was looked at",
                       picture->width, picture->height, image->width, image->height);
    const draw_canvas_t canvas = {picture->pixels, picture->width, picture->height,
                                  picture->stride};
    draw_all(d, image, &canvas);
    rc = jpeg_encode(&canvas, DRAW_QUALITY, &bytes, &size);
    if (rc == 0)
        rc = write_file(d, image->name, bytes, size);
    free(bytes);
    decode_trim(d->decode);
    return rc;
}

static int draw_spool(drawer_t *d, FILE *in)
{
    spool_image_t *image = calloc(1, sizeof *image);
    int rc = image ? spool_open(in, &d->classes, &d->n_classes)
                   : err_set(ERR_ENV, "no memory to draw with");
    for (long i = 0; rc == 0; i++) {
        int more = spool_next(in, image);
        if (more <= 0) {
            rc = more;
            break;
        }
        if (i < d->first || (i - d->first) % d->step != 0)
            continue;
        rc = draw_image(d, image);
        if (rc == ERR_DATA)
            printf("bad %s: %s\n", image->path, err_text());
        else if (rc == 0)
            printf("done %s\n", image->name);
        fflush(stdout);
        rc = rc == ERR_DATA ? 0 : rc;
    }
    if (image)
        free(image->boxes);
    free(image);
    return rc;
}

int draw_main(int argc, char **argv)
{
    static drawer_t d;
    static options_t o;
    char path[OPTIONS_PATH_BYTES];
    FILE *in = NULL;
    int rc;
    d.dir = -1;
    log_identity("draw", -1);
    decode_pin_heap();
    CHECK_GOTO(parse(argc, argv, &d), rc, done);
    options_default(&o);
    snprintf(path, sizeof path, "%.4000s/args.yaml", d.run_dir);
    CHECK_GOTO(options_load_yaml(&o, path), rc, done);
    d.limits = decode_limits(&o);
    CHECK_GOTO(decode_new(&d.decode), rc, done);
    d.dir = open(d.run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    in = d.dir >= 0 ? fdopen(d.spool, "r") : NULL;
    rc = in ? draw_spool(&d, in) : err_sys(ERR_ENV, "cannot open %s", d.run_dir);
done:
    if (rc < 0)
        printf("failed %s\n", err_text());
    fflush(stdout);
    if (in)
        fclose(in);
    spool_classes_free(&d.classes, d.n_classes);
    free(d.file);
    decode_free(&d.decode);
    return err_exit_status(rc);
}
