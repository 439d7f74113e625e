#include "tests/soak/check.h"

#include "tests/soak/process.h"
#include "tests/soak/say.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHECK_PATH = 1280 };

/* A whole file with a NUL behind it; the caller's to free. NULL with a violation. */
static char *read_file(const char *path, size_t *bytes)
{
    struct stat st;
    char *text = NULL;
    size_t used = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0)
        text = malloc((size_t)st.st_size + 1);
    while (text && used < (size_t)st.st_size) {
        ssize_t n = read(fd, text + used, (size_t)st.st_size - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    if (fd >= 0)
        close(fd);
    if (!text || used != (size_t)st.st_size) {
        free(text);
        say_violation("%s cannot be read", path);
        return NULL;
    }
    text[used] = '\0';
    *bytes = used;
    return text;
}

typedef struct {
    char *a, *b;
    size_t a_bytes, b_bytes;
} pair_t;

static int read_pair(const char *expected, const char *found, pair_t *p)
{
    memset(p, 0, sizeof *p);
    p->a = read_file(expected, &p->a_bytes);
    p->b = p->a ? read_file(found, &p->b_bytes) : NULL;
    return p->b ? 0 : -1;
}

static void free_pair(pair_t *p)
{
    free(p->a);
    free(p->b);
}

int check_same_text(const char *expected, const char *found)
{
    pair_t p;
    int rc = read_pair(expected, found, &p);
    if (rc == 0 && (p.a_bytes != p.b_bytes || memcmp(p.a, p.b, p.a_bytes) != 0)) {
        size_t at = 0, line = 1;
        for (; at < p.a_bytes && at < p.b_bytes && p.a[at] == p.b[at]; at++)
            line += p.a[at] == '\n';
        rc = say_violation("%s is not as %s: the first difference is in line %zu", found, expected,
                           line);
    }
    free_pair(&p);
    return rc;
}

/* A safetensors file as it lies in memory: the header's text with a NUL, and the numbers. */
typedef struct {
    char *header;
    const char *data;
    size_t bytes;
} image_t;

static int open_image(const char *file, size_t bytes, image_t *m)
{
    uint64_t length = 0;
    if (bytes >= 8)
        memcpy(&length, file, 8);
    if (bytes < 8 || length > bytes - 8)
        return -1;
    m->header = strndup(file + 8, (size_t)length);
    m->data = file + 8 + length;
    m->bytes = bytes - 8 - (size_t)length;
    return m->header ? 0 : -1;
}

/* Takes "key":"value" out of the metadata, with the comma that follows. */
static void without(char *header, const char *key)
{
    char wanted[64];
    int n = snprintf(wanted, sizeof wanted, "\"%s\":\"", key);
    char *from = strstr(header, wanted);
    if (!from)
        return;
    char *to = from + n;
    while (*to && *to != '"')
        to += to[0] == '\\' && to[1] ? 2 : 1;
    to += *to == '"';
    to += *to == ',';
    memmove(from, to, strlen(to) + 1);
}

/* One tensor of a header: what stands before its place, and its place. *at moves on; 0 at the end. */
typedef struct {
    char what[256]; /* "name":{"dtype":"F32","shape":[10], */
    size_t from, to;
} tensor_t;

static int next_tensor(const image_t *m, const char **at, tensor_t *t)
{
    static const char kind[] = ":{\"dtype\":", place[] = "\"data_offsets\":[";
    const char *colon = strstr(*at, kind), *offsets = colon ? strstr(colon, place) : NULL;
    if (!offsets)
        return 0;
    const char *name = colon - 1;
    while (name > *at && name[-1] != '"')
        name--;
    char *end;
    snprintf(t->what, sizeof t->what, "%.*s", (int)(offsets - name), name);
    t->from = strtoull(offsets + sizeof place - 1, &end, 10);
    t->to = strtoull(end + 1, &end, 10);
    *at = end;
    return t->from <= t->to && t->to <= m->bytes;
}

static int find_tensor(const image_t *m, const char *what, tensor_t *t)
{
    const char *at = m->header;
    while (next_tensor(m, &at, t))
        if (strcmp(t->what, what) == 0)
            return 1;
    return 0;
}

/* The ledger's entries are in the order in which loaders met what is missing; their meaning is in
 * the stream, which is compared by itself. */
static int same_images(const image_t *a, const image_t *b, const char *found, const char *expected)
{
    const char *at = a->header, *rest = b->header;
    tensor_t x, y;
    int tensors = 0, others = 0;
    while (next_tensor(a, &at, &x)) {
        if (strncmp(x.what, "ledger\"", 7) == 0)
            continue;
        tensors++;
        if (!find_tensor(b, x.what, &y))
            return say_violation("%s has no %s as %s has", found, x.what, expected);
        size_t differ = 0, n = x.to - x.from;
        for (size_t i = 0; i + 4 <= n && y.to - y.from == n; i += 4)
            differ += memcmp(a->data + x.from + i, b->data + y.from + i, 4) != 0;
        if (differ || y.to - y.from != n)
            return say_violation("%zu of %zu numbers of %.*s of %s are not as in %s", differ, n / 4,
                                 (int)strcspn(x.what, "\""), x.what, found, expected);
    }
    while (next_tensor(b, &rest, &y))
        others += strncmp(y.what, "ledger\"", 7) != 0;
    if (tensors == 0 || tensors != others)
        return say_violation("%s has %d tensors and %s %d", found, others, expected, tensors);
    return 0;
}

/* Ends the text behind the object's last string. */
static void cut_object(char *text)
{
    int inside = 0;
    for (; *text && (inside || *text != '}'); text++) {
        if (*text == '\\' && text[1])
            text++;
        else if (*text == '"')
            inside = !inside;
    }
    *text = '\0';
}

static int same_metadata(image_t *a, image_t *b, const char *found, const char *expected)
{
    /* Paths and names; wall-clock time; the sum that covers them; entries as they were met. */
    static const char *const keys[] = {"args", "seconds", "checksum", "ledger_entries"};
    char *x = strstr(a->header, "\"__metadata__\""), *y = strstr(b->header, "\"__metadata__\"");
    size_t i = 0;
    if (!x || !y)
        return say_violation("%s or %s has no metadata", found, expected);
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        without(x, keys[k]);
        without(y, keys[k]);
    }
    cut_object(x);
    cut_object(y);
    while (x[i] && x[i] == y[i])
        i++;
    if (!x[i] && !y[i])
        return 0;
    i = i > 60 ? i - 60 : 0;
    return say_violation("%s says '%.120s', and %s '%.120s'", found, y + i, expected, x + i);
}

