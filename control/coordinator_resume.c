/* Paths resolved once, and the options of a resumed run (facts/yolo.md 8.5). */
#include "control/coordinator_state.h"

#include "shm/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Against the working folder and without looking at the path itself: it may be on storage that
 * hangs. */
static int make_absolute(char *path, const char *folder)
{
    char joined[OPTIONS_PATH_BYTES];
    if (!path[0] || path[0] == '/')
        return 0;
    while (path[0] == '.' && path[1] == '/')
        memmove(path, path + 2, strlen(path + 2) + 1);
    int n = snprintf(joined, sizeof joined, "%s/%s", folder, path);
    if (n < 0 || (size_t)n >= sizeof joined)
        return err_set(ERR_CONFIG, "the path %.80s... is too long", path);
    memcpy(path, joined, (size_t)n + 1);
    return 0;
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcasecmp(text + n - k, end) == 0;
}

/* A table of layers in the working folder, which has its name or that without the letter of a scale
 * (trainer/graph_table.c); else it is one of the tables that come with the program. */
static int is_table_here(const char *model)
{
    char family[OPTIONS_PATH_BYTES];
    const char *dot = strrchr(model, '.');
    if (!dot || dot < model + 2 || (!ends_with(model, ".yaml") && !ends_with(model, ".yml")))
        return 0;
    if (access(model, F_OK) == 0)
        return 1;
    snprintf(family, sizeof family, "%.*s.yaml", (int)(dot - 1 - model), model);
    return access(family, F_OK) == 0;
}

int resume_absolute(options_t *o, int digest_only)
{
    char here[OPTIONS_PATH_BYTES], runs[OPTIONS_PATH_BYTES + 32];
    int rc;
    if (!getcwd(here, sizeof here))
        return err_sys(ERR_ENV, "the working folder cannot be found: cd to one that is there");
    CHECK_GOTO(make_absolute(o->data, here), rc, fail);
    CHECK_GOTO(make_absolute(o->resume, here), rc, fail);
    CHECK_GOTO(make_absolute(o->source, here), rc, fail);
    /* A model's name stays a name; a file's path does not. */
    if (strchr(o->model, '/') || ends_with(o->model, ".safetensors") ||
        ends_with(o->model, ".pt") || is_table_here(o->model))
        CHECK_GOTO(make_absolute(o->model, here), rc, fail);
    if (digest_only)
        return 0;
    /* A relative project lies under runs/detect (facts/yolo.md 6.8), which need not be written out.
     */
    snprintf(runs, sizeof runs, "%s/runs/detect", here);
    if (!o->project[0])
        snprintf(o->project, sizeof o->project, "%.*s", OPTIONS_PATH_BYTES - 1, runs);
    else if (strncmp(o->project, "runs/detect", 11) == 0 &&
             (o->project[11] == '/' || o->project[11] == '\0'))
        CHECK_GOTO(make_absolute(o->project, here), rc, fail);
    else
        CHECK_GOTO(make_absolute(o->project, runs), rc, fail);
    return 0;
fail:
    return rc;
}

/* Keys that a resume may change: facts/yolo.md 8.5's and those of this machine. The others decide
 * what the run is. */
static const char *const resume_keys[] = {
    "imgsz",     "batch",         "device",       "close_mosaic", "workers",       "patience",
    "val",       "save",          "save_period",  "save_minutes", "hsv_h",         "hsv_s",
    "hsv_v",     "degrees",       "translate",    "scale",        "shear",         "perspective",
    "flipud",    "fliplr",        "bgr",          "mosaic",       "mixup",         "io",
    "cache",     "ring_depth",    "inflight",     "digest",       "on_warning",    "max_pixels",
    "max_scans", "max_decode_mb", "hang_timeout", "init_timeout", "stop_deadline", NULL};

/* Of them, those that change no number of the run. */
static const char *const resume_plain[] = {
    "batch",     "device",        "workers",      "save",         "save_period",   "save_minutes",
    "io",        "cache",         "ring_depth",   "inflight",     "digest",        "max_pixels",
    "max_scans", "max_decode_mb", "hang_timeout", "init_timeout", "stop_deadline", NULL};

static int is_plain(const char *key)
{
    for (int i = 0; resume_plain[i]; i++)
        if (strcmp(resume_plain[i], key) == 0)
            return 1;
    return 0; /* batch and device have rows of their own */
}

static int may_change(const char *word, char *key, size_t bytes)
{
    size_t n = strcspn(word, "=");
    snprintf(key, bytes, "%.*s", (int)n, word);
    for (int i = 0; resume_keys[i]; i++)
        if (strcmp(resume_keys[i], key) == 0)
            return 1;
    return 0;
}

/* The value of a key in a dump, up to its line's end. */
static const char *dump_value(const char *dump, const char *key, int *length)
{
    size_t n = strlen(key);
    for (const char *line = dump; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            const char *value = line + n + 1;
            value += strspn(value, " ");
            *length = (int)strcspn(value, "\n");
            return value;
        }
    }
    *length = 0;
    return "";
}

