/* The loader process: from claim words to committed cells (design 3).
 *
 * Single thread (and the reader's own). Holds at most `inflight` cells whose reads are under way
 * while it decodes another; waits for a slot only while it owns no cell.
 */
#ifndef SLUICE_LOADER_LOOP_H
#define SLUICE_LOADER_LOOP_H

/* The whole life of `sluice-loader` without --scan: start, loop until told to stop, leave. Returns
 * the exit status. */
int loader_run(int argc, char **argv);

#endif
