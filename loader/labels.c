/* DESIGN. A first pass cuts the text into rows of numbers, because only the whole file tells what
 * its rows are: one row of more than six fields makes all of them polygons (facts/yolo.md 7.4). The
 * second pass turns rows into boxes and checks them. All arithmetic is in float, as the reference's
 * is. */
#include "loader/labels.h"

#include "shm/err.h"
#include "shm/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 16 << 20, NUMBER_BYTES = 64, BOX_FIELDS = 5, POLYGON_ABOVE = 6 };
enum { ROWS_MAX = 2 * LABELS_MAX };
/* A cell holds those of up to eight images, a mosaic mixed with another. */
_Static_assert(8 * LABELS_MAX <= RING_MAX_LABELS, "the ring has room for a cell's labels");
/* Tolerance of facts/yolo.md 7.4: a hundredth of the image beyond its border. */
static const float coord_max = 1.01f, value_min = -0.01f;

typedef struct {
    size_t first;
    uint32_t fields, line;
} row_t;

typedef struct {
    const char *origin;
    uint32_t classes;
    int single_cls, polygons;
    float *values;
    size_t n_values, values_room;
    row_t *rows;
    size_t n_rows, rows_room;
} parse_t;

static int no_memory(const char *origin)
{
    return err_set(ERR_ENV, "%s: no memory for its labels", origin);
}

/* Makes room for `need` items of `size` bytes, by doubling. */
static int grow(void **items, size_t *room, size_t need, size_t size)
{
    if (need <= *room)
        return 0;
    size_t more = *room ? *room * 2 : 64;
    if (more < need)
        more = need;
    void *grown = realloc(*items, more * size);
    if (!grown)
        return -1;
    *items = grown;
    *room = more;
    return 0;
}

static int grow32(void **items, uint32_t *room, size_t need, size_t size)
{
    size_t wide = *room;
    if (grow(items, &wide, need, size) < 0)
        return -1;
    *room = (uint32_t)wide;
    return 0;
}

void labels_fini(labels_t *l)
{
    free(l->rows);
    free(l->points);
    memset(l, 0, sizeof *l);
}

/* ---- first pass: numbers ---- */

static int is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\v' || c == '\f';
}

static int read_number(parse_t *p, const char *text, size_t n, uint32_t line)
{
    char word[NUMBER_BYTES], *end = word;
    double value = NAN;
    if (n < sizeof word) {
        memcpy(word, text, n);
        word[n] = '\0';
        /* strtod also knows hexadecimal, which no label writer means. */
        if (!memchr(word, 'x', n) && !memchr(word, 'X', n))
            value = strtod(word, &end);
    }
    if (n >= sizeof word || end != word + n || !isfinite(value))
        return err_set(ERR_DATA, "%s:%u: '%.*s' is not a number", p->origin, line,
                       (int)(n < 40 ? n : 40), text);
    if (grow((void **)&p->values, &p->values_room, p->n_values + 1, sizeof *p->values) < 0)
        return no_memory(p->origin);
    p->values[p->n_values++] = (float)value;
    return 0;
}

static int read_row(parse_t *p, const char *text, size_t n, uint32_t line)
{
    row_t row = {.first = p->n_values, .line = line};
    for (size_t at = 0; at < n;) {
        while (at < n && is_blank(text[at]))
            at++;
        size_t end = at;
        while (end < n && !is_blank(text[end]))
            end++;
        if (end == at)
            break;
        int rc = read_number(p, text + at, end - at, line);
        if (rc < 0)
            return rc;
        row.fields++;
        at = end;
    }
    if (row.fields == 0)
        return 0;
    /* Before its memory: the duplicates of a file that has so many count too. */
    if (p->n_rows == ROWS_MAX)
        return err_set(ERR_DATA, "%s: more than %d rows; an image may have %d labels", p->origin,
                       ROWS_MAX, LABELS_MAX);
    if (grow((void **)&p->rows, &p->rows_room, p->n_rows + 1, sizeof *p->rows) < 0)
        return no_memory(p->origin);
    p->rows[p->n_rows++] = row;
    p->polygons |= row.fields > POLYGON_ABOVE;
    return 0;
}

