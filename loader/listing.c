#include "loader/listing.h"

#include "shm/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, LISTING_TELL = 256, LINE_MOST = 16 << 10 /* bytes of a list's line */ };

/* The folders from the split's entry down to the present one, to notice links that lead back up. */
typedef struct {
    dev_t dev[DEPTH_MAX];
    ino_t ino[DEPTH_MAX];
    int depth;
    listing_seen_fn seen;
    void *user;
} trail_t;

/* One more name; tells of every LISTING_TELL-th. */
static int count_name(listing_t *l, const trail_t *trail)
{
    l->looked_at++;
    return trail->seen && l->looked_at % LISTING_TELL == 0 ? trail->seen(trail->user, l->looked_at)
                                                           : 0;
}

typedef enum { NAME_OTHER = 0, NAME_READ, NAME_UNREAD } name_kind_t;

/* facts/yolo.md 7.2: the extensions that count as images; of these JPEG, PNG and BMP are read here.
 */
static name_kind_t name_kind(const char *path)
{
    static const char *const read[] = {"bmp", "jpeg", "jpg", "png"};
    static const char *const unread[] = {"avif", "dng", "heic", "heif", "jp2",
                                         "mpo",  "tif", "tiff", "webp"};
    const char *extension = path_extension(path);
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        if (strcasecmp(extension, read[i]) == 0)
            return NAME_READ;
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++)
        if (strcasecmp(extension, unread[i]) == 0)
            return NAME_UNREAD;
    return NAME_OTHER;
}

static int refuse(listing_t *l, const char *path, const char *reason)
{
    int rc = paths_add(&l->refused, path);
    return rc < 0 ? rc : paths_add(&l->reasons, reason);
}

static int add_image(listing_t *l, const char *path)
{
    char reason[160];
    if (name_kind(path) == NAME_READ)
        return paths_add(&l->files, path);
    snprintf(reason, sizeof reason, "format not supported: .%.16s (JPEG, PNG and BMP are)",
             path_extension(path));
    return refuse(l, path, reason);
}

/* ---- folders ---- */

static int walk(listing_t *l, const char *folder, trail_t *trail);

static int walk_entry(listing_t *l, const char *path, trail_t *trail)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        char reason[160];
        /* A link to nowhere may be anything; what is there and cannot be reached may be a folder of
         * images. */
        if (name_kind(path) == NAME_OTHER && (errno == ENOENT || errno == ELOOP))
            return 0;
        snprintf(reason, sizeof reason, "cannot be looked at: %s", strerror(errno));
        return refuse(l, path, reason);
    }
    if (S_ISDIR(st.st_mode)) {
        for (int i = 0; i < trail->depth; i++)
            if (trail->dev[i] == st.st_dev && trail->ino[i] == st.st_ino)
                return refuse(l, path, "folder not searched: a link back to one above it");
        return walk(l, path, trail);
    }
    if (name_kind(path) == NAME_OTHER)
        return 0;
    return S_ISREG(st.st_mode) ? add_image(l, path) : refuse(l, path, "not a regular file");
}

static int walk(listing_t *l, const char *folder, trail_t *trail)
{
    struct stat st;
    if (trail->depth == DEPTH_MAX)
        return err_set(ERR_DATA, "%s: folders are nested more than %d deep", folder, DEPTH_MAX);
    DIR *dir = opendir(folder);
    if (!dir || stat(folder, &st) != 0) {
        /* A folder that is another's (lost+found) does not keep the others from being used; one
         * that the storage loses would. */
        if (errno == EACCES && trail->depth > 0 && !dir)
            return refuse(l, folder, "folder not searched: Permission denied");
        int rc = err_sys(ERR_DATA, "%s: cannot read this folder", folder);
        if (dir)
            closedir(dir);
        return rc;
    }
    trail->dev[trail->depth] = st.st_dev;
    trail->ino[trail->depth++] = st.st_ino;
    int rc = 0;
    for (;;) {
        errno = 0;
        const struct dirent *e = readdir(dir);
        if (!e)
            break;
        if (e->d_name[0] == '.')
            continue;
        char *path = path_join(folder, e->d_name);
        rc = path ? walk_entry(l, path, trail) : err_set(ERR_ENV, "no memory for a path");
        free(path);
        if (rc >= 0)
            rc = count_name(l, trail);
        if (rc < 0)
            goto done;
    }
    if (errno)
        rc = err_sys(ERR_DATA, "%s: cannot read this folder to its end", folder);
done:
    trail->depth--;
    closedir(dir);
    return rc;
}

/* ---- lists ---- */

/* Where a line of a list leads; NULL without memory. A path that leads nowhere is taken from the
 * list's folder, so that the report names one place. */
static char *resolve_line(const dataset_t *d, const char *folder, const char *line)
{
    int dotted = strncmp(line, "./", 2) == 0;
    char *beside = path_join(folder, dotted ? line + 2 : line);
    if (!beside || dotted || path_exists(beside))
        return beside;
    char *rooted = path_join(d->root, line);
    if (rooted && path_exists(rooted)) {
        free(beside);
        return rooted;
    }
    free(rooted);
    if (!path_exists(line))
        return beside;
    free(beside);
    char *here = realpath(".", NULL), *path = here ? path_join(here, line) : NULL;
    free(here);
    return path;
}

