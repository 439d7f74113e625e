/* What `sluice val` and `sluice predict` have in common: their options, the model file's word on its
 * classes and size, and what is shown. Main thread.
 */
#ifndef SLUICE_TOOLS_EVALUATE_H
#define SLUICE_TOOLS_EVALUATE_H

#include "control/coordinator.h"
#include "tools/console.h"

#include <limits.h>
#include <stdio.h>

typedef struct {
    coordinator_config_t config;
    const char **words; /* of the command line, owned with the array */
    char **made;        /* words that were put together here */
    int n_made;
    char **classes; /* of the model; owned */
    char bin_dir[PATH_MAX], run_dir[OPTIONS_PATH_BYTES];
    /* what is shown */
    console_t *console;
    FILE *out;
    char *text;
    size_t text_bytes;
    int tty, line_shown;
    uint64_t shown_ns, images, unusable, boxes, with_boxes;
    coordinator_measured_t times; /* its times alone outlive the run */
} evaluate_command_t;

/* Options from the command's words (`out=FOLDER`, `coco=True` and `--coco` too), checked; the model file
 * opened for its classes and the size it was trained at, which imgsz is unless it is given. */
int evaluate_begin(evaluate_command_t *e, int argc, char **argv, opt_mode_t mode);
/* The run itself. The view's functions are the caller's to add before. */
int evaluate_coordinate(evaluate_command_t *e);
void evaluate_end(evaluate_command_t *e);
/* Shows what was written to e->out, on standard output. passing: the next replaces it. */
void evaluate_show(evaluate_command_t *e, int passing);
/* Takes the progress line off the screen. */
void evaluate_clear(evaluate_command_t *e);
/* "Speed: ..." */
void evaluate_speed(evaluate_command_t *e, const coordinator_measured_t *m);

#endif
