/* One question to a live run's coordinator, found through the registry: for status, stop and scale.
 */
#ifndef SLUICE_TOOLS_ASK_H
#define SLUICE_TOOLS_ASK_H

#include "control/wire.h"

#include <stdint.h>

/* Sends the command to the run that `which` names (control/registry.h; NULL: the only one) and
 * prints the answer on standard output. ERR_FAILED when there is no such run or it does not answer
 * within 3 s. */
int ask_run(const char *which, wire_cmd_t command, uint32_t argument);

#endif