/* Lines end with LF, CR LF or CR. */
static int read_rows(parse_t *p, const char *text, size_t bytes)
{
    uint32_t line = 1;
    size_t at = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (at < bytes) {
        size_t end = at;
        while (end < bytes && text[end] != '\n' && text[end] != '\r')
            end++;
        int rc = read_row(p, text + at, end - at, line++);
        if (rc < 0)
            return rc;
        at = end + 1;
        if (end < bytes && text[end] == '\r' && at < bytes && text[at] == '\n')
            at++;
    }
    return 0;
}

/* ---- second pass: boxes ---- */

static int add_points(const parse_t *p, const row_t *row, labels_t *l, catalog_label_t *label)
{
    const float *xy = p->values + row->first + 1;
    uint32_t n = (row->fields - 1) / 2;
    if (row->fields < 7 || row->fields % 2 == 0)
        return err_set(
            ERR_DATA,
            "%s:%u: %u fields in a file of polygons: a class and at least three points x y "
            "are needed",
            p->origin, row->line, row->fields);
    if (grow32((void **)&l->points, &l->points_room, 2 * ((size_t)l->n_points + n),
               sizeof *l->points) < 0)
        return no_memory(p->origin);
    float x0 = xy[0], x1 = xy[0], y0 = xy[1], y1 = xy[1];
    for (uint32_t i = 1; i < n; i++) {
        x0 = fminf(x0, xy[2 * i]);
        x1 = fmaxf(x1, xy[2 * i]);
        y0 = fminf(y0, xy[2 * i + 1]);
        y1 = fmaxf(y1, xy[2 * i + 1]);
    }
    memcpy(l->points + (size_t)2 * l->n_points, xy, (size_t)2 * n * sizeof *xy);
    label->cx = (x0 + x1) / 2;
    label->cy = (y0 + y1) / 2;
    label->w = x1 - x0;
    label->h = y1 - y0;
    label->first_point = l->n_points;
    label->n_points = n;
    l->n_points += n;
    return 0;
}

static int check_label(const parse_t *p, const row_t *row, const catalog_label_t *label)
{
    const float values[5] = {label->cls, label->cx, label->cy, label->w, label->h};
    for (int i = 0; i < 5; i++) {
        if (i > 0 && values[i] > coord_max)
            return err_set(ERR_DATA,
                           "%s:%u: coordinate %g is above %g: it must be normalised to the "
                           "image's size",
                           p->origin, row->line, (double)values[i], (double)coord_max);
        if (values[i] < value_min)
            return err_set(ERR_DATA, "%s:%u: %s %g is negative", p->origin, row->line,
                           i == 0 ? "class" : "coordinate", (double)values[i]);
    }
    if (label->cls != floorf(label->cls))
        return err_set(ERR_DATA, "%s:%u: class %g is not a whole number", p->origin, row->line,
                       (double)label->cls);
    if (!p->single_cls && label->cls >= (float)p->classes)
        return err_set(ERR_DATA, "%s:%u: class %g, but the data set has %u (0 to %u)", p->origin,
                       row->line, (double)label->cls, p->classes, p->classes - 1);
    return 0;
}

static int add_label(const parse_t *p, const row_t *row, labels_t *l)
{
    const float *v = p->values + row->first;
    catalog_label_t label = {.cls = v[0]};
    int rc;
    if (p->polygons) {
        rc = add_points(p, row, l, &label);
        if (rc < 0)
            return rc;
    } else if (row->fields != BOX_FIELDS) {
        return err_set(ERR_DATA, "%s:%u: %u fields; class, x, y, width, height are needed",
                       p->origin, row->line, row->fields);
    } else {
        label.cx = v[1];
        label.cy = v[2];
        label.w = v[3];
        label.h = v[4];
    }
    rc = check_label(p, row, &label);
    if (rc < 0)
        return rc;
    if (p->single_cls)
        label.cls = 0;
    if (grow32((void **)&l->rows, &l->room, (size_t)l->n + 1, sizeof *l->rows) < 0)
        return no_memory(p->origin);
    l->rows[l->n++] = label;
    return 0;
}

/* ---- duplicates ---- */

