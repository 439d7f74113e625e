/* The options of the commands that make a run: train and digest. Main thread.
 */
#ifndef SLUICE_TOOLS_RUN_OPTIONS_H
#define SLUICE_TOOLS_RUN_OPTIONS_H

#include "control/options.h"

/* Table defaults, then cfg=FILE or else ./pipeline.yaml where there is one, then the words. With
 * resume= among the words no file is read: the run's own args.yaml takes its place. *words (argc
 * places) gets those that are key=value of the table. ERR_CONFIG names the word that is wrong. */
int run_options(int argc, char **argv, options_t *o, const char **words, int *n_words);
/* options_check, its notes on standard error. */
int run_options_check(options_t *o);
/* A run's folder as a model stands for its best weights, else its last: 1, and their path in path (bytes
 * bytes). 0: it is no folder. ERR_CONFIG: there are none in it, or the path is too long. */
int run_weights(const char *model, char *path, size_t bytes);
/* The folder of this program, where the others are. */
int run_bin_dir(char *path, size_t bytes);

#endif
