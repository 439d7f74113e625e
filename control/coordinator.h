/* The coordinator: one per run, inside `sluice train` and `sluice digest` (design 1 and 6).
 *
 * Scans (through a scan process), makes shared memory, starts and reaps scribe, loaders and trainers, runs
 * the control plane, agrees epochs, forwards to the scribe, watches deaths, ends the run. Touches no
 * pixel, no GPU and no file on storage that may hang. Single thread: the one that forks (PDEATHSIG).
 */
#ifndef SLUICE_CONTROL_COORDINATOR_H
#define SLUICE_CONTROL_COORDINATOR_H

#include "control/options.h"

typedef struct {
    options_t options;
    int digest_only;   /* sluice digest: no scribe, no trainers; the coordinator reads the rings itself */
    int digest_samples; /* --samples */
    const char *bin_dir; /* where sluice-loader and the others are */
} coordinator_config_t;

/* Runs to the end. 0, or the code whose exit status the command returns; err_text says why. */
int coordinator_run(const coordinator_config_t *config);

#endif
