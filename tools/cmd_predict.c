/* sluice predict: what a trained model finds in images. */
#include "tools/commands.h"

#include "shm/err.h"
#include "tools/draw_step.h"
#include "tools/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum { PREDICT_KINDS = 8 /* classes of an image that its line names */ };

/* "2 scratch, 1 pit" */
static void count_classes(FILE *out, const evaluate_command_t *e, const coordinator_found_t *f)
{
    uint32_t classes[PREDICT_KINDS], counts[PREDICT_KINDS] = {0}, kinds = 0, others = 0;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t k = 0;
        while (k < kinds && classes[k] != f->boxes[i].cls)
            k++;
        if (k == PREDICT_KINDS) {
            others++;
            continue;
        }
        classes[k] = f->boxes[i].cls;
        counts[k]++;
        kinds = k == kinds ? kinds + 1 : kinds;
    }
    for (uint32_t k = 0; k < kinds; k++)
        fprintf(out, "%s%u %s", k ? ", " : "", counts[k], e->classes[classes[k]]);
    if (others)
        fprintf(out, ", %u others", others);
    if (f->n == 0)
        fputs("nothing", out);
}

static void on_found(void *user, const coordinator_found_t *f)
{
    evaluate_command_t *e = user;
    e->images++;
    e->unusable += f->unusable != 0;
    e->boxes += f->n;
    e->with_boxes += f->n > 0;
    evaluate_clear(e);
    if (f->unusable) {
        fprintf(e->out, "image %u/%u %s: cannot be used\n", f->image, f->images, f->path);
    } else {
        fprintf(e->out, "image %u/%u %s: %ux%u ", f->image, f->images, f->path, f->width,
                f->height);
        count_classes(e->out, e, f);
        fputc('\n', e->out);
    }
    evaluate_show(e, 0);
}

static void on_measured(void *user, const coordinator_measured_t *m)
{
    evaluate_command_t *e = user;
    e->times = *m;
}

static void on_end(void *user, const coordinator_summary_t *s)
{
    evaluate_command_t *e = user;
    evaluate_clear(e);
    if (s->left_out + s->bad > 0)
        fprintf(e->out,
                "%u of %llu images could not be used (named above, and in %s/events.jsonl)\n",
                s->left_out + s->bad, (unsigned long long)e->images + s->left_out, s->run_dir);
    if (s->code == 0) {
        fprintf(e->out, "%llu detections in %llu of %llu images\n", (unsigned long long)e->boxes,
                (unsigned long long)e->with_boxes, (unsigned long long)(e->images - e->unusable));
        evaluate_speed(e, &e->times);
    }
    evaluate_show(e, 0);
}

static void on_drawn(void *user, const char *text)
{
    evaluate_command_t *e = user;
    fprintf(e->out, "%s\n", text);
    evaluate_show(e, 0);
}

int cmd_predict(int argc, char **argv)
{
    evaluate_command_t *e = calloc(1, sizeof *e);
    if (!e)
        return err_set(ERR_ENV, "no memory for the options");
    int rc = evaluate_begin(e, argc, argv, OPT_MODE_PREDICT);
    if (rc == 0) {
        e->config.view.found = on_found;
        e->config.view.measured = on_measured;
        e->config.view.end = on_end;
        rc = evaluate_coordinate(e);
    }
    if (rc == 0 && e->config.options.save) {
        const draw_step_t step = {.bin_dir = e->bin_dir,
                                  .run_dir = e->run_dir,
                                  .workers = e->config.options.workers,
                                  .say = on_drawn,
                                  .user = e};
        rc = draw_step(&step);
    }
    if (rc == 0) {
        fprintf(e->out, "results in %s\n", e->run_dir);
        evaluate_show(e, 0);
    }
    evaluate_end(e);
    free(e);
    return rc;
}
