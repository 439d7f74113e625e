/* sluice files [RUN] [--json]: the images of a run that were left out, could not be used or decode with
 * a warning, from its events. Also of a run that is over. */
#include "tools/commands.h"

#include "control/registry.h"
#include "control/text.h"
#include "shm/err.h"
#include "tools/jsonline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
    FILE_LEFT_OUT = 0,
    FILE_BAD,
    FILE_WARNING,
    FILE_KEPT,
    FILE_REMARK,
    FILE_KINDS
} file_kind_t;

static const struct {
    const char *event, *word;
} kinds[FILE_KINDS] = {
    [FILE_LEFT_OUT] = {"sample-left-out", "left-out"}, [FILE_BAD] = {"bad-sample", "bad"},
    [FILE_WARNING] = {"decoder-warning", "warning"},   [FILE_KEPT] = {"sample-kept", "kept"},
    [FILE_REMARK] = {"sample-remark", "remark"},
};

typedef struct {
    file_kind_t kind;
    char *line, *path, *reason; /* owned */
} found_t;

typedef struct {
    found_t *items;
    size_t count, capacity;
} files_t;

static void files_fini(files_t *f)
{
    for (size_t i = 0; i < f->count; i++) {
        free(f->items[i].line);
        free(f->items[i].path);
        free(f->items[i].reason);
    }
    free(f->items);
}

/* An event about a file is kept; of any other, and of what is no event, nothing. ERR_ENV. */
static int files_take(files_t *f, const char *line)
{
    static jsonline_t m;
    const char *at = NULL;
    found_t found = {FILE_KINDS, NULL, NULL, NULL};
    int rc;
    while ((rc = jsonline_next(line, &at, &m)) == 1) {
        char **text = strcmp(m.key, "path") == 0     ? &found.path
                      : strcmp(m.key, "reason") == 0 ? &found.reason
                                                     : NULL;
        for (int k = 0; strcmp(m.key, "event") == 0 && k < FILE_KINDS; k++)
            if (strcmp(m.value, kinds[k].event) == 0)
                found.kind = (file_kind_t)k;
        if (text && !*text)
            *text = strdup(m.value);
    }
    if (rc < 0 || found.kind == FILE_KINDS || !found.path || !found.reason) {
        free(found.path);
        free(found.reason);
        return 0;
    }
    if (f->count == f->capacity) {
        size_t capacity = f->capacity ? 2 * f->capacity : 64;
        found_t *items = realloc(f->items, capacity * sizeof *items);
        if (!items) {
            free(found.path);
            free(found.reason);
            return err_set(ERR_ENV, "no memory for a list of files");
        }
        f->items = items;
        f->capacity = capacity;
    }
    found.line = strdup(line);
    f->items[f->count++] = found;
    return 0;
}

static int files_read(files_t *f, const char *path)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int rc = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return err_sys(ERR_FAILED, "%s cannot be read", path);
    while (rc == 0 && (n = getline(&line, &room, file)) >= 0) {
        if (n > 0 && line[n - 1] == '\n')
            line[n - 1] = '\0';
        rc = files_take(f, line);
    }
    if (rc == 0 && ferror(file))
        rc = err_sys(ERR_FAILED, "%s cannot be read to its end", path);
    free(line);
    fclose(file);
    return rc;
}

/* By kind, then path; of equals, which a resumed run tells again, the first told. */
static int compare(const void *a, const void *b)
{
    const found_t *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return strcmp(x->path, y->path);
}

static int same(const files_t *f, size_t i)
{
    return i > 0 && compare(&f->items[i], &f->items[i - 1]) == 0 &&
           strcmp(f->items[i].reason, f->items[i - 1].reason) == 0;
}

static int files_print(files_t *f, int json)
{
    uint32_t counts[FILE_KINDS] = {0};
    if (f->count)
        qsort(f->items, f->count, sizeof *f->items, compare);
    errno = 0;
    for (size_t i = 0; i < f->count; i++) {
        found_t *it = &f->items[i];
        if (same(f, i))
            continue;
        counts[it->kind] += i == 0 || compare(it, &f->items[i - 1]) != 0;
        text_printable(it->path);
        text_printable(it->reason);
        if (json)
            puts(it->line);
        else
            printf("%-8s  %s: %s\n", kinds[it->kind].word, it->path, it->reason);
    }
    if (!json)
        printf(
            "%u left out by the scan, %u bad in training, %u used although their decoder warns\n",
            counts[FILE_LEFT_OUT], counts[FILE_BAD], counts[FILE_WARNING]);
    return fflush(stdout) != 0 || ferror(stdout) ? err_sys(ERR_ENV, "writing to standard output")
                                                 : 0;
}

/* Where the events of `which` are: a run's folder, the name of one in runs/detect, or a live run. */
static int find_events(const char *which, char *path, size_t bytes)
{
    static const char *const folders[] = {"", "runs/detect/"};
    registry_entry_t run;
    for (size_t i = 0; which && i < sizeof folders / sizeof folders[0]; i++) {
        snprintf(path, bytes, "%s%s/events.jsonl", folders[i], which);
        FILE *file = fopen(path, "re");
        if (file) {
            fclose(file);
            return 0;
        }
    }
    int rc = registry_find(which, &run);
    if (rc < 0 && which)
        return err_set(ERR_FAILED, "%s is neither a run's folder nor the name of a live run",
                       which);
    if (rc < 0)
        return rc == ERR_CONFIG ? ERR_FAILED : rc;
    if (!run.run_dir[0])
        return err_set(ERR_FAILED, "that run writes no events: its first lines named the files");
    snprintf(path, bytes, "%s/events.jsonl", run.run_dir);
    return 0;
}

int cmd_files(int argc, char **argv)
{
    char path[4096 + 32];
    const char *which = NULL;
    files_t files = {0};
    int json = 0, rc = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            json = 1;
        else if (argv[i][0] == '-' || which)
            return err_set(ERR_CONFIG, "files does not know '%s': it takes one run and --json",
                           argv[i]);
        else
            which = argv[i];
    }
    CHECK_GOTO(find_events(which, path, sizeof path), rc, fail);
    CHECK_GOTO(files_read(&files, path), rc, fail);
    rc = files_print(&files, json);
fail:
    files_fini(&files);
    return rc;
}