static int same_tensors(const char *expected, const char *found)
{
    image_t a = {0}, b = {0};
    pair_t p;
    int rc = read_pair(expected, found, &p);
    if (rc == 0 && (open_image(p.a, p.a_bytes, &a) < 0 || open_image(p.b, p.b_bytes, &b) < 0))
        rc = say_violation("%s or %s has no header", expected, found);
    if (rc == 0)
        rc = same_images(&a, &b, found, expected);
    if (rc == 0)
        rc = same_metadata(&a, &b, found, expected);
    free(a.header);
    free(b.header);
    free_pair(&p);
    return rc;
}

int check_weights(const char *expected_dir, const char *found_dir)
{
    static const char *const names[] = {"last.state", "last", "best"};
    char a[CHECK_PATH], b[CHECK_PATH];
    int rc = 0;
    for (int i = 0; i < 3; i++) {
        snprintf(a, sizeof a, "%.1200s/weights/%s.safetensors", expected_dir, names[i]);
        snprintf(b, sizeof b, "%.1200s/weights/%s.safetensors", found_dir, names[i]);
        rc = same_tensors(a, b) < 0 ? -1 : rc;
    }
    return rc;
}

/* A row without its second column, the time. */
static void without_time(char *row)
{
    char *from = strchr(row, ','), *to = from ? strchr(from + 1, ',') : NULL;
    if (to)
        memmove(from, to, strlen(to) + 1);
}