static int add_line(listing_t *l, const dataset_t *d, const char *folder, const char *line)
{
    struct stat st;
    char *path = resolve_line(d, folder, line);
    if (!path)
        return err_set(ERR_ENV, "no memory for a path");
    int rc;
    if (name_kind(path) == NAME_OTHER)
        rc = refuse(l, path, "listed, but its name is not an image's");
    else if (stat(path, &st) != 0)
        rc = refuse(l, path,
                    errno == ENOENT ? "listed, but there is no such file" : strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = refuse(l, path, "listed, but not a regular file");
    else
        rc = add_image(l, path);
    free(path);
    return rc;
}

/* A line without its end, in `line` of LINE_MOST bytes; its length, or -1 at the end of the file, or
 * LINE_MOST when it is longer than any path, as a line of what is no text is. */
static int read_line(FILE *file, char *line)
{
    int n = 0, c;
    while ((c = getc_unlocked(file)) != EOF && c != '\n') {
        if (n == LINE_MOST - 1)
            return LINE_MOST;
        line[n++] = (char)c;
    }
    if (c == EOF && n == 0)
        return -1;
    while (n > 0 && line[n - 1] == '\r')
        n--;
    line[n] = '\0';
    return n;
}

static int read_list(listing_t *l, const dataset_t *d, const char *list, const trail_t *trail)
{
    /* O_NONBLOCK: a FIFO in the list's place must not hold up the scan. */
    int fd = open(list, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    struct stat st;
    char *folder = path_folder(list), *line = malloc(LINE_MOST);
    int rc = 0, first = 1, n;
    if (!file) {
        rc = err_sys(ERR_DATA, "%s: cannot read this list of images", list);
        goto done;
    }
    if (!folder || !line) {
        rc = err_set(ERR_ENV, "no memory for a list of images");
        goto done;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        rc = err_set(ERR_DATA, "%s: not a file; a text file of one image path a line is needed",
                     list);
        goto done;
    }
    while ((n = read_line(file, line)) >= 0) {
        char *text = line;
        if (first && strncmp(text, "\xEF\xBB\xBF", 3) == 0)
            text += 3; /* a byte order mark, left by some editors */
        first = 0;
        if (n == LINE_MOST || strlen(line) != (size_t)n) {
            rc = err_set(ERR_DATA, "%s: not a text file: one image path a line is needed", list);
            goto done;
        }
        if (text[strspn(text, " \t")]) {
            CHECK_GOTO(add_line(l, d, folder, text), rc, done);
            CHECK_GOTO(count_name(l, trail), rc, done);
        }
    }
    if (ferror(file))
        rc = err_sys(ERR_DATA, "%s: cannot read this list to its end", list);
done:
    free(line);
    free(folder);
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- the whole ---- */

typedef struct {
    char *path, *reason;
} refusal_t;

static int compare_refusals(const void *a, const void *b)
{
    const refusal_t *x = a, *y = b;
    int order = strcmp(x->path, y->path);
    return order ? order : strcmp(x->reason, y->reason);
}

static int sort_refusals(listing_t *l)
{
    uint32_t n = l->refused.count;
    refusal_t *both = calloc((size_t)n + 1, sizeof *both);
    if (!both)
        return err_set(ERR_ENV, "no memory for %u remarks", n);
    for (uint32_t i = 0; i < n; i++)
        both[i] = (refusal_t){l->refused.items[i], l->reasons.items[i]};
    qsort(both, n, sizeof *both, compare_refusals);
    for (uint32_t i = 0; i < n; i++) {
        l->refused.items[i] = both[i].path;
        l->reasons.items[i] = both[i].reason;
    }
    free(both);
    return 0;
}

int listing_make(const dataset_t *d, catalog_split_t split, listing_seen_fn seen, void *user,
                 listing_t *l)
{
    const paths_t *entries = &d->entries[split];
    int rc = 0;
    memset(l, 0, sizeof *l);
    for (uint32_t i = 0; i < entries->count; i++) {
        const char *entry = entries->items[i];
        trail_t trail = {.seen = seen, .user = user};
        if (path_is_folder(entry))
            CHECK_GOTO(walk(l, entry, &trail), rc, fail);
        else if (strcasecmp(path_extension(entry), "txt") == 0)
            CHECK_GOTO(read_list(l, d, entry, &trail), rc, fail);
        else if (d->images_too && name_kind(entry) != NAME_OTHER)
            CHECK_GOTO(add_image(l, entry), rc, fail);
        else {
            rc = err_set(ERR_DATA, "%s: neither %sa folder nor a .txt list of images", entry,
                         d->images_too ? "an image, " : "");
            goto fail;
        }
    }
    paths_sort(&l->files);
    CHECK_GOTO(sort_refusals(l), rc, fail);
    return 0;
fail:
    listing_fini(l);
    return err_add(rc, "%s images", d->images_too ? "source" : dataset_split_name(split));
}

void listing_fini(listing_t *l)
{
    paths_fini(&l->files);
    paths_fini(&l->refused);
    paths_fini(&l->reasons);
}

char *listing_label_path(const char *image)
{
    static const char images[] = "/images/", labels[] = "/labels/";
    const char *last = NULL;
    for (const char *at = strstr(image, images); at; at = strstr(at + 1, images))
        last = at;
    const char *extension = path_extension(image);
    size_t stem = extension[0] ? (size_t)(extension - 1 - image) : strlen(image);
    char *path = NULL;
    int n;
    if (last) {
        size_t head = (size_t)(last - image), tail = head + sizeof images - 1;
        n = asprintf(&path, "%.*s%s%.*s.txt", (int)head, image, labels, (int)(stem - tail),
                     image + tail);
    } else {
        n = asprintf(&path, "%.*s.txt", (int)stem, image);
    }
    return n < 0 ? NULL : path;
}
