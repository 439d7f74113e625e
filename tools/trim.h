/* What a resumed run makes again goes from the files that grow: rows and events of epochs behind the
 * state. Files are rewritten whole, or stay as they are. One thread. */
#ifndef SLUICE_TOOLS_TRIM_H
#define SLUICE_TOOLS_TRIM_H

#include "tools/rundir.h"

/* results.csv keeps the header and the rows of epochs 1 to `done`. No file is no error. */
int trim_csv(rundir_t *dir, uint32_t done);
/* events.jsonl loses the "epoch" events of epochs behind `done`; all else happened, and stays. */
int trim_events(rundir_t *dir, uint32_t done);

#endif
