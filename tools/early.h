/* Ctrl-C before there is a run: `train`, `val`, `predict` and `digest` end with a documented exit status from their
 * first instruction on, and not by the signal.
 *
 * The signals of an end (SIGINT, SIGTERM, SIGHUP unless ignored) are held back before the libraries
 * are set up. From early_begin to early_hold a thread takes them: one sentence, exit status 1. It is
 * a thread and not a handler, so that it also ends a main thread that waits for storage. After
 * early_hold they wait for the coordinator, and stay held back to the end. Main thread.
 */
#ifndef SLUICE_TOOLS_EARLY_H
#define SLUICE_TOOLS_EARLY_H

void early_begin(void);
/* Nothing is done where early_begin was not called. */
void early_hold(void);
/* Standard streams that are closed (`>&-`) become /dev/null, unreadable or unwritable, before other
 * files take their numbers. */
void early_streams(void);

#endif
