/* What a person sees of a training run: the start table, the progress line, epochs, the end (design
 * 10).
 *
 * On a terminal the progress line is written over in place; elsewhere a line comes now and then.
 * Notes and warnings go to standard error, the rest to standard output, both through a console: a
 * terminal that is held does not hold the run. A view of the coordinator's: its thread.
 */
#ifndef SLUICE_TOOLS_PROGRESS_H
#define SLUICE_TOOLS_PROGRESS_H

#include "control/coordinator.h"
#include "tools/console.h"

#include <stdio.h>

typedef struct {
    console_t *console;
    FILE *out;  /* composes text, which is then handed to the console */
    char *text; /* behind out */
    size_t text_bytes;
    int tty;        /* standard output is a terminal */
    int line_shown; /* the progress line is on the screen */
    uint64_t shown_ns;
    uint64_t first_ns, first_batch; /* the first progress: what the time left is reckoned from */
    plan_t plan;                    /* from the start table */
    int have_plan;
    char data[OPTIONS_PATH_BYTES], model[OPTIONS_PATH_BYTES];
    int imgsz, epochs;
} progress_t;

int progress_open(progress_t *p);
/* Gives what is still to be shown a moment. */
void progress_close(progress_t *p);
coordinator_view_t progress_view(progress_t *p);

#endif
