#include "tools/evaluate.h"

#include "control/text.h"
#include "shm/err.h"
#include "shm/futex.h"
#include "tools/early.h"
#include "tools/run_options.h"
#include "trainer/modelfile.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { SHOW_NS = 200000000, CONSOLE_BYTES = 256 << 10, CONSOLE_END_MS = 2000 };
enum { VAL_BATCH = 32 /* twice train's default, as in a training's own validation */ };
#define PREDICT_CONF "conf=0.25"

/* ---- what is shown ---- */

void evaluate_show(evaluate_command_t *e, int passing)
{
    long n = fflush(e->out) == 0 ? ftell(e->out) : 0;
    if (n > 0)
        console_put(e->console, STDOUT_FILENO, e->text, (size_t)n, passing);
    rewind(e->out);
}

void evaluate_clear(evaluate_command_t *e)
{
    if (e->line_shown)
        fputs("\r\033[K", e->out);
    e->line_shown = 0;
}

static void on_note(void *user, log_level_t level, const char *text)
{
    evaluate_command_t *e = user;
    evaluate_clear(e);
    evaluate_show(e, 0);
    fprintf(e->out, "%s%s\n",
            level == LOG_WARN    ? "warning: "
            : level == LOG_ERROR ? "error: "
                                 : "",
            text);
    long n = fflush(e->out) == 0 ? ftell(e->out) : 0;
    if (n > 0)
        console_put(e->console, STDERR_FILENO, e->text, (size_t)n, 0);
    rewind(e->out);
}

/* A line that the next one replaces; nothing where the output is no terminal. */
static int passing_line(evaluate_command_t *e)
{
    uint64_t now = clock_ns();
    if (!e->tty || now - e->shown_ns < SHOW_NS)
        return 0;
    e->shown_ns = now;
    evaluate_clear(e);
    e->line_shown = 1;
    return 1;
}

static void on_scanning(void *user, uint64_t done, uint64_t of)
{
    evaluate_command_t *e = user;
    if (!passing_line(e))
        return;
    fprintf(e->out, "looking at the images: %llu", (unsigned long long)done);
    if (of)
        fprintf(e->out, " of %llu", (unsigned long long)of);
    evaluate_show(e, 1);
}

static void on_progress(void *user, const coordinator_progress_t *p)
{
    evaluate_command_t *e = user;
    if (!passing_line(e))
        return;
    fprintf(e->out, "batch %u of %u, %.1f images/s, %.0f %% of the time waiting for images",
            p->rank0.step, p->rank0.steps, p->images_per_s, 100 * p->wait_share);
    evaluate_show(e, 1);
}

static void on_start(void *user, const coordinator_table_t *t)
{
    evaluate_command_t *e = user;
    evaluate_clear(e);
    snprintf(e->run_dir, sizeof e->run_dir, "%s", t->run_dir);
    fprintf(e->out, "%s: %u %s at %u px, batch %u on %u rank%s, %u loader%s\n", t->options->model,
            t->plan->n_val, t->options->tile ? "tiles and images" : "images", t->plan->imgsz,
            t->plan->val_batch, t->plan->ranks, t->plan->ranks == 1 ? "" : "s", t->workers,
            t->workers == 1 ? "" : "s");
    evaluate_show(e, 0);
}

void evaluate_speed(evaluate_command_t *e, const coordinator_measured_t *m)
{
    fprintf(e->out, "Speed: %.1f ms preprocess, %.1f ms inference, %.1f ms postprocess per image\n",
            m->load_ms, m->infer_ms, m->post_ms);
}

/* ---- options ---- */

static int make_word(evaluate_command_t *e, const char *key, const char *value, const char **word)
{
    char *text = NULL;
    if (asprintf(&text, "%s%s", key, value) < 0)
        return err_set(ERR_ENV, "no memory for the options");
    e->made[e->n_made++] = text;
    *word = text;
    return 0;
}

/* out=FOLDER is project=its folder and name=its name. */
static int put_out(evaluate_command_t *e, const char *out, const char **words, int *n)
{
    char folder[OPTIONS_PATH_BYTES], here[OPTIONS_PATH_BYTES] = "";
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    if (length == 0 || (length == 1 && out[0] == '/') || length + 2 > sizeof folder)
        return err_set(ERR_CONFIG, "out=%s: a folder is needed", out);
    if (out[0] != '/' && !getcwd(here, sizeof here))
        return err_sys(ERR_ENV, "the working folder cannot be found: cd to one that is there");
    int m = snprintf(folder, sizeof folder, "%s%s%.*s", here, here[0] ? "/" : "", (int)length, out);
    char *slash = m > 0 && (size_t)m < sizeof folder ? strrchr(folder, '/') : NULL;
    if (!slash)
        return err_set(ERR_CONFIG, "out=%s: the path is too long", out);
    int rc = make_word(e, "name=", slash + 1, &words[(*n)++]);
    *slash = '\0';
    return rc < 0 ? rc : make_word(e, "project=", folder[0] ? folder : "/", &words[(*n)++]);
}

