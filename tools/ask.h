/* One question to a live run's coordinator, found through the registry: for status, stop and scale.
 */
#ifndef SLUICE_TOOLS_ASK_H
#define SLUICE_TOOLS_ASK_H

#include "control/bus.h"
#include "control/registry.h"
#include "control/wire.h"

#include <stdint.h>

/* Sends the command to the run that `which` names (control/registry.h; NULL: the only one) and
 * prints the answer on standard output. ERR_FAILED when there is no such run or it does not answer
 * within 3 s. */
int ask_run(const char *which, wire_cmd_t command, uint32_t argument);

/* The parts of it. No such run is the answer "no", not a wrong word: ERR_FAILED, exit status 1. */
int ask_find(const char *which, registry_entry_t *run);
int ask_entry(const registry_entry_t *run, wire_cmd_t command, uint32_t argument);
/* The answer as text, NUL-terminated, instead of printed. */
int ask_text(const registry_entry_t *run, wire_cmd_t command, uint32_t argument, char *text,
             size_t bytes);
/* Sends the command on a bus that is connected to the run. */
int ask_send(bus_t *bus, const registry_entry_t *run, wire_cmd_t command, uint32_t argument);
int ask_connect(const registry_entry_t *run, bus_t **bus);
/* Sets the error of a coordinator that did not answer in time. */
int ask_unanswered(const registry_entry_t *run);
enum { ASK_WAIT_MS = 3000 };

#endif
