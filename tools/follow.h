/* sluice status --follow: the present table of a run, then a line for each change to its end.
 *
 * Reads what the coordinator publishes (design 6) and trusts none of it: frames are checked, text
 * is made printable, events are parsed. The run is never held up by it. Main thread.
 */
#ifndef SLUICE_TOOLS_FOLLOW_H
#define SLUICE_TOOLS_FOLLOW_H

#include "control/bus.h"

/* json: one object a line, and every progress message; else lines for a person, with rank 0's
 * progress once a second. 0 when the run was done, or stopped by its user after a checkpoint;
 * ERR_FAILED when it ended otherwise, went without a word, or cannot be followed. */
int follow_run(const char *which, int json);
/* Shows one checked message as follow_run would show its first (tests, fuzzing). 1: more may come, 0:
 * it was the end of a run in good order, ERR_FAILED: of another. */
int follow_message(const bus_message_t *m, int json);

#endif