static int compare_boxes(const catalog_label_t *a, const catalog_label_t *b)
{
    const float x[5] = {a->cls, a->cx, a->cy, a->w, a->h},
                y[5] = {b->cls, b->cx, b->cy, b->w, b->h};
    for (int i = 0; i < 5; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Among equal rows the first of the file comes first: first_point rises with the rows of a polygon
 * file, and box rows are alike. */
static int compare_rows(const void *a, const void *b)
{
    const catalog_label_t *x = a, *y = b;
    int order = compare_boxes(x, y);
    return order ? order : (x->first_point > y->first_point) - (x->first_point < y->first_point);
}

/* Points of the rows that stay, in the rows' order. */
static int compact_points(labels_t *l, const char *origin)
{
    float *points = malloc(((size_t)l->n_points + 1) * 2 * sizeof *points);
    uint32_t n = 0;
    if (!points)
        return no_memory(origin);
    for (uint32_t i = 0; i < l->n; i++) {
        catalog_label_t *r = &l->rows[i];
        memcpy(points + (size_t)2 * n, l->points + (size_t)2 * r->first_point,
               (size_t)2 * r->n_points * sizeof *points);
        r->first_point = n;
        n += r->n_points;
    }
    memcpy(l->points, points, (size_t)2 * n * sizeof *points);
    l->n_points = n;
    free(points);
    return 0;
}

/* Only a file with duplicates is put in order: the others keep their rows' order
 * (facts/yolo.md 7.4). */
static int drop_duplicates(labels_t *l, const char *origin)
{
    if (l->n < 2)
        return 0;
    catalog_label_t *sorted = malloc(l->n * sizeof *sorted);
    if (!sorted)
        return no_memory(origin);
    memcpy(sorted, l->rows, l->n * sizeof *sorted);
    qsort(sorted, l->n, sizeof *sorted, compare_rows);
    uint32_t kept = 1;
    for (uint32_t i = 1; i < l->n; i++)
        if (compare_boxes(&sorted[i], &sorted[kept - 1]) != 0)
            sorted[kept++] = sorted[i];
    int rc = 0;
    if (kept < l->n) {
        l->duplicates = l->n - kept;
        l->n = kept;
        memcpy(l->rows, sorted, kept * sizeof *sorted);
        if (l->n_points > 0)
            rc = compact_points(l, origin);
    }
    free(sorted);
    return rc;
}

int labels_parse(const char *text, size_t bytes, const char *origin, uint32_t classes,
                 int single_cls, labels_t *l)
{
    parse_t p = {.origin = origin, .classes = classes, .single_cls = single_cls};
    int rc;
    l->n = l->n_points = l->duplicates = 0;
    l->found = 1;
    CHECK_GOTO(read_rows(&p, text, bytes), rc, done);
    for (size_t i = 0; i < p.n_rows; i++)
        CHECK_GOTO(add_label(&p, &p.rows[i], l), rc, done);
    CHECK_GOTO(drop_duplicates(l, origin), rc, done);
    if (l->n > LABELS_MAX)
        rc = err_set(ERR_DATA, "%s: %u labels; an image may have %d", origin, l->n, LABELS_MAX);
done:
    free(p.values);
    free(p.rows);
    if (rc < 0)
        l->n = l->n_points = 0;
    return rc;
}

static int read_whole(int fd, const char *path, size_t bytes, char **text)
{
    size_t got = 0;
    *text = malloc(bytes + 1);
    if (!*text)
        return no_memory(path);
    while (got < bytes) {
        ssize_t n = read(fd, *text + got, bytes - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(ERR_DATA, "%s: cannot read it", path);
        if (n == 0)
            return err_set(ERR_DATA, "%s: it became shorter while it was read", path);
        got += (size_t)n;
    }
    return 0;
}

int labels_read(const char *path, uint32_t classes, int single_cls, labels_t *l)
{
    struct stat st;
    char *text = NULL;
    int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    l->n = l->n_points = l->duplicates = 0;
    l->found = 0;
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (fd < 0)
        return err_sys(ERR_DATA, "%s: cannot open it", path);
    if (fstat(fd, &st) != 0)
        rc = err_sys(ERR_DATA, "%s: cannot look at it", path);
    else if (!S_ISREG(st.st_mode))
        rc = err_set(ERR_DATA, "%s: not a regular file", path);
    else if (st.st_size > FILE_BYTES_MAX)
        rc = err_set(ERR_DATA, "%s: %lld bytes are more than a label file has", path,
                     (long long)st.st_size);
    else
        rc = read_whole(fd, path, (size_t)st.st_size, &text);
    close(fd);
    if (rc == 0)
        rc = labels_parse(text, (size_t)st.st_size, path, classes, single_cls, l);
    free(text);
    return rc;
}
