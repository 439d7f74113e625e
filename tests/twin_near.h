/* Closer comparisons than twin.h's, for operations whose results are one rounding away from the
 * twin's: |gpu - cpu| <= r |cpu| + limit * max |cpu| for each value, r the rounding of the tensor's
 * format (2^-8 bfloat16, 2^-11 float16, 0 float32). Test programs only. */
#ifndef SLUICE_TESTS_TWIN_NEAR_H
#define SLUICE_TESTS_TWIN_NEAR_H

#include "tests/twin.h"

/* Fails naming `what`, the element and both values. Gaps of a slice must still be poison. */
void twin_near(twin_t *t, const char *what, const twin_tensor_t *x, double limit);
/* float32 and double places: r is 0. */
void twin_near_floats(twin_t *t, const char *what, k_at at, int64_t count, double limit);
void twin_near_doubles(twin_t *t, const char *what, k_at at, int64_t count, double limit);

#endif
