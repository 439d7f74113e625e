#include "loader/inspect.h"

#include "loader/listing.h"
#include "shm/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 64 << 10,    /* first read: the header of nearly every file */
    FILE_BYTES_MAX = 1 << 30, /* a loader holds the whole file in memory */
    TAIL_BYTES = 12,          /* PNG's IEND chunk; JPEG's end-of-image marker is its last 2 */
};

struct inspector {
    inspect_rules_t rules;
    decode_t *decode;
    uint8_t *buffer; /* the file's beginning, or all of it; grows, kept */
    size_t capacity;
};

/* A file while it is looked at. */
typedef struct {
    const char *path;
    int fd;
    size_t bytes, have; /* in the file; in the buffer */
    uint8_t tail[TAIL_BYTES];
} open_file_t;

int inspector_new(const inspect_rules_t *rules, inspector_t **out)
{
    inspector_t *in = calloc(1, sizeof *in);
    if (!in)
        return err_set(ERR_ENV, "no memory for the scan");
    in->rules = *rules;
    int rc = decode_new(&in->decode);
    if (rc < 0) {
        free(in);
        return rc;
    }
    *out = in;
    return 0;
}

void inspector_free(inspector_t **in)
{
    if (!*in)
        return;
    decode_free(&(*in)->decode);
    free((*in)->buffer);
    free(*in);
    *in = NULL;
}

void finding_fini(finding_t *f)
{
    labels_fini(&f->labels);
    free(f->dropped);
    free(f->warning);
    for (int i = 0; i < INSPECT_REMARKS; i++)
        free(f->remarks[i]);
    memset(f, 0, sizeof *f);
}

__attribute__((format(printf, 2, 3))) static int remark(finding_t *f, const char *fmt, ...)
{
    int i = 0;
    while (i < INSPECT_REMARKS && f->remarks[i])
        i++;
    if (i == INSPECT_REMARKS)
        return 0;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&f->remarks[i], fmt, ap);
    va_end(ap);
    if (n < 0) {
        f->remarks[i] = NULL;
        return err_set(ERR_ENV, "no memory for the scan's remarks");
    }
    return 0;
}

/* ---- reading ---- */

