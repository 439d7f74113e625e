/* `sluice-loader --draw RUN_DIR FIRST STEP`: draws what a prediction has found (control/spool.h).
 *
 * Every STEP-th image from FIRST on: reads the file again, draws, encodes, writes RUN_DIR/NAME.jpg, whole
 * or not at all. One image in memory at a time. Started by `sluice predict` when the prediction is over;
 * says a line for each image on standard output: "done NAME", or "bad PATH: reason".
 */
#ifndef SLUICE_LOADER_DRAW_MAIN_H
#define SLUICE_LOADER_DRAW_MAIN_H

/* Returns the exit status. */
int draw_main(int argc, char **argv);

#endif