static int apply_word(coordinator_t *c, const char *word, char *before, char *after)
{
    char key[64];
    options_t changed = c->options;
    int rc, a, b, allowed = may_change(word, key, sizeof key);
    if (strcmp(key, "resume") == 0)
        return 0;
    CHECK_GOTO(options_dump_yaml(&c->options, before, OPTIONS_YAML_BYTES), rc, fail);
    CHECK_GOTO(options_set(&changed, word), rc, fail);
    CHECK_GOTO(resume_absolute(&changed, 0), rc, fail);
    CHECK_GOTO(options_dump_yaml(&changed, after, OPTIONS_YAML_BYTES), rc, fail);
    const char *old = dump_value(before, key, &a), *new = dump_value(after, key, &b);
    if (a == b && memcmp(old, new, (size_t)a) == 0)
        return 0;
    if (!allowed)
        return err_set(
            ERR_CONFIG,
            "%s cannot change when a run is resumed: it was begun with %s: %.*s. Leave it out, "
            "or start a new run (model=%s/weights/last.safetensors begins with its weights)",
            key, key, a, old, c->run_dir);
    run_note(c, LOG_INFO, "resume: %s changed from %.*s to %.*s", key, a, old, b, new);
    c->options = changed;
    size_t used = strlen(c->resume_changed);
    if (!is_plain(key))
        snprintf(c->resume_changed + used, sizeof c->resume_changed - used, "%s%.40s",
                 used ? ", " : "", key);
    return 0;
fail:
    return rc;
}

int resume_options(coordinator_t *c, const char *yaml, size_t bytes)
{
    char *dumps = malloc(2 * (size_t)OPTIONS_YAML_BYTES);
    int rc;
    if (!dumps)
        return err_set(ERR_ENV, "no memory for the run's options");
    options_default(&c->options);
    CHECK_GOTO(options_load_yaml_text(&c->options, yaml, bytes, "the run's args.yaml"), rc, fail);
    if (!c->options.data[0]) {
        rc = err_set(ERR_CONFIG, "%s/args.yaml names no data set: it is damaged", c->run_dir);
        goto fail;
    }
    /* The run's folder, whichever file in it was named. */
    snprintf(c->options.resume, sizeof c->options.resume, "%s", c->run_dir);
    for (int i = 0; i < c->config->n_words; i++)
        CHECK_GOTO(apply_word(c, c->config->words[i], dumps, dumps + OPTIONS_YAML_BYTES), rc, fail);
    CHECK_GOTO(options_check(&c->options, dumps, OPTIONS_YAML_BYTES), rc, fail);
    for (char *save = NULL, *line = strtok_r(dumps, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        run_note(c, LOG_INFO, "%s", line);
    run_note(c, LOG_INFO,
             "resume: %s goes on in epoch %u of %d; everything else is as in its args.yaml",
             c->run_dir, c->first_epoch + 1, c->options.epochs);
fail:
    free(dumps);
    return rc;
}

int resume_entry(coordinator_t *c, const wire_ledger_t *entry)
{
    if (c->n_replay == RUN_REPLAY_MOST)
        return err_set(ERR_ENV, "the ledger of the run to resume has more than %d entries",
                       RUN_REPLAY_MOST);
    /* Doubled at each power of two. */
    if ((c->n_replay & (c->n_replay - 1)) == 0) {
        size_t room = c->n_replay ? 2 * (size_t)c->n_replay : 1;
        wire_ledger_t *grown = realloc(c->replay, room * sizeof *grown);
        if (!grown)
            return err_set(ERR_ENV, "no memory for the ledger of the run to resume");
        c->replay = grown;
    }
    c->replay[c->n_replay++] = *entry;
    return 0;
}

int resume_check(coordinator_t *c)
{
    const wire_run_info_t *was = &c->was;
    if (was->list_digest != c->list_digest)
        return err_set(
            ERR_CONFIG,
            "%s was trained on sample list %016llx, the data set now has %016llx: images or "
            "labels have changed; put them back, or start a new run from "
            "weights/last.safetensors",
            c->run_dir, (unsigned long long)was->list_digest, (unsigned long long)c->list_digest);
    if (was->position > c->plan.n_train || was->ledger != c->n_replay)
        return err_set(
            ERR_CONFIG,
            "%s/weights/last.state.safetensors says image %llu of %u and %u substitutions, "
            "of which %u are there: it is damaged; start a new run from "
            "weights/last.safetensors",
            c->run_dir, (unsigned long long)was->position, c->plan.n_train, was->ledger,
            c->n_replay);
    for (uint32_t i = 0; i < c->n_replay; i++) {
        int rc = ledger_replay(c->ledger, &c->replay[i]);
        if (rc < 0)
            return err_add(ERR_CONFIG, "%s/weights/last.state.safetensors is damaged", c->run_dir);
    }
    return 0;
}

uint32_t resume_tell(coordinator_t *c, coordinator_resume_row_t rows[COORDINATOR_RESUME_ROWS])
{
    const coordinator_resume_t r = {.was = &c->was,
                                    .plan = &c->plan,
                                    .threads = c->threads,
                                    .ledger = ledger_count(c->ledger),
                                    .nbs = c->options.nbs,
                                    .deterministic = c->options.deterministic,
                                    .changed = c->resume_changed};
    uint32_t n = coordinator_resume_rows(&r, rows);
    event_t e;
    event_begin(&e, "resume");
    json_key_uint(&e.json, "epoch", c->plan.first_epoch + 1);
    json_key_uint(&e.json, "position", c->plan.first_position);
    for (uint32_t i = 0; i < n; i++) {
        char text[sizeof rows[i].text + 16];
        snprintf(text, sizeof text, "%s: %s", rows[i].verdict, rows[i].text);
        json_key_string(&e.json, rows[i].what, text);
    }
    event_end(c, &e);
    return n;
}
