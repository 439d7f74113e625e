/* The smallest detector that the model table allows, for targets that read what belongs to a model.
 * Built once; the process keeps it. */
#ifndef SLUICE_TESTS_FUZZ_MODEL_H
#define SLUICE_TESTS_FUZZ_MODEL_H

#include "trainer/graph.h"

graph_t *fuzz_small_model(void);

#endif