static int translate(evaluate_command_t *e, int argc, char **argv, opt_mode_t mode, char **words,
                     int *n)
{
    const char **out = (const char **)(uintptr_t)words;
    *n = 0;
    out[(*n)++] = argv[0];
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        int rc = 0;
        if (strcmp(word, "--coco") == 0 && mode == OPT_MODE_VAL)
            out[(*n)++] = "save_json=True";
        else if (strncmp(word, "coco=", 5) == 0 && mode == OPT_MODE_VAL)
            rc = make_word(e, "save_json=", word + 5, &out[(*n)++]);
        else if (strncmp(word, "out=", 4) == 0)
            rc = put_out(e, word + 4, out, n);
        else if (strncmp(word, "mode=", 5) == 0)
            rc = err_set(ERR_CONFIG, "%s: the command says it", word);
        else
            out[(*n)++] = word;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int resolve_model(options_t *o)
{
    char path[OPTIONS_PATH_BYTES];
    int rc = run_weights(o->model, path, sizeof path);
    if (rc > 0)
        memcpy(o->model, path, sizeof path);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    if (modelfile_is(o->model))
        return 0;
    return err_set(ERR_CONFIG,
                   "model=%s: trained weights are needed: a run's folder, its "
                   "weights/best.safetensors, or a .pt file",
                   o->model);
}

/* What the file itself says: read before the run, which is made for it. */
static int read_model(evaluate_command_t *e)
{
    options_t *o = &e->config.options;
    modelfile_t *file = NULL;
    int32_t n = 0;
    int rc = modelfile_open(o->model, &file);
    if (rc < 0)
        return err_add(rc, "model");
    const modelfile_info_t *info = modelfile_info(file);
    const char *const *names = modelfile_classes(file, &n);
    if (!info->model[0]) {
        rc = err_set(ERR_CONFIG, "%s", info->why);
        goto done;
    }
    if (!options_was_set(o, "imgsz"))
        o->imgsz = o->tile > 0 ? o->tile : info->imgsz > 0 ? info->imgsz : o->imgsz;
    e->classes = calloc((size_t)info->nc + 1, sizeof *e->classes);
    for (int32_t i = 0; e->classes && i < info->nc; i++) {
        int made = names && i < n ? asprintf(&e->classes[i], "%s", names[i])
                                  : asprintf(&e->classes[i], "%d", i);
        if (made < 0)
            break;
        text_printable(e->classes[i]);
        e->config.n_classes++;
    }
    if (!e->classes || e->config.n_classes < (uint32_t)info->nc)
        rc = err_set(ERR_ENV, "no memory for the names of %d classes", info->nc);
    e->config.classes = (const char *const *)e->classes;
done:
    modelfile_free(&file);
    return rc;
}

static int set_options(evaluate_command_t *e, int argc, char **argv, opt_mode_t mode)
{
    options_t *o = &e->config.options;
    int rc;
    CHECK_GOTO(run_options(argc, argv, o, e->words, &e->config.n_words), rc, fail);
    o->mode = mode;
    if (!options_was_set(o, "name"))
        snprintf(o->name, sizeof o->name, "%s", mode == OPT_MODE_VAL ? "val" : "predict");
    if (!options_was_set(o, "batch"))
        o->batch = mode == OPT_MODE_VAL ? VAL_BATCH : 1;
    if (mode == OPT_MODE_PREDICT && !options_was_set(o, "conf"))
        CHECK_GOTO(options_set(o, PREDICT_CONF), rc, fail);
    o->mosaic = o->mixup = 0; /* one file a cell */
    CHECK_GOTO(resolve_model(o), rc, fail);
    CHECK_GOTO(read_model(e), rc, fail);
    rc = run_options_check(o);
fail:
    return rc;
}

int evaluate_begin(evaluate_command_t *e, int argc, char **argv, opt_mode_t mode)
{
    int n, rc;
    memset(e, 0, sizeof *e);
    log_identity("sluice", -1);
    e->words = calloc(2 * (size_t)argc + 4, sizeof *e->words);
    e->made = calloc(2 * (size_t)argc + 4, sizeof *e->made);
    char **words = calloc(2 * (size_t)argc + 4, sizeof *words);
    if (!e->words || !e->made || !words) {
        rc = err_set(ERR_ENV, "no memory for the options");
        goto fail;
    }
    CHECK_GOTO(translate(e, argc, argv, mode, words, &n), rc, fail);
    CHECK_GOTO(set_options(e, n, words, mode), rc, fail);
    CHECK_GOTO(run_bin_dir(e->bin_dir, sizeof e->bin_dir), rc, fail);
    e->tty = isatty(STDOUT_FILENO);
    e->out = open_memstream(&e->text, &e->text_bytes);
    if (!e->out) {
        rc = err_sys(ERR_ENV, "no memory for what is shown");
        goto fail;
    }
    CHECK_GOTO(console_open(CONSOLE_BYTES, &e->console), rc, fail);
    e->config.words = e->words;
    e->config.bin_dir = e->bin_dir;
    e->config.view = (coordinator_view_t){.user = e,
                                          .note = on_note,
                                          .scanning = on_scanning,
                                          .progress = on_progress,
                                          .start = on_start};
fail:
    free(words);
    return rc;
}

int evaluate_coordinate(evaluate_command_t *e)
{
    early_hold();
    return coordinator_run(&e->config);
}

void evaluate_end(evaluate_command_t *e)
{
    if (e->console)
        console_close(&e->console, CONSOLE_END_MS);
    if (e->out)
        fclose(e->out);
    free(e->text);
    for (int i = 0; e->made && i < e->n_made; i++)
        free(e->made[i]);
    for (uint32_t i = 0; e->classes && i < e->config.n_classes; i++)
        free(e->classes[i]);
    free(e->classes);
    free(e->made);
    free(e->words);
}