static int read_at(const open_file_t *file, uint8_t *to, size_t bytes, size_t at)
{
    while (bytes > 0) {
        ssize_t n = pread(file->fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(ERR_DATA, "cannot read it");
        if (n == 0)
            return err_set(ERR_DATA, "it became shorter while it was read");
        to += n;
        at += (size_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Has at least the first `bytes` of the file in the buffer. */
static int read_up_to(inspector_t *in, open_file_t *file, size_t bytes)
{
    if (bytes > file->bytes)
        bytes = file->bytes;
    if (bytes > in->capacity) {
        uint8_t *grown = realloc(in->buffer, bytes);
        if (!grown)
            return err_set(ERR_ENV, "no memory for %zu bytes of %s", bytes, file->path);
        in->buffer = grown;
        in->capacity = bytes;
    }
    if (bytes > file->have) {
        int rc = read_at(file, in->buffer + file->have, bytes - file->have, file->have);
        if (rc < 0)
            return rc;
        file->have = bytes;
    }
    return 0;
}

/* O_NONBLOCK: a name that has become a pipe must not hold up the scan; regular files ignore it. */
static int open_file(open_file_t *file, const char *path)
{
    struct stat st;
    file->path = path;
    file->have = 0;
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return err_sys(ERR_DATA, "cannot open it");
    if (fstat(file->fd, &st) != 0)
        return err_sys(ERR_DATA, "cannot look at it");
    if (!S_ISREG(st.st_mode))
        return err_set(ERR_DATA, "not a regular file");
    if (st.st_size == 0)
        return err_set(ERR_DATA, "the file is empty");
    if (st.st_size > FILE_BYTES_MAX)
        return err_set(ERR_DATA, "the file has %lld bytes; %d are the most", (long long)st.st_size,
                       FILE_BYTES_MAX);
    file->bytes = (size_t)st.st_size;
    size_t tail = file->bytes < TAIL_BYTES ? file->bytes : TAIL_BYTES;
    memset(file->tail, 0, sizeof file->tail);
    return read_at(file, file->tail + TAIL_BYTES - tail, tail, file->bytes - tail);
}

/* ---- checks ---- */

/* The header, from as little of the file as it takes. */
static int probe(inspector_t *in, open_file_t *file, decode_header_t *header)
{
    for (size_t bytes = HEAD_BYTES;; bytes *= 8) {
        int rc = read_up_to(in, file, bytes);
        if (rc < 0)
            return rc;
        rc = decode_probe(in->decode, in->buffer, file->have, &in->rules.limits, header);
        /* A complaint about a beginning may be about where we cut it. */
        if (file->have == file->bytes || (rc == 0 && header->warnings == 0))
            return rc;
    }
}

static int ends_well(const open_file_t *file, catalog_format_t format)
{
    static const uint8_t iend[TAIL_BYTES] = {0,   0,   0,    0,    'I',  'E',
                                             'N', 'D', 0xAE, 0x42, 0x60, 0x82};
    if (format == CATALOG_JPEG)
        return file->tail[TAIL_BYTES - 2] == 0xFF && file->tail[TAIL_BYTES - 1] == 0xD9;
    if (format == CATALOG_PNG)
        return memcmp(file->tail, iend, TAIL_BYTES) == 0;
    return 1;
}

/* Decodes the file; a warning leaves it out or is remarked. */
static int check_by_decoding(inspector_t *in, open_file_t *file, finding_t *f)
{
    const picture_t *picture;
    int rc = read_up_to(in, file, file->bytes);
    if (rc < 0)
        return rc;
    rc = decode_image(in->decode, 0, in->buffer, file->bytes, &in->rules.limits, &picture);
    if (rc < 0 || picture->warnings == 0)
        return rc;
    f->facts.warned = 1;
    if (in->rules.skip_warned)
        return err_set(ERR_DATA, "decodes with a warning (on_warning=skip): %s", picture->warning);
    int n = picture->warnings == 1
                ? asprintf(&f->warning, "decodes with a warning: %s", picture->warning)
                : asprintf(&f->warning, "decodes with %u warnings, the first: %s",
                           picture->warnings, picture->warning);
    if (n >= 0)
        return 0;
    f->warning = NULL;
    return err_set(ERR_ENV, "no memory for the scan's remarks");
}

static int check_pixels(inspector_t *in, open_file_t *file, finding_t *f)
{
    decode_header_t h;
    int rc = probe(in, file, &h);
    if (rc < 0)
        return rc;
    f->facts.width = h.width;
    f->facts.height = h.height;
    f->facts.format = (uint8_t)h.format;
    f->facts.orientation = (uint8_t)h.orientation;
    f->facts.file_bytes = file->bytes;
    if (h.width < INSPECT_SIDE_MIN || h.height < INSPECT_SIDE_MIN)
        return err_set(ERR_DATA, "%u x %u pixels: both sides must have at least %d", h.width,
                       h.height, INSPECT_SIDE_MIN);
    if (file->bytes < h.needs_bytes)
        return err_set(ERR_DATA, "the file is cut short: %zu bytes of %llu", file->bytes,
                       (unsigned long long)h.needs_bytes);
    if (h.remark && (rc = remark(f, "%s: taken as upright", h.remark)) < 0)
        return rc;
    int whole = ends_well(file, h.format);
    if (whole && h.warnings == 0 && !in->rules.decode_all) {
        f->sound = 1;
        return 0;
    }
    rc = check_by_decoding(in, file, f);
    f->sound = rc == 0 && whole && !f->facts.warned;
    if (rc < 0 || whole || f->facts.warned)
        return rc;
    return remark(f, "bytes follow the end of the image");
}

static int check_labels(inspector_t *in, const char *path, finding_t *f)
{
    char *file = listing_label_path(path);
    if (!file)
        return err_set(ERR_ENV, "no memory for a path");
    int rc = labels_read(file, in->rules.classes, in->rules.single_cls, &f->labels);
    if (rc == 0 && f->labels.n > in->rules.max_labels)
        rc = err_set(ERR_DATA, "%s: %u labels; max_labels allows %u", file, f->labels.n,
                     in->rules.max_labels);
    if (rc == 0 && f->labels.duplicates)
        rc = remark(f, "%s: %u duplicate row%s left out", file, f->labels.duplicates,
                    f->labels.duplicates == 1 ? "" : "s");
    free(file);
    return rc;
}

int inspect_image(inspector_t *in, const char *path, finding_t *f)
{
    open_file_t file;
    int rc = open_file(&file, path);
    if (rc == 0)
        rc = check_pixels(in, &file, f);
    if (file.fd >= 0)
        close(file.fd);
    if (rc == 0 && !in->rules.no_labels) {
        rc = check_labels(in, path, f);
        f->labels_bad = rc == ERR_DATA;
    }
    if (rc != ERR_DATA)
        return rc;
    f->dropped = strdup(err_text());
    return f->dropped ? 0 : err_set(ERR_ENV, "no memory for the scan's remarks");
}
