/* The last step of `sluice predict`: processes that draw what was found (loader/draw_main.h).
 *
 * Behind the run, because it needs every image once more and nobody shall wait for it. Main thread, which
 * forks; signals of an end are held back by then, and looked for here.
 */
#ifndef SLUICE_TOOLS_DRAW_STEP_H
#define SLUICE_TOOLS_DRAW_STEP_H

typedef struct {
    const char *bin_dir, *run_dir;
    int workers; /* processes; -1: one a CPU */
    void (*say)(void *user, const char *text);
    void *user;
} draw_step_t;

/* Draws all; removes the spool. An image that cannot be read any more is said and counted. ERR_FAILED
 * when it is ended by a signal or a drawer dies. */
int draw_step(const draw_step_t *step);

#endif
