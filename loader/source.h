/* What the scan looks at where it is not a training's data set: for `sluice val` the validation split
 * alone, for `sluice predict` what source= names. One thread.
 */
#ifndef SLUICE_LOADER_SOURCE_H
#define SLUICE_LOADER_SOURCE_H

#include "control/options.h"
#include "loader/dataset.h"

/* The data set of the options' mode, to be freed with dataset_free. For a prediction it has one class
 * without a meaning, and its validation split is the image, folder or list of source=. ERR_CONFIG for a
 * missing file, ERR_DATA for one that cannot be used. */
int source_open(const options_t *options, dataset_t **dataset);

#endif
