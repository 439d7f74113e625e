/* The scan: `sluice-loader --scan` reads the data set once and writes the catalogue (design 1).
 *
 * It lists files, reads each image's header and its label file on several threads (for latency on
 * network storage), names what cannot be used and why, and builds the catalogue in an order that
 * does not depend on the threads: train by path, val by aspect ratio and then by path. Nothing is
 * written anywhere but into the catalogue's memfd.
 */
#ifndef SLUICE_LOADER_SCAN_H
#define SLUICE_LOADER_SCAN_H

#include "control/catalog.h"
#include "control/options.h"

/* Told from time to time, on the calling thread; a negative return ends the scan with that code. */
typedef int (*scan_progress_fn)(void *user, uint64_t done, uint64_t of);

/* The scan itself, over options' data, fraction, single_cls, on_warning, max_pixels and max_scans,
 * into an empty builder. threads 0: one a CPU, at least 4 and at most 8. ERR_DATA when the data
 * set cannot be trained on; ERR_CONFIG for a bad data.yaml. progress may be NULL. */
int scan_build(const options_t *options, int threads, catalog_builder_t *builder,
               scan_progress_fn progress, void *user);

/* The same for a run that goes on and whose list is known (loader/reference.h): the list built is that
 * list, or nothing is. ERR_DATA when too much of it is gone, ERR_CONFIG when the data set is another.
 * list stays open for as long as a thread may hang, so after a failure for good; NULL: scan_build. */
int scan_again(const options_t *options, int threads, const catalog_t *list,
               catalog_builder_t *builder, scan_progress_fn progress, void *user);

/* The process `sluice-loader --scan`: worker arguments as in control/worker.h and `--catalog-fd N`,
 * the memfd to fill, in which the scribe has put the list of a run that goes on. Returns the exit
 * status. */
int scan_main(int argc, char **argv);

#endif
