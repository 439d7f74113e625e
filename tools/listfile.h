/* RUN/samples.catalog: the sample list of a run, kept for its resume (design 4 and 9).
 *
 * The bytes of control/catalog.h's block as the scan left them in the run's memfd. Written once, whole
 * or not at all, when the run begins; a resume gives them back in the memfd, where its scan finds
 * them, checks them (catalog_open, catalog_check_saved) and takes the list from there: so a file that
 * vanished while the run was on keeps its place. The scribe alone; one thread.
 */
#ifndef SLUICE_TOOLS_LISTFILE_H
#define SLUICE_TOOLS_LISTFILE_H

#include "tools/rundir.h"

extern const char listfile_name[]; /* relative to the run directory */

/* Writes what is in the memfd. ERR_ENV when it cannot. */
int listfile_save(rundir_t *dir, int memfd);
/* Puts the file into the empty memfd: 1, or 0 where there is none. ERR_CONFIG for what cannot be such
 * a file, ERR_ENV when it cannot be read or there is no memory for it. */
int listfile_load(const rundir_t *dir, int memfd);

#endif
