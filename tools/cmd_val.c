/* sluice val: a trained model's measures on a data set. */
#include "tools/commands.h"

#include "control/text.h"
#include "shm/err.h"
#include "tools/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum { VAL_NAME = 24, VAL_CELL = 8 /* columns of a name */ };
enum { VAL_MATRIX = 12 /* classes of a confusion matrix that is printed */ };

/* A name in so many columns, to the right; a character is one, and is never cut in two. */
static void put_name(FILE *out, const char *name, int columns)
{
    uint32_t character;
    const char *end = name;
    int n = 0;
    for (; n < columns && *end; n++) {
        size_t bytes = text_utf8(end, &character);
        end += bytes ? bytes : 1;
    }
    fprintf(out, "%*s%.*s", columns - n, "", (int)(end - name), name);
}

static void class_row(FILE *out, const char *name, const wire_class_t *k)
{
    fputs("  ", out);
    put_name(out, name, VAL_NAME);
    fprintf(out, " %8u %10u %8.3f %8.3f %8.3f %9.3f\n", k->images, k->instances, k->precision,
            k->recall, k->map50, k->map);
}

/* Rows are what was predicted, columns what was there. */
static void print_matrix(FILE *out, const coordinator_measured_t *m)
{
    uint32_t side = m->n_classes, at = 0;
    if (m->n_confused == 0 || side > VAL_MATRIX + 1)
        return;
    fprintf(out, "  %*s", VAL_NAME, "predicted \\ actual");
    for (uint32_t i = 0; i < side; i++) {
        fputc(' ', out);
        put_name(out, i + 1 < side ? catalog_class_name(m->catalog, i) : "(none)", VAL_CELL);
    }
    for (uint32_t i = 0; i < side; i++) {
        fputs("\n  ", out);
        put_name(out, i + 1 < side ? catalog_class_name(m->catalog, i) : "(none)", VAL_NAME);
        for (uint32_t k = 0; k < side; k++) {
            int here =
                at < m->n_confused && m->confused[at].predicted == i && m->confused[at].actual == k;
            fprintf(out, " %8u", here ? m->confused[at].count : 0);
            at += (uint32_t)here;
        }
    }
    fputc('\n', out);
}

static void on_measured(void *user, const coordinator_measured_t *m)
{
    evaluate_command_t *e = user;
    evaluate_clear(e);
    fprintf(e->out, "  %*s %8s %10s %8s %8s %8s %9s\n", VAL_NAME, "Class", "Images", "Instances",
            "P", "R", "mAP50", "mAP50-95");
    class_row(e->out, "all", &m->classes[0]);
    for (uint32_t i = 1; m->n_classes > 2 && i < m->n_classes; i++)
        if (m->classes[i].instances > 0)
            class_row(e->out, catalog_class_name(m->catalog, i - 1), &m->classes[i]);
    print_matrix(e->out, m);
    evaluate_speed(e, m);
    evaluate_show(e, 0);
}

static void on_end(void *user, const coordinator_summary_t *s)
{
    evaluate_command_t *e = user;
    evaluate_clear(e);
    if (s->left_out + s->bad + s->warned > 0)
        fprintf(e->out, "files: %u left out, %u bad, %u used although their decoder warns\n",
                s->left_out, s->bad, s->warned);
    if (s->code == 0)
        fprintf(e->out, "results in %s\n", s->run_dir);
    evaluate_show(e, 0);
}

int cmd_val(int argc, char **argv)
{
    evaluate_command_t *e = calloc(1, sizeof *e);
    if (!e)
        return err_set(ERR_ENV, "no memory for the options");
    int rc = evaluate_begin(e, argc, argv, OPT_MODE_VAL);
    if (rc == 0) {
        e->config.view.measured = on_measured;
        e->config.view.end = on_end;
        rc = evaluate_coordinate(e);
    }
    evaluate_end(e);
    free(e);
    return rc;
}