int check_results(const char *expected_dir, const char *found_dir, int epochs)
{
    char path[CHECK_PATH], *save_a = NULL, *save_b = NULL, *expected = NULL;
    size_t bytes;
    int rc = 0, rows = 0;
    snprintf(path, sizeof path, "%.1200s/results.csv", found_dir);
    char *found = read_file(path, &bytes);
    if (expected_dir) {
        snprintf(path, sizeof path, "%.1200s/results.csv", expected_dir);
        expected = read_file(path, &bytes);
    }
    if (!found || (expected_dir && !expected)) {
        rc = -1;
        goto fail;
    }
    strtok_r(found, "\n", &save_b);
    if (expected)
        strtok_r(expected, "\n", &save_a);
    for (char *row; (row = strtok_r(NULL, "\n", &save_b)); rows++) {
        if (atoi(row) != rows + 1) {
            rc = say_violation("results.csv has '%.40s' as row %d", row, rows + 1);
            goto fail;
        }
        char *other = expected ? strtok_r(NULL, "\n", &save_a) : NULL;
        if (!other)
            continue;
        without_time(row);
        without_time(other);
        if (strcmp(row, other) != 0 && rc == 0)
            rc = say_violation("results.csv has '%s' where the uninterrupted run has '%s'", row,
                               other);
    }
    if (rows != epochs)
        rc = say_violation("results.csv has %d rows of %d epochs", rows, epochs);
fail:
    free(found);
    free(expected);
    return rc;
}

/* The line "epoch N DIGEST" of sluice digest: N counts from 0, as in its other lines. */
static int digest_of_epoch(const char *output, int epoch, char digest[17])
{
    char wanted[32];
    int n = snprintf(wanted, sizeof wanted, "\nepoch %d ", epoch);
    const char *at = strstr(output, wanted);
    digest[0] = '\0';
    if (at)
        snprintf(digest, 17, "%.16s", at + n);
    return at != NULL;
}

int check_stream(const char *digest_output, const char *found_dir, int epochs)
{
    char path[CHECK_PATH], *save = NULL, digest[17];
    size_t bytes, events_bytes;
    int rc = 0, lines = 0;
    char *seen = calloc((size_t)epochs + 1, 1), *output = read_file(digest_output, &bytes);
    snprintf(path, sizeof path, "%.1200s/events.jsonl", found_dir);
    char *events = read_file(path, &events_bytes);
    if (!seen || !output || !events) {
        rc = -1;
        goto fail;
    }
    for (char *line = strtok_r(events, "\n", &save); line && rc == 0;
         line = strtok_r(NULL, "\n", &save)) {
        size_t n = strlen(line);
        lines++;
        if (strncmp(line, "{\"time\":\"", 9) != 0 || line[n - 1] != '}')
            rc = say_violation("events.jsonl has '%.100s' as line %d", line, lines);
        if (!strstr(line, "\"event\":\"epoch\""))
            continue;
        const char *e = strstr(line, "\"epoch\":"), *s = strstr(line, "\"stream\":\"");
        int epoch = e ? atoi(e + 8) : 0;
        if (epoch < 1 || epoch > epochs || !s)
            rc = say_violation("events.jsonl, line %d: no epoch or no whole stream: %.300s", lines,
                               line);
        else if (!digest_of_epoch(output, epoch - 1, digest))
            rc = say_violation("%s has no epoch %d", digest_output, epoch - 1);
        else if (strncmp(s + 10, digest, 16) != 0)
            rc = say_violation("epoch %d was trained on the stream %.16s, and sluice digest has %s",
                               epoch, s + 10, digest);
        else
            seen[epoch] = 1;
    }
    for (int i = 1; i <= epochs && rc == 0; i++)
        if (!seen[i])
            rc = say_violation("events.jsonl has no epoch %d", i);
fail:
    free(seen);
    free(output);
    free(events);
    return rc;
}

int check_folder(const char *dir)
{
    char text[4096];
    const char *const argv[] = {"/usr/bin/find", dir,      "(", "-name", "*tmp*", "-o",
                                "-name",         "*.lock", ")", NULL};
    int rc = process_ask(argv, 10, text, sizeof text);
    if (rc != 0 || text[0])
        return say_violation("left in the run directory: %s", text);
    return 0;
}
